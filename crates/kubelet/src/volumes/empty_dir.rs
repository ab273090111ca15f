//! emptyDir: a directory that lives as long as its pod, on disk, in memory or in huge pages.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};
use orlop_api::quantity::Quantity;
use orlop_api::types::core::{EmptyDirVolumeSource, Pod, PodSpec};
use orlop_api::types::meta::Quantity as QuantityText;

use super::downward::Allocatable;
use super::error::{MountError, io_error};
use super::host_path::make_directories;
use super::mount_table::{begins_file_system, mount_file_system};
use super::ownership::Ownership;

/// What a directory is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    /// At most so many bytes; none where the node's memory is not known.
    Memory(Option<i64>),
    /// Of pages of this size.
    HugePages(String),
}

impl Medium {
    pub(super) fn of(
        source: &EmptyDirVolumeSource,
        pod: &Pod,
        allocatable: &Allocatable,
    ) -> Result<Medium, MountError> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(Medium::Disk),
            "Memory" => {
                let limit = source.size_limit.as_ref().map(bytes).transpose()?;
                Ok(Medium::Memory(memory_size(limit, pod, allocatable)))
            }
            medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
                Ok(Medium::HugePages(page_size(medium, pod)?))
            }
            medium => Err(MountError::Invalid(format!("unknown storage medium {medium:?}"))),
        }
    }
}

fn parse(quantity: &str) -> Result<Quantity, MountError> {
    Quantity::parse(quantity).map_err(|e| MountError::Invalid(e.to_string()))
}

fn bytes(quantity: &QuantityText) -> Result<i64, MountError> {
    Ok(parse(&quantity.0)?.value())
}

/// The least of what the node has for pods, what the pod may use and what the volume says. Zero is no limit.
pub(super) fn memory_size(limit: Option<i64>, pod: &Pod, allocatable: &Allocatable) -> Option<i64> {
    let node = allocatable.get("memory").and_then(|q| bytes(q).ok());
    [node, pod_memory_limit(pod), limit]
        .into_iter()
        .flatten()
        .filter(|size| *size > 0)
        .min()
}

/// What the pod's containers may use together; none if one of them may use as much as it likes.
fn pod_memory_limit(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec
        .resources
        .as_ref()
        .and_then(|r| r.limits.as_ref())
        .and_then(|l| l.get("memory"));
    if let Some(limit) = of_pod {
        return bytes(limit).ok();
    }
    let limit = |resources: &Option<orlop_api::types::core::ResourceRequirements>| {
        let limits = resources.as_ref().and_then(|r| r.limits.as_ref());
        limits.and_then(|l| l.get("memory")).and_then(|q| bytes(q).ok())
    };
    let mut running: i64 = 0;
    for container in &spec.containers {
        running = running.saturating_add(limit(&container.resources)?);
    }
    // Sidecars run beside all that comes after them; other init containers run alone with the sidecars before them.
    let (mut sidecars, mut peak) = (0_i64, 0_i64);
    for container in spec.init_containers.iter().flatten() {
        let own = limit(&container.resources)?;
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.saturating_add(own);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars.saturating_add(own));
        }
    }
    Some(running.saturating_add(sidecars).max(peak))
}

/// The page size that the medium names, which the pod must have asked for; without a name the only one asked for.
fn page_size(medium: &str, pod: &Pod) -> Result<String, MountError> {
    let named = medium.strip_prefix("HugePages-").map(parse).transpose()?;
    let mut found: Option<Quantity> = None;
    for size in pod.spec.iter().flat_map(requested_page_sizes) {
        let size = parse(&size)?;
        match (&named, &found) {
            (Some(named), _) if *named != size => {}
            (None, Some(found)) if *found != size => {
                let message = "can't be used if container requests multiple huge page sizes";
                return Err(MountError::Invalid(format!("medium: {medium} {message}")));
            }
            _ => found = Some(size),
        }
    }
    let size = found.ok_or_else(|| {
        MountError::Invalid(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        ))
    })?;
    Ok(size.canonical())
}

fn requested_page_sizes(spec: &PodSpec) -> Vec<String> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let resources = spec
        .resources
        .iter()
        .chain(containers.filter_map(|c| c.resources.as_ref()));
    let names = resources
        .flat_map(|r| r.requests.iter().flatten())
        .map(|(name, _)| name);
    names
        .filter_map(|name| name.strip_prefix("hugepages-"))
        .map(str::to_string)
        .collect()
}

/// Creates the directory, mounts the medium, sets the fsGroup; once. `marker` records that it was done.
pub(super) fn set_up(
    directory: &Path,
    marker: &Path,
    medium: &Medium,
    ownership: &Ownership,
) -> Result<(), MountError> {
    let is_there = match medium {
        Medium::Disk => directory.is_dir(),
        Medium::Memory(_) | Medium::HugePages(_) => is_mounted(directory, medium)?,
    };
    if is_there && marker.exists() {
        return Ok(());
    }
    make_open(directory)?;
    mount_medium(directory, medium)?;
    ownership.always().apply(directory, false)?;
    mark(marker)
}

/// A directory for files that the kubelet writes: in memory, unless that can't be.
pub(super) fn set_up_for_files(directory: &Path, medium: &Medium) -> Result<(), MountError> {
    if !directory.is_dir() {
        make_open(directory)?;
    }
    mount_medium(directory, medium)
}

/// Anybody may write into it; who gets there is up to the pod.
fn make_open(directory: &Path) -> Result<(), MountError> {
    if let Some(parent) = directory.parent() {
        make_directories(parent, 0o755)?;
    }
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io_error("mkdir", directory, error)),
        _ => {}
    }
    fs::set_permissions(directory, Permissions::from_mode(0o777)).map_err(|e| io_error("chmod", directory, e))
}

pub(super) fn mark(marker: &Path) -> Result<(), MountError> {
    make_directories(marker.parent().expect("a marker is in a directory"), 0o750)?;
    fs::write(marker, "").map_err(|e| io_error("open", marker, e))
}

fn is_mounted(directory: &Path, medium: &Medium) -> Result<bool, MountError> {
    match begins_file_system(directory) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("lstat", directory, error)),
    }
    let kind = statfs(directory)
        .map_err(|e| io_error("statfs", directory, e.into()))?
        .filesystem_type();
    Ok(match medium {
        Medium::Disk => false,
        Medium::Memory(_) => kind == TMPFS_MAGIC,
        Medium::HugePages(_) => kind == HUGETLBFS_MAGIC,
    })
}

fn mount_medium(directory: &Path, medium: &Medium) -> Result<(), MountError> {
    if *medium == Medium::Disk || is_mounted(directory, medium)? {
        return Ok(());
    }
    let mounted = match medium {
        Medium::Disk => Ok(()),
        Medium::Memory(size) => {
            let size = size.map(|bytes| format!("size={bytes}")).unwrap_or_default();
            // Secrets must not get into swap; older kernels don't know how to see to it.
            let careful = if size.is_empty() {
                "noswap".to_string()
            } else {
                format!("{size},noswap")
            };
            match mount_file_system("tmpfs", directory, &careful) {
                Err(Errno::EINVAL) => mount_file_system("tmpfs", directory, &size),
                other => other,
            }
        }
        Medium::HugePages(size) => mount_file_system("hugetlbfs", directory, &format!("pagesize={size}")),
    };
    mounted.map_err(|e| io_error("mount", directory, e.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use serde_json::{Value, json};

    use super::super::mount_table::unmount_below;
    use super::*;

    fn pod(spec: Value) -> Pod {
        orlop_api::types::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    fn with_limits(limits: &[&str]) -> Value {
        let containers = limits.iter().map(|limit| match *limit {
            "" => json!({"name": "c"}),
            limit => json!({"name": "c", "resources": {"limits": {"memory": limit}}}),
        });
        json!({"containers": containers.collect::<Vec<_>>()})
    }

    #[test]
    fn memory_is_limited_by_the_least() {
        let allocatable = Allocatable::from([("memory".to_string(), QuantityText("1000".into()))]);
        let mut sidecar = with_limits(&["100"]);
        sidecar["initContainers"] = json!([
            {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"memory": "50"}}},
            {"name": "i", "resources": {"limits": {"memory": "200"}}},
        ]);
        let cases = [
            (with_limits(&[""]), None, Some(1000)),
            (with_limits(&[""]), Some(10), Some(10)),
            (with_limits(&[""]), Some(0), Some(1000)),
            (with_limits(&["100", "200"]), None, Some(300)),
            (with_limits(&["100", ""]), None, Some(1000)),
            (with_limits(&["100"]), Some(500), Some(100)),
            (with_limits(&["5000"]), Some(2000), Some(1000)),
            (sidecar, None, Some(250)),
        ];
        for (spec, limit, expected) in cases {
            assert_eq!(memory_size(limit, &pod(spec.clone()), &allocatable), expected, "{spec}");
        }
        assert_eq!(memory_size(None, &pod(with_limits(&[""])), &Allocatable::new()), None);
    }

    #[test]
    fn mediums() {
        let asks = |sizes: &[&str]| {
            let requests: serde_json::Map<String, Value> =
                sizes.iter().map(|s| (format!("hugepages-{s}"), json!("4Mi"))).collect();
            json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
        };
        let none = "hugePages storage requested, but there is no resource request for huge pages";
        let cases = [
            ("", asks(&[]), "Disk".to_string()),
            ("Memory", asks(&[]), "Memory(None)".into()),
            ("Cheese", asks(&[]), "unknown storage medium \"Cheese\"".into()),
            ("HugePages", asks(&["2Mi"]), "HugePages(\"2Mi\")".into()),
            ("HugePages", asks(&[]), format!("medium HugePages: {none}")),
            (
                "HugePages",
                asks(&["1Gi", "2Mi"]),
                "medium: HugePages can't be used if container requests multiple huge page sizes".into(),
            ),
            ("HugePages-1Gi", asks(&["1Gi", "2Mi"]), "HugePages(\"1Gi\")".into()),
            ("HugePages-1Gi", asks(&["2Mi"]), format!("medium HugePages-1Gi: {none}")),
        ];
        for (medium, spec, expected) in cases {
            let source = EmptyDirVolumeSource {
                medium: Some(medium.into()),
                size_limit: None,
            };
            let found = Medium::of(&source, &pod(spec), &Allocatable::new());
            assert_eq!(found.map_or_else(|e| e.to_string(), |m| format!("{m:?}")), expected);
        }
    }

    #[test]
    fn set_up_twice_and_after_a_kill_keeps_what_is_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        let mediums = [(Medium::Disk, true), (Medium::Memory(Some(1 << 20)), is_root)];
        for (medium, _) in mediums.iter().filter(|(_, possible)| *possible) {
            let directory = root.join(format!("a/{medium:?}"));
            let marker = root.join(format!("m/{medium:?}/ready"));
            let ownership = Ownership {
                group: is_root.then_some(4711),
                ..Ownership::default()
            };
            // A kill after the directory was made and before anything else.
            fs::create_dir_all(&directory).unwrap();
            set_up(&directory, &marker, medium, &ownership).unwrap();
            let metadata = fs::metadata(&directory).unwrap();
            assert_eq!(metadata.mode() & 0o777, 0o777);
            assert_eq!(begins_file_system(&directory).unwrap(), *medium != Medium::Disk);
            if is_root {
                assert_eq!((metadata.gid(), metadata.mode() & 0o2777), (4711, 0o2777));
            }
            fs::write(directory.join("kept"), "1").unwrap();
            fs::remove_file(&marker).unwrap();
            for _ in 0..2 {
                set_up(&directory, &marker, medium, &ownership).unwrap();
            }
            assert_eq!(fs::read(directory.join("kept")).unwrap(), b"1");
            if *medium != Medium::Disk {
                let full = fs::write(directory.join("big"), vec![0; 2 << 20]).unwrap_err();
                assert_eq!(full.raw_os_error(), Some(Errno::ENOSPC as i32));
            }
        }
        unmount_below(&root).unwrap();
    }
}
