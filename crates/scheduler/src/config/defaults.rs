//! The extension points, and the default plugins of 1.36 with the points they extend, in the order they are called.

use std::fmt;

use super::feature_gates::FeatureGates;

/// A place where plugins are called. The names are those of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    pub const COUNT: usize = 12;

    pub const ALL: [Point; Point::COUNT] = [
        Point::PreEnqueue,
        Point::QueueSort,
        Point::PreFilter,
        Point::Filter,
        Point::PostFilter,
        Point::PreScore,
        Point::Score,
        Point::Reserve,
        Point::Permit,
        Point::PreBind,
        Point::Bind,
        Point::PostBind,
    ];

    /// The field of `plugins` in the configuration.
    pub fn field(self) -> &'static str {
        match self {
            Point::PreEnqueue => "preEnqueue",
            Point::QueueSort => "queueSort",
            Point::PreFilter => "preFilter",
            Point::Filter => "filter",
            Point::PostFilter => "postFilter",
            Point::PreScore => "preScore",
            Point::Score => "score",
            Point::Reserve => "reserve",
            Point::Permit => "permit",
            Point::PreBind => "preBind",
            Point::Bind => "bind",
            Point::PostBind => "postBind",
        }
    }

    /// What Kubernetes calls a plugin of this point in its messages.
    pub fn interface(self) -> &'static str {
        match self {
            Point::PreEnqueue => "PreEnqueuePlugin",
            Point::QueueSort => "QueueSortPlugin",
            Point::PreFilter => "PreFilterPlugin",
            Point::Filter => "FilterPlugin",
            Point::PostFilter => "PostFilterPlugin",
            Point::PreScore => "PreScorePlugin",
            Point::Score => "ScorePlugin",
            Point::Reserve => "ReservePlugin",
            Point::Permit => "PermitPlugin",
            Point::PreBind => "PreBindPlugin",
            Point::Bind => "BindPlugin",
            Point::PostBind => "PostBindPlugin",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field())
    }
}

/// What the configuration has to know of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginRow {
    pub name: &'static str,
    pub points: &'static [Point],
    /// The weight in the default profile; 0 is "not given", which counts as 1 where the plugin scores. Not looked at
    /// for custom plugins: they have the weight the configuration gives them, else 1.
    pub weight: i64,
}

impl PluginRow {
    pub fn extends(&self, point: Point) -> bool {
        self.points.contains(&point)
    }
}

const fn row(name: &'static str, points: &'static [Point], weight: i64) -> PluginRow {
    PluginRow { name, points, weight }
}

use Point::*;

/// The default profile: every plugin at all its points, in this order.
// Upstream: pkg/scheduler/apis/config/v1/default_plugins.go (v1.36)
pub const DEFAULT_PLUGINS: &[PluginRow] = &[
    row("SchedulingGates", &[PreEnqueue], 0),
    row("PrioritySort", &[QueueSort], 0),
    row("NodeUnschedulable", &[Filter], 0),
    row("NodeName", &[Filter], 0),
    row("TaintToleration", &[Filter, PreScore, Score], 3),
    row("NodeAffinity", &[PreFilter, Filter, PreScore, Score], 2),
    row("NodePorts", &[PreFilter, Filter], 0),
    row("NodeResourcesFit", &[PreFilter, Filter, PreScore, Score], 1),
    row("VolumeRestrictions", &[PreFilter, Filter], 0),
    row("NodeVolumeLimits", &[PreFilter, Filter], 0),
    row(
        "VolumeBinding",
        &[PreFilter, Filter, PreScore, Score, Reserve, PreBind],
        0,
    ),
    row("VolumeZone", &[PreFilter, Filter], 0),
    row("PodTopologySpread", &[PreFilter, Filter, PreScore, Score], 2),
    row("InterPodAffinity", &[PreFilter, Filter, PreScore, Score], 2),
    // Before DefaultPreemption: freeing an idle claim costs less than evicting a pod.
    row(
        "DynamicResources",
        &[PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind],
        2,
    ),
    row("DefaultPreemption", &[PreEnqueue, PostFilter], 0),
    row("NodeResourcesBalancedAllocation", &[PreScore, Score], 1),
    row("ImageLocality", &[Score], 1),
    row("DefaultBinder", &[Bind], 0),
    row("NodeDeclaredFeatures", &[PreFilter, Filter], 0),
];

/// The default plugins that are on with these gates.
pub fn default_plugins(gates: &FeatureGates) -> impl Iterator<Item = &'static PluginRow> + use<> {
    let declared = gates.node_declared_features;
    let dynamic = gates.dynamic_resource_allocation;
    DEFAULT_PLUGINS.iter().filter(move |row| match row.name {
        "NodeDeclaredFeatures" => declared,
        "DynamicResources" => dynamic,
        _ => true,
    })
}

/// All plugins that can be named: the default ones and those built in beside them.
#[derive(Clone, Copy)]
pub(super) struct Registry<'a> {
    pub custom: &'a [PluginRow],
}

impl<'a> Registry<'a> {
    pub(super) fn find(&self, name: &str) -> Option<&'a PluginRow> {
        DEFAULT_PLUGINS.iter().chain(self.custom).find(|row| row.name == name)
    }
}

/// Plugins of other releases, and what does their work now. `None` for those of 1.36 that Orlop does not have.
pub(super) fn instead_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "SelectorSpread" | "DefaultPodTopologySpread" => {
            "it was removed; PodTopologySpread, which is on by default, spreads the pods of services and replica sets"
        }
        "NodePreferAvoidPods" => "it was removed; taint the nodes instead (TaintToleration, which is on by default)",
        "NodeLabel" => "it was removed; use NodeAffinity with addedAffinity",
        "ServiceAffinity" => "it was removed; use InterPodAffinity",
        "NodeResourcesLeastAllocated" => {
            "it was removed; use NodeResourcesFit with scoringStrategy.type LeastAllocated"
        }
        "NodeResourcesMostAllocated" => "it was removed; use NodeResourcesFit with scoringStrategy.type MostAllocated",
        "RequestedToCapacityRatio" => {
            "it was removed; use NodeResourcesFit with scoringStrategy.type RequestedToCapacityRatio"
        }
        "GangScheduling" | "TopologyPlacementGenerator" | "PodGroupPodsCount" => {
            "it is an alpha plugin that Orlop does not have"
        }
        _ => return None,
    })
}

/// Plugins that older configurations may name though nothing is lost without them: they are left out with a warning.
pub(super) const DROPPED_IN_OLD_VERSIONS: &[&str] = &["SelectorSpread", "NodePreferAvoidPods"];

/// Plugins that no longer exist in any version, refused wherever they are enabled or configured.
pub(super) const INVALID_PLUGINS: &[&str] = &["AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_points_in_order_and_once() {
        for row in DEFAULT_PLUGINS {
            assert!(row.points.is_sorted(), "{}", row.name);
            assert_eq!(DEFAULT_PLUGINS.iter().filter(|r| r.name == row.name).count(), 1);
            assert!(row.weight == 0 || row.extends(Score), "{}", row.name);
        }
        assert!(Point::ALL.is_sorted());
    }

    #[test]
    fn gates_take_plugins_out() {
        let names = |gates: &FeatureGates| default_plugins(gates).map(|row| row.name).collect::<Vec<_>>();
        let mut gates = FeatureGates::default();
        assert_eq!(names(&gates).len(), 20);
        gates.node_declared_features = false;
        assert!(!names(&gates).contains(&"NodeDeclaredFeatures"));
    }
}
