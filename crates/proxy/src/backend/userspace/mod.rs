//! Connections taken by this process and passed on, for places where nothing may be written into netfilter.
//!
//! ```text
//!  sync ──► listeners::spots (pure) ──► only those that are new are opened, those that are gone closed
//!  client ──► listener ──► Service::pick (policy, round robin, affinity) ──► endpoint
//! ```
//!
//! Cluster addresses are made local by one route for each service range, other addresses by one route each, where this
//! process may do that; otherwise node ports are all there is. Pods see the node's address, as connections to them are
//! this process's own.

mod balance;
mod listeners;
mod routes;
mod service;
mod sockets;
mod tcp;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod udp;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::listeners::{Machine, Spot, Way, spots};
use self::routes::Routes;
use self::service::{Common, Service};
use self::udp::Sessions;
use super::{Backend, Cleaned, Error, Mode, Report, Result};
use crate::plan::{Change, Family, Key, Plan, Protocol, ServicePort};
use crate::settings::Settings;
use orlop_netlink::route::Route;

/// Connections at once, as far as open files reach; each has two sockets and two buffers of 16 KiB.
const CONNECTIONS_MAX: usize = 65_536;
/// UDP clients at once; each has a socket.
const UDP_CLIENTS_MAX: usize = 16_384;
/// How long to wait for listeners to be closed before others take their places.
const CLOSING: Duration = Duration::from_secs(2);

pub struct Userspace {
    runtime: Handle,
    common: Arc<Common>,
    services: FxHashMap<Key, Served>,
    routes: Routes,
    listeners: usize,
}

/// A service port in place.
struct Served {
    service: Arc<Service>,
    /// Where it should listen, with the listener if there could be one.
    spots: Vec<(Spot, Way, Option<Listener>)>,
}

/// Listens until it is dropped.
struct Listener {
    task: JoinHandle<()>,
    sessions: Sessions,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        self.sessions.clear();
    }
}

/// What one sync does.
#[derive(Default)]
struct Work {
    opened: usize,
    closed: usize,
    routes: usize,
    problems: Vec<String>,
    closing: Vec<Listener>,
}

impl Userspace {
    /// For the network namespace of this thread; `runtime` must be in the same.
    pub fn new(settings: Settings, runtime: Handle) -> Result<Userspace> {
        let files = sockets::raise_file_limit();
        let connections = (files / 4).clamp(16, CONNECTIONS_MAX);
        let udp_clients = (files / 8).clamp(16, UDP_CLIENTS_MAX);
        Ok(Userspace::with_limits(settings, runtime, connections, udp_clients))
    }

    fn with_limits(settings: Settings, runtime: Handle, connections: usize, udp_clients: usize) -> Userspace {
        let mut ranges = settings.service_ranges.clone();
        ranges.retain(|range| has_family(&settings, Family::of(range.addr())));
        let routes = Routes::new(ranges);
        let machine = Machine {
            may_route: true,
            ..Machine::default()
        };
        Userspace {
            runtime,
            common: Arc::new(Common::new(settings, machine, connections, udp_clients)),
            services: FxHashMap::default(),
            routes,
            listeners: 0,
        }
    }

    /// Looks at the machine: its addresses, and whether routes can be made.
    fn observe(&mut self, plan: &Plan) -> Result<()> {
        let mut route = Route::open().map_err(|e| Error(format!("failed to open a route socket: {e}")))?;
        let addresses = route
            .addresses()
            .map_err(|e| Error(format!("failed to list node addresses: {e}")))?;
        let addresses: HashSet<IpAddr> = addresses.into_iter().map(|a| a.ip).collect();
        self.routes.compare(&mut route, &addresses)?;
        let machine = Machine {
            addresses,
            node_addresses: plan.node.addresses.clone(),
            pod_ranges: Machine::pod_ranges(&self.common.settings, &plan.node),
            may_route: self.routes.allowed(),
        };
        let mut known = self.common.machine.write();
        if **known != machine {
            *known = Arc::new(machine);
        }
        Ok(())
    }

    /// Closes what a service port no longer wants; the routes it no longer needs are given up in `routes`.
    fn close(&mut self, key: &Key, wanted: Option<&ServicePort>, work: &mut Work) {
        let Some(served) = self.services.get_mut(key) else {
            return;
        };
        let machine = self.common.machine.read().clone();
        let keep = wanted.map_or_else(Vec::new, |port| spots(port, &self.common.settings, &machine));
        let before = std::mem::take(&mut served.spots);
        for (spot, way, listener) in before {
            if keep.contains(&(spot, way)) {
                served.spots.push((spot, way, listener));
            } else if let Some(listener) = listener {
                work.closed += 1;
                work.closing.push(listener);
            }
        }
        self.routes.release(listeners::addresses(&served.service.port()));
        if wanted.is_none() {
            self.services.remove(key);
        }
    }

    /// Opens what a service port wants and has not yet. Its routes are there.
    fn open(&mut self, port: &Arc<ServicePort>, work: &mut Work) {
        let served = self.services.entry(port.key.clone()).or_insert_with(|| Served {
            service: Arc::new(Service::new(port.clone())),
            spots: vec![],
        });
        served.service.replace(port.clone());
        if port.protocol == Protocol::Sctp {
            let problem = format!("{}: SCTP is not supported in userspace mode", port.key);
            return work.problems.push(problem);
        }
        let endpoints = port.endpoints();
        let machine = self.common.machine.read().clone();
        for (spot, way) in spots(port, &self.common.settings, &machine) {
            let there = served.spots.iter().position(|(s, w, _)| (*s, *w) == (spot, way));
            let at = there.unwrap_or_else(|| {
                served.spots.push((spot, way, None));
                served.spots.len() - 1
            });
            if let Some(listener) = &served.spots[at].2 {
                listener
                    .sessions
                    .keep_only(|address| endpoints.iter().any(|e| e.address == address));
                continue;
            }
            match listen(&self.runtime, &spot, way, &served.service, &self.common) {
                Ok(listener) => {
                    work.opened += 1;
                    served.spots[at].2 = Some(listener);
                }
                Err(e) => work.problems.push(format!(
                    "{}: failed to listen on {}/{}: {}",
                    port.key,
                    spot.address,
                    spot.protocol.as_str(),
                    reason(&e)
                )),
            }
        }
    }

    fn close_all(&mut self) {
        let served = std::mem::take(&mut self.services);
        let spots = served.into_values().flat_map(|served| served.spots);
        self.finish_closing(spots.filter_map(|(_, _, listener)| listener).collect());
        self.listeners = 0;
    }

    /// Waits until sockets are closed, so that no connection comes to one that another has taken the place of.
    fn finish_closing(&self, closing: Vec<Listener>) {
        if closing.is_empty() {
            return;
        }
        closing.iter().for_each(|listener| listener.task.abort());
        self.runtime.block_on(async {
            let all = async {
                for mut listener in closing {
                    let _ = (&mut listener.task).await;
                }
            };
            let _ = tokio::time::timeout(CLOSING, all).await;
        });
    }
}

fn listen(
    runtime: &Handle,
    spot: &Spot,
    way: Way,
    service: &Arc<Service>,
    common: &Arc<Common>,
) -> io::Result<Listener> {
    let socket = sockets::bind(spot)?;
    let _within = runtime.enter();
    let sessions = Sessions::default();
    let (service, common) = (service.clone(), common.clone());
    let task = match spot.protocol {
        Protocol::Udp => {
            let socket = Arc::new(tokio::net::UdpSocket::from_std(socket.into())?);
            runtime.spawn(udp::serve(socket, service, way, common, sessions.clone()))
        }
        _ => {
            let listener = tokio::net::TcpListener::from_std(socket.into())?;
            runtime.spawn(tcp::serve(listener, service, way, common))
        }
    };
    Ok(Listener { task, sessions })
}

fn has_family(settings: &Settings, family: Family) -> bool {
    match family {
        Family::V4 => settings.v4,
        Family::V6 => settings.v6,
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process has the port".to_string(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need rights this process lacks".to_string(),
        _ => error.to_string(),
    }
}

/// Another may take the places at once. Connections under way go on.
impl Drop for Userspace {
    fn drop(&mut self) {
        // A thread of a runtime may not wait for it.
        if Handle::try_current().is_err() {
            self.close_all();
        }
    }
}

impl Backend for Userspace {
    fn mode(&self) -> Mode {
        Mode::Userspace
    }

    fn sync(&mut self, plan: &Plan, change: &Change) -> Result<Report> {
        let mut work = Work::default();
        let keys: BTreeSet<&Key> = match change {
            Change::Keys(keys) => keys.iter().collect(),
            Change::All => {
                self.observe(plan)?;
                plan.ports.keys().collect()
            }
        };
        let gone: Vec<Key> = match change {
            Change::Keys(_) => vec![],
            Change::All => self.services.keys().filter(|k| !keys.contains(k)).cloned().collect(),
        };
        // All places are free before any is taken: services may have changed theirs with each other.
        let common = self.common.clone();
        let wanted = |key: &Key| plan.ports.get(key).filter(|_| has_family(&common.settings, key.family));
        for key in gone.iter().chain(keys.iter().copied()) {
            self.close(key, wanted(key).map(|port| &**port), &mut work);
        }
        self.finish_closing(std::mem::take(&mut work.closing));
        let wanted: Vec<&Arc<ServicePort>> = keys.iter().filter_map(|key| wanted(key)).collect();
        for port in &wanted {
            self.routes.claim(listeners::addresses(port));
        }
        work.routes += self.routes.apply()?;
        self.common.note_routes(self.routes.allowed());
        for port in wanted {
            self.open(port, &mut work);
        }
        self.listeners = self.listeners + work.opened - work.closed;
        Ok(Report {
            rules: vec![("listeners", self.listeners), ("routes", self.routes.len())],
            written: vec![("listeners", work.opened + work.closed), ("routes", work.routes)],
            problems: work.problems,
        })
    }

    fn cleanup(&mut self) -> Result<Cleaned> {
        self.close_all();
        self.routes.forget();
        // Connections under way come to addresses that are local only by our routes.
        if self.common.connections.load(Ordering::Relaxed) > 0 {
            return Ok(Cleaned::Draining);
        }
        self.routes.remove_all()?;
        Ok(Cleaned::Whole)
    }
}
