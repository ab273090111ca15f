//! The kubelet's configuration: `kubelet.config.k8s.io/v1beta1` KubeletConfiguration, decoded strictly.
//!
//! A document goes through the table of fields (`table`, `read`), which names unknown fields and values of the wrong type
//! and sets Kubernetes' defaults; then it is validated (`check`). Every problem is reported at once. Flags replace fields
//! before that, so that they are validated alike. The whole document is kept for `/configz`; [`Config`] has the fields
//! that the kubelet uses.

mod check;
pub mod effective;
mod read;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use orlop_api::duration::parse_duration;
use orlop_api::quantity::Quantity;
use orlop_api::types::core::Taint;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// What the kubelet goes by. Names as in Kubernetes' reference.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub enable_server: bool,
    #[serde(default)]
    pub static_pod_path: Option<PathBuf>,
    pub pod_logs_dir: PathBuf,
    #[serde(deserialize_with = "duration")]
    pub sync_frequency: Duration,
    #[serde(deserialize_with = "duration")]
    pub file_check_frequency: Duration,
    #[serde(deserialize_with = "duration")]
    pub http_check_frequency: Duration,
    #[serde(default, rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(default, rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub address: IpAddr,
    pub port: u16,
    pub read_only_port: u16,
    #[serde(default)]
    pub tls_cert_file: Option<PathBuf>,
    #[serde(default)]
    pub tls_private_key_file: Option<PathBuf>,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    pub enable_debugging_handlers: bool,
    pub healthz_port: u16,
    pub healthz_bind_address: IpAddr,
    #[serde(default)]
    pub cluster_domain: String,
    #[serde(default, rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    #[serde(deserialize_with = "duration")]
    pub streaming_connection_idle_timeout: Duration,
    #[serde(deserialize_with = "duration")]
    pub node_status_update_frequency: Duration,
    #[serde(deserialize_with = "duration")]
    pub node_status_report_frequency: Duration,
    pub node_lease_duration_seconds: i32,
    #[serde(deserialize_with = "duration", rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: Duration,
    /// Zero for no limit.
    #[serde(deserialize_with = "duration", rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: Duration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    #[serde(default)]
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    /// `cgroupfs` or `systemd`; a runtime that knows its own is believed.
    pub cgroup_driver: String,
    #[serde(deserialize_with = "duration")]
    pub runtime_request_timeout: Duration,
    pub max_pods: u32,
    #[serde(default, rename = "podCIDR")]
    pub pod_cidr: String,
    /// -1 for none.
    pub pod_pids_limit: i64,
    pub resolv_conf: String,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(deserialize_with = "duration", rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: Duration,
    /// -1 for all.
    pub node_status_max_images: i32,
    pub serialize_image_pulls: bool,
    #[serde(default)]
    pub max_parallel_image_pulls: Option<u32>,
    pub eviction_hard: BTreeMap<String, String>,
    #[serde(default)]
    pub eviction_soft: BTreeMap<String, String>,
    #[serde(default)]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    #[serde(deserialize_with = "duration")]
    pub eviction_pressure_transition_period: Duration,
    pub eviction_max_pod_grace_period: i32,
    #[serde(default)]
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub pods_per_core: u32,
    pub enable_controller_attach_detach: bool,
    #[serde(default)]
    pub feature_gates: BTreeMap<String, bool>,
    pub fail_swap_on: bool,
    pub memory_swap: MemorySwap,
    /// A quantity.
    pub container_log_max_size: String,
    pub container_log_max_files: u32,
    #[serde(deserialize_with = "duration")]
    pub container_log_monitor_interval: Duration,
    #[serde(default)]
    pub system_reserved: BTreeMap<String, String>,
    #[serde(default)]
    pub kube_reserved: BTreeMap<String, String>,
    #[serde(default, rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub cpu_manager_policy: String,
    #[serde(default)]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    #[serde(deserialize_with = "duration")]
    pub cpu_manager_reconcile_period: Duration,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    #[serde(default)]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub memory_manager_policy: String,
    pub enforce_node_allocatable: Vec<String>,
    #[serde(default)]
    pub system_reserved_cgroup: String,
    #[serde(default)]
    pub kube_reserved_cgroup: String,
    pub oom_score_adj: i32,
    pub max_open_files: u64,
    #[serde(default)]
    pub allowed_unsafe_sysctls: Vec<String>,
    #[serde(default, rename = "providerID")]
    pub provider_id: String,
    pub enable_system_log_handler: bool,
    #[serde(deserialize_with = "duration")]
    pub shutdown_grace_period: Duration,
    #[serde(deserialize_with = "duration")]
    pub shutdown_grace_period_critical_pods: Duration,
    #[serde(default)]
    pub shutdown_grace_period_by_pod_priority: Vec<PriorityGrace>,
    #[serde(default)]
    pub crash_loop_back_off: CrashLoopBackOff,
    pub seccomp_default: bool,
    #[serde(default)]
    pub register_with_taints: Vec<Taint>,
    pub register_node: bool,
    pub local_storage_capacity_isolation: bool,
    pub container_runtime_endpoint: String,
    #[serde(default)]
    pub image_service_endpoint: String,
    #[serde(default)]
    pub user_namespaces: UserNamespaces,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    /// The whole configuration with everything filled in.
    #[serde(skip)]
    pub document: Value,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: WebhookAuthentication,
    pub anonymous: Anonymous,
}

#[derive(Clone, Debug, Deserialize)]
pub struct X509 {
    #[serde(default, rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WebhookAuthentication {
    pub enabled: bool,
    #[serde(deserialize_with = "duration", rename = "cacheTTL")]
    pub cache_ttl: Duration,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Anonymous {
    pub enabled: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Authorization {
    pub mode: AuthorizationMode,
    pub webhook: WebhookAuthorization,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum AuthorizationMode {
    AlwaysAllow,
    Webhook,
}

#[derive(Clone, Debug, Deserialize)]
pub struct WebhookAuthorization {
    #[serde(deserialize_with = "duration", rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: Duration,
    #[serde(deserialize_with = "duration", rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: Duration,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemorySwap {
    #[serde(default)]
    pub swap_behavior: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    #[serde(deserialize_with = "maybe_duration")]
    pub max_container_restart_period: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespaces {
    pub ids_per_pod: i64,
}

impl Default for UserNamespaces {
    fn default() -> UserNamespaces {
        UserNamespaces { ids_per_pod: 65_536 }
    }
}

/// How long pods may take to end when the machine goes down, from this priority up to the next one in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityGrace {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// What `evictionHard` and its like may name.
pub const SIGNALS: [&str; 8] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

/// A threshold of an eviction signal.
#[derive(Clone, Debug, PartialEq)]
pub enum Threshold {
    Quantity(Quantity),
    /// Of the capacity: 0.1 for ten per cent.
    Fraction(f64),
}

/// What is wrong with a threshold in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ThresholdError(String);

/// How much more than its threshold is to be freed of a signal: `0Mi` or `10%`.
pub fn parse_reclaim(signal: &str, text: &str) -> Result<Threshold, ThresholdError> {
    match text.strip_suffix('%') {
        Some(_) => match parse_threshold(signal, text)? {
            Some(threshold) => Ok(threshold),
            None if text.starts_with("100") => Ok(Threshold::Fraction(1.0)),
            None => Err(ThresholdError(format!(
                "eviction percentage minimum reclaim {signal} must be positive: {text}"
            ))),
        },
        None if !SIGNALS.contains(&signal) => Err(ThresholdError(format!("unsupported eviction signal {signal}"))),
        None => match Quantity::parse(text).map_err(|e| ThresholdError(e.to_string()))? {
            amount if amount.is_negative() => Err(ThresholdError(format!(
                "negative eviction minimum reclaim specified for {signal}"
            ))),
            amount => Ok(Threshold::Quantity(amount)),
        },
    }
}

/// `100Mi` or `10%`; none for 0% and 100%, which switch a threshold off.
pub fn parse_threshold(signal: &str, text: &str) -> Result<Option<Threshold>, ThresholdError> {
    if !SIGNALS.contains(&signal) {
        return Err(ThresholdError(format!("unsupported eviction signal {signal}")));
    }
    let Some(percent) = text.strip_suffix('%') else {
        let quantity = Quantity::parse(text).map_err(|e| ThresholdError(e.to_string()))?;
        if quantity.is_zero() || quantity.is_negative() {
            return Err(ThresholdError(format!(
                "eviction threshold {signal} must be positive: {text}"
            )));
        }
        return Ok(Some(Threshold::Quantity(quantity)));
    };
    match percent.parse::<f64>() {
        Ok(n) if n == 0.0 || n == 100.0 => Ok(None),
        Ok(n) if n < 0.0 => Err(ThresholdError(format!(
            "eviction percentage threshold {signal} must be >= 0%: {text}"
        ))),
        Ok(n) if n > 100.0 => Err(ThresholdError(format!(
            "eviction percentage threshold {signal} must be <= 100%: {text}"
        ))),
        Ok(n) if n.is_finite() => Ok(Some(Threshold::Fraction(n / 100.0))),
        _ => Err(ThresholdError(format!(
            "eviction percentage threshold {signal} must be a percentage: {text}"
        ))),
    }
}

/// A flag that was given: the field it stands for (`authentication.anonymous.enabled`), and its value.
pub type Override = (&'static str, Value);

/// Reads a KubeletConfiguration in YAML or JSON (none: the defaults) with flags in place of fields. Gives every problem.
pub fn parse(text: Option<&str>, flags: &[Override]) -> Result<Config, Vec<String>> {
    let mut document = match text {
        Some(text) => read::document(text).map_err(|problem| vec![problem])?,
        None => json!({"apiVersion": read::API_VERSION, "kind": read::KIND}),
    };
    for (field, value) in flags {
        set(&mut document, field, value.clone());
    }
    follow_update_frequency(&mut document);
    let (mut document, mut problems) = read::complete(&document);
    settle(&mut document);
    problems.extend(check::out_of_range(&document));
    match serde_json::from_value::<Config>(document.clone()) {
        Ok(mut config) => {
            problems.extend(check::problems(&config));
            config.document = document;
            if problems.is_empty() { Ok(config) } else { Err(problems) }
        }
        // Said above: numbers that can be no port or count, addresses that are none.
        Err(_) if !problems.is_empty() => Err(problems),
        Err(error) => Err(vec![error.to_string()]),
    }
}

impl Default for Config {
    fn default() -> Config {
        parse(None, &[]).expect("the defaults are valid")
    }
}

impl Config {
    /// Fields that ask for what the kubelet does not do, though it takes them for others' sake.
    pub fn without_effect(&self) -> Vec<&'static str> {
        check::without_effect(&self.document)
    }

    /// What is found out only when the kubelet runs, for those who ask what is in effect.
    pub fn turned_out(&mut self, field: &str, value: Value) {
        set(&mut self.document, field, value);
    }

    /// A feature by its name; `default` if the configuration says nothing of it.
    pub fn feature(&self, name: &str, default: bool) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(default)
    }
}

fn set(document: &mut Value, field: &str, value: Value) {
    let mut here = document;
    for name in field.split('.') {
        if !here.is_object() {
            *here = Value::Object(Map::new());
        }
        let map = here.as_object_mut().expect("made one above");
        here = map.entry(name.to_string()).or_insert(Value::Null);
    }
    *here = value;
}

/// Whoever asks for quicker checks of the node's status means quicker reports, too.
fn follow_update_frequency(document: &mut Value) {
    let given = |name: &str| document.get(name).filter(|v| v.as_str().is_some_and(|s| s != "0s"));
    if let (Some(update), None) = (
        given("nodeStatusUpdateFrequency").cloned(),
        given("nodeStatusReportFrequency"),
    ) {
        set(document, "nodeStatusReportFrequency", update);
    }
}

/// Defaults that depend on other fields.
fn settle(document: &mut Value) {
    if document.get("serializeImagePulls").is_none() {
        let parallel = document.get("maxParallelImagePulls").and_then(Value::as_i64);
        set(document, "serializeImagePulls", json!(parallel.is_none_or(|n| n < 2)));
    }
    if document["podPidsLimit"].as_i64().is_some_and(|n| n < 0) {
        document["podPidsLimit"] = json!(-1);
    }
    if document["mergeDefaultEvictionSettings"] == json!(true)
        && let Some(given) = document["evictionHard"].as_object_mut()
    {
        for (signal, value) in table::EVICTION_HARD {
            given.entry(signal.to_string()).or_insert(json!(value));
        }
    }
}

fn maybe_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let nanos = parse_duration(&text).map_err(serde::de::Error::custom)?;
    let nanos = u64::try_from(nanos).map_err(|_| serde::de::Error::custom(format!("{text} must not be negative")))?;
    Ok(Duration::from_nanos(nanos))
}
