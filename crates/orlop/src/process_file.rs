//! Which process has a data directory: `process.json` in it, from when it serves until it has stopped.
//!
//! A number is not enough, since the kernel gives it to others later: a process is known by its number, the time of its start
//! and the boot of the machine. A file that names no such process was left by one that was killed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::data_dir;

/// A process of this machine, and no other that has its number later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    pub pid: i32,
    /// Clock ticks from the boot to its start.
    start_ticks: u64,
    boot_id: String,
}

impl ProcessId {
    /// None: there is no such process.
    pub(crate) fn of(pid: i32) -> Option<ProcessId> {
        Some(ProcessId {
            pid,
            start_ticks: start_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?,
            boot_id: boot_id(),
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        ProcessId::of(self.pid).as_ref() == Some(self)
    }

    /// Whether there was such a process to signal.
    pub(crate) fn signal(&self, signal: Signal) -> nix::Result<bool> {
        if !self.is_alive() {
            return Ok(false);
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::ESRCH) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_string()
}

/// The 22nd field of `/proc/PID/stat`; none of a zombie, which has ended. The name, in brackets, may hold anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The process that has a data directory, and what others want to know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessFile {
    #[serde(flatten)]
    pub id: ProcessId,
    pub started: Timestamp,
    pub version: String,
    /// Where clients on this machine reach the API server.
    pub url: String,
    /// What it told its user when it served.
    #[serde(default)]
    pub greeting: Vec<String>,
}

impl ProcessFile {
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        data_dir::write_private(&data_dir.join(data_dir::PROCESS), &format!("{text}\n"))
    }

    fn read(data_dir: &Path) -> Option<ProcessFile> {
        let text = std::fs::read_to_string(data_dir.join(data_dir::PROCESS)).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) fn remove(data_dir: &Path) {
        let _ = std::fs::remove_file(data_dir.join(data_dir::PROCESS));
    }
}

/// Who has a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// It has the directory and does not serve yet.
    Starting(ProcessId),
    Serving(ProcessFile),
    /// It ended without stopping: it was killed, or the machine was.
    Killed(ProcessFile),
}

impl Holder {
    pub(crate) fn find(data_dir: &Path) -> Holder {
        let file = ProcessFile::read(data_dir);
        if let Some(file) = &file
            && file.id.is_alive()
        {
            return Holder::Serving(file.clone());
        }
        match lock_holder(data_dir) {
            Some(id) => Holder::Starting(id),
            None => file.map_or(Holder::Nobody, Holder::Killed),
        }
    }

    /// The process, if one runs.
    pub(crate) fn process(&self) -> Option<&ProcessId> {
        match self {
            Holder::Starting(id) => Some(id),
            Holder::Serving(file) => Some(&file.id),
            Holder::Nobody | Holder::Killed(_) => None,
        }
    }
}

/// Whoever holds the store's lock, as far as the kernel shows it. To try the lock would keep a process from starting.
fn lock_holder(data_dir: &Path) -> Option<ProcessId> {
    let path = data_dir.join("store/lock");
    let pid: i32 = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
    let inode = std::fs::metadata(&path).ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    holds_lock(&locks, pid, inode).then(|| ProcessId::of(pid)).flatten()
}

/// Lines such as `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. Some file systems show other devices there than to
/// programs, so that those are not compared.
fn holds_lock(locks: &str, pid: i32, inode: u64) -> bool {
    let (pid, inode) = (pid.to_string(), format!(":{inode}"));
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.as_slice(), [_, "FLOCK", _, "WRITE", holder, file, ..]
            if *holder == pid && file.ends_with(&inode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: ProcessId) -> ProcessFile {
        ProcessFile {
            id,
            started: Timestamp::UNIX_EPOCH,
            version: "0.1.0".into(),
            url: "https://127.0.0.1:6443".into(),
            greeting: vec![],
        }
    }

    #[test]
    fn a_process_is_more_than_its_number() {
        let own = ProcessId::of(std::process::id() as i32).unwrap();
        assert!(own.is_alive());
        let former = ProcessId {
            start_ticks: own.start_ticks - 1,
            ..own.clone()
        };
        let before_boot = ProcessId {
            boot_id: "another".into(),
            ..own.clone()
        };
        assert!(!former.is_alive() && !before_boot.is_alive());
        assert_eq!(former.signal(Signal::SIGKILL), Ok(false));
        assert_eq!(ProcessId::of(i32::MAX), None);
    }

    #[test]
    fn fields_of_stat() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("12 (odd) S name) S {rest}")), Some(4711));
        assert_eq!(start_ticks(&format!("12 (gone) Z {rest}")), None);
        assert_eq!(start_ticks("12 (short) S 1"), None);
    }

    #[test]
    fn locks_of_a_process() {
        let locks = "1: FLOCK  ADVISORY  WRITE 12 fe:00:5 0 EOF\n2: POSIX  ADVISORY  WRITE 13 fe:00:6 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:00:5 0 EOF\n";
        assert!(holds_lock(locks, 12, 5));
        assert!(!holds_lock(locks, 12, 55) && !holds_lock(locks, 12, 0));
        assert!(
            ![(13, 6), (14, 5), (1, 5)]
                .iter()
                .any(|(pid, inode)| holds_lock(locks, *pid, *inode))
        );
    }

    #[test]
    fn who_has_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Holder::find(dir.path()), Holder::Nobody);
        let own = ProcessId::of(std::process::id() as i32).unwrap();
        file(own.clone()).write(dir.path()).unwrap();
        assert_eq!(Holder::find(dir.path()), Holder::Serving(file(own.clone())));
        let killed = file(ProcessId { start_ticks: 1, ..own });
        killed.write(dir.path()).unwrap();
        assert_eq!(Holder::find(dir.path()), Holder::Killed(killed));
        ProcessFile::remove(dir.path());
        assert_eq!(Holder::find(dir.path()), Holder::Nobody);
    }
}
