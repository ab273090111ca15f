//! Header blocks: name/value pairs, compressed with one zlib context per direction that lasts as long as the connection.

use bytes::{Buf, BufMut, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::ProtocolError;

/// A block is a handful of short headers. What inflates to more than this is an attack.
const BLOCK_BYTES_MAX: usize = 64 << 10;
const COUNT_MAX: u32 = 256;

/// The names and values that header blocks were expected to hold, each preceded by its length in the dictionary.
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// The rest of the dictionary, without lengths.
const REST: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
    publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The dictionary of SPDY/3 (1,423 bytes), fixed by the protocol.
fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1423);
    for word in WORDS {
        bytes.put_u32(word.len() as u32);
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(REST.as_bytes());
    bytes
}

/// The headers of a stream, with lower-case names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(pub Vec<(String, String)>);

impl Headers {
    pub(crate) fn new(pairs: &[(&str, &str)]) -> Self {
        Headers(
            pairs
                .iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned()))
                .collect(),
        )
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// Compresses the blocks of one direction, in order.
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Self {
        let mut compress = Compress::new(Compression::best(), true);
        compress
            .set_dictionary(&dictionary())
            .expect("a new context takes a dictionary");
        Deflater(compress)
    }

    pub(super) fn deflate(&mut self, headers: &Headers) -> Vec<u8> {
        let mut plain = Vec::new();
        plain.put_u32(headers.0.len() as u32);
        for (name, value) in &headers.0 {
            for text in [name, value] {
                plain.put_u32(text.len() as u32);
                plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut packed = Vec::with_capacity(plain.len() + 64);
        let mut done = 0;
        loop {
            let before = self.0.total_in();
            self.0
                .compress_vec(&plain[done..], &mut packed, FlushCompress::Sync)
                .expect("the compressor takes any input");
            done += (self.0.total_in() - before) as usize;
            // Room left over means that the flush is complete.
            if done == plain.len() && packed.len() < packed.capacity() {
                return packed;
            }
            packed.reserve(packed.capacity());
        }
    }
}

/// Reads the blocks of the other direction, in order.
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Inflater(Decompress::new(true))
    }

    pub(super) fn inflate(&mut self, packed: &[u8]) -> Result<Headers, ProtocolError> {
        let mut plain = Vec::with_capacity(1 << 10);
        let mut done = 0;
        while done < packed.len() || plain.len() == plain.capacity() {
            if plain.len() == plain.capacity() {
                if plain.len() >= BLOCK_BYTES_MAX {
                    return Err(ProtocolError::HeadersTooLarge);
                }
                plain.reserve(plain.capacity());
            }
            let (read, written) = (self.0.total_in(), plain.len());
            let outcome = self
                .0
                .decompress_vec(&packed[done..], &mut plain, FlushDecompress::Sync);
            let consumed = (self.0.total_in() - read) as usize;
            done += consumed;
            match outcome {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(&dictionary())
                        .map_err(|_| ProtocolError::Compression)?;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(ProtocolError::Compression),
                Ok(_) if consumed == 0 && plain.len() == written => break,
                Ok(_) => {}
            }
        }
        parse(&plain)
    }
}

fn parse(mut plain: &[u8]) -> Result<Headers, ProtocolError> {
    let count = plain.try_get_u32().map_err(|_| ProtocolError::Headers)?;
    if count > COUNT_MAX {
        return Err(ProtocolError::HeadersTooLarge);
    }
    let mut pairs: Vec<(String, String)> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let name = text(&mut plain)?.to_ascii_lowercase();
        // Several values of one name are joined by NUL bytes; all headers in use have one.
        let value = text(&mut plain)?.split('\0').next().unwrap_or_default().to_owned();
        if name.is_empty() || pairs.iter().any(|(known, _)| *known == name) {
            return Err(ProtocolError::Headers);
        }
        pairs.push((name, value));
    }
    if plain.is_empty() {
        Ok(Headers(pairs))
    } else {
        Err(ProtocolError::Headers)
    }
}

fn text(plain: &mut &[u8]) -> Result<String, ProtocolError> {
    let length = plain.try_get_u32().map_err(|_| ProtocolError::Headers)? as usize;
    if length > plain.len() {
        return Err(ProtocolError::Headers);
    }
    let (text, rest) = plain.split_at(length);
    *plain = rest;
    String::from_utf8(text.to_vec()).map_err(|_| ProtocolError::Headers)
}

/// Appends a compressed block to a frame.
pub(super) fn put_block(deflater: &mut Deflater, headers: &Headers, out: &mut BytesMut) {
    out.extend_from_slice(&deflater.deflate(headers));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_the_protocols() {
        // Its Adler-32 sum is what every SPDY/3 connection begins with, right after the two bytes of the zlib header.
        let packed = Deflater::new().deflate(&Headers::default());
        assert_eq!(dictionary().len(), 1423);
        assert_eq!(&packed[2..6], [0xe3, 0xc6, 0xa7, 0xc2]);
    }

    #[test]
    fn a_bomb_is_refused() {
        let mut deflater = Deflater::new();
        let packed = deflater.deflate(&Headers(vec![("a".into(), "x".repeat(BLOCK_BYTES_MAX * 4))]));
        assert!(packed.len() < 4096);
        assert_eq!(Inflater::new().inflate(&packed), Err(ProtocolError::HeadersTooLarge));
    }

    proptest! {
        #[test]
        fn blocks_come_back(blocks in prop::collection::vec(
            prop::collection::btree_map("[a-z-]{1,12}", "[ -~]{0,200}", 0..8), 1..8)) {
            let (mut deflater, mut inflater) = (Deflater::new(), Inflater::new());
            for block in blocks {
                let headers = Headers(block.into_iter().collect());
                prop_assert_eq!(inflater.inflate(&deflater.deflate(&headers)).unwrap(), headers);
            }
        }

        #[test]
        fn garbage_is_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = Inflater::new().inflate(&bytes);
            let mut packed = Deflater::new().deflate(&Headers::new(&[("port", "1")]));
            packed.truncate(8);
            packed.extend_from_slice(&bytes);
            let _ = Inflater::new().inflate(&packed);
        }
    }
}
