//! Rotating container logs: `0.log` grows to a size, becomes `0.log.20260102-030405`, and the runtime opens a new one.
//! All rotated files but the newest are compressed: readers may still be reading that.
//!
//! A restart at any moment is fine: leftovers are tidied at the next rotation, and a log that was moved away but not
//! opened again is opened again.
//!
//! Upstream: pkg/kubelet/logs/container_log_manager.go (v1.36).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPolicy {
    /// Bytes; `None`: logs are not rotated.
    pub max_size: Option<u64>,
    /// With the one being written.
    pub max_files: usize,
}

impl Default for LogPolicy {
    fn default() -> LogPolicy {
        LogPolicy {
            max_size: Some(10 << 20),
            max_files: 5,
        }
    }
}

/// What to do with the rotated files of one log before it is rotated again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tidying {
    pub remove: Vec<String>,
    pub compress: Vec<String>,
}

/// `rotated`: the names of the files beside the log that begin with its name and a period.
pub fn plan_tidying(rotated: &BTreeSet<String>, max_files: usize) -> Tidying {
    // Broken off, or compressed but not removed yet.
    let leftover = |name: &String| {
        name.ends_with(UNFINISHED) || (!name.ends_with(COMPRESSED) && rotated.contains(&format!("{name}{COMPRESSED}")))
    };
    let (mut remove, mut keep): (Vec<String>, Vec<String>) = rotated.iter().cloned().partition(leftover);
    // The log itself and what it becomes now are two more. Names sort by time, the oldest first.
    let excess = keep.len().saturating_sub(max_files.saturating_sub(2));
    remove.extend(keep.drain(..excess));
    keep.retain(|name| !name.ends_with(COMPRESSED));
    Tidying { remove, compress: keep }
}

/// The files of a log, with the rotated ones first, from the oldest on.
pub fn all_files(log: &Path) -> io::Result<Vec<PathBuf>> {
    let rotated = rotated_names(log)?;
    let tidying = plan_tidying(&rotated, usize::MAX);
    let kept = rotated.iter().filter(|name| !tidying.remove.contains(name));
    let mut files: Vec<PathBuf> = kept.map(|name| log.with_file_name(name)).collect();
    files.push(log.to_path_buf());
    Ok(files)
}

fn rotated_names(log: &Path) -> io::Result<BTreeSet<String>> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Ok(BTreeSet::new());
    };
    let prefix = format!("{name}.");
    let names = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(&prefix)).collect())
}

/// Tidies and moves the log away; the caller has the runtime open a new one, or else moves this one back with
/// [`move_back`]. `None`: there is one of this second already, better luck next time.
pub fn move_away(log: &Path, policy: &LogPolicy, now: Timestamp) -> io::Result<Option<PathBuf>> {
    let mut name = log.file_name().unwrap_or_default().to_os_string();
    name.push(now.strftime(".%Y%m%d-%H%M%S").to_string());
    let rotated = log.with_file_name(&name);
    name.push(COMPRESSED);
    if rotated.exists() || log.with_file_name(name).exists() {
        return Ok(None);
    }
    let tidying = plan_tidying(&rotated_names(log)?, policy.max_files);
    for name in &tidying.remove {
        remove_if_there(&log.with_file_name(name))?;
    }
    for name in &tidying.compress {
        compress(&log.with_file_name(name))?;
    }
    fs::rename(log, &rotated)?;
    Ok(Some(rotated))
}

pub fn move_back(log: &Path, rotated: &Path) -> io::Result<()> {
    // The runtime may have opened a new one although it said it failed: that one must not be lost.
    match log.exists() {
        true => Ok(()),
        false => fs::rename(rotated, log),
    }
}

fn compress(file: &Path) -> io::Result<()> {
    let with_suffix = |suffix: &str| {
        let mut name = file.as_os_str().to_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (unfinished, done) = (with_suffix(UNFINISHED), with_suffix(COMPRESSED));
    let mut from = BufReader::new(fs::File::open(file)?);
    let mode = from.get_ref().metadata()?.permissions().mode();
    let to = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&unfinished)?;
    let mut encoder = GzEncoder::new(BufWriter::new(to), Compression::default());
    let written = io::copy(&mut from, &mut encoder)
        .and_then(|_| encoder.finish()?.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|_| fs::rename(&unfinished, &done));
    if let Err(error) = written {
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    remove_if_there(file)
}

/// All files of a container's log.
pub fn remove_logs(log: &Path) -> io::Result<()> {
    let names = match rotated_names(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names {
        remove_if_there(&log.with_file_name(name))?;
    }
    remove_if_there(log)
}

pub fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn what_is_tidied() {
        for (rotated, max_files, remove, compress) in [
            (&[][..], 5, &[][..], &[][..]),
            (&["l.1", "l.2"], 5, &[], &["l.1", "l.2"]),
            (&["l.1.gz", "l.2"], 5, &[], &["l.2"]),
            (&["l.1.gz", "l.2.gz", "l.3.gz", "l.4"], 5, &["l.1.gz"], &["l.4"]),
            (&["l.1", "l.1.gz", "l.2.tmp", "l.2"], 5, &["l.1", "l.2.tmp"], &["l.2"]),
            (&["l.1.gz", "l.2"], 2, &["l.1.gz", "l.2"], &[]),
        ] {
            let plan = plan_tidying(&names(rotated), max_files);
            assert_eq!(
                (plan.remove, plan.compress),
                (
                    remove.iter().map(|s| s.to_string()).collect::<Vec<_>>(),
                    compress.iter().map(|s| s.to_string()).collect::<Vec<_>>(),
                ),
                "{rotated:?}"
            );
        }
    }

    #[test]
    fn a_log_through_many_rotations() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("0.log");
        let policy = LogPolicy {
            max_files: 4,
            ..LogPolicy::default()
        };
        let start: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for i in 0..6u8 {
            fs::write(&log, [b'a' + i]).unwrap();
            let now = start + std::time::Duration::from_secs(u64::from(i));
            let rotated = move_away(&log, &policy, now).unwrap().unwrap();
            assert!(rotated.ends_with(now.strftime("0.log.%Y%m%d-%H%M%S").to_string()));
        }
        fs::write(&log, "now").unwrap();
        let files = all_files(&log).unwrap();
        let shown: Vec<String> = files
            .iter()
            .map(|file| {
                let name = file.file_name().unwrap().to_str().unwrap().to_string();
                let bytes = fs::read(file).unwrap();
                let mut text = String::new();
                match name.ends_with(".gz") {
                    true => flate2::read::GzDecoder::new(&bytes[..])
                        .read_to_string(&mut text)
                        .unwrap(),
                    false => (&bytes[..]).read_to_string(&mut text).unwrap(),
                };
                format!("{name} {text}")
            })
            .collect();
        assert_eq!(
            shown,
            [
                "0.log.20260102-030408.gz d",
                "0.log.20260102-030409.gz e",
                "0.log.20260102-030410 f",
                "0.log now"
            ]
        );
        // Twice in one second: not.
        assert_eq!(
            move_away(&log, &policy, start + std::time::Duration::from_secs(5)).unwrap(),
            None
        );
        remove_logs(&log).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        remove_logs(&folder.path().join("none/0.log")).unwrap();
    }

    #[test]
    fn moved_back_unless_there_is_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let (log, rotated) = (folder.path().join("0.log"), folder.path().join("0.log.1"));
        fs::write(&rotated, "old").unwrap();
        move_back(&log, &rotated).unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"old");
        fs::write(&rotated, "older").unwrap();
        move_back(&log, &rotated).unwrap();
        assert_eq!(fs::read(&log).unwrap(), b"old");
    }

    proptest! {
        /// After tidying and one rotation there are no more files than allowed, and nothing is both removed and kept.
        #[test]
        fn never_too_many(rotated in proptest::collection::btree_set("l\\.[0-9](\\.gz|\\.tmp)?", 0..12), max in 2usize..8) {
            let plan = plan_tidying(&rotated, max);
            let kept = rotated.iter().filter(|name| !plan.remove.contains(name)).count();
            prop_assert!(kept + 2 <= max.max(2));
            prop_assert!(plan.compress.iter().all(|name| !plan.remove.contains(name)));
        }
    }
}
