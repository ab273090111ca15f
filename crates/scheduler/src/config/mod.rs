//! The configuration of the scheduler: `KubeSchedulerConfiguration` text in, plain values or every problem out.
//!
//! What comes out is the whole meaning: defaults filled in, plugins expanded to ordered lists per extension point,
//! arguments typed and checked. Nothing here reads files or flags.

mod affinity;
mod args;
mod defaults;
mod extenders;
pub mod feature_gates;
mod gate_table;
mod general;
mod plugins;
mod problem;
mod read;
mod render;
mod spread;
mod version;

#[cfg(test)]
mod tests;

use std::time::Duration;

use orlop_api::{Cursor, Path};
use serde_json::{Value, json};

pub use args::{
    Args, DefaultPreemptionArgs, DynamicResourcesArgs, InterPodAffinityArgs, NodeAffinityArgs,
    NodeResourcesBalancedAllocationArgs, NodeResourcesFitArgs, ResourceSpec, ScoringStrategy, ScoringStrategyType,
    ShapePoint, VolumeBindingArgs,
};
pub use defaults::{DEFAULT_PLUGINS, PluginRow, Point, default_plugins};
pub use extenders::{Extender, ManagedResource, Tls};
pub use feature_gates::{FeatureGates, parse_feature_gates};
pub use gate_table::{GATES, Gate};
pub use problem::Problem;
pub use render::render;
pub use spread::{DefaultConstraint, DefaultingType, PodTopologySpreadArgs, WhenUnsatisfiable, system_constraints};

use defaults::Registry;
use plugins::{Context, Sets};
use problem::Problems;
use read::Fields;

/// The scheduler name of pods that name none.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

// Upstream: backend/queue (v1.36), DefaultPodMaxInUnschedulablePodsDuration
const MAX_IN_UNSCHEDULABLE: Duration = Duration::from_secs(5 * 60);

/// The effective configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub parallelism: u32,
    /// `None` is every node; profiles may say otherwise for themselves.
    // Differs from upstream: 0 there samples large clusters, Orlop scores every node because it can.
    pub percentage_of_nodes_to_score: Option<u32>,
    pub pod_initial_backoff: Duration,
    pub pod_max_backoff: Duration,
    /// After this long a pod that found no node is tried again, though nothing has changed. A flag's, not the file's.
    pub pod_max_in_unschedulable: Duration,
    pub leader_election: LeaderElection,
    pub client_connection: ClientConnection,
    pub enable_profiling: bool,
    pub enable_contention_profiling: bool,
    pub delay_cache_until_active: bool,
    /// At least one; names are unique, and all sort the queue with the same plugin.
    pub profiles: Vec<Profile>,
    /// In the order they are asked: ignorable ones last.
    pub extenders: Vec<Extender>,
}

/// `leaderElection`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    pub leader_elect: bool,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// `leases`.
    pub resource_lock: String,
    pub resource_namespace: String,
    pub resource_name: String,
}

/// `clientConnection`; only `kubeconfig` has an effect.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConnection {
    /// Empty: none given.
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    /// Negative: no limit.
    pub qps: f32,
    pub burst: u32,
}

/// One scheduler of the process.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub scheduler_name: String,
    /// `None` is what the configuration says for all; 0 is every node.
    pub percentage_of_nodes_to_score: Option<u32>,
    pub points: Points,
    pub args: Args,
}

/// A plugin at an extension point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    pub name: String,
    /// What the plugin's score is multiplied with. 0 at all points but `score`.
    pub weight: i64,
}

/// The plugins of every extension point, in the order they are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Points {
    pub pre_enqueue: Vec<Enabled>,
    pub queue_sort: Vec<Enabled>,
    pub pre_filter: Vec<Enabled>,
    pub filter: Vec<Enabled>,
    pub post_filter: Vec<Enabled>,
    pub pre_score: Vec<Enabled>,
    pub score: Vec<Enabled>,
    pub reserve: Vec<Enabled>,
    pub permit: Vec<Enabled>,
    pub pre_bind: Vec<Enabled>,
    pub bind: Vec<Enabled>,
    pub post_bind: Vec<Enabled>,
}

impl Points {
    pub fn get(&self, point: Point) -> &[Enabled] {
        match point {
            Point::PreEnqueue => &self.pre_enqueue,
            Point::QueueSort => &self.queue_sort,
            Point::PreFilter => &self.pre_filter,
            Point::Filter => &self.filter,
            Point::PostFilter => &self.post_filter,
            Point::PreScore => &self.pre_score,
            Point::Score => &self.score,
            Point::Reserve => &self.reserve,
            Point::Permit => &self.permit,
            Point::PreBind => &self.pre_bind,
            Point::Bind => &self.bind,
            Point::PostBind => &self.post_bind,
        }
    }

    pub fn get_mut(&mut self, point: Point) -> &mut Vec<Enabled> {
        match point {
            Point::PreEnqueue => &mut self.pre_enqueue,
            Point::QueueSort => &mut self.queue_sort,
            Point::PreFilter => &mut self.pre_filter,
            Point::Filter => &mut self.filter,
            Point::PostFilter => &mut self.post_filter,
            Point::PreScore => &mut self.pre_score,
            Point::Score => &mut self.score,
            Point::Reserve => &mut self.reserve,
            Point::Permit => &mut self.permit,
            Point::PreBind => &mut self.pre_bind,
            Point::Bind => &mut self.bind,
            Point::PostBind => &mut self.post_bind,
        }
    }

    /// Every plugin that is called anywhere, once, in the order of its first call.
    pub fn plugin_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for plugin in Point::ALL.iter().flat_map(|&point| self.get(point)) {
            if !names.contains(&plugin.name.as_str()) {
                names.push(&plugin.name);
            }
        }
        names
    }
}

impl Default for Config {
    fn default() -> Config {
        Config::with_gates(&FeatureGates::default())
    }
}

impl Config {
    /// One default profile, with the plugins and arguments these gates switch on.
    pub fn with_gates(gates: &FeatureGates) -> Config {
        let empty = json!({"apiVersion": version::API_VERSION, "kind": version::KIND});
        let (config, _) = read_document(&empty, &[], gates, Problems::default()).expect("the defaults are valid");
        config
    }
}

impl Default for Profile {
    fn default() -> Profile {
        Config::default().profiles.remove(0)
    }
}

/// A duration as Go writes it (`1m30s`, `500ms`), if it is not negative.
pub fn parse_duration(text: &str) -> Option<Duration> {
    u64::try_from(orlop_api::duration::parse_duration(text).ok()?)
        .ok()
        .map(Duration::from_nanos)
}

/// Reads a `KubeSchedulerConfiguration` in YAML or JSON under the default feature gates. Gives it with its defaults and
/// warnings, or every problem. `custom` are the plugins that are built in beside Kubernetes' own.
pub fn parse(text: &str, custom: &[PluginRow]) -> Result<(Config, Vec<String>), Vec<Problem>> {
    parse_with_gates(text, custom, &FeatureGates::default())
}

/// The same under given gates: they decide on some default plugins and on which arguments may be given.
pub fn parse_with_gates(
    text: &str,
    custom: &[PluginRow],
    gates: &FeatureGates,
) -> Result<(Config, Vec<String>), Vec<Problem>> {
    let mut p = Problems::default();
    match read::document(text, &mut p) {
        Some(document) => read_document(&document, custom, gates, p),
        None => Err(p.into_list()),
    }
}

fn read_document(
    document: &Value,
    custom: &[PluginRow],
    gates: &FeatureGates,
    mut p: Problems,
) -> Result<(Config, Vec<String>), Vec<Problem>> {
    let p = &mut p;
    let mut warnings = Vec::new();
    let mut f = Fields::open(Cursor::root(document), p);
    let Some(version) = version::read(&mut f, p, &mut warnings) else {
        return Err(std::mem::take(p).into_list());
    };
    let cx = Context {
        version,
        registry: Registry { custom },
        gates,
    };
    let client_connection = general::client_connection(f.at("clientConnection"), p);
    let leader_election = general::leader_election(f.at("leaderElection"), p);
    let parallelism = general::parallelism(&mut f, p);
    let mut profiles = read_profiles(&mut f, &cx, p, &mut warnings);
    let percentage_of_nodes_to_score = general::percentage(&mut f, p).filter(|&n| n != 0);
    let (pod_initial_backoff, pod_max_backoff) = general::backoff(&mut f, p);
    let path = f.path().field("extenders");
    let extenders = extenders::read(f.list("extenders", p), &path, p);
    let enable_profiling = f.flag("enableProfiling", p).unwrap_or(true);
    let contention = f.flag("enableContentionProfiling", p);
    let delay_cache_until_active = f.flag("delayCacheUntilActive", p).unwrap_or(false);
    version::read_old_fields(&mut f, version, p, &mut warnings);
    f.close(p);
    ignore_managed_resources(&mut profiles, &extenders);
    if !p.is_empty() {
        return Err(std::mem::take(p).into_list());
    }
    let config = Config {
        parallelism,
        percentage_of_nodes_to_score,
        pod_initial_backoff,
        pod_max_backoff,
        pod_max_in_unschedulable: MAX_IN_UNSCHEDULABLE,
        leader_election,
        client_connection,
        enable_profiling,
        enable_contention_profiling: contention.unwrap_or(enable_profiling),
        delay_cache_until_active,
        profiles,
        extenders,
    };
    Ok((config, warnings))
}

fn read_profiles(f: &mut Fields<'_>, cx: &Context<'_>, p: &mut Problems, warnings: &mut Vec<String>) -> Vec<Profile> {
    let mut items = f.list("profiles", p);
    if items.is_empty() {
        items.push(Cursor::new(None, f.path().field("profiles").index(0)));
    }
    let single = items.len() == 1;
    let mut profiles: Vec<Profile> = Vec::new();
    let mut written = Vec::new();
    for item in items {
        let path = item.path().clone();
        let (profile, sets) = read_profile(item, single, cx, p, warnings);
        if profiles
            .iter()
            .any(|other| other.scheduler_name == profile.scheduler_name)
        {
            p.duplicate(&path.field("schedulerName"), profile.scheduler_name.as_str());
        }
        profiles.push(profile);
        written.push((path, sets.queue_sort()));
    }
    check_queue_sort(&profiles, &written, p);
    profiles
}

fn read_profile(
    item: Cursor<'_>,
    single: bool,
    cx: &Context<'_>,
    p: &mut Problems,
    warnings: &mut Vec<String>,
) -> (Profile, Sets) {
    let mut f = Fields::open(item, p);
    let path = f.path().clone();
    let name = match f.text("schedulerName", p) {
        // Only a single profile may be without a name; one that is given must not be empty.
        None if single => DEFAULT_SCHEDULER_NAME.to_string(),
        name => name.unwrap_or_default(),
    };
    if name.is_empty() {
        p.required(&path.field("schedulerName"), "");
    }
    let percentage_of_nodes_to_score = general::percentage(&mut f, p);
    let sets = plugins::read(f.at("plugins"), cx, p, warnings);
    let points = sets.expand(cx, &path, &name, p);
    let args = args::read(f.list("pluginConfig", p), cx, p, warnings);
    f.close(p);
    let profile = Profile {
        scheduler_name: name,
        percentage_of_nodes_to_score,
        points,
        args,
    };
    (profile, sets)
}

/// There is one queue, so all profiles must sort it alike, and say so in the same way.
fn check_queue_sort(profiles: &[Profile], written: &[(Path, (Path, Value))], p: &mut Problems) {
    let Some((first, (_, (_, canon)))) = profiles.first().zip(written.first()) else {
        return;
    };
    let sorter = |profile: &Profile| profile.points.queue_sort.first().map(|plugin| plugin.name.clone());
    let first_sorter = sorter(first);
    for (profile, (path, (set_path, set))) in profiles.iter().zip(written).skip(1) {
        let other = sorter(profile);
        if set != canon {
            p.invalid(set_path, set.clone(), "must be the same for all profiles");
        } else if other.is_some() && first_sorter.is_some() && other != first_sorter {
            let text = format!(
                "different queue sort plugins for profile {:?}: {:?}, first: {:?}",
                profile.scheduler_name,
                other.unwrap_or_default(),
                first_sorter.clone().unwrap_or_default()
            );
            p.invalid(set_path, set.clone(), text);
        } else if let Some(name) = other {
            let args = |profile: &Profile| profile.args.custom.get(&name).cloned();
            if args(profile) != args(first) {
                let path = path.field("pluginConfig").field("args");
                let args = args(profile).unwrap_or_default();
                p.invalid(&path, args, "queueSort must be the same for all profiles");
            }
        }
    }
}

/// What extenders manage and the scheduler shall ignore is ignored by the fit of every profile.
fn ignore_managed_resources(profiles: &mut [Profile], extenders: &[Extender]) {
    let managed = extenders.iter().flat_map(|extender| &extender.managed_resources);
    for resource in managed.filter(|resource| resource.ignored_by_scheduler) {
        for profile in &mut *profiles {
            let ignored = &mut profile.args.node_resources_fit.ignored_resources;
            if !ignored.contains(&resource.name) {
                ignored.push(resource.name.clone());
            }
        }
    }
}
