//! As much of HTTP/2 and gRPC as a server of one method with small messages needs.
//!
//! Why not the usual crates: many plugins put the socket's path into `:authority` (gRPC's C core and Java do, older Go,
//! too), Kubernetes accepts it, and h2 refuses such a request before the application sees it. Here all requests mean the
//! same, so their headers are ignored.

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What a frame holds at most, unless the server allows more.
const MOST_IN_FRAME: usize = 16 * 1024;
/// The most a message may have, and requests under way at once.
const MOST_IN_MESSAGE: usize = 64 * 1024;
const MOST_STREAMS: usize = 16;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

/// Of SETTINGS and PING.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Codes of gRPC.
const UNKNOWN: u8 = 2;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;

/// One connection, until the other side ends it. `answer` gets a request's message and may refuse it.
pub(super) async fn serve<E: std::fmt::Display>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&[u8]) -> Result<(), E>,
) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != PREFACE {
        return Err(invalid("not HTTP/2"));
    }
    let mut out = Vec::new();
    put_frame(&mut out, kind::SETTINGS, 0, 0, &[]);
    let mut session = Session::default();
    loop {
        stream.write_all(&out).await?;
        out.clear();
        let Some(frame) = read_frame(&mut stream).await? else {
            return Ok(());
        };
        if !session.take(&frame, &answer, &mut out)? {
            return Ok(());
        }
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    content: Vec<u8>,
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut head = [0; 9];
    match stream.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let mut head = &head[..];
    let length = head.get_uint(3) as usize;
    if length > MOST_IN_FRAME {
        return Err(invalid("a frame that is too large"));
    }
    let (kind, flags, number) = (head.get_u8(), head.get_u8(), head.get_u32() & 0x7fff_ffff);
    let mut content = vec![0; length];
    stream.read_exact(&mut content).await?;
    Ok(Some(Frame {
        kind,
        flags,
        stream: number,
        content,
    }))
}

/// Requests under way, by stream: what has come of their bodies.
#[derive(Default)]
struct Session {
    bodies: BTreeMap<u32, Vec<u8>>,
}

impl Session {
    /// What to answer goes to `out`; false at the end.
    fn take<E: std::fmt::Display>(
        &mut self,
        frame: &Frame,
        answer: &impl Fn(&[u8]) -> Result<(), E>,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        match frame.kind {
            kind::SETTINGS if frame.flags & ACK == 0 => put_frame(out, kind::SETTINGS, ACK, 0, &[]),
            kind::PING if frame.flags & ACK == 0 => put_frame(out, kind::PING, ACK, 0, &frame.content),
            kind::GOAWAY => return Ok(false),
            kind::RST_STREAM => drop(self.bodies.remove(&frame.stream)),
            // Headers after a body are trailers.
            kind::HEADERS => drop(self.bodies.entry(frame.stream).or_default()),
            kind::DATA => {
                let body = self.bodies.get_mut(&frame.stream);
                if let Some(body) = body {
                    body.extend_from_slice(without_padding(frame)?);
                }
                if !frame.content.is_empty() {
                    let more = (frame.content.len() as u32).to_be_bytes();
                    put_frame(out, kind::WINDOW_UPDATE, 0, 0, &more);
                }
            }
            _ => return Ok(true),
        }
        if self.bodies.len() > MOST_STREAMS || self.bodies.values().any(|body| body.len() > MOST_IN_MESSAGE) {
            return Err(invalid("more at once than a plugin has to say"));
        }
        let ends = matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.flags & END_STREAM != 0;
        if ends && let Some(body) = self.bodies.remove(&frame.stream) {
            put_answer(out, frame.stream, of_body(&body, answer));
        }
        Ok(true)
    }
}

fn without_padding(frame: &Frame) -> io::Result<&[u8]> {
    if frame.flags & PADDED == 0 {
        return Ok(&frame.content);
    }
    let (padding, rest) = frame.content.split_first().ok_or_else(|| invalid("no padding"))?;
    let length = rest.len().checked_sub(usize::from(*padding));
    Ok(&rest[..length.ok_or_else(|| invalid("too much padding"))?])
}

/// A body is a message with its length before it.
fn of_body<E: std::fmt::Display>(body: &[u8], answer: &impl Fn(&[u8]) -> Result<(), E>) -> Result<(), (u8, String)> {
    let Some((mut head, message)) = body.split_at_checked(5) else {
        return Err((INTERNAL, "the request has no message".to_string()));
    };
    if head.get_u8() != 0 {
        return Err((UNIMPLEMENTED, "compressed messages are not understood".to_string()));
    }
    if head.get_u32() as usize != message.len() {
        return Err((INTERNAL, "the request is not one message".to_string()));
    }
    answer(message).map_err(|why| (UNKNOWN, why.to_string()))
}

fn put_answer(out: &mut Vec<u8>, stream: u32, answer: Result<(), (u8, String)>) {
    // The eighth of HPACK's own headers.
    let mut headers = vec![0x88];
    put_header(&mut headers, "content-type", "application/grpc");
    match answer {
        Ok(()) => {
            put_frame(out, kind::HEADERS, END_HEADERS, stream, &headers);
            // An empty message, neither compressed nor of any length.
            put_frame(out, kind::DATA, 0, stream, &[0; 5]);
            let mut trailers = vec![];
            put_header(&mut trailers, "grpc-status", "0");
            put_frame(out, kind::HEADERS, END_HEADERS | END_STREAM, stream, &trailers);
        }
        Err((code, why)) => {
            put_header(&mut headers, "grpc-status", &code.to_string());
            put_header(&mut headers, "grpc-message", &escaped(&why));
            put_frame(out, kind::HEADERS, END_HEADERS | END_STREAM, stream, &headers);
        }
    }
}

fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, content: &[u8]) {
    out.put_uint(content.len() as u64, 3);
    out.put_u8(kind);
    out.put_u8(flags);
    out.put_u32(stream);
    out.put_slice(content);
}

/// As HPACK has it: in full, not to be remembered.
fn put_header(out: &mut Vec<u8>, name: &str, value: &str) {
    out.put_u8(0);
    for text in [name, value] {
        // Lengths have seven bits in the first byte, and then as many as it takes.
        match text.len().checked_sub(127) {
            None => out.put_u8(text.len() as u8),
            Some(mut rest) => {
                out.put_u8(127);
                while rest >= 128 {
                    out.put_u8(rest as u8 | 128);
                    rest >>= 7;
                }
                out.put_u8(rest as u8);
            }
        }
        out.put_slice(text.as_bytes());
    }
}

/// Printable ASCII, and no more of it than a frame holds.
fn escaped(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'%' | ..b' ' | 127.. => format!("%{byte:02X}"),
        _ => char::from(byte).to_string(),
    };
    text.bytes().take(2000).map(one).collect()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn talk(said: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            client.write_all(said).await.unwrap();
            client.shutdown().await.unwrap();
            let answer = |message: &[u8]| match message {
                b"good" => Ok(()),
                _ => Err("50 % of é".repeat(20)),
            };
            let ended = serve(server, answer).await;
            let mut heard = vec![];
            client.read_to_end(&mut heard).await.unwrap();
            (heard, ended)
        })
    }

    /// With the path of a socket as authority, in two pieces and padded.
    fn request(stream: u32, message: &[u8]) -> Vec<u8> {
        let mut headers = vec![0x83, 0x86];
        put_header(
            &mut headers,
            ":authority",
            "/var/lib/kubelet/device-plugins/kubelet.sock",
        );
        let mut body = vec![0];
        body.put_u32(message.len() as u32);
        body.put_slice(message);
        let (first, rest) = body.split_at(3);
        let padded = [&[2], rest, &[0, 0]].concat();
        let mut out = vec![];
        put_frame(&mut out, kind::HEADERS, END_HEADERS, stream, &headers);
        put_frame(&mut out, kind::DATA, 0, stream, first);
        put_frame(&mut out, kind::DATA, END_STREAM | PADDED, stream, &padded);
        out
    }

    #[test]
    fn requests_are_answered_whatever_their_headers() {
        let mut ping = vec![];
        put_frame(&mut ping, kind::SETTINGS, 0, 0, &[]);
        put_frame(&mut ping, kind::PING, 0, 0, b"12345678");
        let (heard, ended) = talk(&[PREFACE, &ping, &request(1, b"good"), &request(3, b"bad")].concat());
        ended.unwrap();
        let holds = |bytes: &[u8]| heard.windows(bytes.len()).any(|window| window == bytes);
        assert!(holds(b"12345678") && holds(b"grpc-status\x010"), "{heard:?}");
        assert!(holds(b"grpc-status\x012") && holds(b"50 %25 of %C3%A9"), "{heard:?}");
    }

    proptest! {
        #[test]
        fn nonsense_ends_the_connection_at_most(said in prop::collection::vec(any::<u8>(), 0..400), kinds in prop::collection::vec((0u8..10, any::<u8>(), 0u32..4, prop::collection::vec(any::<u8>(), 0..20)), 0..20)) {
            drop(talk(&said));
            let mut frames = PREFACE.to_vec();
            for (kind, flags, stream, content) in kinds {
                put_frame(&mut frames, kind, flags, stream, &content);
            }
            frames.extend(said);
            drop(talk(&frames));
        }
    }
}
