//! Autoscalers: as many pods as their work asks for, by the resource metrics API (`metrics.k8s.io`).
//!
//! Left out: custom, object and external metrics, whose APIs somebody else would have to serve. Autoscalers that ask for them
//! are told so in their conditions.
// Upstream: pkg/controller/podautoscaler (v1.36)

mod limits;
mod plan;
mod usage;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use orlop_api::selector::LabelSelector;
use orlop_base::Clock;
use orlop_client::{Api, Error, ListQuery, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;

use self::limits::ScalingHistory;
use self::plan::{Config, Observed, Plan};
use self::usage::Warmup;
use crate::objects::horizontal_pod_autoscaler::{PodMetrics, Scale, TargetReference};
use crate::objects::{HorizontalPodAutoscaler, Meta, Pod};
use crate::ownership;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer, status_patch};

pub(crate) const DEF: Def = Def {
    name: "horizontal-pod-autoscaler-controller",
    account: "horizontal-pod-autoscaler",
    on_by_default: true,
    start,
};

/// Somebody else may change the target at the same time.
const TRIES: u32 = 5;

struct Controller {
    autoscalers: Cache<HorizontalPodAutoscaler>,
    pods: Cache<Pod>,
    recorder: Recorder,
    clock: Clock,
    config: Config,
    period: Duration,
    known: Mutex<FxHashMap<Key, AutoscalerState>>,
    /// Resources by version and kind: `("apps/v1", "Deployment")` → `deployments`.
    resources: Mutex<FxHashMap<(String, String), String>>,
}

/// What is known of an autoscaler beyond what can be seen. Lost in a restart, which makes it a little slower for a while.
#[derive(Clone, Default)]
struct AutoscalerState {
    memory: ScalingHistory,
    selector: Option<LabelSelector>,
}

fn start(setup: &Setup) {
    let (autoscalers, pods) = (setup.cache::<HorizontalPodAutoscaler>(), setup.cache::<Pod>());
    let queue = setup.queue("horizontalpodautoscaler");
    let wake = queue.clone();
    autoscalers.on_change(move |old, new| {
        // What changes in the status is our own doing; the next look is due anyway.
        let same = old.zip(new).is_some_and(|(old, new)| old.spec == new.spec);
        if let Some(hpa) = new.or(old).filter(|_| !same) {
            wake.add(Key::from_object(&**hpa));
        }
    });
    let settings = &setup.settings;
    let controller = Controller {
        autoscalers,
        pods,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        config: Config {
            tolerance: settings.horizontal_pod_autoscaler_tolerance,
            down_window: settings.horizontal_pod_autoscaler_downscale_stabilization,
            warmup: Warmup {
                cpu_initialization: settings.horizontal_pod_autoscaler_cpu_initialization_period,
                initial_readiness: settings.horizontal_pod_autoscaler_initial_readiness_delay,
            },
        },
        period: settings.horizontal_pod_autoscaler_sync_period,
        known: Mutex::default(),
        resources: Mutex::default(),
    };
    setup.run(queue, settings.concurrent_syncs, controller);
}

/// Why the target's scale is not known.
#[derive(Debug, thiserror::Error)]
enum ScaleError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error("no matches for kind {kind:?} in version {version:?}")]
    NoKind { kind: String, version: String },
}

/// Why it is not known what pods use.
#[derive(Debug, thiserror::Error)]
enum PodMetricsError {
    /// Nothing serves the resource metrics API.
    #[error("the server could not find the requested resource (get pods.metrics.k8s.io)")]
    NotServed,
    #[error(transparent)]
    Api(#[from] Error),
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(hpa) = self.autoscalers.at(key) else {
            self.known.lock().remove(key);
            return Ok(Next::Done);
        };
        let plan = match self.scale(writer.api(), &hpa).await {
            Ok((at, scale)) => self.with_scale(key, writer.api(), &hpa, &at, scale).await,
            Err(error) => Plan::new(&hpa).without_scale(&error.to_string(), self.clock.now()),
        };
        if plan.status != hpa.status {
            let patch = status_patch(&hpa.metadata, &plan.status.for_patch());
            writer
                .patch_status::<HorizontalPodAutoscaler>(&hpa.metadata, &patch)
                .await?;
        }
        for note in plan.notes {
            match note.warning {
                true => self.recorder.warning(&*hpa, note.reason, note.text),
                false => self.recorder.normal(&*hpa, note.reason, note.text),
            }
        }
        Ok(Next::After(self.period))
    }
}

impl Controller {
    async fn with_scale(&self, key: &Key, api: &Api, hpa: &HorizontalPodAutoscaler, at: &str, scale: Scale) -> Plan {
        let selector = LabelSelector::parse(&scale.status.selector).ok();
        let selector = selector.filter(|selector| !selector.is_empty());
        let mut memory = {
            let mut known = self.known.lock();
            let known = known.entry(key.clone()).or_default();
            known.selector.clone_from(&selector);
            known.memory.clone()
        };
        let now = self.clock.now();
        let mut plan = if plan::needs_metrics(hpa, scale.spec.replicas) {
            let pods = self.pods_of(key, selector.as_ref());
            let metrics = pod_metrics(api, &key.namespace, &scale.status.selector).await;
            let observed = Observed {
                pods: &pods,
                metrics: &metrics,
                autoscalers: &self.autoscalers_of(key, &pods),
            };
            plan::plan(hpa, &scale, Some(&observed), &self.config, &mut memory, now)
        } else {
            plan::plan(hpa, &scale, None, &self.config, &mut memory, now)
        };
        if let Some(rescale) = &plan.rescale {
            match resize(api, at, scale, rescale.to).await {
                Ok(()) => plan.rescaled(hpa, &mut memory, now),
                Err(error) => plan.not_rescaled(hpa, &error.to_string(), now),
            }
        }
        if let Some(known) = self.known.lock().get_mut(key) {
            known.memory = memory;
        }
        plan
    }

    fn pods_of(&self, key: &Key, selector: Option<&LabelSelector>) -> Vec<Arc<Pod>> {
        let Some(selector) = selector else { return vec![] };
        let mut pods = self.pods.list_in(&key.namespace);
        pods.retain(|pod| ownership::matches(selector, &pod.metadata));
        pods
    }

    /// All that have one of the pods, in the order of names.
    fn autoscalers_of(&self, key: &Key, pods: &[Arc<Pod>]) -> Vec<Key> {
        let has_one = |selector: &LabelSelector| {
            let matches = |meta: &Meta| ownership::matches(selector, meta);
            pods.iter().any(|pod| matches(&pod.metadata))
        };
        let known = self.known.lock();
        let near = known.iter().filter(|(other, _)| other.namespace == key.namespace);
        let mut found: Vec<Key> = near
            .filter(|(other, known)| *other == key || known.selector.as_ref().is_some_and(has_one))
            .map(|(other, _)| other.clone())
            .collect();
        found.sort();
        found
    }

    /// Where the target's scale is, and the scale.
    async fn scale(&self, api: &Api, hpa: &HorizontalPodAutoscaler) -> Result<(String, Scale), ScaleError> {
        let target = &hpa.spec.scale_target_ref;
        let resource = self.resource(api, target).await?;
        let version = if target.api_version.is_empty() {
            "v1"
        } else {
            &target.api_version
        };
        let at = path::subresource(version, Some(&hpa.metadata.namespace), &resource, &target.name, "scale");
        let scale = api.get::<Scale>(&at).await?;
        Ok((at, scale))
    }

    async fn resource(&self, api: &Api, target: &TargetReference) -> Result<String, ScaleError> {
        let version = if target.api_version.is_empty() {
            "v1"
        } else {
            &target.api_version
        };
        let known = match (version, target.kind.as_str()) {
            ("apps/v1", "Deployment") => Some("deployments"),
            ("apps/v1", "ReplicaSet") => Some("replicasets"),
            ("apps/v1", "StatefulSet") => Some("statefulsets"),
            ("v1", "ReplicationController") => Some("replicationcontrollers"),
            _ => None,
        };
        if let Some(resource) = known {
            return Ok(resource.to_string());
        }
        let name = (version.to_string(), target.kind.clone());
        if let Some(resource) = self.resources.lock().get(&name) {
            return Ok(resource.clone());
        }
        let at = if version.contains('/') {
            format!("/apis/{version}")
        } else {
            format!("/api/{version}")
        };
        let found = match api.get::<Resources>(&at).await {
            Ok(found) => found.resources,
            Err(Error::NotFound(_)) => vec![],
            Err(error) => return Err(error.into()),
        };
        let resource = found
            .into_iter()
            .find(|r| r.kind == target.kind && !r.name.contains('/'));
        let Some(resource) = resource else {
            return Err(ScaleError::NoKind {
                kind: target.kind.clone(),
                version: version.to_string(),
            });
        };
        let mut all = self.resources.lock();
        // Kinds come and go; what is asked for now is what matters.
        if all.len() >= 1000 {
            all.clear();
        }
        all.insert(name, resource.name.clone());
        Ok(resource.name)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    name: String,
    kind: String,
}

async fn pod_metrics(api: &Api, namespace: &str, selector: &str) -> Result<Vec<PodMetrics>, PodMetricsError> {
    let at = path::collection("metrics.k8s.io/v1beta1", Some(namespace), "pods");
    let query = ListQuery {
        label_selector: selector.to_string(),
        ..ListQuery::default()
    };
    match api.list::<PodMetrics>(&at, &query).await {
        Ok(list) => Ok(list.items),
        Err(Error::NotFound(_)) => Err(PodMetricsError::NotServed),
        Err(error) => Err(error.into()),
    }
}

/// Somebody may have changed the target since: the size is ours to set all the same.
async fn resize(api: &Api, at: &str, mut scale: Scale, replicas: i64) -> Result<(), Error> {
    let mut tries = 1;
    loop {
        scale.spec.replicas = replicas;
        match api.replace::<Scale>(at, &scale).await {
            Ok(_) => return Ok(()),
            Err(Error::Conflict(_)) if tries < TRIES => {
                tries += 1;
                scale = api.get(at).await?;
            }
            Err(error) => return Err(error),
        }
    }
}
