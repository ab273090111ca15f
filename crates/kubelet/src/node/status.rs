//! The status of this node's Node object, as a pure function of what is known.
// Upstream: pkg/kubelet/nodestatus/setters.go, pkg/kubelet/runtime.go (v1.36)

use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use orlop_api::types::meta::Quantity;
use orlop_api::types::meta::Time;
use orlop_runtime::cri::messages::{Image, RuntimeCondition, RuntimeHandlerFeatures, StatusResponse, VersionResponse};

use super::{Identity, KUBELET_VERSION, Machine, OS, architecture, resources};
use crate::config::Config;
use crate::devices::book::Amounts;

/// Names shown of one image.
const IMAGE_NAMES_MAX: usize = 5;
/// A runtime that did not answer for this long is down.
pub const RUNTIME_DOWN_AFTER: Duration = Duration::from_secs(30);

/// Pressure conditions of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

/// The runtime's last reported state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeView {
    pub version: Option<VersionResponse>,
    pub status: Option<StatusResponse>,
    /// When it was last ready.
    pub ready_at: Option<Timestamp>,
}

impl RuntimeView {
    /// Features of a runtime handler; none if not reported. The default handler has no name.
    pub fn handler_features(&self, handler: &str) -> RuntimeHandlerFeatures {
        let all = self.status.iter().flat_map(|status| &status.runtime_handlers);
        let mut features = all.filter(|h| h.name == handler).filter_map(|h| h.features.clone());
        features.next().unwrap_or_default()
    }
}

/// What is observed for every status update.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub runtime: RuntimeView,
    /// None if the runtime did not report it.
    pub images: Option<Vec<Image>>,
    pub pressure: Pressure,
    pub volumes_in_use: Vec<String>,
    pub shutting_down: bool,
    /// Another reason not to be ready.
    pub trouble: Option<String>,
    /// Device plugin resources.
    pub devices: Amounts,
}

/// An event about the node: reason and message.
pub type NodeEvent = (&'static str, String);

/// The new status, given the current Node object, and the events to record.
pub fn node_status(
    identity: &Identity,
    config: &Config,
    machine: &Machine,
    observed: &Observed,
    old: &Node,
    now: Timestamp,
) -> (NodeStatus, Vec<NodeEvent>) {
    let mut events = Vec::new();
    // Fields of others (attached volumes, the phase) stay as they are.
    let mut status = old.status.clone().unwrap_or_default();
    let old_boot = status
        .node_info
        .as_ref()
        .map(|info| info.boot_id.clone())
        .unwrap_or_default();
    if !old_boot.is_empty() && old_boot != machine.boot_id {
        let text = format!("Node {} has been rebooted, boot id: {}", identity.name, machine.boot_id);
        events.push(("Rebooted", text));
    }
    status.addresses = Some(addresses(identity));
    set_resources(&mut status, machine, config);
    set_devices(&mut status, &observed.devices);
    status.node_info = Some(node_info(machine, &observed.runtime));
    status.daemon_endpoints = Some(NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint {
            port: identity.port.into(),
        }),
    });
    status.images = Some(images(
        observed.images.as_deref().unwrap_or_default(),
        config.node_status_max_images,
    ));
    set_runtime_features(&mut status, &observed.runtime);
    status.declared_features = declared_features(config);
    let volumes = observed.volumes_in_use.clone();
    status.volumes_in_use = Some(volumes).filter(|v| !v.is_empty());
    set_conditions(&mut status, identity, config, observed, now, &mut events);
    (status, events)
}

fn addresses(identity: &Identity) -> Vec<NodeAddress> {
    let address = |type_: &str, address: String| NodeAddress {
        type_: type_.to_string(),
        address,
    };
    let mut all: Vec<NodeAddress> = identity
        .addresses
        .iter()
        .map(|ip| address("InternalIP", ip.to_string()))
        .collect();
    all.push(address("Hostname", identity.hostname.clone()));
    all
}

/// Resources that others added to the capacity stay; huge pages of sizes that are no more go.
fn set_resources(status: &mut NodeStatus, machine: &Machine, config: &Config) {
    let capacity = resources::capacity(machine, config);
    let own = resources::allocatable(&capacity, config);
    for (known, new) in [(&mut status.capacity, &capacity), (&mut status.allocatable, &own)] {
        let all = known.get_or_insert_default();
        all.retain(|name, _| !name.starts_with(resources::HUGE_PAGES));
        all.extend(resources::to_api(new));
    }
    if let (Some(capacity), Some(allocatable)) = (&status.capacity, &mut status.allocatable) {
        allocatable.retain(|name, _| capacity.contains_key(name));
        let others = capacity.iter().filter(|(name, _)| !own.contains_key(*name));
        allocatable.extend(others.map(|(name, quantity)| (name.clone(), quantity.clone())));
    }
}

fn set_devices(status: &mut NodeStatus, devices: &Amounts) {
    let quantity = |count: u64| Quantity(count.to_string());
    for (name, (all, usable)) in devices {
        let (capacity, allocatable) = (&mut status.capacity, &mut status.allocatable);
        capacity.get_or_insert_default().insert(name.clone(), quantity(*all));
        allocatable
            .get_or_insert_default()
            .insert(name.clone(), quantity(*usable));
    }
}

fn node_info(machine: &Machine, runtime: &RuntimeView) -> NodeSystemInfo {
    NodeSystemInfo {
        architecture: architecture().to_string(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: runtime_version(runtime.version.as_ref()),
        kernel_version: machine.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: KUBELET_VERSION.to_string(),
        machine_id: machine.machine_id.clone(),
        operating_system: OS.to_string(),
        os_image: machine.os_image.clone(),
        swap: (machine.swap_bytes > 0).then(|| NodeSwapStatus {
            capacity: i64::try_from(machine.swap_bytes).ok(),
        }),
        system_uuid: machine.system_uuid.clone(),
    }
}

/// `containerd://1.6.20`: what distributions append to the number (`~ds1`) is left out, as it is no semantic version.
fn runtime_version(version: Option<&VersionResponse>) -> String {
    let Some(version) = version else {
        return "://Unknown".to_string();
    };
    let text = version.runtime_version.trim().trim_start_matches('v');
    let number = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let shown = match text[number..].chars().next() {
        Some('-' | '+') => text,
        _ if number > 0 => &text[..number],
        _ => "Unknown",
    };
    format!("{}://{shown}", version.runtime_name)
}

/// The largest first.
fn images(all: &[Image], most: i32) -> Vec<ContainerImage> {
    let mut all: Vec<&Image> = all.iter().collect();
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    all.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let shown = all.into_iter().map(|image| ContainerImage {
        names: Some(
            image
                .repo_digests
                .iter()
                .chain(&image.repo_tags)
                .take(IMAGE_NAMES_MAX)
                .cloned()
                .collect(),
        ),
        size_bytes: i64::try_from(image.size).ok(),
    });
    shown.collect()
}

/// What this node can do that others in the cluster may not, by name and in order: the scheduler and the API server go
/// by it. Features that this kubelet has not (UserNamespacesHostNetworkSupport) are not among them.
// Upstream: component-helpers/nodedeclaredfeatures/features (v1.36)
pub fn declared_features(config: &Config) -> Option<Vec<String>> {
    const FEATURES: [&str; 4] = [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    let on = FEATURES.into_iter().filter(|name| config.feature(name, true));
    config
        .feature("NodeDeclaredFeatures", true)
        .then(|| on.map(str::to_string).collect())
}

fn set_runtime_features(status: &mut NodeStatus, runtime: &RuntimeView) {
    let Some(told) = &runtime.status else { return };
    let mut handlers: Vec<NodeRuntimeHandler> = told
        .runtime_handlers
        .iter()
        .map(|handler| NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(
                    handler.features.as_ref().is_some_and(|f| f.recursive_read_only_mounts),
                ),
                user_namespaces: Some(handler.features.as_ref().is_some_and(|f| f.user_namespaces)),
            }),
        })
        .collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    status.runtime_handlers = Some(handlers).filter(|h| !h.is_empty());
    if let Some(features) = &told.features {
        status.features = Some(NodeFeatures {
            supplemental_groups_policy: Some(features.supplemental_groups_policy),
        });
    }
}

/// A pressure: type, event's reasons, and reason and message of the condition, each for "no" and "yes".
struct Words {
    type_: &'static str,
    events: [&'static str; 2],
    reasons: [&'static str; 2],
    messages: [&'static str; 2],
}

const MEMORY_PRESSURE: Words = Words {
    type_: "MemoryPressure",
    events: ["NodeHasSufficientMemory", "NodeHasInsufficientMemory"],
    reasons: ["KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"],
    messages: [
        "kubelet has sufficient memory available",
        "kubelet has insufficient memory available",
    ],
};
const DISK_PRESSURE: Words = Words {
    type_: "DiskPressure",
    events: ["NodeHasNoDiskPressure", "NodeHasDiskPressure"],
    reasons: ["KubeletHasNoDiskPressure", "KubeletHasDiskPressure"],
    messages: ["kubelet has no disk pressure", "kubelet has disk pressure"],
};
const PID_PRESSURE: Words = Words {
    type_: "PIDPressure",
    events: ["NodeHasSufficientPID", "NodeHasInsufficientPID"],
    reasons: ["KubeletHasSufficientPID", "KubeletHasInsufficientPID"],
    messages: [
        "kubelet has sufficient PID available",
        "kubelet has insufficient PID available",
    ],
};

/// Sets the four conditions; what others added stays. Readiness is the last: so it has always been.
fn set_conditions(
    status: &mut NodeStatus,
    identity: &Identity,
    config: &Config,
    observed: &Observed,
    now: Timestamp,
    events: &mut Vec<NodeEvent>,
) {
    let missing = missing_capacity(status, config);
    let all = status.conditions.get_or_insert_default();
    let mut tell = |reason: &'static str| {
        events.push((reason, format!("Node {} status is now: {reason}", identity.name)));
    };
    let pressures = [
        (MEMORY_PRESSURE, observed.pressure.memory),
        (DISK_PRESSURE, observed.pressure.disk),
        (PID_PRESSURE, observed.pressure.pid),
    ];
    for (words, yes) in pressures {
        let i = usize::from(yes);
        let condition = condition(words.type_, yes, words.reasons[i], words.messages[i].to_string(), now);
        if put(all, condition) != Change::None {
            tell(words.events[i]);
        }
    }
    let troubles = troubles(observed, missing, now);
    let ready = match troubles.is_empty() {
        true => condition(
            "Ready",
            true,
            "KubeletReady",
            "kubelet is posting ready status".into(),
            now,
        ),
        false => condition("Ready", false, "KubeletNotReady", aggregate(&troubles), now),
    };
    let is_ready = troubles.is_empty();
    if put(all, ready) == Change::Turned {
        tell(if is_ready { "NodeReady" } else { "NodeNotReady" });
    }
    if let Some(i) = all.iter().position(|c| c.type_ == "Ready") {
        let ready = all.remove(i);
        all.push(ready);
    }
}

fn condition(type_: &str, yes: bool, reason: &str, message: String, now: Timestamp) -> NodeCondition {
    // Kubernetes keeps whole seconds.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    NodeCondition {
        type_: type_.to_string(),
        status: if yes { "True" } else { "False" }.to_string(),
        reason: Some(reason.to_string()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

#[derive(PartialEq)]
enum Change {
    None,
    New,
    /// It was there with another status.
    Turned,
}

fn put(all: &mut Vec<NodeCondition>, mut new: NodeCondition) -> Change {
    let Some(old) = all.iter_mut().find(|c| c.type_ == new.type_) else {
        all.push(new);
        return Change::New;
    };
    let change = match old.status == new.status {
        true => {
            new.last_transition_time = old.last_transition_time.clone();
            Change::None
        }
        false => Change::Turned,
    };
    *old = new;
    change
}

fn missing_capacity(status: &NodeStatus, config: &Config) -> Option<String> {
    let mut names = vec![resources::CPU, resources::MEMORY, resources::PODS];
    if config.local_storage_capacity_isolation {
        names.push(resources::EPHEMERAL_STORAGE);
    }
    let has = |name: &&str| status.capacity.as_ref().is_some_and(|c| c.contains_key(*name));
    let missing: Vec<&str> = names.into_iter().filter(|name| !has(name)).collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

fn troubles(observed: &Observed, missing: Option<String>, now: Timestamp) -> Vec<String> {
    let mut all: Vec<String> = runtime_troubles(&observed.runtime, now);
    all.extend(network_trouble(&observed.runtime));
    all.extend(observed.trouble.clone());
    if observed.shutting_down {
        all.push("node is shutting down".to_string());
    }
    all.extend(missing);
    all
}

fn runtime_troubles(runtime: &RuntimeView, now: Timestamp) -> Vec<String> {
    let mut all = Vec::new();
    match runtime.ready_at {
        None => all.push("container runtime status check may not have completed yet".to_string()),
        Some(at) if now.duration_since(at).unsigned_abs() >= RUNTIME_DOWN_AFTER && now > at => {
            all.push("container runtime is down".to_string());
        }
        Some(_) => {}
    }
    if let Some(status) = &runtime.status {
        let ready = runtime_condition(status, "RuntimeReady");
        if !ready.is_some_and(|c| c.status) {
            all.push(format!("container runtime not ready: {}", described(ready)));
        }
    }
    all
}

/// Why pods that need the pod network can't be started, if so.
pub fn network_trouble(runtime: &RuntimeView) -> Option<String> {
    let ready = runtime_condition(runtime.status.as_ref()?, "NetworkReady");
    match ready {
        Some(c) if c.status => None,
        _ => Some(format!("container runtime network not ready: {}", described(ready))),
    }
}

/// Whether the runtime says that it can run containers.
pub fn is_runtime_ready(status: &StatusResponse) -> bool {
    runtime_condition(status, "RuntimeReady").is_some_and(|c| c.status)
}

fn runtime_condition<'a>(status: &'a StatusResponse, type_: &str) -> Option<&'a RuntimeCondition> {
    status.status.as_ref()?.conditions.iter().find(|c| c.r#type == type_)
}

fn described(condition: Option<&RuntimeCondition>) -> String {
    condition.map_or("<nil>".to_string(), |c| {
        format!("{}={} reason:{} message:{}", c.r#type, c.status, c.reason, c.message)
    })
}

/// Several errors as Go shows them.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Whether a status says something new. Heartbeat times alone are nothing new.
pub fn has_changed(old: Option<&NodeStatus>, new: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        // The server may leave out what is empty.
        status.images = status.images.filter(|images| !images.is_empty());
        status
    };
    old.is_none_or(|old| still(old) != still(new))
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
