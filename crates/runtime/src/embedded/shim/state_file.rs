//! What a container has come to, on disk: written before anybody is told.

use std::io;
use std::path::Path;

use crate::embedded::protocol::ContainerStateFile;

pub(crate) const NAME: &str = "state.json";

/// Replaces the file at once, so that a reader finds the old or the new one whole. It is not forced to the disk: it has
/// to outlive this process and the runtime, and after a loss of power no container runs.
pub(crate) fn write(dir: &Path, state: &ContainerStateFile) -> io::Result<()> {
    let new = dir.join("state.json.new");
    std::fs::write(&new, serde_json::to_vec(state)?)?;
    std::fs::rename(new, dir.join(NAME))
}

/// `None`: the container was never started.
pub(crate) fn read(dir: &Path) -> io::Result<Option<ContainerStateFile>> {
    match std::fs::read(dir.join(NAME)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
