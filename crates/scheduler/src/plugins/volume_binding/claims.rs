//! What a pod's claims ask for: found out once for a pod, before nodes are looked at.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::cluster::storage::{NotMadeForPod, Storage, Tables, check_made_for, claims_of};
use crate::framework::detail::Detail;
use crate::framework::verdict::{Reason, Reasons, Rejection};
use crate::model::{CsiStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass};

const UNBOUND_IMMEDIATE: Rejection = Rejection::unresolvable("pod has unbound immediate PersistentVolumeClaims");

/// The claims of a pod, sorted out, and one version of everything they are matched with.
#[derive(Debug)]
pub struct Claims {
    /// Volumes of bound claims, in order; None for one that is not there.
    bound: Vec<Option<Arc<PersistentVolume>>>,
    /// Claims that are bound when a node is chosen.
    waiting: Vec<UnboundClaim>,
    tables: Arc<Tables>,
    /// Volumes that are as good as bound, by name.
    assumed: HashMap<String, Arc<PersistentVolume>>,
}

#[derive(Debug)]
struct UnboundClaim {
    claim: Arc<PersistentVolumeClaim>,
    /// Volumes that are meant for this very claim (mostly none).
    meant: Vec<Arc<PersistentVolume>>,
    provision: Provision,
}

/// Whether a volume could be made for the claim.
#[derive(Debug)]
enum Provision {
    Never,
    /// Where the class allows it, and (if the driver keeps account) some capacity is left: those that are large enough.
    Where(Arc<StorageClass>, Option<Vec<Arc<CsiStorageCapacity>>>),
}

/// What the pod would get on a node.
#[derive(Debug, Default)]
pub struct Found {
    pub bindings: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    /// Volumes are to be made for these.
    pub provisions: Vec<Arc<PersistentVolumeClaim>>,
}

/// What stands against a node. Several things can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Conflicts {
    out_of_reach: bool,
    nothing_to_bind: bool,
    no_space: bool,
    volume_missing: bool,
}

impl Conflicts {
    /// None at all, or the rejection in Kubernetes' words.
    fn verdict(self) -> Result<(), Rejection> {
        let said = [
            (
                self.out_of_reach,
                "node(s) didn't match PersistentVolume's node affinity",
            ),
            (
                self.nothing_to_bind,
                "node(s) didn't find available persistent volumes to bind",
            ),
            (self.no_space, "node(s) did not have enough free storage"),
            (
                self.volume_missing,
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
        ];
        let mut reasons = said.iter().filter(|(holds, _)| *holds).map(|(_, reason)| *reason);
        match (reasons.next(), reasons.next()) {
            (None, _) => Ok(()),
            (Some(one), None) => Err(Rejection::unresolvable(one)),
            (Some(one), Some(two)) => {
                let all = [one, two].into_iter().chain(reasons);
                Err(Rejection {
                    reasons: Reasons::Many(all.map(Reason::Borrowed).collect()),
                    unresolvable: true,
                })
            }
        }
    }
}

/// Why a claim makes the pod impossible anywhere.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("persistentvolumeclaim \"{0}\" not found")]
    NotFound(String),
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{0}\"")]
    NotMadeYet(String),
    #[error("persistentvolumeclaim \"{claim}\" bound to non-existent persistentvolume \"{volume}\"")]
    Lost { claim: String, volume: String },
    #[error("persistentvolumeclaim \"{0}\" is being deleted")]
    Deleted(String),
    #[error(transparent)]
    NotMadeForPod(#[from] NotMadeForPod),
}

fn check(pod: &PodInfo, tables: &Tables) -> Result<(), ClaimError> {
    for named in claims_of(pod) {
        let name = &*named.name;
        let Some(claim) = tables.claim(pod.namespace(), name) else {
            return Err(match named.ephemeral {
                true => ClaimError::NotMadeYet(name.to_string()),
                false => ClaimError::NotFound(name.to_string()),
            });
        };
        if claim.status.phase == "Lost" {
            return Err(ClaimError::Lost {
                claim: name.to_string(),
                volume: claim.spec.volume_name.clone(),
            });
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimError::Deleted(name.to_string()));
        }
        if named.ephemeral {
            check_made_for(pod, claim)?;
        }
    }
    Ok(())
}

impl Claims {
    /// None if the pod has no claims.
    pub fn of(pod: &PodInfo, storage: &Storage) -> Result<Option<Claims>, Rejection> {
        if claims_of(pod).next().is_none() {
            return Ok(None);
        }
        let tables = storage.tables().clone();
        check(pod, &tables).map_err(|error| Rejection::because(error.to_string(), true))?;
        let mut claims = Claims {
            bound: vec![],
            waiting: vec![],
            assumed: storage.assumed().volumes(&tables),
            tables,
        };
        for named in claims_of(pod) {
            let claim = storage
                .claim(pod.namespace(), &named.name)
                .expect("every claim was there a moment ago");
            if claim.is_bound() {
                claims
                    .bound
                    .push(claims.tables.volume(&claim.spec.volume_name).cloned());
                continue;
            }
            let class = claims.tables.class(claim.class()).filter(|c| c.waits_for_consumer());
            let (Some(class), true) = (class, claim.spec.volume_name.is_empty()) else {
                return Err(UNBOUND_IMMEDIATE);
            };
            // Two volumes of a pod may stand for one claim, which needs one volume.
            if !claims
                .waiting
                .iter()
                .any(|w| w.claim.metadata.name == claim.metadata.name)
            {
                let waiting = claims.waiting(claim, class.clone());
                claims.waiting.push(waiting);
            }
        }
        // Small claims first, so that each gets the smallest volume that will do.
        claims.waiting.sort_by_key(|w| w.claim.spec.resources.requests.nanos());
        Ok(Some(claims))
    }

    fn waiting(&self, claim: Arc<PersistentVolumeClaim>, class: Arc<StorageClass>) -> UnboundClaim {
        let meant = (self.tables.volumes_for(&claim.metadata.key()))
            .filter(|v| !self.assumed.contains_key(&v.metadata.name))
            .chain(self.assumed.values())
            .filter(|v| v.is_for(&claim) && v.class() == claim.class() && suits(&claim, v))
            .cloned()
            .collect();
        UnboundClaim {
            meant,
            provision: self.provision(&claim, class),
            claim,
        }
    }

    fn provision(&self, claim: &PersistentVolumeClaim, class: Arc<StorageClass>) -> Provision {
        if matches!(class.provisioner.as_str(), "" | "kubernetes.io/no-provisioner") {
            return Provision::Never;
        }
        let keeps_account = (self.tables.driver(&class.provisioner)).is_some_and(|d| d.spec.storage_capacity);
        let capacities = (claim.spec.resources.requests.storage())
            .filter(|_| keeps_account)
            .map(|request| {
                let size = request.value();
                let all = self.tables.capacities(&class.metadata.name);
                all.filter(|c| c.volume_limit().is_some_and(|limit| limit >= size))
                    .cloned()
                    .collect()
            });
        Provision::Where(class, capacities)
    }

    /// No claim has to wait for the node.
    pub fn are_all_bound(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What the pod would get on this node.
    pub fn find(&self, node: &NodeInfo) -> Result<Found, Rejection> {
        let mut conflicts = Conflicts::default();
        for volume in &self.bound {
            match volume {
                None => conflicts.volume_missing = true,
                Some(volume) if !volume.reaches(&node.labels) => conflicts.out_of_reach = true,
                Some(_) => continue,
            }
            break;
        }
        let mut found = Found::default();
        if (self.waiting.iter()).any(|w| w.claim.selected_node().is_some_and(|n| n != &*node.name)) {
            conflicts.nothing_to_bind = true;
        } else {
            let unmatched = self.bind(node, &mut found);
            self.make(node, unmatched, &mut found, &mut conflicts);
        }
        conflicts.verdict().map(|()| found)
    }

    /// Which volumes and claims stand against the node.
    pub fn problems(&self, node: &NodeInfo) -> Vec<Detail> {
        let detail = |volume: &str, problem: String| Detail::Volume {
            volume: volume.to_string(),
            problem,
        };
        let mut all = vec![];
        for volume in &self.bound {
            match volume {
                None => all.push(detail(
                    "",
                    "the claim is bound to a volume that does not exist".to_string(),
                )),
                Some(volume) if !volume.reaches(&node.labels) => {
                    let problem = "its node affinity does not match the node".to_string();
                    all.push(detail(&volume.metadata.name, problem));
                }
                Some(_) => {}
            }
        }
        if self.find(node).is_err() && all.is_empty() {
            for waiting in &self.waiting {
                let claim = &waiting.claim;
                let problem = match claim.selected_node() {
                    Some(other) if other != &*node.name => format!("its volume is being provisioned for node {other}"),
                    _ => format!(
                        "no volume of class {:?} is free or can be provisioned here",
                        claim.class()
                    ),
                };
                all.push(detail(&claim.metadata.name, problem));
            }
        }
        all
    }

    /// Finds volumes for the claims; gives those for which there is none.
    fn bind(&self, node: &NodeInfo, found: &mut Found) -> Vec<&UnboundClaim> {
        let mut unmatched = vec![];
        for waiting in &self.waiting {
            // What has a node already will get a volume made.
            let volume = match waiting.claim.selected_node() {
                None => self.volume_for(waiting, node, &found.bindings),
                Some(_) => None,
            };
            match volume {
                Some(volume) => found.bindings.push((volume.clone(), waiting.claim.clone())),
                None => unmatched.push(waiting),
            }
        }
        // Those that were sent here before go first.
        unmatched.sort_by_key(|w| w.claim.selected_node().is_none());
        unmatched
    }

    fn volume_for<'a>(
        &'a self,
        waiting: &'a UnboundClaim,
        node: &NodeInfo,
        taken: &[(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)],
    ) -> Option<&'a Arc<PersistentVolume>> {
        let is_taken = |volume: &PersistentVolume| taken.iter().any(|(v, _)| v.metadata.name == volume.metadata.name);
        if let Some(volume) = waiting.meant.iter().find(|v| !is_taken(v)) {
            return volume.reaches(&node.labels).then_some(volume);
        }
        let claim = &waiting.claim;
        let unclaimed = self.tables.unclaimed(claim.class())?;
        unclaimed.smallest(&node.labels, claim.spec.resources.requests.nanos(), |volume| {
            is_free_for(claim, volume)
                && !self.assumed.contains_key(&volume.metadata.name)
                && !is_taken(volume)
                && volume.reaches(&node.labels)
        })
    }

    fn make(&self, node: &NodeInfo, unmatched: Vec<&UnboundClaim>, found: &mut Found, conflicts: &mut Conflicts) {
        for waiting in unmatched {
            match &waiting.provision {
                Provision::Where(class, capacities) if class.allows(&node.labels) => {
                    let is_near = |c: &Arc<CsiStorageCapacity>| {
                        c.node_topology
                            .as_ref()
                            .is_some_and(|nodes| nodes.matches(&node.labels))
                    };
                    if capacities.as_ref().is_some_and(|all| !all.iter().any(is_near)) {
                        conflicts.no_space = true;
                        return;
                    }
                    found.provisions.push(waiting.claim.clone());
                }
                _ => {
                    conflicts.nothing_to_bind = true;
                    return;
                }
            }
        }
    }
}

/// What a volume must have for a claim, even if it is meant for it.
fn suits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (wanted, there) = (&claim.spec, &volume.spec);
    let same = |a: &Option<String>, b: &Option<String>, default: &str| {
        a.as_deref().unwrap_or(default) == b.as_deref().unwrap_or(default)
    };
    volume.spec.capacity.nanos() >= claim.spec.resources.requests.nanos()
        && same(&wanted.volume_mode, &there.volume_mode, "Filesystem")
        && same(
            &wanted.volume_attributes_class_name,
            &there.volume_attributes_class_name,
            "",
        )
        && volume.metadata.deletion_timestamp.is_none()
}

/// What it must have beside, if it is nobody's.
fn is_free_for(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let selector = &claim.spec.selector;
    volume.status.phase == "Available"
        && suits(claim, volume)
        && selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
        && (claim.spec.access_modes.iter()).all(|mode| volume.spec.access_modes.contains(mode))
}
