//! The ClickHouse server that an npm package ships as a shared library.
//!
//! One function of the library runs the whole server. It runs in a child process, a mode of the `devstack` program,
//! because it installs signal handlers and starts threads, and because it must be possible to kill it.

mod replication;

use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use futures_util::future::join_all;
use libloading::{Library, Symbol};
use tokio::net::TcpListener;

use crate::{Cause, Error, Tls};

/// The subcommand of `devstack` that runs ClickHouse.
pub const SUBCOMMAND: &str = "run-libchdb";

/// As whom a server reaches other replicas and ZooKeeper.
pub(crate) const INTERSERVER: &str = "clickhouse";

/// The variable with the password by which replicas know each other.
pub(crate) const PASSWORD: &str = "DEVSTACK_INTERSERVER_PASSWORD";

/// What encrypts connections for the library, which opens no listener that does.
#[derive(Debug)]
pub struct Encryption {
    /// The certificate.
    pub tls: Tls,
    /// Where clients connect.
    pub at: Vec<SocketAddrV4>,
}

/// Returns where the library itself listens, unencrypted, for those who connect to an address: on one that is known to
/// nobody else.
pub(crate) fn behind(address: Ipv4Addr) -> Ipv4Addr {
    let [first, second, third, last] = address.octets();
    Ipv4Addr::new(first, second, third, last + 2)
}

impl Encryption {
    /// Begins to decrypt, in a thread of this process, so that it is killed and paused with the library.
    fn begin(self) -> Result<(), Cause> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let decrypt = |address: &SocketAddrV4| -> Result<_, Cause> {
            let behind = SocketAddrV4::new(behind(*address.ip()), address.port());
            let listener = runtime.block_on(TcpListener::bind(address))?;
            self.tls.decrypt(listener, SocketAddr::V4(behind))
        };
        let decrypting = self.at.iter().map(decrypt).collect::<Result<Vec<_>, _>>()?;
        thread::Builder::new()
            .name("tls".to_owned())
            .spawn(move || runtime.block_on(join_all(decrypting)))?;
        Ok(())
    }
}

/// The library's entry point: takes the arguments of a command line; the result is not used.
type Entry = unsafe extern "C" fn(c_int, *mut *mut c_char) -> *mut c_void;

/// Runs the ClickHouse server in this process; returns when it has stopped. With an address, its second one for HTTP,
/// its tables replicate.
///
/// # Errors
/// The reason why the library cannot be loaded, cannot replicate or cannot have encrypted connections.
pub fn run(
    library: &Path,
    replicates_at: Option<SocketAddrV4>,
    encryption: Option<Encryption>,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(), Cause> {
    let mut texts = vec![CString::from(c"clickhouse")];
    for argument in arguments {
        texts.push(CString::new(argument.into_vec())?);
    }
    let mut pointers: Vec<*mut c_char> = texts.iter().map(|text| text.as_ptr().cast_mut()).collect();
    let scheme = if encryption.is_some() { "https" } else { "http" };
    let password = std::env::var(PASSWORD).unwrap_or_default();
    encryption.map_or(Ok(()), Encryption::begin)?;
    let count = c_int::try_from(pointers.len())?;
    // By C's convention a null ends the list and is not counted.
    pointers.push(std::ptr::null_mut());
    // SAFETY: the file is the pinned package's library, whose initialisers may run in any process; the
    // symbol has this signature at the pinned version; the strings outlive the call.
    #[allow(unsafe_code)]
    unsafe {
        let file = library;
        let library = Library::new(file)?;
        if let Some(address) = replicates_at {
            replication::enable(base_of(file)?, address, scheme, [INTERSERVER, &password])?;
        }
        let entry: Symbol<'_, Entry> = library.get(c"query_stable_v2")?;
        entry(count, pointers.as_mut_ptr());
    }
    Ok(())
}

/// Returns where a library is loaded.
fn base_of(library: &Path) -> Result<*mut u8, Cause> {
    let library = library.canonicalize()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let of_library = maps.lines().find(|line| line.ends_with(&*library.to_string_lossy()));
    let begin = of_library.and_then(|line| line.split('-').next()).ok_or("the library is not loaded")?;
    Ok(std::ptr::with_exposed_provenance_mut(usize::from_str_radix(begin, 16)?))
}

/// Finds the `devstack` program: `DEVSTACK_BIN`, or else beside the running program or, for tests, one folder up.
///
/// # Errors
/// [`Error::Missing`] with the command that builds it.
pub fn devstack_program() -> Result<PathBuf, Error> {
    if let Some(given) = std::env::var_os("DEVSTACK_BIN") {
        return Ok(given.into());
    }
    let here = std::env::current_exe().map_err(Error::file("find", Path::new("the running program")))?;
    let found =
        here.ancestors().skip(1).take(2).map(|folder| folder.join("devstack")).find(|file| file.is_file());
    found.ok_or_else(|| Error::Missing {
        what: "the program devstack, which runs ClickHouse,".to_owned(),
        remedy: "build it with `cargo build -p devstack --bin devstack`, or set DEVSTACK_BIN to its path"
            .to_owned(),
    })
}
