//! Reads the heads of requests before the HTTP library does.
//!
//! It answers 400 to some bytes in a target that browsers percent-encode and other clients often do not. They are
//! percent-encoded here; the result is what a browser sends (URL Standard, query percent-encode set). And it answers a
//! head that is too large without a body. Here such a head is replaced by a small one, for which the server answers
//! with [`ApiError`].
//!
//! Other protocols, and heads behind a request with a chunked body, are left to the HTTP library.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use memchr::{memchr, memchr3};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{ApiError, Code};

/// Maximum bytes of a request's head, percent-encoded.
pub(super) const MAX_HEAD: usize = 32 << 10;

/// Maximum bytes of a request's target, percent-encoded.
const MAX_TARGET: usize = 16 << 10;

/// Maximum number of headers, which is also the HTTP library's.
const MAX_HEADERS: usize = 100;

/// Maximum bytes of a method and a path that the answer to a refused head is told.
const MAX_TOLD: usize = 1 << 10;

/// Why a head was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Target,
    Head,
    Headers,
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let (code, message) = match fault {
            Fault::Target => (Code::UriTooLong, "A request's path and query must have at most 16 KiB."),
            Fault::Head => (Code::HeadersTooLarge, "A request's head must have at most 32 KiB."),
            Fault::Headers => (Code::HeadersTooLarge, "A request must have at most 100 headers."),
        };
        Self::new(code, message)
    }
}

/// What a connection's task and its service know of its heads.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The number of the refused head, which is the last.
    refused: OnceLock<(usize, Fault)>,
    /// Whether a head is held back.
    is_held: AtomicBool,
}

impl Progress {
    /// Checks a request of the connection by its number, from 0.
    ///
    /// # Errors
    /// 414 or 431 when the request stands for the refused head.
    pub(super) fn check(&self, number: usize) -> Result<(), ApiError> {
        match self.0.refused.get() {
            Some((refused, fault)) if *refused == number => Err((*fault).into()),
            _ => Ok(()),
        }
    }

    /// Returns whether a head has begun to arrive.
    pub(super) fn is_arriving(&self) -> bool {
        self.0.is_held.load(Ordering::Relaxed)
    }
}

/// A stream of requests, whose heads arrive whole and with percent-encoded targets.
#[derive(Debug)]
pub(super) struct Heads<S> {
    stream: S,
    part: Part,
    /// The number of heads that were read.
    count: usize,
    /// A head of which not everything has arrived.
    held: Vec<u8>,
    /// Bytes for the reader that did not fit its buffer.
    pending: Vec<u8>,
    progress: Progress,
}

/// The part of a stream at which it is.
#[derive(Debug)]
enum Part {
    Head(Scan),
    /// A body, and how many bytes of it are left.
    Body(u64),
    /// What is left to the HTTP library.
    Rest,
    /// What follows a refused head, which nobody reads.
    Refused,
}

/// How far a head has been read.
#[derive(Debug, Default)]
struct Scan {
    /// Where the line begins that is not complete.
    line: usize,
    /// The request line, once it is complete, and the bytes that encoding adds to it.
    request_line: Option<(Range<usize>, usize)>,
    headers: usize,
    body: Length,
}

/// The length of a body, as the headers so far tell it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Length {
    #[default]
    None,
    Known(u64),
    /// It is chunked, or the HTTP library rejects the request.
    Unknown,
}

/// How reading a head ended.
enum Read {
    Incomplete,
    /// Where it ends.
    Complete(usize),
    /// It is no head.
    Other,
}

impl Scan {
    /// Reads on in a head, from whose beginning `bytes` are.
    fn read(&mut self, bytes: &[u8]) -> Result<Read, Fault> {
        // A TLS handshake has no lines to wait for.
        let begins = |first: &u8| matches!(first, b'\r' | b'\n') || first.is_ascii_graphic();
        if !bytes.first().is_none_or(begins) {
            return Ok(Read::Other);
        }
        while let Some(length) = memchr(b'\n', &bytes[self.line..]) {
            let range = self.line..self.line + length + 1;
            let line = &bytes[range.clone()];
            self.line = range.end;
            let is_empty = matches!(line, b"\n" | b"\r\n");
            if self.request_line.is_none() {
                if is_empty {
                    continue;
                }
                let target = target(line);
                let growth = growth(line);
                if target.len() + growth > MAX_TARGET {
                    return Err(Fault::Target);
                }
                let version = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
                if !version.is_some_and(|version| version.starts_with(b"HTTP/1.")) {
                    return Ok(Read::Other);
                }
                self.request_line = Some((range, growth));
            } else if is_empty {
                self.check_length(range.end)?;
                return Ok(Read::Complete(range.end));
            } else {
                self.headers += 1;
                self.read_header(line);
                if self.headers > MAX_HEADERS {
                    return Err(Fault::Headers);
                }
            }
        }
        if self.request_line.is_none() && target(&bytes[self.line..]).len() > MAX_TARGET {
            return Err(Fault::Target);
        }
        self.check_length(bytes.len())?;
        Ok(Read::Incomplete)
    }

    fn read_header(&mut self, line: &[u8]) {
        let value = |name: &[u8]| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
        };
        if value(b"transfer-encoding:").is_some() {
            self.body = Length::Unknown;
        } else if let Some(length) = value(b"content-length:") {
            let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let length =
                std::str::from_utf8(length).ok().filter(|_| is_number).and_then(|text| text.parse().ok());
            self.body = match (self.body, length) {
                (Length::None, Some(length)) => Length::Known(length),
                (Length::Known(former), Some(length)) if former == length => self.body,
                _ => Length::Unknown,
            };
        }
    }

    fn check_length(&self, bytes: usize) -> Result<(), Fault> {
        let growth = self.request_line.as_ref().map_or(0, |(_, growth)| *growth);
        if bytes + growth > MAX_HEAD { Err(Fault::Head) } else { Ok(()) }
    }

    /// Returns a complete head with an encoded target, if that changes it.
    fn encode(&self, head: &[u8]) -> Option<Vec<u8>> {
        let (range, growth) = self.request_line.clone().filter(|(_, growth)| *growth > 0)?;
        let mut encoded = Vec::with_capacity(head.len() + growth);
        encoded.extend_from_slice(&head[..range.start]);
        encode_into(&mut encoded, &head[range.clone()]);
        encoded.extend_from_slice(&head[range.end..]);
        Some(encoded)
    }
}

/// Returns the target of a request line, as far as it has arrived.
fn target(line: &[u8]) -> &[u8] {
    let Some(method) = memchr(b' ', line) else { return b"" };
    let rest = &line[method + 1..];
    &rest[..memchr(b' ', rest).unwrap_or(rest.len())]
}

/// Returns how many bytes encoding adds.
fn growth(text: &[u8]) -> usize {
    let is_plain =
        memchr3(b'<', b'>', b'"', text).is_none() && memchr(b'`', text).is_none() && text.is_ascii();
    if is_plain { 0 } else { 2 * text.iter().filter(|byte| is_encodable(**byte)).count() }
}

fn is_encodable(byte: u8) -> bool {
    matches!(byte, b'<' | b'>' | b'"' | b'`' | 0x80..)
}

fn encode_into(encoded: &mut Vec<u8>, line: &[u8]) {
    for byte in line {
        if is_encodable(*byte) {
            let digit = |half: u8| b"0123456789ABCDEF"[usize::from(half)];
            encoded.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
        } else {
            encoded.push(*byte);
        }
    }
}

/// Returns a head that stands for a refused one, with its method and path where these are short and plain.
fn stand_in(refused: &[u8]) -> Vec<u8> {
    let mut words = refused[..refused.len().min(MAX_TOLD)].trim_ascii_start().split(|byte| *byte == b' ');
    // The HTTP library would take a CONNECT for a tunnel.
    let method =
        words.next().filter(|method| method.iter().all(u8::is_ascii_uppercase) && *method != b"CONNECT");
    let path = words.next().and_then(|target| target.split(|byte| *byte == b'?').next());
    let path = path
        .filter(|path| path.starts_with(b"/") && path.iter().all(u8::is_ascii_graphic) && growth(path) == 0);
    let (method, path) = (method.filter(|method| !method.is_empty()).unwrap_or(b"GET"), path.unwrap_or(b"/"));
    [method, b" ", path, b" HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n"].concat()
}

impl<S> Heads<S> {
    pub(super) fn new(stream: S, progress: Progress) -> Self {
        Self {
            stream,
            part: Part::Head(Scan::default()),
            count: 0,
            held: Vec::new(),
            pending: Vec::new(),
            progress,
        }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Follows bytes that were read. Returns what the reader gets instead, if that differs.
    fn follow(&mut self, read: &[u8]) -> Option<Vec<u8>> {
        let mut held = std::mem::take(&mut self.held);
        let bytes = if held.is_empty() {
            Cow::Borrowed(read)
        } else {
            held.extend_from_slice(read);
            Cow::Owned(held)
        };
        // Up to `at` the reader gets the bytes as they are, or `instead`.
        let (mut at, mut instead) = (0, None::<Vec<u8>>);
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (length, encoded) = match &mut self.part {
                Part::Head(scan) => match scan.read(rest) {
                    Ok(Read::Complete(end)) => {
                        let (encoded, body) = (scan.encode(&rest[..end]), scan.body);
                        self.count += 1;
                        self.part = match body {
                            Length::None => Part::Head(Scan::default()),
                            Length::Known(length) => Part::Body(length),
                            Length::Unknown => Part::Rest,
                        };
                        (end, encoded)
                    }
                    Ok(Read::Incomplete) => {
                        let instead = instead.unwrap_or_else(|| bytes[..at].to_vec());
                        self.held = bytes.into_owned();
                        self.held.drain(..at);
                        return Some(instead);
                    }
                    Ok(Read::Other) => {
                        self.part = Part::Rest;
                        continue;
                    }
                    Err(fault) => {
                        let mut instead = instead.unwrap_or_else(|| bytes[..at].to_vec());
                        instead.extend(stand_in(rest));
                        // Set once: nothing is read behind it.
                        let _ = self.progress.0.refused.set((self.count, fault));
                        self.part = Part::Refused;
                        return Some(instead);
                    }
                },
                Part::Body(left) => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= length as u64;
                    if *left == 0 {
                        self.part = Part::Head(Scan::default());
                    }
                    (length, None)
                }
                Part::Rest | Part::Refused => (rest.len(), None),
            };
            if let Some(encoded) = encoded {
                instead.get_or_insert_with(|| bytes[..at].to_vec()).extend(encoded);
            } else if let Some(instead) = &mut instead {
                instead.extend_from_slice(&rest[..length]);
            }
            at += length;
        }
        // What was held back is not in the reader's buffer.
        instead.or(match bytes {
            Cow::Borrowed(_) => None,
            Cow::Owned(bytes) => Some(bytes),
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.pending.is_empty() {
            if matches!(this.part, Part::Refused) {
                // Not the end of the stream: the HTTP library would take the client for gone.
                return Poll::Pending;
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let is_end = buffer.filled().len() == before;
            if is_end && this.held.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if is_end {
                // The HTTP library finds out that it is not complete.
                this.pending = std::mem::take(&mut this.held);
                this.part = Part::Rest;
            } else if let Some(instead) = this.follow(&buffer.filled()[before..]) {
                buffer.set_filled(before);
                this.pending = instead;
                // An empty line is no beginning.
                let is_held = !this.held.trim_ascii().is_empty();
                this.progress.0.is_held.store(is_held, Ordering::Relaxed);
            } else {
                return Poll::Ready(Ok(()));
            }
        }
        let length = this.pending.len().min(buffer.remaining());
        buffer.put_slice(&this.pending[..length]);
        if length == this.pending.len() {
            this.pending = Vec::new();
        } else {
            this.pending.drain(..length);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a stream that arrives in pieces of `size` bytes. Returns what the reader gets, and the fault.
    fn read(stream: &[u8], size: usize) -> (Vec<u8>, Option<(usize, Fault)>) {
        let progress = Progress::default();
        let mut heads = Heads::new((), progress.clone());
        let mut got = Vec::new();
        for bytes in stream.chunks(size) {
            if matches!(heads.part, Part::Refused) {
                break;
            }
            got.extend(heads.follow(bytes).unwrap_or_else(|| bytes.to_vec()));
        }
        (got, progress.0.refused.get().copied())
    }

    const REQUESTS: &[u8] = b"\r\nGET /a?b=<c>&d=\"e\"`f\xff HTTP/1.1\r\nReferer: <\">\r\n\r\n\
        HEAD /g?<h HTTP/1.1\r\nX: y\r\n\r\nPOST /i?> HTTP/1.1\r\nContent-LENGTH: 9\r\n\r\nGET /<j>\n\
        GET /k?< HTTP/1.1\r\n\r\n";

    const ENCODED: &[u8] = b"\r\nGET /a?b=%3Cc%3E&d=%22e%22%60f%FF HTTP/1.1\r\nReferer: <\">\r\n\r\n\
        HEAD /g?%3Ch HTTP/1.1\r\nX: y\r\n\r\nPOST /i?%3E HTTP/1.1\r\nContent-LENGTH: 9\r\n\r\nGET /<j>\n\
        GET /k?%3C HTTP/1.1\r\n\r\n";

    #[test]
    fn targets_are_encoded_and_headers_and_bodies_are_not() {
        for size in 1..=REQUESTS.len() {
            let (got, fault) = read(REQUESTS, size);
            assert_eq!((&*got, fault), (ENCODED, None), "{size}: {}", String::from_utf8_lossy(&got));
        }
    }

    #[test]
    fn bytes_after_a_body_of_unknown_length_are_unchanged() {
        for length in [
            "Transfer-Encoding: chunked",
            "Content-Length: 1\r\ntransfer-encoding: chunked",
            "Transfer-Encoding: chunked\r\ncontent-length: 1",
            "Content-Length: 1\r\nContent-Length: 2",
            "Content-Length: +1",
            "Content-Length:",
            "Content-Length: 1, 1",
            "Content-Length: 99999999999999999999",
        ] {
            let stream = format!("POST / HTTP/1.1\r\n{length}\r\n\r\n1GET /<> HTTP/1.1\r\n\r\n");
            assert_eq!(read(stream.as_bytes(), 7).0, stream.as_bytes(), "{length}");
        }
        for length in ["Content-Length: 1", "content-length:1 \r\nContent-Length:\t1"] {
            let stream = format!("POST / HTTP/1.1\r\n{length}\r\n\r\n<GET /<> HTTP/1.1\r\n\r\n");
            let encoded = stream.replace("/<>", "/%3C%3E");
            assert_eq!(read(stream.as_bytes(), 7).0, encoded.as_bytes(), "{length}");
        }
    }

    #[test]
    fn a_head_is_held_back_until_it_is_complete() {
        let mut heads = Heads::new((), Progress::default());
        assert_eq!(heads.follow(b"GET /a HTTP/1.1\r\n\r\nGET /b").unwrap(), b"GET /a HTTP/1.1\r\n\r\n");
        assert_eq!(heads.follow(b" HTTP/1.1\r\nx: ").unwrap(), b"");
        assert_eq!(heads.follow(b"y\r\n\r\n").unwrap(), b"GET /b HTTP/1.1\r\nx: y\r\n\r\n");
        assert_eq!(heads.follow(b"GET /c HTTP/1.1\n\n"), None, "nothing differs");
    }

    #[test]
    fn another_protocol_is_not_held_back() {
        for other in
            [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"SSH-2.0-x\r\n", b"GET /\r\n", b"\r\n\r\n\0\r\nQUIT\n"]
        {
            assert_eq!(Heads::new((), Progress::default()).follow(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn a_head_has_limits() {
        let target = |length: usize| format!("GET /a?{} HTTP/1.1\r\n\r\n", "x".repeat(length - 3));
        let raw = |length: usize| format!("GET /a?{} HTTP/1.1\r\n\r\n", "<".repeat(length - 3));
        let head = |length: usize| {
            let (start, end) = ("HEAD /a?b HTTP/1.1\r\nx: ", "\r\n\r\n");
            format!("{start}{}{end}", "y".repeat(length - start.len() - end.len()))
        };
        let headers = |count: usize| format!("GET /a HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(count));
        let get = "GET /a HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";
        let first = "GET /first HTTP/1.1\r\nhost: x\r\n\r\n";
        for (good, bad, fault, stand_in) in [
            (target(MAX_TARGET), target(MAX_TARGET + 1), Fault::Target, get),
            (raw(MAX_TARGET / 3), raw(MAX_TARGET / 3 + 3), Fault::Target, get),
            (head(MAX_HEAD), head(MAX_HEAD + 1), Fault::Head, &*get.replace("GET", "HEAD")),
            (headers(MAX_HEADERS), headers(MAX_HEADERS + 1), Fault::Headers, get),
            (String::new(), "x".repeat(MAX_HEAD + 1), Fault::Head, &get.replace("/a", "/")),
            (String::new(), "\r\n".repeat(MAX_HEAD), Fault::Head, &get.replace("/a", "/")),
            (
                String::new(),
                format!("G\u{fc}T <{}", "x".repeat(MAX_TARGET)),
                Fault::Target,
                &get.replace("/a", "/"),
            ),
        ] {
            for size in [1, 1_000, 100_000] {
                assert_eq!(read(good.as_bytes(), size).1, None, "{fault:?} {size}");
                let (got, refused) = read(format!("{first}{bad}{first}").as_bytes(), size);
                assert_eq!(refused, Some((1, fault)), "{size}");
                assert_eq!(String::from_utf8(got).unwrap(), format!("{first}{stand_in}"), "{fault:?} {size}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_chunk_sizes(
            stream in "(GET /[a-c<\"]{0,9} HTTP/1.1\r\n(X: <\r\n|content-length: 2\r\n){0,2}\r\n(<>)?){1,4}",
            size in 1_usize..50,
        ) {
            let whole = read(stream.as_bytes(), stream.len());
            prop_assert_eq!(read(stream.as_bytes(), size), whole);
        }
    }
}
