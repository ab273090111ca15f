//! subPath: one directory or file of a volume.
//!
//! The pod can change its volumes at any time, links included, so a path that was checked may be another one by the time
//! it is mounted. Hence the path is resolved once, by the kernel, beneath the volume's directory (`openat2` refuses what
//! leads out, absolute links too), and what was opened is bind-mounted where only the kubelet can write. The runtime gets
//! that place. As a mount is of one file or directory, later versions of a config map don't arrive: so in Kubernetes.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, mkdirat};

use super::error::{MountError, io_error};
use super::host_path::make_directories;
use super::mount_table::{bind, is_mount_point, unmount};

/// What is wrong with a subPath before anything is looked at on disk.
pub(super) fn check(sub_path: &str) -> Result<(), MountError> {
    if sub_path.starts_with('/') {
        return Err(MountError::Invalid(format!(
            "error SubPath `{sub_path}` must not be an absolute path"
        )));
    }
    if super::host_path::has_backsteps(sub_path) {
        return Err(MountError::Invalid(format!(
            "unable to provision SubPath `{sub_path}`: must not contain '..'"
        )));
    }
    Ok(())
}

/// Opens what the subPath names, making directories that are missing with the mode of the volume's own.
pub(super) fn open(volume: &Path, sub_path: &str) -> Result<OwnedFd, MountError> {
    // Without reading: a path of the node may be a device or a pipe.
    let flags = (OFlag::O_PATH | OFlag::O_DIRECTORY).bits();
    let root = File::options().read(true).custom_flags(flags).open(volume);
    let root = root.map_err(|e| io_error("open", volume, e))?;
    match beneath(&root, Path::new(sub_path), OFlag::O_PATH) {
        Err(Errno::ENOENT) => {}
        other => return other.map_err(|e| io_error("open", &volume.join(sub_path), e.into())),
    }
    make(&root, volume, sub_path)?;
    let opened = beneath(&root, Path::new(sub_path), OFlag::O_PATH);
    opened.map_err(|e| io_error("open", &volume.join(sub_path), e.into()))
}

fn beneath(root: &File, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    // The kernel gives up on `..` in links when something is renamed meanwhile; the volume is the pod's to rename in.
    let mut tries = 0;
    loop {
        match openat2(root, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) if tries < 32 => tries += 1,
            other => return other,
        }
    }
}

/// Makes directories one by one, each in the one that was opened before it.
fn make(root: &File, volume: &Path, sub_path: &str) -> Result<(), MountError> {
    let mode = root.metadata().map_err(|e| io_error("stat", volume, e))?.mode() & 0o7777;
    let mode = Mode::from_bits_truncate(mode);
    let mut parent = beneath(root, Path::new("."), OFlag::O_PATH | OFlag::O_DIRECTORY)
        .map_err(|e| io_error("open", volume, e.into()))?;
    let mut so_far = PathBuf::new();
    for part in Path::new(sub_path).components() {
        let Component::Normal(part) = part else { continue };
        so_far.push(part);
        let failed = |operation: &'static str, e: Errno| io_error(operation, &volume.join(&so_far), e.into());
        match beneath(root, &so_far, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Ok(found) => parent = found,
            Err(Errno::ENOENT) => {
                mkdirat(&parent, part, mode).map_err(|e| failed("mkdir", e))?;
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let made = openat(&parent, part, flags, Mode::empty()).map_err(|e| failed("open", e))?;
                // The umask took from it, and mkdir does not give the bit for the group.
                fchmod(&made, mode).map_err(|e| failed("chmod", e))?;
                parent = made;
            }
            Err(error) => return Err(failed("open", error)),
        }
    }
    Ok(())
}

/// Mounts what was opened at `target`, unless it is mounted there already.
pub(super) fn mount_at(opened: &OwnedFd, target: &Path) -> Result<(), MountError> {
    let wanted = fstat(opened).map_err(|e| io_error("stat", target, e.into()))?;
    if is_mount_point(target)? {
        let mounted = fs::symlink_metadata(target).map_err(|e| io_error("lstat", target, e))?;
        if (mounted.dev(), mounted.ino()) == (wanted.st_dev, wanted.st_ino) {
            return Ok(());
        }
        unmount(target)?;
    }
    make_directories(target.parent().expect("the target is in the pod's directory"), 0o750)?;
    let is_directory = SFlag::from_bits_truncate(wanted.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
    make_mount_point(target, is_directory)?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    bind(&source, target, false)
}

fn make_mount_point(target: &Path, is_directory: bool) -> Result<(), MountError> {
    // What is left of an earlier start may be of the other type.
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == is_directory => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir(target).map_err(|e| io_error("remove", target, e))?,
        Ok(_) => fs::remove_file(target).map_err(|e| io_error("remove", target, e))?,
        Err(_) => {}
    }
    let made = if is_directory {
        fs::create_dir(target)
    } else {
        fs::write(target, "")
    };
    made.map_err(|e| io_error("open", target, e))
}

/// Where that is, for a kubelet that may not mount: safe against what is there, not against what is changed meanwhile.
pub(super) fn place(opened: &OwnedFd) -> Result<PathBuf, MountError> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    fs::read_link(&link).map_err(|e| io_error("readlink", &link, e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::mount_table::unmount_below;
    use super::*;

    struct Place {
        _temp: tempfile::TempDir,
        volume: PathBuf,
        outside: PathBuf,
        root: PathBuf,
    }

    fn place_with_links() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let (volume, outside) = (root.join("v"), root.join("outside"));
        fs::create_dir_all(volume.join("in")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(volume.join("in/file"), "inside").unwrap();
        fs::write(outside.join("file"), "secret").unwrap();
        let links = [
            ("good", "in"),
            ("up", "../outside"),
            ("absolute", outside.to_str().unwrap()),
            ("etc", "/etc"),
            ("loop", "loop"),
            ("dangling", "nowhere"),
            ("proc", "/proc/self/root"),
            ("in/back", "../in/file"),
            ("in/far", "../../outside/file"),
        ];
        for (name, target) in links {
            symlink(target, volume.join(name)).unwrap();
        }
        Place {
            _temp: temp,
            volume,
            outside,
            root,
        }
    }

    #[test]
    fn nothing_leads_out_of_the_volume() {
        let at = place_with_links();
        for path in [
            "in",
            "in/file",
            "good/file",
            "in/back",
            "./in//file",
            "new/a/b",
            "good/new",
        ] {
            let opened = open(&at.volume, path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(place(&opened).unwrap().starts_with(&at.volume), "{path}");
        }
        let bad = [
            "up",
            "up/file",
            "up/new",
            "absolute",
            "absolute/new",
            "etc/passwd",
            "loop",
            "loop/x",
            "dangling",
            "dangling/x",
            "proc/etc",
            "in/far",
            "good/far",
            "in/file/x",
            "../outside",
            "in/../../outside/file",
        ];
        for path in bad {
            assert!(open(&at.volume, path).is_err(), "{path}");
        }
        let left: Vec<_> = fs::read_dir(&at.outside).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing was made outside");
        assert!(!at.volume.join("nowhere").exists());
    }

    #[test]
    fn what_is_made_has_the_volumes_mode() {
        let at = place_with_links();
        fs::set_permissions(&at.volume, fs::Permissions::from_mode(0o2775)).unwrap();
        open(&at.volume, "x/y").unwrap();
        for path in ["x", "x/y"] {
            assert_eq!(fs::metadata(at.volume.join(path)).unwrap().mode() & 0o7777, 0o2775);
        }
        let long = "n".repeat(300);
        assert!(
            open(&at.volume, &long)
                .unwrap_err()
                .to_string()
                .contains("file name too long")
        );
    }

    #[test]
    fn refused_before_looking() {
        let cases = [
            ("a/b", ""),
            ("a/..b", ""),
            ("/a", "error SubPath `/a` must not be an absolute path"),
            ("a/../b", "unable to provision SubPath `a/../b`: must not contain '..'"),
        ];
        for (path, expected) in cases {
            assert_eq!(
                check(path).err().map(|error| error.to_string()).unwrap_or_default(),
                expected
            );
        }
    }

    #[test]
    fn mounted_once_and_again_when_it_is_another_file() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let at = place_with_links();
        let target = at.root.join("t/v/c/0");
        for _ in 0..2 {
            mount_at(&open(&at.volume, "good/file").unwrap(), &target).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "inside");
        }
        assert_eq!(super::super::mount_table::mounts_below(&at.root).unwrap().len(), 1);
        // The pod swaps what it named for a way out: what is mounted stays what was opened.
        let opened = open(&at.volume, "in/file").unwrap();
        fs::rename(at.volume.join("in"), at.volume.join("away")).unwrap();
        symlink(&at.outside, at.volume.join("in")).unwrap();
        mount_at(&opened, &target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "inside");
        assert!(open(&at.volume, "in/file").is_err());
        // A directory after a file.
        mount_at(&open(&at.volume, "away").unwrap(), &target).unwrap();
        assert!(target.join("file").exists());
        unmount_below(&at.root).unwrap();
    }
}
