//! Nodes.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::types::json::{kind, object};
use crate::types::meta::{ObjectMeta, Quantity, Time};

kind! {
    "v1";
    pub struct Node {
        metadata: ObjectMeta = "metadata",
        spec: Option<NodeSpec> = "spec",
        status: Option<NodeStatus> = "status",
    }
}

object! {
    pub struct NodeSpec {
        config_source: Option<Value> = "configSource",
        external_id: Option<String> = "externalID",
        pod_cidr: Option<String> = "podCIDR",
        pod_cidrs: Option<Vec<String>> = "podCIDRs",
        provider_id: Option<String> = "providerID",
        taints: Option<Vec<Taint>> = "taints",
        unschedulable: Option<bool> = "unschedulable",
    }
}

object! {
    pub struct NodeStatus {
        addresses: Option<Vec<NodeAddress>> = "addresses",
        allocatable: Option<BTreeMap<String, Quantity>> = "allocatable",
        capacity: Option<BTreeMap<String, Quantity>> = "capacity",
        conditions: Option<Vec<NodeCondition>> = "conditions",
        config: Option<Value> = "config",
        daemon_endpoints: Option<NodeDaemonEndpoints> = "daemonEndpoints",
        declared_features: Option<Vec<String>> = "declaredFeatures",
        features: Option<NodeFeatures> = "features",
        images: Option<Vec<ContainerImage>> = "images",
        node_info: Option<NodeSystemInfo> = "nodeInfo",
        phase: Option<String> = "phase",
        runtime_handlers: Option<Vec<NodeRuntimeHandler>> = "runtimeHandlers",
        volumes_attached: Option<Vec<Value>> = "volumesAttached",
        volumes_in_use: Option<Vec<String>> = "volumesInUse",
    }
}

object! {
    pub struct Taint {
        effect: String = "effect",
        key: String = "key",
        time_added: Option<Time> = "timeAdded",
        value: Option<String> = "value",
    }
}

object! {
    pub struct NodeAddress {
        address: String = "address",
        type_: String = "type",
    }
}

object! {
    pub struct NodeCondition {
        last_heartbeat_time: Option<Time> = "lastHeartbeatTime",
        last_transition_time: Option<Time> = "lastTransitionTime",
        message: Option<String> = "message",
        reason: Option<String> = "reason",
        status: String = "status",
        type_: String = "type",
    }
}

object! {
    pub struct NodeDaemonEndpoints {
        kubelet_endpoint: Option<DaemonEndpoint> = "kubeletEndpoint",
    }
}

object! {
    pub struct NodeFeatures {
        supplemental_groups_policy: Option<bool> = "supplementalGroupsPolicy",
    }
}

object! {
    pub struct ContainerImage {
        names: Option<Vec<String>> = "names",
        size_bytes: Option<i64> = "sizeBytes",
    }
}

object! {
    pub struct NodeSystemInfo {
        architecture: String = "architecture",
        boot_id: String = "bootID",
        container_runtime_version: String = "containerRuntimeVersion",
        kernel_version: String = "kernelVersion",
        kube_proxy_version: String = "kubeProxyVersion",
        kubelet_version: String = "kubeletVersion",
        machine_id: String = "machineID",
        operating_system: String = "operatingSystem",
        os_image: String = "osImage",
        swap: Option<NodeSwapStatus> = "swap",
        system_uuid: String = "systemUUID",
    }
}

object! {
    pub struct NodeRuntimeHandler {
        features: Option<NodeRuntimeHandlerFeatures> = "features",
        name: Option<String> = "name",
    }
}

object! {
    pub struct DaemonEndpoint {
        port: i32 = "Port",
    }
}

object! {
    pub struct NodeSwapStatus {
        capacity: Option<i64> = "capacity",
    }
}

object! {
    pub struct NodeRuntimeHandlerFeatures {
        recursive_read_only_mounts: Option<bool> = "recursiveReadOnlyMounts",
        user_namespaces: Option<bool> = "userNamespaces",
    }
}
