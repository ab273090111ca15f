//! What nodes have answered, for a few seconds: questions in a row, and those of many clients at once, cost one each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::summary::NodeUsage;

/// An answer serves for this long; so does its absence, or a dead node would hold up everyone who asks.
const KEEP: Duration = Duration::from_secs(10);
/// Unless a pod is asked for that it does not have: then it serves for this long.
const KEEP_WITHOUT: Duration = Duration::from_secs(2);
/// Answers that nobody asks for any more are dropped after about this long.
const SWEEP: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Kept {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// By node. Whoever asks a node holds its slot, and others wait for the same answer.
    slots: HashMap<String, Arc<Slot>>,
    sweeping: bool,
}

type Slot = tokio::sync::Mutex<Option<CachedUsage>>;

struct CachedUsage {
    at: Instant,
    usage: Option<Arc<NodeUsage>>,
}

impl CachedUsage {
    fn serves(&self, pods: &[String], now: Instant) -> bool {
        let has = |usage: &Arc<NodeUsage>| pods.iter().all(|pod| usage.pods.contains_key(pod));
        let keep = match self.usage.as_ref().is_none_or(has) {
            true => KEEP,
            false => KEEP_WITHOUT,
        };
        now.duration_since(self.at) < keep
    }
}

impl Kept {
    /// What a node said of late; else what it says to `ask`.
    pub(super) async fn of<F>(&self, node: &str, pods: &[String], ask: impl FnOnce() -> F) -> Option<Arc<NodeUsage>>
    where
        F: Future<Output = Option<NodeUsage>>,
    {
        let slot = self.slot(node);
        let mut answer = slot.lock().await;
        if let Some(kept) = &*answer
            && kept.serves(pods, Instant::now())
        {
            return kept.usage.clone();
        }
        let usage = ask().await.map(Arc::new);
        *answer = Some(CachedUsage {
            at: Instant::now(),
            usage: usage.clone(),
        });
        usage
    }

    fn slot(&self, node: &str) -> Arc<Slot> {
        let mut shared = self.shared.lock();
        if !shared.sweeping {
            shared.sweeping = true;
            tokio::spawn(sweep(self.shared.clone()));
        }
        if let Some(slot) = shared.slots.get(node) {
            return slot.clone();
        }
        shared.slots.entry(node.to_string()).or_default().clone()
    }
}

/// Ends when there is nothing left to drop: a server that nobody asks has no task for it.
async fn sweep(shared: Arc<Mutex<Shared>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let mut shared = shared.lock();
        shared.sweep(Instant::now());
        if shared.slots.is_empty() {
            shared.sweeping = false;
            return;
        }
    }
}

impl Shared {
    fn sweep(&mut self, now: Instant) {
        self.slots.retain(|_, slot| match slot.try_lock() {
            Ok(answer) => answer.as_ref().is_some_and(|kept| now.duration_since(kept.at) < SWEEP),
            // In use.
            Err(_) => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use orlop_base::clock::Shift;

    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::usage::summary::PodUsage;

    fn usage(pods: &[&str]) -> NodeUsage {
        let pod = |name: &&str| {
            let usage = PodUsage {
                at: jiff::Timestamp::UNIX_EPOCH,
                containers: vec![],
            };
            (name.to_string(), usage)
        };
        NodeUsage {
            whole: None,
            pods: pods.iter().map(pod).collect(),
        }
    }

    #[test]
    fn answers_serve_for_a_while() {
        let at = Instant::now();
        let serves = |usage: Option<NodeUsage>, pod: &str, seconds| {
            let usage = usage.map(Arc::new);
            let answer = CachedUsage { at, usage };
            answer.serves(&[pod.to_string()], at + Duration::from_secs(seconds))
        };
        assert!(serves(Some(usage(&["d/p"])), "d/p", 9) && !serves(Some(usage(&["d/p"])), "d/p", 10));
        assert!(serves(Some(usage(&["d/p"])), "d/new", 1) && !serves(Some(usage(&["d/p"])), "d/new", 2));
        assert!(
            serves(None, "d/p", 9) && !serves(None, "d/p", 10),
            "a node that does not answer"
        );
    }

    #[tokio::test]
    async fn many_at_once_cost_one_question_and_nothing_stays() {
        let (kept, asked) = (Kept::default(), AtomicUsize::new(0));
        let ask = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Some(usage(&["d/p"]))
        };
        let pods = ["d/p".to_string()];
        let (first, second) = tokio::join!(kept.of("n", &pods, ask), kept.of("n", &[], ask));
        assert!(first.is_some() && second.is_some());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let now = Instant::now();
        let mut shared = kept.shared.lock();
        shared.sweep(now.later(Duration::from_secs(50)));
        assert_eq!(shared.slots.len(), 1);
        shared.sweep(now.later(Duration::from_secs(61)));
        assert!(shared.slots.is_empty());
    }
}
