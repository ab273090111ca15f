//! Names outside the cluster: asked of the host's resolvers, or of a stub domain's servers; equal questions at the same
//! time are asked once, and answers are kept for a while.
//!
//! Upstream: CoreDNS, plugin/forward and plugin/cache.

pub mod cache;
pub mod config;
mod exchange;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

pub use cache::{Question, Resolved};
pub use config::Stubs;

use crate::metrics::Metrics;

/// For one question, all servers and tries together. Upstream: plugin/forward.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often the servers of a question are gone through.
const ROUNDS: usize = 2;
/// A server that failed comes last for this long.
const REST: Duration = Duration::from_secs(10);
/// Questions under way at once. Upstream: kubeadm's `max_concurrent`.
pub const CONCURRENT_MAX: usize = 1000;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Too many questions at once.
    Busy,
    /// No server answered, or there is none to ask.
    NoAnswer,
}

type Outcome = Result<Arc<Resolved>, Failure>;

pub struct Forward {
    routes: RwLock<Arc<Routes>>,
    cache: cache::Cache,
    /// Questions under way.
    flights: Mutex<HashMap<Question, watch::Receiver<Option<Outcome>>>>,
    metrics: Arc<Metrics>,
    start: Instant,
}

/// Whom to ask.
#[derive(Debug, Default, PartialEq)]
struct Routes {
    /// The longest domain first.
    stubs: Vec<(Name, Vec<Arc<Server>>)>,
    others: Vec<Arc<Server>>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    /// When it failed last: milliseconds after the start, or zero.
    failed: AtomicU64,
}

impl PartialEq for Server {
    fn eq(&self, other: &Server) -> bool {
        self.address == other.address
    }
}

impl Routes {
    fn new(resolvers: &[SocketAddr], stubs: &Stubs, own: &[SocketAddr]) -> Routes {
        let servers = |addresses: &[SocketAddr]| -> Vec<Arc<Server>> {
            // Asking ourselves would go on for ever.
            let others = addresses.iter().filter(|address| !own.contains(address));
            let server = |address: &SocketAddr| Server {
                address: *address,
                failed: AtomicU64::new(0),
            };
            others.map(|address| Arc::new(server(address))).collect()
        };
        let mut domains: Vec<_> = stubs.domains.iter().map(|(d, a)| (d.clone(), servers(a))).collect();
        domains.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.iter().len()));
        Routes {
            stubs: domains,
            others: match stubs.upstream.as_slice() {
                [] => servers(resolvers),
                upstream => servers(upstream),
            },
        }
    }

    fn servers(&self, name: &Name) -> &[Arc<Server>] {
        let stub = self.stubs.iter().find(|(domain, _)| domain.zone_of(name));
        stub.map_or(&self.others, |(_, servers)| servers)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.stubs.iter().flat_map(|(_, servers)| servers).chain(&self.others)
    }
}

impl Forward {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Forward> {
        Arc::new(Forward {
            routes: RwLock::default(),
            cache: cache::Cache::default(),
            flights: Mutex::default(),
            metrics,
            start: orlop_base::clock::monotonic(),
        })
    }

    /// Whom to ask from now on. `own`: addresses at which this server answers itself.
    pub fn configure(&self, resolvers: &[SocketAddr], stubs: &Stubs, own: &[SocketAddr]) {
        let routes = Routes::new(resolvers, stubs, own);
        if **self.routes.read() == routes {
            return;
        }
        if routes.others.is_empty() {
            tracing::warn!("failed to find a resolver for names outside the cluster");
        }
        let known: Vec<SocketAddr> = routes.all().map(|server| server.address).collect();
        tracing::info!(resolvers = ?known, "forwarding names outside the cluster");
        *self.routes.write() = Arc::new(routes);
        self.metrics.forget_others(|address| known.contains(address));
        self.cache.clear(&self.metrics);
    }

    /// What is known without asking.
    pub fn known(&self, question: &Question, now: Instant) -> Option<Arc<Resolved>> {
        self.cache.get(question, now, &self.metrics)
    }

    /// Asks, or waits for the answer to the same question asked by another.
    pub async fn resolve(self: &Arc<Forward>, question: &Question) -> Outcome {
        let mut waiting = self.join(question)?;
        let outcome = waiting.wait_for(Option::is_some).await;
        // A flight that ends without an outcome has panicked.
        outcome.map_or(Err(Failure::NoAnswer), |outcome| {
            outcome.clone().unwrap_or(Err(Failure::NoAnswer))
        })
    }

    fn join(self: &Arc<Forward>, question: &Question) -> Result<watch::Receiver<Option<Outcome>>, Failure> {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(question) {
            return Ok(flight.clone());
        }
        if flights.len() >= CONCURRENT_MAX {
            self.metrics.forward_rejects.fetch_add(1, Ordering::Relaxed);
            return Err(Failure::Busy);
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(question.clone(), receiver.clone());
        drop(flights);
        let landing = Landing {
            forward: self.clone(),
            question: question.clone(),
        };
        // On its own: whoever asked first may be gone before the answer, others wait for it too.
        tokio::spawn(async move {
            let outcome = landing.forward.fly(&landing.question).await;
            drop(landing);
            sender.send_replace(Some(outcome));
        });
        Ok(receiver)
    }

    async fn fly(&self, question: &Question) -> Outcome {
        let asked = tokio::time::timeout(DEADLINE, self.ask_servers(question)).await;
        let resolved = Arc::new(asked.ok().flatten().ok_or(Failure::NoAnswer)?);
        self.cache.put(question, &resolved, &self.metrics);
        Ok(resolved)
    }

    /// The first good answer; if there is none, the last one that says a server could not answer.
    async fn ask_servers(&self, question: &Question) -> Option<Resolved> {
        let routes = self.routes.read().clone();
        let servers = routes.servers(&question.name);
        let mut unable = None;
        for round in 0..ROUNDS {
            for server in self.in_order(servers) {
                let began = orlop_base::clock::monotonic();
                let answer = exchange::ask(server.address, question).await;
                let code = answer.as_ref().ok().map(|reply| reply.code);
                self.metrics.forwarded(server.address, code, began.elapsed());
                match answer {
                    Ok(reply) => {
                        server.failed.store(0, Ordering::Relaxed);
                        let good = matches!(reply.code, ResponseCode::NoError | ResponseCode::NXDomain);
                        let resolved = Resolved::new(reply, orlop_base::clock::monotonic());
                        if good {
                            return Some(resolved);
                        }
                        unable = Some(resolved);
                    }
                    Err(error) => {
                        let (name, address) = (&question.name, server.address);
                        tracing::debug!(resolver = %address, %name, round, err = %error, "failed to query resolver");
                        let now = self.start.elapsed().as_millis() as u64;
                        server.failed.store(now.max(1), Ordering::Relaxed);
                    }
                }
            }
            if unable.is_some() {
                break;
            }
        }
        unable
    }

    /// Those that are well in their order, then those that failed lately.
    fn in_order(&self, servers: &[Arc<Server>]) -> Vec<Arc<Server>> {
        let now = self.start.elapsed().as_millis() as u64;
        let rests = |server: &Arc<Server>| match server.failed.load(Ordering::Relaxed) {
            0 => false,
            failed => now.saturating_sub(failed) < REST.as_millis() as u64,
        };
        let mut servers = servers.to_vec();
        servers.sort_by_key(rests);
        servers
    }
}

/// Takes a question off the list of those under way, whatever becomes of it.
struct Landing {
    forward: Arc<Forward>,
    question: Question,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.forward.flights.lock().remove(&self.question);
    }
}
