//! How much the volumes of a pod take up.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use rustc_hash::FxHashSet;

/// A volume's size, for eviction (sizeLimit) and statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// The name in the pod.
    pub volume: String,
    /// The directory of its kind: `kubernetes.io~empty-dir`.
    pub plugin: String,
    pub used_bytes: u64,
    pub inodes_used: u64,
    /// Of the file system it is on.
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What is in a directory, as far as its file system goes: what is mounted further down belongs to others.
pub(super) fn of(path: &Path) -> std::io::Result<VolumeUse> {
    let metadata = fs::symlink_metadata(path)?;
    let counted = count(path, metadata);
    Ok(VolumeUse {
        used_bytes: counted.bytes,
        inodes_used: counted.inodes,
        ..of_file_system(path)?
    })
}

/// What the file system at a path says of itself.
pub(super) fn of_file_system(path: &Path) -> std::io::Result<VolumeUse> {
    let room = statvfs(path)?;
    let unit = room.fragment_size();
    Ok(VolumeUse {
        used_bytes: room.blocks().saturating_sub(room.blocks_free()) * unit,
        inodes_used: room.files().saturating_sub(room.files_free()),
        capacity_bytes: room.blocks() * unit,
        available_bytes: room.blocks_available() * unit,
        inodes: room.files(),
        inodes_free: room.files_free(),
        ..VolumeUse::default()
    })
}

#[derive(Default)]
struct Counted {
    bytes: u64,
    inodes: u64,
}

/// Files come and go meanwhile: those that can't be looked at count for nothing.
fn count(root: &Path, metadata: Metadata) -> Counted {
    let device = metadata.dev();
    let mut counted = Counted::default();
    let mut linked = FxHashSet::default();
    // Not by calling itself: how deep the tree is, is up to the pod.
    let mut waiting = vec![(root.to_path_buf(), metadata)];
    while let Some((path, metadata)) = waiting.pop() {
        let is_again = metadata.nlink() > 1 && !metadata.is_dir() && !linked.insert(metadata.ino());
        if metadata.dev() != device || is_again {
            continue;
        }
        counted.bytes += metadata.blocks() * 512;
        counted.inodes += 1;
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            waiting.extend(entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))));
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_once_and_links_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("v");
        fs::create_dir_all(root.join("d")).unwrap();
        let empty = of(&root).unwrap();
        assert_eq!(empty.inodes_used, 2);
        fs::write(root.join("d/f"), vec![1; 100_000]).unwrap();
        fs::hard_link(root.join("d/f"), root.join("again")).unwrap();
        std::os::unix::fs::symlink("/", root.join("link")).unwrap();
        let full = of(&root).unwrap();
        assert_eq!(full.inodes_used, 4);
        let grown = full.used_bytes - empty.used_bytes;
        assert!((100_000..150_000).contains(&grown), "{grown}");
        assert!(full.capacity_bytes >= full.available_bytes && full.available_bytes > 0);
        assert!(of(&root.join("none")).is_err());
    }
}
