//! The data directory itself, last: it says what there is to remove.

use std::path::Path;

use orlop_kubelet::volumes::removal;

use super::{Purge, Removal};
use crate::data_dir::{self, ENTRIES};

pub(super) const REMOVAL: Removal = Removal {
    what: "the data directory",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    if !purge.problems.is_empty() && !purge.force {
        let path = purge.data_dir.display().to_string();
        return purge.failed(&path, "kept, since it says what is left; --force removes it anyway");
    }
    let path = purge.data_dir.clone();
    let left = match (purge.machine.made_data_dir, removal::is_mount_point(&path)) {
        (true, false) => removal::remove_tree(&path).map(|()| vec![]),
        _ => remove_entries(&path),
    };
    match left {
        Ok(left) if left.is_empty() => purge.removed(path.display().to_string()),
        Ok(left) => purge.removed(format!(
            "the cluster's files in {}; not made by a cluster, and left: {}",
            path.display(),
            left.join(", ")
        )),
        Err(error) => purge.failed(&path.display().to_string(), error),
    }
}

/// What a cluster keeps here, and the directory if that was all; else what else there is. `machine.json` last, so that a
/// purge that is cut off can be repeated.
fn remove_entries(path: &Path) -> std::io::Result<Vec<String>> {
    let machine_last = ENTRIES.iter().filter(|entry| **entry != data_dir::MACHINE);
    for entry in machine_last.chain([&data_dir::MACHINE]) {
        let entry = path.join(entry);
        match std::fs::symlink_metadata(&entry) {
            Err(_) => {}
            Ok(found) if found.is_dir() => removal::remove_tree(&entry)?,
            Ok(_) => std::fs::remove_file(&entry)?,
        }
    }
    let entries = std::fs::read_dir(path)?.flatten();
    let left: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    if left.is_empty() && !removal::is_mount_point(path) {
        std::fs::remove_dir(path)?;
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::Machine;

    async fn purged(path: &Path) -> Purge {
        let mut purge = Purge::new(path, Duration::ZERO, false).unwrap();
        for removal in crate::machine::ALL {
            (removal.run)(&mut purge).await;
        }
        purge
    }

    #[tokio::test]
    async fn a_directory_that_others_use_too_loses_only_what_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["store/lock", "pki/ca.crt", "kubelet/pods/u1/x", "images/a.tar"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        Machine::record(dir.path(), Machine::default()).unwrap();
        let purge = purged(dir.path()).await;
        assert!(purge.removed[0].ends_with("left: images"), "{:?}", purge.removed);
        assert!(dir.path().join("images/a.tar").exists() && !dir.path().join("store").exists());
    }

    #[tokio::test]
    async fn a_directory_of_our_own_goes_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::create_dir_all(path.join("something/new")).unwrap();
        let made = Machine {
            made_data_dir: true,
            ..Machine::default()
        };
        Machine::record(&path, made).unwrap();
        let purge = purged(&path).await;
        assert_eq!(
            (purge.problems.len(), path.exists()),
            (0, false),
            "{:?}",
            purge.problems
        );
    }

    #[tokio::test]
    async fn what_could_not_be_removed_stays_known() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("kubelet/pods/u1")).unwrap();
        let node = crate::machine::NodeTraces {
            runtime: "unix:///nobody/there.sock".into(),
            ..Default::default()
        };
        let machine = Machine {
            made_data_dir: true,
            nodes: vec![node],
            ..Machine::default()
        };
        Machine::record(dir.path(), machine).unwrap();
        let purge = purged(dir.path()).await;
        assert_eq!(purge.problems.len(), 2, "{:?}", purge.problems);
        assert!(dir.path().join("machine.json").exists());
    }
}
