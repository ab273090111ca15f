//! Which mounts a container gets. Pure but for subPaths, which must be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use orlop_runtime::cri::messages::{KeyValue, Mount, MountPropagation};

use super::act::Ready;
use super::error::VolumeError;
use super::expand::expand;
use super::paths;
use super::sub_path;

/// What a mount of a container comes to, its subPath not looked up yet.
#[derive(Debug)]
pub struct Wanted {
    pub mount: Mount,
    pub sub_path: Option<SubPath>,
}

#[derive(Debug)]
pub struct SubPath {
    /// The volume's own directory.
    pub volume: PathBuf,
    pub path: String,
    /// Where to mount it.
    pub target: PathBuf,
    /// The volume's name in the pod.
    pub name: String,
}

/// Decides all mounts of a container.
pub fn wanted(
    container: &Container,
    ready: &BTreeMap<String, Ready>,
    env: &[KeyValue],
    pod_directory: &Path,
    recursive_read_only: bool,
) -> Result<Vec<Wanted>, VolumeError> {
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| {
            let failed = |reason: String| VolumeError::one(&mount.name, reason);
            let volume = ready.get(&mount.name).ok_or_else(|| {
                failed(format!(
                    "cannot find volume {:?} to mount into container {:?}",
                    mount.name, container.name
                ))
            })?;
            let path = sub_path_of(mount, env).map_err(failed)?;
            if !paths::is_file_name(&container.name) {
                return Err(failed(format!(
                    "the container's name {:?} is not a name",
                    container.name
                )));
            }
            let sub_path = path.filter(|path| !path.is_empty()).map(|path| SubPath {
                volume: volume.host_path.clone(),
                path,
                target: paths::sub_path(pod_directory, &volume.directory_name, &container.name, index),
                name: mount.name.clone(),
            });
            let mount = message(mount, volume, recursive_read_only).map_err(failed)?;
            Ok(Wanted { mount, sub_path })
        })
        .collect()
}

fn message(mount: &VolumeMount, volume: &Ready, recursive_read_only: bool) -> Result<Mount, String> {
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    let host_path = volume.host_path.to_str().ok_or("the volume's path is not in UTF-8")?;
    Ok(Mount {
        container_path,
        host_path: host_path.to_string(),
        readonly: mount.read_only.unwrap_or(false) || volume.read_only,
        selinux_relabel: volume.managed,
        propagation: propagation(mount)? as i32,
        recursive_read_only: is_recursive(mount, recursive_read_only)
            .map_err(|e| format!("failed to resolve recursive read-only mode: {e}"))?,
        ..Mount::default()
    })
}

fn propagation(mount: &VolumeMount) -> Result<MountPropagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::Private),
        Some("HostToContainer") => Ok(MountPropagation::HostToContainer),
        Some("Bidirectional") => Ok(MountPropagation::Bidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

fn is_recursive(mount: &VolumeMount, is_supported: bool) -> Result<bool, String> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let requested = format!(
        "volume {:?} requested recursive read-only mode, but it is not",
        mount.name
    );
    if mount.read_only != Some(true) {
        return Err(format!("{requested} read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(format!("{requested} compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(is_supported),
        "Enabled" if is_supported => Ok(true),
        "Enabled" => Err(format!("{requested} supported by the runtime")),
        mode => Err(format!("unknown recursive read-only mode {mode:?}")),
    }
}

fn sub_path_of(mount: &VolumeMount, env: &[KeyValue]) -> Result<Option<String>, String> {
    let path = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(expression) => Some(expanded(expression, env)?),
        None => mount.sub_path.clone(),
    };
    if let Some(path) = &path {
        sub_path::check(path)?;
    }
    Ok(path)
}

fn expanded(expression: &str, env: &[KeyValue]) -> Result<String, String> {
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
        false => Err(format!(
            "missing value for {}",
            missing.into_iter().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Opens the subPath and mounts it where only the agent can write. Messages don't tell what is on the node.
pub fn make_sub_path(wanted: &SubPath, container: &str, may_mount: bool) -> Result<PathBuf, VolumeError> {
    let hidden = |what: &str, reason: String| {
        tracing::error!(volume = wanted.name, container, reason, "subPath");
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
        };
        BTreeMap::from([("v".to_string(), ready)])
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
        let container: Container = crate::json::from_value(&json!({"name": "c", "volumeMounts": [full]})).unwrap();
        match wanted(&container, &ready(read_only), &env(), Path::new("/p"), supported) {
            Ok(list) => {
                let Wanted { mount, sub_path } = &list[0];
                let sub_path = sub_path
                    .as_ref()
                    .map(|s| format!(" {} at {}", s.path, s.target.display()));
                format!(
                    "{}:{} ro={} rro={} {}{}",
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
