//! One process per data directory.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::log::OpenError;

/// Held as long as the value lives; the kernel releases it when the process ends, however it ends.
pub(crate) struct DirLock {
    _held: Flock<File>,
}

impl DirLock {
    pub(super) fn take(dir: &Path) -> Result<DirLock, OpenError> {
        let path = dir.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(OpenError::io(&path))?;
        let held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => held,
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
                return Err(OpenError::InUse {
                    dir: dir.into(),
                    pid: pid.into(),
                });
            }
            Err((_, errno)) => return Err(OpenError::io(path)(errno.into())),
        };
        // For the error message only, so a full disk is no reason to stop here. Written over in place and padded: ext4
        // flushes a file that was truncated and rewritten when it is closed, which takes milliseconds.
        let _ = held.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0);
        Ok(DirLock { _held: held })
    }
}
