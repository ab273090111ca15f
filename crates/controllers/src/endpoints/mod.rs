//! Endpoints: one object a service that lists all its pods. Superseded by slices, but clients still read them.
// Upstream: pkg/controller/endpoint (v1.36)

mod plan;
mod subsets;

use std::time::Duration;

use orlop_client::Error;

pub(crate) use self::subsets::canonical;
use crate::backends::{self, TriggerTimes};
use crate::objects::{Endpoints, Pod, Service, with_type_meta};
use crate::ownership::is_terminating;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, WorkQueue, Writer};

pub(crate) const DEF: Def = Def {
    name: "endpoints-controller",
    account: "endpoint-controller",
    on_by_default: true,
    start,
};

/// Who holds an old kind of election in the object, which then has nothing to do with any service.
pub(crate) const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Endpoints mostly change because this controller wrote them: there is time to look whether all is well.
const AFTER_CHANGE: Duration = Duration::from_secs(1);

struct Controller {
    services: Cache<Service>,
    pods: Cache<Pod>,
    endpoints: Cache<Endpoints>,
    triggers: TriggerTimes,
    recorder: Recorder,
}

fn start(setup: &Setup) {
    let queue = setup.queue("endpoint");
    let batch = setup.settings.endpoint_updates_batch_period;
    let (services, pods, endpoints) = (
        setup.cache::<Service>(),
        setup.cache::<Pod>(),
        setup.cache::<Endpoints>(),
    );
    queue.follow(&services);
    let (wake, known) = (queue.clone(), services.clone());
    pods.on_change(move |old, new| backends::wake(&known, old, new, |key| wake.add_after(key, batch)));
    wake_for_own(&queue, &endpoints);
    let controller = Controller {
        services,
        pods,
        endpoints,
        triggers: TriggerTimes::default(),
        recorder: setup.recorder.clone(),
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

/// Endpoints made by hand may be there before their service: only those that this controller wrote are looked after, those
/// whose service went unseen included.
// Differs from upstream, which at its start deletes all that have no service.
fn wake_for_own(queue: &WorkQueue, endpoints: &Cache<Endpoints>) {
    let wake = queue.clone();
    endpoints.on_change(move |old, new| {
        if let Some(seen) = new
            .or(old)
            .filter(|e| e.metadata.label(plan::MANAGED_BY) == Some(plan::CONTROLLER))
        {
            wake.add_after(Key::from_object(&**seen), AFTER_CHANGE);
        }
    });
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let existing = self.endpoints.at(key);
        let Some(service) = self.services.at(key) else {
            self.triggers.forget(key);
            if let Some(left) = existing.filter(|e| e.metadata.annotation(LEADER).is_none() && !e.metadata.is_deleted())
            {
                match writer.delete::<Endpoints>(&left.metadata).await {
                    Ok(()) | Err(Error::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            return Ok(Next::Done);
        };
        if !service.has_pods() {
            return Ok(Next::Done);
        }
        let pods = backends::select_pods(&self.pods, &service, service.spec.publish_not_ready_addresses);
        let trigger = self.triggers.observe(&service, &pods);
        let Some(wanted) = plan::plan(&service, &pods, existing.as_deref(), trigger) else {
            return Ok(Next::Done);
        };
        self.write(key, writer, &wanted).await
    }
}

impl Controller {
    async fn write(&self, key: &Key, writer: &Writer, wanted: &Endpoints) -> ReconcileResult {
        let is_new = wanted.metadata.uid.is_empty();
        let written = match is_new {
            true => {
                writer
                    .create::<Endpoints>(&key.namespace, &with_type_meta(wanted))
                    .await
            }
            false => {
                writer
                    .replace::<Endpoints>(&wanted.metadata, &with_type_meta(wanted))
                    .await
            }
        };
        match written {
            Ok(_) => Ok(Next::Done),
            // Nothing more can come to life here; its end will come to us.
            Err(Error::Forbidden(status)) if is_new && is_terminating(&status) => Ok(Next::Done),
            Err(error @ (Error::Conflict(_) | Error::AlreadyExists(_) | Error::NotFound(_))) => Err(error.into()),
            Err(error) => {
                let (reason, note) = match is_new {
                    true => (
                        "FailedToCreateEndpoint",
                        format!("Failed to create endpoint for service {key}: {error}"),
                    ),
                    false => (
                        "FailedToUpdateEndpoint",
                        format!("Failed to update endpoint {key}: {error}"),
                    ),
                };
                self.recorder.warning(wanted, reason, note);
                Err(error.into())
            }
        }
    }
}
