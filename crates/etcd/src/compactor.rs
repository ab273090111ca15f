//! Compaction that nobody asks for: `--auto-compaction-mode` and `--auto-compaction-retention`.
//!
//! Upstream: server/etcdserver/api/v3compactor.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use orlop_store::Revision;

use crate::server::Server;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    Off,
    /// What is younger.
    Periodic(Duration),
    /// So many revisions.
    Revisions(u64),
}

/// How often the revisions to keep are counted.
const REVISIONS_EVERY: Duration = Duration::from_secs(300);
/// Between two looks at most.
const LONGEST: Duration = Duration::from_secs(3600);
/// Looks within the time that is kept.
const LOOKS: u32 = 10;

/// The revisions at past looks, the oldest first.
struct Looks {
    seen: VecDeque<Revision>,
    kept: usize,
}

impl Looks {
    /// Adds what is seen now; the revision before which nothing is kept, once there is one that old.
    fn look(&mut self, revision: Revision) -> Option<Revision> {
        self.seen.push_back(revision);
        (self.seen.len() > self.kept).then(|| self.seen.pop_front()).flatten()
    }
}

fn plan(mode: AutoCompaction) -> Option<(Duration, usize)> {
    match mode {
        AutoCompaction::Off => None,
        AutoCompaction::Revisions(_) => Some((REVISIONS_EVERY, 0)),
        AutoCompaction::Periodic(age) => {
            let every = age
                .checked_div(LOOKS)
                .unwrap_or(age)
                .clamp(Duration::from_millis(10), LONGEST);
            let kept = age.as_millis().div_ceil(every.as_millis().max(1));
            Some((every, usize::try_from(kept).unwrap_or(usize::MAX)))
        }
    }
}

/// Compacts now and then; for ever.
pub(crate) async fn run(server: Arc<Server>, mode: AutoCompaction) {
    let Some((every, kept)) = plan(mode) else {
        return;
    };
    let mut looks = Looks {
        seen: VecDeque::new(),
        kept,
    };
    loop {
        tokio::time::sleep(every).await;
        let now = server.revision();
        let at = match mode {
            AutoCompaction::Revisions(keep) => now.checked_sub(keep),
            _ => looks.look(now),
        };
        let Some(at) = at.filter(|at| *at > server.kv.compacted()) else {
            continue;
        };
        match server.compact_at(at).await {
            Ok(()) => tracing::debug!(revision = at, "compacted history"),
            Err(error) => tracing::warn!(%error, "failed to compact history; trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_younger_than_the_retention_is_kept() {
        let (every, kept) = plan(AutoCompaction::Periodic(Duration::from_secs(300))).unwrap();
        assert_eq!((every, kept), (Duration::from_secs(30), 10));
        let mut looks = Looks {
            seen: VecDeque::new(),
            kept,
        };
        let compacted: Vec<_> = (1..=13).map(|n| looks.look(n * 100)).collect();
        assert_eq!(compacted[..10], [None; 10]);
        assert_eq!(compacted[10..], [Some(100), Some(200), Some(300)]);
        let (every, kept) = plan(AutoCompaction::Periodic(Duration::from_secs(86_400))).unwrap();
        assert_eq!((every, kept), (LONGEST, 24));
        assert_eq!(plan(AutoCompaction::Off), None);
    }
}
