//! Whether the server works (`/health`): its listeners are served, and the loop that follows the cluster goes on.
//!
//! A lost API server is no reason to be unhealthy or not ready: the names that are known are answered, as CoreDNS does.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The loop goes round at least every 5 s (`run::RESOLV_CONF`); one that has not for this long is stalled.
const STALLED: Duration = Duration::from_secs(20);

/// What is known of the server's parts.
pub struct Health {
    parts: Mutex<Parts>,
}

struct Parts {
    last_beat: Instant,
    /// Those that ended: UDP or TCP of an address.
    gone: BTreeSet<(SocketAddr, &'static str)>,
}

/// What does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HealthProblem {
    #[error("listener {address}/{protocol} is not served")]
    ListenerGone {
        address: SocketAddr,
        protocol: &'static str,
    },
    #[error("informer loop has been stalled for {} s", .0.as_secs())]
    Stalled(Duration),
}

impl Default for Health {
    fn default() -> Health {
        Health {
            parts: Mutex::new(Parts {
                last_beat: Instant::now(),
                gone: BTreeSet::new(),
            }),
        }
    }
}

impl Health {
    /// The loop that follows the cluster has gone round.
    pub fn beat(&self) {
        self.parts.lock().last_beat = Instant::now();
    }

    /// A listener is served until what this gives is dropped.
    pub fn watch_listener(self: &Arc<Health>, address: SocketAddr, protocol: &'static str) -> Alive {
        self.parts.lock().gone.remove(&(address, protocol));
        Alive {
            health: self.clone(),
            listener: (address, protocol),
        }
    }

    /// Whether all listeners are served.
    pub fn check_listeners(&self) -> Result<(), HealthProblem> {
        match self.parts.lock().gone.first() {
            None => Ok(()),
            Some((address, protocol)) => Err(HealthProblem::ListenerGone {
                address: *address,
                protocol,
            }),
        }
    }

    /// Whether everything works; else the first thing that does not.
    pub fn check(&self) -> Result<(), HealthProblem> {
        self.check_listeners()?;
        match self.parts.lock().last_beat.elapsed() {
            stalled if stalled >= STALLED => Err(HealthProblem::Stalled(stalled)),
            _ => Ok(()),
        }
    }
}

/// Held by whoever serves a listener.
pub struct Alive {
    health: Arc<Health>,
    listener: (SocketAddr, &'static str),
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.health.parts.lock().gone.insert(self.listener);
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.listener.0, self.listener.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_loop_is_noticed_until_it_goes_on() {
        let health = Health::default();
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(5)).await;
            health.beat();
            assert_eq!(health.check(), Ok(()));
        }
        tokio::time::advance(Duration::from_secs(19)).await;
        assert_eq!(health.check(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        let problem = health.check().unwrap_err();
        assert_eq!(problem.to_string(), "informer loop has been stalled for 20 s");
        assert_eq!(health.check_listeners(), Ok(()), "names are still answered");
        health.beat();
        assert_eq!(health.check(), Ok(()));
    }

    #[tokio::test]
    async fn a_listener_that_ends_is_noticed_until_it_is_served_again() {
        let health = Arc::new(Health::default());
        let address: SocketAddr = "10.0.0.1:53".parse().unwrap();
        let udp = health.watch_listener(address, "udp");
        let _tcp = health.watch_listener(address, "tcp");
        assert_eq!(health.check(), Ok(()));
        drop(udp);
        let problem = health.check().unwrap_err();
        assert_eq!(problem.to_string(), "listener 10.0.0.1:53/udp is not served");
        assert!(health.check_listeners().is_err());
        let _udp = health.watch_listener(address, "udp");
        assert_eq!(health.check(), Ok(()));
    }
}
