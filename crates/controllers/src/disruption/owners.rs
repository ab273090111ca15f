//! How many pods the owners of some pods want.
//!
//! Owners of the kinds that everybody uses are looked up in the caches; any other kind is asked by its subresource `scale`.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_client::{Error, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::objects::{Deployment, Kind, Meta, OwnerReference, Pod, ReplicaSet, ReplicationController, StatefulSet};
use crate::runtime::{Cache, ReconcileError, Setup, Writer};

/// Kinds whose place in the API is remembered; more are asked for each time.
const KINDS_MAX: usize = 256;

pub(super) struct Owners {
    deployments: Cache<Deployment>,
    replica_sets: Cache<ReplicaSet>,
    controllers: Cache<ReplicationController>,
    stateful_sets: Cache<StatefulSet>,
    /// API version and kind → what is known of it.
    resources: Mutex<FxHashMap<(String, String), Arc<Resource>>>,
}

/// A kind's place in the API.
struct Resource {
    plural: String,
    has_scale: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExpectedPods {
    pub pods: i64,
    /// Pods without an owner.
    pub unmanaged: Vec<String>,
}

/// Why the owners can't be summed up.
pub enum OwnerError {
    /// Reported in an event and a condition of the budget.
    Reported(String),
    Api(Error),
}

impl From<Error> for OwnerError {
    fn from(error: Error) -> OwnerError {
        OwnerError::Api(error)
    }
}

impl From<OwnerError> for ReconcileError {
    fn from(trouble: OwnerError) -> ReconcileError {
        match trouble {
            OwnerError::Reported(message) => ReconcileError::NotYet(message),
            OwnerError::Api(error) => ReconcileError::Api(error),
        }
    }
}

trait Scaled: Kind {
    fn replicas(&self) -> Option<i64>;
}

macro_rules! scaled {
    ($($kind:ty),*) => {$(
        impl Scaled for $kind {
            fn replicas(&self) -> Option<i64> {
                self.spec.replicas
            }
        }
    )*};
}
scaled!(Deployment, ReplicaSet, ReplicationController, StatefulSet);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Scale {
    metadata: Meta,
    spec: ScaleSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ScaleSpec {
    replicas: i64,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
}

impl Owners {
    pub(super) fn new(setup: &Setup) -> Owners {
        Owners {
            deployments: setup.cache(),
            replica_sets: setup.cache(),
            controllers: setup.cache(),
            stateful_sets: setup.cache(),
            resources: Mutex::default(),
        }
    }

    pub(super) async fn wanted(&self, writer: &Writer, pods: &[Arc<Pod>]) -> Result<ExpectedPods, OwnerError> {
        // By uid: pods of several ReplicaSets may all be those of one Deployment.
        let mut wants: BTreeMap<String, i64> = BTreeMap::new();
        let mut asked: FxHashMap<&str, ()> = FxHashMap::default();
        let mut unmanaged = vec![];
        for pod in pods {
            let Some(owner) = pod.metadata.controller() else {
                unmanaged.push(pod.metadata.name.clone());
                continue;
            };
            if asked.insert(&owner.uid, ()).is_some() {
                continue;
            }
            match self.scale(writer, owner, &pod.metadata.namespace).await? {
                Some((uid, replicas)) => wants.insert(uid, replicas),
                None => {
                    let message = format!("found no controllers for pod {:?}", pod.metadata.name);
                    return Err(OwnerError::Reported(message));
                }
            };
        }
        let pods = wants.values().sum();
        Ok(ExpectedPods { pods, unmanaged })
    }

    /// The uid of who decides, and how many pods it wants. None: it is not there.
    async fn scale(
        &self,
        writer: &Writer,
        owner: &OwnerReference,
        ns: &str,
    ) -> Result<Option<(String, i64)>, OwnerError> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let known = match (group, owner.kind.as_str()) {
            ("", "ReplicationController") => of(&self.controllers, owner, ns),
            ("apps" | "extensions", "ReplicaSet") => self.of_replica_set(owner, ns),
            ("apps", "StatefulSet") => of(&self.stateful_sets, owner, ns),
            _ => None,
        };
        match known {
            Some(known) => Ok(Some(known)),
            None => self.ask(writer, owner, ns).await,
        }
    }

    fn of_replica_set(&self, owner: &OwnerReference, ns: &str) -> Option<(String, i64)> {
        let set = self
            .replica_sets
            .get(ns, &owner.name)
            .filter(|set| set.metadata.uid == owner.uid)?;
        match set.metadata.controller() {
            Some(above) if above.kind == Deployment::KIND => of(&self.deployments, above, ns),
            _ => of(&self.replica_sets, owner, ns),
        }
    }

    async fn ask(
        &self,
        writer: &Writer,
        owner: &OwnerReference,
        ns: &str,
    ) -> Result<Option<(String, i64)>, OwnerError> {
        let resource = self.resource(writer, owner).await?;
        if !resource.has_scale {
            let group = owner
                .api_version
                .split_once('/')
                .map_or(String::new(), |(group, _)| format!(".{group}"));
            let message = format!("{}{group} does not implement the scale subresource", resource.plural);
            return Err(OwnerError::Reported(message));
        }
        let at = path::subresource(&owner.api_version, Some(ns), &resource.plural, &owner.name, "scale");
        match writer.api().get::<Scale>(&at).await {
            Ok(scale) if scale.metadata.uid == owner.uid => Ok(Some((scale.metadata.uid, scale.spec.replicas))),
            Ok(_) | Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn resource(&self, writer: &Writer, owner: &OwnerReference) -> Result<Arc<Resource>, OwnerError> {
        let key = (owner.api_version.clone(), owner.kind.clone());
        if let Some(known) = self.resources.lock().get(&key) {
            return Ok(known.clone());
        }
        let unknown = || {
            let (kind, version) = (&owner.kind, &owner.api_version);
            OwnerError::Reported(format!("no matches for kind {kind:?} in version {version:?}"))
        };
        // The path of a version's resources is that of a collection without its name.
        let at = path::collection(&owner.api_version, None, "");
        let answer: Result<Resources, Error> = writer.api().get(at.trim_end_matches('/')).await;
        let all = match answer {
            Ok(all) => all.resources,
            Err(Error::NotFound(_)) => return Err(unknown()),
            Err(error) => return Err(error.into()),
        };
        let is_whole = |r: &&ApiResource| r.kind == owner.kind && !r.name.contains('/');
        let plural = all.iter().find(is_whole).ok_or_else(unknown)?.name.clone();
        let scale = format!("{plural}/scale");
        let has_scale = all.iter().any(|r| r.name == scale && r.kind == "Scale");
        let found = Arc::new(Resource { plural, has_scale });
        let mut resources = self.resources.lock();
        if resources.len() < KINDS_MAX {
            resources.insert(key, found.clone());
        }
        Ok(found)
    }
}

fn of<T: Scaled>(cache: &Cache<T>, owner: &OwnerReference, ns: &str) -> Option<(String, i64)> {
    let found = cache
        .get(ns, &owner.name)
        .filter(|found| found.meta().uid == owner.uid)?;
    Some((owner.uid.clone(), found.replicas().unwrap_or(1)))
}
