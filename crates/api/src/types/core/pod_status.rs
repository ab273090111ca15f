//! What a node reports of a pod and its containers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::ResourceRequirements;
use crate::types::json::object;
use crate::types::meta::{Quantity, Time};

object! {
    pub struct PodStatus {
        allocated_resources: Option<BTreeMap<String, Quantity>> = "allocatedResources",
        conditions: Option<Vec<PodCondition>> = "conditions",
        container_statuses: Option<Vec<ContainerStatus>> = "containerStatuses",
        ephemeral_container_statuses: Option<Vec<ContainerStatus>> = "ephemeralContainerStatuses",
        extended_resource_claim_status: Option<Value> = "extendedResourceClaimStatus",
        host_ip: Option<String> = "hostIP",
        host_ips: Option<Vec<HostIP>> = "hostIPs",
        init_container_statuses: Option<Vec<ContainerStatus>> = "initContainerStatuses",
        message: Option<String> = "message",
        node_allocatable_resource_claim_statuses: Option<Vec<Value>> = "nodeAllocatableResourceClaimStatuses",
        nominated_node_name: Option<String> = "nominatedNodeName",
        observed_generation: Option<i64> = "observedGeneration",
        phase: Option<String> = "phase",
        pod_ip: Option<String> = "podIP",
        pod_ips: Option<Vec<PodIP>> = "podIPs",
        qos_class: Option<String> = "qosClass",
        reason: Option<String> = "reason",
        resize: Option<String> = "resize",
        resource_claim_statuses: Option<Vec<Value>> = "resourceClaimStatuses",
        resources: Option<ResourceRequirements> = "resources",
        start_time: Option<Time> = "startTime",
    }
}

object! {
    pub struct PodCondition {
        last_probe_time: Option<Time> = "lastProbeTime",
        last_transition_time: Option<Time> = "lastTransitionTime",
        message: Option<String> = "message",
        observed_generation: Option<i64> = "observedGeneration",
        reason: Option<String> = "reason",
        status: String = "status",
        type_: String = "type",
    }
}

object! {
    pub struct ContainerStatus {
        allocated_resources: Option<BTreeMap<String, Quantity>> = "allocatedResources",
        allocated_resources_status: Option<Vec<Value>> = "allocatedResourcesStatus",
        container_id: Option<String> = "containerID",
        image: String = "image",
        image_id: String = "imageID",
        last_state: Option<ContainerState> = "lastState",
        name: String = "name",
        ready: bool = "ready",
        resources: Option<ResourceRequirements> = "resources",
        restart_count: i32 = "restartCount",
        started: Option<bool> = "started",
        state: Option<ContainerState> = "state",
        stop_signal: Option<String> = "stopSignal",
        user: Option<ContainerUser> = "user",
        volume_mounts: Option<Vec<VolumeMountStatus>> = "volumeMounts",
    }
}

object! {
    pub struct HostIP {
        ip: String = "ip",
    }
}

object! {
    pub struct PodIP {
        ip: String = "ip",
    }
}

object! {
    pub struct ContainerState {
        running: Option<ContainerStateRunning> = "running",
        terminated: Option<ContainerStateTerminated> = "terminated",
        waiting: Option<ContainerStateWaiting> = "waiting",
    }
}

object! {
    pub struct ContainerUser {
        linux: Option<LinuxContainerUser> = "linux",
    }
}

object! {
    pub struct VolumeMountStatus {
        mount_path: String = "mountPath",
        name: String = "name",
        read_only: Option<bool> = "readOnly",
        recursive_read_only: Option<String> = "recursiveReadOnly",
        volume_status: Option<VolumeStatus> = "volumeStatus",
    }
}

object! {
    pub struct ContainerStateRunning {
        started_at: Option<Time> = "startedAt",
    }
}

object! {
    pub struct ContainerStateTerminated {
        container_id: Option<String> = "containerID",
        exit_code: i32 = "exitCode",
        finished_at: Option<Time> = "finishedAt",
        message: Option<String> = "message",
        reason: Option<String> = "reason",
        signal: Option<i32> = "signal",
        started_at: Option<Time> = "startedAt",
    }
}

object! {
    pub struct ContainerStateWaiting {
        message: Option<String> = "message",
        reason: Option<String> = "reason",
    }
}

object! {
    pub struct LinuxContainerUser {
        gid: i64 = "gid",
        supplemental_groups: Option<Vec<i64>> = "supplementalGroups",
        uid: i64 = "uid",
    }
}

object! {
    pub struct VolumeStatus {
        image: Option<ImageVolumeStatus> = "image",
    }
}

object! {
    pub struct ImageVolumeStatus {
        image_ref: String = "imageRef",
    }
}
