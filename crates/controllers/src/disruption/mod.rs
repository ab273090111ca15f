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

use self::owners::{Owners, Trouble, Wanted};
use self::plan::Plan;
use crate::machinery::{Cache, Def, Failure, Key, Next, Outcome, Reconcile, Recorder, Setup, Turn, status_patch};
use crate::objects::pod_disruption_budget::{BudgetStatus, PodDisruptionBudget};
use crate::objects::{Kind, Pod};

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
            wake.add(Key::of(&**budget));
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
                wake.add(Key::of(&*budget));
            }
        }
        if new.is_some_and(|pod| pod.condition("DisruptionTarget").is_some_and(|target| target.is_true())) {
            wake_pod.add(Key::of(&**pod));
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
    async fn reconcile(&self, key: &Key, turn: &Turn) -> Outcome {
        let Some(budget) = self.budgets.at(key) else {
            return Ok(Next::Done);
        };
        let mut pods = self.pods.list_in(&key.namespace);
        pods.retain(|pod| budget.covers(&pod.metadata));
        if pods.is_empty() {
            self.recorder.normal(&*budget, "NoPods", "No matching pods found");
        }
        match self.plan(turn, &budget, &pods).await {
            Ok(plan) => self.apply(turn, &budget, plan).await,
            Err(Trouble::Told(message)) => self.admit(turn, &budget, message).await,
            Err(trouble) => {
                let failure = Failure::from(trouble);
                self.admit(turn, &budget, failure.to_string()).await.and(Err(failure))
            }
        }
    }
}

impl Budgets {
    async fn plan(&self, turn: &Turn, budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> Result<Plan, Trouble> {
        let mut wanted = Wanted {
            pods: 0,
            unmanaged: vec![],
        };
        if plan::asks_owners(budget) {
            wanted = self.owners.wanted(turn, pods).await?;
        }
        if !wanted.unmanaged.is_empty() {
            let note = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the status of the \
                PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
                please set \".spec.minAvailable\" field of the PDB to an integer value.";
            self.recorder.warning(budget, "UnmanagedPods", note);
        }
        plan::plan(budget, pods, wanted.pods, self.clock.now()).map_err(Trouble::Told)
    }

    async fn apply(&self, turn: &Turn, budget: &PodDisruptionBudget, plan: Plan) -> Outcome {
        let Key { namespace, name } = Key::of(budget);
        for pod in &plan.not_deleted {
            let note = format!("Pod was expected by PDB {namespace}/{name} to be deleted but it wasn't");
            self.recorder.warning(&**pod, "NotDeleted", note);
        }
        self.write(turn, budget, &plan.status).await?;
        Ok(plan.look_after.map_or(Next::Done, Next::After))
    }

    /// Nothing may be disrupted as long as nobody knows what is wanted.
    async fn admit(&self, turn: &Turn, budget: &PodDisruptionBudget, message: String) -> Outcome {
        let note = format!("Failed to calculate the number of expected pods: {message}");
        self.recorder.warning(budget, "CalculateExpectedPodCountFailed", note);
        self.write(turn, budget, &plan::failed(budget, &message, self.clock.now()))
            .await?;
        // Owners are not watched: look again, later and later.
        Err(Failure::NotYet(message))
    }

    async fn write(&self, turn: &Turn, budget: &PodDisruptionBudget, status: &BudgetStatus) -> Result<(), Failure> {
        if *status != budget.status {
            let patch = status_patch(&budget.metadata, &plan::status_json(&budget.status, status));
            turn.patch_status::<PodDisruptionBudget>(budget.meta(), &patch).await?;
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
    async fn reconcile(&self, key: &Key, turn: &Turn) -> Outcome {
        let Some(pod) = self.pods.at(key) else {
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        match plan::stale_in(&pod, now) {
            None => Ok(Next::Done),
            Some(wait) if !wait.is_zero() => Ok(Next::After(wait)),
            Some(_) => {
                let conditions = json!({"conditions": plan::without_target(&pod, now)});
                turn.patch_status::<Pod>(&pod.metadata, &status_patch(&pod.metadata, &conditions))
                    .await?;
                Ok(Next::Done)
            }
        }
    }
}
