//! A kubeconfig as a file that others change, too: locked as kubectl does, written whole or not at all.
// Upstream: staging/src/k8s.io/client-go/tools/clientcmd (v1.36), `lockFile` and `WriteToFile`

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_base::clock::{Shift, monotonic};
use serde_json::Value;

use super::entries::FormatError;

/// kubectl holds the lock for a moment, and so do we.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(10);
/// A kubeconfig that is larger is none.
const SIZE_MAX: u64 = 16 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("failed to {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is locked; if no kubectl is running, remove that file", path.display())]
    Locked { path: PathBuf },
    #[error("{} is not valid YAML", path.display())]
    Parse {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
    #[error("{} is larger than a kubeconfig can be", path.display())]
    TooLarge { path: PathBuf },
    #[error("failed to encode {}", path.display())]
    Encode { path: PathBuf, source: io::Error },
    #[error("{}: left as it is", path.display())]
    Format { path: PathBuf, source: FormatError },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_path_buf();
    move |source| FileError::Io { action, path, source }
}

/// What to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    Leave,
    Write,
    Delete,
}

/// Lets `change` look at the file's value (null if there is none) and does what it says. Nobody else writes meanwhile.
pub(super) fn edit<T>(
    path: &Path,
    change: impl FnOnce(&mut Value) -> Result<(Edit, T), FormatError>,
) -> Result<T, FileError> {
    // A link stays one: what it leads to is replaced.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(directory);
        made.map_err(failed("create", directory))?;
    }
    let _lock = FileLock::take(path)?;
    let mut config = read(path)?;
    let changed = change(&mut config).map_err(|source| FileError::Format {
        path: path.clone(),
        source,
    });
    let (edit, answer) = changed?;
    match edit {
        Edit::Leave => {}
        Edit::Write => write(path, &config)?,
        Edit::Delete => std::fs::remove_file(path).map_err(failed("remove", path))?,
    }
    Ok(answer)
}

/// Null if there is none, or nothing in it.
fn read(path: &Path) -> Result<Value, FileError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(failed("read", path)(error)),
        Ok(found) if found.len() > SIZE_MAX => return Err(FileError::TooLarge { path: path.into() }),
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(path).map_err(failed("read", path))?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(&text).map_err(|source| FileError::Parse {
        path: path.into(),
        source: Box::new(source),
    })
}

/// With the owner and the mode that the file has; a new one is for its owner only.
fn write(path: &Path, config: &Value) -> Result<(), FileError> {
    let text = serde_saphyr::to_string(config).map_err(|error| FileError::Encode {
        path: path.into(),
        source: io::Error::other(error),
    })?;
    let before = std::fs::metadata(path).ok();
    let temporary = beside(path, &format!(".orlop-{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        if let Some(before) = &before {
            file.set_permissions(std::fs::Permissions::from_mode(before.mode() & 0o777))?;
            let now = file.metadata()?;
            if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed("write", path)(error)
    })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

/// `config.lock`, as kubectl has it: whoever creates it holds it.
struct FileLock {
    path: PathBuf,
    _file: File,
}

impl FileLock {
    fn take(path: &Path) -> Result<FileLock, FileError> {
        let path = beside(path, ".lock");
        let deadline = monotonic().later(LOCK_PATIENCE);
        loop {
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(FileLock { path, _file: file }),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("create", &path)(error));
                }
                Err(_) if monotonic() >= deadline => return Err(FileError::Locked { path }),
                Err(_) => std::thread::sleep(LOCK_RETRY),
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(path: &Path, key: &str) -> Result<(), FileError> {
        edit(path, |config| {
            config[key] = json!(1);
            Ok((Edit::Write, ()))
        })
    }

    #[test]
    fn a_new_file_is_private_and_an_old_one_keeps_its_mode_and_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".kube/config");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        set(&path, "a").unwrap();
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        set(&link, "b").unwrap();
        assert!(link.is_symlink());
        assert_eq!((mode(&path), read(&path).unwrap()), (0o640, json!({"a": 1, "b": 1})));
        edit(&path, |_| Ok((Edit::Delete, ()))).unwrap();
        let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let path = path.clone();
                std::thread::spawn(move || (0..10).for_each(|n| set(&path, &format!("{writer}-{n}")).unwrap()))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(read(&path).unwrap().as_object().unwrap().len(), 80);
    }

    #[test]
    fn what_can_not_be_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["a: [", "a: 1\na: 2\n", "? [1]\n: 2\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(set(&path, "x"), Err(FileError::Parse { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, "# nothing yet\n").unwrap();
        set(&path, "x").unwrap();
        assert_eq!(read(&path).unwrap(), json!({"x": 1}));
    }
}
