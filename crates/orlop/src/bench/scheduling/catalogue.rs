//! The workloads that come with Orlop, and those from a user's file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::workload::Workload;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(include_str!(concat!("../../../../../bench/scheduling/", $name, ".yaml"))),*]
    };
}

/// In the order of `--list` and of a run of all.
const FILES: [&str; 21] = files![
    "basic",
    "node_affinity",
    "pod_affinity",
    "pod_anti_affinity",
    "pod_matching_anti_affinity",
    "preferred_pod_affinity",
    "preferred_pod_anti_affinity",
    "pod_affinity_ns_selector",
    "pod_anti_affinity_ns_selector",
    "preferred_affinity_ns_selector",
    "preferred_anti_affinity_ns_selector",
    "mixed_base_pod",
    "topology_spreading",
    "preferred_topology_spreading",
    "default_topology_spreading",
    "preemption_basic",
    "preemption_async",
    "unschedulable",
    "mixed_churn",
    "daemonset",
    "while_gated",
];

const TEMPLATES: &str = include_str!("../../../../../bench/scheduling/templates.yaml");

pub(crate) fn all() -> Vec<Workload> {
    let parse = |text: &&str| Workload::parse(text).expect("a test parses every built-in workload");
    FILES.iter().map(parse).collect()
}

/// The manifests any workload may use.
pub(crate) fn templates() -> BTreeMap<String, Value> {
    serde_saphyr::from_str(TEMPLATES).expect("a test parses the shared templates")
}

/// Those asked for by name (in any case) or by path; all of the built-in ones if none is named.
pub(crate) fn find(asked: &[String]) -> anyhow::Result<Vec<Workload>> {
    let known = all();
    if asked.is_empty() {
        return Ok(known);
    }
    let one = |name: &String| {
        if let Some(workload) = known.iter().find(|w| w.name.eq_ignore_ascii_case(name)) {
            return Ok(workload.clone());
        }
        let path = Path::new(name);
        if !path.exists() {
            bail!("{name:?} is neither a workload (see --list) nor a file");
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
        Workload::parse(&text).with_context(|| format!("{name} is not a valid workload"))
    };
    asked.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workload::{Op, Params};
    use super::*;

    #[test]
    fn every_built_in_workload_is_sound_in_every_size() {
        let shared = templates();
        for workload in all() {
            for size in workload.sizes.keys() {
                let params = workload.params(size, &Params::new()).unwrap();
                assert_eq!(
                    workload.problems(&params, &shared),
                    Vec::<String>::new(),
                    "{} {size}",
                    workload.name
                );
            }
            assert!(workload.sizes.contains_key("full") && workload.sizes.contains_key("small"));
            assert!(!workload.description.is_empty());
        }
    }

    /// Nodes, pods before the measurement, measured pods.
    #[test]
    fn full_sizes_are_those_of_scheduler_perf() {
        let cases = [
            ("SchedulingBasic", 5000, 1000, 10000),
            ("SchedulingNodeAffinity", 5000, 5000, 10000),
            ("SchedulingPodAffinity", 5000, 5000, 5000),
            ("SchedulingPodAntiAffinity", 5000, 1000, 2000),
            ("SchedulingPodMatchingAntiAffinity", 5000, 1000, 5000),
            ("SchedulingPreferredPodAffinity", 5000, 5000, 5000),
            ("SchedulingPreferredPodAntiAffinity", 5000, 5000, 5000),
            ("SchedulingRequiredPodAffinityWithNSSelector", 5000, 5000, 2000),
            ("SchedulingRequiredPodAntiAffinityWithNSSelector", 6000, 4000, 2000),
            ("SchedulingPreferredAffinityWithNSSelector", 5000, 5000, 5000),
            ("SchedulingPreferredAntiAffinityWithNSSelector", 5000, 4000, 2000),
            ("MixedSchedulingBasePod", 5000, 10000, 5000),
            ("TopologySpreading", 5000, 5000, 5000),
            ("PreferredTopologySpreading", 5000, 5000, 5000),
            ("DefaultTopologySpreading", 5000, 5000, 10000),
            ("PreemptionBasic", 1000, 4000, 1000),
            ("PreemptionAsync", 5000, 20000, 5000),
            ("Unschedulable", 5000, 100, 10000),
            ("SchedulingWithMixedChurn", 5000, 0, 10000),
            ("SchedulingDaemonset", 15001, 0, 30000),
            ("SchedulingWhileGated", 1, 30000, 20000),
        ];
        let workloads = all();
        assert_eq!(workloads.len(), cases.len());
        for (workload, wanted) in workloads.iter().zip(cases) {
            let params = workload.params("full", &Params::new()).unwrap();
            let (mut nodes, mut init, mut measured) = (0, 0, 0);
            for op in &workload.ops {
                match op {
                    Op::CreateNodes(o) => nodes += o.count.resolve(&params).unwrap(),
                    Op::CreatePods(o) if o.measure => measured += o.count.resolve(&params).unwrap(),
                    Op::CreatePods(o) => init += o.count.resolve(&params).unwrap(),
                    _ => {}
                }
            }
            assert_eq!((workload.name.as_str(), nodes, init, measured), wanted);
        }
    }

    #[test]
    fn workloads_are_found_by_name_or_path() {
        let names = |asked: &[&str]| -> Vec<String> {
            let asked: Vec<String> = asked.iter().map(|a| a.to_string()).collect();
            find(&asked).unwrap().into_iter().map(|w| w.name).collect()
        };
        assert_eq!(
            names(&["schedulingbasic", "TopologySpreading"]),
            ["SchedulingBasic", "TopologySpreading"]
        );
        assert_eq!(names(&[]).len(), 21);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/scheduling/basic.yaml");
        assert_eq!(names(&[file]), ["SchedulingBasic"]);
        assert!(
            find(&["Nothing".to_string()])
                .unwrap_err()
                .to_string()
                .contains("--list")
        );
    }
}
