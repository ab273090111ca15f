//! Private files: readable by their owner only, and never seen half written.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::PkiError;

pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes the directory if it is missing and closes it to others in any case.
    pub(super) fn open(path: &Path) -> Result<Directory, PkiError> {
        let failed = |source| PkiError::io(path, source);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
        Ok(Directory { path: path.into() })
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The content of a file, none if there is no such file.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        let path = self.path_of(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PkiError::io(&path, error)),
        }
    }

    /// Replaces a file as a whole: written beside it, renamed over it. `sync` makes it durable.
    pub(super) fn write(&self, name: &str, content: &str) -> Result<(), PkiError> {
        let path = self.path_of(name);
        let temporary = self.path_of(&format!(".{name}.new"));
        let failed = |source| PkiError::io(&path, source);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(failed)?;
        file.write_all(content.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)
    }

    pub(super) fn sync(&self) -> Result<(), PkiError> {
        File::open(&self.path)
            .and_then(|d| d.sync_all())
            .map_err(|source| PkiError::io(&self.path, source))
    }
}
