//! Files that change all at once.
//!
//! A volume's directory looks like this to those who read it:
//!
//! ```text
//! ..2026_01_02_03_04_05.1234567/   one version, never changed once it is shown
//!     password
//!     tls/key
//! ..data -> ..2026_01_02_03_04_05.1234567
//! password -> ..data/password
//! tls -> ..data/tls
//! ```
//!
//! A new version is written beside the old one, then `..data` is replaced by a rename: whoever resolves it gets one whole
//! version. What a killed writer left behind (half a version, `..data_tmp`, links of the version before) is found by
//! looking, so the next write puts it right.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use orlop_base::Random;

use super::error::{MountError, io_error};
use super::payload::{self, Payload};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Makes the directory, which exists, show the payload; returns whether anything was to be done. `own` sets owners and
/// modes of everything in the directory before the new version is shown.
pub(super) fn write(
    directory: &Path,
    payload: Payload,
    now: Timestamp,
    own: impl Fn(&Path) -> Result<(), MountError>,
) -> Result<bool, MountError> {
    let payload = payload::checked(payload)?;
    let current = current(directory)?;
    let is_current = current
        .as_ref()
        .is_some_and(|version| shows(&directory.join(version), &payload));
    if !is_current {
        let version = new_version(directory, now)?;
        let path = directory.join(&version);
        let shown = write_version(&path, &payload)
            .and_then(|()| own(directory))
            .and_then(|()| show(directory, &version));
        if let Err(error) = shown {
            // The next write removes it, if this can't.
            let _ = fs::remove_dir_all(&path);
            return Err(error);
        }
    }
    let relinked = link(directory, &payload)?;
    sweep(directory)?;
    Ok(!is_current || relinked)
}

/// The version that is shown.
fn current(directory: &Path) -> Result<Option<String>, MountError> {
    let link = directory.join(DATA);
    match fs::read_link(&link) {
        Ok(target) => Ok(target.to_str().map(str::to_string)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("readlink", &link, error)),
    }
}

/// Whether a version holds just these files. Modes are not compared: setting owners changes them.
fn shows(version: &Path, payload: &Payload) -> bool {
    let mut present = BTreeSet::new();
    if list_files(version, Path::new(""), &mut present).is_err() {
        return false;
    }
    present.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            present.contains(Path::new(path)) && fs::read(version.join(path)).is_ok_and(|data| data == file.data)
        })
}

fn list_files(root: &Path, below: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list_files(root, &path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

fn new_version(directory: &Path, now: Timestamp) -> Result<String, MountError> {
    let time = now.strftime("..%Y_%m_%d_%H_%M_%S.");
    let mut random = Random::from_entropy();
    loop {
        let version = format!("{time}{}", random.below(1 << 32));
        let path = directory.join(&version);
        match fs::create_dir(&path) {
            Ok(()) => {
                set_mode(&path, 0o755)?;
                return Ok(version);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("mkdir", &path, error)),
        }
    }
}

fn write_version(version: &Path, payload: &Payload) -> Result<(), MountError> {
    for (path, file) in payload {
        let full = version.join(path);
        let parent = full.parent().expect("a file is in a directory");
        make_directories(version, parent)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let written = options.open(&full).and_then(|mut out| out.write_all(&file.data));
        written.map_err(|e| io_error("open", &full, e))?;
        // The process's umask must not take anything away.
        set_mode(&full, file.mode)?;
        if let Some(owner) = file.owner {
            std::os::unix::fs::lchown(&full, Some(owner), None).map_err(|e| io_error("lchown", &full, e))?;
        }
    }
    Ok(())
}

/// Makes the directories from `top`, which exists, down to `directory`.
fn make_directories(top: &Path, directory: &Path) -> Result<(), MountError> {
    let below = directory.strip_prefix(top).expect("the directory is below the top");
    let mut path = top.to_path_buf();
    for part in below {
        path.push(part);
        match fs::create_dir(&path) {
            Ok(()) => set_mode(&path, 0o755)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("mkdir", &path, error)),
        }
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), MountError> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|e| io_error("chmod", path, e))
}

/// Shows a version: the moment of change.
fn show(directory: &Path, version: &str) -> Result<(), MountError> {
    let new = directory.join(DATA_NEW);
    remove_if_there(&new)?;
    symlink(version, &new).map_err(|e| io_error("symlink", &new, e))?;
    let data = directory.join(DATA);
    fs::rename(&new, &data).map_err(|e| io_error("rename", &new, e))
}

/// Makes the links that people read through, removes those of files that are gone; whether there was anything to do.
fn link(directory: &Path, payload: &Payload) -> Result<bool, MountError> {
    let tops: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    let mut changed = false;
    for top in &tops {
        let path = directory.join(top);
        match symlink(Path::new(DATA).join(top), &path) {
            Ok(()) => {
                changed = true;
                let owner = payload
                    .iter()
                    .find(|(p, _)| p.split('/').next() == Some(top))
                    .and_then(|(_, f)| f.owner);
                if let Some(owner) = owner {
                    std::os::unix::fs::lchown(&path, Some(owner), None).map_err(|e| io_error("lchown", &path, e))?;
                }
            }
            // The link, or a directory that another volume is mounted on, which stays in front.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("symlink", &path, error)),
        }
    }
    for name in entries(directory)? {
        let path = directory.join(&name);
        let is_ours = fs::read_link(&path).is_ok_and(|target| target == Path::new(DATA).join(&name));
        if is_ours && !tops.contains(name.as_str()) {
            remove_if_there(&path)?;
            changed = true;
        }
    }
    Ok(changed)
}

/// Removes all versions but the one that is shown.
fn sweep(directory: &Path) -> Result<(), MountError> {
    let current = current(directory)?;
    for name in entries(directory)? {
        let path = directory.join(&name);
        if name == DATA_NEW {
            remove_if_there(&path)?;
        } else if name.starts_with("..") && name != DATA && Some(&name) != current.as_ref() {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io_error("remove", &path, error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<String>, MountError> {
    let names = fs::read_dir(directory).and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()))
            .collect::<io::Result<Vec<String>>>()
    });
    let mut names = names.map_err(|e| io_error("open", directory, e))?;
    names.retain(|name| !name.is_empty());
    Ok(names)
}

fn remove_if_there(path: &Path) -> Result<(), MountError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::super::payload::File;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| (path.to_string(), File::new(*data, 0o640)))
            .collect()
    }

    fn put(directory: &Path, files: &[(&str, &str)]) -> Result<bool, MountError> {
        write(directory, payload(files), at(0), |_| Ok(()))
    }

    /// What somebody sees who reads through the links, and that there is nothing else.
    fn seen(directory: &Path) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut versions = 0;
        for name in entries(directory).unwrap() {
            let path = directory.join(&name);
            if name.starts_with("..") {
                versions += u32::from(fs::symlink_metadata(&path).unwrap().is_dir());
            } else if path.is_dir() {
                let mut files = BTreeSet::new();
                list_files(&path, Path::new(""), &mut files).unwrap();
                for file in files {
                    let shown = Path::new(&name).join(&file).display().to_string();
                    found.insert(shown, fs::read_to_string(path.join(file)).unwrap());
                }
            } else {
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
        assert_eq!(versions, 1, "one version is kept");
        found
    }

    fn expected(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files
            .iter()
            .map(|(path, data)| (path.to_string(), data.to_string()))
            .collect()
    }

    #[test]
    fn laid_out_as_kubernetes_does() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path();
        let files = [("a", "1"), ("d/b", "2"), ("d/e/c", "3")];
        assert!(put(directory, &files).unwrap());
        assert_eq!(seen(directory), expected(&files));
        let version = fs::read_link(directory.join("..data")).unwrap();
        let version = version.to_str().unwrap();
        assert!(version.starts_with("..2027_01_15_08_00_00."), "{version}");
        assert_eq!(fs::read_link(directory.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_link(directory.join("d")).unwrap(), Path::new("..data/d"));
        assert_eq!(fs::metadata(directory.join("a")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::metadata(directory.join("d/e")).unwrap().mode() & 0o7777, 0o755);

        assert!(!put(directory, &files).unwrap(), "nothing is to be done");
        assert_eq!(fs::read_link(directory.join("..data")).unwrap(), Path::new(version));
        let files = [("d/b", "2"), ("f", "")];
        assert!(put(directory, &files).unwrap());
        assert_eq!(seen(directory), expected(&files));
        assert!(put(directory, &[]).unwrap());
        assert_eq!(seen(directory), expected(&[]));
    }

    #[test]
    fn what_can_not_be_written_changes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path();
        put(directory, &[("a", "1")]).unwrap();
        let long = "x".repeat(256);
        let hostile: [&[(&str, &str)]; 5] = [
            &[("../x", "")],
            &[("/etc/x", "")],
            &[("..data/x", "")],
            &[(&long, "")],
            &[("a", "2"), ("a/b", "3")],
        ];
        for files in hostile {
            put(directory, files).unwrap_err();
            assert_eq!(seen(directory), expected(&[("a", "1")]));
        }
        let refused = write(directory, payload(&[("a", "2")]), at(0), |_| {
            Err(MountError::invalid("no"))
        });
        assert_eq!(refused.unwrap_err().to_string(), "no");
        assert_eq!(seen(directory), expected(&[("a", "1")]));
        put(directory, &[("日本語 \u{1f980}", "ü")]).unwrap();
        assert_eq!(seen(directory), expected(&[("日本語 \u{1f980}", "ü")]));
    }

    #[test]
    fn a_directory_to_mount_on_stays_in_front() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("sub")).unwrap();
        put(temp.path(), &[("a", "1"), ("sub/x", "2")]).unwrap();
        assert!(temp.path().join("sub").symlink_metadata().unwrap().is_dir());
        put(temp.path(), &[]).unwrap();
        assert!(temp.path().join("sub").is_dir());
    }

    #[test]
    fn taken_up_again_wherever_a_writer_was_killed() {
        // Each leaves the directory as a writer of ("b", "new") would that got that far, having shown ("a", "old").
        let half: fn(&Path) = |at| {
            fs::create_dir(at.join("..2026_01_01_00_00_00.1")).unwrap();
            fs::write(at.join("..2026_01_01_00_00_00.1/b"), "ne").unwrap();
        };
        let whole: fn(&Path) = |at| {
            fs::create_dir(at.join("..2026_01_01_00_00_00.1")).unwrap();
            fs::write(at.join("..2026_01_01_00_00_00.1/b"), "new").unwrap();
        };
        let linked: fn(&Path) = |at| {
            fs::create_dir(at.join("..2026_01_01_00_00_00.1")).unwrap();
            fs::write(at.join("..2026_01_01_00_00_00.1/b"), "new").unwrap();
            symlink("..2026_01_01_00_00_00.1", at.join(DATA_NEW)).unwrap();
        };
        let shown: fn(&Path) = |at| {
            fs::create_dir(at.join("..2026_01_01_00_00_00.1")).unwrap();
            fs::write(at.join("..2026_01_01_00_00_00.1/b"), "new").unwrap();
            show(at, "..2026_01_01_00_00_00.1").unwrap();
        };
        let dangling: fn(&Path) = |at| {
            fs::remove_dir_all(at.join(current(at).unwrap().unwrap())).unwrap();
        };
        for (step, killed) in [half, whole, linked, shown, dangling].iter().enumerate() {
            for first in [false, true] {
                let temp = tempfile::tempdir().unwrap();
                if !first {
                    put(temp.path(), &[("a", "old")]).unwrap();
                } else if step == 4 {
                    continue;
                }
                killed(temp.path());
                assert!(put(temp.path(), &[("b", "new")]).unwrap(), "step {step}");
                assert_eq!(seen(temp.path()), expected(&[("b", "new")]), "step {step}");
            }
        }
    }

    #[test]
    fn a_reader_sees_whole_versions_only() {
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path();
        let version = |n: usize| -> Payload {
            // Names differ from version to version, too.
            let names = ["a".to_string(), "d/b".into(), format!("x{}", n % 3)];
            names
                .into_iter()
                .map(|name| (name, File::new(format!("{n}").repeat(2000), 0o644)))
                .collect()
        };
        write(directory, version(0), at(0), |_| Ok(())).unwrap();
        let done = AtomicBool::new(false);
        let (whole, torn) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut whole, mut torn) = (0, Vec::new());
                while !done.load(Ordering::SeqCst) {
                    let before = fs::read_link(directory.join(DATA)).unwrap();
                    let mut files = BTreeSet::new();
                    let listed = list_files(&directory.join(&before), Path::new(""), &mut files);
                    let read: io::Result<Vec<Vec<u8>>> = files
                        .iter()
                        .map(|file| fs::read(directory.join(&before).join(file)))
                        .collect();
                    // A version that is no longer shown may go away under the reader, but must not change.
                    let same = fs::read_link(directory.join(DATA)).unwrap() == before;
                    let is_whole = matches!((&listed, &read), (Ok(()), Ok(read))
                        if read.len() == 3 && read.iter().all(|data| *data == read[0]));
                    whole += usize::from(is_whole);
                    if same && !is_whole {
                        torn.push(format!("{before:?} {listed:?} {files:?}"));
                    }
                }
                (whole, torn)
            });
            for n in 1..60 {
                write(directory, version(n), at(n as i64), |_| Ok(())).unwrap();
            }
            done.store(true, Ordering::SeqCst);
            reader.join().unwrap()
        });
        assert!(torn.is_empty(), "{torn:?}");
        assert!(whole > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Whatever was shown before, and whatever is asked for: that is what is seen, or nothing has changed.
        #[test]
        fn any_sequence_of_versions(
            versions in proptest::collection::vec(
                proptest::collection::btree_map("[ab./]{1,5}|\\PC{1,4}", "[01]{0,2}", 0..5), 1..6)
        ) {
            let temp = tempfile::tempdir().unwrap();
            let outside = temp.path().join("outside");
            let directory = temp.path().join("v");
            fs::create_dir(&directory).unwrap();
            put(&directory, &[]).unwrap();
            let mut last = BTreeMap::new();
            for files in versions {
                let listed: Vec<(&str, &str)> = files.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                if put(&directory, &listed).is_ok() {
                    let cleaned = payload::checked(payload(&listed)).unwrap();
                    last = cleaned.into_iter().map(|(k, f)| (k, String::from_utf8(f.data).unwrap())).collect();
                }
                prop_assert_eq!(seen(&directory), last.clone());
            }
            prop_assert!(!outside.exists());
            prop_assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
        }
    }
}
