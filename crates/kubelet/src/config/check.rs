//! Validation of a KubeletConfiguration whose values could all be parsed.
// Upstream: pkg/kubelet/apis/config/validation/validation.go (v1.36)

use std::net::IpAddr;
use std::time::Duration;

use orlop_api::duration::parse_duration;
use serde_json::Value;

use super::{Config, parse_reclaim, parse_threshold};
use crate::cpus::{CpuSet, Options};

/// Numbers that must lie in a range: field, flag, least, most, and what is said of others.
const RANGES: &[(&str, &str, i64, i64, &str)] = &[
    ("port", "--port", 1, 65535, "must be between 1 and 65535, inclusive"),
    (
        "readOnlyPort",
        "--read-only-port",
        0,
        65535,
        "must be between 0 and 65535, inclusive",
    ),
    (
        "healthzPort",
        "--healthz-port",
        0,
        65535,
        "must be between 1 and 65535, inclusive",
    ),
    ("maxPods", "--max-pods", 0, i64::MAX, "must not be a negative number"),
    (
        "podsPerCore",
        "--pods-per-core",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "eventBurst",
        "--event-burst",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "eventRecordQPS",
        "--event-qps",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "kubeAPIBurst",
        "--kube-api-burst",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "kubeAPIQPS",
        "--kube-api-qps",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "registryBurst",
        "--registry-burst",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "registryPullQPS",
        "--registry-qps",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "maxOpenFiles",
        "--max-open-files",
        0,
        i64::MAX,
        "must not be a negative number",
    ),
    (
        "nodeStatusMaxImages",
        "--node-status-max-images",
        -1,
        i64::MAX,
        "must be -1 or greater",
    ),
    (
        "oomScoreAdj",
        "--oom-score-adj",
        -1000,
        1000,
        "must be between -1000 and 1000, inclusive",
    ),
    (
        "imageGCHighThresholdPercent",
        "--image-gc-high-threshold",
        0,
        100,
        "must be between 0 and 100, inclusive",
    ),
    (
        "imageGCLowThresholdPercent",
        "--image-gc-low-threshold",
        0,
        100,
        "must be between 0 and 100, inclusive",
    ),
    (
        "iptablesDropBit",
        "--iptables-drop-bit",
        0,
        31,
        "must be between 0 and 31, inclusive",
    ),
    (
        "iptablesMasqueradeBit",
        "--iptables-masquerade-bit",
        0,
        31,
        "must be between 0 and 31, inclusive",
    ),
    (
        "containerLogMaxFiles",
        "--container-log-max-files",
        2,
        i64::MAX,
        "must be greater than 1",
    ),
    (
        "containerLogMaxWorkers",
        "",
        1,
        i64::MAX,
        "must be greater than or equal to 1",
    ),
    ("maxParallelImagePulls", "", 1, i64::MAX, "must be a positive number"),
];

const ENFORCEMENTS: [&str; 6] = [
    "pods",
    "system-reserved",
    "kube-reserved",
    "system-reserved-compressible",
    "kube-reserved-compressible",
    "none",
];

/// Fields that may be set and change nothing, with the value that asks for nothing.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("readOnlyPort", "0"),
    ("tlsCipherSuites", "null"),
    ("tlsCurvePreferences", "null"),
    ("rotateCertificates", "false"),
    ("serverTLSBootstrap", "false"),
    ("eventRecordQPS", "50"),
    ("eventBurst", "100"),
    ("qosReserved", "null"),
    ("runtimeRequestTimeout", "\"2m0s\""),
    ("protectKernelDefaults", "false"),
    ("enableSystemLogQuery", "false"),
    ("imageServiceEndpoint", "null"),
];

pub(super) fn without_effect(document: &Value) -> Vec<&'static str> {
    let is_set = |(name, nothing): &&(&str, &str)| {
        let value = document.get(*name).unwrap_or(&Value::Null);
        let is_empty = value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
        !is_empty && serde_json::from_str::<Value>(nothing).ok().as_ref() != Some(value)
    };
    let mut names: Vec<&str> = WITHOUT_EFFECT.iter().filter(is_set).map(|(name, _)| *name).collect();
    // What is served is TLS 1.2 or newer.
    if document.get("tlsMinVersion").and_then(Value::as_str) == Some("VersionTLS13") {
        names.push("tlsMinVersion");
    }
    names
}

/// Numbers out of their range, times that are negative and addresses that are none.
pub(super) fn out_of_range(document: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (field, flag, least, most, rule) in RANGES {
        let Some(n) = document.get(field).and_then(Value::as_i64) else {
            continue;
        };
        if !(*least..=*most).contains(&n) {
            let flag = if flag.is_empty() {
                String::new()
            } else {
                format!(" ({flag})")
            };
            problems.push(format!("invalid configuration: {field}{flag} {n} {rule}"));
        }
    }
    if document["nodeLeaseDurationSeconds"].as_i64().is_none_or(|n| n <= 0) {
        problems.push("invalid configuration: nodeLeaseDurationSeconds must be greater than 0".to_string());
    }
    for field in ["address", "healthzBindAddress"] {
        let text = document[field].as_str().unwrap_or_default();
        if text.parse::<IpAddr>().is_err() {
            problems.push(format!(
                "invalid configuration: {field} {text:?} is not a valid IP address"
            ));
        }
    }
    negative_times(document, "", &mut problems);
    problems
}

/// Every text that reads as a negative duration is one: no other field may look like that.
fn negative_times(value: &Value, at: &str, problems: &mut Vec<String>) {
    let Some(map) = value.as_object() else { return };
    for (name, value) in map {
        let path = if at.is_empty() {
            name.clone()
        } else {
            format!("{at}.{name}")
        };
        match value {
            // Less than nothing is how it is switched off.
            Value::String(_) if path == "volumeStatsAggPeriod" => {}
            Value::String(text) if text.starts_with('-') && parse_duration(text).is_ok_and(|n| n < 0) => {
                problems.push(format!("invalid configuration: {path} {text} must not be negative"));
            }
            Value::Object(_) => negative_times(value, &path, problems),
            _ => {}
        }
    }
}

pub(super) fn problems(c: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    let mut say = |text: String| problems.push(format!("invalid configuration: {text}"));
    if c.image_gc_low_threshold_percent >= c.image_gc_high_threshold_percent {
        say(format!(
            "imageGCLowThresholdPercent (--image-gc-low-threshold) {} must be less than imageGCHighThresholdPercent \
             (--image-gc-high-threshold) {}",
            c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent
        ));
    }
    let max_age = c.image_maximum_gc_age;
    if !max_age.is_zero() && max_age <= c.image_minimum_gc_age {
        say(format!(
            "imageMaximumGCAge {max_age:?} must be greater than imageMinimumGCAge {:?}",
            c.image_minimum_gc_age
        ));
    }
    if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&c.cpu_cfs_quota_period) {
        say(format!(
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {:?} must be between 1ms and 1sec, inclusive",
            c.cpu_cfs_quota_period
        ));
    }
    if c.serialize_image_pulls && c.max_parallel_image_pulls.is_some_and(|n| n > 1) {
        say(
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is \
             set to false"
                .to_string(),
        );
    }
    let (all, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    if critical > all {
        say(format!(
            "shutdownGracePeriodCriticalPods {critical:?} must be <= shutdownGracePeriod {all:?}"
        ));
    }
    for (name, value) in [
        ("shutdownGracePeriod", all),
        ("shutdownGracePeriodCriticalPods", critical),
    ] {
        if !value.is_zero() && value < Duration::from_secs(1) {
            say(format!("{name} {value:?} must be either zero or otherwise >= 1 sec"));
        }
    }
    let for_all = !all.is_zero() || !critical.is_zero();
    if for_all && !c.shutdown_grace_period_by_pod_priority.is_empty() {
        say(
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".to_string(),
        );
    }
    if let Some(wrong) = (c.shutdown_grace_period_by_pod_priority.iter()).find(|p| p.shutdown_grace_period_seconds < 0)
    {
        say(format!(
            "shutdownGracePeriodByPodPriority: shutdownGracePeriodSeconds {} must not be negative",
            wrong.shutdown_grace_period_seconds
        ));
    }
    const UNIT: i64 = 65_536;
    let ids = c.user_namespaces.ids_per_pod;
    if ids < UNIT {
        say(format!("userNamespaces.idsPerPod must not be less than {UNIT}"));
    } else if ids % UNIT != 0 {
        say(format!("userNamespaces.idsPerPod must be a multiple of {UNIT}"));
    } else if ids > i64::from(u32::MAX) {
        say(format!("userNamespaces.idsPerPod must not be more than {}", u32::MAX));
    }
    if c.tls_cert_file.is_some() != c.tls_private_key_file.is_some() {
        say("tlsCertFile and tlsPrivateKeyFile must be given together".to_string());
    }
    if !c.pod_cidr.is_empty() && c.pod_cidr.split(',').any(|part| part.parse::<ipnet::IpNet>().is_err()) {
        say(format!("podCIDR {:?} is not a valid CIDR", c.pod_cidr));
    }
    for address in c.cluster_dns.iter().filter(|text| text.parse::<IpAddr>().is_err()) {
        say(format!("clusterDNS {address:?} is not a valid IP address"));
    }
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(300));
    if let Some(period) = c.crash_loop_back_off.max_container_restart_period
        && !(least..=most).contains(&period)
    {
        say(format!(
            "crashLoopBackOff.maxContainerRestartPeriod {period:?} must be set between {least:?} and {most:?}"
        ));
    }
    enforcement(c, &mut say);
    eviction(c, &mut say);
    cpus(c, &mut say);
    problems
}

fn cpus(c: &Config, say: &mut impl FnMut(String)) {
    if let Err(why) = Options::parse(&c.cpu_manager_policy_options) {
        say(format!("cpuManagerPolicyOptions (--cpu-manager-policy-options) {why}"));
    }
    if !c.cpu_manager_policy_options.is_empty() && c.cpu_manager_policy != "static" {
        say(format!(
            "cpuManagerPolicyOptions (--cpu-manager-policy-options) received unsupported options for the policy {:?}",
            c.cpu_manager_policy
        ));
    }
    if let Err(why) = c.reserved_system_cpus.parse::<CpuSet>() {
        say(format!("reservedSystemCPUs (--reserved-cpus) {why}"));
    }
    if c.memory_manager_policy == "Static" {
        say("memoryManagerPolicy (--memory-manager-policy) Static is not supported here, only None".to_string());
    }
    if let Some(name) = c.topology_manager_policy_options.keys().next() {
        say(format!(
            "topologyManagerPolicyOptions (--topology-manager-policy-options) option {name:?} is not supported here"
        ));
    }
}

fn enforcement(c: &Config, say: &mut impl FnMut(String)) {
    for (i, value) in c.enforce_node_allocatable.iter().enumerate() {
        if c.enforce_node_allocatable[..i].contains(value) {
            say(format!(
                "duplicated enforcements {value:?} in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
        if !ENFORCEMENTS.contains(&value.as_str()) {
            say(format!(
                "option {value:?} specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options \
                 are {}",
                ENFORCEMENTS.map(|word| format!("{word:?}")).join(", ")
            ));
        }
        if value == "none" && c.enforce_node_allocatable.len() > 1 {
            say(
                "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when \
                 \"none\" is specified"
                    .to_string(),
            );
        }
        for (what, group) in [("system", &c.system_reserved_cgroup), ("kube", &c.kube_reserved_cgroup)] {
            if value.strip_suffix("-compressible").unwrap_or(value) == format!("{what}-reserved") && group.is_empty() {
                say(format!(
                    "{what}ReservedCgroup (--{what}-reserved-cgroup) must be specified when {value:?} contained in \
                     enforceNodeAllocatable (--enforce-node-allocatable)"
                ));
            }
        }
        if value == "pods" && !c.cgroups_per_qos {
            say(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in \
                 enforceNodeAllocatable (--enforce-node-allocatable)"
                    .to_string(),
            );
        }
    }
}

fn eviction(c: &Config, say: &mut impl FnMut(String)) {
    for (signal, text) in &c.eviction_minimum_reclaim {
        if let Err(why) = parse_reclaim(signal, text) {
            say(why.to_string());
        }
    }
    for thresholds in [&c.eviction_hard, &c.eviction_soft] {
        for (signal, text) in thresholds {
            if let Err(why) = parse_threshold(signal, text) {
                say(why.to_string());
            }
        }
    }
    for signal in c.eviction_soft.keys() {
        match c
            .eviction_soft_grace_period
            .get(signal)
            .map(|text| parse_duration(text))
        {
            Some(Ok(n)) if n >= 0 => {}
            Some(_) => say(format!(
                "invalid eviction grace period specified: {signal}, must be a positive value"
            )),
            None => say(format!(
                "grace period must be specified for the soft eviction threshold {signal}"
            )),
        }
    }
}
