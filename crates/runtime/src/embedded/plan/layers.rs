//! Single files of an image, looked up in its layers as overlayfs would show them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use super::users::UserFiles;

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Larger ones are no files of users.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// `/etc/passwd` and `/etc/group`. Blocking.
pub(crate) fn read_user_files(layers: &[PathBuf]) -> UserFiles {
    let read = |path| {
        let file = find(layers, Path::new(path))?;
        let size = fs::metadata(&file).ok()?.len();
        let bytes = if size > FILE_BYTES_MAX {
            None
        } else {
            fs::read(file).ok()
        };
        Some(String::from_utf8_lossy(&bytes?).into_owned())
    };
    UserFiles {
        passwd: read("/etc/passwd").unwrap_or_default(),
        group: read("/etc/group").unwrap_or_default(),
    }
}

/// Where a regular file is, links followed within the image.
fn find(layers: &[PathBuf], path: &Path) -> Option<PathBuf> {
    let mut parts: VecDeque<OsString> = parts(path);
    let mut resolved = PathBuf::new();
    let mut links = 0;
    while let Some(part) = parts.pop_front() {
        if part == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&part);
        let (place, metadata) = topmost(layers, &next)?;
        if metadata.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            let target = fs::read_link(&place).ok()?;
            if target.is_absolute() {
                resolved = PathBuf::new();
            }
            for part in self::parts(&target).into_iter().rev() {
                parts.push_front(part);
            }
        } else if parts.is_empty() {
            return metadata.is_file().then_some(place);
        } else {
            resolved = next;
        }
    }
    None
}

/// The highest layer that has a path whose directories have no links, unless a higher one deletes it.
fn topmost(layers: &[PathBuf], path: &Path) -> Option<(PathBuf, fs::Metadata)> {
    for layer in layers.iter().rev() {
        match look(layer, path) {
            Look::Found(place, metadata) => return Some((place, metadata)),
            Look::Deleted => return None,
            Look::Absent => {}
        }
    }
    None
}

enum Look {
    Found(PathBuf, fs::Metadata),
    /// Lower layers do not count.
    Deleted,
    Absent,
}

fn look(layer: &Path, path: &Path) -> Look {
    let mut place = layer.to_path_buf();
    let mut opaque = false;
    let count = path.components().count();
    for (at, part) in path.components().enumerate() {
        let marker = place.join(format!(".wh.{}", part.as_os_str().display()));
        place.push(part);
        let Ok(metadata) = fs::symlink_metadata(&place) else {
            let deleted = opaque || fs::symlink_metadata(marker).is_ok();
            return if deleted { Look::Deleted } else { Look::Absent };
        };
        // Overlayfs marks what is deleted by a device with the number 0.
        if metadata.file_type().is_char_device() && metadata.rdev() == 0 {
            return Look::Deleted;
        }
        if at + 1 == count {
            return Look::Found(place, metadata);
        }
        if !metadata.is_dir() {
            return Look::Deleted;
        }
        opaque |= is_opaque(&place);
    }
    Look::Absent
}

fn is_opaque(dir: &Path) -> bool {
    crate::embedded::sys::mounts::is_opaque(dir) || fs::symlink_metadata(dir.join(".wh..wh..opq")).is_ok()
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn layers(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let layers: Vec<PathBuf> = names.iter().map(|name| dir.path().join(name)).collect();
        for layer in &layers {
            fs::create_dir_all(layer.join("etc")).unwrap();
        }
        (dir, layers)
    }

    #[test]
    fn the_highest_layer_counts() {
        let (_dir, layers) = layers(&["low", "mid", "high"]);
        fs::write(layers[0].join("etc/passwd"), "low").unwrap();
        fs::write(layers[0].join("etc/group"), "low").unwrap();
        fs::write(layers[1].join("etc/passwd"), "mid").unwrap();
        let files = read_user_files(&layers);
        assert_eq!((files.passwd.as_str(), files.group.as_str()), ("mid", "low"));
        fs::write(layers[2].join("etc/.wh.passwd"), "").unwrap();
        fs::write(layers[1].join("etc/.wh..wh..opq"), "").unwrap();
        assert_eq!(read_user_files(&layers), UserFiles::default());
    }

    #[test]
    fn links_stay_in_the_image() {
        let (dir, layers) = layers(&["low", "high"]);
        fs::write(dir.path().join("outside"), "secret").unwrap();
        fs::create_dir_all(layers[0].join("usr/share")).unwrap();
        fs::write(layers[0].join("usr/share/passwd"), "inside").unwrap();
        symlink("../../../usr/share/passwd", layers[1].join("etc/passwd")).unwrap();
        symlink("/../outside", layers[1].join("etc/group")).unwrap();
        let files = read_user_files(&layers);
        assert_eq!((files.passwd.as_str(), files.group.as_str()), ("inside", ""));
    }
}
