//! Which mounts a container gets. Pure but for subPaths, which must be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use orlop_api::types::core::{Container, VolumeMount};
use orlop_runtime::cri::messages::{Device, ImageSpec, KeyValue, Mount, MountPropagation};

use super::act::Ready;
use super::error::{MountError, VolumeError};
use super::expand::expand;
use super::paths;
use super::sub_path;

/// What a mount of a container comes to, its subPath not looked up yet.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub mount: Mount,
    pub sub_path: Option<SubPath>,
}

#[derive(Debug)]
pub(super) struct SubPath {
    /// The volume's own directory.
    pub volume: PathBuf,
    pub path: String,
    /// Where to mount it.
    pub target: PathBuf,
    /// The volume's name in the pod.
    pub name: String,
}

/// What mounts are decided with.
pub(super) struct Given<'a> {
    pub ready: &'a BTreeMap<String, Ready>,
    /// Of volumes that are images.
    pub images: &'a BTreeMap<String, ImageSpec>,
    /// For subPathExpr.
    pub env: &'a [KeyValue],
    pub pod_directory: &'a Path,
    /// Whether the runtime can make mounts read-only all the way down.
    pub recursive_read_only: bool,
}

/// Decides all mounts of a container.
pub(super) fn wanted(container: &Container, given: &Given<'_>) -> Result<Vec<MountPlan>, VolumeError> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| {
            let failed = |reason: MountError| VolumeError::one(&mount.name, reason.to_string());
            let volume = given.ready.get(&mount.name).filter(|volume| !volume.is_device);
            let volume = volume.ok_or_else(|| {
                failed(MountError::Invalid(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    mount.name, container.name
                )))
            })?;
            let path = sub_path_of(mount, given.env).map_err(failed)?;
            if !paths::is_file_name(&container.name) {
                return Err(failed(MountError::Invalid(format!(
                    "container name {:?} is not a valid directory name",
                    container.name
                ))));
            }
            if let Some(image) = given.images.get(&mount.name) {
                let mount = message(mount, volume, given.recursive_read_only).map_err(failed)?;
                let mount = Mount {
                    image: Some(image.clone()),
                    image_sub_path: path.unwrap_or_default(),
                    ..mount
                };
                return Ok(MountPlan { mount, sub_path: None });
            }
            let sub_path = path.filter(|path| !path.is_empty()).map(|path| SubPath {
                volume: volume.host_path.clone(),
                path,
                target: paths::sub_path(given.pod_directory, &volume.directory_name, &container.name, index),
                name: mount.name.clone(),
            });
            let mount = message(mount, volume, given.recursive_read_only).map_err(failed)?;
            Ok(MountPlan { mount, sub_path })
        })
        .collect()
}

/// The devices of a container.
pub(super) fn devices(container: &Container, ready: &BTreeMap<String, Ready>) -> Result<Vec<Device>, VolumeError> {
    let devices = container.volume_devices.iter().flatten().map(|device| {
        let failed = |reason: String| VolumeError::one(&device.name, reason);
        let path = &device.device_path;
        if !path.starts_with('/') {
            return Err(failed(format!("error DevicePath `{path}` must be an absolute path")));
        }
        let volume = ready.get(&device.name).filter(|volume| volume.is_device);
        let volume = volume.ok_or_else(|| {
            let (name, container) = (&device.name, &container.name);
            failed(format!(
                "cannot find volume {name:?} to pass into container {container:?}"
            ))
        })?;
        Ok(Device {
            container_path: path.clone(),
            host_path: volume.host_path.to_string_lossy().into_owned(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_string(),
        })
    });
    devices.collect()
}

fn message(mount: &VolumeMount, volume: &Ready, recursive_read_only: bool) -> Result<Mount, MountError> {
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    let host_path = volume
        .host_path
        .to_str()
        .ok_or_else(|| MountError::invalid("the path of the volume is not valid UTF-8"))?;
    Ok(Mount {
        container_path,
        host_path: host_path.to_string(),
        readonly: mount.read_only.unwrap_or(false) || volume.read_only,
        selinux_relabel: volume.managed,
        propagation: propagation(mount)? as i32,
        recursive_read_only: is_recursive(mount, recursive_read_only)
            .map_err(|e| MountError::during("failed to resolve recursive read-only mode", e))?,
        ..Mount::default()
    })
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, MountError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::Private),
        Some("HostToContainer") => Ok(MountPropagation::HostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::Bidirectional),
        Some(other) => Err(MountError::Invalid(format!("invalid MountPropagation mode: {other:?}"))),
    }
}

fn is_recursive(mount: &VolumeMount, is_supported: bool) -> Result<bool, MountError> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let requested = format!(
        "volume {:?} requested recursive read-only mode, but it is not",
        mount.name
    );
    if mount.read_only != Some(true) {
        return Err(MountError::Invalid(format!("{requested} read-only")));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(MountError::Invalid(format!(
            "{requested} compatible with propagation {propagation:?}"
        )));
    }
    match mode {
        "IfPossible" => Ok(is_supported),
        "Enabled" if is_supported => Ok(true),
        "Enabled" => Err(MountError::Invalid(format!("{requested} supported by the runtime"))),
        mode => Err(MountError::Invalid(format!(
            "unknown recursive read-only mode {mode:?}"
        ))),
    }
}

fn sub_path_of(mount: &VolumeMount, env: &[KeyValue]) -> Result<Option<String>, MountError> {
    let path = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(expression) => Some(expanded(expression, env)?),
        None => mount.sub_path.clone(),
    };
    if let Some(path) = &path {
        sub_path::check(path)?;
    }
    Ok(path)
}

fn expanded(expression: &str, env: &[KeyValue]) -> Result<String, MountError> {
    let mut missing = BTreeSet::new();
    let path = expand(expression, |name| {
        // The last of a name holds.
        let found = env.iter().rev().find(|variable| variable.key == name);
        let value = found
            .map(|v| String::from_utf8_lossy(&v.value).into_owned())
            .unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_string());
        }
        value
    });
    match missing.is_empty() {
        true => Ok(path),
        false => Err(MountError::Invalid(format!(
            "missing value for {}",
            missing.into_iter().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Opens the subPath and mounts it where only the kubelet can write. Messages don't reveal what is on the node.
pub(super) fn make_sub_path(wanted: &SubPath, container: &str, may_mount: bool) -> Result<PathBuf, VolumeError> {
    let hidden = |what: &str, reason: MountError| {
        tracing::error!(
            volume = wanted.name,
            container,
            err = %reason,
            "failed to prepare subPath"
        );
        let message = format!(
            "failed to {what} for volumeMount {:?} of container {container:?}",
            wanted.name
        );
        VolumeError::one(&wanted.name, message)
    };
    let existed = wanted.volume.join(&wanted.path).exists();
    let opened = sub_path::open(&wanted.volume, &wanted.path).map_err(|e| {
        hidden(
            if existed {
                "prepare subPath"
            } else {
                "create subPath directory"
            },
            e,
        )
    })?;
    if may_mount {
        sub_path::mount_at(&opened, &wanted.target).map_err(|e| hidden("prepare subPath", e))?;
        Ok(wanted.target.clone())
    } else {
        sub_path::place(&opened).map_err(|e| hidden("prepare subPath", e))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ready(read_only: bool) -> BTreeMap<String, Ready> {
        let ready = Ready {
            host_path: "/host/v".into(),
            read_only,
            managed: true,
            directory_name: "pv".into(),
            is_published_again: false,
            is_device: false,
            grows: false,
        };
        let device = Ready::device("/pods/u/volumeDevices/p/disk".into(), "disk", read_only);
        BTreeMap::from([
            ("d".to_string(), device),
            ("v".to_string(), ready),
            ("i".to_string(), Ready::image("i")),
        ])
    }

    fn env() -> Vec<KeyValue> {
        [("A", "1"), ("A", "2"), ("EMPTY", ""), ("UP", "..")]
            .map(|(key, value)| KeyValue {
                key: key.into(),
                value: value.into(),
            })
            .to_vec()
    }

    fn shown(mount: Value, read_only: bool, supported: bool) -> String {
        let mut full = json!({"name": "v", "mountPath": "/m"});
        full.as_object_mut().unwrap().extend(mount.as_object().unwrap().clone());
        let container: Container = orlop_api::types::from_value(json!({"name": "c", "volumeMounts": [full]})).unwrap();
        let image = ImageSpec {
            image: "sha256:1".into(),
            user_specified_image: "data:1".into(),
            ..ImageSpec::default()
        };
        let given = Given {
            ready: &ready(read_only),
            images: &BTreeMap::from([("i".to_string(), image)]),
            env: &env(),
            pod_directory: Path::new("/p"),
            recursive_read_only: supported,
        };
        match wanted(&container, &given) {
            Ok(list) => {
                let MountPlan { mount, sub_path } = &list[0];
                let sub_path = sub_path
                    .as_ref()
                    .map(|s| format!(" {} at {}", s.path, s.target.display()));
                let image = mount.image.as_ref();
                let image = image.map(|i| format!("{}={}/{}", i.user_specified_image, i.image, mount.image_sub_path));
                format!(
                    "{}{}:{} ro={} rro={} {}{}",
                    image.unwrap_or_default(),
                    mount.host_path,
                    mount.container_path,
                    mount.readonly,
                    mount.recursive_read_only,
                    mount.propagation,
                    sub_path.unwrap_or_default()
                )
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn mounts_as_containers_get_them() {
        let plain = "/host/v:/m ro=false rro=false 0";
        let cases = [
            (json!({}), false, plain.to_string()),
            (json!({"mountPath": "m"}), false, plain.into()),
            (
                json!({"readOnly": true}),
                false,
                plain.replace("ro=false rro", "ro=true rro"),
            ),
            (json!({}), true, plain.replace("ro=false rro", "ro=true rro")),
            (
                json!({"mountPropagation": "Bidirectional"}),
                false,
                plain.replace(" 0", " 2"),
            ),
            (
                json!({"mountPropagation": "HostToContainer"}),
                false,
                plain.replace(" 0", " 1"),
            ),
            (
                json!({"mountPropagation": "X"}),
                false,
                "invalid MountPropagation mode: \"X\"".into(),
            ),
            (
                json!({"subPath": "a/b"}),
                false,
                format!("{plain} a/b at /p/volume-subpaths/pv/c/0"),
            ),
            (json!({"subPath": ""}), false, plain.into()),
            (
                json!({"subPathExpr": "x$(A)"}),
                false,
                format!("{plain} x2 at /p/volume-subpaths/pv/c/0"),
            ),
            (
                json!({"subPathExpr": "$(B)$(EMPTY)"}),
                false,
                "missing value for B, EMPTY".into(),
            ),
            (
                json!({"subPathExpr": "$(UP)/x"}),
                false,
                "unable to provision SubPath `../x`: must not contain '..'".into(),
            ),
            (
                json!({"subPath": "/x"}),
                false,
                "error SubPath `/x` must not be an absolute path".into(),
            ),
            (
                json!({"name": "d"}),
                false,
                "cannot find volume \"d\" to mount into container \"c\"".into(),
            ),
            (
                json!({"name": "i"}),
                false,
                "data:1=sha256:1/:/m ro=true rro=false 0".into(),
            ),
            (
                json!({"name": "i", "subPathExpr": "a/$(A)", "readOnly": true}),
                false,
                "data:1=sha256:1/a/2:/m ro=true rro=false 0".into(),
            ),
            (
                json!({"name": "w"}),
                false,
                "cannot find volume \"w\" to mount into container \"c\"".into(),
            ),
        ];
        for (mount, read_only, expected) in cases {
            assert_eq!(shown(mount.clone(), read_only, false), expected, "{mount}");
        }
    }

    #[test]
    fn devices_as_containers_get_them() {
        let shown = |device: Value, read_only: bool| {
            let container: Container =
                orlop_api::types::from_value(json!({"name": "c", "volumeDevices": [device]})).unwrap();
            match devices(&container, &ready(read_only)) {
                Ok(list) => format!(
                    "{} {} {}",
                    list[0].host_path, list[0].container_path, list[0].permissions
                ),
                Err(error) => error.to_string(),
            }
        };
        let disk = json!({"name": "d", "devicePath": "/dev/x"});
        assert_eq!(shown(disk.clone(), false), "/pods/u/volumeDevices/p/disk /dev/x mrw");
        assert_eq!(shown(disk, true), "/pods/u/volumeDevices/p/disk /dev/x r");
        assert_eq!(
            shown(json!({"name": "v", "devicePath": "/dev/x"}), false),
            "cannot find volume \"v\" to pass into container \"c\""
        );
        assert_eq!(
            shown(json!({"name": "d", "devicePath": "x"}), false),
            "error DevicePath `x` must be an absolute path"
        );
    }

    #[test]
    fn recursive_read_only() {
        let requested = "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, \
                         but it is not";
        let is_read_only = "/host/v:/m ro=true rro=";
        let cases = [
            (
                json!({"recursiveReadOnly": "Disabled", "readOnly": true}),
                true,
                format!("{is_read_only}false 0"),
            ),
            (
                json!({"recursiveReadOnly": "IfPossible", "readOnly": true}),
                true,
                format!("{is_read_only}true 0"),
            ),
            (
                json!({"recursiveReadOnly": "IfPossible", "readOnly": true}),
                false,
                format!("{is_read_only}false 0"),
            ),
            (
                json!({"recursiveReadOnly": "Enabled", "readOnly": true}),
                true,
                format!("{is_read_only}true 0"),
            ),
            (
                json!({"recursiveReadOnly": "Enabled", "readOnly": true}),
                false,
                format!("{requested} supported by the runtime"),
            ),
            (
                json!({"recursiveReadOnly": "Enabled"}),
                true,
                format!("{requested} read-only"),
            ),
            (
                json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}),
                true,
                format!("{requested} compatible with propagation \"HostToContainer\""),
            ),
        ];
        for (mount, supported, expected) in cases {
            assert_eq!(shown(mount.clone(), false, supported), expected, "{mount}");
        }
    }
}
