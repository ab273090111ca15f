//! The node's capacity, and what of it is allocatable to pods: the rest is reserved for the system, for Kubernetes' daemons
//! and for the hard eviction thresholds.

use std::collections::BTreeMap;

use orlop_api::quantity::{Format, Quantity};
use orlop_api::types::meta::Quantity as ApiQuantity;

use super::Machine;
use crate::config::{Config, Threshold, parse_threshold};
use crate::cpus::CpuSet;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";
pub const HUGE_PAGES: &str = "hugepages-";

/// Resources by name.
pub type Resources = BTreeMap<String, Quantity>;

pub fn capacity(machine: &Machine, config: &Config) -> Resources {
    let bytes = |n: u64| Quantity::from_i64(i64::try_from(n).unwrap_or(i64::MAX), Format::BinarySI);
    let count = |n: u64| Quantity::from_i64(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSI);
    let mut all = Resources::new();
    all.insert(CPU.into(), count(machine.cores));
    all.insert(MEMORY.into(), bytes(machine.memory_bytes));
    all.insert(PODS.into(), count(max_pods(machine, config)));
    if config.local_storage_capacity_isolation {
        all.insert(EPHEMERAL_STORAGE.into(), bytes(machine.storage_bytes));
    }
    for (size, total) in &machine.huge_pages {
        all.insert(format!("{HUGE_PAGES}{}", bytes(*size).canonical()), bytes(*total));
    }
    all
}

fn max_pods(machine: &Machine, config: &Config) -> u64 {
    match u64::from(config.pods_per_core) * machine.cores {
        0 => config.max_pods.into(),
        by_cores => by_cores.min(config.max_pods.into()),
    }
}

/// Capacity without what is kept back. Huge pages are no memory for other use.
pub fn allocatable(capacity: &Resources, config: &Config) -> Resources {
    let mut free = capacity.clone();
    for (name, amount) in reservations(capacity, config) {
        if let Some(quantity) = free.get_mut(&name) {
            take(quantity, &amount);
        }
    }
    let huge: Vec<Quantity> = capacity
        .iter()
        .filter(|(name, _)| name.starts_with(HUGE_PAGES))
        .map(|(_, total)| total.clone())
        .collect();
    if let Some(memory) = free.get_mut(MEMORY) {
        huge.iter().for_each(|total| take(memory, total));
    }
    free
}

fn take(from: &mut Quantity, amount: &Quantity) {
    from.sub(amount);
    if from.is_negative() {
        *from = Quantity::from_i64(0, from.format());
    }
}

fn reservations(capacity: &Resources, config: &Config) -> Resources {
    let mut kept = Resources::new();
    let mut keep = |name: &str, amount: &Quantity| {
        kept.entry(name.to_string()).or_insert(Quantity::ZERO).add(amount);
    };
    // CPUs kept for the system by number take the place of shares of them.
    let by_number = cpu_count(&config.reserved_system_cpus);
    for (name, text) in config.system_reserved.iter().chain(&config.kube_reserved) {
        if name == CPU && by_number.is_some() {
            continue;
        }
        keep(name, &checked(text));
    }
    if let Some(cores) = by_number {
        keep(CPU, &Quantity::from_i64(cores, Format::DecimalSI));
    }
    for (signal, resource) in [("memory.available", MEMORY), ("nodefs.available", EPHEMERAL_STORAGE)] {
        let (Some(text), Some(total)) = (config.eviction_hard.get(signal), capacity.get(resource)) else {
            continue;
        };
        match parse_threshold(signal, text) {
            Ok(Some(Threshold::Quantity(amount))) => keep(resource, &amount),
            Ok(Some(Threshold::Fraction(part))) => {
                let amount = (total.value() as f64 * part) as i64;
                keep(resource, &Quantity::from_i64(amount, Format::BinarySI));
            }
            Ok(None) | Err(_) => {}
        }
    }
    kept
}

/// A quantity of the configuration.
pub fn checked(text: &str) -> Quantity {
    Quantity::parse(text).expect("checked when the configuration was read")
}

/// How many CPUs a list such as `0-3,7` names; none if it is empty or no list.
fn cpu_count(list: &str) -> Option<i64> {
    let cpus: CpuSet = list.parse().ok()?;
    (!cpus.is_empty()).then_some(cpus.len() as i64)
}

/// What of the CPUs is kept for the system and this kubelet, in thousandths.
pub fn kept_cpu_milli(config: &Config) -> i64 {
    let lists = [&config.system_reserved, &config.kube_reserved];
    let amounts = lists
        .into_iter()
        .filter_map(|list| Quantity::parse(list.get(CPU)?).ok());
    amounts.map(|amount| amount.milli_value()).sum()
}

pub fn to_api(resources: &Resources) -> BTreeMap<String, ApiQuantity> {
    let shown = resources.iter();
    shown
        .map(|(name, quantity)| (name.clone(), ApiQuantity(quantity.canonical())))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::parse;

    fn shown(resources: &Resources) -> String {
        let all: Vec<String> = resources
            .iter()
            .map(|(k, v)| format!("{k}={}", v.canonical()))
            .collect();
        all.join(" ")
    }

    fn machine() -> Machine {
        Machine {
            cores: 4,
            memory_bytes: 8 << 30,
            storage_bytes: 100 << 30,
            huge_pages: BTreeMap::from([(2 << 20, 64 << 20), (1 << 30, 0)]),
            ..Machine::default()
        }
    }

    #[test]
    fn what_is_kept_back() {
        let reserved = json!({"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi", "pid": "100"});
        let cases = [
            (
                vec![],
                "cpu=4 ephemeral-storage=90Gi hugepages-1Gi=0 hugepages-2Mi=64Mi memory=8028Mi pods=110",
            ),
            (
                vec![
                    ("kubeReserved", reserved.clone()),
                    ("systemReserved", json!({"cpu": "1"})),
                ],
                "cpu=2500m ephemeral-storage=89Gi hugepages-1Gi=0 hugepages-2Mi=64Mi memory=7004Mi pods=110",
            ),
            (
                vec![
                    ("kubeReserved", reserved),
                    ("reservedSystemCPUs", json!("0-1,1,3")),
                    ("podsPerCore", json!(10)),
                    (
                        "evictionHard",
                        json!({"memory.available": "50%", "nodefs.available": "0%"}),
                    ),
                ],
                "cpu=1 ephemeral-storage=99Gi hugepages-1Gi=0 hugepages-2Mi=64Mi memory=3008Mi pods=40",
            ),
            (
                vec![("systemReserved", json!({"cpu": "100", "memory": "1Ti"}))],
                "cpu=0 ephemeral-storage=90Gi hugepages-1Gi=0 hugepages-2Mi=64Mi memory=0 pods=110",
            ),
        ];
        for (flags, expected) in cases {
            let config = parse(None, &flags).unwrap();
            let capacity = capacity(&machine(), &config);
            assert_eq!(shown(&allocatable(&capacity, &config)), expected);
        }
    }

    #[test]
    fn lists_of_cpus() {
        let cases = [
            ("", None),
            ("0", Some(1)),
            ("0-3,7", Some(5)),
            ("3-1", None),
            ("x", None),
            ("0-", None),
        ];
        for (list, expected) in cases {
            assert_eq!(cpu_count(list), expected, "{list}");
        }
    }
}
