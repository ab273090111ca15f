//! Which plugins run at which point, and in which order: the default plugins merged with `multiPoint`, then every point
//! with what it names itself.
//!
//! At one point: first the plugins named there that would also come from multiPoint (in the order named), then the
//! others from multiPoint, then the rest of those named. What a point says of a plugin replaces what multiPoint says.
// Upstream: pkg/scheduler/framework/runtime/framework.go, pkg/scheduler/apis/config/v1/default_plugins.go (v1.36)

use std::collections::{BTreeMap, BTreeSet};

use orlop_api::{Cursor, Path};
use serde_json::{Value, json};

use super::defaults::{self, DROPPED_IN_OLD_VERSIONS, INVALID_PLUGINS, Point, Registry};
use super::feature_gates::FeatureGates;
use super::problem::Problems;
use super::read::Fields;
use super::version::ApiVersion;
use super::{Enabled, Points};

/// The highest score a plugin gives.
const MAX_SCORE: i64 = 100;

/// A plugin named in the configuration.
#[derive(Clone)]
struct PluginRef {
    name: String,
    /// 0: none given.
    weight: i64,
    path: Path,
}

/// What one field of `plugins` says.
#[derive(Clone, Default)]
struct Set {
    path: Path,
    enabled: Vec<PluginRef>,
    disabled: BTreeSet<String>,
}

/// `plugins` of a profile as written.
#[derive(Default)]
pub(super) struct Sets {
    multi: Set,
    points: BTreeMap<Point, Set>,
}

/// What reading and expanding need to know.
pub(super) struct Context<'a> {
    pub version: ApiVersion,
    pub registry: Registry<'a>,
    pub gates: &'a FeatureGates,
}

pub(super) fn read(plugins: Cursor<'_>, cx: &Context<'_>, p: &mut Problems, warnings: &mut Vec<String>) -> Sets {
    let mut fields = Fields::open(plugins, p);
    let multi = fields.at("multiPoint");
    if cx.version == ApiVersion::V1Beta2 && !multi.is_empty() {
        p.forbidden(
            multi.path(),
            "multiPoint replaces the default plugins only since v1beta3; name the plugins at their points, or write \
             apiVersion kubescheduler.config.k8s.io/v1",
        );
    }
    let mut sets = Sets {
        multi: read_set(multi, cx, p, warnings),
        points: BTreeMap::new(),
    };
    for point in Point::ALL {
        let set = read_set(fields.at(point.field()), cx, p, warnings);
        sets.points.insert(point, set);
    }
    for name in ["placementGenerate", "placementScore"] {
        let set = read_set(fields.at(name), cx, p, warnings);
        if !set.enabled.is_empty() {
            p.forbidden(
                &set.path.field("enabled"),
                "must be empty: Orlop does not have TopologyAwareWorkloadScheduling (alpha)",
            );
        }
    }
    fields.close(p);
    sets
}

fn read_set(set: Cursor<'_>, cx: &Context<'_>, p: &mut Problems, warnings: &mut Vec<String>) -> Set {
    let mut fields = Fields::open(set.clone(), p);
    let enabled = fields.list("enabled", p);
    let disabled = fields.list("disabled", p);
    fields.close(p);
    let named = |c: Cursor<'_>, p: &mut Problems| {
        let mut fields = Fields::open(c, p);
        let name = fields.text("name", p).unwrap_or_default();
        let weight = fields.int("weight", p).unwrap_or(0).into();
        let path = fields.path().clone();
        fields.close(p);
        PluginRef { name, weight, path }
    };
    let mut out = Set {
        path: set.path().clone(),
        ..Set::default()
    };
    for c in enabled {
        let plugin = named(c, p);
        if cx.version.is_old() && DROPPED_IN_OLD_VERSIONS.contains(&plugin.name.as_str()) {
            warnings.push(dropped(&plugin.path, &plugin.name));
        } else {
            out.enabled.push(plugin);
        }
    }
    // Names that do not exist may be disabled: there is nothing to do for them.
    out.disabled = disabled.into_iter().map(|c| named(c, p).name).collect();
    out
}

/// Why a plugin of an older version is left out.
pub(super) fn dropped(path: &Path, name: &str) -> String {
    let why = defaults::instead_of(name).unwrap_or("it was removed");
    format!("{path}: plugin {name:?} is left out: {why}")
}

impl Sets {
    /// How `queueSort` is written, to compare it between profiles.
    pub(super) fn queue_sort(&self) -> (Path, Value) {
        let Some(set) = self.points.get(&Point::QueueSort) else {
            return (Path::default(), json!({}));
        };
        let mut written = serde_json::Map::new();
        if !set.enabled.is_empty() {
            let plugin = |plugin: &PluginRef| match plugin.weight {
                0 => json!({"name": plugin.name}),
                weight => json!({"name": plugin.name, "weight": weight}),
            };
            let list: Vec<Value> = set.enabled.iter().map(plugin).collect();
            written.insert("enabled".to_string(), list.into());
        }
        if !set.disabled.is_empty() {
            let list: Vec<Value> = set.disabled.iter().map(|name| json!({"name": name})).collect();
            written.insert("disabled".to_string(), list.into());
        }
        (set.path.clone(), written.into())
    }

    /// The plugins of every point in order, with their weights. Problems are those Kubernetes finds when it builds the
    /// profile, all of them at once.
    pub(super) fn expand(&self, cx: &Context<'_>, profile: &Path, scheduler_name: &str, p: &mut Problems) -> Points {
        let multi = self.merged_multi_point(cx);
        let known = |plugin: &PluginRef, point: Option<Point>, p: &mut Problems| check_name(plugin, point, cx, p);
        let multi: Vec<PluginRef> = multi.into_iter().filter(|plugin| known(plugin, None, p)).collect();
        let mut points = Points::default();
        let mut twice = BTreeSet::new();
        let none = Set::default();
        for point in Point::ALL {
            let set = self.points.get(&point).unwrap_or(&none);
            let explicit = check_explicit(set, point, cx, p);
            let names = expand_point(&explicit, set, &multi, point, cx.registry, &mut twice, p);
            *points.get_mut(point) = names.into_iter().map(|name| Enabled { name, weight: 0 }).collect();
        }
        self.weigh(&mut points, &multi, cx, p);
        check_points(&points, self, profile, scheduler_name, p);
        points
    }

    /// The default plugins with what `multiPoint` changes of them in place, then what it adds.
    fn merged_multi_point(&self, cx: &Context<'_>) -> Vec<PluginRef> {
        let custom = &self.multi.enabled;
        let mut replaced = BTreeSet::new();
        let mut merged = Vec::new();
        if !self.multi.disabled.contains("*") {
            for row in defaults::default_plugins(cx.gates) {
                if self.multi.disabled.contains(row.name) {
                    continue;
                }
                // Of a plugin named twice the last one replaces; the other stays and is refused later.
                if let Some(i) = custom.iter().rposition(|plugin| plugin.name == row.name) {
                    replaced.insert(i);
                    merged.push(custom[i].clone());
                } else {
                    merged.push(PluginRef {
                        name: row.name.to_string(),
                        weight: cx.version.default_weight(row),
                        path: Path::default(),
                    });
                }
            }
        }
        let added = custom.iter().enumerate().filter(|(i, _)| !replaced.contains(i));
        merged.extend(added.map(|(_, plugin)| plugin.clone()));
        merged
    }

    /// The weights of score plugins: as given at `score`, else by `multiPoint`, and 1 if none is given.
    fn weigh(&self, points: &mut Points, multi: &[PluginRef], cx: &Context<'_>, p: &mut Problems) {
        let explicit = self.points.get(&Point::Score).map_or(&[][..], |set| &set.enabled);
        let mut weights: BTreeMap<&str, i64> = BTreeMap::new();
        let mut total: i64 = 0;
        for plugin in explicit.iter().chain(multi) {
            let scores = cx
                .registry
                .find(&plugin.name)
                .is_some_and(|row| row.extends(Point::Score));
            if !scores || weights.contains_key(plugin.name.as_str()) {
                continue;
            }
            let weight = if plugin.weight == 0 { 1 } else { plugin.weight };
            weights.insert(&plugin.name, weight);
            match weight.checked_mul(MAX_SCORE).and_then(|n| total.checked_add(n)) {
                Some(sum) => total = sum,
                None => {
                    let path = plugin.path.field("weight");
                    return p.invalid(&path, weight, "total score of Score plugins could overflow");
                }
            }
        }
        for plugin in points.get_mut(Point::Score) {
            plugin.weight = weights.get(plugin.name.as_str()).copied().unwrap_or(1);
        }
    }
}

/// The plugins named at a point that can be there.
fn check_explicit<'a>(set: &'a Set, point: Point, cx: &Context<'_>, p: &mut Problems) -> Vec<&'a PluginRef> {
    let mut seen = BTreeSet::new();
    let mut good = Vec::new();
    for plugin in &set.enabled {
        if !check_name(plugin, Some(point), cx, p) {
            continue;
        }
        let path = plugin.path.field("name");
        let row = cx.registry.find(&plugin.name).expect("checked above");
        if !row.extends(point) {
            let text = format!("plugin {:?} does not extend {} plugin", plugin.name, point.interface());
            p.invalid(&path, plugin.name.as_str(), text);
        } else if !seen.insert(plugin.name.as_str()) {
            p.invalid(&path, plugin.name.as_str(), registered_twice(&plugin.name, point));
        } else {
            good.push(plugin);
        }
    }
    good
}

fn registered_twice(name: &str, point: Point) -> String {
    format!("plugin {name:?} already registered as {:?}", point.interface())
}

/// For whoever names a plugin of their own: none is loaded at run time.
const HOW_TO: &str = "a plugin of your own is compiled in or asked over HTTP as an extender: see \
                      docs/how-to/add-a-scheduler-plugin.md";

fn check_name(plugin: &PluginRef, point: Option<Point>, cx: &Context<'_>, p: &mut Problems) -> bool {
    let name = plugin.name.as_str();
    if cx.registry.find(name).is_some() {
        return true;
    }
    let path = plugin.path.field("name");
    if name.is_empty() {
        p.required(&path, "");
    } else if INVALID_PLUGINS.contains(&name) {
        p.invalid(&plugin.path, name, cx.version.invalid_plugin());
    } else {
        let what = point.map_or("plugin", Point::interface);
        let advice = defaults::instead_of(name).map_or_else(|| format!("; {HOW_TO}"), |why| format!(": {why}"));
        p.invalid(&path, name, format!("{what} {name:?} does not exist{advice}"));
    }
    false
}

/// The order of one point, see the top of this file.
fn expand_point(
    explicit: &[&PluginRef],
    set: &Set,
    multi: &[PluginRef],
    point: Point,
    registry: Registry<'_>,
    reported: &mut BTreeSet<String>,
    p: &mut Problems,
) -> Vec<String> {
    let name = |plugin: &&PluginRef| plugin.name.clone();
    if set.disabled.contains("*") {
        return explicit.iter().map(name).collect();
    }
    let mut overridden: BTreeSet<&str> = BTreeSet::new();
    let mut from_multi: Vec<&str> = Vec::new();
    for plugin in multi {
        let extends = registry.find(&plugin.name).is_some_and(|row| row.extends(point));
        if !extends || set.disabled.contains(&plugin.name) {
            continue;
        }
        if explicit.iter().any(|e| e.name == plugin.name) {
            overridden.insert(&plugin.name);
        } else if !from_multi.contains(&plugin.name.as_str()) {
            from_multi.push(&plugin.name);
        } else if reported.insert(plugin.name.clone()) {
            let text = registered_twice(&plugin.name, point);
            p.invalid(&plugin.path.field("name"), plugin.name.as_str(), text);
        }
    }
    let is_override = |plugin: &&&PluginRef| overridden.contains(plugin.name.as_str());
    let first = explicit.iter().filter(is_override).map(name);
    let last = explicit.iter().filter(|e| !is_override(e)).map(name);
    let middle = from_multi.iter().map(|name| name.to_string());
    first.chain(middle).chain(last).collect()
}

/// Exactly one plugin sorts the queue, and at least one binds.
fn check_points(points: &Points, sets: &Sets, profile: &Path, scheduler_name: &str, p: &mut Problems) {
    let plugins = profile.field("plugins");
    let named = sets.points.get(&Point::QueueSort).map_or(0, |set| set.enabled.len());
    let path = plugins.field("queueSort");
    if named > 1 {
        p.invalid(
            &path.field("enabled"),
            named,
            "only one queue sort plugin can be enabled",
        );
    } else if points.queue_sort.len() != 1 {
        let n = points.queue_sort.len();
        let text = format!(
            "only one queue sort plugin required for profile with scheduler name {scheduler_name:?}, but got {n}"
        );
        p.invalid(&path, n, text);
    }
    if points.bind.is_empty() {
        let text = format!("at least one bind plugin is needed for profile with scheduler name {scheduler_name:?}");
        p.required(&plugins.field("bind"), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_whose_sum_could_overflow_are_refused() {
        let gates = FeatureGates::default();
        let cx = Context {
            version: ApiVersion::V1,
            registry: Registry { custom: &[] },
            gates: &gates,
        };
        let total = |first: i64| {
            let named = |(i, (name, weight)): (usize, (&str, i64))| PluginRef {
                name: name.to_string(),
                weight,
                path: Path::default().field("score").index(i),
            };
            let enabled = [("ImageLocality", first), ("NodeAffinity", 1)];
            let set = Set {
                enabled: enabled.into_iter().enumerate().map(named).collect(),
                ..Set::default()
            };
            let sets = Sets {
                points: BTreeMap::from([(Point::Score, set)]),
                ..Sets::default()
            };
            let mut p = Problems::default();
            sets.weigh(&mut Points::default(), &[], &cx, &mut p);
            p.into_list().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let most = i64::MAX / MAX_SCORE;
        assert_eq!(total(most - 1), Vec::<String>::new());
        assert_eq!(
            total(most),
            ["score[1].weight: Invalid value: 1: total score of Score plugins could overflow"]
        );
        assert_eq!(total(most + 1).len(), 1);
    }
}
