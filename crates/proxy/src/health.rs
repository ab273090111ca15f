//! Whether rules keep up with the cluster (`/healthz`, `/livez`), and where load balancers ask whether this node has
//! endpoints of a service (health check node ports).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use orlop_base::clock::{Shift, elapsed};
use orlop_base::{Clock, Shutdown};
use orlop_serving::{Page, Pages, plain};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::plan::{HealthCheck, ServiceName};

/// Why a port is not served.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}: {error}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub error: std::io::Error,
}

/// The cluster autoscaler is about to take the node away. Upstream: `ToBeDeletedTaint`.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Whether the rules keep up with the cluster.
///
/// Healthy while starting up, that is until the first sync begins; later as long as every change and every failed sync
/// is followed by a sync that succeeds within twice the sync period, and the periodic sync is not overdue by as much.
/// A lost API server is no reason to be unhealthy: the rules stay, and load balancers would drain all nodes at once.
///
/// Upstream: pkg/proxy/healthcheck/proxy_health.go (v1.36). Differs from upstream: there a sync that fails or hangs is
/// noticed only once a change waits for it, and a first sync that never succeeds is not noticed at all.
pub struct Health {
    clock: Clock,
    metrics: Arc<Metrics>,
    syncs: Mutex<SyncTimes>,
}

struct SyncTimes {
    families: Vec<&'static str>,
    /// What waits longer than this means that something is wrong.
    timeout: Duration,
    /// A sync has begun: startup is over.
    has_begun: bool,
    last_updated: Option<jiff::Timestamp>,
    /// Since when something waits for a sync that succeeds.
    oldest_pending: Option<jiff::Timestamp>,
    /// When the next sync begins even if nothing changes.
    next_due: Option<jiff::Timestamp>,
    /// The node is there and there to stay.
    node_eligible: bool,
}

impl SyncTimes {
    fn is_healthy(&self, now: jiff::Timestamp) -> bool {
        let is_late = |since: jiff::Timestamp| elapsed(since, now) >= self.timeout;
        !self.has_begun || !(self.oldest_pending.is_some_and(is_late) || self.next_due.is_some_and(is_late))
    }
}

impl Health {
    /// Healthy, and the node not known yet. `sync_period` is that of the mode in use.
    pub fn new(clock: Clock, sync_period: Duration, metrics: Arc<Metrics>) -> Health {
        Health {
            clock,
            metrics,
            syncs: Mutex::new(SyncTimes {
                families: vec![],
                timeout: sync_period.saturating_mul(2),
                has_begun: false,
                last_updated: None,
                oldest_pending: None,
                next_due: None,
                node_eligible: false,
            }),
        }
    }

    /// Another mode is in use, with the period in which it syncs.
    pub fn set_mode(&self, families: Vec<&'static str>, sync_period: Duration) {
        let mut syncs = self.syncs.lock();
        syncs.families = families;
        syncs.timeout = sync_period.saturating_mul(2);
    }

    /// Whether the node may get traffic: `/healthz` says so, `/livez` does not care.
    pub fn set_node_eligible(&self, is_eligible: bool) {
        self.syncs.lock().node_eligible = is_eligible;
    }

    /// A change waits for a sync, or a sync failed.
    pub fn queued(&self) {
        let now = self.clock.now();
        self.syncs.lock().oldest_pending.get_or_insert(now);
    }

    /// A sync begins: until it succeeds, something waits. What came in while starting up waits from now on.
    pub fn sync_begun(&self) {
        let now = self.clock.now();
        let mut syncs = self.syncs.lock();
        match std::mem::replace(&mut syncs.has_begun, true) {
            false => syncs.oldest_pending = Some(now),
            true => drop(syncs.oldest_pending.get_or_insert(now)),
        }
    }

    /// A sync succeeded; the next one is due within `next`, whatever happens.
    pub fn updated(&self, next: Duration) {
        let now = self.clock.now();
        let mut syncs = self.syncs.lock();
        syncs.has_begun = true;
        syncs.oldest_pending = None;
        syncs.last_updated = Some(now);
        syncs.next_due = Some(now.later(next));
    }

    /// Whether the rules keep up.
    pub fn is_healthy(&self) -> bool {
        self.syncs.lock().is_healthy(self.clock.now())
    }

    fn page(&self, is_healthz: bool) -> Page {
        let now = self.clock.now();
        let syncs = self.syncs.lock();
        let healthy = syncs.is_healthy(now);
        let good = healthy && (syncs.node_eligible || !is_healthz);
        let updated = match good {
            true => Some(now),
            false => syncs.last_updated,
        };
        let time = |at: Option<jiff::Timestamp>| at.map_or("0001-01-01T00:00:00Z".to_string(), |at| at.to_string());
        let family = |family: &&str| {
            let status = json!({"lastUpdated": time(syncs.last_updated), "healthy": healthy});
            (family.to_string(), status)
        };
        let mut body = json!({
            "lastUpdated": time(updated), "currentTime": time(Some(now)), "healthy": healthy,
            "status": syncs.families.iter().map(family).collect::<serde_json::Map<String, Value>>(),
        });
        if is_healthz {
            body["nodeEligible"] = syncs.node_eligible.into();
        }
        let mut page = Page::json(body.to_string().into());
        page.code = if good { 200 } else { 503 };
        self.metrics.answered(is_healthz, page.code);
        page
    }
}

/// The pages of the healthz port.
impl Pages for Health {
    fn show(&self, path: &str, _: &str) -> Option<Page> {
        match path {
            "/healthz" => Some(self.page(true)),
            "/livez" => Some(self.page(false)),
            _ => None,
        }
    }
}

/// The health check node ports that are open now: there load balancers ask whether this node has endpoints of a service.
pub struct HealthPorts {
    health: Arc<Health>,
    addresses: Vec<IpAddr>,
    open: BTreeMap<ServiceName, OpenPort>,
}

/// Closed when dropped.
struct OpenPort {
    port: u16,
    endpoints: Arc<Mutex<usize>>,
    shutdown: Shutdown,
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

struct EndpointPages {
    service: ServiceName,
    endpoints: Arc<Mutex<usize>>,
    health: Arc<Health>,
}

impl Pages for EndpointPages {
    fn show(&self, _: &str, _: &str) -> Option<Page> {
        let (endpoints, healthy) = (*self.endpoints.lock(), self.health.is_healthy());
        let body = json!({
            "service": {"namespace": &*self.service.namespace, "name": &*self.service.name},
            "localEndpoints": endpoints, "serviceProxyHealthy": healthy,
        });
        let mut page = Page::json(body.to_string().into());
        page.code = if endpoints > 0 && healthy { 200 } else { 503 };
        page.headers = vec![
            ("x-content-type-options", "nosniff".to_string()),
            ("x-load-balancing-endpoint-weight", endpoints.to_string()),
        ];
        Some(page)
    }
}

impl HealthPorts {
    pub fn new(health: Arc<Health>, addresses: Vec<IpAddr>) -> HealthPorts {
        HealthPorts {
            health,
            addresses,
            open: BTreeMap::new(),
        }
    }

    /// Opens and closes ports, and updates their counts of endpoints, as the plan has it. Ports that can't be opened come
    /// back; they are tried again at the next call.
    pub async fn sync(&mut self, desired: &BTreeMap<ServiceName, HealthCheck>) -> Vec<(ServiceName, ListenError)> {
        self.open
            .retain(|name, open| desired.get(name).is_some_and(|check| check.port == open.port));
        let mut failed = vec![];
        for (name, check) in desired {
            if let Some(open) = self.open.get(name) {
                *open.endpoints.lock() = check.local_endpoints;
                continue;
            }
            match self.start(name, check).await {
                Ok(open) => {
                    self.open.insert(name.clone(), open);
                }
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        failed
    }

    async fn start(&self, name: &ServiceName, check: &HealthCheck) -> Result<OpenPort, ListenError> {
        let endpoints = Arc::new(Mutex::new(check.local_endpoints));
        let open = OpenPort {
            port: check.port,
            endpoints: endpoints.clone(),
            shutdown: Shutdown::default(),
        };
        for ip in &self.addresses {
            let address = SocketAddr::new(*ip, check.port);
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|error| ListenError { address, error })?;
            let pages = Arc::new(EndpointPages {
                service: name.clone(),
                endpoints: endpoints.clone(),
                health: self.health.clone(),
            });
            orlop_base::spawn(plain::serve(listener, pages, open.shutdown.clone()));
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    fn health() -> (Clock, Arc<Health>) {
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let health = Health::new(clock.clone(), PERIOD, Arc::default());
        health.set_mode(vec!["IPv4"], PERIOD);
        (clock, Arc::new(health))
    }

    /// Of `/healthz` and `/livez`.
    fn codes(health: &Health) -> (u16, u16) {
        let code = |path| health.show(path, "").unwrap().code;
        (code("/healthz"), code("/livez"))
    }

    #[test]
    fn changes_that_wait_too_long_are_unhealthy() {
        let (clock, health) = health();
        assert_eq!(codes(&health), (503, 200), "the node is not known yet");
        health.set_node_eligible(true);
        health.updated(PERIOD);
        assert_eq!(codes(&health), (200, 200));
        health.queued();
        clock.advance(Duration::from_secs(59));
        assert_eq!(codes(&health), (200, 200));
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(&health), (503, 503));
        health.updated(PERIOD);
        assert_eq!(codes(&health), (200, 200));
        let page = health.show("/healthz", "").unwrap();
        let body: Value = serde_json::from_slice(&page.body).unwrap();
        assert_eq!(body["nodeEligible"], json!(true));
        assert_eq!(body["status"]["IPv4"]["healthy"], json!(true));
        assert!(health.show("/other", "").is_none());
    }

    #[test]
    fn a_node_about_to_go_is_alive_but_gets_no_traffic() {
        let (_, health) = health();
        health.updated(PERIOD);
        health.set_node_eligible(true);
        assert_eq!(codes(&health), (200, 200));
        health.set_node_eligible(false);
        assert_eq!(codes(&health), (503, 200));
        health.set_node_eligible(true);
        assert_eq!(codes(&health), (200, 200));
    }

    #[test]
    fn an_overdue_periodic_sync_is_unhealthy() {
        let (clock, health) = health();
        health.set_node_eligible(true);
        health.updated(PERIOD);
        clock.advance(Duration::from_secs(89));
        assert_eq!(codes(&health), (200, 200));
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(&health), (503, 503), "the loop is stalled");
        health.updated(PERIOD);
        assert_eq!(codes(&health), (200, 200));
    }

    #[test]
    fn startup_ends_with_the_first_sync() {
        let (clock, health) = health();
        health.set_node_eligible(true);
        health.queued();
        clock.advance(Duration::from_secs(600));
        assert_eq!(codes(&health), (200, 200), "waits for the API server");
        health.sync_begun();
        clock.advance(Duration::from_secs(59));
        assert_eq!(codes(&health), (200, 200));
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(&health), (503, 503), "the first sync hangs or fails");
        health.sync_begun();
        health.updated(PERIOD);
        assert_eq!(codes(&health), (200, 200));
    }

    #[test]
    fn a_mode_has_its_own_period() {
        let (clock, health) = health();
        health.set_node_eligible(true);
        health.set_mode(vec!["IPv4"], Duration::from_secs(300));
        health.updated(Duration::from_secs(300));
        health.queued();
        clock.advance(Duration::from_secs(599));
        assert_eq!(codes(&health), (200, 200));
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(&health), (503, 503));
    }

    async fn ask(port: u16) -> Option<String> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    #[tokio::test]
    async fn load_balancers_learn_whether_there_are_endpoints_here() {
        let (_, health) = health();
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let port = TcpListener::bind((loopback, 0))
            .await
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut ports = HealthPorts::new(health, vec![loopback]);
        let desired = |local_endpoints| {
            let name = ServiceName::new("default", "web");
            BTreeMap::from([(name, HealthCheck { port, local_endpoints })])
        };
        assert!(ports.sync(&desired(2)).await.is_empty());
        let answer = ask(port).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-load-balancing-endpoint-weight: 2"), "{answer}");
        assert!(answer.contains("\"localEndpoints\":2"), "{answer}");
        assert!(ports.sync(&desired(0)).await.is_empty());
        assert!(ask(port).await.unwrap().starts_with("HTTP/1.1 503"));
        let mut other = HealthPorts::new(ports.health.clone(), vec![loopback]);
        assert_eq!(other.sync(&desired(1)).await.len(), 1, "the port is taken");
        assert!(ports.sync(&BTreeMap::new()).await.is_empty());
        while ask(port).await.is_some() {
            tokio::task::yield_now().await;
        }
    }
}
