//! Claims for devices: made from the templates that pods name, freed when nobody uses them any more.
//!
//! A pod's status says which claim was made for it. Who may use an allocated claim is written in the claim
//! (`reservedFor`); pods that ended are taken off there, and with the last one goes the allocation.
// Upstream: pkg/controller/resourceclaim (v1.36, without PodGroups)

mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use orlop_client::{Error, path};
use serde_json::{Value, json};

use self::plan::{Cleanup, Need};
use crate::index::Index;
use crate::objects::resource_claim::Consumer;
use crate::objects::{Kind, Pod, ResourceClaim, ResourceClaimTemplate};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, WorkQueue, Writer, precondition,
};

pub(crate) const DEF: Def = Def {
    name: "resourceclaim-controller",
    account: "resource-claim-controller",
    on_by_default: true,
    start,
};

struct Controller {
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    templates: Cache<ResourceClaimTemplate>,
    /// By `claim/namespace/name` and `template/namespace/name`.
    users: Index<Pod>,
    recorder: Recorder,
}

struct Pods(Arc<Controller>);
struct Claims(Arc<Controller>);

fn start(setup: &Setup) {
    let pods = setup.cache::<Pod>();
    let controller = Arc::new(Controller {
        users: Index::new(&pods, references),
        pods,
        claims: setup.cache(),
        templates: setup.cache(),
        recorder: setup.recorder.clone(),
    });
    let (pod_queue, claim_queue) = (setup.queue("resource_claim_pods"), setup.queue("resource_claim"));
    controller.watch(&pod_queue, &claim_queue);
    let workers = setup.settings.concurrent_syncs;
    setup.run(pod_queue, workers, Pods(controller.clone()));
    setup.run(claim_queue, workers, Claims(controller));
}

fn references(pod: &Pod) -> Vec<String> {
    let namespace = &pod.metadata.namespace;
    let claims = plan::claim_names(pod);
    let claims = claims.iter().map(|name| format!("claim/{namespace}/{name}"));
    let templates = pod
        .spec
        .resource_claims
        .iter()
        .filter_map(|c| c.resource_claim_template_name.as_ref());
    let templates = templates.map(|name| format!("template/{namespace}/{name}"));
    claims.chain(templates).collect()
}

impl Controller {
    fn watch(self: &Arc<Controller>, pod_queue: &WorkQueue, claim_queue: &WorkQueue) {
        let (wake_pod, wake_claim, this) = (pod_queue.clone(), claim_queue.clone(), self.clone());
        self.pods.on_change(move |old, new| {
            let Some(pod) = new.or(old).filter(|pod| !pod.spec.resource_claims.is_empty()) else {
                return;
            };
            let meta = &pod.metadata;
            if new.is_some_and(|pod| !plan::is_done(pod)) {
                return wake_pod.add(Key::from_object(&**pod));
            }
            for name in plan::claim_names(pod) {
                wake_claim.add(Key::new(&*meta.namespace, name));
            }
            for claim in this.claims.owned_by(&meta.namespace, &meta.uid) {
                wake_claim.add(Key::from_object(&*claim));
            }
        });
        let (wake_pod, wake_claim, this) = (pod_queue.clone(), claim_queue.clone(), self.clone());
        self.claims.on_change(move |old, new| {
            let Some(claim) = new.or(old) else { return };
            let key = Key::from_object(&**claim);
            for user in this.users.keys(&format!("claim/{key}")) {
                wake_pod.add(user);
            }
            wake_claim.add(key);
        });
        let (wake_pod, this) = (pod_queue.clone(), self.clone());
        self.templates.on_change(move |_, new| {
            let Some(template) = new else { return };
            for user in this.users.keys(&format!("template/{}", Key::from_object(&**template))) {
                wake_pod.add(user);
            }
        });
    }
}

impl Reconcile for Pods {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(pod) = self.0.pods.at(key).filter(|pod| !pod.metadata.is_deleted()) else {
            return Ok(Next::Done);
        };
        self.0.make_claims(&pod, writer).await?;
        self.0.reserve(&pod, writer).await
    }
}

/// Why a claim was not made.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("resource claim template \"{0}\": resourceclaimtemplate.resource.k8s.io \"{0}\" not found")]
    NoTemplate(String),
    #[error("create ResourceClaim : {0}")]
    Create(Error),
}

impl Controller {
    /// Makes what is missing, and says in the pod's status what was made.
    async fn make_claims(&self, pod: &Arc<Pod>, writer: &Writer) -> Result<(), ReconcileError> {
        let namespace = &pod.metadata.namespace;
        let own = self.claims.owned_by(namespace, &pod.metadata.uid);
        let mut fresh: Vec<(String, String)> = vec![];
        for wish in &pod.spec.resource_claims {
            let known = |name: &str| self.claims.get(namespace, name);
            let made = match plan::need(pod, wish, &own, known) {
                Need::Nothing => continue,
                Need::Record(name) => Ok(name),
                Need::Make(template) => self.make(pod, &wish.name, template, writer).await,
            };
            match made {
                Ok(name) => fresh.push((wish.name.clone(), name)),
                Err(reason) => {
                    let message = format!("PodResourceClaim {}: {reason}", wish.name);
                    self.recorder
                        .warning(&**pod, "FailedResourceClaimCreation", message.clone());
                    return Err(ReconcileError::NotYet(format!(
                        "pod {}, {message}",
                        Key::from_object(&**pod)
                    )));
                }
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let patch = json!({"metadata": precondition(&pod.metadata),
                           "status": {"resourceClaimStatuses": plan::statuses(pod, &fresh)}});
        writer.patch_status::<Pod>(&pod.metadata, &patch).await?;
        Ok(())
    }

    async fn make(&self, pod: &Pod, wish: &str, template: &str, writer: &Writer) -> Result<String, MakeError> {
        let namespace = &pod.metadata.namespace;
        let Some(template) = self.templates.get(namespace, template) else {
            return Err(MakeError::NoTemplate(template.to_string()));
        };
        let claim = plan::claim_from(&template, pod, wish);
        let made = writer.create::<ResourceClaim>(namespace, &claim).await;
        Ok(made.map_err(MakeError::Create)?.metadata.name)
    }

    /// A pod that came to its node without the scheduler still has to be named in its claims.
    async fn reserve(&self, pod: &Pod, writer: &Writer) -> ReconcileResult {
        if pod.spec.node_name.is_empty() || plan::is_done(pod) {
            return Ok(Next::Done);
        }
        for name in plan::claim_names(pod) {
            let Some(claim) = self.claims.get(&pod.metadata.namespace, &name) else {
                continue;
            };
            if let Some(reserved) = plan::reservation(pod, &claim) {
                self.write_status(&claim, json!({"reservedFor": reserved}), writer)
                    .await?;
            }
        }
        Ok(Next::Done)
    }

    async fn write_status(
        &self,
        claim: &ResourceClaim,
        status: Value,
        writer: &Writer,
    ) -> Result<ResourceClaim, Error> {
        let patch = json!({"metadata": precondition(&claim.metadata), "status": status});
        writer.patch_status(&claim.metadata, &patch).await
    }

    /// Whether the pod is there and not at its end. A cache may be behind: only the API server says that it is gone.
    async fn is_alive(&self, namespace: &str, consumer: &Consumer, writer: &Writer) -> Result<bool, ReconcileError> {
        if let Some(pod) = self.pods.get(namespace, &consumer.name) {
            return Ok(pod.metadata.uid == consumer.uid && !plan::is_done(&pod));
        }
        let at = path::object(Pod::API_VERSION, Some(namespace), Pod::RESOURCE, &consumer.name);
        match writer.api().get::<Pod>(&at).await {
            Ok(pod) => Ok(pod.metadata.uid == consumer.uid),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reconcile for Claims {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let all = &self.0;
        let Some(mut claim) = all.claims.at(key) else {
            return Ok(Next::Done);
        };
        let mut left = vec![];
        for consumer in &claim.status.reserved_for {
            if !consumer.is_pod() || all.is_alive(&key.namespace, consumer, writer).await? {
                left.push(consumer.clone());
            }
        }
        let owner = claim
            .metadata
            .controller()
            .filter(|owner| owner.kind == "Pod" && owner.api_version == "v1");
        let pod = owner.and_then(|owner| all.pods.get(&key.namespace, &owner.name));
        let mut freed = false;
        loop {
            let done = match plan::cleanup(&claim, &left, pod.as_deref(), freed) {
                Cleanup::Nothing => return Ok(Next::Done),
                Cleanup::Status(status) => {
                    freed |= status.get("allocation").is_some();
                    all.write_status(&claim, status, writer).await
                }
                Cleanup::Finalizers(finalizers) => {
                    let mut metadata = precondition(&claim.metadata);
                    metadata["finalizers"] = json!(finalizers);
                    writer.patch(&claim.metadata, &json!({"metadata": metadata})).await
                }
                Cleanup::Delete => match writer.delete::<ResourceClaim>(&claim.metadata).await {
                    Ok(()) | Err(Error::NotFound(_)) => return Ok(Next::Done),
                    Err(error) => return Err(error.into()),
                },
            };
            match done {
                Ok(now) => claim = Arc::new(now),
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
