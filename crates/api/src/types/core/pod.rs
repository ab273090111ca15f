//! Pods and what they say about where and how they run.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Container, EphemeralContainer, LocalObjectReference, PodSecurityContext, PodStatus, ResourceRequirements, Volume,
};
use crate::types::json::{kind, object};
use crate::types::meta::{ObjectMeta, Quantity};

kind! {
    "v1";
    pub struct Pod {
        metadata: ObjectMeta = "metadata",
        spec: Option<PodSpec> = "spec",
        status: Option<PodStatus> = "status",
    }
}

object! {
    pub struct PodSpec {
        active_deadline_seconds: Option<i64> = "activeDeadlineSeconds",
        affinity: Option<Affinity> = "affinity",
        automount_service_account_token: Option<bool> = "automountServiceAccountToken",
        containers: Vec<Container> = "containers",
        dns_config: Option<PodDNSConfig> = "dnsConfig",
        dns_policy: Option<String> = "dnsPolicy",
        enable_service_links: Option<bool> = "enableServiceLinks",
        ephemeral_containers: Option<Vec<EphemeralContainer>> = "ephemeralContainers",
        host_aliases: Option<Vec<HostAlias>> = "hostAliases",
        host_ipc: Option<bool> = "hostIPC",
        host_network: Option<bool> = "hostNetwork",
        host_pid: Option<bool> = "hostPID",
        host_users: Option<bool> = "hostUsers",
        hostname: Option<String> = "hostname",
        hostname_override: Option<String> = "hostnameOverride",
        image_pull_secrets: Option<Vec<LocalObjectReference>> = "imagePullSecrets",
        init_containers: Option<Vec<Container>> = "initContainers",
        node_name: Option<String> = "nodeName",
        node_selector: Option<BTreeMap<String, String>> = "nodeSelector",
        os: Option<PodOS> = "os",
        overhead: Option<BTreeMap<String, Quantity>> = "overhead",
        preemption_policy: Option<String> = "preemptionPolicy",
        priority: Option<i32> = "priority",
        priority_class_name: Option<String> = "priorityClassName",
        readiness_gates: Option<Vec<PodReadinessGate>> = "readinessGates",
        resource_claims: Option<Vec<Value>> = "resourceClaims",
        resources: Option<ResourceRequirements> = "resources",
        restart_policy: Option<String> = "restartPolicy",
        runtime_class_name: Option<String> = "runtimeClassName",
        scheduler_name: Option<String> = "schedulerName",
        scheduling_gates: Option<Vec<Value>> = "schedulingGates",
        scheduling_group: Option<Value> = "schedulingGroup",
        security_context: Option<PodSecurityContext> = "securityContext",
        service_account: Option<String> = "serviceAccount",
        service_account_name: Option<String> = "serviceAccountName",
        set_hostname_as_fqdn: Option<bool> = "setHostnameAsFQDN",
        share_process_namespace: Option<bool> = "shareProcessNamespace",
        subdomain: Option<String> = "subdomain",
        termination_grace_period_seconds: Option<i64> = "terminationGracePeriodSeconds",
        tolerations: Option<Vec<Toleration>> = "tolerations",
        topology_spread_constraints: Option<Vec<Value>> = "topologySpreadConstraints",
        volumes: Option<Vec<Volume>> = "volumes",
    }
}

object! {
    pub struct Affinity {
        node_affinity: Option<NodeAffinity> = "nodeAffinity",
        pod_affinity: Option<Value> = "podAffinity",
        pod_anti_affinity: Option<Value> = "podAntiAffinity",
    }
}

object! {
    pub struct PodDNSConfig {
        nameservers: Option<Vec<String>> = "nameservers",
        options: Option<Vec<PodDNSConfigOption>> = "options",
        searches: Option<Vec<String>> = "searches",
    }
}

object! {
    pub struct HostAlias {
        hostnames: Option<Vec<String>> = "hostnames",
        ip: String = "ip",
    }
}

object! {
    pub struct PodOS {
        name: String = "name",
    }
}

object! {
    pub struct PodReadinessGate {
        condition_type: String = "conditionType",
    }
}

object! {
    pub struct Toleration {
        effect: Option<String> = "effect",
        key: Option<String> = "key",
        operator: Option<String> = "operator",
        toleration_seconds: Option<i64> = "tolerationSeconds",
        value: Option<String> = "value",
    }
}

object! {
    pub struct NodeAffinity {
        preferred_during_scheduling_ignored_during_execution: Option<Vec<Value>> = "preferredDuringSchedulingIgnoredDuringExecution",
        required_during_scheduling_ignored_during_execution: Option<NodeSelector> = "requiredDuringSchedulingIgnoredDuringExecution",
        required_during_scheduling_required_during_execution: Option<Value> = "requiredDuringSchedulingRequiredDuringExecution",
    }
}

object! {
    pub struct PodDNSConfigOption {
        name: Option<String> = "name",
        value: Option<String> = "value",
    }
}

object! {
    pub struct NodeSelector {
        node_selector_terms: Vec<NodeSelectorTerm> = "nodeSelectorTerms",
    }
}

object! {
    pub struct NodeSelectorTerm {
        match_expressions: Option<Vec<NodeSelectorRequirement>> = "matchExpressions",
        match_fields: Option<Vec<NodeSelectorRequirement>> = "matchFields",
    }
}

object! {
    pub struct NodeSelectorRequirement {
        key: String = "key",
        operator: String = "operator",
        values: Option<Vec<String>> = "values",
    }
}
