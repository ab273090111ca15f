//! VolumeZone: a pod goes to the zone and region that its volumes' labels name.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Object, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::PersistentVolume;

const CONFLICT: Rejection = Rejection::unresolvable("node(s) had no available volume zone");

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const KEYS: [&str; 4] = [BETA_ZONE, BETA_REGION, ZONE, REGION];

/// What a label of a volume asks of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRequirement {
    key: &'static str,
    values: BTreeSet<String>,
}

/// What the volume's labels ask of nodes. A label that is no list of zones is ignored.
fn zone_requirements(volume: &PersistentVolume) -> Vec<ZoneRequirement> {
    let labels = &volume.metadata.labels;
    let labelled = KEYS.iter().filter_map(|key| Some((*key, labels.get(*key)?)));
    labelled
        .map(|(key, value)| ZoneRequirement {
            key,
            values: value.split("__").map(|zone| zone.trim().to_string()).collect(),
        })
        .filter(|w| !w.values.contains(""))
        .collect()
}

fn ga_key(key: &str) -> &str {
    match key {
        BETA_ZONE => ZONE,
        BETA_REGION => REGION,
        other => other,
    }
}

#[derive(Default)]
pub struct VolumeZone;

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        let changed = Actions::ADD.or(Actions::UPDATE);
        vec![
            EventKind::new(Resource::StorageClass, Actions::ADD),
            EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL)),
            EventKind::new(Resource::PersistentVolumeClaim, changed),
            EventKind::new(Resource::PersistentVolume, changed),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        match (&event.old, &event.new) {
            (_, Object::StorageClass(class)) => Hint::queue_if(class.waits_for_consumer()),
            (_, Object::PersistentVolumeClaim(claim)) => {
                let mut claims = pod.volumes.iter().filter_map(|v| v.claim.as_ref());
                let is_own = claim.metadata.namespace == **pod.namespace()
                    && claims.any(|c| c.claim_name == claim.metadata.name);
                Hint::queue_if(is_own)
            }
            (Object::PersistentVolume(old), Object::PersistentVolume(new)) => {
                Hint::queue_if(zone_requirements(old) != zone_requirements(new))
            }
            _ => Hint::Queue,
        }
    }
}

fn reject<S>(reason: String) -> PreFilter<S> {
    PreFilter::Reject(Rejection::because(reason, true))
}

impl Filter for VolumeZone {
    type State = Arc<[ZoneRequirement]>;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<Arc<[ZoneRequirement]>> {
        let tables = cluster.storage.tables();
        let mut all = vec![];
        for source in pod.volumes.iter().filter_map(|v| v.claim.as_ref()) {
            let name = &source.claim_name;
            if name.is_empty() {
                return reject("PersistentVolumeClaim had no name".into());
            }
            let Some(claim) = tables.claim(pod.namespace(), name) else {
                return reject(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            let volume = &claim.spec.volume_name;
            if !volume.is_empty() {
                let Some(volume) = tables.volume(volume) else {
                    return reject(format!("persistentvolume \"{volume}\" not found"));
                };
                all.extend(zone_requirements(volume));
                continue;
            }
            let class = claim.class();
            if class.is_empty() {
                return reject("PersistentVolumeClaim had no pv name and storageClass name".into());
            }
            match tables.class(class) {
                None => return reject(format!("storageclass.storage.k8s.io \"{class}\" not found")),
                Some(found) if found.volume_binding_mode.is_none() => {
                    return reject(format!("VolumeBindingMode not set for StorageClass \"{class}\""));
                }
                Some(found) if !found.waits_for_consumer() => return reject("PersistentVolume had no name".into()),
                // It is bound once we have chosen a node.
                Some(_) => {}
            }
        }
        if all.is_empty() {
            PreFilter::Skip
        } else {
            PreFilter::Run(all.into())
        }
    }

    fn filter(&self, all: &Arc<[ZoneRequirement]>, _: &PodInfo, node: &NodeInfo) -> Verdict {
        // Clusters of one zone need not label their nodes.
        if !KEYS.iter().any(|key| node.labels.contains_key(*key)) {
            return Ok(());
        }
        let has = |w: &ZoneRequirement| {
            let value = node.labels.get(w.key).or_else(|| node.labels.get(ga_key(w.key)));
            value.is_some_and(|v| w.values.contains(v))
        };
        if all.iter().all(has) { Ok(()) } else { Err(CONFLICT) }
    }

    fn details(&self, all: &Arc<[ZoneRequirement]>, _: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let found = |w: &ZoneRequirement| node.labels.get(w.key).or_else(|| node.labels.get(ga_key(w.key)));
        let unmet = (all.iter()).filter(|w| !found(w).is_some_and(|v| w.values.contains(v)));
        unmet
            .map(|w| {
                let values: Vec<&str> = w.values.iter().map(String::as_str).collect();
                let found = found(w).map_or("none", String::as_str);
                Detail::Volume {
                    volume: String::new(),
                    problem: format!(
                        "the volume is in {} {}, the node in {found}",
                        w.key,
                        values.join(" or ")
                    ),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::storage::fixture::{World, uses};

    const NO: &str = "n: UU node(s) had no available volume zone";

    #[test]
    fn zones_of_volumes_and_nodes() {
        let cases = [
            (json!({}), json!({ZONE: "a"}), "skip"),
            (json!({ZONE: "a"}), json!({ZONE: "a"}), "n: ok"),
            (json!({ZONE: "a"}), json!({ZONE: "b"}), NO),
            (json!({ZONE: "a"}), json!({}), "n: ok"),
            (json!({ZONE: "a"}), json!({REGION: "r"}), NO),
            (json!({ZONE: "a__b"}), json!({ZONE: "b"}), "n: ok"),
            (json!({ZONE: "a__"}), json!({ZONE: "b"}), "skip"),
            (json!({BETA_ZONE: "a"}), json!({ZONE: "a"}), "n: ok"),
            (json!({BETA_ZONE: "a"}), json!({ZONE: "b"}), NO),
            (json!({BETA_REGION: "r"}), json!({REGION: "r"}), "n: ok"),
            (json!({ZONE: "a"}), json!({BETA_ZONE: "a"}), NO),
            (json!({ZONE: "a", REGION: "r"}), json!({ZONE: "a", REGION: "s"}), NO),
        ];
        for (volume, node, expected) in cases {
            let mut world = World::default();
            world.node("n", node.clone());
            world.volume("v", json!({"metadata": {"labels": volume}}));
            world.claim("c", json!({"spec": {"volumeName": "v"}}));
            let pod = world.pod("p", json!([uses("c")]));
            assert_eq!(world.ask(&VolumeZone, &pod), expected, "{volume} {node}");
        }
    }

    #[test]
    fn claims_without_volumes() {
        let mut world = World::default();
        world.class("later", json!({"volumeBindingMode": "WaitForFirstConsumer"}));
        world.class("now", json!({"volumeBindingMode": "Immediate"}));
        world.class("unset", json!({}));
        let cases = [
            (json!({"storageClassName": "later"}), "skip"),
            (
                json!({"storageClassName": "now"}),
                "all UU PersistentVolume had no name",
            ),
            (
                json!({"storageClassName": "gone"}),
                "all UU storageclass.storage.k8s.io \"gone\" not found",
            ),
            (
                json!({"storageClassName": "unset"}),
                "all UU VolumeBindingMode not set for StorageClass \"unset\"",
            ),
            (
                json!({}),
                "all UU PersistentVolumeClaim had no pv name and storageClass name",
            ),
            (
                json!({"volumeName": "gone"}),
                "all UU persistentvolume \"gone\" not found",
            ),
        ];
        for (spec, expected) in cases {
            world.claim("c", json!({"spec": spec}));
            let pod = world.pod("p", json!([uses("c")]));
            assert_eq!(world.ask(&VolumeZone, &pod), expected, "{spec}");
        }
        let gone = world.pod("p", json!([uses("gone")]));
        assert_eq!(
            world.ask(&VolumeZone, &gone),
            "all UU persistentvolumeclaim \"gone\" not found"
        );
        let none = world.pod("p", json!([{"name": "v", "ephemeral": {}}]));
        assert_eq!(world.ask(&VolumeZone, &none), "skip");
    }

    #[test]
    fn hints() {
        let mut world = World::default();
        let pod = world.pod("p", json!([uses("c")]));
        let labelled = |zone: &str| -> Value { json!({"metadata": {"labels": {ZONE: zone, "x": zone}}}) };
        let events = [
            (world.volume("v", labelled("a")), Hint::Queue),
            (world.volume("v", labelled("b")), Hint::Queue),
            (
                world.volume("v", json!({"metadata": {"labels": {ZONE: "b"}}})),
                Hint::Skip,
            ),
            (world.claim("c", json!({})), Hint::Queue),
            (world.claim("c", json!({"spec": {"volumeName": "v"}})), Hint::Queue),
            (world.claim("d", json!({})), Hint::Skip),
            (
                world.class("now", json!({"volumeBindingMode": "Immediate"})),
                Hint::Skip,
            ),
            (
                world.class("later", json!({"volumeBindingMode": "WaitForFirstConsumer"})),
                Hint::Queue,
            ),
        ];
        for (at, (event, expected)) in events.into_iter().enumerate() {
            assert_eq!(VolumeZone.hint(&pod, &event, &world.cluster), expected, "event {at}");
        }
    }
}
