//! From a pod's spec to the CRI: the messages that create its sandbox and its containers, their environment, their limits,
//! and the few files that the kubelet writes for them.
//!
//! Inputs are the pod, facts about this node ([`NodeFacts`]) and what others found out (image, mounts, addresses); outputs
//! are the CRI's messages. Everything but [`files`] and the fetching half of [`mod@env`] is a pure function: the same pod on
//! the same node gives the same message, which is what makes adopting containers after a restart possible.
//! Labels and annotations on sandboxes and containers are Kubernetes' own ([`labels`]).

pub mod env;
pub mod files;
pub mod labels;
pub mod resources;

mod admit;
mod container;
mod dns;
mod expand;
mod facts;
mod here;
mod hostname;
mod sandbox;
mod security;
mod users;

use std::borrow::Cow;
use std::path::PathBuf;

use orlop_api::types::core::{Container, EphemeralContainer, Pod, PodSpec};

pub use admit::{never_resized, refusal};
pub use container::{ContainerInput, container_config};
pub use expand::{expand, expand_all};
pub use facts::{CgroupLayout, CgroupVersion, MemoryQos, NodeFacts, Swap};
pub use here::{Here, read_resolv_conf};
pub use hostname::{host_and_domain, hosts_file};
pub use sandbox::{sandbox_config, sandbox_notices};
pub use users::{Ids, Users};

/// The spec cannot be carried out as things are; the text is for the user. A container with it waits with the reason
/// CreateContainerConfigError, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(pub String);

impl SpecError {
    pub fn new(text: impl Into<String>) -> SpecError {
        SpecError(text.into())
    }
}

/// Something to record as a warning event, though it stops nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub reason: &'static str,
    pub message: String,
}

/// Which list of the spec a container stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

/// All containers of a pod: init containers, then the regular ones, then the ephemeral ones.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (ContainerKind, Cow<'_, Container>)> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
    let ephemeral = spec.and_then(|s| s.ephemeral_containers.as_deref()).unwrap_or_default();
    let init = init.iter().map(|c| (ContainerKind::Init, Cow::Borrowed(c)));
    let regular = regular.iter().map(|c| (ContainerKind::Regular, Cow::Borrowed(c)));
    let ephemeral = ephemeral
        .iter()
        .map(|c| (ContainerKind::Ephemeral, Cow::Owned(as_container(c))));
    init.chain(regular).chain(ephemeral)
}

/// An ephemeral container in the shape of the others.
pub fn as_container(c: &EphemeralContainer) -> Container {
    let c = c.clone();
    Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// How messages name a pod: `name_namespace(uid)`.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

pub fn is_host_network(pod: &Pod) -> bool {
    spec_flag(pod, |s| s.host_network)
}

pub(crate) fn spec_flag(pod: &Pod, flag: impl Fn(&PodSpec) -> Option<bool>) -> bool {
    pod.spec.as_ref().and_then(flag).unwrap_or(false)
}

/// Where the logs of a pod's containers are.
pub fn pod_log_dir(pod: &Pod, facts: &NodeFacts) -> PathBuf {
    facts
        .pod_logs_dir
        .join(format!("{}_{}_{}", namespace(pod), name(pod), uid(pod)))
}

/// A container's log file, relative to [`pod_log_dir`].
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use serde_json::{Value, json};

    /// A pod from the JSON of its spec: `web` in `default`, uid `u-1`.
    pub(crate) fn pod(spec: Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u-1"}});
        pod["spec"] = spec;
        if pod["spec"].get("containers").is_none() {
            pod["spec"]["containers"] = json!([{"name": "c", "image": "busybox"}]);
        }
        orlop_api::types::from_value(pod).unwrap()
    }

    pub(crate) fn container(container: Value) -> Container {
        let mut c = json!({"name": "c", "image": "busybox"});
        for (key, value) in container.as_object().unwrap() {
            c[key] = value.clone();
        }
        orlop_api::types::from_value(c).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_come_in_the_order_they_start() {
        let pod = testing::pod(json!({
            "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e", "targetContainerName": "a", "command": ["sh"]}],
        }));
        let seen: Vec<_> = containers(&pod).map(|(kind, c)| (kind, c.name.clone())).collect();
        assert_eq!(
            seen,
            [
                (ContainerKind::Init, "i".into()),
                (ContainerKind::Regular, "a".into()),
                (ContainerKind::Regular, "b".into()),
                (ContainerKind::Ephemeral, "e".into()),
            ]
        );
        assert_eq!(containers(&Pod::default()).count(), 0);
    }

    #[test]
    fn an_ephemeral_container_keeps_every_field() {
        let all = json!({
            "name": "e", "image": "i", "command": ["c"], "args": ["a"], "workingDir": "/w", "stdin": true, "stdinOnce": true,
            "tty": true, "imagePullPolicy": "Always", "terminationMessagePath": "/t", "terminationMessagePolicy": "File",
            "env": [{"name": "A", "value": "b"}], "envFrom": [{"prefix": "p"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}], "volumeDevices": [{"name": "d", "devicePath": "/d"}],
            "securityContext": {"privileged": true},
        });
        let ephemeral: EphemeralContainer = orlop_api::types::from_value(all.clone()).unwrap();
        let expected: Container = orlop_api::types::from_value(all).unwrap();
        assert_eq!(as_container(&ephemeral), expected);
    }

    #[test]
    fn logs_lie_by_namespace_name_and_uid() {
        let pod = testing::pod(json!({}));
        let facts = NodeFacts::default();
        assert_eq!(
            pod_log_dir(&pod, &facts),
            PathBuf::from("/var/log/pods/default_web_u-1")
        );
        assert_eq!(log_path("c", 3), "c/3.log");
        assert_eq!(describe(&pod), "web_default(u-1)");
    }
}
