//! Whether rules keep up with the cluster (`/healthz`, `/livez`), and where load balancers ask whether this node has
//! endpoints of a service (health check node ports).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use orlop_base::{Clock, Shutdown};
use orlop_serving::{Page, Pages, plain};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::plan::{HealthCheck, ServiceName};

/// The cluster autoscaler is about to take the node away. Upstream: `ToBeDeletedTaint`.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

pub struct Health {
    clock: Clock,
    /// Changes that wait longer than this mean that something is wrong.
    timeout: Duration,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    families: Vec<&'static str>,
    last_updated: Option<jiff::Timestamp>,
    oldest_waiting: Option<jiff::Timestamp>,
    /// The node is there and there to stay.
    eligible: bool,
}

impl Health {
    pub fn new(clock: Clock, timeout: Duration, metrics: Arc<Metrics>) -> Health {
        Health {
            clock,
            timeout,
            metrics,
            state: Mutex::default(),
        }
    }

    pub fn set_families(&self, families: Vec<&'static str>) {
        self.state.lock().families = families;
    }

    pub fn set_eligible(&self, eligible: bool) {
        self.state.lock().eligible = eligible;
    }

    pub fn queued(&self) {
        let now = self.clock.now();
        self.state.lock().oldest_waiting.get_or_insert(now);
    }

    pub fn updated(&self) {
        let mut state = self.state.lock();
        state.oldest_waiting = None;
        state.last_updated = Some(self.clock.now());
    }

    pub fn is_healthy(&self) -> bool {
        let state = self.state.lock();
        let late = |since: jiff::Timestamp| self.clock.now().duration_since(since).unsigned_abs() >= self.timeout;
        state.last_updated.is_none() || !state.oldest_waiting.is_some_and(late)
    }

    fn page(&self, is_healthz: bool) -> Page {
        let healthy = self.is_healthy();
        let now = self.clock.now();
        let state = self.state.lock();
        let good = healthy && (state.eligible || !is_healthz);
        let updated = match good {
            true => Some(now),
            false => state.last_updated,
        };
        let time = |at: Option<jiff::Timestamp>| at.map_or("0001-01-01T00:00:00Z".to_string(), |at| at.to_string());
        let family = |family: &&str| {
            let status = json!({"lastUpdated": time(state.last_updated), "healthy": healthy});
            (family.to_string(), status)
        };
        let mut body = json!({
            "lastUpdated": time(updated), "currentTime": time(Some(now)), "healthy": healthy,
            "status": state.families.iter().map(family).collect::<serde_json::Map<String, Value>>(),
        });
        if is_healthz {
            body["nodeEligible"] = state.eligible.into();
        }
        let mut page = Page::json(body.to_string().into());
        page.code = if good { 200 } else { 503 };
        self.metrics.answered(is_healthz, page.code);
        page
    }
}

/// What stands on the healthz port.
impl Pages for Health {
    fn show(&self, path: &str, _: &str) -> Option<Page> {
        match path {
            "/healthz" => Some(self.page(true)),
            "/livez" => Some(self.page(false)),
            _ => None,
        }
    }
}

/// The health check node ports that are open now.
pub struct HealthPorts {
    health: Arc<Health>,
    addresses: Vec<IpAddr>,
    open: BTreeMap<ServiceName, Open>,
}

struct Open {
    port: u16,
    endpoints: Arc<Mutex<usize>>,
    shutdown: Shutdown,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

struct Answers {
    service: ServiceName,
    endpoints: Arc<Mutex<usize>>,
    health: Arc<Health>,
}

impl Pages for Answers {
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

    /// Opens, closes and tells as the plan has it. What can't be opened comes back: the service, and why.
    pub async fn sync(&mut self, wanted: &BTreeMap<ServiceName, HealthCheck>) -> Vec<(ServiceName, String)> {
        let still = |name: &ServiceName, open: &mut Open| wanted.get(name).is_some_and(|check| check.port == open.port);
        self.open.retain(still);
        let mut failed = vec![];
        for (name, check) in wanted {
            if let Some(open) = self.open.get(name) {
                *open.endpoints.lock() = check.local_endpoints;
                continue;
            }
            match self.start(name, check).await {
                Ok(open) => {
                    self.open.insert(name.clone(), open);
                }
                Err(why) => failed.push((name.clone(), why)),
            }
        }
        failed
    }

    async fn start(&self, name: &ServiceName, check: &HealthCheck) -> Result<Open, String> {
        let endpoints = Arc::new(Mutex::new(check.local_endpoints));
        let open = Open {
            port: check.port,
            endpoints: endpoints.clone(),
            shutdown: Shutdown::default(),
        };
        for ip in &self.addresses {
            let address = SocketAddr::new(*ip, check.port);
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|e| format!("{address} can't be listened on: {e}"))?;
            let pages = Arc::new(Answers {
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

    fn health() -> (Clock, Arc<Health>) {
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let health = Health::new(clock.clone(), Duration::from_secs(60), Arc::default());
        health.set_families(vec!["IPv4"]);
        (clock, Arc::new(health))
    }

    #[test]
    fn changes_that_wait_too_long_are_unhealthy() {
        let (clock, health) = health();
        let codes = |health: &Health| {
            let code = |path| health.show(path, "").unwrap().code;
            (code("/healthz"), code("/livez"))
        };
        assert_eq!(codes(&health), (503, 200), "the node is not known yet");
        health.set_eligible(true);
        health.updated();
        assert_eq!(codes(&health), (200, 200));
        health.queued();
        clock.advance(Duration::from_secs(59));
        assert_eq!(codes(&health), (200, 200));
        clock.advance(Duration::from_secs(1));
        assert_eq!(codes(&health), (503, 503));
        health.updated();
        assert_eq!(codes(&health), (200, 200));
        let page = health.show("/healthz", "").unwrap();
        let body: Value = serde_json::from_slice(&page.body).unwrap();
        assert_eq!(body["nodeEligible"], json!(true));
        assert_eq!(body["status"]["IPv4"]["healthy"], json!(true));
        assert!(health.show("/other", "").is_none());
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
        let wanted = |local_endpoints| {
            let name = ServiceName::new("default", "web");
            BTreeMap::from([(name, HealthCheck { port, local_endpoints })])
        };
        assert!(ports.sync(&wanted(2)).await.is_empty());
        let answer = ask(port).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-load-balancing-endpoint-weight: 2"), "{answer}");
        assert!(answer.contains("\"localEndpoints\":2"), "{answer}");
        assert!(ports.sync(&wanted(0)).await.is_empty());
        assert!(ask(port).await.unwrap().starts_with("HTTP/1.1 503"));
        let mut other = HealthPorts::new(ports.health.clone(), vec![loopback]);
        assert_eq!(other.sync(&wanted(1)).await.len(), 1, "the port is taken");
        assert!(ports.sync(&BTreeMap::new()).await.is_empty());
        while ask(port).await.is_some() {
            tokio::task::yield_now().await;
        }
    }
}
