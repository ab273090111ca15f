//! `--feature-gates`: known names only, locked ones keep their default, and the ones the scheduler reads end up in a
//! plain struct that is passed down.

use std::collections::BTreeMap;

use super::gate_table::{DEPENDENCIES, GATES, Gate};

/// How far a feature has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// One list for the struct, its defaults and the names.
macro_rules! feature_gates {
    ($($field:ident = $name:literal,)*) => {
        /// The gates the scheduler reads.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct FeatureGates {
            $(pub $field: bool,)*
        }

        impl FeatureGates {
            fn from_lookup(on: impl Fn(&str) -> bool) -> FeatureGates {
                FeatureGates { $($field: on($name),)* }
            }

            /// The gates by name.
            pub fn list(&self) -> Vec<(&'static str, bool)> {
                vec![$(($name, self.$field),)*]
            }
        }
    };
}

feature_gates! {
    clearing_nominated_node_name_after_binding = "ClearingNominatedNodeNameAfterBinding",
    coordinated_leader_election = "CoordinatedLeaderElection",
    dra_device_binding_conditions = "DRADeviceBindingConditions",
    dra_extended_resource = "DRAExtendedResource",
    dra_resource_claim_device_status = "DRAResourceClaimDeviceStatus",
    dra_scheduler_filter_timeout = "DRASchedulerFilterTimeout",
    dynamic_resource_allocation = "DynamicResourceAllocation",
    gang_scheduling = "GangScheduling",
    generic_workload = "GenericWorkload",
    in_place_pod_level_resources_vertical_scaling = "InPlacePodLevelResourcesVerticalScaling",
    in_place_pod_vertical_scaling = "InPlacePodVerticalScaling",
    match_label_keys_in_pod_affinity = "MatchLabelKeysInPodAffinity",
    match_label_keys_in_pod_topology_spread = "MatchLabelKeysInPodTopologySpread",
    node_declared_features = "NodeDeclaredFeatures",
    node_inclusion_policy_in_pod_topology_spread = "NodeInclusionPolicyInPodTopologySpread",
    nominated_node_name_for_expectation = "NominatedNodeNameForExpectation",
    opportunistic_batching = "OpportunisticBatching",
    pod_level_resources = "PodLevelResources",
    scheduler_async_api_calls = "SchedulerAsyncAPICalls",
    scheduler_async_preemption = "SchedulerAsyncPreemption",
    scheduler_pop_from_backoff_q = "SchedulerPopFromBackoffQ",
    scheduler_queueing_hints = "SchedulerQueueingHints",
    sidecar_containers = "SidecarContainers",
    storage_capacity_scoring = "StorageCapacityScoring",
    taint_toleration_comparison_operators = "TaintTolerationComparisonOperators",
    topology_aware_workload_scheduling = "TopologyAwareWorkloadScheduling",
    volume_attributes_class = "VolumeAttributesClass",
    volume_limit_scaling = "VolumeLimitScaling",
    workload_aware_preemption = "WorkloadAwarePreemption",
}

impl Default for FeatureGates {
    fn default() -> FeatureGates {
        FeatureGates::from_lookup(|name| enabled(name, &BTreeMap::new()))
    }
}

/// Known features of 1.36 that Orlop's scheduler does not have: switching them on changes nothing, which is said.
const NOT_IN_ORLOP: &[&str] = &[
    "CoordinatedLeaderElection",
    "GangScheduling",
    "GenericWorkload",
    "TopologyAwareWorkloadScheduling",
    "WorkloadAwarePreemption",
    "WorkloadWithJob",
];

/// Reads `A=true,B=false`. Gives the gates and warnings, or every problem.
// Upstream: staging/src/k8s.io/component-base/featuregate (v1.36)
pub fn parse_feature_gates(text: &str) -> Result<(FeatureGates, Vec<String>), Vec<String>> {
    let mut problems = Vec::new();
    let mut wanted: BTreeMap<String, bool> = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        match read(part) {
            Ok((name, on)) => {
                wanted.insert(name.to_string(), on);
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    let mut warnings = Vec::new();
    for (name, &on) in &wanted {
        check(name, on, &mut problems, &mut warnings);
    }
    if problems.is_empty() {
        problems = unmet_dependencies(&wanted);
    }
    if problems.is_empty() {
        Ok((FeatureGates::from_lookup(|name| enabled(name, &wanted)), warnings))
    } else {
        Err(problems)
    }
}

/// Why a part of the list says nothing.
#[derive(Debug, thiserror::Error)]
enum GateError<'a> {
    #[error("missing bool value for {0}")]
    NoValue(&'a str),
    #[error("invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    NoBool { name: &'a str, value: &'a str },
}

fn read(part: &str) -> Result<(&str, bool), GateError<'_>> {
    let Some((name, value)) = part.split_once('=') else {
        return Err(GateError::NoValue(part.trim()));
    };
    let (name, value) = (name.trim(), value.trim());
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok((name, true)),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok((name, false)),
        _ => Err(GateError::NoBool { name, value }),
    }
}

fn check(name: &str, on: bool, problems: &mut Vec<String>, warnings: &mut Vec<String>) {
    if name == "AllAlpha" || name == "AllBeta" {
        return;
    }
    let Some(gate) = find(name) else {
        return problems.push(format!("unrecognized feature gate: {name}"));
    };
    if gate.locked && gate.on != on {
        return problems.push(format!(
            "cannot set feature gate {name} to {on}, feature is locked to {}",
            gate.on
        ));
    }
    match gate.stage {
        Stage::Ga => warnings.push(format!(
            "setting GA feature gate {name}={on}; it will be removed in a future release"
        )),
        Stage::Deprecated => warnings.push(format!(
            "setting deprecated feature gate {name}={on}; it will be removed in a future release"
        )),
        Stage::Alpha | Stage::Beta => {}
    }
    if on && NOT_IN_ORLOP.contains(&name) {
        warnings.push(format!(
            "feature gate {name} has no effect: Orlop's scheduler does not have this feature"
        ));
    }
}

fn unmet_dependencies(wanted: &BTreeMap<String, bool>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, needs) in DEPENDENCIES {
        let missing: Vec<&str> = needs.iter().copied().filter(|need| !enabled(need, wanted)).collect();
        if enabled(name, wanted) && !missing.is_empty() {
            problems.push(format!(
                "{name} is enabled, but depends on features that are disabled: [{}]",
                missing.join(" ")
            ));
        }
    }
    problems
}

/// As given, else as `AllAlpha` or `AllBeta` say, else the default.
fn enabled(name: &str, wanted: &BTreeMap<String, bool>) -> bool {
    if let Some(&on) = wanted.get(name) {
        return on;
    }
    let Some(gate) = find(name) else { return false };
    let all = match gate.stage {
        Stage::Alpha => wanted.get("AllAlpha"),
        Stage::Beta => wanted.get("AllBeta"),
        Stage::Ga | Stage::Deprecated => None,
    };
    all.copied().unwrap_or(gate.on)
}

fn find(name: &str) -> Option<&'static Gate> {
    let i = GATES.binary_search_by_key(&name, |gate| gate.name).ok()?;
    Some(&GATES[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_know_each_other() {
        assert!(GATES.is_sorted_by(|a, b| a.name < b.name));
        for (name, needs) in DEPENDENCIES {
            assert!(
                find(name).is_some() && needs.iter().all(|n| find(n).is_some()),
                "{name}"
            );
        }
        for (name, on) in FeatureGates::default().list() {
            assert_eq!(find(name).map(|gate| gate.on), Some(on), "{name}");
        }
        assert!(NOT_IN_ORLOP.iter().all(|name| find(name).is_some()));
    }

    #[test]
    fn defaults_are_those_of_1_36() {
        let gates = FeatureGates::default();
        assert!(gates.node_declared_features && gates.opportunistic_batching && gates.scheduler_async_preemption);
        assert!(!gates.gang_scheduling && !gates.scheduler_async_api_calls && !gates.storage_capacity_scoring);
        assert_eq!(parse_feature_gates("").unwrap(), (gates, vec![]));
    }

    #[test]
    fn gates_are_switched() {
        // Everything that needs NodeDeclaredFeatures goes off with it.
        let off: String = (DEPENDENCIES.iter())
            .filter(|(_, needs)| needs.contains(&"NodeDeclaredFeatures"))
            .map(|(name, _)| format!("{name}=0,"))
            .collect();
        let text = format!("NodeDeclaredFeatures=false, StorageCapacityScoring=T,,{off}");
        let (gates, warnings) = parse_feature_gates(&text).unwrap();
        assert!(!gates.node_declared_features && gates.storage_capacity_scoring);
        assert_eq!(warnings, Vec::<String>::new());
        let (gates, warnings) = parse_feature_gates("SchedulerQueueingHints=true,GenericWorkload=true").unwrap();
        assert!(gates.generic_workload);
        assert_eq!(
            warnings,
            [
                "feature gate GenericWorkload has no effect: Orlop's scheduler does not have this feature",
                "setting GA feature gate SchedulerQueueingHints=true; it will be removed in a future release",
            ]
        );
        let (gates, _) = parse_feature_gates("AllAlpha=true,StorageCapacityScoring=false").unwrap();
        assert!(gates.gang_scheduling && !gates.storage_capacity_scoring && !gates.scheduler_async_api_calls);
    }

    #[test]
    fn wrong_gates_are_named() {
        for (text, wanted) in [
            ("Foo=true", "unrecognized feature gate: Foo"),
            (
                "schedulerQueueingHints=true",
                "unrecognized feature gate: schedulerQueueingHints",
            ),
            (
                "SchedulerQueueingHints=false",
                "cannot set feature gate SchedulerQueueingHints to false, feature is locked to true",
            ),
            (
                "StorageCapacityScoring",
                "missing bool value for StorageCapacityScoring",
            ),
            (
                "StorageCapacityScoring=yes",
                "invalid value of StorageCapacityScoring=yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                "GangScheduling=true",
                "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
            ),
        ] {
            assert_eq!(parse_feature_gates(text), Err(vec![wanted.to_string()]), "{text}");
        }
        assert_eq!(parse_feature_gates("A=true,B=true").unwrap_err().len(), 2);
    }
}
