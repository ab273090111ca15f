//! The log of a cluster in the background: a file of bounded size, and the one before it.
//!
//! Standard output and standard error lead there, so that panics are in it, too. When it is full it is renamed, and both lead
//! to a new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{dup2_stderr, dup2_stdout};
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use crate::data_dir;

const SIZE_MAX: u64 = 10 * 1024 * 1024;

/// For whoever starts a process that logs there.
pub(crate) fn open(data_dir: &Path) -> io::Result<File> {
    open_path(&data_dir.join(data_dir::LOG))
}

fn open_path(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Of this process, whose standard error leads there already.
#[derive(Clone)]
pub(crate) struct LogFile(Arc<Mutex<Inner>>);

struct Inner {
    path: PathBuf,
    old: PathBuf,
    size: u64,
    size_max: u64,
    /// Standard output and standard error follow. Not in tests.
    is_process: bool,
    file: File,
}

impl LogFile {
    pub(crate) fn of_process(data_dir: &Path) -> io::Result<LogFile> {
        LogFile::new(data_dir, SIZE_MAX, true)
    }

    fn new(data_dir: &Path, size_max: u64, is_process: bool) -> io::Result<LogFile> {
        let file = open(data_dir)?;
        Ok(LogFile(Arc::new(Mutex::new(Inner {
            path: data_dir.join(data_dir::LOG),
            old: data_dir.join(data_dir::OLD_LOG),
            size: file.metadata()?.len(),
            size_max,
            is_process,
            file,
        }))))
    }
}

impl Inner {
    /// What is written while it fails goes to the old file: better than nowhere.
    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, &self.old)?;
        let file = open_path(&self.path)?;
        if self.is_process {
            dup2_stdout(&file)?;
            dup2_stderr(&file)?;
        }
        (self.file, self.size) = (file, 0);
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock();
        if inner.size >= inner.size_max {
            // Tried again only after as much once more, if it fails.
            inner.size = 0;
            let _ = inner.rotate();
        }
        let written = inner.file.write(text)?;
        inner.size = inner.size.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogFile {
    type Writer = LogFile;

    fn make_writer(&self) -> LogFile {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_of_bounded_size() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(data_dir::LOG), "from before\n").unwrap();
        let mut log = LogFile::new(dir.path(), 100, false).unwrap();
        for number in 0..100 {
            writeln!(log, "line {number}").unwrap();
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size(data_dir::LOG) <= 120 && size(data_dir::OLD_LOG) <= 120);
        let newest = std::fs::read_to_string(dir.path().join(data_dir::LOG)).unwrap();
        assert!(newest.ends_with("line 99\n"), "{newest}");
    }
}
