//! EndpointSlices: where each service with a selector leads, in pieces small enough to change one without the others.
//!
//! Pods, services, nodes and the slices themselves come in through caches; slices go out. A slice belongs to its service
//! (the garbage collector removes it with the service) and holds endpoints of one address family that listen at the same
//! ports; an endpoint is in one slice.
// Upstream: pkg/controller/endpointslice, staging/src/k8s.io/endpointslice (v1.36)

mod hints;
mod pack;
mod plan;
#[cfg(test)]
mod shell_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use orlop_client::{Error, Result};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashSet;

use self::hints::{HintMode, ZONE, ZoneShares};
use self::plan::{CONTROLLER, Plan, ServiceSnapshot};
use crate::backends::{self, TriggerTimes};
use crate::objects::endpoint_slice::TRIGGER_TIME;
use crate::objects::{EndpointSlice, Kind, Node, Pod, Service, condition, with_type_meta};
use crate::ownership::is_terminating;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, WorkQueue, Writer};

pub(crate) const DEF: Def = Def {
    name: "endpointslice-controller",
    account: "endpointslice-controller",
    on_by_default: true,
    start,
};

/// Slices mostly change because this controller wrote them: there is time to look whether all is well.
const AFTER_SLICE_CHANGE: Duration = Duration::from_secs(1);

struct Controller {
    services: Cache<Service>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    slices: Cache<EndpointSlice>,
    zones: Zones,
    /// Services whose endpoints are spread over the zones.
    spread: Mutex<FxHashSet<Key>>,
    triggers: TriggerTimes,
    recorder: Recorder,
    max: usize,
}

/// What part of the CPUs each zone has: one value for the whole cluster, kept by a queue of its own.
type Zones = Arc<RwLock<Option<ZoneShares>>>;

fn start(setup: &Setup) {
    let queue = setup.queue("endpoint_slice");
    let batch = setup.settings.endpoint_updates_batch_period;
    let (services, pods) = (setup.cache::<Service>(), setup.cache::<Pod>());
    let (nodes, slices) = (setup.cache::<Node>(), setup.cache::<EndpointSlice>());
    queue.follow(&services);
    let (wake, known) = (queue.clone(), services.clone());
    pods.on_change(move |old, new| backends::wake(&known, old, new, |key| wake.add_after(key, batch)));
    let wake = queue.clone();
    slices.on_change(move |old, new| {
        for slice in [old, new]
            .into_iter()
            .flatten()
            .filter(|slice| slice.is_managed_by(CONTROLLER))
        {
            if let Some(service) = slice.service() {
                let key = Key::new(&*slice.metadata.namespace, service);
                wake.add_after(key, batch.max(AFTER_SLICE_CHANGE));
            }
        }
    });
    let zones = Zones::default();
    follow_nodes(setup, &queue, &services, &pods, &nodes, &zones);
    let controller = Controller {
        services,
        pods,
        nodes,
        slices,
        zones,
        spread: Mutex::default(),
        triggers: TriggerTimes::default(),
        recorder: setup.recorder.clone(),
        max: setup.settings.max_endpoints_per_slice,
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// Nodes that come, go or change zone concern the services of their pods; their CPUs concern those that are to be spread.
fn follow_nodes(
    setup: &Setup,
    queue: &WorkQueue,
    services: &Cache<Service>,
    pods: &Cache<Pod>,
    nodes: &Cache<Node>,
    zones: &Zones,
) {
    let topology = setup.queue("endpoint_slice_topology");
    let (wake, wake_topology) = (queue.clone(), topology.clone());
    let (known_services, known_pods) = (services.clone(), pods.clone());
    nodes.on_change(move |old, new| {
        let facts = |node: Option<&Arc<Node>>| {
            let node = node?;
            let cpu = node.status.allocatable.get("cpu").cloned();
            Some((condition::holds(&node.status.conditions, "Ready"), cpu))
        };
        let zone = |node: Option<&Arc<Node>>| Some(node?.metadata.label(ZONE).map(str::to_string));
        if zone(old) != zone(new) {
            let name = new.or(old).map_or("", |node| &node.metadata.name);
            for pod in known_pods.indexed(name) {
                backends::wake(&known_services, None, Some(&pod), |key| wake.add(key));
            }
        }
        if zone(old) != zone(new) || facts(old) != facts(new) {
            wake_topology.add(Key::default());
        }
    });
    let topologist = Topologist {
        services: services.clone(),
        nodes: nodes.clone(),
        zones: zones.clone(),
        queue: queue.clone(),
    };
    setup.run(topology, 1, topologist);
}

struct Topologist {
    services: Cache<Service>,
    nodes: Cache<Node>,
    zones: Zones,
    queue: WorkQueue,
}

impl Reconcile for Topologist {
    async fn reconcile(&self, _: &Key, _: &Writer) -> ReconcileResult {
        let shares = hints::zone_shares(&self.nodes.list());
        if *self.zones.read() != shares {
            *self.zones.write() = shares;
            let all = self.services.list().into_iter();
            let to_spread = all.filter(|service| HintMode::from_service(service) == HintMode::Auto);
            to_spread.for_each(|service| self.queue.add(Key::from_object(&*service)));
        }
        Ok(Next::Done)
    }
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(service) = self.services.at(key) else {
            self.triggers.forget(key);
            self.spread.lock().remove(key);
            return Ok(Next::Done);
        };
        if !service.has_pods() {
            return Ok(Next::Done);
        }
        let pods = backends::select_pods(&self.pods, &service, true);
        let trigger = self.triggers.observe(&service, &pods);
        let plan = self.plan(key, &service, &pods);
        for remark in &plan.remarks {
            let message = remark.message.as_str();
            match remark.is_warning {
                true => self.recorder.warning(&*service, remark.reason, message),
                false => self.recorder.normal(&*service, remark.reason, message),
            }
        }
        match plan.is_spread {
            true => self.spread.lock().insert(key.clone()),
            false => self.spread.lock().remove(key),
        };
        if let Err(error) = apply(writer, plan, trigger).await {
            if !matches!(error, Error::Conflict(_) | Error::NotFound(_)) {
                let note = format!("Error updating Endpoint Slices for Service {key}: {error}");
                self.recorder.warning(&*service, "FailedToUpdateEndpointSlices", note);
            }
            return Err(error.into());
        }
        Ok(Next::Done)
    }
}

impl Controller {
    fn plan(&self, key: &Key, service: &Service, pods: &[Arc<Pod>]) -> Plan {
        let mut slices = self.slices.indexed(&key.name);
        slices.retain(|slice| {
            let meta = &slice.metadata;
            meta.namespace == key.namespace && !meta.is_deleted() && slice.is_managed_by(CONTROLLER)
        });
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        plan::plan(&ServiceSnapshot {
            service,
            pods,
            node: &|name| self.nodes.get("", name),
            slices: &slices,
            zones: self.zones.read().as_ref(),
            was_spread: self.spread.lock().contains(key),
            max: self.max,
        })
    }
}

async fn apply(writer: &Writer, plan: Plan, trigger: Option<Timestamp>) -> Result<()> {
    let stamped = |mut slice: EndpointSlice| {
        let annotations = &mut slice.metadata.annotations;
        match trigger {
            Some(at) => annotations.insert(TRIGGER_TIME.to_string(), at.to_string()),
            None => annotations.remove(TRIGGER_TIME),
        };
        slice
    };
    write(writer, plan.create.into_iter().map(stamped).collect()).await?;
    write(writer, plan.update.into_iter().map(stamped).collect()).await?;
    delete(writer, &plan.delete).await
}

/// Slices without a name are made, others replaced.
pub(crate) async fn write(writer: &Writer, slices: Vec<EndpointSlice>) -> Result<()> {
    let one = async |slice: EndpointSlice| {
        let meta = slice.meta();
        let written = match meta.name.as_str() {
            "" => {
                writer
                    .create::<EndpointSlice>(&meta.namespace, &with_type_meta(&slice))
                    .await
            }
            _ => writer.replace::<EndpointSlice>(meta, &with_type_meta(&slice)).await,
        };
        match written {
            // Nothing more can come to life here; its end will come to us.
            Err(Error::Forbidden(status)) if is_terminating(&status) => Ok(()),
            written => written.map(|_| ()),
        }
    };
    join_all(slices.into_iter().map(one)).await.into_iter().collect()
}

pub(crate) async fn delete(writer: &Writer, slices: &[Arc<EndpointSlice>]) -> Result<()> {
    let one = async |slice: &Arc<EndpointSlice>| match writer.delete::<EndpointSlice>(&slice.metadata).await {
        Err(Error::NotFound(_)) => Ok(()),
        gone => gone,
    };
    join_all(slices.iter().map(one)).await.into_iter().collect()
}
