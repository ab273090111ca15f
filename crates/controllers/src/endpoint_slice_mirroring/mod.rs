//! Slices after hand-made Endpoints: of services without a selector somebody else says where they lead, some still in the
//! old way, while all who route traffic read slices.
// Upstream: pkg/controller/endpointslicemirroring (v1.36)

mod plan;

use std::sync::Arc;
use std::time::Duration;

use orlop_client::Error;

use self::plan::{CONTROLLER, Plan};
use crate::endpoint_slice;
use crate::objects::{EndpointSlice, Endpoints, Service};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "endpointslice-mirroring-controller",
    account: "endpointslicemirroring-controller",
    on_by_default: true,
    start,
};

/// Slices mostly change because this controller wrote them: there is time to look whether all is well.
const AFTER_SLICE_CHANGE: Duration = Duration::from_secs(1);

struct Controller {
    endpoints: Cache<Endpoints>,
    services: Cache<Service>,
    slices: Cache<EndpointSlice>,
    recorder: Recorder,
    max: usize,
}

fn start(setup: &Setup) {
    let queue = setup.queue("endpoint_slice_mirroring");
    let endpoints = setup.cache::<Endpoints>();
    let (services, slices) = (setup.cache::<Service>(), setup.cache::<EndpointSlice>());
    queue.follow(&endpoints);
    let wake = queue.clone();
    services.on_change(move |old, new| {
        let by_hand = |service: Option<&Arc<Service>>| service.map(|s| s.spec.selector.is_empty());
        if let Some(service) = new.or(old).filter(|_| by_hand(old) != by_hand(new)) {
            wake.add(Key::from_object(&**service));
        }
    });
    let wake = queue.clone();
    slices.on_change(move |old, new| {
        for slice in [old, new]
            .into_iter()
            .flatten()
            .filter(|slice| slice.is_managed_by(CONTROLLER))
        {
            if let Some(service) = slice.service() {
                wake.add_after(Key::new(&*slice.metadata.namespace, service), AFTER_SLICE_CHANGE);
            }
        }
    });
    let controller = Controller {
        endpoints,
        services,
        slices,
        recorder: setup.recorder.clone(),
        max: setup.settings.mirroring_max_endpoints_per_subset,
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let mut slices = self.slices.indexed(&key.name);
        slices.retain(|slice| {
            let meta = &slice.metadata;
            meta.namespace == key.namespace && !meta.is_deleted() && slice.is_managed_by(CONTROLLER)
        });
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let (endpoints, service) = (self.endpoints.at(key), self.services.at(key));
        let Some(endpoints) = endpoints.filter(|e| service.is_some_and(|s| plan::is_mirrored(e, &s))) else {
            endpoint_slice::delete(writer, &slices).await?;
            return Ok(Next::Done);
        };
        let plan = plan::plan(&endpoints, &slices, self.max);
        self.remark(&endpoints, &plan);
        let written = async {
            endpoint_slice::write(writer, plan.create).await?;
            endpoint_slice::write(writer, plan.update).await?;
            endpoint_slice::delete(writer, &plan.delete).await
        };
        match written.await {
            Ok(()) => Ok(Next::Done),
            Err(error @ (Error::Conflict(_) | Error::NotFound(_))) => Err(error.into()),
            Err(error) => {
                let note = format!("Error updating Endpoint Slices for Endpoints {key}: {error}");
                self.recorder.warning(&*endpoints, "FailedToUpdateEndpointSlices", note);
                Err(error.into())
            }
        }
    }
}

impl Controller {
    fn remark(&self, endpoints: &Endpoints, plan: &Plan) {
        if plan.invalid > 0 {
            let note = format!(
                "Skipped {} invalid IP addresses when mirroring to EndpointSlices",
                plan.invalid
            );
            self.recorder.warning(endpoints, "InvalidIPAddress", note);
        }
        if plan.skipped > plan.invalid {
            let note = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                self.max, plan.skipped
            );
            self.recorder.warning(endpoints, "TooManyAddressesToMirror", note);
        }
    }
}
