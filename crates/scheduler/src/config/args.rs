//! The arguments of the plugins: one struct per plugin that has some, defaulted and checked.
// Upstream: pkg/scheduler/apis/config/validation/validation_pluginargs.go, …/config/v1/defaults.go (v1.36)

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_api::{Cursor, Path, names};
use serde_json::Value;

use super::affinity;
use super::defaults::{self, DROPPED_IN_OLD_VERSIONS, INVALID_PLUGINS};
use super::plugins::{Context, dropped};
use super::problem::Problems;
use super::read::Fields;
use super::spread::{self, PodTopologySpreadArgs};
use super::version::GROUP;

/// The arguments of all plugins of a profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args {
    pub default_preemption: DefaultPreemptionArgs,
    pub dynamic_resources: DynamicResourcesArgs,
    pub inter_pod_affinity: InterPodAffinityArgs,
    pub node_affinity: NodeAffinityArgs,
    pub node_resources_balanced_allocation: NodeResourcesBalancedAllocationArgs,
    pub node_resources_fit: NodeResourcesFitArgs,
    pub pod_topology_spread: PodTopologySpreadArgs,
    pub volume_binding: VolumeBindingArgs,
    /// By plugin name, as written: those of plugins that are not Kubernetes' own, or have no arguments there.
    pub custom: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPreemptionArgs {
    /// How many nodes to try at least, in per cent of all.
    pub min_candidate_nodes_percentage: u32,
    pub min_candidate_nodes_absolute: u32,
}

impl Default for DefaultPreemptionArgs {
    fn default() -> Self {
        DefaultPreemptionArgs {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterPodAffinityArgs {
    /// The weight of existing pods' required affinity when scoring, 0 to 100.
    pub hard_pod_affinity_weight: i64,
    pub ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinityArgs {
    fn default() -> Self {
        InterPodAffinityArgs {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAffinityArgs {
    /// A v1.NodeAffinity that every pod of the profile has beside its own; its selectors are valid.
    pub added_affinity: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSpec {
    pub name: String,
    pub weight: i64,
}

fn cpu_and_memory() -> Vec<ResourceSpec> {
    let spec = |name: &str| ResourceSpec {
        name: name.to_string(),
        weight: 1,
    };
    vec![spec("cpu"), spec("memory")]
}

/// A point of a piecewise linear function: utilization 0 to 100, score 0 to 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapePoint {
    pub utilization: i64,
    pub score: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScoringStrategyType {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio { shape: Vec<ShapePoint> },
}

impl ScoringStrategyType {
    pub fn name(&self) -> &'static str {
        match self {
            ScoringStrategyType::LeastAllocated => "LeastAllocated",
            ScoringStrategyType::MostAllocated => "MostAllocated",
            ScoringStrategyType::RequestedToCapacityRatio { .. } => "RequestedToCapacityRatio",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoringStrategy {
    pub kind: ScoringStrategyType,
    pub resources: Vec<ResourceSpec>,
}

impl Default for ScoringStrategy {
    fn default() -> Self {
        ScoringStrategy {
            kind: ScoringStrategyType::LeastAllocated,
            resources: cpu_and_memory(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResourcesFitArgs {
    /// Extended resources the filter does not look at. Those of extenders with `ignoredByScheduler` are among them.
    pub ignored_resources: Vec<String>,
    /// `example.com` ignores every resource `example.com/…`.
    pub ignored_resource_groups: Vec<String>,
    pub scoring_strategy: ScoringStrategy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeResourcesBalancedAllocationArgs {
    pub resources: Vec<ResourceSpec>,
}

impl Default for NodeResourcesBalancedAllocationArgs {
    fn default() -> Self {
        NodeResourcesBalancedAllocationArgs {
            resources: cpu_and_memory(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeBindingArgs {
    pub bind_timeout: Duration,
    /// Empty unless the gate StorageCapacityScoring is on.
    pub shape: Vec<ShapePoint>,
}

impl Default for VolumeBindingArgs {
    fn default() -> Self {
        VolumeBindingArgs {
            bind_timeout: Duration::from_secs(600),
            shape: vec![],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicResourcesArgs {
    /// `None` if the gate DRASchedulerFilterTimeout is off; zero is no limit.
    pub filter_timeout: Option<Duration>,
    /// `None` if device binding conditions are off.
    pub binding_timeout: Option<Duration>,
}

impl Default for DynamicResourcesArgs {
    fn default() -> Self {
        DynamicResourcesArgs {
            filter_timeout: Some(Duration::from_secs(10)),
            binding_timeout: Some(Duration::from_secs(600)),
        }
    }
}

/// The plugins that have arguments in Kubernetes.
const WITH_ARGS: &[&str] = &[
    "DefaultPreemption",
    "DynamicResources",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeResourcesBalancedAllocation",
    "NodeResourcesFit",
    "PodTopologySpread",
    "VolumeBinding",
];

/// Reads `pluginConfig` of a profile.
pub(super) fn read(entries: Vec<Cursor<'_>>, cx: &Context<'_>, p: &mut Problems, warnings: &mut Vec<String>) -> Args {
    let mut args = Args::with_gates(cx, p);
    let mut seen = Vec::new();
    for entry in entries {
        let mut fields = Fields::open(entry, p);
        let name = fields.text("name", p).unwrap_or_default();
        let given = fields.at("args");
        let path = fields.path().clone();
        fields.close(p);
        if cx.version.is_old() && DROPPED_IN_OLD_VERSIONS.contains(&name.as_str()) {
            warnings.push(dropped(&path, &name));
        } else if name.is_empty() {
            p.required(&path.field("name"), "");
        } else if INVALID_PLUGINS.contains(&name.as_str()) {
            p.invalid(&path, name, cx.version.invalid_plugin());
        } else if seen.contains(&name) {
            p.duplicate(&path, name);
        } else {
            args.read_one(&name, given, cx, p);
            if cx.registry.find(&name).is_none() {
                let why = defaults::instead_of(&name).map_or_else(String::new, |why| format!(" ({why})"));
                warnings.push(format!(
                    "{path}: no plugin is called {name:?}{why}; its args have no effect"
                ));
            }
            seen.push(name);
        }
    }
    args
}

impl Args {
    /// The defaults, which depend on some gates.
    fn with_gates(cx: &Context<'_>, p: &mut Problems) -> Args {
        let mut args = Args::default();
        for name in ["DynamicResources", "VolumeBinding"] {
            args.read_one(name, Cursor::new(None, Path::default()), cx, p);
        }
        args
    }

    fn read_one(&mut self, name: &str, given: Cursor<'_>, cx: &Context<'_>, p: &mut Problems) {
        if !WITH_ARGS.contains(&name) {
            if let Some(value) = given.value() {
                self.custom.insert(name.to_string(), value.clone());
            }
            return;
        }
        let mut fields = Fields::open(given, p);
        check_type(&mut fields, name, cx, p);
        let f = &mut fields;
        match name {
            "DefaultPreemption" => self.default_preemption = default_preemption(f, p),
            "DynamicResources" => self.dynamic_resources = dynamic_resources(f, cx, p),
            "InterPodAffinity" => self.inter_pod_affinity = inter_pod_affinity(f, p),
            "NodeAffinity" => self.node_affinity.added_affinity = affinity::read(&f.at("addedAffinity"), p),
            "NodeResourcesBalancedAllocation" => self.node_resources_balanced_allocation = balanced_allocation(f, p),
            "NodeResourcesFit" => self.node_resources_fit = node_resources_fit(f, p),
            "PodTopologySpread" => self.pod_topology_spread = spread::read(f, p),
            "VolumeBinding" => self.volume_binding = volume_binding(f, cx, p),
            other => unreachable!("{other} is not in WITH_ARGS"),
        }
        fields.close(p);
    }
}

/// Args may say what they are, and then must be those of the plugin.
fn check_type(fields: &mut Fields<'_>, name: &str, cx: &Context<'_>, p: &mut Problems) {
    let path = fields.path().clone();
    let kind = fields.filled("kind", p);
    let api_version = fields.filled("apiVersion", p);
    if let Some(kind) = kind.filter(|kind| *kind != format!("{name}Args")) {
        let text = format!("args for plugin {name} were not of type {name}Args.{GROUP}, got {kind}.{GROUP}");
        p.invalid(&path.field("kind"), kind, text);
    }
    if let Some(version) = api_version.filter(|version| !cx.version.takes_args_of(version)) {
        let text = format!("no kind \"{name}Args\" is registered for this version");
        p.invalid(&path.field("apiVersion"), version, text);
    }
}

/// A number as an unsigned one where validation has seen to its range, or has reported it.
fn natural(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn default_preemption(f: &mut Fields<'_>, p: &mut Problems) -> DefaultPreemptionArgs {
    let percentage = f.int("minCandidateNodesPercentage", p).unwrap_or(10);
    let absolute = f.int("minCandidateNodesAbsolute", p).unwrap_or(100);
    let percentage_path = f.path().field("minCandidateNodesPercentage");
    let absolute_path = f.path().field("minCandidateNodesAbsolute");
    if !(0..=100).contains(&percentage) {
        p.invalid(&percentage_path, percentage, "not in valid range [0, 100]");
    }
    if absolute < 0 {
        p.invalid(&absolute_path, absolute, "not in valid range [0, inf)");
    }
    if percentage == 0 && absolute == 0 {
        let text = "cannot be zero at the same time as minCandidateNodes";
        p.invalid(&percentage_path, percentage, format!("{text}Absolute"));
        p.invalid(&absolute_path, absolute, format!("{text}Percentage"));
    }
    DefaultPreemptionArgs {
        min_candidate_nodes_percentage: natural(percentage),
        min_candidate_nodes_absolute: natural(absolute),
    }
}

fn inter_pod_affinity(f: &mut Fields<'_>, p: &mut Problems) -> InterPodAffinityArgs {
    let weight = f.int("hardPodAffinityWeight", p).unwrap_or(1);
    if !(0..=100).contains(&weight) {
        let path = f.path().field("hardPodAffinityWeight");
        p.invalid(&path, weight, "not in valid range [0, 100]");
    }
    InterPodAffinityArgs {
        hard_pod_affinity_weight: weight.into(),
        ignore_preferred_terms_of_existing_pods: f.flag("ignorePreferredTermsOfExistingPods", p).unwrap_or(false),
    }
}

/// A list of resources; none are cpu and memory, and a weight of 0 is 1.
fn resources(f: &mut Fields<'_>, p: &mut Problems) -> Vec<ResourceSpec> {
    let mut list = Vec::new();
    for item in f.list("resources", p) {
        let mut fields = Fields::open(item, p);
        let name = fields.text("name", p).unwrap_or_default();
        let weight = fields.long("weight", p).filter(|&w| w != 0).unwrap_or(1);
        fields.close(p);
        list.push(ResourceSpec { name, weight });
    }
    if list.is_empty() { cpu_and_memory() } else { list }
}

fn balanced_allocation(f: &mut Fields<'_>, p: &mut Problems) -> NodeResourcesBalancedAllocationArgs {
    let resources = resources(f, p);
    let path = f.path().field("resources");
    for (i, resource) in resources.iter().enumerate() {
        if resources[..i].iter().any(|earlier| earlier.name == resource.name) {
            p.duplicate(&path.index(i).field("name"), resource.name.as_str());
        }
        if resource.weight != 1 {
            p.invalid(&path.index(i).field("weight"), resource.weight, "must be 1");
        }
    }
    NodeResourcesBalancedAllocationArgs { resources }
}

fn node_resources_fit(f: &mut Fields<'_>, p: &mut Problems) -> NodeResourcesFitArgs {
    let ignored_resources = f.texts("ignoredResources", p);
    for (i, name) in ignored_resources.iter().enumerate() {
        let path = f.path().field("ignoredResources").index(i);
        p.invalid_each(&path, name, names::qualified_name(name));
    }
    let ignored_resource_groups = f.texts("ignoredResourceGroups", p);
    for (i, group) in ignored_resource_groups.iter().enumerate() {
        let path = f.path().field("ignoredResourceGroups").index(i);
        if group.contains('/') {
            p.invalid(&path, group.as_str(), "resource group name can't contain '/'");
        }
        p.invalid_each(&path, group, names::qualified_name(group));
    }
    let strategy = f.at("scoringStrategy");
    let scoring_strategy = if strategy.exists() {
        scoring_strategy(strategy, p)
    } else {
        ScoringStrategy::default()
    };
    NodeResourcesFitArgs {
        ignored_resources,
        ignored_resource_groups,
        scoring_strategy,
    }
}

fn scoring_strategy(strategy: Cursor<'_>, p: &mut Problems) -> ScoringStrategy {
    let mut f = Fields::open(strategy, p);
    let kind = f.text("type", p).unwrap_or_default();
    let resources = resources(&mut f, p);
    let ratio = f.at("requestedToCapacityRatio");
    let path = f.path().clone();
    f.close(p);

    let mut ratio_fields = Fields::open(ratio.clone(), p);
    let shape = shape(&mut ratio_fields, p);
    ratio_fields.close(p);

    let types = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
    if !types.contains(&kind.as_str()) {
        p.not_supported(&path.field("type"), &kind, &types);
    }
    for (i, resource) in resources.iter().enumerate() {
        if !(1..=100).contains(&resource.weight) {
            let text = format!("resource weight of {} not in valid range (0, 100]", resource.name);
            let path = path.field("resources").index(i).field("weight");
            p.invalid(&path, resource.weight, text);
        }
    }
    let kind = match kind.as_str() {
        "RequestedToCapacityRatio" if !ratio.exists() => {
            p.required(ratio.path(), "must be specified when type is RequestedToCapacityRatio");
            ScoringStrategyType::RequestedToCapacityRatio { shape }
        }
        "RequestedToCapacityRatio" => {
            check_shape(&shape, &ratio.path().field("shape"), p);
            ScoringStrategyType::RequestedToCapacityRatio { shape }
        }
        other => {
            if ratio.exists() {
                p.forbidden(ratio.path(), "must be nil when type is not RequestedToCapacityRatio");
            }
            match other {
                "MostAllocated" => ScoringStrategyType::MostAllocated,
                _ => ScoringStrategyType::LeastAllocated,
            }
        }
    };
    ScoringStrategy { kind, resources }
}

fn shape(f: &mut Fields<'_>, p: &mut Problems) -> Vec<ShapePoint> {
    let mut points = Vec::new();
    for item in f.list("shape", p) {
        let mut fields = Fields::open(item, p);
        let utilization = fields.int("utilization", p).unwrap_or(0).into();
        let score = fields.int("score", p).unwrap_or(0).into();
        fields.close(p);
        points.push(ShapePoint { utilization, score });
    }
    points
}

fn check_shape(shape: &[ShapePoint], path: &Path, p: &mut Problems) {
    if shape.is_empty() {
        return p.required(path, "at least one point must be specified");
    }
    if let Some(i) = (1..shape.len()).find(|&i| shape[i - 1].utilization >= shape[i].utilization) {
        let path = path.index(i).field("utilization");
        p.invalid(&path, shape[i].utilization, "values must be sorted in increasing order");
    }
    for (i, point) in shape.iter().enumerate() {
        if !(0..=100).contains(&point.utilization) {
            let path = path.index(i).field("utilization");
            p.invalid(&path, point.utilization, "not in valid range [0, 100]");
        }
        if !(0..=10).contains(&point.score) {
            p.invalid(&path.index(i).field("score"), point.score, "not in valid range [0, 10]");
        }
    }
}

fn volume_binding(f: &mut Fields<'_>, cx: &Context<'_>, p: &mut Problems) -> VolumeBindingArgs {
    let seconds = f.long("bindTimeoutSeconds", p).unwrap_or(600);
    if seconds < 0 {
        let path = f.path().field("bindTimeoutSeconds");
        p.invalid(
            &path,
            seconds,
            "invalid BindTimeoutSeconds, should not be a negative value",
        );
    }
    let given = f.at("shape");
    let mut shape = shape(f, p);
    if cx.gates.storage_capacity_scoring {
        if shape.is_empty() {
            let point = |utilization, score| ShapePoint { utilization, score };
            shape = vec![point(0, 10), point(100, 0)];
        }
        check_shape(&shape, given.path(), p);
    } else if let Some(value) = given.value() {
        let text = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
        p.invalid(given.path(), value.clone(), text);
    }
    VolumeBindingArgs {
        bind_timeout: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        shape,
    }
}

fn dynamic_resources(f: &mut Fields<'_>, cx: &Context<'_>, p: &mut Problems) -> DynamicResourcesArgs {
    let binding_conditions = cx.gates.dra_device_binding_conditions && cx.gates.dra_resource_claim_device_status;
    DynamicResourcesArgs {
        filter_timeout: gated_timeout(
            f,
            ("filterTimeout", 10),
            cx.gates.dra_scheduler_filter_timeout,
            "DRASchedulingFilterTimeout feature gate is disabled",
            |nanos| (nanos < 0).then_some("must be zero or positive"),
            p,
        ),
        binding_timeout: gated_timeout(
            f,
            ("bindingTimeout", 600),
            binding_conditions,
            "DRADeviceBindingConditions or DRAResourceClaimDeviceStatus feature gate is disabled",
            |nanos| (nanos < 1_000_000_000).then_some("must be at least 1 second"),
            p,
        ),
    }
}

/// A timeout that may only be given while its feature is on, and has a default then.
fn gated_timeout(
    f: &mut Fields<'_>,
    (name, default_seconds): (&'static str, u64),
    on: bool,
    when_off: &str,
    wrong: impl Fn(i64) -> Option<&'static str>,
    p: &mut Problems,
) -> Option<Duration> {
    let given = f.duration(name, p);
    let path = f.path().field(name);
    match given {
        Some(_) if !on => p.forbidden(&path, when_off),
        Some(nanos) => {
            if let Some(text) = wrong(nanos) {
                let shown = f.at(name).value().cloned().unwrap_or_default();
                p.invalid(&path, shown, text);
            }
        }
        None => {}
    }
    let nanos = |n: i64| Duration::from_nanos(u64::try_from(n).unwrap_or(0));
    on.then(|| given.map_or(Duration::from_secs(default_seconds), nanos))
}
