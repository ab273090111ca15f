//! Where things of a pod are on disk. The layout is Kubernetes', as users and tools look into it.

use std::path::{Path, PathBuf};

/// The kinds of volumes that have a directory of their own below a pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    EmptyDir,
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
    Local,
    Csi,
}

impl Plugin {
    /// The plugin's name with its slash made harmless.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Plugin::EmptyDir => "kubernetes.io~empty-dir",
            Plugin::ConfigMap => "kubernetes.io~configmap",
            Plugin::Secret => "kubernetes.io~secret",
            Plugin::Projected => "kubernetes.io~projected",
            Plugin::DownwardApi => "kubernetes.io~downward-api",
            Plugin::Local => "kubernetes.io~local-volume",
            Plugin::Csi => "kubernetes.io~csi",
        }
    }
}

/// The kubelet's directory and what is where in it.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub root: PathBuf,
}

impl Paths {
    pub(super) fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// `None` where the uid is no name of a directory.
    pub(super) fn pod(&self, uid: &str) -> Option<PathBuf> {
        is_file_name(uid).then(|| self.pods().join(uid))
    }
}

pub(super) fn volumes(pod: &Path) -> PathBuf {
    pod.join("volumes")
}

/// The name must be a file name: see [`is_file_name`].
pub(super) fn volume(pod: &Path, plugin: Plugin, name: &str) -> PathBuf {
    debug_assert!(is_file_name(name));
    volumes(pod).join(plugin.directory()).join(name)
}

pub(super) fn devices(pod: &Path) -> PathBuf {
    pod.join("volumeDevices")
}

/// The link to a device. The name must be a file name.
pub(super) fn device(pod: &Path, plugin: Plugin, name: &str) -> PathBuf {
    debug_assert!(is_file_name(name));
    devices(pod).join(plugin.directory()).join(name)
}

/// Exists once the volume is all set up.
pub(super) fn ready_marker(pod: &Path, plugin: Plugin, name: &str) -> PathBuf {
    pod.join("plugins").join(plugin.directory()).join(name).join("ready")
}

pub(super) fn sub_paths(pod: &Path) -> PathBuf {
    pod.join("volume-subpaths")
}

/// Where the directory or file that a subPath names is mounted.
pub(super) fn sub_path(pod: &Path, volume: &str, container: &str, index: usize) -> PathBuf {
    sub_paths(pod).join(volume).join(container).join(index.to_string())
}

/// Whether a text from a pod can stand as one component of a path. Validation sees to it for pods of the API server;
/// files in the directory of static pods and what is left on disk may hold anything.
pub(super) fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= 255 && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_none() {
        let long = "x".repeat(256);
        for name in ["", ".", "..", "../x", "/etc", "a/b", "a\0b", &long] {
            assert!(!is_file_name(name), "{name:?}");
        }
        for name in ["a", "...", "..a", "ü", "a b"] {
            assert!(is_file_name(name), "{name:?}");
        }
        let paths = Paths { root: "/r".into() };
        assert_eq!(paths.pod("../.."), None);
        let pod = paths.pod("u").unwrap();
        let secret = volume(&pod, Plugin::Secret, "s");
        assert_eq!(secret, Path::new("/r/pods/u/volumes/kubernetes.io~secret/s"));
        assert_eq!(
            sub_path(&pod, "v", "c", 1),
            Path::new("/r/pods/u/volume-subpaths/v/c/1")
        );
    }
}
