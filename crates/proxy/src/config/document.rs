//! The document as it is written, before it is understood.

use std::time::Duration;

use orlop_api::duration::parse_duration;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{API_VERSION, Conntrack, KIND, Marks, Override, Periods};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Document {
    pub client_connection: ClientConnection,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub mode: String,
    pub iptables: Tables,
    pub nftables: Tables,
    pub ipvs: Ipvs,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: Option<i32>,
    pub conntrack: Timeouts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClientConnection {
    pub kubeconfig: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Tables {
    pub masquerade_bit: Option<i64>,
    pub masquerade_all: bool,
    pub localhost_node_ports: Option<bool>,
    pub sync_period: String,
    pub min_sync_period: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Ipvs {
    pub sync_period: String,
    pub min_sync_period: String,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: String,
    pub tcp_fin_timeout: String,
    pub udp_timeout: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Timeouts {
    pub max_per_core: Option<i64>,
    pub min: Option<i64>,
    pub tcp_established_timeout: Option<String>,
    pub tcp_close_wait_timeout: Option<String>,
    pub tcp_be_liberal: bool,
    pub udp_timeout: String,
    pub udp_stream_timeout: String,
}

/// All fields, by their paths. Those that a proxy on Linux has no use for are taken without a word.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "apiVersion",
            "kind",
            "featureGates",
            "clientConnection",
            "logging",
            "hostnameOverride",
            "bindAddress",
            "healthzBindAddress",
            "metricsBindAddress",
            "bindAddressHardFail",
            "enableProfiling",
            "showHiddenMetricsForVersion",
            "mode",
            "iptables",
            "ipvs",
            "nftables",
            "winkernel",
            "detectLocalMode",
            "detectLocal",
            "clusterCIDR",
            "nodePortAddresses",
            "oomScoreAdj",
            "conntrack",
            "configSyncPeriod",
            "portRange",
            "windowsRunAsService",
        ],
    ),
    (
        "clientConnection",
        &["kubeconfig", "acceptContentTypes", "contentType", "qps", "burst"],
    ),
    (
        "iptables",
        &[
            "masqueradeBit",
            "masqueradeAll",
            "localhostNodePorts",
            "syncPeriod",
            "minSyncPeriod",
        ],
    ),
    (
        "nftables",
        &["masqueradeBit", "masqueradeAll", "syncPeriod", "minSyncPeriod"],
    ),
    (
        "ipvs",
        &[
            "syncPeriod",
            "minSyncPeriod",
            "scheduler",
            "excludeCIDRs",
            "strictARP",
            "tcpTimeout",
            "tcpFinTimeout",
            "udpTimeout",
        ],
    ),
    ("detectLocal", &["bridgeInterface", "interfaceNamePrefix"]),
    (
        "conntrack",
        &[
            "maxPerCore",
            "min",
            "tcpEstablishedTimeout",
            "tcpCloseWaitTimeout",
            "tcpBeLiberal",
            "udpTimeout",
            "udpStreamTimeout",
        ],
    ),
];

/// The document with the flags in it, and what it says that nobody knows.
pub(super) fn read(text: &str, overrides: &[Override]) -> Result<(Document, Vec<String>), Vec<String>> {
    let mut value: Value = match text.trim().is_empty() {
        true => Value::Null,
        false => serde_saphyr::from_str(text).map_err(|e| vec![format!("invalid YAML: {e}")])?,
    };
    if value.is_null() {
        value = Value::Object(Map::new());
    }
    let Some(root) = value.as_object_mut() else {
        return Err(vec!["must be a mapping".to_string()]);
    };
    for (field, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match root.get(field) {
            None => {}
            Some(found) if found == want => {}
            Some(found) => return Err(vec![format!("{field}: {found}: must be {want}")]),
        }
    }
    for (path, value) in overrides {
        set(root, path, value.clone());
    }
    without_nulls(&mut value);
    let warnings = unknown(&value);
    let document = serde_json::from_value(value).map_err(|e| vec![e.to_string()])?;
    Ok((document, warnings))
}

fn set(root: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            root.insert(path.to_string(), value);
        }
        Some((first, rest)) => {
            let inner = root.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            set(inner.as_object_mut().expect("it was made one"), rest, value);
        }
    }
}

/// `field: null` says as much as no field.
fn without_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(without_nulls);
    }
}

fn unknown(value: &Value) -> Vec<String> {
    let mut found = vec![];
    for (path, fields) in FIELDS {
        let part = if path.is_empty() { Some(value) } else { value.get(path) };
        let names = part.and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
        for name in names.filter(|name| !fields.contains(&&***name)) {
            let dot = if path.is_empty() { "" } else { "." };
            found.push(format!("unknown field {path}{dot}{name}"));
        }
    }
    found
}

pub(super) fn duration(field: &str, text: &str, problems: &mut Vec<String>) -> Duration {
    if text.is_empty() {
        return Duration::ZERO;
    }
    match parse_duration(text) {
        Ok(nanos) if nanos >= 0 => return Duration::from_nanos(nanos as u64),
        Ok(_) => problems.push(format!("{field}: {text}: must be greater than or equal to 0")),
        Err(e) => problems.push(format!("{field}: {e}")),
    }
    Duration::ZERO
}

fn periods(path: &str, sync: &str, min: &str, problems: &mut Vec<String>) -> Periods {
    let given = duration(&format!("{path}.syncPeriod"), sync, problems);
    let periods = Periods {
        sync: if given.is_zero() {
            Duration::from_secs(30)
        } else {
            given
        },
        min_sync: duration(&format!("{path}.minSyncPeriod"), min, problems),
    };
    if periods.sync < periods.min_sync {
        problems.push(format!(
            "{path}.syncPeriod: must be greater than or equal to {path}.minSyncPeriod"
        ));
    }
    periods
}

impl Tables {
    pub(super) fn periods(&self, path: &str, problems: &mut Vec<String>) -> Periods {
        periods(path, &self.sync_period, &self.min_sync_period, problems)
    }

    pub(super) fn marks(&self, path: &str, problems: &mut Vec<String>) -> Marks {
        let bit = self.masquerade_bit.unwrap_or(14);
        if !(0..32).contains(&bit) {
            problems.push(format!("{path}.masqueradeBit: {bit}: must be within the range [0, 31]"));
        }
        Marks {
            masquerade_bit: bit.clamp(0, 31) as u8,
            masquerade_all: self.masquerade_all,
        }
    }
}

impl Ipvs {
    pub(super) fn periods(&self, problems: &mut Vec<String>) -> Periods {
        periods("ipvs", &self.sync_period, &self.min_sync_period, problems)
    }
}

impl Timeouts {
    pub(super) fn understand(&self, problems: &mut Vec<String>) -> Conntrack {
        let mut count = |field: &str, given: Option<i64>, default: u32| {
            let number = given.unwrap_or(i64::from(default));
            u32::try_from(number).unwrap_or_else(|_| {
                problems.push(format!(
                    "conntrack.{field}: {number}: must be greater than or equal to 0"
                ));
                default
            })
        };
        let (max_per_core, min) = (
            count("maxPerCore", self.max_per_core, 32 * 1024),
            count("min", self.min, 128 * 1024),
        );
        let mut time = |field: &str, text: Option<&str>, default: &str| {
            duration(&format!("conntrack.{field}"), text.unwrap_or(default), problems)
        };
        Conntrack {
            max_per_core,
            min,
            tcp_established_timeout: time("tcpEstablishedTimeout", self.tcp_established_timeout.as_deref(), "24h"),
            tcp_close_wait_timeout: time("tcpCloseWaitTimeout", self.tcp_close_wait_timeout.as_deref(), "1h"),
            tcp_be_liberal: self.tcp_be_liberal,
            udp_timeout: time("udpTimeout", Some(&self.udp_timeout), ""),
            udp_stream_timeout: time("udpStreamTimeout", Some(&self.udp_stream_timeout), ""),
        }
    }
}
