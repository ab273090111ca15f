//! Layers and archives come as gzip, zstd or plain tar; which one is read off the first bytes, as containerd does.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// What zstd's own decoder allows without being asked: larger windows would let an archive choose our memory.
const MAX_ZSTD_WINDOW: u64 = 128 << 20;

/// A stream that is decompressed as needed.
pub(crate) fn decompress<'a, R: BufRead + Send + 'a>(mut source: R) -> io::Result<Box<dyn Read + Send + 'a>> {
    let magic = source.fill_buf()?;
    Ok(match magic {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(source)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(ZstdReader::new(source)),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2")),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(unsupported("xz")),
        _ => Box::new(source),
    })
}

fn unsupported(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("compression {name} is not supported"),
    )
}

/// All frames of a zstd stream, one after the other; skippable ones, where some builders keep an index, are skipped.
struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> ZstdReader<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW);
        ZstdReader {
            source,
            decoder,
            in_frame: false,
        }
    }

    /// Begins the next frame; `false` at the end of the stream.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                    if skipped != length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) => return Err(invalid(e)),
            }
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(invalid)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.in_frame = false,
                count => return Ok(count),
            }
        }
    }
}

fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = vec![];
        decompress(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn by_magic() {
        let text: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let skippable = [&[0x52, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for bytes in [
            text.clone(),
            gzip(&text),
            // Several members, several frames.
            [gzip(&text[..1000]), gzip(&text[1000..])].concat(),
            zstd(&text),
            [
                skippable.clone(),
                zstd(&text[..70_000]),
                skippable,
                zstd(&text[70_000..]),
            ]
            .concat(),
        ] {
            assert_eq!(read(&bytes).unwrap(), text);
        }
        assert_eq!(read(b"").unwrap(), b"");
        assert!(read(b"BZh91AY").unwrap_err().to_string().contains("bzip2"));
    }

    #[test]
    fn damaged_streams() {
        let text = vec![7u8; 100_000];
        for bytes in [gzip(&text), zstd(&text)] {
            assert!(read(&bytes[..bytes.len() - 3]).is_err());
            assert!(read(&bytes[..7]).is_err());
            let garbage = [&bytes[..6], &[0xff; 100]].concat();
            assert!(read(&garbage).is_err());
        }
    }
}
