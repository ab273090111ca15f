//! fsGroup: the group that a volume's files belong to.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Gid, fchownat};
use orlop_api::types::core::{Pod, SecurityContext};

use super::error::{MountError, io_error};
use super::mount_table::held;

const SET_GROUP_ID: u32 = 0o2000;

/// Who is to own a volume's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ownership {
    pub group: Option<u32>,
    /// Leave a volume alone whose top directory is as it should be.
    pub on_root_mismatch: bool,
    /// The one user that all containers run as: the owner of tokens.
    pub user: Option<u32>,
}

impl Ownership {
    pub(super) fn of(pod: &Pod) -> Ownership {
        let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        Ownership {
            group: context.and_then(|c| c.fs_group).and_then(|id| id.try_into().ok()),
            on_root_mismatch: context.is_some_and(|c| c.fs_group_change_policy.as_deref() == Some("OnRootMismatch")),
            user: common_user(pod),
        }
    }

    /// The same without the policy: volumes that the kubelet writes itself always get it all.
    pub(super) fn always(self) -> Ownership {
        Ownership {
            on_root_mismatch: false,
            ..self
        }
    }

    /// Gives everything in the tree to the group, and the group what it needs to read (and write, if it may).
    pub(super) fn apply(&self, root: &Path, read_only: bool) -> Result<(), MountError> {
        let Some(group) = self.group else { return Ok(()) };
        let metadata = fs::symlink_metadata(root).map_err(|e| io_error("lstat", root, e))?;
        if self.on_root_mismatch && is_right(&metadata, group, read_only) {
            return Ok(());
        }
        let walk = Walk { group, read_only };
        walk.tree(root).map_err(|e| io_error("walk", root, e.into()))
    }
}

/// The user that every container runs as, if it is one and known.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let user = |context: &Option<SecurityContext>| context.as_ref().and_then(|c| c.run_as_user).or(of_pod);
    let init = spec.init_containers.iter().flatten().map(|c| user(&c.security_context));
    let main = spec.containers.iter().map(|c| user(&c.security_context));
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|c| user(&c.security_context));
    let mut users = init.chain(main).chain(ephemeral);
    let first = users.next()??;
    users.all(|other| other == Some(first)).then(|| first.try_into().ok())?
}

/// What the group must be allowed.
fn group_mode(is_directory: bool, read_only: bool) -> u32 {
    let mode = if read_only { 0o440 } else { 0o660 };
    mode | if is_directory { SET_GROUP_ID | 0o110 } else { 0 }
}

fn is_right(metadata: &Metadata, group: u32, read_only: bool) -> bool {
    let wanted = group_mode(true, read_only);
    metadata.is_dir() && metadata.gid() == group && metadata.mode() & wanted == wanted
}

/// A walk through a tree that pods may be changing meanwhile: no link is followed, however late it is put there, as all
/// is done on what was opened beneath the top.
struct Walk {
    group: u32,
    read_only: bool,
}

impl Walk {
    /// Children first, so that the top is right only when all is: a walk that was cut short is taken up again.
    fn tree(&self, root: &Path) -> nix::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let top = nix::fcntl::open(root, flags, Mode::empty())?;
        // Not by calling itself: how deep the tree is, is up to the pod.
        let mut directories = vec![PathBuf::from(".")];
        let mut next = 0;
        while let Some(path) = directories.get(next).cloned() {
            next += 1;
            let directory = match beneath(&top, &path, OFlag::O_DIRECTORY) {
                Ok(directory) => directory,
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                Err(error) => return Err(error),
            };
            for entry in fs::read_dir(held(&directory)).map_err(errno)?.flatten() {
                let below = path.join(entry.file_name());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(below),
                    _ => self.give(beneath(&top, &below, OFlag::O_NOFOLLOW), &below),
                }
            }
        }
        for path in directories.iter().rev() {
            self.give(beneath(&top, path, OFlag::O_NOFOLLOW), path);
        }
        Ok(())
    }

    /// Some file systems refuse; the volume may be of use all the same.
    fn give(&self, opened: nix::Result<OwnedFd>, path: &Path) {
        match opened.and_then(|file| self.try_give(&file)) {
            // What went away meanwhile, or became another thing, is no trouble.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(error) => tracing::warn!(path = %path.display(), err = %error, "failed to set group of file"),
        }
    }

    fn try_give(&self, file: &OwnedFd) -> nix::Result<()> {
        let group = Some(Gid::from_raw(self.group));
        fchownat(file, "", None, group, AtFlags::AT_EMPTY_PATH)?;
        let found = fstat(file)?;
        let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFLNK {
            return Ok(());
        }
        let mode = found.st_mode & 0o7777 | group_mode(kind == SFlag::S_IFDIR, self.read_only);
        fs::set_permissions(held(file), Permissions::from_mode(mode)).map_err(errno)
    }
}

fn beneath(top: &OwnedFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let flags = flags | OFlag::O_PATH | OFlag::O_CLOEXEC;
    openat2(top, path, OpenHow::new().flags(flags).resolve(resolve))
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::lchown;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_group_gets_everything_in_the_tree_but_not_what_links_lead_to() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("v"), temp.path().join("outside"));
        fs::create_dir_all(root.join("d")).unwrap();
        for (path, mode) in [(root.join("d/f"), 0o600), (outside.clone(), 0o600)] {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        for dir in [root.clone(), root.join("d")] {
            fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let shown = |path: &Path| {
            let metadata = fs::symlink_metadata(path).unwrap();
            (metadata.gid(), metadata.mode() & 0o7777)
        };
        let ownership = Ownership {
            group: Some(4711),
            on_root_mismatch: true,
            user: None,
        };
        ownership.apply(&root, false).unwrap();
        assert_eq!(shown(&root), (4711, 0o2770));
        assert_eq!(shown(&root.join("d")), (4711, 0o2770));
        assert_eq!(shown(&root.join("d/f")), (4711, 0o660));
        assert_eq!(shown(&root.join("link")).0, 4711);
        assert_eq!(shown(&outside), (0, 0o600));

        // A root directory that is right is trusted, unless the policy says otherwise.
        lchown(root.join("d/f"), None, Some(0)).unwrap();
        ownership.apply(&root, false).unwrap();
        assert_eq!(shown(&root.join("d/f")).0, 0);
        ownership.always().apply(&root, true).unwrap();
        assert_eq!(shown(&root.join("d/f")).0, 4711);
        Ownership::default().apply(Path::new("/nowhere"), false).unwrap();
    }

    #[test]
    fn one_user_or_none() {
        let cases = [
            (json!({"containers": [{"name": "a"}]}), None),
            (
                json!({"securityContext": {"runAsUser": 5}, "containers": [{"name": "a"}]}),
                Some(5),
            ),
            (
                json!({"securityContext": {"runAsUser": 5}, "containers": [
                    {"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 6}}]}),
                None,
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"runAsUser": 6}}],
                       "initContainers": [{"name": "b", "securityContext": {"runAsUser": 6}}]}),
                Some(6),
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"runAsUser": 6}}, {"name": "b"}]}),
                None,
            ),
        ];
        for (spec, expected) in cases {
            let pod: Pod = orlop_api::types::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(Ownership::of(&pod).user, expected);
        }
    }
}
