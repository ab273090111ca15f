//! VolumeRestrictions: disks that only one pod of a node may have, and claims that only one pod of the cluster may have.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Object, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::Volume;

const DISK_CONFLICT: Rejection = Rejection::unschedulable("node(s) had no available disk");
const CLAIM_CONFLICT: Rejection = Rejection::unschedulable(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
);

#[derive(Clone, Debug)]
pub struct VolumeRestrictionState {
    /// Claims of the pod that one pod alone may use.
    exclusive: Arc<BTreeSet<String>>,
    /// How many of them some pod has.
    taken: i64,
}

impl VolumeRestrictionState {
    /// How many volumes of the other pod stand for the same claims. Upstream leaves namespaces out here, which makes
    /// preemption evict namesakes in vain.
    fn shared_with(&self, pod: &PodInfo, other: &PodInfo) -> i64 {
        if pod.namespace() != other.namespace() {
            return 0;
        }
        let claims = other.volumes.iter().filter_map(|v| v.claim.as_ref());
        claims.filter(|c| self.exclusive.contains(&c.claim_name)).count() as i64
    }
}

/// A volume of a kind that cannot be on a node twice.
fn is_restricted(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

/// The same disk, and not read by both.
fn conflicts(one: &Volume, other: &Volume) -> bool {
    let gce = match (&one.gce_persistent_disk, &other.gce_persistent_disk) {
        (Some(a), Some(b)) => a.pd_name == b.pd_name && !(a.read_only && b.read_only),
        _ => false,
    };
    let aws = match (&one.aws_elastic_block_store, &other.aws_elastic_block_store) {
        (Some(a), Some(b)) => a.volume_id == b.volume_id,
        _ => false,
    };
    let iscsi = match (&one.iscsi, &other.iscsi) {
        (Some(a), Some(b)) => a.iqn == b.iqn && !(a.read_only && b.read_only),
        _ => false,
    };
    let rbd = match (&one.rbd, &other.rbd) {
        (Some(a), Some(b)) => {
            a.monitors.iter().any(|m| b.monitors.contains(m))
                && a.pool == b.pool
                && a.image == b.image
                && !(a.read_only && b.read_only)
        }
        _ => false,
    };
    gce || aws || iscsi || rbd
}

fn pods_conflict(pod: &PodInfo, other: &PodInfo) -> bool {
    let mut restricted = pod.volumes.iter().filter(|v| is_restricted(v));
    restricted.any(|one| other.volumes.iter().any(|o| conflicts(one, o)))
}

#[derive(Default)]
pub struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::AssignedPod, Actions::DELETE),
            EventKind::new(Resource::Node, Actions::ADD),
            EventKind::new(Resource::PersistentVolumeClaim, Actions::ADD),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        let names = |claim: &str| {
            let mut claims = pod.volumes.iter().filter_map(|v| v.claim.as_ref());
            claims.any(|c| c.claim_name == claim)
        };
        if let Object::PersistentVolumeClaim(claim) = &event.new {
            return Hint::queue_if(claim.metadata.namespace == **pod.namespace() && names(&claim.metadata.name));
        }
        let (Some(deleted), None) = event.pods() else {
            return Hint::Queue;
        };
        let mut claims = deleted.volumes.iter().filter_map(|v| v.claim.as_ref());
        Hint::queue_if(
            deleted.namespace() == pod.namespace()
                && (pods_conflict(pod, deleted) || claims.any(|c| names(&c.claim_name))),
        )
    }
}

impl Filter for VolumeRestrictions {
    type State = VolumeRestrictionState;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<VolumeRestrictionState> {
        let volumes = &pod.volumes;
        if volumes.is_empty() {
            return PreFilter::Skip;
        }
        let mut exclusive = BTreeSet::new();
        for source in volumes.iter().filter_map(|v| v.claim.as_ref()) {
            let name = &source.claim_name;
            let Some(claim) = cluster.storage.tables().claim(pod.namespace(), name) else {
                let reason = format!("persistentvolumeclaim \"{name}\" not found");
                return PreFilter::Reject(Rejection::because(reason, true));
            };
            if claim.spec.access_modes.iter().any(|m| m == "ReadWriteOncePod") {
                exclusive.insert(name.clone());
            }
        }
        let is_taken = |claim: &&String| cluster.storage.is_in_use(pod.namespace(), claim);
        let taken = exclusive.iter().filter(is_taken).count() as i64;
        if taken == 0 && !volumes.iter().any(is_restricted) {
            return PreFilter::Skip;
        }
        PreFilter::Run(VolumeRestrictionState {
            exclusive: Arc::new(exclusive),
            taken,
        })
    }

    fn filter(&self, state: &VolumeRestrictionState, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        if node.pods.iter().any(|other| pods_conflict(pod, other)) {
            return Err(DISK_CONFLICT);
        }
        if state.taken > 0 { Err(CLAIM_CONFLICT) } else { Ok(()) }
    }

    fn details(&self, state: &VolumeRestrictionState, pod: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let conflicting = node.pods.iter().filter(|other| pods_conflict(pod, other));
        if let Some(other) = conflicting.min_by_key(|other| &other.key) {
            return vec![Detail::Volume {
                volume: String::new(),
                problem: format!("pod {} of the node uses the same disk", other.key),
            }];
        }
        let claims = state.exclusive.iter().filter(|_| state.taken > 0);
        claims
            .map(|claim| Detail::Volume {
                volume: claim.clone(),
                problem: "only one pod may use it (ReadWriteOncePod)".to_string(),
            })
            .collect()
    }

    fn add_pod(&self, state: &mut VolumeRestrictionState, pod: &PodInfo, added: &PodInfo, _: &NodeInfo) {
        state.taken += state.shared_with(pod, added);
    }

    fn remove_pod(&self, state: &mut VolumeRestrictionState, pod: &PodInfo, removed: &PodInfo, _: &NodeInfo) {
        state.taken -= state.shared_with(pod, removed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::storage::fixture::{World, uses};

    const DISK: &str = "n: U node(s) had no available disk";
    const TAKEN: &str = "n: U node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
                         already in-use by another pod";

    fn gce(disk: &str, read_only: bool) -> Value {
        json!({"name": "v", "gcePersistentDisk": {"pdName": disk, "readOnly": read_only}})
    }

    fn aws(disk: &str) -> Value {
        json!({"name": "v", "awsElasticBlockStore": {"volumeID": disk}})
    }

    fn iscsi(iqn: &str, read_only: bool) -> Value {
        json!({"name": "v", "iscsi": {"iqn": iqn, "readOnly": read_only}})
    }

    fn rbd(monitors: &[&str], pool: &str, image: &str, read_only: bool) -> Value {
        json!({"name": "v", "rbd": {"monitors": monitors, "pool": pool, "image": image, "readOnly": read_only}})
    }

    #[test]
    fn disks_are_not_shared() {
        let cases = [
            (gce("a", false), gce("a", false), DISK),
            (gce("a", true), gce("a", false), DISK),
            (gce("a", true), gce("a", true), "n: ok"),
            (gce("a", false), gce("b", false), "n: ok"),
            (aws("a"), aws("a"), DISK),
            (aws("a"), aws("b"), "n: ok"),
            (aws("a"), gce("a", false), "n: ok"),
            (iscsi("a", true), iscsi("a", false), DISK),
            (iscsi("a", true), iscsi("a", true), "n: ok"),
            (iscsi("a", false), iscsi("b", false), "n: ok"),
            (
                rbd(&["m", "o"], "p", "i", false),
                rbd(&["x", "o"], "p", "i", false),
                DISK,
            ),
            (rbd(&["m"], "p", "i", true), rbd(&["m"], "p", "i", true), "n: ok"),
            (rbd(&["m"], "p", "i", false), rbd(&["o"], "p", "i", false), "n: ok"),
            (rbd(&["m"], "p", "i", false), rbd(&["m"], "q", "i", false), "n: ok"),
            (rbd(&["m"], "p", "i", false), rbd(&["m"], "p", "j", false), "n: ok"),
            (json!({"name": "v", "csi": {"driver": "d"}}), aws("a"), "skip"),
        ];
        for (wanted, there, expected) in cases {
            let mut world = World::default();
            world.node("n", json!({}));
            world.place("there", json!([there]), "n");
            let pod = world.pod("p", json!([wanted]));
            assert_eq!(world.ask(&VolumeRestrictions, &pod), expected, "{wanted} {there}");
        }
    }

    fn claims(world: &mut World) {
        world.claim("once", json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
        world.claim("many", json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    }

    #[test]
    fn some_claims_are_for_one_pod() {
        let cases = [
            ("once", Some("once"), TAKEN),
            ("once", Some("many"), "skip"),
            ("once", None, "skip"),
            ("many", Some("many"), "skip"),
            ("gone", None, "all UU persistentvolumeclaim \"gone\" not found"),
        ];
        for (wanted, there, expected) in cases {
            let mut world = World::default();
            claims(&mut world);
            world.node("n", json!({}));
            if let Some(there) = there {
                world.place("there", json!([uses(there)]), "n");
            }
            let pod = world.pod("p", json!([uses(wanted)]));
            assert_eq!(world.ask(&VolumeRestrictions, &pod), expected, "{wanted} {there:?}");
        }
    }

    #[test]
    fn removing_the_other_pod_helps() {
        let mut world = World::default();
        claims(&mut world);
        world.node("n", json!({}));
        let there = world.place("there", json!([uses("once")]), "n");
        let bystander = world.place("bystander", json!([uses("many")]), "n");
        let namesake = world.pod_with(
            "x",
            json!({"metadata": {"namespace": "y"}, "spec": {"volumes": [uses("once")]}}),
        );
        let pod = world.pod("p", json!([uses("once")]));
        let plugin = VolumeRestrictions;
        let PreFilter::Run(mut state) = Filter::pre_filter(&plugin, &pod, &world.cluster) else {
            panic!("there is something to check")
        };
        let node = world.cluster.node_named("n").unwrap();
        for (removed, expected) in [
            (&bystander, Err(CLAIM_CONFLICT)),
            (&namesake, Err(CLAIM_CONFLICT)),
            (&there, Ok(())),
        ] {
            Filter::remove_pod(&plugin, &mut state, &pod, removed, node);
            assert_eq!(Filter::filter(&plugin, &state, &pod, node), expected, "{}", removed.key);
        }
        Filter::add_pod(&plugin, &mut state, &pod, &there, node);
        assert_eq!(Filter::filter(&plugin, &state, &pod, node), Err(CLAIM_CONFLICT));
    }

    #[test]
    fn hints() {
        let mut world = World::default();
        let pod = world.pod("p", json!([gce("a", false), uses("once")]));
        let gone = |world: &mut World, object: Value| Event {
            resource: Resource::AssignedPod,
            actions: Actions::DELETE,
            old: Object::Pod(world.pod_with("q", object)),
            new: Object::None,
        };
        let events = [
            (
                gone(&mut world, json!({"spec": {"volumes": [gce("a", true)]}})),
                Hint::Queue,
            ),
            (
                gone(&mut world, json!({"spec": {"volumes": [gce("b", true)]}})),
                Hint::Skip,
            ),
            (
                gone(&mut world, json!({"spec": {"volumes": [uses("once")]}})),
                Hint::Queue,
            ),
            (
                gone(&mut world, json!({"spec": {"volumes": [uses("other")]}})),
                Hint::Skip,
            ),
            (
                gone(
                    &mut world,
                    json!({"metadata": {"namespace": "x"}, "spec": {"volumes": [uses("once")]}}),
                ),
                Hint::Skip,
            ),
            (world.claim("once", json!({})), Hint::Queue),
            (world.claim("other", json!({})), Hint::Skip),
        ];
        for (at, (event, expected)) in events.into_iter().enumerate() {
            assert_eq!(
                VolumeRestrictions.hint(&pod, &event, &world.cluster),
                expected,
                "event {at}"
            );
        }
    }
}
