//! The files that the kubelet writes for a pod's containers: hosts file, termination log, log directories.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use orlop_api::types::core::{Container, Pod};

use super::{NodeFacts, SpecError, hosts_file, is_host_network, pod_log_dir, uid};

/// Makes the directories of a pod (its files and its logs) and of its containers' logs.
pub fn make_dirs(pod: &Pod, facts: &NodeFacts) -> io::Result<()> {
    let own = facts.pod_dir(uid(pod));
    for dir in [own.clone(), own.join("volumes"), own.join("plugins")] {
        make_dir(&dir, 0o750)?;
    }
    make_dir(&pod_log_dir(pod, facts), 0o755)
}

/// Makes the directory of a container's logs.
pub fn make_log_dir(pod: &Pod, container: &str, facts: &NodeFacts) -> io::Result<()> {
    make_dir(&pod_log_dir(pod, facts).join(container), 0o755)
}

fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(mode).create(dir)
}

/// Writes the hosts file of a pod, as [`super::container_config`] mounts it. It is written in place: containers that run
/// have this very file mounted.
pub fn write_hosts(pod: &Pod, facts: &NodeFacts, pod_ips: &[String]) -> Result<(), SpecError> {
    let path = facts.hosts_path(uid(pod));
    let host_file = match is_host_network(pod) {
        true => fs::read_to_string("/etc/hosts").map_err(|e| SpecError(format!("open /etc/hosts: {e}")))?,
        false => String::new(),
    };
    let text = hosts_file(pod, facts, pod_ips, &host_file)?;
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let write = || {
        make_dir(&facts.pod_dir(uid(pod)), 0o750)?;
        fs::write(&path, &text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))
    };
    write().map_err(|e| SpecError(format!("open {}: {e}", path.display())))
}

/// Makes an empty file for a container's last words; any user may write it. `None` where the container wants none.
/// Each start has a file of its own, by `tag`: the one before may still be read.
pub fn termination_log(pod: &Pod, container: &Container, facts: &NodeFacts, tag: &str) -> io::Result<Option<PathBuf>> {
    if container
        .termination_message_path
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        return Ok(None);
    }
    let dir = facts.container_dir(uid(pod), &container.name);
    make_dir(&dir, 0o750)?;
    let path = dir.join(tag);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o666)
        .open(&path)?;
    // The mode above goes through the umask.
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::json;

    fn facts(dir: &Path) -> NodeFacts {
        NodeFacts {
            root_dir: dir.join("root"),
            pod_logs_dir: dir.join("logs"),
            ..NodeFacts::default()
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn folders_are_made_once_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, facts) = (testing::pod(json!({})), facts(dir.path()));
        for _ in 0..2 {
            make_dirs(&pod, &facts).unwrap();
            make_log_dir(&pod, "c", &facts).unwrap();
        }
        assert!(dir.path().join("logs/default_web_u-1/c").is_dir());
        assert!(dir.path().join("root/pods/u-1/volumes").is_dir());
        assert_eq!(mode(&dir.path().join("root/pods/u-1")) & 0o027, 0);
    }

    #[test]
    fn the_hosts_file_is_rewritten_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, facts) = (testing::pod(json!({})), facts(dir.path()));
        let path = facts.hosts_path("u-1");
        write_hosts(&pod, &facts, &["10.0.0.1".into()]).unwrap();
        assert_eq!(mode(&path), 0o644);
        let inode = |p: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(p).unwrap());
        let before = inode(&path);
        write_hosts(&pod, &facts, &["10.0.0.2".into()]).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("10.0.0.2\tweb\n"));
        assert_eq!(inode(&path), before);
        let host = testing::pod(json!({"hostNetwork": true}));
        write_hosts(&host, &facts, &[]).unwrap();
        assert!(
            fs::read_to_string(&path)
                .unwrap()
                .starts_with("# Kubernetes-managed hosts file (host network).\n")
        );
    }

    #[test]
    fn termination_logs_are_empty_and_open_to_all() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, facts) = (testing::pod(json!({})), facts(dir.path()));
        let container = testing::container(json!({"terminationMessagePath": "/dev/termination-log"}));
        let path = termination_log(&pod, &container, &facts, "0").unwrap().unwrap();
        assert_eq!(path, dir.path().join("root/pods/u-1/containers/c/0"));
        assert_eq!((mode(&path), fs::metadata(&path).unwrap().len()), (0o666, 0));
        fs::write(&path, "old").unwrap();
        termination_log(&pod, &container, &facts, "0").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(
            termination_log(&pod, &testing::container(json!({})), &facts, "0").unwrap(),
            None
        );
    }
}
