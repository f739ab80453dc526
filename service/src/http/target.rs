//! Accepts bytes in request targets that the HTTP library rejects.
//!
//! Browsers percent-encode them; other clients often do not. The HTTP library answers 400 to them, so they are
//! percent-encoded before it reads the request. The result is what a browser sends (URL Standard, query
//! percent-encode set).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use memchr::{memchr, memchr3};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest header name that ends rewriting, with its colon.
const LONGEST_NAME: usize = b"transfer-encoding:".len();

/// A stream of requests whose targets are percent-encoded as they are read.
#[derive(Debug)]
pub(super) struct EncodeTargets<S> {
    stream: S,
    part: Part,
    /// Bytes that were read and encoded but did not fit the reader's buffer.
    pending: Vec<u8>,
}

impl<S> EncodeTargets<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, part: Part::RequestLine { is_empty: true }, pending: Vec::new() }
    }
}

/// The part of a request at which the stream is.
#[derive(Debug)]
enum Part {
    /// A request line, of which nothing but line breaks was read yet if it is empty.
    RequestLine { is_empty: bool },
    /// A header line, with its length and the beginning in lower case.
    Header { length: usize, name: [u8; LONGEST_NAME] },
    /// A body, or what follows one: the requests after it are not changed.
    Body,
}

impl Part {
    const HEADER: Self = Self::Header { length: 0, name: [0; LONGEST_NAME] };

    /// Follows the next bytes of a stream; returns them encoded if that changes them.
    fn encode(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut encoded: Option<Vec<u8>> = None;
        let mut at = 0;
        while at < bytes.len() && !matches!(self, Self::Body) {
            let end = memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| at + end + 1);
            let line = &bytes[at..end];
            let is_complete = line.ends_with(b"\n");
            match self {
                Self::RequestLine { is_empty } => {
                    *is_empty &= line.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
                    if encoded.is_some() || is_encodable(line) {
                        encode_into(encoded.get_or_insert_with(|| bytes[..at].to_vec()), line);
                    }
                    if is_complete && !*is_empty {
                        *self = Self::HEADER;
                    }
                }
                Self::Header { length, name } => {
                    let free = name.get_mut(*length..).unwrap_or_default();
                    for (place, byte) in free.iter_mut().zip(line) {
                        *place = byte.to_ascii_lowercase();
                    }
                    *length += line.len();
                    if let Some(encoded) = &mut encoded {
                        encoded.extend_from_slice(line);
                    }
                    if is_complete {
                        let has_body =
                            name.starts_with(b"content-length:") || name.starts_with(b"transfer-encoding:");
                        let is_end = name.starts_with(b"\r\n") || name.starts_with(b"\n");
                        *self = match (has_body, is_end) {
                            (true, _) => Self::Body,
                            (_, true) => Self::RequestLine { is_empty: true },
                            _ => Self::HEADER,
                        };
                    }
                }
                Self::Body => {}
            }
            at = end;
        }
        if let Some(encoded) = &mut encoded {
            encoded.extend_from_slice(&bytes[at..]);
        }
        encoded
    }
}

fn is_encodable(line: &[u8]) -> bool {
    memchr3(b'<', b'>', b'"', line).is_some() || memchr(b'`', line).is_some() || !line.is_ascii()
}

fn encode_into(encoded: &mut Vec<u8>, line: &[u8]) {
    for byte in line {
        match byte {
            b'<' | b'>' | b'"' | b'`' | 0x80.. => {
                let digit = |half: u8| b"0123456789ABCDEF"[usize::from(half)];
                encoded.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
            }
            other => encoded.push(*other),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EncodeTargets<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.pending.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            if let Some(encoded) = this.part.encode(&buffer.filled()[before..]) {
                buffer.set_filled(before);
                this.pending = encoded;
            }
        }
        let length = this.pending.len().min(buffer.remaining());
        buffer.put_slice(&this.pending[..length]);
        this.pending.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EncodeTargets<S> {
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

    /// Encodes a stream that arrives in pieces of `size` bytes.
    fn encoded(stream: &[u8], size: usize) -> Vec<u8> {
        let mut part = Part::RequestLine { is_empty: true };
        stream.chunks(size).flat_map(|bytes| part.encode(bytes).unwrap_or_else(|| bytes.to_vec())).collect()
    }

    const REQUESTS: &[u8] = b"\r\nGET /a?b=<c>&d=\"e\"`f\xff HTTP/1.1\r\nReferer: <\">\r\n\r\n\
        HEAD /g?<h HTTP/1.1\r\nX: y\r\n\r\nPOST /i?> HTTP/1.1\r\nContent-LENGTH: 9\r\n\r\nGET /<j>\n";

    const ENCODED: &[u8] = b"\r\nGET /a?b=%3Cc%3E&d=%22e%22%60f%FF HTTP/1.1\r\nReferer: <\">\r\n\r\n\
        HEAD /g?%3Ch HTTP/1.1\r\nX: y\r\n\r\nPOST /i?%3E HTTP/1.1\r\nContent-LENGTH: 9\r\n\r\nGET /<j>\n";

    #[test]
    fn targets_are_encoded_and_headers_and_bodies_are_not() {
        for size in 1..=REQUESTS.len() {
            let encoded = encoded(REQUESTS, size);
            assert_eq!(encoded, ENCODED, "{size}: {}", String::from_utf8_lossy(&encoded));
        }
    }

    #[test]
    fn bytes_after_a_request_with_a_body_are_unchanged() {
        let chunked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n<\r\n0\r\n\r\n\
            GET /<> HTTP/1.1\r\n\r\n";
        assert_eq!(encoded(chunked, 7), chunked);
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_chunk_sizes(
            stream in "(GET /[a-c<\"]{0,9} HTTP/1.1\r\n(X: <\r\n|content-length: 1\r\n){0,2}\r\n){1,4}",
            size in 1_usize..50,
        ) {
            let whole = encoded(stream.as_bytes(), stream.len());
            prop_assert_eq!(encoded(stream.as_bytes(), size), whole);
        }
    }
}
