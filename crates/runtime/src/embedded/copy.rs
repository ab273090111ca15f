//! A container's root as a copy of its image's layers: where overlayfs can't be used.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Copies layers one over the other, lowest first. Blocking, and slow for large images.
pub(super) fn copy_layers(layers: &[std::path::PathBuf], target: &Path) -> io::Result<()> {
    for layer in layers {
        copy_directory(layer, target)?;
    }
    Ok(())
}

/// Copies what is in a directory over another one, with the attributes of both.
pub(super) fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    let entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    if entries.iter().any(|entry| entry.file_name() == OPAQUE) {
        for old in fs::read_dir(to)? {
            remove(&old?.path())?;
        }
    }
    for entry in entries {
        let name = entry.file_name();
        let target = to.join(&name);
        match name.to_string_lossy().strip_prefix(WHITEOUT) {
            Some(_) if name == OPAQUE => {}
            Some(deleted) => remove(&to.join(deleted))?,
            None => copy_entry(&entry.path(), &target)?,
        }
    }
    copy_attributes(from, to)
}

fn copy_entry(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    let kind = metadata.file_type();
    let old = fs::symlink_metadata(to).ok();
    if kind.is_char_device() && metadata.rdev() == 0 {
        return remove(to);
    }
    if kind.is_dir() {
        match old {
            Some(old) if old.is_dir() => {}
            Some(_) => {
                remove(to)?;
                fs::create_dir(to)?;
            }
            None => fs::create_dir(to)?,
        }
        return copy_directory(from, to);
    }
    if old.is_some() {
        remove(to)?;
    }
    if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
        return lchown(to, Some(metadata.uid()), Some(metadata.gid()));
    }
    if kind.is_file() {
        fs::copy(from, to)?;
    } else {
        let flags = SFlag::from_bits_truncate(metadata.mode()) & SFlag::S_IFMT;
        mknod(to, flags, Mode::from_bits_truncate(metadata.mode()), metadata.rdev())?;
    }
    copy_attributes(from, to)
}

/// Owners first: changing them takes set-user bits away.
fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(metadata.mode() & 0o7777))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_cover_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (low, high, target) = (
            dir.path().join("low"),
            dir.path().join("high"),
            dir.path().join("target"),
        );
        for (path, text) in [
            ("low/a/one", "1"),
            ("low/a/two", "2"),
            ("low/b/old", "old"),
            ("low/c", "file"),
            ("high/a/.wh.one", ""),
            ("high/a/two", "22"),
            ("high/b/.wh..wh..opq", ""),
            ("high/b/new", "new"),
            ("high/c/now-a-directory", "x"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::set_permissions(high.join("a/two"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::create_dir(&target).unwrap();
        copy_layers(&[low, high], &target).unwrap();
        let mut found: Vec<String> = vec![];
        for top in ["a", "b", "c"] {
            let names = fs::read_dir(target.join(top)).unwrap().map(|e| e.unwrap().file_name());
            found.extend(names.map(|n| format!("{top}/{}", n.to_string_lossy())));
        }
        found.sort();
        assert_eq!(found, ["a/two", "b/new", "c/now-a-directory"]);
        assert_eq!(fs::read_to_string(target.join("a/two")).unwrap(), "22");
        assert_eq!(fs::metadata(target.join("a/two")).unwrap().mode() & 0o7777, 0o4755);
    }
}
