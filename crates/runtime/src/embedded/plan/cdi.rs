//! Devices by name, as the Container Device Interface describes them in files: what a device plugin or a DRA driver hands
//! out as `vendor.com/class=name`.
// Upstream: CNCF TAG runtime, container-device-interface SPEC.md (1.1). Hooks are not run: nothing runs on the node for a pod.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::cri::messages::{ContainerConfig, Device, KeyValue, Mount, MountPropagation};

use super::{PlanError, Result};

/// Where specs are; those of a later directory win.
pub(crate) const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// A file of devices of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CdiSpec {
    kind: String,
    devices: Vec<CdiDevice>,
    /// For containers with any of the devices.
    container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiDevice {
    name: String,
    container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<CdiMount>,
    hooks: Vec<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: String,
    permissions: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiMount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
}

/// All specs, in the order of their precedence. What can't be read is left out: its devices are then unknown. Blocking.
pub(crate) fn read_specs(directories: &[&str]) -> Vec<CdiSpec> {
    let mut specs = vec![];
    for directory in directories.iter().rev() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        specs.extend(files.iter().filter_map(|path| read_spec(path)));
    }
    specs
}

fn read_spec(path: &Path) -> Option<CdiSpec> {
    let text = fs::read_to_string(path).ok()?;
    match path.extension()?.to_str()? {
        "json" => serde_json::from_str(&text).ok(),
        "yaml" | "yml" => serde_saphyr::from_str(&text).ok(),
        _ => None,
    }
}

/// The configuration with all that its devices bring along.
pub(crate) fn apply(config: &ContainerConfig, specs: &[CdiSpec]) -> Result<ContainerConfig> {
    let mut config = config.clone();
    let mut kinds = BTreeSet::new();
    for wanted in std::mem::take(&mut config.cdi_devices) {
        let (spec, device) =
            find(&wanted.name, specs).ok_or_else(|| PlanError(format!("unresolvable CDI devices {}", wanted.name)))?;
        if kinds.insert(spec.kind.clone()) {
            edit(&mut config, &spec.container_edits, &wanted.name)?;
        }
        edit(&mut config, &device.container_edits, &wanted.name)?;
    }
    Ok(config)
}

fn find<'a>(name: &str, specs: &'a [CdiSpec]) -> Option<(&'a CdiSpec, &'a CdiDevice)> {
    let (kind, name) = name.split_once('=')?;
    let of_kind = specs.iter().filter(|spec| spec.kind == kind);
    of_kind
        .into_iter()
        .find_map(|spec| Some((spec, spec.devices.iter().find(|device| device.name == name)?)))
}

fn edit(config: &mut ContainerConfig, edits: &Edits, name: &str) -> Result<()> {
    if !edits.hooks.is_empty() {
        return Err(PlanError(format!(
            "CDI device {name} needs hooks, which are not supported"
        )));
    }
    for variable in &edits.env {
        let (key, value) = variable.split_once('=').unwrap_or((variable, ""));
        config.envs.push(KeyValue {
            key: key.to_string(),
            value: value.as_bytes().to_vec(),
        });
    }
    let or = |text: &str, default: &str| if text.is_empty() { default } else { text }.to_string();
    for node in &edits.device_nodes {
        config.devices.push(Device {
            container_path: node.path.clone(),
            host_path: or(&node.host_path, &node.path),
            permissions: or(&node.permissions, "rwm"),
        });
    }
    for mount in &edits.mounts {
        let has = |option: &str| mount.options.iter().any(|o| o == option);
        let propagation = match (has("shared") || has("rshared"), has("slave") || has("rslave")) {
            (true, _) => MountPropagation::Bidirectional,
            (_, true) => MountPropagation::HostToContainer,
            _ => MountPropagation::Private,
        };
        config.mounts.push(Mount {
            container_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            readonly: has("ro"),
            propagation: propagation as i32,
            ..Mount::default()
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::CDIDevice;

    const JSON: &str = r#"{"cdiVersion":"0.6.0","kind":"vendor.com/net","containerEdits":{"env":["ALL=1"]},
        "devices":[{"name":"a","containerEdits":{"env":["NAME=a=b"],
            "deviceNodes":[{"path":"/dev/a","hostPath":"/dev/null","permissions":"rw"},{"path":"/dev/zero"}],
            "mounts":[{"hostPath":"/lib/a","containerPath":"/usr/lib/a","options":["ro","nosuid","bind"]}]}},
          {"name":"hooked","containerEdits":{"hooks":[{"hookName":"createContainer","path":"/bin/x"}]}}]}"#;

    fn config(names: &[&str]) -> ContainerConfig {
        let device = |name: &&str| CDIDevice { name: name.to_string() };
        ContainerConfig {
            cdi_devices: names.iter().map(device).collect(),
            ..ContainerConfig::default()
        }
    }

    #[test]
    fn devices_bring_their_edits_along() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.json"), JSON).unwrap();
        fs::write(
            dir.path().join("b.yaml"),
            "cdiVersion: 0.6.0\nkind: vendor.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    env: [GPU=0]\n",
        )
        .unwrap();
        fs::write(dir.path().join("broken.json"), "{").unwrap();
        let specs = read_specs(&["/no/such", dir.path().to_str().unwrap()]);
        assert_eq!(specs.len(), 2);
        let edited = apply(&config(&["vendor.com/net=a", "vendor.com/gpu=0"]), &specs).unwrap();
        let envs: Vec<String> = edited
            .envs
            .iter()
            .map(|e| format!("{}={}", e.key, String::from_utf8_lossy(&e.value)))
            .collect();
        assert_eq!(envs, ["ALL=1", "NAME=a=b", "GPU=0"]);
        assert_eq!(edited.devices[0].host_path, "/dev/null");
        assert_eq!(
            (
                edited.devices[1].host_path.as_str(),
                edited.devices[1].permissions.as_str()
            ),
            ("/dev/zero", "rwm")
        );
        assert!(edited.mounts[0].readonly && edited.mounts[0].container_path == "/usr/lib/a");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let specs = vec![serde_json::from_str(JSON).unwrap()];
        let error = |name: &str| apply(&config(&[name]), &specs).unwrap_err().0;
        assert_eq!(error("vendor.com/net=x"), "unresolvable CDI devices vendor.com/net=x");
        assert_eq!(error("nonsense"), "unresolvable CDI devices nonsense");
        assert!(error("vendor.com/net=hooked").contains("hooks"));
    }
}
