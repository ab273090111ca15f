//! A container's log file in the format of the CRI: `<RFC 3339 time> <stream> <F or P> <line>`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longer lines are split, as by containerd.
pub(super) const LINE_BYTES_MAX: usize = 16 << 10;

/// Splits output into log lines. What has no end of line yet is kept, at most [`LINE_BYTES_MAX`] of it.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    pending: Vec<u8>,
}

impl LineSplitter {
    /// Appends the lines that are complete now, with their prefixes, to `into`.
    pub(super) fn feed(&mut self, stream: &str, mut bytes: &[u8], time: &str, into: &mut Vec<u8>) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.take(stream, &bytes[..end], time, into);
            write_line(stream, 'F', &self.pending, time, into);
            self.pending.clear();
            bytes = &bytes[end + 1..];
        }
        self.take(stream, bytes, time, into);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
    }

    /// The output has ended: what is left was never ended by a new line.
    pub(super) fn finish(&mut self, stream: &str, time: &str, into: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            write_line(stream, 'P', &self.pending, time, into);
            self.pending = Vec::new();
        }
    }

    /// Keeps a part of a line; what is too long goes out in parts.
    fn take(&mut self, stream: &str, mut part: &[u8], time: &str, into: &mut Vec<u8>) {
        while self.pending.len() + part.len() > LINE_BYTES_MAX {
            let (fits, rest) = part.split_at(LINE_BYTES_MAX - self.pending.len());
            self.pending.extend_from_slice(fits);
            write_line(stream, 'P', &self.pending, time, into);
            self.pending.clear();
            part = rest;
        }
        self.pending.extend_from_slice(part);
    }
}

fn write_line(stream: &str, tag: char, line: &[u8], time: &str, into: &mut Vec<u8>) {
    into.extend_from_slice(time.as_bytes());
    into.extend_from_slice(format!(" {stream} {tag} ").as_bytes());
    into.extend_from_slice(line);
    into.push(b'\n');
}

/// The open file.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    pub(super) fn open(path: PathBuf) -> io::Result<LogFile> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        Ok(LogFile { path, file })
    }

    /// The file was moved away: a new one takes its place.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = LogFile::open(self.path.clone())?.file;
        Ok(())
    }

    /// What can't be written (a full disk) is lost: the container must not stand still for it.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        drop(self.file.write_all(bytes));
    }
}

/// A time as log lines begin with it: RFC 3339 with nanoseconds, UTC.
pub(super) fn render_time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil((seconds / 86_400) as i64);
    let second = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:09}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_nanos()
    )
}

/// Year, month and day of a day since the epoch: years are counted from March, so that the leap day is the last one.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn split(parts: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut out) = (LineSplitter::default(), vec![]);
        for part in parts {
            splitter.feed("stdout", part, "T", &mut out);
        }
        splitter.finish("stdout", "T", &mut out);
        let lines = out.split(|b| *b == b'\n');
        lines
            .map(|l| String::from_utf8_lossy(l).into_owned())
            .filter(|l| !l.is_empty())
            .collect()
    }

    #[test]
    fn lines_are_whole() {
        assert_eq!(
            split(&[b"a\nb", b"c\n", b"\n"]),
            ["T stdout F a", "T stdout F bc", "T stdout F "]
        );
        assert_eq!(split(&[b"end"]), ["T stdout P end"]);
        assert_eq!(split(&[b"x\r\n"]), ["T stdout F x\r"]);
        assert!(split(&[]).is_empty());
    }

    #[test]
    fn long_lines_are_split() {
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        let lines = split(&[&long, b"\n"]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("T stdout P xxx") && lines[0].len() == LINE_BYTES_MAX + 11);
        assert_eq!(lines[1], format!("T stdout F {}", "x".repeat(10)));
        // Exactly as long as allowed.
        let exact = vec![b'y'; LINE_BYTES_MAX];
        assert_eq!(split(&[&exact, b"\n"]).len(), 1);
    }

    #[test]
    fn times_are_rfc_3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_827_696, "2000-02-29T12:34:56.000000007Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000000007Z"),
        ] {
            assert_eq!(render_time(UNIX_EPOCH + Duration::new(seconds, 7)), expected);
        }
    }
}
