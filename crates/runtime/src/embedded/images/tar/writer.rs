use std::io::{self, Read, Write};

use super::reader::{Entry, Kind};
use super::{BLOCK, padding};

/// Writes archives that every tar reads: ustar headers, with PAX records for what does not fit into them.
pub(crate) struct TarWriter<W> {
    sink: W,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(sink: W) -> TarWriter<W> {
        TarWriter { sink }
    }

    /// One member with its content, of which there must be as much as the entry says.
    pub(crate) fn append(&mut self, entry: &Entry, content: &mut dyn Read) -> io::Result<()> {
        let records = pax_records(entry);
        if !records.is_empty() {
            self.header(&ustar(b"PaxHeaders/0", b'x', records.len() as u64))?;
            self.content(records.len() as u64, &mut &records[..])?;
        }
        let mut header = ustar(fitting_name(&entry.name), kind_flag(entry.kind), entry.size);
        header.octal(100, 8, u64::from(entry.mode));
        header.octal(108, 8, entry.uid.min(MAX_ID));
        header.octal(116, 8, entry.gid.min(MAX_ID));
        header.octal(136, 12, u64::try_from(entry.modified.0).unwrap_or(0).min(MAX_OCTAL));
        header.text(157, &entry.link[..entry.link.len().min(100)]);
        header.octal(329, 8, u64::from(entry.device.0));
        header.octal(337, 8, u64::from(entry.device.1));
        self.header(&header)?;
        self.content(entry.size, content)
    }

    /// A plain file owned by root, as archives of images are made of.
    pub(crate) fn append_file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.append_stream(name, content.len() as u64, &mut &content[..])
    }

    pub(crate) fn append_stream(&mut self, name: &str, size: u64, content: &mut dyn Read) -> io::Result<()> {
        let entry = Entry {
            name: name.as_bytes().to_vec(),
            kind: Kind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            modified: (0, 0),
            link: vec![],
            device: (0, 0),
            xattrs: vec![],
        };
        self.append(&entry, content)
    }

    /// The two empty blocks that end an archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.sink.write_all(&[0; 2 * BLOCK])?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn header(&mut self, header: &UstarHeader) -> io::Result<()> {
        self.sink.write_all(&header.summed())
    }

    fn content(&mut self, size: u64, content: &mut dyn Read) -> io::Result<()> {
        let copied = io::copy(&mut content.take(size), &mut self.sink)?;
        if copied != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.sink.write_all(&[0; BLOCK][..padding(size) as usize])
    }

    /// A header that need not be true.
    #[cfg(test)]
    pub(crate) fn raw_header(&mut self, name: &[u8], kind: u8, size: u64) -> io::Result<()> {
        self.header(&ustar(name, kind, size))
    }
}

/// What the octal fields of a header hold.
const MAX_ID: u64 = 0o7_777_777;
const MAX_OCTAL: u64 = 0o77_777_777_777;

struct UstarHeader([u8; BLOCK]);

impl UstarHeader {
    fn text(&mut self, at: usize, text: &[u8]) {
        self.0[at..at + text.len()].copy_from_slice(text);
    }

    fn octal(&mut self, at: usize, length: usize, value: u64) {
        self.text(at, format!("{value:0width$o}\0", width = length - 1).as_bytes());
    }

    fn summed(&self) -> [u8; BLOCK] {
        let mut header = UstarHeader(self.0);
        header.text(148, b"        ");
        let sum: u64 = header.0.iter().map(|b| u64::from(*b)).sum();
        header.text(148, format!("{sum:06o}\0 ").as_bytes());
        header.0
    }
}

fn ustar(name: &[u8], kind: u8, size: u64) -> UstarHeader {
    let mut header = UstarHeader([0; BLOCK]);
    header.text(0, name);
    for at in [100, 108, 116, 329, 337] {
        header.octal(at, 8, 0);
    }
    header.octal(124, 12, size.min(MAX_OCTAL));
    header.octal(136, 12, 0);
    header.0[156] = kind;
    header.text(257, b"ustar\x0000");
    header
}

fn fitting_name(name: &[u8]) -> &[u8] {
    &name[..name.len().min(100)]
}

fn kind_flag(kind: Kind) -> u8 {
    match kind {
        Kind::Regular => b'0',
        Kind::HardLink => b'1',
        Kind::Symlink => b'2',
        Kind::Character => b'3',
        Kind::Block => b'4',
        Kind::Directory => b'5',
        Kind::Fifo => b'6',
    }
}

/// Records for what the header has no room for.
fn pax_records(entry: &Entry) -> Vec<u8> {
    let mut records = vec![];
    let mut record = |key: &str, value: &[u8]| {
        let rest = key.len() + value.len() + 3;
        // The length counts its own digits.
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        records.extend_from_slice(format!("{length} {key}=").as_bytes());
        records.extend_from_slice(value);
        records.push(b'\n');
    };
    if entry.name.len() > 100 {
        record("path", &entry.name);
    }
    if entry.link.len() > 100 {
        record("linkpath", &entry.link);
    }
    for (key, value, limit) in [
        ("size", entry.size, MAX_OCTAL),
        ("uid", entry.uid, MAX_ID),
        ("gid", entry.gid, MAX_ID),
    ] {
        if value > limit {
            record(key, value.to_string().as_bytes());
        }
    }
    let (seconds, nanos) = entry.modified;
    if seconds < 0 || nanos > 0 {
        record("mtime", decimal_time(seconds, nanos).as_bytes());
    }
    for (name, value) in &entry.xattrs {
        record(&format!("SCHILY.xattr.{name}"), value);
    }
    records
}

fn decimal_time(seconds: i64, nanos: u32) -> String {
    match seconds < 0 && nanos > 0 {
        true => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
        false => format!("{seconds}.{nanos:09}"),
    }
}
