//! What `/healthz` checks beyond that the server answers: that the sync loop goes round, and that log lines get through.
// Upstream: pkg/kubelet/kubelet.go SyncLoopHealthCheck, staging/src/k8s.io/apiserver/pkg/server/healthz LogHealthz (v1.36)

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_serving::health::Check;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::blocking;

/// An iteration of the sync loop that takes longer than this has hung.
const SYNC_LOOP_MAX: Duration = Duration::from_secs(5 * 60);
const LOG_FLUSH_EVERY: Duration = Duration::from_secs(60);
/// Without a flush for so long, logging is blocked.
const LOG_FLUSH_MAX: Duration = Duration::from_secs(2 * 60);

/// The kubelet's own health. Cheap to clone; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    inner: Arc<Inner>,
}

/// Checks pass until the first time that what they follow has happened.
#[derive(Debug, Default)]
struct Inner {
    sync_loop_entered: Mutex<Option<Instant>>,
    log_flushed: Mutex<Option<Instant>>,
}

impl Health {
    /// The sync loop begins an iteration.
    pub fn enter_sync_loop(&self) {
        *self.inner.sync_loop_entered.lock() = Some(Instant::now());
    }

    /// Flushes the log every minute until the shutdown. Whoever logs holds the lock of the standard error output while
    /// writing to it: if nobody reads the other end of a full pipe, the flush waits as long as they do.
    pub async fn follow_log(&self, shutdown: Shutdown) {
        let flush = || async {
            let _ = blocking::run_io(|| io::stderr().lock().flush()).await;
        };
        tokio::select! {
            () = self.follow_flushes(flush) => {}
            () = shutdown.wait() => {}
        }
    }

    async fn follow_flushes<F: Future<Output = ()>>(&self, flush: impl Fn() -> F) {
        loop {
            self.inner.log_flushed.lock().get_or_insert_with(Instant::now);
            flush().await;
            *self.inner.log_flushed.lock() = Some(Instant::now());
            tokio::time::sleep(LOG_FLUSH_EVERY).await;
        }
    }

    pub(super) fn checks(&self) -> [Check; 3] {
        let within = |last: &Mutex<Option<Instant>>, most| last.lock().is_none_or(|last| last.elapsed() < most);
        let at = &["healthz", "livez", "readyz"];
        let check = |name, passes| Check { name, at, passes };
        [
            // That it is answered is all that this one says.
            check("ping", true),
            check("log", within(&self.inner.log_flushed, LOG_FLUSH_MAX)),
            check("syncloop", within(&self.inner.sync_loop_entered, SYNC_LOOP_MAX)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    /// Names of the checks that fail.
    fn failing(health: &Health) -> Vec<&'static str> {
        let checks = health.checks().into_iter();
        checks.filter(|check| !check.passes).map(|check| check.name).collect()
    }

    async fn pass(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_sync_loop_that_hangs_fails_its_check_until_it_goes_round_again() {
        let health = Health::default();
        pass(3600).await;
        assert_eq!(failing(&health), [""; 0], "before the first iteration");
        health.enter_sync_loop();
        pass(299).await;
        assert_eq!(failing(&health), [""; 0]);
        pass(1).await;
        assert_eq!(failing(&health), ["syncloop"]);
        health.enter_sync_loop();
        assert_eq!(failing(&health), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_blocks_fails_its_check_until_lines_get_through() {
        let (blocked, open) = (watch::Sender::new(false), Health::default());
        let (health, is_blocked) = (open.clone(), blocked.subscribe());
        let following = tokio::spawn(async move {
            let flush = || {
                let mut is_blocked = is_blocked.clone();
                async move {
                    let _ = is_blocked.wait_for(|blocked| !blocked).await;
                }
            };
            health.follow_flushes(flush).await;
        });
        pass(3630).await;
        assert_eq!(failing(&open), [""; 0], "flushed every minute");
        blocked.send_replace(true);
        pass(60).await;
        assert_eq!(failing(&open), [""; 0], "the last flush is not long ago");
        pass(120).await;
        assert_eq!(failing(&open), ["log"]);
        blocked.send_replace(false);
        pass(1).await;
        assert_eq!(failing(&open), [""; 0]);
        following.abort();
    }

    #[tokio::test]
    async fn the_real_log_is_flushed() {
        let (health, shutdown) = (Health::default(), Shutdown::default());
        let following = tokio::spawn({
            let (health, shutdown) = (health.clone(), shutdown.clone());
            async move { health.follow_log(shutdown).await }
        });
        let is_flushed = || health.inner.log_flushed.lock().is_some();
        crate::testing::until("the log is flushed", is_flushed, true).await;
        assert_eq!(failing(&health), [""; 0]);
        shutdown.trigger();
        following.await.unwrap();
    }
}
