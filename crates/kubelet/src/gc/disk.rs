//! Usage of a file system.

use std::io;
use std::path::Path;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The file system that holds `path`.
///
/// Differs from upstream: the capacity is what is used and what is available together, as `df` reckons its percentage.
/// Room that a file system keeps back from everybody (as on thinly backed disks) would make it look full for ever.
pub fn disk(path: &Path) -> io::Result<Disk> {
    let stat = nix::sys::statvfs::statvfs(path).map_err(io::Error::from)?;
    let unit = stat.fragment_size();
    let used = stat.blocks().saturating_sub(stat.blocks_free());
    Ok(Disk {
        capacity: used.saturating_add(stat.blocks_available()).saturating_mul(unit),
        available: stat.blocks_available().saturating_mul(unit),
        inodes: stat.files(),
        inodes_free: stat.files_free(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_root() {
        let root = disk(Path::new("/")).unwrap();
        assert!(root.capacity > 0 && root.available <= root.capacity);
        assert!(disk(Path::new("/no/such/path")).is_err());
    }
}
