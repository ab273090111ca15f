//! Labels and annotations on sandboxes and containers, from which a restarted kubelet adopts what runs.

use std::collections::BTreeMap;

use orlop_api::types::core::{Container, ContainerPort, LifecycleHandler, Pod};

use orlop_runtime::cri::messages::ImageSpec;

use super::{name, namespace, uid};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// On containers: ids of the images that are volumes of theirs.
const VOLUME_IMAGES: &str = "orlop.io/volume-images";

/// Where a pod comes from: `api`, `file` or `http`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// On pods that stand in the API server for one from a file.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME, name(pod)),
        (POD_NAMESPACE, namespace(pod)),
        (POD_UID, uid(pod)),
    ]
    .map(|(key, value)| (key.to_string(), value.to_string()))
}

/// The pod's own labels, and who it is.
pub fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity(pod));
    labels
}

pub fn sandbox_annotations(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.annotations.clone().unwrap_or_default()
}

pub fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from(identity(pod));
    labels.insert(CONTAINER_NAME.to_string(), container.name.clone());
    labels
}

/// What must be known of a container even when its pod is gone from the API server: how to end it, where it has left its
/// last words, which start it was.
pub fn container_annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let mut notes = vec![
        (HASH, format!("{:x}", container_hash(container))),
        (RESTART_COUNT, attempt.to_string()),
        (TERMINATION_MESSAGE_PATH, text(&container.termination_message_path)),
        (TERMINATION_MESSAGE_POLICY, text(&container.termination_message_policy)),
    ];
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        notes.push((DELETION_GRACE_PERIOD, seconds.to_string()));
    }
    if let Some(seconds) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        notes.push((TERMINATION_GRACE_PERIOD, seconds.to_string()));
    }
    if let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        notes.push((PRE_STOP, json(hook)));
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty()) {
        notes.push((PORTS, json(ports)));
    }
    notes.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("API types are valid JSON")
}

/// Tells whether a running container is still what the spec wants. Only the name and the image can change under a
/// running container; resources are changed in place. (FNV-1a, kept stable: it outlives the kubelet.)
pub fn container_hash(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let bytes = container.name.bytes().chain([0]).chain(image.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Notes down which images are mounted in a container, so that none of them is taken for unused.
pub fn note_images<'a>(annotations: &mut BTreeMap<String, String>, images: impl Iterator<Item = &'a ImageSpec>) {
    let ids: Vec<&str> = images.map(|image| image.image.as_str()).collect();
    if !ids.is_empty() {
        annotations.insert(VOLUME_IMAGES.to_string(), ids.join(","));
    }
}

/// What [`note_images`] wrote.
pub fn noted_images(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    annotations
        .get(VOLUME_IMAGES)
        .into_iter()
        .flat_map(|ids| ids.split(','))
}

/// What [`container_annotations`] wrote, read back. What is missing or unreadable is none or zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerNotes {
    pub hash: u64,
    pub restart_count: u32,
    pub termination_message_path: String,
    pub termination_message_policy: String,
    pub deletion_grace_period: Option<i64>,
    pub termination_grace_period: Option<i64>,
    pub pre_stop: Option<LifecycleHandler>,
    pub ports: Vec<ContainerPort>,
}

impl ContainerNotes {
    pub fn read(annotations: &BTreeMap<String, String>) -> ContainerNotes {
        let get = |key: &str| annotations.get(key).map(String::as_str);
        let text = |key: &str| get(key).unwrap_or_default().to_string();
        let number = |key: &str| get(key).and_then(|v| v.parse::<i64>().ok());
        ContainerNotes {
            hash: get(HASH).and_then(|v| u64::from_str_radix(v, 16).ok()).unwrap_or(0),
            restart_count: get(RESTART_COUNT).and_then(|v| v.parse().ok()).unwrap_or(0),
            termination_message_path: text(TERMINATION_MESSAGE_PATH),
            termination_message_policy: text(TERMINATION_MESSAGE_POLICY),
            deletion_grace_period: number(DELETION_GRACE_PERIOD),
            termination_grace_period: number(TERMINATION_GRACE_PERIOD),
            pre_stop: get(PRE_STOP).and_then(|v| serde_json::from_str(v).ok()),
            ports: get(PORTS)
                .and_then(|v| serde_json::from_str(v).ok())
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::json;

    #[test]
    fn sandboxes_carry_the_pods_labels_and_who_it_is() {
        let mut pod = testing::pod(json!({}));
        pod.metadata.labels = Some(BTreeMap::from([
            ("app".to_string(), "x".to_string()),
            (POD_NAME.to_string(), "a lie".to_string()),
        ]));
        let labels = sandbox_labels(&pod);
        let shown: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            shown,
            [
                "app=x",
                "io.kubernetes.pod.name=web",
                "io.kubernetes.pod.namespace=default",
                "io.kubernetes.pod.uid=u-1"
            ]
        );
        assert!(sandbox_annotations(&pod).is_empty());
    }

    #[test]
    fn container_notes_come_back_as_written() {
        let mut pod = testing::pod(json!({"terminationGracePeriodSeconds": 7}));
        pod.metadata.deletion_grace_period_seconds = Some(3);
        let container = testing::container(json!({
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1"]}}},
            "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}],
        }));
        let annotations = container_annotations(&pod, &container, 4);
        assert_eq!(annotations[PRE_STOP], r#"{"exec":{"command":["sh","-c","sleep 1"]}}"#);
        assert_eq!(
            annotations[PORTS],
            r#"[{"containerPort":80,"name":"http","protocol":"TCP"}]"#
        );
        let notes = ContainerNotes::read(&annotations);
        assert_eq!(
            notes,
            ContainerNotes {
                hash: container_hash(&container),
                restart_count: 4,
                termination_message_path: "/dev/termination-log".into(),
                termination_message_policy: "File".into(),
                deletion_grace_period: Some(3),
                termination_grace_period: Some(7),
                pre_stop: container.lifecycle.clone().unwrap().pre_stop,
                ports: container.ports.clone().unwrap(),
            }
        );
        assert_eq!(container_labels(&pod, &container)[CONTAINER_NAME], "c");
    }

    #[test]
    fn strange_annotations_are_read_as_nothing() {
        let strange =
            [HASH, RESTART_COUNT, PRE_STOP, PORTS, TERMINATION_GRACE_PERIOD].map(|k| (k.to_string(), "?".into()));
        assert_eq!(
            ContainerNotes::read(&BTreeMap::from(strange)),
            ContainerNotes::default()
        );
    }

    #[test]
    fn the_hash_sees_name_and_image_only_and_never_changes() {
        let base = testing::container(json!({}));
        let hash = container_hash(&base);
        assert_eq!(hash, 0xf1f7_6e56_26d7_7fc4);
        for (change, same) in [
            (json!({"image": "other"}), false),
            (json!({"name": "d"}), false),
            (json!({"resources": {"limits": {"cpu": "2"}}}), true),
            (json!({"command": ["x"]}), true),
        ] {
            assert_eq!(
                container_hash(&testing::container(change.clone())) == hash,
                same,
                "{change}"
            );
        }
        // The border between name and image counts.
        let (a, b) = (
            json!({"name": "cb", "image": "usy"}),
            json!({"name": "c", "image": "busy"}),
        );
        assert_ne!(
            container_hash(&testing::container(a)),
            container_hash(&testing::container(b))
        );
    }
}
