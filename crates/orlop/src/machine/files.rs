//! Files outside of the data directory: the configuration that the kubelet shows, logs of pods, directories, and the context
//! in kubeconfigs.

use std::io::ErrorKind;
use std::path::Path;

use orlop_kubelet::config::effective::{self, Owner};

use super::{NodeTraces, Purge, Removal};
use crate::output::counted;

pub(super) const REMOVAL: Removal = Removal {
    what: "files",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    for node in purge.machine.nodes.clone() {
        remove_config(purge, &node.kubelet_config);
        remove_pod_logs(purge, &node);
        // The innermost first, and only what nobody has put anything into.
        for directory in node.made_directories.iter().rev() {
            if !directory.starts_with(&purge.data_dir) && std::fs::remove_dir(directory).is_ok() {
                purge.removed(directory.display().to_string());
            }
        }
    }
    for target in purge.machine.kubeconfigs.clone() {
        match target.unmerge(&purge.data_dir) {
            Ok(true) => purge.removed(format!("context in {}", target.path.display())),
            Ok(false) => {}
            Err(error) => purge.failed("context", format!("{:#}", anyhow::Error::new(error))),
        }
    }
}

/// An edited one is somebody's.
fn remove_config(purge: &mut Purge, path: &Path) {
    if path.starts_with(&purge.data_dir) || effective::owner(path) != Owner::Ours {
        return;
    }
    match std::fs::remove_file(path) {
        Ok(()) => purge.removed(path.display().to_string()),
        Err(error) => purge.failed(&path.display().to_string(), error),
    }
}

/// Directories `NAMESPACE_NAME_UID`.
fn remove_pod_logs(purge: &mut Purge, node: &NodeTraces) {
    let mut removed = 0;
    for entry in std::fs::read_dir(&node.pod_logs_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = name
            .rsplit_once('_')
            .is_some_and(|(_, uid)| purge.pod_uids.contains(uid));
        if !is_ours {
            continue;
        }
        match std::fs::remove_dir_all(entry.path()) {
            Ok(()) => removed += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => purge.failed(&entry.path().display().to_string(), error),
        }
    }
    if removed > 0 {
        purge.removed(format!(
            "logs of {} in {}",
            counted(removed, "pod"),
            node.pod_logs_dir.display()
        ));
    }
}
