//! The user's kubeconfig: `orlop up` adds a context to it, so that `kubectl` works at once, and `orlop down` takes it out.
//!
//! Whose file it is: the first one of `$KUBECONFIG`, else `~/.kube/config`. Under sudo it is the invoking user's, since that is
//! who types `kubectl` next; it is read and written with that user's rights, so that root can't be led astray by links in
//! somebody's home.

mod entries;
mod file;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, User, setfsgid, setfsuid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data_dir;
use entries::Unmerged;
pub(crate) use entries::{Access, Merged};
use file::{Edit, FileError};

/// Where a cluster's context goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    pub path: PathBuf,
    /// Whose rights to use, if they are not our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<FileUser>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileUser {
    pub uid: u32,
    pub gid: u32,
}

impl Target {
    /// None: there is no home to look in.
    pub(crate) fn find() -> Option<Target> {
        let sudo_user = |uid: u32| User::from_uid(Uid::from_raw(uid)).ok().flatten();
        find(
            |name| std::env::var_os(name),
            nix::unistd::geteuid().is_root(),
            |uid| {
                let user = sudo_user(uid)?;
                Some((
                    user.dir,
                    FileUser {
                        uid,
                        gid: user.gid.as_raw(),
                    },
                ))
            },
        )
    }

    /// Adds the cluster's context and makes it the current one.
    pub(crate) fn merge(&self, access: &Access, data_dir: &Path) -> Result<Merged, FileError> {
        self.edit(|config| {
            let merged = entries::merge(config, access, data_dir, |dir| !data_dir::is_one(dir))?;
            Ok((Edit::Write, merged))
        })
    }

    /// Takes the cluster's context out. Whether there was one.
    pub(crate) fn unmerge(&self, data_dir: &Path) -> Result<bool, FileError> {
        if !self.path.exists() {
            return Ok(false);
        }
        self.edit(|config| {
            Ok(match entries::unmerge(config, data_dir)? {
                Unmerged::Unchanged => (Edit::Leave, false),
                Unmerged::Changed => (Edit::Write, true),
                Unmerged::Empty => (Edit::Delete, true),
            })
        })
    }

    fn edit<T: Send>(
        &self,
        change: impl FnOnce(&mut Value) -> Result<(Edit, T), entries::FormatError> + Send,
    ) -> Result<T, FileError> {
        let Some(user) = self.user else {
            return file::edit(&self.path, change);
        };
        // The rights to files are a thread's own: this one ends with them.
        let work = || {
            setfsgid(Gid::from_raw(user.gid));
            setfsuid(Uid::from_raw(user.uid));
            file::edit(&self.path, change)
        };
        let joined = std::thread::scope(|scope| scope.spawn(work).join());
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn find(
    variable: impl Fn(&str) -> Option<OsString>,
    is_root: bool,
    home_of: impl Fn(u32) -> Option<(PathBuf, FileUser)>,
) -> Option<Target> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(files) = variable("KUBECONFIG") {
        let first = std::env::split_paths(&files).find(|path| !path.as_os_str().is_empty());
        return first.map(|path| Target { path, user: None });
    }
    let config = |home: PathBuf| home.join(".kube/config");
    let invoker = variable("SUDO_UID").and_then(|uid| uid.to_str()?.parse().ok());
    if let Some((home, user)) = invoker.filter(|uid| is_root && *uid != 0).and_then(home_of) {
        return Some(Target {
            path: config(home),
            user: Some(user),
        });
    }
    let home = variable("HOME")?;
    Some(Target {
        path: config(home.into()),
        user: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let config = serde_json::json!({"clusters": [{"cluster": {"server": "https://a"}}], "users": [{"user": {}}]});
        Access::of_kubeconfig(&config).unwrap()
    }

    #[test]
    fn somebody_elses_file_is_written_with_their_rights() {
        use std::os::unix::fs::{MetadataExt, chown, symlink};
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let nobody = 65534;
        let (dir, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        chown(dir.path(), Some(nobody), Some(nobody)).unwrap();
        let target = |path: PathBuf| Target {
            path,
            user: Some(FileUser {
                uid: nobody,
                gid: nobody,
            }),
        };
        let config = dir.path().join(".kube/config");
        let context = target(config.clone())
            .merge(&access(), Path::new("/d"))
            .unwrap()
            .context;
        assert_eq!(context, "orlop");
        let made = std::fs::metadata(&config).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (nobody, nobody, 0o600));
        // A link to where only root may look leads nowhere.
        let forbidden = secret.path().join("config");
        let link = dir.path().join("link");
        std::fs::write(&forbidden, "root's").unwrap();
        symlink(&forbidden, &link).unwrap();
        assert!(target(link).merge(&access(), Path::new("/d")).is_err());
        // This thread has kept its rights.
        assert_eq!(std::fs::read_to_string(&forbidden).unwrap(), "root's");
        assert!(target(config.clone()).unmerge(Path::new("/d")).unwrap());
        assert!(!config.exists());
    }

    #[test]
    fn whose_file_it_is() {
        let found = |variables: &[(&str, &str)], is_root: bool| {
            let variable = |name: &str| {
                let set = variables.iter().find(|(n, _)| *n == name);
                set.map(|(_, value)| OsString::from(value))
            };
            let home_of = |uid| (uid == 1000).then(|| ("/home/ann".into(), FileUser { uid, gid: 100 }));
            let target = find(variable, is_root, home_of)?;
            Some((target.path.display().to_string(), target.user.map(|user| user.uid)))
        };
        let is = |path: &str, uid| Some((path.to_string(), uid));
        let root = ("HOME", "/root");
        assert_eq!(found(&[root], true), is("/root/.kube/config", None));
        assert_eq!(found(&[], true), None);
        assert_eq!(found(&[root, ("KUBECONFIG", ":/a/b:/c")], true), is("/a/b", None));
        assert_eq!(found(&[root, ("KUBECONFIG", "")], true), is("/root/.kube/config", None));
        let sudo = [root, ("SUDO_UID", "1000")];
        assert_eq!(found(&sudo, true), is("/home/ann/.kube/config", Some(1000)));
        assert_eq!(found(&sudo, false), is("/root/.kube/config", None));
        for uid in ["0", "77", "x"] {
            assert_eq!(found(&[root, ("SUDO_UID", uid)], true), is("/root/.kube/config", None));
        }
    }
}
