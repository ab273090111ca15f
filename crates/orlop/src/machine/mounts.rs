//! Mounts below the data directory: volumes of pods.

use orlop_kubelet::volumes::removal;

use super::{Purge, Removal};
use crate::output::counted;

pub(super) const REMOVAL: Removal = Removal {
    what: "mounts",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    match removal::unmount_below(&purge.data_dir) {
        Ok(points) if points.is_empty() => {}
        Ok(points) => {
            let text = format!("{} below {}", counted(points.len(), "mount"), purge.data_dir.display());
            purge.removed(text);
        }
        Err(error) => purge.failed("mounts", error),
    }
}
