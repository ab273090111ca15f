//! What the scheduler shows on its own port.
// Upstream: cmd/kube-scheduler/app/server.go (v1.36)

use std::sync::Arc;

use bytes::Bytes;
use orlop_base::Shutdown;
use orlop_serving::health::{self, Check};
use orlop_serving::{Page, Pages};
use serde_json::{Value, json};

use crate::config::{self, Config};
use crate::metrics::Metrics;

/// kube-scheduler's port.
pub const DEFAULT_PORT: u16 = 10259;

/// `/metrics`, `/configz`, `/healthz`, `/livez` and `/readyz` of one scheduler.
pub struct SchedulerPages {
    metrics: Arc<Metrics>,
    configz: Bytes,
    leader_elect: bool,
    shutdown: Shutdown,
}

impl SchedulerPages {
    /// `metrics` and `shutdown` are those that the scheduler is started with: checks follow them.
    pub fn new(metrics: Arc<Metrics>, config: &Config, shutdown: Shutdown) -> SchedulerPages {
        let leader_elect = config.leader_election.leader_elect;
        SchedulerPages {
            metrics,
            configz: configz(config),
            leader_elect,
            shutdown,
        }
    }

    fn checks(&self) -> Vec<Check> {
        let check = |name, at, passes| Check { name, at, passes };
        let mut checks = vec![check("ping", &["healthz", "livez"][..], true)];
        if self.leader_elect {
            let is_healthy = self.metrics.is_lease_healthy();
            checks.push(check("leaderElection", &["healthz", "readyz"][..], is_healthy));
        }
        checks.push(check("shutdown", &["readyz"][..], !self.shutdown.is_triggered()));
        checks.push(check("sched-handler-sync", &["readyz"][..], self.metrics.is_synced()));
        checks
    }
}

impl Pages for SchedulerPages {
    fn show(&self, path: &str, query: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page::metrics(self.metrics.render())),
            "/configz" => Some(Page::json(self.configz.clone())),
            _ => health::respond(&self.checks(), path, query).map(|(code, text)| Page::plain(code, text)),
        }
    }
}

fn configz(config: &Config) -> Bytes {
    let document: Value = serde_saphyr::from_str(&config::render(config)).expect("what is rendered can be read");
    serde_json::to_vec(&json!({"componentconfig": document}))
        .expect("plain JSON")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let (metrics, shutdown) = (Arc::new(Metrics::default()), Shutdown::default());
        let pages = SchedulerPages::new(metrics.clone(), &Config::default(), shutdown.clone());
        let show = |path: &str| {
            let page = pages.show(path, "").unwrap();
            (page.code, String::from_utf8(page.body.to_vec()).unwrap())
        };
        assert!(show("/metrics").1.contains("# TYPE scheduler_pending_pods gauge\n"));
        assert!(show("/metrics").1.contains("process_open_fds"));
        assert!(show("/configz").1.starts_with("{\"componentconfig\":{"));
        assert_eq!(show("/healthz").1, "ok");
        let waiting = "[+]leaderElection ok\n[+]shutdown ok\n[-]sched-handler-sync failed: reason withheld\n\
                       readyz check failed\n";
        assert_eq!(show("/readyz"), (500, waiting.to_string()));
        metrics.set_synced(true);
        assert_eq!(show("/readyz").0, 200);
        shutdown.trigger();
        assert_eq!(show("/readyz").0, 500);
        assert!(pages.show("/none", "").is_none());
    }
}
