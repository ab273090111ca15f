//! Taking away all that kubelets left below a directory, when the cluster itself goes.

use std::io;
use std::path::{Path, PathBuf};

use super::mount_table;

/// Unmounts everything below a directory, the deepest first, and says what it was. A mount of the directory itself is
/// somebody else's and stays.
pub fn unmount_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = match directory.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        found => found?,
    };
    let mut points = mount_table::mounts_below(&directory).map_err(io::Error::other)?;
    points.retain(|point| *point != directory);
    for point in &points {
        mount_table::unmount(point).map_err(io::Error::other)?;
    }
    Ok(points)
}

/// Removes a directory and all in it, however deep. Refuses where anything is mounted in it.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    mount_table::remove_tree(directory).map_err(io::Error::other)
}

/// Whether something is mounted at the directory itself.
pub fn is_mount_point(directory: &Path) -> bool {
    mount_table::is_mount_point(directory).unwrap_or(true)
}
