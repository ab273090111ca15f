//! `/var/log/containers`: links to container logs under names that log collectors read the pod from.
//!
//! Upstream: pkg/kubelet/kuberuntime/legacy.go (v1.36), which still makes them, when a container starts. Here they are
//! made when logs are looked after, some seconds later.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const MOST_NAME: usize = 255;
const SUFFIX: &str = ".log";

/// `<directory>/<pod>_<namespace>_<container>-<id>.log`
pub fn link_path(folder: &Path, namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    name.truncate(name.floor_char_boundary(MOST_NAME - SUFFIX.len()));
    folder.join(name + SUFFIX)
}

/// Makes the link if the log is there. Doing it again is fine.
pub fn make(link: &Path, log: &Path) -> io::Result<()> {
    if !log.exists() {
        return Ok(());
    }
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    match std::os::unix::fs::symlink(log, link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Links whose log is gone, with the container's id if the name contains it. While a log is rotated there is none for a
/// moment: the container has to be dead for its link to be.
pub fn dangling(folder: &Path) -> Vec<(PathBuf, Option<String>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    links
        .map(|entry| entry.path())
        .filter(|path| matches!(fs::metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound))
        .map(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let id = name.strip_suffix(SUFFIX).and_then(|name| name.rsplit_once('-'));
            let id = id.map(|(_, id)| id.to_string()).filter(|id| id.len() >= 6);
            (path, id)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_their_logs() {
        let folder = tempfile::tempdir().unwrap();
        let (links, log) = (folder.path().join("containers"), folder.path().join("0.log"));
        let link = link_path(&links, "n", "p", "c", "abcdef0123");
        assert!(link.ends_with("containers/p_n_c-abcdef0123.log"));
        make(&link, &log).unwrap();
        assert!(!link.exists(), "no log, no link");
        fs::write(&log, "x").unwrap();
        make(&link, &log).unwrap();
        make(&link, &log).unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"x");
        assert!(dangling(&links).is_empty());
        fs::remove_file(&log).unwrap();
        assert_eq!(dangling(&links), [(link, Some("abcdef0123".to_string()))]);
        let long = link_path(&links, "n", &"p".repeat(300), "c", "id");
        assert_eq!(long.file_name().unwrap().len(), MOST_NAME);
    }
}
