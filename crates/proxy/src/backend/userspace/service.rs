//! What listeners share: the service port they serve as it is now, and what this proxy may use.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::balance::Balancer;
use super::listeners::{Machine, Way, endpoints_for};
use crate::plan::ServicePort;
use crate::settings::Settings;

/// A service port, as all its listeners see it.
pub(super) struct Service {
    port: RwLock<Arc<ServicePort>>,
    balancer: Mutex<Balancer>,
}

impl Service {
    pub(super) fn new(port: Arc<ServicePort>) -> Service {
        Service {
            port: RwLock::new(port),
            balancer: Mutex::default(),
        }
    }

    pub(super) fn port(&self) -> Arc<ServicePort> {
        self.port.read().clone()
    }

    pub(super) fn replace(&self, port: Arc<ServicePort>) {
        let endpoints = port.endpoints();
        self.balancer
            .lock()
            .keep_only(|address| endpoints.iter().any(|e| e.address == address));
        *self.port.write() = port;
    }

    /// The endpoint for a client's new connection; none if it is turned away.
    pub(super) fn pick(
        &self,
        common: &Common,
        way: Way,
        client: IpAddr,
        to: IpAddr,
        fresh: bool,
    ) -> Option<SocketAddr> {
        let port = self.port();
        let machine = common.machine.read().clone();
        let endpoints = endpoints_for(&port, way, client, to, &common.settings, &machine);
        let affinity = port.affinity.map(|seconds| Duration::from_secs(seconds.into()));
        let mut balancer = self.balancer.lock();
        balancer.pick(endpoints, client, affinity, fresh, orlop_base::clock::monotonic())
    }
}

/// What all listeners of this proxy share.
pub(super) struct Common {
    pub settings: Settings,
    pub machine: RwLock<Arc<Machine>>,
    /// How many connections may be open at once.
    pub room: Arc<Semaphore>,
    /// Connections under way.
    pub connections: AtomicUsize,
    /// UDP clients under way.
    pub udp_clients: AtomicUsize,
    pub udp_clients_max: usize,
    warned: AtomicBool,
}

impl Common {
    pub(super) fn new(settings: Settings, machine: Machine, connections_max: usize, udp_clients_max: usize) -> Common {
        Common {
            settings,
            machine: RwLock::new(Arc::new(machine)),
            room: Arc::new(Semaphore::new(connections_max)),
            connections: AtomicUsize::new(0),
            udp_clients: AtomicUsize::new(0),
            udp_clients_max,
            warned: AtomicBool::new(false),
        }
    }

    /// Whether addresses can be made local has come out.
    pub(super) fn note_routes(&self, allowed: bool) {
        let mut machine = self.machine.write();
        if machine.may_route != allowed {
            Arc::make_mut(&mut machine).may_route = allowed;
        }
    }

    /// Says once that more came than can be served.
    pub(super) fn warn_full(&self, what: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kind = what,
                "reached the limit of open connections; queueing or dropping new ones"
            );
        }
    }
}

/// Counts one up for as long as it lives.
pub(super) struct Counted {
    common: Arc<Common>,
    which: fn(&Common) -> &AtomicUsize,
}

impl Counted {
    pub(super) fn connection(common: &Arc<Common>) -> Counted {
        Counted::new(common, |c| &c.connections)
    }

    /// None if there are as many UDP clients as may be.
    pub(super) fn udp_client(common: &Arc<Common>) -> Option<Counted> {
        let counted = Counted::new(common, |c| &c.udp_clients);
        (common.udp_clients.load(Ordering::Relaxed) <= common.udp_clients_max).then_some(counted)
    }

    fn new(common: &Arc<Common>, which: fn(&Common) -> &AtomicUsize) -> Counted {
        which(common).fetch_add(1, Ordering::Relaxed);
        Counted {
            common: common.clone(),
            which,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.which)(&self.common).fetch_sub(1, Ordering::Relaxed);
    }
}
