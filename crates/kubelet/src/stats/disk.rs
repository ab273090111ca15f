//! Disk usage of pods: logs, writable layers, volumes. Only directories with few files are walked.
// Upstream: pkg/kubelet/stats/{host_stats_provider,helper}.go (v1.36)

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::host;
use super::summary::{Fs, PodRef, PodStats, Summary};
use super::volumes::PodVolumes;

/// Where pods' files are.
pub struct Places {
    /// The kubelet's own directory; its file system is what pods' local storage is counted against.
    pub root_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
}

impl Places {
    fn logs(&self, pod: &PodRef) -> PathBuf {
        let PodRef { namespace, name, uid } = pod;
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }

    fn hosts_file(&self, pod: &PodRef) -> PathBuf {
        self.root_dir.join("pods").join(&pod.uid).join("etc-hosts")
    }
}

/// Logs of the containers, volumes, and the sum of all local storage. `root` is the node's file system.
pub fn add_storage(pod: &mut PodStats, volumes: PodVolumes, places: &Places, root: &Fs) {
    let logs = places.logs(&pod.pod_ref);
    for container in &mut pod.containers {
        container.logs = files_in(&logs.join(&container.name)).map(|used| on(root, used));
    }
    let own_logs = files_in(&logs).map(|used| on(root, used));
    let hosts = fs::symlink_metadata(places.hosts_file(&pod.pod_ref)).ok();
    let hosts = hosts.map(|file| on(root, Used::of(&[file])));
    let containers = pod.containers.iter();
    let parts = containers
        .flat_map(|c| [&c.rootfs, &c.logs])
        .flatten()
        .chain(volumes.ephemeral.iter().map(|volume| &volume.fs))
        .chain(&own_logs)
        .chain(&hosts);
    pod.ephemeral_storage = Some(sum(root, parts));
    pod.volumes = volumes.ephemeral;
    pod.volumes.extend(volumes.others);
}

/// Where the writable layers are: how large that file system is, and on what.
pub fn add_layers(summary: &mut Summary) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut known: HashMap<String, Option<Fs>> = HashMap::new();
    let containers = summary.pods.iter_mut().flat_map(|pod| &mut pod.containers);
    for container in containers.filter(|c| !c.layer_mount.is_empty()) {
        let look = || {
            let path = Path::new(&container.layer_mount);
            let device = host::device(&mounts, path).unwrap_or_default().to_string();
            host::file_system(path, "").map(|fs| Fs { device, ..fs })
        };
        let found = known.entry(container.layer_mount.clone()).or_insert_with(look);
        if let (Some(layer), Some(found)) = (&mut container.rootfs, found) {
            *layer = Fs {
                time: layer.time.clone(),
                used_bytes: layer.used_bytes,
                inodes_used: layer.inodes_used,
                ..found.clone()
            };
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Used {
    bytes: u64,
    inodes: u64,
}

impl Used {
    fn of(files: &[Metadata]) -> Used {
        Used {
            bytes: files.iter().map(|file| file.blocks() * 512).sum(),
            inodes: files.len() as u64,
        }
    }
}

/// The files of a directory, those of directories in it left out; none where there is no such directory.
fn files_in(folder: &Path) -> Option<Used> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    // What goes away meanwhile counts for nothing.
    let files = entries.filter_map(|entry| entry.metadata().ok());
    Some(Used::of(&files.filter(|file| !file.is_dir()).collect::<Vec<_>>()))
}

fn on(root: &Fs, used: Used) -> Fs {
    Fs {
        used_bytes: Some(used.bytes),
        inodes_used: Some(used.inodes),
        ..root.clone()
    }
}

/// What the parts use together, as a part of the node's file system.
fn sum<'a>(root: &Fs, parts: impl Iterator<Item = &'a Fs>) -> Fs {
    let add = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (one, other) => one.or(other),
    };
    let nothing = Fs {
        used_bytes: None,
        inodes_used: None,
        ..root.clone()
    };
    parts.fold(nothing, |sum, part| Fs {
        time: sum.time.max(part.time.clone()),
        used_bytes: add(sum.used_bytes, part.used_bytes),
        inodes_used: add(sum.inodes_used, part.inodes_used),
        ..sum
    })
}

#[cfg(test)]
mod tests {
    use super::super::summary::{ContainerStats, VolumeStats};
    use super::*;

    #[test]
    fn all_that_is_a_pods_own() {
        let temp = tempfile::tempdir().unwrap();
        let places = Places {
            root_dir: temp.path().join("root"),
            pod_logs_dir: temp.path().join("logs"),
        };
        for (file, size) in [
            ("logs/d_p_u/c/0.log", 5000),
            ("logs/d_p_u/c/1.log", 1),
            ("logs/d_p_u/c/deeper/x", 1),
            ("logs/d_p_u/own.log", 1),
            ("root/pods/u/etc-hosts", 1),
        ] {
            let path = temp.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![1; size]).unwrap();
        }
        let fs = |used: u64, inodes: u64| Fs {
            used_bytes: Some(used),
            inodes_used: Some(inodes),
            ..Fs::default()
        };
        let named = |name: &str| ContainerStats {
            name: name.into(),
            rootfs: Some(fs(1 << 20, 10)),
            ..ContainerStats::default()
        };
        let mut pod = PodStats {
            pod_ref: PodRef {
                name: "p".into(),
                namespace: "d".into(),
                uid: "u".into(),
            },
            containers: vec![named("c"), named("without-logs")],
            ..PodStats::default()
        };
        let volume = |name: &str| VolumeStats {
            fs: fs(1 << 30, 100),
            name: name.into(),
            pvc_ref: None,
        };
        let volumes = PodVolumes {
            ephemeral: vec![volume("e")],
            others: vec![volume("data")],
        };
        let root = Fs {
            time: "t".into(),
            capacity_bytes: Some(1 << 40),
            used_bytes: Some(1 << 39),
            ..Fs::default()
        };
        add_storage(&mut pod, volumes, &places, &root);
        let logs = pod.containers[0].logs.as_ref().unwrap();
        assert_eq!((logs.inodes_used, logs.capacity_bytes), (Some(2), Some(1 << 40)));
        assert!((5001..40_000).contains(&logs.used_bytes.unwrap()), "{logs:?}");
        assert_eq!(pod.containers[1].logs, None);
        let all = pod.ephemeral_storage.unwrap();
        // Layers, the volume on disk, two logs of the container, one of the pod, and its hosts file.
        assert_eq!(all.inodes_used, Some(20 + 100 + 2 + 1 + 1));
        let layers_and_volume = (2 << 20) + (1 << 30);
        let rest = all.used_bytes.unwrap() - layers_and_volume;
        assert!((5003..60_000).contains(&rest), "{rest}");
        assert_eq!((all.capacity_bytes, all.time.as_str()), (Some(1 << 40), "t"));
        let names: Vec<&str> = pod.volumes.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["e", "data"]);
    }

    #[test]
    fn layers_are_on_a_file_system() {
        let mut summary = Summary {
            pods: vec![PodStats {
                containers: vec![ContainerStats {
                    rootfs: Some(Fs {
                        used_bytes: Some(7),
                        ..Fs::default()
                    }),
                    layer_mount: "/".into(),
                    ..ContainerStats::default()
                }],
                ..PodStats::default()
            }],
            ..Summary::default()
        };
        add_layers(&mut summary);
        let layer = summary.pods[0].containers[0].rootfs.as_ref().unwrap();
        assert_eq!(layer.used_bytes, Some(7));
        assert!(layer.capacity_bytes > Some(0) && layer.inodes_used.is_none());
    }
}
