//! The plugins, one file each, and the table that makes them from a configuration.

pub mod dynamic_resources;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced_allocation;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use crate::cluster::pod::PodInfo;
use crate::config::{Args, Config, Enabled, PluginRow, ScoringStrategyType};
use crate::framework::event::{Event, Hint};
use crate::framework::points::Plugin;
use crate::framework::profile::Profile;
use crate::preemption::DefaultPreemption;

/// Makes a plugin from the arguments of its profile.
pub type Make = fn(&Args) -> Result<Box<dyn Plugin>, InvalidArgs>;

/// Why a plugin can't be made from its arguments, in words: `factor must be a number`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidArgs(pub String);

/// Why a profile of the configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile {profile}: unknown plugin {plugin:?}")]
    UnknownPlugin { profile: String, plugin: String },
    #[error("profile {profile}: plugin {plugin}: {source}")]
    InvalidArgs {
        profile: String,
        plugin: String,
        source: InvalidArgs,
    },
}

/// Kubernetes' own plugins. Their points, order and weights are in `config::DEFAULT_PLUGINS`.
pub const ALL: &[(&str, Make)] = &[
    ("SchedulingGates", |_| Ok(Box::new(scheduling_gates::SchedulingGates))),
    ("PrioritySort", |_| Ok(Box::new(Marker("PrioritySort")))),
    ("NodeUnschedulable", |_| {
        Ok(Box::<node_unschedulable::NodeUnschedulable>::default())
    }),
    ("NodeName", |_| Ok(Box::new(node_name::NodeName))),
    ("TaintToleration", |_| Ok(Box::new(taint_toleration::TaintToleration))),
    ("NodeAffinity", make_node_affinity),
    ("NodePorts", |_| Ok(Box::new(node_ports::NodePorts))),
    ("NodeResourcesFit", |args| Ok(Box::new(make_fit(args)))),
    ("VolumeRestrictions", |_| {
        Ok(Box::new(volume_restrictions::VolumeRestrictions))
    }),
    ("NodeVolumeLimits", |_| {
        Ok(Box::new(node_volume_limits::NodeVolumeLimits))
    }),
    ("VolumeBinding", |args| {
        Ok(Box::new(volume_binding::VolumeBinding::new(
            args.volume_binding.bind_timeout,
        )))
    }),
    ("VolumeZone", |_| Ok(Box::new(volume_zone::VolumeZone))),
    ("PodTopologySpread", |args| Ok(Box::new(make_spread(args)))),
    ("InterPodAffinity", |args| {
        let args = &args.inter_pod_affinity;
        Ok(Box::new(inter_pod_affinity::InterPodAffinity::new(
            args.hard_pod_affinity_weight,
            args.ignore_preferred_terms_of_existing_pods,
        )))
    }),
    ("DynamicResources", |_| {
        Ok(Box::new(dynamic_resources::DynamicResources))
    }),
    ("DefaultPreemption", |args| Ok(Box::new(make_preemption(args)))),
    ("NodeResourcesBalancedAllocation", |args| {
        let resources = &args.node_resources_balanced_allocation.resources;
        let names = resources.iter().map(|r| r.name.clone()).collect();
        Ok(Box::new(
            node_resources_balanced_allocation::NodeResourcesBalancedAllocation::new(names),
        ))
    }),
    ("ImageLocality", |_| Ok(Box::new(image_locality::ImageLocality))),
    ("DefaultBinder", |_| Ok(Box::new(Marker("DefaultBinder")))),
    ("NodeDeclaredFeatures", |_| {
        Ok(Box::new(node_declared_features::NodeDeclaredFeatures))
    }),
];

/// A plugin beside Kubernetes' own.
pub struct Extra {
    pub row: PluginRow,
    pub make: Make,
}

/// Plugins beside Kubernetes' own: a file and a row each. See docs/how-to/add-a-scheduler-plugin.md.
pub const EXTRA: &[Extra] = &[];

/// For plugins whose work is done elsewhere: the queue sorts, the shell binds.
struct Marker(&'static str);

impl Plugin for Marker {
    fn name(&self) -> &'static str {
        self.0
    }
}

/// The profiles that a configuration describes.
pub fn profiles(config: &Config) -> Result<Vec<Profile>, ProfileError> {
    profiles_with(config, EXTRA)
}

/// Like `profiles`, with these plugins beside Kubernetes' own.
pub fn profiles_with(config: &Config, extra: &[Extra]) -> Result<Vec<Profile>, ProfileError> {
    config.profiles.iter().map(|p| profile(config, p, extra)).collect()
}

fn profile(config: &Config, wanted: &crate::config::Profile, extra: &[Extra]) -> Result<Profile, ProfileError> {
    let names = wanted.points.plugin_names();
    let mut plugins = vec![];
    for name in &names {
        let own = ALL.iter().find(|(n, _)| n == name).map(|(_, make)| make);
        let make = own.or_else(|| extra.iter().find(|e| e.row.name == *name).map(|e| &e.make));
        let (profile, plugin) = (&wanted.scheduler_name, name.to_string());
        let Some(make) = make else {
            let profile = profile.clone();
            return Err(ProfileError::UnknownPlugin { profile, plugin });
        };
        plugins.push(make(&wanted.args).map_err(|source| ProfileError::InvalidArgs {
            profile: profile.clone(),
            plugin,
            source,
        })?);
    }
    let place = |e: &Enabled| {
        names
            .iter()
            .position(|n| *n == e.name)
            .expect("every enabled plugin is listed")
    };
    let at = |enabled: &[Enabled], has: fn(&dyn Plugin) -> bool| -> Vec<usize> {
        enabled
            .iter()
            .map(place)
            .filter(|i| has(plugins[*i].as_ref()))
            .collect()
    };
    let points = &wanted.points;
    let score = (points.score.iter())
        .map(|e| (place(e), e.weight))
        .filter(|(i, _)| plugins[*i].score().is_some())
        .collect();
    let percentage = wanted
        .percentage_of_nodes_to_score
        .or(config.percentage_of_nodes_to_score);
    Ok(Profile {
        name: wanted.scheduler_name.clone(),
        pre_enqueue: at(&points.pre_enqueue, |p| p.pre_enqueue().is_some()),
        pre_filter: at(&points.pre_filter, |p| p.filter().is_some()),
        filter: at(&points.filter, |p| p.filter().is_some()),
        post_filter: at(&points.post_filter, |_| true),
        score,
        reserve: at(&points.reserve, |p| p.reserve().is_some()),
        permit: at(&points.permit, |p| p.permit().is_some()),
        pre_bind: at(&points.pre_bind, |p| p.pre_bind().is_some()),
        post_bind: at(&points.post_bind, |p| p.post_bind().is_some()),
        percentage_of_nodes_to_score: percentage.filter(|p| *p > 0),
        plugins,
    })
}

/// Per profile: how to preempt, if it does.
pub fn preemption_args(config: &Config) -> Vec<Option<DefaultPreemption>> {
    let enabled = |p: &crate::config::Profile| p.points.post_filter.iter().any(|e| e.name == "DefaultPreemption");
    (config.profiles.iter())
        .map(|p| enabled(p).then(|| make_preemption(&p.args)))
        .collect()
}

fn make_preemption(args: &Args) -> DefaultPreemption {
    DefaultPreemption {
        min_candidate_nodes_percentage: args.default_preemption.min_candidate_nodes_percentage as usize,
        min_candidate_nodes_absolute: args.default_preemption.min_candidate_nodes_absolute as usize,
    }
}

fn make_node_affinity(args: &Args) -> Result<Box<dyn Plugin>, InvalidArgs> {
    let added = match &args.node_affinity.added_affinity {
        Some(value) => serde_json::from_value(value.clone()).map_err(|e| InvalidArgs(format!("addedAffinity: {e}")))?,
        None => crate::model::NodeAffinity::default(),
    };
    Ok(Box::new(node_affinity::NodeAffinity::new(added)))
}

fn make_fit(args: &Args) -> node_resources_fit::NodeResourcesFit {
    use node_resources_fit::Strategy;
    let args = &args.node_resources_fit;
    let strategy = match &args.scoring_strategy.kind {
        ScoringStrategyType::LeastAllocated => Strategy::LeastAllocated,
        ScoringStrategyType::MostAllocated => Strategy::MostAllocated,
        // Shapes are written with scores up to 10.
        ScoringStrategyType::RequestedToCapacityRatio { shape } => {
            Strategy::RequestedToCapacityRatio(shape.iter().map(|p| (p.utilization, p.score * 10)).collect())
        }
    };
    let resources = &args.scoring_strategy.resources;
    node_resources_fit::NodeResourcesFit::new(
        strategy,
        resources.iter().map(|r| (r.name.clone(), r.weight)).collect(),
        args.ignored_resources.clone(),
        args.ignored_resource_groups.clone(),
    )
}

fn make_spread(args: &Args) -> pod_topology_spread::PodTopologySpread {
    use crate::config::DefaultingType;
    use pod_topology_spread::Defaults;
    let args = &args.pod_topology_spread;
    pod_topology_spread::PodTopologySpread::new(match args.defaulting_type {
        DefaultingType::System => Defaults::System,
        DefaultingType::List => Defaults::List(args.constraints().into_iter().map(constraint).collect()),
    })
}

fn constraint(wanted: crate::config::DefaultConstraint) -> crate::model::TopologySpreadConstraint {
    crate::model::TopologySpreadConstraint {
        max_skew: i32::try_from(wanted.max_skew).unwrap_or(i32::MAX),
        topology_key: wanted.topology_key,
        when_unsatisfiable: wanted.when_unsatisfiable.name().to_string(),
        label_selector: None,
        min_domains: wanted.min_domains.and_then(|n| i32::try_from(n).ok()),
        node_affinity_policy: wanted.node_affinity_policy,
        node_taints_policy: wanted.node_taints_policy,
        match_label_keys: wanted.match_label_keys,
    }
}

/// Queue if the event is about the waiting pod itself.
fn own_pod(pod: &PodInfo, event: &Event) -> Hint {
    Hint::queue_if(event.pods().1.is_some_and(|p| p.uid == pod.uid))
}
