//! Files of the state directory: each is there as a whole or not at all, whenever the process ends.

use std::io;
use std::path::{Path, PathBuf};

use super::error::{Result, state};

/// What an unfinished file's name begins with.
const UNFINISHED: &str = ".new-";

pub(super) fn make_directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(state("create", path))
}

/// Names and contents of all files in a directory. What an earlier process left unfinished is removed.
pub(super) fn read_all(directory: &Path) -> Result<Vec<(String, String)>> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).map_err(state("read", directory))? {
        let path = entry.map_err(state("read", directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(UNFINISHED) {
            remove(&path)?;
            continue;
        }
        let content = std::fs::read(&path).map_err(state("read", &path))?;
        found.push((name, String::from_utf8_lossy(&content).into_owned()));
    }
    Ok(found)
}

/// Fails if there is a file of that name.
pub(super) fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = unfinished(path);
    std::fs::write(&unfinished, content)?;
    let linked = std::fs::hard_link(&unfinished, path);
    std::fs::remove_file(&unfinished)?;
    linked
}

/// Puts the content in the place of what is there.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let unfinished = unfinished(path);
    let written = std::fs::write(&unfinished, content).and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(state("write", path))
}

/// That it is gone is fine.
pub(super) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.map_err(state("remove", path)),
    }
}

/// Beside it: a file can't be renamed or linked across file systems. With the process id, since an earlier process of the
/// same node may not have ended yet.
fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{UNFINISHED}{}-{name}", std::process::id()))
}
