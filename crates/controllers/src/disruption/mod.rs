//! PodDisruptionBudgets: how many of their pods may be evicted right now. The API server's evictions go by what is written
//! here, and count themselves in `disruptedPods` until their pods are seen on their way out.
//!
//! Also takes back announcements of a disruption that never came (the pod condition `DisruptionTarget`).
// Upstream: pkg/controller/disruption (v1.36)

mod owners;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use orlop_base::Clock;
use serde_json::json;

use self::owners::{ExpectedPods, OwnerError, Owners};
use self::plan::Plan;
use crate::objects::pod_disruption_budget::{BudgetStatus, PodDisruptionBudget};
use crate::objects::{Kind, Pod};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Recorder, Setup, Writer, status_patch,
};

pub(crate) const DEF: Def = Def {
    name: "disruption-controller",
    account: "disruption-controller",
    on_by_default: true,
    start,
};

const WORKERS: usize = 4;

struct Budgets {
    budgets: Cache<PodDisruptionBudget>,
    pods: Cache<Pod>,
    owners: Owners,
    recorder: Recorder,
    clock: Clock,
}

fn start(setup: &Setup) {
    let (budgets, pods) = (setup.cache::<PodDisruptionBudget>(), setup.cache::<Pod>());
    let (queue, stale) = (setup.queue("disruption"), setup.queue("stale_pod_disruption"));
    let wake = queue.clone();
    budgets.on_change(move |_, new| {
        if let Some(budget) = new {
            wake.add(Key::from_object(&**budget));
        }
    });
    let (wake, wake_pod, known) = (queue.clone(), stale.clone(), budgets.clone());
    pods.on_change(move |old, new| {
        if !matters(old, new) {
            return;
        }
        let Some(pod) = new.or(old) else { return };
        for budget in known.list_in(&pod.metadata.namespace) {
            if old.into_iter().chain(new).any(|pod| budget.covers(&pod.metadata)) {
                wake.add(Key::from_object(&*budget));
            }
        }
        if new.is_some_and(|pod| pod.condition("DisruptionTarget").is_some_and(|target| target.is_true())) {
            wake_pod.add(Key::from_object(&**pod));
        }
    });
    let controller = Budgets {
        budgets,
        pods: pods.clone(),
        owners: Owners::new(setup),
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
    };
    setup.run(queue, WORKERS, controller);
    let clock = setup.clock.clone();
    setup.run(stale, 1, Stale { pods, clock });
}

/// Whether a change of a pod can change what a budget says, or what is said of the pod.
fn matters(old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return true;
    };
    let target = |pod: &Pod| pod.condition("DisruptionTarget").map(|target| target.status.clone());
    old.is_ready() != new.is_ready()
        || old.metadata.is_deleted() != new.metadata.is_deleted()
        || old.metadata.uid != new.metadata.uid
        || old.metadata.labels != new.metadata.labels
        || old.metadata.owner_references != new.metadata.owner_references
        || target(old) != target(new)
}

impl Reconcile for Budgets {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(budget) = self.budgets.at(key) else {
            return Ok(Next::Done);
        };
        let mut pods = self.pods.list_in(&key.namespace);
        pods.retain(|pod| budget.covers(&pod.metadata));
        if pods.is_empty() {
            self.recorder.normal(&*budget, "NoPods", "No matching pods found");
        }
        match self.plan(writer, &budget, &pods).await {
            Ok(plan) => self.apply(writer, &budget, plan).await,
            Err(OwnerError::Reported(message)) => self.admit(writer, &budget, message).await,
            Err(trouble) => {
                let failure = ReconcileError::from(trouble);
                self.admit(writer, &budget, failure.to_string()).await.and(Err(failure))
            }
        }
    }
}

impl Budgets {
    async fn plan(&self, writer: &Writer, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<Plan, OwnerError> {
        let mut wanted = ExpectedPods {
            pods: 0,
            unmanaged: vec![],
        };
        if plan::asks_owners(budget) {
            wanted = self.owners.wanted(writer, pods).await?;
        }
        if !wanted.unmanaged.is_empty() {
            let note = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of the \
                PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
                please set \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder.warning(budget, "UnmanagedPods", note);
        }
        let plan = plan::plan(budget, pods, wanted.pods, self.clock.now());
        plan.map_err(|error| OwnerError::Reported(error.to_string()))
    }

    async fn apply(&self, writer: &Writer, budget: &PodDisruptionBudget, plan: Plan) -> ReconcileResult {
        let Key { namespace, name } = Key::from_object(budget);
        for pod in &plan.not_deleted {
            let note = format!("Pod was expected by PDB {namespace}/{name} to be deleted but it wasn't");
            self.recorder.warning(&**pod, "NotDeleted", note);
        }
        self.write(writer, budget, &plan.status).await?;
        Ok(plan.look_after.map_or(Next::Done, Next::After))
    }

    /// No disruption is allowed while the expected number of pods is unknown.
    async fn admit(&self, writer: &Writer, budget: &PodDisruptionBudget, message: String) -> ReconcileResult {
        let note = format!("Failed to calculate the number of expected pods: {message}");
        self.recorder.warning(budget, "CalculateExpectedPodCountFailed", note);
        self.write(writer, budget, &plan::failed(budget, &message, self.clock.now()))
            .await?;
        // Owners are not watched: look again, later and later.
        Err(ReconcileError::NotYet(message))
    }

    async fn write(
        &self,
        writer: &Writer,
        budget: &PodDisruptionBudget,
        status: &BudgetStatus,
    ) -> Result<(), ReconcileError> {
        if *status != budget.status {
            let patch = status_patch(&budget.metadata, &plan::status_json(&budget.status, status));
            writer
                .patch_status::<PodDisruptionBudget>(budget.meta(), &patch)
                .await?;
        }
        Ok(())
    }
}

/// Pods that said they were about to be disrupted.
struct Stale {
    pods: Cache<Pod>,
    clock: Clock,
}

impl Reconcile for Stale {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(pod) = self.pods.at(key) else {
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        match plan::stale_in(&pod, now) {
            None => Ok(Next::Done),
            Some(wait) if !wait.is_zero() => Ok(Next::After(wait)),
            Some(_) => {
                let conditions = json!({"conditions": plan::without_target(&pod, now)});
                writer
                    .patch_status::<Pod>(&pod.metadata, &status_patch(&pod.metadata, &conditions))
                    .await?;
                Ok(Next::Done)
            }
        }
    }
}
