//! The log files of components, in the CRI's format so that the kubelet serves them like any container's:
//! `NAME.log`, `NAME.previous.log` from before the component was started again, and `NAME.log.1` once the first has grown
//! too large.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use orlop_base::clock::rfc3339_micro;

/// Where a component's lines are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogPaths {
    pub current: PathBuf,
    pub previous: PathBuf,
    rotated: PathBuf,
}

impl LogPaths {
    pub(crate) fn new(directory: &Path, name: &str) -> LogPaths {
        LogPaths {
            current: directory.join(format!("{name}.log")),
            previous: directory.join(format!("{name}.previous.log")),
            rotated: directory.join(format!("{name}.log.1")),
        }
    }
}

/// One component's log, being written.
pub(super) struct LogFile {
    paths: LogPaths,
    file: Option<BufWriter<File>>,
    size: u64,
    max_size: u64,
}

impl LogFile {
    pub(super) fn new(paths: LogPaths, max_size: u64) -> LogFile {
        LogFile {
            paths,
            file: None,
            size: 0,
            max_size,
        }
    }

    /// The component starts: what was logged before is of the time before.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file = None;
        remove_if_there(&self.paths.rotated)?;
        rename_if_there(&self.paths.current, &self.paths.previous)?;
        self.open().map(drop)
    }

    /// Appends what was logged at once: each of its lines becomes one of the file.
    pub(super) fn write(&mut self, at: Timestamp, text: &[u8]) -> io::Result<()> {
        if self.size >= self.max_size {
            self.flush()?;
            self.file = None;
            rename_if_there(&self.paths.current, &self.paths.rotated)?;
        }
        let time = rfc3339_micro(at);
        let mut written = 0;
        let file = match &mut self.file {
            Some(file) => file,
            None => self.open()?,
        };
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            write!(file, "{time} stderr F ")?;
            file.write_all(line)?;
            file.write_all(b"\n")?;
            written += time.len() + " stderr F \n".len() + line.len();
        }
        self.size += written as u64;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.flush(),
            None => Ok(()),
        }
    }

    fn open(&mut self) -> io::Result<&mut BufWriter<File>> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.paths.current)?;
        self.size = file.metadata()?.len();
        Ok(self.file.insert(BufWriter::new(file)))
    }
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_one_start_after_the_other_and_none_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let paths = LogPaths::new(directory.path(), "kube-scheduler");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mut log = LogFile::new(paths.clone(), 100);
        let write = |log: &mut LogFile, text: &str| {
            log.write(Timestamp::UNIX_EPOCH, text.as_bytes()).unwrap();
            log.flush().unwrap();
        };
        log.begin().unwrap();
        assert_eq!((read(&paths.current).as_str(), paths.previous.exists()), ("", false));
        write(&mut log, "one\ntwo\n");
        let time = "1970-01-01T00:00:00.000000Z";
        assert_eq!(
            read(&paths.current),
            format!("{time} stderr F one\n{time} stderr F two\n")
        );
        write(&mut log, "three\n");
        assert!(!paths.rotated.exists());
        write(&mut log, "four\n");
        assert_eq!(read(&paths.current), format!("{time} stderr F four\n"));
        assert!(read(&paths.rotated).ends_with(" three\n"));
        log.begin().unwrap();
        assert_eq!(read(&paths.current), "");
        assert!(read(&paths.previous).ends_with(" four\n"));
        assert!(!paths.rotated.exists());
        // Another process goes on with the files.
        write(&mut log, "five\n");
        let mut log = LogFile::new(paths.clone(), 100);
        log.begin().unwrap();
        write(&mut log, "six\n");
        assert!(read(&paths.previous).ends_with(" five\n") && read(&paths.current).ends_with(" six\n"));
    }
}
