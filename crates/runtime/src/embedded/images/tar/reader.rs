use std::io::{self, Read};

use super::{BLOCK, padding};

/// Long names, and extended headers with the attributes of one file: far more than either has in practice.
const MAX_EXTENSION: u64 = 1 << 20;
/// Headers that only describe the next one.
const MAX_EXTENSIONS: usize = 16;
/// No path on Linux is longer.
const MAX_NAME: usize = 4096;
/// Beyond any file system, and far from where sums overflow.
const MAX_SIZE: u64 = 1 << 60;

#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("archive/tar: invalid tar header: {0}")]
    Header(&'static str),
    #[error("archive/tar: unhandled tar header type {:?}", *.0 as char)]
    Kind(u8),
    #[error("archive/tar: sparse files are not supported")]
    Sparse,
    #[error("unexpected EOF")]
    CutOff,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    HardLink,
    Symlink,
    Character,
    Block,
    Directory,
    Fifo,
}

/// One member of an archive. Its content, if any, is read from the reader itself until the next one is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Where a link leads to.
    pub link: Vec<u8>,
    /// Major and minor number.
    pub device: (u32, u32),
    pub xattrs: Vec<(String, Vec<u8>)>,
}

pub(crate) struct TarReader<R> {
    source: R,
    /// What is left of the present member's content.
    content: u64,
    /// What fills its last block.
    padding: u64,
    ended: bool,
}

/// What extended headers say about the next member.
#[derive(Default)]
struct Overrides {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(source: R) -> TarReader<R> {
        TarReader {
            source,
            content: 0,
            padding: 0,
            ended: false,
        }
    }

    /// The next member; what was not read of the present one is skipped.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        self.skip_content()?;
        let mut overrides = Overrides::default();
        for _ in 0..=MAX_EXTENSIONS {
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            let size = header.number(124, 12)?;
            match header.kind() {
                b'x' => read_pax(&self.read_extension(size)?, &mut overrides)?,
                b'L' => overrides.name = Some(until_nul(&self.read_extension(size)?).to_vec()),
                b'K' => overrides.link = Some(until_nul(&self.read_extension(size)?).to_vec()),
                // Comments and defaults for all members, as `git archive` writes them: nothing we need.
                b'g' => drop(self.read_extension(size)?),
                b'S' => return Err(TarError::Sparse),
                _ => {
                    let entry = header.entry(overrides)?;
                    self.content = entry.size;
                    self.padding = padding(entry.size);
                    return Ok(Some(entry));
                }
            }
        }
        Err(TarError::Header("too many extended headers"))
    }

    /// Reads to the end of the stream: what follows the last member belongs to the archive's digest.
    pub(crate) fn drain(&mut self) -> Result<(), TarError> {
        self.content = 0;
        self.padding = 0;
        io::copy(&mut self.source, &mut io::sink())?;
        Ok(())
    }

    pub(crate) fn into_source(self) -> R {
        self.source
    }

    fn skip_content(&mut self) -> Result<(), TarError> {
        let rest = self.content + self.padding;
        (self.content, self.padding) = (0, 0);
        let skipped = io::copy(&mut (&mut self.source).take(rest), &mut io::sink())?;
        match skipped == rest {
            true => Ok(()),
            false => Err(TarError::CutOff),
        }
    }

    fn read_header(&mut self) -> Result<Option<Header>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        match read_full(&mut self.source, &mut block)? {
            BLOCK => {}
            // An archive without its closing blocks is common, and what was read of it is whole.
            0 => {
                self.ended = true;
                return Ok(None);
            }
            _ => return Err(TarError::CutOff),
        }
        if block.iter().all(|b| *b == 0) {
            self.ended = true;
            return Ok(None);
        }
        let header = Header(block);
        header.check()?;
        Ok(Some(header))
    }

    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > MAX_EXTENSION {
            return Err(TarError::Header("extended header is too large"));
        }
        let mut data = vec![0; size as usize];
        self.content = size;
        self.padding = padding(size);
        if read_full(self, &mut data)? != data.len() {
            return Err(TarError::CutOff);
        }
        self.skip_content()?;
        Ok(data)
    }
}

/// The present member's content. An archive that ends within it is an error, not an end.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = self.source.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.content -= count as u64;
        Ok(count)
    }
}

fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

struct Header([u8; BLOCK]);

impl Header {
    fn field(&self, at: usize, length: usize) -> &[u8] {
        &self.0[at..at + length]
    }

    fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The sum of all bytes, its own field taken as blanks. Some programs of old summed signed bytes.
    fn check(&self) -> Result<(), TarError> {
        let byte = |(at, b): (usize, &u8)| if (148..156).contains(&at) { b' ' } else { *b };
        let bytes = || self.0.iter().enumerate().map(byte);
        let unsigned: u64 = bytes().map(u64::from).sum();
        let signed: i64 = bytes().map(|b| i64::from(b as i8)).sum();
        let wanted = self.number(148, 8)?;
        match wanted == unsigned || i64::try_from(wanted) == Ok(signed) {
            true => Ok(()),
            false => Err(TarError::Header("checksum")),
        }
    }

    /// An octal number, or a binary one if its first bit is set.
    fn number(&self, at: usize, length: usize) -> Result<u64, TarError> {
        let field = self.field(at, length);
        if field[0] & 0x80 != 0 {
            let first = u64::from(field[0] & 0x7f);
            return field[1..].iter().try_fold(first, |value, byte| {
                let shifted = value.checked_mul(256).ok_or(TarError::Header("number is too large"))?;
                Ok(shifted | u64::from(*byte))
            });
        }
        let text = until_nul(field).trim_ascii();
        text.iter().try_fold(0u64, |value, digit| match digit {
            b'0'..=b'7' => Ok(value * 8 + u64::from(digit - b'0')),
            _ => Err(TarError::Header("number")),
        })
    }

    fn name(&self) -> Vec<u8> {
        let name = until_nul(self.field(0, 100));
        let prefix = until_nul(self.field(345, 155));
        // GNU's archives have other things in the place of the prefix.
        match self.field(257, 6) == b"ustar\0" && !prefix.is_empty() {
            true => [prefix, b"/", name].concat(),
            false => name.to_vec(),
        }
    }

    /// Modification times before 1970 are written as binary numbers of two's complement.
    fn modified(&self) -> Result<i64, TarError> {
        if self.0[136] == 0xff {
            let low: [u8; 8] = self.field(140, 8).try_into().expect("eight bytes");
            return Ok(i64::from_be_bytes(low));
        }
        i64::try_from(self.number(136, 12)?).map_err(|_| TarError::Header("modification time"))
    }

    fn entry(&self, overrides: Overrides) -> Result<Entry, TarError> {
        let name = overrides.name.unwrap_or_else(|| self.name());
        let kind = match self.kind() {
            b'0' | 0 | b'7' if name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => Kind::Regular,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::Character,
            b'4' => Kind::Block,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(TarError::Kind(other)),
        };
        let link = overrides
            .link
            .unwrap_or_else(|| until_nul(self.field(157, 100)).to_vec());
        if name.len() > MAX_NAME || link.len() > MAX_NAME {
            return Err(TarError::Header("name is too long"));
        }
        if name.contains(&0) || link.contains(&0) {
            return Err(TarError::Header("name contains NUL"));
        }
        // Only files have content, whatever the header says.
        let size = match kind {
            Kind::Regular => overrides.size.map_or_else(|| self.number(124, 12), Ok)?,
            _ => 0,
        };
        if size > MAX_SIZE {
            return Err(TarError::Header("size is too large"));
        }
        let device = |at| u32::try_from(self.number(at, 8)?).map_err(|_| TarError::Header("device number"));
        Ok(Entry {
            name,
            kind,
            mode: (self.number(100, 8)? & 0o7777) as u32,
            uid: overrides.uid.map_or_else(|| self.number(108, 8), Ok)?,
            gid: overrides.gid.map_or_else(|| self.number(116, 8), Ok)?,
            size,
            modified: match overrides.modified {
                Some(modified) => modified,
                None => (self.modified()?, 0),
            },
            link,
            device: match kind {
                Kind::Character | Kind::Block => (device(329)?, device(337)?),
                _ => (0, 0),
            },
            xattrs: overrides.xattrs,
        })
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// Records `LENGTH KEY=VALUE\n`, where the length counts the whole record.
fn read_pax(mut data: &[u8], overrides: &mut Overrides) -> Result<(), TarError> {
    const INVALID: TarError = TarError::Header("PAX record");
    while !data.is_empty() {
        let space = data.iter().take(20).position(|b| *b == b' ').ok_or(INVALID)?;
        let length = std::str::from_utf8(&data[..space]).ok().and_then(|n| n.parse().ok());
        let length: usize = length.filter(|l| *l > space + 1 && *l <= data.len()).ok_or(INVALID)?;
        let (record, rest) = data.split_at(length);
        data = rest;
        let record = record[space + 1..].strip_suffix(b"\n").ok_or(INVALID)?;
        let equals = record.iter().position(|b| *b == b'=').ok_or(INVALID)?;
        let key = std::str::from_utf8(&record[..equals]).map_err(|_| INVALID)?;
        apply_pax(key, &record[equals + 1..], overrides)?;
    }
    Ok(())
}

fn apply_pax(key: &str, value: &[u8], overrides: &mut Overrides) -> Result<(), TarError> {
    let text = || std::str::from_utf8(value).map_err(|_| TarError::Header("PAX record"));
    let number = || text()?.parse().map_err(|_| TarError::Header("PAX number"));
    match key {
        "path" => overrides.name = Some(value.to_vec()),
        "linkpath" => overrides.link = Some(value.to_vec()),
        "size" => overrides.size = Some(number()?),
        "uid" => overrides.uid = Some(number()?),
        "gid" => overrides.gid = Some(number()?),
        "mtime" => overrides.modified = Some(pax_time(text()?).ok_or(TarError::Header("PAX time"))?),
        _ if key.starts_with("GNU.sparse.") => return Err(TarError::Sparse),
        _ => {
            if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                overrides.xattrs.push((name.to_string(), value.to_vec()));
            }
        }
    }
    Ok(())
}

/// Seconds with a fraction: `1350244992.023960108`, `-0.5`.
fn pax_time(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    match whole.starts_with('-') && nanos > 0 {
        true => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((seconds, nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::TarWriter;
    use super::*;
    use proptest::prelude::*;

    fn regular(name: &str, size: u64) -> Entry {
        Entry {
            name: name.into(),
            kind: Kind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            modified: (0, 0),
            link: vec![],
            device: (0, 0),
            xattrs: vec![],
        }
    }

    fn archive(entries: &[(Entry, &[u8])]) -> Vec<u8> {
        let mut writer = TarWriter::new(vec![]);
        for (entry, content) in entries {
            writer.append(entry, &mut &content[..]).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let long = format!("{}/{}", "d".repeat(300), "n".repeat(200));
        let entries = [
            regular("a", 3),
            Entry {
                kind: Kind::Directory,
                mode: 0o1777,
                uid: 70_000_000,
                ..regular("tmp/", 0)
            },
            Entry {
                kind: Kind::Symlink,
                link: b"../x".to_vec(),
                modified: (-5, 500_000_000),
                ..regular("l", 0)
            },
            Entry {
                kind: Kind::Character,
                device: (1, 3),
                ..regular("dev/null", 0)
            },
            Entry {
                xattrs: vec![("user.a".to_string(), vec![0, 1, b'\n', b'='])],
                modified: (1, 5),
                ..regular(&long, 3)
            },
        ];
        let with_content: Vec<(Entry, &[u8])> = entries
            .iter()
            .map(|e| (e.clone(), if e.size > 0 { &b"abc"[..] } else { b"" }))
            .collect();
        let bytes = archive(&with_content);
        let mut reader = TarReader::new(&bytes[..]);
        for (entry, content) in with_content {
            assert_eq!(reader.next_entry().unwrap(), Some(entry));
            let mut read = vec![];
            reader.read_to_end(&mut read).unwrap();
            assert_eq!(read, content);
        }
        assert_eq!(reader.next_entry().unwrap(), None);
        assert_eq!(reader.next_entry().unwrap(), None);
    }

    #[test]
    fn archives_that_are_cut_off() {
        let bytes = archive(&[(regular("a", 600), &[7; 600])]);
        for length in [1, 511, 513, 1111, 1113] {
            let mut reader = TarReader::new(&bytes[..length]);
            let outcome = match reader.next_entry() {
                Ok(Some(_)) => reader.next_entry(),
                other => other,
            };
            assert!(matches!(outcome, Err(TarError::CutOff)), "{length}: {outcome:?}");
        }
    }

    #[test]
    fn headers_that_are_refused() {
        let mut broken = archive(&[(regular("a", 0), b"")]);
        broken[0] ^= 1;
        let error = TarReader::new(&broken[..]).next_entry().unwrap_err();
        assert_eq!(error.to_string(), "archive/tar: invalid tar header: checksum");

        // A header that claims a gigabyte of extended header takes no memory.
        let mut writer = TarWriter::new(vec![]);
        writer.raw_header(b"pax", b'x', 1 << 30).unwrap();
        let error = TarReader::new(&writer.finish().unwrap()[..]).next_entry().unwrap_err();
        assert!(error.to_string().contains("too large"));

        let mut writer = TarWriter::new(vec![]);
        for _ in 0..100 {
            writer.raw_header(b"g", b'g', 0).unwrap();
        }
        let error = TarReader::new(&writer.finish().unwrap()[..]).next_entry().unwrap_err();
        assert!(error.to_string().contains("too many"));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..1024, with: u8) {
            let mut reader = TarReader::new(&bytes[..]);
            while let Ok(Some(_)) = reader.next_entry() {}
            let mut damaged = archive(&[(Entry { xattrs: vec![("user.a".to_string(), vec![1])], ..regular("a", 5) }, b"12345")]);
            damaged[at] = with;
            let mut reader = TarReader::new(&damaged[..]);
            while let Ok(Some(_)) = reader.next_entry() {}
        }
    }
}
