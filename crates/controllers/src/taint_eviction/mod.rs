//! Pods leave nodes with a `NoExecute` taint: at once, or when the time is up for which they tolerate it.
// Upstream: pkg/controller/tainteviction (v1.36)

mod plan;
#[cfg(test)]
mod tests;

use orlop_base::Clock;
use orlop_client::Error;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::time::Instant;

use self::plan::EvictionDecision;
use crate::objects::{Node, Pod};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, Writer, status_patch};

pub(crate) const DEF: Def = Def {
    name: "taint-eviction-controller",
    account: "node-controller",
    on_by_default: true,
    start,
};

const WORKERS: usize = 8;

struct Controller {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    recorder: Recorder,
    clock: Clock,
    /// Pods that will have to leave: their uids, and since when that is known.
    on_notice: Mutex<FxHashMap<Key, (String, Instant)>>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("noexec_taint_pod");
    let (nodes, pods) = (setup.cache::<Node>(), setup.cache::<Pod>());
    let (wake, known) = (queue.clone(), pods.clone());
    nodes.on_change(move |old, new| {
        let Some(node) = new.or(old) else { return };
        let same = match (old, new) {
            (Some(old), Some(new)) => plan::no_execute(old).eq(plan::no_execute(new)),
            (Some(one), None) | (None, Some(one)) => plan::no_execute(one).next().is_none(),
            (None, None) => true,
        };
        if !same {
            let pods = known.indexed(&node.metadata.name);
            pods.iter().for_each(|pod| wake.add(Key::from_object(&**pod)));
        }
    });
    let (wake, known) = (queue.clone(), nodes.clone());
    pods.on_change(move |old, new| match (old, new) {
        (Some(old), Some(new))
            if old.spec.node_name == new.spec.node_name && old.spec.tolerations == new.spec.tolerations => {}
        // Whoever is gone need not be remembered.
        (Some(pod), None) if !pod.spec.node_name.is_empty() => wake.add(Key::from_object(&**pod)),
        (_, Some(pod)) => {
            let node = known.get("", &pod.spec.node_name);
            if node.is_some_and(|node| plan::no_execute(&node).next().is_some()) {
                wake.add(Key::from_object(&**pod));
            }
        }
        _ => {}
    });
    let controller = Controller {
        nodes,
        pods,
        recorder: setup.recorder.clone(),
        clock: setup.clock.clone(),
        on_notice: Mutex::default(),
    };
    setup.run(queue, WORKERS, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(pod) = self.pods.at(key) else {
            self.on_notice.lock().remove(key);
            return Ok(Next::Done);
        };
        let node = self.nodes.get("", &pod.spec.node_name);
        let uid = &pod.metadata.uid;
        let on_notice = self
            .on_notice
            .lock()
            .get(key)
            .filter(|(of, _)| of == uid)
            .map(|(_, at)| *at);
        match plan::plan(&pod, node.as_deref(), on_notice, Instant::now(), self.clock.now()) {
            EvictionDecision::Stays => {
                self.on_notice.lock().remove(key);
                if on_notice.is_some() && !pod.metadata.is_deleted() {
                    let note = format!("Cancelling deletion of Pod {key}");
                    self.recorder.normal(&*pod, "TaintManagerEviction", note);
                }
                Ok(Next::Done)
            }
            EvictionDecision::Goes { after, .. } if after.is_zero() => self.evict(key, &pod, writer).await,
            EvictionDecision::Goes { since, after } => {
                self.on_notice.lock().insert(key.clone(), (uid.clone(), since));
                Ok(Next::After(after))
            }
        }
    }
}

impl Controller {
    async fn evict(&self, key: &Key, pod: &Pod, writer: &Writer) -> ReconcileResult {
        let message = "Taint manager: deleting due to NoExecute taint";
        let target = pod.disruption_target("DeletionByTaintManager", message, self.clock.now());
        if let Some(conditions) = target {
            let patch = status_patch(&pod.metadata, &json!({"conditions": conditions}));
            match writer.patch_status::<Pod>(&pod.metadata, &patch).await {
                Ok(_) => {}
                Err(Error::NotFound(_)) => return Ok(Next::Done),
                Err(error) => return Err(error.into()),
            }
        }
        self.recorder
            .normal(pod, "TaintManagerEviction", format!("Marking for deletion Pod {key}"));
        match writer.delete::<Pod>(&pod.metadata).await {
            Ok(()) | Err(Error::NotFound(_)) => {}
            // After a conflict, too: what it was about shows in the next reconcile.
            Err(error) => return Err(error.into()),
        }
        self.on_notice.lock().remove(key);
        Ok(Next::Done)
    }
}
