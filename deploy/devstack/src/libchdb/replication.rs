//! Makes the loaded library replicate, for tests.
//!
//! The library was built as a console, which has no address for other servers and opens no port for them, so its
//! replicated tables stay read-only. Three of its functions return that address, its protocol and its password; they
//! are replaced by functions that return constants. The second address that the library listens on for HTTP gets the
//! handler of other servers, which the library contains, instead of the one of queries. And a connection that another
//! server breaks off, because it was killed, does not end this one.
//!
//! All of it holds for one version, at addresses within the library that were found by reading its code. The bytes
//! there are compared first, so any other version is an error.

use std::ffi::c_void;
use std::net::SocketAddrV4;
use std::num::NonZeroUsize;
use std::ptr;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::Cause;

/// A function of the library: where it is, and the bytes that it begins with.
struct Function {
    offset: usize,
    begins_with: &'static [u8],
}

/// `Context::getInterserverIOAddress`: returns a host and a port.
const ADDRESS: Function = Function {
    offset: 0x1417_c9c0,
    begins_with: &[
        0x41, 0x56, 0x53, 0x48, 0x83, 0xec, 0x48, 0x4c, 0x8b, 0x36, 0x49, 0x0f, 0xbe, 0x8e, 0x67, 0x01, 0, 0,
    ],
};
/// `Context::getInterserverScheme`: returns a string.
const SCHEME: Function = Function {
    offset: 0x1417_cac0,
    begins_with: &[0x48, 0x8b, 0x06, 0x80, 0xb8, 0x87, 0x01, 0, 0, 0, 0x78, 0x1a],
};
/// `Context::getInterserverCredentials`: returns a shared pointer.
const CREDENTIALS: Function = Function {
    offset: 0x1417_c940,
    begins_with: &[0x41, 0x57, 0x41, 0x56, 0x53, 0x4c, 0x8b, 0x3f, 0x49, 0x8d, 0x9f, 0x88, 0x01, 0, 0],
};
/// `createHandlerFactory`: takes the name of an address's handler in register rcx.
const FACTORY: Function = Function {
    offset: 0x1839_5cc0,
    begins_with: &[
        0x55, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x53, 0x48, 0x81, 0xec, 0x98, 0, 0, 0,
    ],
};
/// `KillingErrorHandler::exception`: ends the process.
const FAULT: Function =
    Function { offset: 0x0f11_3480, begins_with: &[0x50, 0xe8, 0xfa, 0x66, 0xe2, 0x11, 0xcc] };

const HANDLER: &str = "InterserverIOHTTPHandler-factory";

const PAGE: usize = 4096;

/// The longest string that C++ keeps within the string itself.
const SHORT: usize = 22;

/// Changes the loaded library, whose memory begins at `base`, before its entry point is called: other servers reach it
/// by this scheme at `address`, which must be the second one that it listens on or what decrypts for it, as a user with
/// a password.
///
/// # Errors
/// When the library is another version.
///
/// # Safety
/// `base` must be where the library is loaded, and no other thread may run its code.
#[allow(unsafe_code)]
pub(super) unsafe fn enable(
    base: *mut u8,
    address: SocketAddrV4,
    scheme: &str,
    [user, password]: [&str; 2],
) -> Result<(), Cause> {
    // SAFETY: as for this function.
    unsafe {
        for function in [&ADDRESS, &SCHEME, &CREDENTIALS, &FACTORY, &FAULT] {
            let found = std::slice::from_raw_parts(base.add(function.offset), function.begins_with.len());
            if found != function.begins_with {
                return Err(
                    "this version of ClickHouse's library is not known, so it cannot replicate; put a \
                            `clickhouse` program on the PATH instead"
                        .into(),
                );
            }
        }
    }
    let mut memory = Memory::new()?;
    let name = memory.string(HANDLER)?;
    let name = memory.put(&name);
    let host = short(&address.ip().to_string())?;
    let port = u64::from(address.port()).to_le_bytes();
    let host_and_port = memory.put(&[&host[..], &port].concat());
    let scheme = memory.put(&short(scheme)?);
    let user = [short(user)?, memory.string(password)?].concat();
    let entry = memory.put(&user);
    // User and password, then the vector of all that are accepted: this one.
    let accepted = words(&[entry, entry + 48, entry + 48]);
    let credentials = memory.put(&[user, accepted, vec![0; 256]].concat());
    let calls = memory.put(&words(&[0]));

    // mov rax, CONSTANT; then each copies what is there to the result, whose address is in rdi, and returns it.
    let load = |constant: u64| [&[0x48, 0xb8][..], &constant.to_le_bytes()].concat();
    let copy_16 = [0xc5, 0xf8, 0x10, 0x00, 0xc5, 0xf8, 0x11, 0x07];
    let copy_third_word = [0x48, 0x8b, 0x48, 0x10, 0x48, 0x89, 0x4f, 0x10];
    let copy_port =
        [0x48, 0x8b, 0x48, 0x10, 0x48, 0x89, 0x4f, 0x10, 0x0f, 0xb7, 0x48, 0x18, 0x66, 0x89, 0x4f, 0x18];
    let returned = [0x48, 0x89, 0xf8, 0xc3];
    let get_address = [&load(host_and_port)[..], &copy_16, &copy_port, &returned].concat();
    let get_scheme = [&load(scheme)[..], &copy_16, &copy_third_word, &returned].concat();
    // A shared pointer that owns nothing: the pointer in rax, no counter in rdx.
    let get_credentials = [&load(credentials)[..], &[0x31, 0xd2, 0xc3]].concat();
    // inc dword [rax]; test byte [rax], 1; jne +10; mov rcx, NAME: the second call, which is for the second address,
    // gets the name. Then come the bytes that the function began with, and a jump to the ones after them.
    let count = [0xff, 0x00, 0xf6, 0x00, 0x01, 0x75, 0x0a];
    let take_name = [&[0x48, 0xb9][..], &name.to_le_bytes()].concat();
    // SAFETY: within the library, as compared above.
    let rest = unsafe { base.add(FACTORY.offset + FACTORY.begins_with.len()) } as u64;
    let jump = |to: u64| [&load(to)[..], &[0xff, 0xe0]].concat();
    let factory = [&load(calls)[..], &count, &take_name, FACTORY.begins_with, &jump(rest)].concat();
    let factory = memory.put(&factory);
    // SAFETY: each place was compared above and is longer than its new code, or ends at the jump back.
    unsafe {
        replace(base, &ADDRESS, &get_address)?;
        replace(base, &SCHEME, &get_scheme)?;
        replace(base, &CREDENTIALS, &get_credentials)?;
        replace(base, &FACTORY, &jump(factory))?;
        // ret: the connection's thread goes on with another connection, as in a server.
        replace(base, &FAULT, &[0xc3])?;
    }
    Ok(())
}

/// Overwrites the beginning of a function.
#[allow(unsafe_code)]
unsafe fn replace(base: *mut u8, function: &Function, code: &[u8]) -> Result<(), Cause> {
    // SAFETY: the caller compared the bytes there.
    unsafe {
        let place = base.add(function.offset);
        let page = place.map_addr(|address| address & !(PAGE - 1));
        let page = ptr::NonNull::new(page.cast::<c_void>()).ok_or("no library")?;
        mprotect(page, 2 * PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC)?;
        ptr::copy_nonoverlapping(code.as_ptr(), place, code.len());
    }
    Ok(())
}

/// Memory that stays until the process ends, and may contain code.
struct Memory {
    begin: *mut u8,
    used: usize,
}

impl Memory {
    const SIZE: NonZeroUsize = NonZeroUsize::new(16 * PAGE).unwrap();

    fn new() -> Result<Self, Cause> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: new memory, which nothing else uses.
        #[allow(unsafe_code)]
        let begin = unsafe { mmap_anonymous(None, Self::SIZE, access, MapFlags::MAP_PRIVATE)? };
        Ok(Self { begin: begin.as_ptr().cast(), used: 0 })
    }

    /// Copies bytes to a place that begins at a multiple of 16, and returns its address.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.used.next_multiple_of(16);
        assert!(at + bytes.len() <= Self::SIZE.get(), "everything together is a few hundred bytes");
        self.used = at + bytes.len();
        // SAFETY: within the memory, as asserted.
        #[allow(unsafe_code)]
        unsafe {
            let place = self.begin.add(at);
            ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            place as u64
        }
    }
}

impl Memory {
    /// Returns a string as C++ keeps it.
    fn string(&mut self, text: &str) -> Result<Vec<u8>, Cause> {
        if text.len() <= SHORT {
            return short(text);
        }
        // A long one: where it is, its length, its capacity with the highest bit set.
        let at = self.put(&[text.as_bytes(), &[0]].concat());
        let length = text.len() as u64;
        Ok(words(&[at, length, 1 << 63 | (length + 1)]))
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a string as C++ keeps a short one: 23 bytes of text and the length.
fn short(text: &str) -> Result<Vec<u8>, Cause> {
    if text.len() > SHORT {
        return Err(format!("{text} is too long").into());
    }
    let mut string = text.as_bytes().to_vec();
    string.resize(23, 0);
    string.push(text.len() as u8);
    Ok(string)
}
