//! The limits of cgroups, independent of the cgroup version.

use std::collections::BTreeMap;

use orlop_api::quantity::Quantity;
use orlop_api::resources::{CPU, MEMORY, ResourceList};
use orlop_api::types::core::{Container, Pod};

use crate::spec::resources::{
    self, MIN_SHARES, QosClass, milli_cpu_to_quota, milli_cpu_to_shares, pod_requests, qos_class,
};
use crate::spec::{CgroupVersion, NodeFacts};

/// How the number of processes is named in lists of resources.
const PIDS: &str = "pid";

/// `None`: leave it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_shares: Option<i64>,
    /// Microseconds in a period of microseconds; -1 for no limit.
    pub cpu_quota: Option<(i64, i64)>,
    /// Bytes; -1 for no limit.
    pub memory: Option<i64>,
    pub pids: Option<i64>,
    /// Bytes by page size (`2MB`).
    pub hugepages: BTreeMap<String, i64>,
    /// Files of version 2, as they are.
    pub unified: BTreeMap<String, String>,
}

impl Limits {
    /// What is not limited is set free: for groups that had limits before.
    pub fn or_unlimited(mut self) -> Limits {
        self.cpu_quota = self.cpu_quota.or(Some((-1, 100_000)));
        self.memory = self.memory.or(Some(-1));
        self
    }
}

/// The one that allows more; -1 is no limit.
pub(super) fn larger_memory(wanted: Option<i64>, now: u64) -> Option<i64> {
    let now = i64::try_from(now).unwrap_or(-1);
    wanted.map(|wanted| if wanted < 0 || now < 0 { -1 } else { wanted.max(now) })
}

/// The one that allows more; -1 is no limit, and so is nothing now.
pub(super) fn larger_quota(wanted: Option<(i64, i64)>, now: Option<(i64, i64)>) -> Option<(i64, i64)> {
    let wanted = wanted?;
    let now = now.unwrap_or((-1, wanted.1));
    let grows = wanted.0 < 0 || (now.0 >= 0 && wanted.0 * now.1 >= now.0 * wanted.1);
    Some(if grows { wanted } else { now })
}

/// A pod's group: the sum of its containers, if each has a limit; or what the pod says itself.
pub fn pod_limits(pod: &Pod, facts: &NodeFacts) -> Limits {
    let (requests, limits) = (pod_requests(pod, true), resources::pod_limits(pod, true));
    let class = qos_class(pod);
    let milli = |list: &ResourceList| list.get(CPU).map_or(0, Quantity::milli_value);
    let mut out = Limits {
        cpu_shares: Some(match class {
            QosClass::BestEffort => MIN_SHARES,
            _ => milli_cpu_to_shares(milli(&requests)),
        }),
        pids: facts.pod_pids_limit.filter(|limit| *limit > 0),
        hugepages: every_page_size(&requests, &facts.hugepage_sizes),
        unified: memory_reserved(class, &requests, facts),
        ..Limits::default()
    };
    let limited = |name: &str| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => is_limited(pod, name),
        QosClass::BestEffort => false,
    };
    if limited(CPU) {
        let period = facts.quota_period_us();
        let quota = match milli_cpu_to_quota(milli(&limits), period) {
            0 => -1,
            quota => quota,
        };
        out.cpu_quota = Some((if facts.cpu_cfs_quota { quota } else { -1 }, period));
    }
    if limited(MEMORY) {
        out.memory = limits.get(MEMORY).map(Quantity::value).filter(|bytes| *bytes > 0);
    }
    out
}

/// Every container has a limit, or the pod as a whole.
fn is_limited(pod: &Pod, name: &str) -> bool {
    let Some(spec) = pod.spec.as_ref() else {
        return false;
    };
    let has = |resources: Option<&orlop_api::types::core::ResourceRequirements>| {
        let limits = resources::quantities(resources.and_then(|r| r.limits.as_ref()));
        limits.get(name).is_some_and(|q| !q.is_zero())
    };
    let own = |c: &Container| has(c.resources.as_ref());
    // While an ordinary init container runs, the sidecars before it run too: one of them with a limit is enough, as the
    // sum is what counts.
    let mut sidecars = false;
    let init = spec.init_containers.iter().flatten().all(|c| {
        let limited = own(c) || sidecars;
        sidecars |= c.restart_policy.as_deref() == Some("Always") && own(c);
        limited
    });
    has(spec.resources.as_ref()) || (init && spec.containers.iter().all(own))
}

/// Where memory is kept for pods: hard for those that are Guaranteed, softly for others.
fn memory_reserved(class: QosClass, requests: &ResourceList, facts: &NodeFacts) -> BTreeMap<String, String> {
    let reserving = facts.memory_qos.is_some_and(|qos| qos.tiered_reservation);
    let bytes = requests.get(MEMORY).map_or(0, Quantity::value);
    if !reserving || facts.cgroups.version == CgroupVersion::V1 || bytes == 0 {
        return BTreeMap::new();
    }
    let file = match class {
        QosClass::Guaranteed => "memory.min",
        _ => "memory.low",
    };
    [(file.to_string(), bytes.to_string())].into()
}

/// Page sizes that are not in the list may not be used.
fn every_page_size(list: &ResourceList, sizes: &[String]) -> BTreeMap<String, i64> {
    let mut out: BTreeMap<String, i64> = sizes.iter().map(|size| (size.clone(), 0)).collect();
    out.extend(resources::hugepages(list));
    out
}

/// The Burstable pods together weigh as much as they ask for.
pub fn burstable_limits<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Limits {
    let burstable = pods.into_iter().filter(|pod| qos_class(pod) == QosClass::Burstable);
    let milli = burstable.map(|pod| pod_requests(pod, true).get(CPU).map_or(0, Quantity::milli_value));
    Limits {
        cpu_shares: Some(milli_cpu_to_shares(milli.fold(0, i64::saturating_add))),
        ..Limits::default()
    }
}

/// A list of resources as limits: CPU as weight, the rest hard.
pub fn list_limits(list: &ResourceList, page_sizes: &[String]) -> Limits {
    Limits {
        cpu_shares: list.get(CPU).map(|q| milli_cpu_to_shares(q.milli_value())),
        memory: list.get(MEMORY).map(Quantity::value).filter(|bytes| *bytes > 0),
        pids: list.get(PIDS).map(Quantity::value),
        // A list without any says nothing about them.
        hugepages: match resources::hugepages(list).is_empty() {
            true => BTreeMap::new(),
            false => every_page_size(list, page_sizes),
        },
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{MemoryQos, testing};
    use serde_json::{Value, json};

    const MI: i64 = 1 << 20;

    /// `shares quota/period memory`
    fn shown(limits: &Limits) -> String {
        let quota = limits.cpu_quota.map_or("-".to_string(), |(q, p)| format!("{q}/{p}"));
        let memory = limits.memory.map_or("-".to_string(), |m| (m / MI).to_string());
        format!("{} {quota} {memory}", limits.cpu_shares.unwrap_or(0))
    }

    #[test]
    fn pods() {
        let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        let resources = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
        let equal = resources(both("1", "64Mi"), both("1", "64Mi"));
        let some = resources(both("250m", "32Mi"), both("500m", "64Mi"));
        let c = |name: &str, resources: &Value| json!({"name": name, "resources": resources});
        let sidecar =
            |name: &str, resources: &Value| json!({"name": name, "restartPolicy": "Always", "resources": resources});
        let none = json!({});
        for (spec, expected) in [
            (json!({}), "2 - -"),
            (json!({"containers": [c("a", &equal)]}), "1024 100000/100000 64"),
            (
                json!({"containers": [c("a", &equal), c("b", &equal)]}),
                "2048 200000/100000 128",
            ),
            (json!({"containers": [c("a", &some)]}), "256 50000/100000 64"),
            // A container without limits leaves the pod without.
            (json!({"containers": [c("a", &some), c("b", &none)]}), "256 - -"),
            (
                json!({"containers": [c("a", &some), c("b", &json!({"limits": {"memory": "1Mi"}}))]}),
                "256 - 65",
            ),
            (
                json!({"containers": [c("a", &some)], "initContainers": [c("i", &none)]}),
                "256 - -",
            ),
            (
                json!({"containers": [c("a", &some)], "initContainers": [c("i", &some)]}),
                "256 50000/100000 64",
            ),
            (
                json!({"containers": [c("a", &some)], "initContainers": [sidecar("s", &some), c("i", &none)]}),
                "512 100000/100000 128",
            ),
            // The pod's own limits stand for all.
            (
                json!({"containers": [c("a", &none)], "resources": some}),
                "256 50000/100000 64",
            ),
            (
                json!({"containers": [c("a", &some)], "resources": {"requests": {"cpu": "1"}}}),
                "1024 50000/100000 64",
            ),
            (
                json!({"containers": [c("a", &some)], "overhead": both("250m", "16Mi")}),
                "512 75000/100000 80",
            ),
        ] {
            assert_eq!(
                shown(&pod_limits(&testing::pod(spec.clone()), &NodeFacts::default())),
                expected,
                "{spec}"
            );
        }
    }

    #[test]
    fn settings_of_the_node() {
        let resources = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"}});
        let mut resources = resources;
        resources["requests"]["hugepages-2Mi"] = "4Mi".into();
        let pod = testing::pod(json!({"containers": [{"name": "a", "resources": resources}]}));
        let facts = NodeFacts {
            cpu_cfs_quota: false,
            pod_pids_limit: Some(100),
            hugepage_sizes: vec!["1GB".into(), "2MB".into()],
            memory_qos: Some(MemoryQos {
                throttling_factor: 0.9,
                tiered_reservation: true,
            }),
            ..NodeFacts::default()
        };
        let limits = pod_limits(&pod, &facts);
        assert_eq!(shown(&limits), "1024 -1/100000 64");
        assert_eq!(limits.pids, Some(100));
        assert_eq!(
            limits.hugepages,
            [("1GB".to_string(), 0), ("2MB".to_string(), 4 * MI)].into()
        );
        assert_eq!(
            limits.unified,
            [("memory.min".to_string(), (64 * MI).to_string())].into()
        );
        let unlimited = NodeFacts {
            pod_pids_limit: Some(-1),
            ..NodeFacts::default()
        };
        assert_eq!(pod_limits(&pod, &unlimited).pids, None);
    }

    #[test]
    fn classes_and_lists() {
        let pod =
            |cpu: &str| testing::pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}));
        let pods = [pod("1"), pod("500m"), testing::pod(json!({}))];
        assert_eq!(burstable_limits(&pods).cpu_shares, Some(1536));
        assert_eq!(burstable_limits(&[]).cpu_shares, Some(2));
        let list = [("cpu", "2"), ("memory", "1Mi"), ("pid", "1000"), ("pods", "110")]
            .map(|(name, q)| (name.to_string(), Quantity::parse(q).unwrap()))
            .into();
        let limits = list_limits(&list, &["2MB".to_string()]);
        assert_eq!((shown(&limits).as_str(), limits.pids), ("2048 - 1", Some(1000)));
        assert!(limits.hugepages.is_empty());
        assert_eq!(list_limits(&ResourceList::new(), &[]), Limits::default());
    }
}
