//! What is mounted where, and trees taken down without ever deleting through a mount.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;

use super::error::{MountError, io_error};

const TABLE: &str = "/proc/self/mountinfo";

/// Mount points at or below a path, the deepest first. The path must have no links in it.
pub(super) fn mounts_below(path: &Path) -> Result<Vec<PathBuf>, MountError> {
    let table = fs::read(TABLE).map_err(|e| io_error("open", Path::new(TABLE), e))?;
    Ok(below(&table, path))
}

fn below(table: &[u8], path: &Path) -> Vec<PathBuf> {
    let points = table.split(|byte| *byte == b'\n').filter_map(mount_point);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(path)).collect();
    // What was mounted later on the same point, or further down, must go first.
    found.reverse();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

/// The fifth field, in which blanks and backslashes are octal numbers.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Some(std::ffi::OsString::from_vec(bytes).into())
}

pub(super) fn is_mount_point(path: &Path) -> Result<bool, MountError> {
    Ok(mounts_below(path)?.iter().any(|point| point == path))
}

/// Whether a file system of its own begins here. Quicker than the table, but blind for bind mounts of the same one.
pub(super) fn begins_file_system(path: &Path) -> io::Result<bool> {
    let parent = path.parent().unwrap_or(path);
    Ok(fs::symlink_metadata(path)?.dev() != fs::symlink_metadata(parent)?.dev())
}

pub(super) fn mount_file_system(kind: &str, at: &Path, options: &str) -> nix::Result<()> {
    mount(Some(kind), at, Some(kind), MsFlags::empty(), Some(options))
}

/// Shows what is at one place at another, too.
pub(super) fn bind(from: &Path, at: &Path, read_only: bool) -> Result<(), MountError> {
    let failed = |error: Errno| MountError::Bind {
        from: from.to_path_buf(),
        mount: Box::new(io_error("mount", at, error.into())),
    };
    let none = None::<&str>;
    mount(Some(from), at, none, MsFlags::MS_BIND, none).map_err(failed)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        if let Err(error) = mount(none, at, none, flags, none) {
            unmount(at)?;
            return Err(failed(error));
        }
    }
    Ok(())
}

/// Unmounts. Where something still uses it, it is gone from here and ends when its last user does.
pub(super) fn unmount(at: &Path) -> Result<(), MountError> {
    let unmounted = match umount2(at, MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EBUSY) => umount2(at, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH),
        other => other,
    };
    match unmounted {
        // Not a mount point (any more), or not there.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => Err(io_error("unmount", at, error.into())),
    }
}

/// Unmounts everything at and below a path.
pub(super) fn unmount_below(path: &Path) -> Result<(), MountError> {
    for point in mounts_below(path)? {
        unmount(&point)?;
    }
    Ok(())
}

/// Removes a tree. Refuses where anything is mounted in it: that would delete somebody's data.
pub(super) fn remove_tree(path: &Path) -> Result<(), MountError> {
    if let Some(point) = mounts_below(path)?.first() {
        return Err(MountError::Invalid(format!(
            "not removing {}: {} is still mounted",
            path.display(),
            point.display()
        )));
    }
    match remove_flat(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes a tree without going down into it, as a pod can make one deeper than a stack, a path or the number of open
/// files allows: directories inside directories are moved to the top first. A mount that came meanwhile can't be moved.
fn remove_flat(root: &Path) -> io::Result<()> {
    let top = open_directory(root)?;
    let mut waiting = vec![held(&top)];
    let mut moved = 0_u64;
    while let Some(directory) = waiting.pop() {
        let opened = open_directory(&directory)?;
        for entry in fs::read_dir(held(&opened))? {
            let entry = entry?;
            let path = held(&opened).join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                fs::remove_file(&path)?;
            } else if directory == held(&top) {
                waiting.push(held(&top).join(entry.file_name()));
            } else if fs::remove_dir(&path).is_err() {
                let to = loop {
                    moved += 1;
                    let to = held(&top).join(format!("..removed.{moved}"));
                    if !to.try_exists()? {
                        break to;
                    }
                };
                fs::rename(&path, &to)?;
                waiting.push(to);
            }
        }
        if directory != held(&top) {
            fs::remove_dir(&directory)?;
        }
    }
    fs::remove_dir(root)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // The last part is no link; what is before it was opened by us.
    let is_held = path.parent() == Some(Path::new("/proc/self/fd"));
    let flags = if is_held { flags } else { flags | OFlag::O_NOFOLLOW };
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// The path of what is open, whatever happens to its names.
pub(super) fn held(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_with_its_escapes() {
        let table = b"22 1 0:1 / / rw - ext4 /dev/a rw\n\
            23 22 0:2 / /r/pods/u/v\\040w rw shared:1 - tmpfs tmpfs rw\n\
            24 22 0:3 / /r/pods/u/v\\040w/x rw - tmpfs tmpfs rw\n\
            25 22 0:3 / /r/pods/uu rw - tmpfs tmpfs rw\n\
            26 22 0:4 / /r/pods/u/a\\134b rw - tmpfs tmpfs rw\nbroken\n";
        let found: Vec<String> = below(table, Path::new("/r/pods/u"))
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        assert_eq!(found, ["/r/pods/u/v w/x", "/r/pods/u/a\\b", "/r/pods/u/v w"]);
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("tree");
        fs::create_dir(&root).unwrap();
        fs::write(temp.path().join("kept"), "1").unwrap();
        let mut inner = open_directory(&root).unwrap();
        for level in 0..60 {
            let at = held(&inner);
            fs::write(at.join("file"), "").unwrap();
            std::os::unix::fs::symlink(temp.path(), at.join("link")).unwrap();
            fs::create_dir(at.join("empty")).unwrap();
            // Also a name that the removal uses itself.
            let name = if level == 0 {
                "..removed.1".into()
            } else {
                "d".repeat(250)
            };
            fs::create_dir(at.join(&name)).unwrap();
            inner = open_directory(&at.join(&name)).unwrap();
        }
        drop(inner);
        remove_tree(&root).unwrap();
        assert!(!root.exists() && temp.path().join("kept").exists());
    }

    #[test]
    fn nothing_is_deleted_through_a_mount() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let (data, tree) = (root.join("data"), root.join("tree"));
        let at = tree.join("a b");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir_all(&at).unwrap();
        fs::write(data.join("precious"), "1").unwrap();
        bind(&data, &at, true).unwrap();
        bind(&data, &at, false).unwrap();
        assert!(is_mount_point(&at).unwrap());
        assert!(remove_tree(&tree).unwrap_err().to_string().contains("is still mounted"));
        assert!(at.join("precious").exists());
        unmount_below(&tree).unwrap();
        assert!(!is_mount_point(&at).unwrap());
        remove_tree(&tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && data.join("precious").exists());
    }

    #[test]
    fn read_only_binds_and_busy_mounts() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let (data, at) = (root.join("data"), root.join("at"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&at).unwrap();
        bind(&data, &at, true).unwrap();
        assert!(fs::write(at.join("f"), "").is_err());
        let held = fs::File::open(&at).unwrap();
        unmount(&at).unwrap();
        assert!(!is_mount_point(&at).unwrap());
        drop(held);
        unmount(&at).unwrap();
        mount_file_system("tmpfs", &at, "size=4096").unwrap();
        assert!(begins_file_system(&at).unwrap());
        unmount_below(&root).unwrap();
        assert!(!begins_file_system(&at).unwrap());
    }
}
