//! What to publish, from the pod's volume or the persistent volume. No I/O.

use std::collections::BTreeMap;

use orlop_api::quantity::Quantity;
use orlop_api::types::core::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolumeSpec, Pod, SecretReference, Volume,
};
use orlop_api::types::storage::CSIDriverSpec;

use super::super::error::MountError;
use super::client::Capabilities;
use super::messages::{AccessMode, AccessModeKind, BlockVolume, MountVolume, VolumeCapability};
use super::{growth, hashed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub driver: String,
    /// What the driver knows the volume by.
    pub handle: String,
    /// The name of its directory: the persistent volume's, or the volume's in the pod.
    pub name: String,
    /// A device, not to be mounted.
    pub is_block: bool,
    /// Written in the pod, and as short-lived.
    pub is_inline: bool,
    pub attributes: BTreeMap<String, String>,
    pub fs_type: String,
    pub read_only: bool,
    /// As the persistent volume says; `None` says nothing.
    pub access_modes: Option<Vec<String>>,
    pub mount_options: Vec<String>,
    /// Namespace and name.
    pub publish_secret: Option<(String, String)>,
    pub stage_secret: Option<(String, String)>,
    pub expand_secret: Option<(String, String)>,
    /// The size that the persistent volume has.
    pub size: Quantity,
    /// Namespace and name of the claim that it is bound to.
    pub claim: Option<(String, String)>,
}

impl Target {
    pub(crate) fn inline(pod: &Pod, volume: &Volume, source: &CSIVolumeSource) -> Target {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let secret = source
            .node_publish_secret_ref
            .as_ref()
            .map(|secret| secret.name.clone());
        Target {
            driver: source.driver.clone(),
            handle: format!("csi-{}", hashed(&[uid, &volume.name])),
            name: volume.name.clone(),
            is_block: false,
            is_inline: true,
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            access_modes: None,
            mount_options: Vec::new(),
            publish_secret: secret.map(|name| (namespace, name)),
            stage_secret: None,
            expand_secret: None,
            size: Quantity::ZERO,
            claim: None,
        }
    }

    pub(crate) fn persistent(
        name: &str,
        spec: &PersistentVolumeSpec,
        source: &CSIPersistentVolumeSource,
        read_only: bool,
    ) -> Target {
        let secret = |reference: &Option<SecretReference>| {
            let reference = reference.clone()?;
            Some((reference.namespace?, reference.name?))
        };
        Target {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: name.to_string(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            is_inline: false,
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            read_only,
            access_modes: spec.access_modes.clone(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            publish_secret: secret(&source.node_publish_secret_ref),
            stage_secret: secret(&source.node_stage_secret_ref),
            expand_secret: secret(&source.node_expand_secret_ref),
            size: growth::storage(spec.capacity.as_ref()),
            claim: spec
                .claim_ref
                .clone()
                .and_then(|claim| Some((claim.namespace?, claim.name?))),
        }
    }

    pub(crate) fn lifecycle_mode(&self) -> &'static str {
        if self.is_inline { "Ephemeral" } else { "Persistent" }
    }

    /// How the volume is to be used. `group` if the driver is to see to the files' group.
    pub(crate) fn capability(&self, capabilities: Capabilities, group: Option<u32>) -> VolumeCapability {
        let first = self.access_modes.iter().flatten().next();
        let several = capabilities.single_node_multi_writer;
        let mode = match first.map_or("ReadWriteOnce", String::as_str) {
            "ReadWriteOnce" if several => AccessModeKind::SingleNodeMultiWriter,
            "ReadWriteOncePod" if several => AccessModeKind::SingleNodeSingleWriter,
            "ReadWriteOnce" | "ReadWriteOncePod" => AccessModeKind::SingleNodeWriter,
            "ReadOnlyMany" => AccessModeKind::MultiNodeReaderOnly,
            "ReadWriteMany" => AccessModeKind::MultiNodeMultiWriter,
            _ => AccessModeKind::Unknown,
        };
        let group = group.filter(|_| capabilities.sets_group);
        let mount = MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        };
        VolumeCapability {
            block: self.is_block.then_some(BlockVolume {}),
            mount: (!self.is_block).then_some(mount),
            access_mode: Some(AccessMode { mode: mode as i32 }),
        }
    }

    /// Whether the kubelet gives the files to the pod's group.
    pub(crate) fn takes_group(&self, driver: Option<&CSIDriverSpec>) -> bool {
        let policy = driver.and_then(|d| d.fs_group_policy.as_deref());
        if self.read_only || policy == Some("None") {
            return false;
        }
        if policy == Some("File") {
            return true;
        }
        let one_node = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
        let is_for_one = self.is_inline || self.access_modes.iter().flatten().any(one_node);
        !self.fs_type.is_empty() && is_for_one
    }

    /// Whether the driver says it can do volumes that live this way.
    pub(crate) fn check_lifecycle(&self, driver: Option<&CSIDriverSpec>) -> Result<(), MountError> {
        let mode = self.lifecycle_mode();
        let unsupported = format!("volume mode {mode:?} not supported by driver {}", self.driver);
        let Some(driver) = driver else {
            return match self.is_inline {
                true => Err(MountError::Invalid(format!("{unsupported} (no CSIDriver object)"))),
                false => Ok(()),
            };
        };
        let persistent = vec!["Persistent".to_string()];
        let modes = driver.volume_lifecycle_modes.as_ref().filter(|modes| !modes.is_empty());
        let modes = modes.unwrap_or(&persistent);
        match modes.iter().any(|m| m == mode) {
            true => Ok(()),
            false => Err(MountError::Invalid(format!(
                "{unsupported} (only supports [{}])",
                quoted(modes)
            ))),
        }
    }
}

fn quoted(list: &[String]) -> String {
    list.iter()
        .map(|text| format!("{text:?}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Pod information passed to drivers (podInfoOnMount).
pub(super) fn pod_info(pod: &Pod, is_inline: bool) -> BTreeMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let facts = [
        ("pod.name", text(&pod.metadata.name)),
        ("pod.namespace", text(&pod.metadata.namespace)),
        ("pod.uid", text(&pod.metadata.uid)),
        ("serviceAccount.name", text(&account)),
        ("ephemeral", is_inline.to_string()),
    ];
    facts
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
        .into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn persistent(modes: Value, fs_type: &str, read_only: bool) -> Target {
        let spec: PersistentVolumeSpec = orlop_api::types::from_value(json!({
            "accessModes": modes, "mountOptions": ["noatime"],
            "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type,
                    "nodeStageSecretRef": {"namespace": "n", "name": "s"}},
        }))
        .unwrap();
        Target::persistent("pv", &spec, spec.csi.as_ref().unwrap(), read_only)
    }

    fn driver(spec: Value) -> CSIDriverSpec {
        orlop_api::types::from_value(spec).unwrap()
    }

    #[test]
    fn access_modes() {
        let cases = [
            (json!(["ReadWriteOnce"]), 1, 7),
            (json!(["ReadWriteOncePod"]), 1, 6),
            (json!(["ReadOnlyMany", "ReadWriteOnce"]), 3, 3),
            (json!(["ReadWriteMany"]), 5, 5),
            (json!([]), 1, 7),
            (json!(["Other"]), 0, 0),
        ];
        for (modes, plain, with_capability) in cases {
            for (several, expected) in [(false, plain), (true, with_capability)] {
                let capabilities = Capabilities {
                    single_node_multi_writer: several,
                    ..Capabilities::default()
                };
                let capability = persistent(modes.clone(), "ext4", false).capability(capabilities, Some(5));
                assert_eq!(capability.access_mode.unwrap().mode, expected, "{modes}");
                let mount = capability.mount.unwrap();
                assert_eq!(
                    (mount.fs_type.as_str(), mount.volume_mount_group.as_str()),
                    ("ext4", "")
                );
            }
        }
        let capabilities = Capabilities {
            sets_group: true,
            ..Capabilities::default()
        };
        let capability = persistent(json!([]), "", false).capability(capabilities, Some(5));
        assert_eq!(capability.mount.unwrap().volume_mount_group, "5");
    }

    #[test]
    fn whose_group() {
        let one = json!(["ReadWriteOnce"]);
        let cases = [
            (one.clone(), "ext4", false, None, true),
            (one.clone(), "ext4", true, None, false),
            (one.clone(), "", false, None, false),
            (json!(["ReadWriteMany"]), "ext4", false, None, false),
            (json!(["ReadWriteMany"]), "", false, Some("File"), true),
            (one.clone(), "ext4", false, Some("None"), false),
            (one, "ext4", false, Some("ReadWriteOnceWithFSType"), true),
        ];
        for (modes, fs_type, read_only, policy, expected) in cases {
            let spec = policy.map(|policy| driver(json!({"fsGroupPolicy": policy})));
            assert_eq!(
                persistent(modes, fs_type, read_only).takes_group(spec.as_ref()),
                expected,
                "{policy:?}"
            );
        }
    }

    #[test]
    fn lifecycles() {
        let pod: Pod = orlop_api::types::from_value(json!({"metadata": {"uid": "u", "namespace": "n"}})).unwrap();
        let volume: Volume = orlop_api::types::from_value(json!({"name": "v", "csi": {"driver": "d"}})).unwrap();
        let inline = Target::inline(&pod, &volume, volume.csi.as_ref().unwrap());
        // The SHA-256 of "uv".
        assert!(inline.handle.starts_with("csi-") && inline.handle.len() == 68);
        let unsupported = "volume mode \"Ephemeral\" not supported by driver d";
        let refusal = |driver| inline.check_lifecycle(driver).unwrap_err().to_string();
        assert_eq!(refusal(None), format!("{unsupported} (no CSIDriver object)"));
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        inline.check_lifecycle(Some(&both)).unwrap();
        let one = driver(json!({}));
        assert_eq!(
            refusal(Some(&one)),
            format!("{unsupported} (only supports [\"Persistent\"])")
        );
        let target = persistent(json!([]), "", false);
        target.check_lifecycle(None).unwrap();
        assert_eq!(target.stage_secret, Some(("n".into(), "s".into())));
    }
}
