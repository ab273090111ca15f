//! NodeVolumeLimits: a CSI driver says how many of its volumes a node can have attached.
//!
//! Volumes of in-tree kinds that a driver stands in for are not counted; claims of their storage classes are.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::cluster::storage::{Tables, check_made_for, claims_of, uses_claim};
use crate::framework::detail::Detail;
use crate::framework::event::{Actions, Event, EventKind, Hint, Object, Resource};
use crate::framework::points::{AnyFilter, Filter, Plugin, Scope};
use crate::framework::verdict::{PreFilter, Rejection, Verdict};
use crate::model::{CsiNode, PersistentVolumeClaim};

const EXCEEDED: Rejection = Rejection::unschedulable("node(s) exceed max volume count");

/// A volume that has to be attached to the pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attached<'a> {
    driver: &'a str,
    handle: Handle<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Handle<'a> {
    /// As the driver calls it.
    Volume(&'a str),
    /// There is no volume yet: one for this claim (namespace, name).
    Claim(&'a str, &'a str),
}

/// In-tree provisioners and the drivers that took over from them; None for those that no node counts.
///
/// Upstream: csi-translation-lib (v1.36).
const MIGRATED: [(&str, Option<&str>); 7] = [
    ("kubernetes.io/aws-ebs", Some("ebs.csi.aws.com")),
    ("kubernetes.io/azure-disk", Some("disk.csi.azure.com")),
    ("kubernetes.io/azure-file", None),
    ("kubernetes.io/cinder", Some("cinder.csi.openstack.org")),
    ("kubernetes.io/gce-pd", Some("pd.csi.storage.gke.io")),
    ("kubernetes.io/portworx-volume", Some("pxd.portworx.com")),
    ("kubernetes.io/vsphere-volume", None),
];

fn driver_of(provisioner: &str) -> Option<&str> {
    match MIGRATED.iter().find(|(name, _)| *name == provisioner) {
        Some((_, driver)) => *driver,
        None => Some(provisioner),
    }
}

/// The volume that the claim has or will have; None if no driver counts it.
fn attached<'a>(tables: &'a Tables, claim: &'a PersistentVolumeClaim) -> Option<Attached<'a>> {
    if let Some(volume) = tables.volume(&claim.spec.volume_name) {
        let source = volume.spec.csi.as_ref()?;
        let is_whole = !source.driver.is_empty() && !source.volume_handle.is_empty();
        return is_whole.then_some(Attached {
            driver: &source.driver,
            handle: Handle::Volume(&source.volume_handle),
        });
    }
    let class = tables.class(claim.class())?;
    Some(Attached {
        driver: driver_of(&class.provisioner).filter(|d| !d.is_empty())?,
        handle: Handle::Claim(&claim.metadata.namespace, &claim.metadata.name),
    })
}

/// Driver → how many volumes of it the node can have.
fn limits(node: &CsiNode) -> impl Iterator<Item = (&str, i64)> {
    let drivers = node.spec.drivers.iter();
    drivers.filter_map(|d| Some((d.name.as_str(), d.allocatable.as_ref()?.count?)))
}

#[derive(Clone)]
pub struct VolumeLimitState {
    tables: Arc<Tables>,
    /// The pod's claims, or why it cannot go anywhere.
    claims: Result<Arc<[Arc<PersistentVolumeClaim>]>, Rejection>,
}

/// The claims of a new pod: all must be there.
fn claims(tables: &Tables, pod: &PodInfo) -> Result<Arc<[Arc<PersistentVolumeClaim>]>, Rejection> {
    let found = claims_of(pod).map(|named| {
        let (namespace, name) = (pod.namespace(), &named.name);
        let Some(claim) = tables.claim(namespace, name) else {
            let missing = format!("looking up PVC {namespace}/{name}: persistentvolumeclaim \"{name}\" not found");
            return Err(Rejection::because(missing, true));
        };
        if named.ephemeral {
            check_made_for(pod, claim).map_err(|error| Rejection::because(error.to_string(), true))?;
        }
        Ok(claim.clone())
    });
    found.collect()
}

/// Volumes of these drivers that pods on the node use.
fn used<'a>(tables: &'a Tables, node: &NodeInfo, counts: impl Fn(&str) -> bool) -> FxHashSet<Attached<'a>> {
    let mut all = FxHashSet::default();
    for pod in &node.pods {
        for named in claims_of(pod) {
            let claim = tables.claim(pod.namespace(), &named.name);
            let own = claim.filter(|c| !named.ephemeral || check_made_for(pod, c).is_ok());
            all.extend(own.and_then(|c| attached(tables, c)).filter(|a| counts(a.driver)));
        }
    }
    all
}

/// Volumes of these drivers that are, or are being, attached to the node, whether a pod uses them or not.
fn still_attached<'a>(
    tables: &'a Tables,
    node: &NodeInfo,
    counts: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Attached<'a>> {
    let here = tables.attachments(&node.name).filter(move |a| counts(&a.spec.attacher));
    here.filter_map(|a| {
        let volume = tables.volume(a.spec.source.persistent_volume_name.as_deref()?)?;
        Some(Attached {
            driver: &a.spec.attacher,
            handle: Handle::Volume(&volume.spec.csi.as_ref()?.volume_handle),
        })
    })
}

#[derive(Default)]
pub struct NodeVolumeLimits;

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![
            EventKind::new(Resource::CsiNode, Actions::ADD.or(Actions::UPDATE)),
            EventKind::new(Resource::AssignedPod, Actions::DELETE),
            EventKind::new(Resource::PersistentVolumeClaim, Actions::ADD),
            EventKind::new(Resource::VolumeAttachment, Actions::DELETE),
        ]
    }

    fn hint(&self, pod: &PodInfo, event: &Event, _: &Cluster) -> Hint {
        match (&event.old, &event.new) {
            (Object::CsiNode(old), Object::CsiNode(new)) => {
                let before: HashMap<&str, i64> = limits(old).collect();
                let grew = |(driver, limit)| limit > before.get(driver).copied().unwrap_or(0);
                Hint::queue_if(limits(new).any(grew))
            }
            (_, Object::PersistentVolumeClaim(claim)) => Hint::queue_if(uses_claim(pod, claim)),
            (Object::VolumeAttachment(_), Object::None) => {
                Hint::queue_if(pod.volumes.iter().any(|v| v.claim.is_some()))
            }
            (Object::Pod(deleted), Object::None) => {
                let was_somewhere = deleted.node_name.is_some() || deleted.nominated_node.is_some();
                Hint::queue_if(was_somewhere && claims_of(deleted).next().is_some())
            }
            _ => Hint::Queue,
        }
    }
}

impl Filter for NodeVolumeLimits {
    type State = VolumeLimitState;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter<VolumeLimitState> {
        if claims_of(pod).next().is_none() {
            return PreFilter::Skip;
        }
        let tables = cluster.storage.tables().clone();
        let claims = claims(&tables, pod);
        PreFilter::Run(VolumeLimitState { tables, claims })
    }

    fn filter(&self, state: &VolumeLimitState, _: &PodInfo, node: &NodeInfo) -> Verdict {
        let claims = state.claims.as_ref().map_err(Clone::clone)?;
        let tables = &*state.tables;
        let Some(csi_node) = tables.csi_node(&node.name) else {
            return Ok(());
        };
        let new: FxHashSet<Attached> = claims.iter().filter_map(|c| attached(tables, c)).collect();
        let is_new = |driver: &str| new.iter().any(|n| n.driver == driver);
        let limits: SmallVec<[(&str, i64); 4]> = limits(csi_node).filter(|(d, _)| is_new(d)).collect();
        // Mostly there are not even that many claims on the node: no need to look at what they are.
        let most = node.pods.iter().map(|p| claims_of(p).count()).sum::<usize>()
            + tables.attachments(&node.name).count()
            + new.len();
        if limits.iter().all(|(_, limit)| most as i64 <= *limit) {
            return Ok(());
        }
        let counts = |driver: &str| limits.iter().any(|(d, _)| *d == driver);
        let used = used(tables, node, counts);
        let still_attached: FxHashSet<Attached> = still_attached(tables, node, counts).collect();
        let fits = limits.iter().all(|(driver, limit)| {
            let of_driver = |a: &&Attached| a.driver == *driver;
            let added = new.difference(&used).filter(of_driver).count();
            let there = used.union(&still_attached).filter(of_driver).count();
            added == 0 || (there + added) as i64 <= *limit
        });
        if fits { Ok(()) } else { Err(EXCEEDED) }
    }

    fn details(&self, state: &VolumeLimitState, _: &PodInfo, node: &NodeInfo) -> Vec<Detail> {
        let tables = &*state.tables;
        let (Ok(claims), Some(csi_node)) = (&state.claims, tables.csi_node(&node.name)) else {
            return vec![];
        };
        let new: FxHashSet<Attached> = claims.iter().filter_map(|c| attached(tables, c)).collect();
        let used = used(tables, node, |_| true);
        let still_attached: FxHashSet<Attached> = still_attached(tables, node, |_| true).collect();
        let each = limits(csi_node).filter_map(|(driver, limit)| {
            let of_driver = |a: &&Attached| a.driver == driver;
            let added = new.difference(&used).filter(of_driver).count();
            let attached = used.union(&still_attached).filter(of_driver).count();
            (added > 0 && (attached + added) as i64 > limit).then(|| Detail::VolumeLimit {
                driver: driver.to_string(),
                attached,
                added,
                limit,
            })
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::storage::fixture::{World, uses};

    const FULL: &str = "n: U node(s) exceed max volume count";

    /// Volumes v0..v9 of driver `d` with claims c0..c9, and `later` of a class of that driver.
    fn world(limit: Value) -> World {
        let mut world = World::default();
        world.node("n", json!({}));
        world.csi_node("n", json!({"spec": {"drivers": [{"name": "d", "allocatable": limit}]}}));
        for i in 0..10 {
            let source = json!({"driver": if i == 9 { "other" } else { "d" }, "volumeHandle": format!("h{i}")});
            world.volume(&format!("v{i}"), json!({"spec": {"csi": source}}));
            world.claim(&format!("c{i}"), json!({"spec": {"volumeName": format!("v{i}")}}));
        }
        world.volume("nfs", json!({}));
        world.claim("nfs", json!({"spec": {"volumeName": "nfs"}}));
        world.class("fast", json!({"provisioner": "d"}));
        world.class("old", json!({"provisioner": "kubernetes.io/gce-pd"}));
        for (claim, class) in [("later", "fast"), ("later2", "fast"), ("old", "old"), ("classless", "")] {
            world.claim(claim, json!({"spec": {"storageClassName": class}}));
        }
        world
    }

    fn all(claims: &[&str]) -> Value {
        claims.iter().map(|c| uses(c)).collect()
    }

    #[test]
    fn volumes_are_counted_once() {
        let two = || json!({"count": 2});
        let cases: [(Value, &[&str], &[&str], &str); 13] = [
            (two(), &["c0"], &["c1"], "n: ok"),
            (two(), &["c0", "c1"], &["c2"], FULL),
            (two(), &["c0", "c1"], &["c1"], "n: ok"),
            (two(), &["c0"], &["c0", "c1"], "n: ok"),
            (two(), &["c0"], &["c1", "c2"], FULL),
            (two(), &["c0", "c1"], &["c9"], "n: ok"),
            (two(), &["c0", "c9"], &["c1"], "n: ok"),
            (two(), &["c0", "c1"], &["nfs", "classless", "old"], "n: ok"),
            (two(), &["c0", "later"], &["later2"], FULL),
            (two(), &["c0", "later"], &["later"], "n: ok"),
            (json!({"count": 0}), &[], &["c0"], FULL),
            (json!({}), &["c0", "c1"], &["c2"], "n: ok"),
            (json!(null), &["c0", "c1"], &["c2"], "n: ok"),
        ];
        for (limit, there, wanted, expected) in cases {
            let mut world = world(limit.clone());
            world.place("there", all(there), "n");
            let pod = world.pod("p", all(wanted));
            assert_eq!(
                world.ask(&NodeVolumeLimits, &pod),
                expected,
                "{limit} {there:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn what_is_still_attached_counts() {
        let attachment = |volume: &str, attacher: &str| json!({"spec": {"nodeName": "n", "attacher": attacher, "source": {"persistentVolumeName": volume}}});
        let cases = [
            (attachment("v5", "d"), FULL),
            (attachment("v0", "d"), "n: ok"),
            (attachment("nfs", "d"), "n: ok"),
            (attachment("v9", "other"), "n: ok"),
            (attachment("gone", "d"), "n: ok"),
            // Kubernetes counts what the pod brings twice if it is attached but no pod uses it.
            (attachment("v1", "d"), FULL),
        ];
        for (object, expected) in cases {
            let mut world = world(json!({"count": 2}));
            world.place("there", all(&["c0"]), "n");
            world.attachment("a", object.clone());
            let pod = world.pod("p", all(&["c1"]));
            assert_eq!(world.ask(&NodeVolumeLimits, &pod), expected, "{object}");
        }
    }

    #[test]
    fn ephemeral_and_missing_claims() {
        let mut world = world(json!({"count": 1}));
        let ephemeral = json!([{"name": "e", "ephemeral": {}}]);
        let pod = world.pod("p", ephemeral.clone());
        assert_eq!(
            world.ask(&NodeVolumeLimits, &pod),
            "n: UU looking up PVC default/p-e: persistentvolumeclaim \"p-e\" not found"
        );
        world.claim("p-e", json!({"spec": {"storageClassName": "fast"}}));
        assert_eq!(
            world.ask(&NodeVolumeLimits, &pod),
            "n: UU PVC default/p-e was not created for pod default/p (pod is not owner)"
        );
        let owned = json!({"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}]});
        world.claim("p-e", json!({"metadata": owned, "spec": {"storageClassName": "fast"}}));
        assert_eq!(world.ask(&NodeVolumeLimits, &pod), "n: ok");
        world.place("p", ephemeral, "n");
        let next = world.pod("q", all(&["c0"]));
        assert_eq!(world.ask(&NodeVolumeLimits, &next), FULL);
        let none = world.pod("r", json!([{"name": "x", "csi": {"driver": "d"}}]));
        assert_eq!(world.ask(&NodeVolumeLimits, &none), "skip");
    }

    #[test]
    fn hints() {
        let mut world = world(json!({"count": 1}));
        let pod = world.pod("p", all(&["new"]));
        let limit = |count: i64| json!({"spec": {"drivers": [{"name": "d", "allocatable": {"count": count}}]}});
        let gone = |old: Object| Event {
            resource: Resource::AssignedPod,
            actions: Actions::DELETE,
            old,
            new: Object::None,
        };
        let attachment = Object::VolumeAttachment(Arc::default());
        let events = [
            (world.csi_node("m", limit(1)), Hint::Queue),
            (world.csi_node("m", limit(2)), Hint::Queue),
            (world.csi_node("m", limit(2)), Hint::Skip),
            (world.csi_node("m", limit(1)), Hint::Skip),
            (world.claim("new", json!({})), Hint::Queue),
            (world.claim("other", json!({})), Hint::Skip),
            (gone(attachment), Hint::Queue),
            (gone(Object::Pod(world.place("q", all(&["c0"]), "n"))), Hint::Queue),
            (gone(Object::Pod(world.place("q", json!([]), "n"))), Hint::Skip),
            (gone(Object::Pod(world.pod("q", all(&["c0"])))), Hint::Skip),
        ];
        for (at, (event, expected)) in events.into_iter().enumerate() {
            assert_eq!(
                NodeVolumeLimits.hint(&pod, &event, &world.cluster),
                expected,
                "event {at}"
            );
        }
    }
}
