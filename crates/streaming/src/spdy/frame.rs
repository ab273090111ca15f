//! Frames: their bytes, both ways. Pure, so that hostile input can be thrown at it without a socket.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::headers::{Deflater, Headers, Inflater, put_block};

const VERSION: u16 = 3;
const FLAG_FIN: u8 = 1;
/// Control frames are small; only data comes in bulk, and that is never gathered.
const CONTROL_BYTES_MAX: usize = 32 << 10;
pub(super) const ID_MASK: u32 = 0x7fff_ffff;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Why a stream is reset.
pub(super) const RESET_PROTOCOL_ERROR: u32 = 1;
pub(super) const RESET_REFUSED: u32 = 3;
pub(super) const RESET_CANCEL: u32 = 5;

/// Why a connection is left.
pub(super) const GOAWAY_OK: u32 = 0;
pub(super) const GOAWAY_PROTOCOL_ERROR: u32 = 1;

/// Why a connection can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error("SPDY version {0} is not supported")]
    Version(u16),
    #[error("a control frame of {0} bytes is too large")]
    FrameTooLarge(usize),
    #[error("a control frame of type {0} is malformed")]
    Malformed(u16),
    #[error("a header block does not decompress")]
    Compression,
    #[error("a header block is too large")]
    HeadersTooLarge,
    #[error("a header block is malformed")]
    Headers,
    #[error("stream 0 does not exist")]
    StreamZero,
    #[error("too many frames are waiting for a response")]
    Flood,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    SynStream {
        stream: u32,
        fin: bool,
        headers: Headers,
    },
    SynReply {
        stream: u32,
        fin: bool,
    },
    /// Part of a data frame, or all of it; `fin` comes with the last part.
    Data {
        stream: u32,
        fin: bool,
        data: Bytes,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Ping {
        id: u32,
    },
    GoAway {
        last_stream: u32,
        status: u32,
    },
    /// More headers: of no use here but for the end of the stream they may bring.
    Headers {
        stream: u32,
        fin: bool,
    },
    /// Settings and windows: read and dropped.
    Ignored,
}

pub(super) struct Encoder(Deflater);

impl Encoder {
    pub(super) fn new() -> Self {
        Encoder(Deflater::new())
    }

    /// Appends a frame; a data frame's payload must be below 16 MiB.
    pub(super) fn encode(&mut self, frame: &Frame, out: &mut BytesMut) {
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                self.with_headers(out, SYN_STREAM, u8::from(*fin), headers, |out| {
                    out.put_u32(*stream);
                    out.put_u32(0);
                    out.put_u16(0);
                });
            }
            Frame::SynReply { stream, fin } => {
                self.with_headers(out, SYN_REPLY, u8::from(*fin), &Headers::default(), |out| {
                    out.put_u32(*stream)
                });
            }
            Frame::Headers { stream, fin } => {
                self.with_headers(out, HEADERS, u8::from(*fin), &Headers::default(), |out| {
                    out.put_u32(*stream)
                });
            }
            Frame::Data { stream, fin, data } => {
                out.put_u32(*stream & ID_MASK);
                out.put_u32((u32::from(*fin) << 24) | data.len() as u32);
                out.extend_from_slice(data);
            }
            Frame::Reset { stream, status } => control(out, RST_STREAM, 0, &[*stream, *status]),
            Frame::Ping { id } => control(out, PING, 0, &[*id]),
            Frame::GoAway { last_stream, status } => control(out, GOAWAY, 0, &[*last_stream, *status]),
            Frame::Ignored => {}
        }
    }

    fn with_headers(
        &mut self,
        out: &mut BytesMut,
        kind: u16,
        flags: u8,
        headers: &Headers,
        before: impl FnOnce(&mut BytesMut),
    ) {
        let start = out.len();
        control(out, kind, flags, &[]);
        before(out);
        put_block(&mut self.0, headers, out);
        let length = (out.len() - start - 8) as u32;
        out[start + 4..start + 8].copy_from_slice(&((u32::from(flags) << 24) | length).to_be_bytes());
    }
}

fn control(out: &mut BytesMut, kind: u16, flags: u8, words: &[u32]) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32((u32::from(flags) << 24) | (words.len() as u32 * 4));
    for word in words {
        out.put_u32(*word);
    }
}

/// Takes frames off the front of what has been read. After an error it must not be used again.
pub(super) struct Decoder {
    inflater: Inflater,
    /// The data frame whose payload is under way: stream, bytes to come, whether it ends the stream.
    data: Option<(u32, usize, bool)>,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Decoder {
            inflater: Inflater::new(),
            data: None,
        }
    }

    /// The next frame, or `None` when more bytes are needed.
    pub(super) fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        if let Some((stream, left, fin)) = self.data {
            if left > 0 && input.is_empty() {
                return Ok(None);
            }
            let data = input.split_to(left.min(input.len())).freeze();
            let left = left - data.len();
            self.data = (left > 0).then_some((stream, left, fin));
            return Ok(Some(Frame::Data {
                stream,
                fin: fin && left == 0,
                data,
            }));
        }
        let Some(head) = input.first_chunk::<8>() else {
            return Ok(None);
        };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let (flags, length) = (head[4], u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize);
        if first & !ID_MASK == 0 {
            input.advance(8);
            if first == 0 {
                return Err(ProtocolError::StreamZero);
            }
            self.data = Some((first, length, flags & FLAG_FIN != 0));
            return self.decode(input);
        }
        let (version, kind) = ((first >> 16) as u16 & 0x7fff, first as u16);
        if version != VERSION {
            return Err(ProtocolError::Version(version));
        }
        if length > CONTROL_BYTES_MAX {
            return Err(ProtocolError::FrameTooLarge(length));
        }
        if input.len() < 8 + length {
            input.reserve(8 + length - input.len());
            return Ok(None);
        }
        input.advance(8);
        let payload = input.split_to(length).freeze();
        self.control(kind, flags, payload).map(Some)
    }

    fn control(&mut self, kind: u16, flags: u8, mut payload: Bytes) -> Result<Frame, ProtocolError> {
        let fin = flags & FLAG_FIN != 0;
        let mut word = || payload.try_get_u32().map_err(|_| ProtocolError::Malformed(kind));
        let frame = match kind {
            SYN_STREAM => {
                let stream = stream_id(word()?)?;
                word()?;
                if payload.len() < 2 {
                    return Err(ProtocolError::Malformed(kind));
                }
                payload.advance(2);
                Frame::SynStream {
                    stream,
                    fin,
                    headers: self.inflater.inflate(&payload)?,
                }
            }
            SYN_REPLY | HEADERS => {
                let stream = stream_id(word()?)?;
                // Read even though unused: the compression goes on from block to block.
                self.inflater.inflate(&payload)?;
                if kind == SYN_REPLY {
                    Frame::SynReply { stream, fin }
                } else {
                    Frame::Headers { stream, fin }
                }
            }
            RST_STREAM => Frame::Reset {
                stream: stream_id(word()?)?,
                status: word()?,
            },
            PING => Frame::Ping { id: word()? },
            GOAWAY => Frame::GoAway {
                last_stream: word()? & ID_MASK,
                status: word()?,
            },
            // Settings, windows, and types that nobody knows.
            _ => Frame::Ignored,
        };
        Ok(frame)
    }
}

fn stream_id(word: u32) -> Result<u32, ProtocolError> {
    match word & ID_MASK {
        0 => Err(ProtocolError::StreamZero),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let id = 1..ID_MASK;
        prop_oneof![
            (
                id.clone(),
                any::<bool>(),
                prop::collection::btree_map("[a-z]{1,8}", "[a-z]{0,20}", 0..4)
            )
                .prop_map(|(stream, fin, headers)| Frame::SynStream {
                    stream,
                    fin,
                    headers: Headers(headers.into_iter().collect()),
                }),
            (id.clone(), any::<bool>()).prop_map(|(stream, fin)| Frame::SynReply { stream, fin }),
            (id.clone(), any::<bool>()).prop_map(|(stream, fin)| Frame::Headers { stream, fin }),
            (id.clone(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(stream, fin, data)| {
                Frame::Data {
                    stream,
                    fin,
                    data: data.into(),
                }
            }),
            (id.clone(), any::<u32>()).prop_map(|(stream, status)| Frame::Reset { stream, status }),
            any::<u32>().prop_map(|id| Frame::Ping { id }),
            (id, 0_u32..3).prop_map(|(last_stream, status)| Frame::GoAway { last_stream, status }),
        ]
    }

    /// Decodes bytes that arrive in pieces, joining the parts of data frames again.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Frame>, ProtocolError> {
        let (mut decoder, mut input, mut frames) = (Decoder::new(), BytesMut::new(), Vec::<Frame>::new());
        let mut partial: Option<(u32, Vec<u8>)> = None;
        for piece in bytes.chunks(step) {
            input.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut input)? {
                let Frame::Data { stream, fin, data } = frame else {
                    frames.push(frame);
                    continue;
                };
                let (_, gathered) = partial.get_or_insert((stream, Vec::new()));
                gathered.extend_from_slice(&data);
                if decoder.data.is_none() {
                    let (stream, gathered) = partial.take().unwrap();
                    frames.push(Frame::Data {
                        stream,
                        fin,
                        data: gathered.into(),
                    });
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn hostile_frames_are_refused() {
        for (bytes, error) in [
            (vec![0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], ProtocolError::Version(2)),
            (
                vec![0x80, 3, 0, 6, 0, 0xff, 0xff, 0xff],
                ProtocolError::FrameTooLarge(0xff_ffff),
            ),
            (vec![0x80, 3, 0, 6, 0, 0, 0, 0], ProtocolError::Malformed(PING)),
            (
                vec![0x80, 3, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0],
                ProtocolError::Malformed(SYN_STREAM),
            ),
            (
                vec![0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1],
                ProtocolError::StreamZero,
            ),
            (vec![0, 0, 0, 0, 0, 0, 0, 0], ProtocolError::StreamZero),
            (
                vec![0x80, 3, 0, 2, 0, 0, 0, 6, 0, 0, 0, 1, 9, 9],
                ProtocolError::Compression,
            ),
        ] {
            assert_eq!(decode(&bytes, 3), Err(error));
        }
        let unknown = [0x80, 3, 0, 99, 0, 0, 0, 1, 7, 0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 5];
        assert_eq!(decode(&unknown, 1), Ok(vec![Frame::Ignored, Frame::Ping { id: 5 }]));
    }

    proptest! {
        #[test]
        fn frames_come_back(frames in prop::collection::vec(frame(), 1..12), step in 1_usize..64) {
            let (mut encoder, mut bytes) = (Encoder::new(), BytesMut::new());
            for frame in &frames {
                encoder.encode(frame, &mut bytes);
            }
            prop_assert_eq!(decode(&bytes, step).unwrap(), frames);
        }

        #[test]
        fn garbage_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0_u8..12, step in 1_usize..50) {
            let _ = decode(&bytes, step);
            if bytes.len() > 8 {
                bytes[..6].copy_from_slice(&[0x80, 3, 0, kind, 0, 0]);
            }
            let _ = decode(&bytes, step);
        }

        #[test]
        fn damaged_frames_never_panic(frames in prop::collection::vec(frame(), 1..6), at in any::<usize>(), with in any::<u8>()) {
            let (mut encoder, mut bytes) = (Encoder::new(), BytesMut::new());
            for frame in &frames {
                encoder.encode(frame, &mut bytes);
            }
            let at = at % bytes.len();
            bytes[at] ^= with;
            let _ = decode(&bytes, 17);
        }
    }
}
