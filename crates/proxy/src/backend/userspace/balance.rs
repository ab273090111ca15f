//! Which endpoint is next: round robin, and affinity of clients. Pure but for what it remembers.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::plan::Endpoint;

/// Clients remembered for one service port; more than these have no affinity for as long as all of them are new.
const SESSIONS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Session {
    endpoint: SocketAddr,
    used: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Balancer {
    next: usize,
    sessions: FxHashMap<IpAddr, Session>,
}

impl Balancer {
    /// The endpoint for a client's new connection; none if there are none. `fresh` forgets the client's last one, which
    /// did not answer.
    pub(super) fn pick(
        &mut self,
        endpoints: &[Endpoint],
        client: IpAddr,
        affinity: Option<Duration>,
        fresh: bool,
        now: Instant,
    ) -> Option<SocketAddr> {
        let Some(affinity) = affinity else {
            self.sessions.clear();
            return self.rotate(endpoints);
        };
        if !fresh
            && let Some(session) = self.sessions.get_mut(&client)
            && now.saturating_duration_since(session.used) <= affinity
            && endpoints.iter().any(|e| e.address == session.endpoint)
        {
            session.used = now;
            return Some(session.endpoint);
        }
        let endpoint = self.rotate(endpoints)?;
        self.remember(client, endpoint, affinity, now);
        Some(endpoint)
    }

    fn rotate(&mut self, endpoints: &[Endpoint]) -> Option<SocketAddr> {
        let chosen = endpoints.get(self.next % endpoints.len().max(1))?;
        self.next = self.next.wrapping_add(1);
        Some(chosen.address)
    }

    fn remember(&mut self, client: IpAddr, endpoint: SocketAddr, affinity: Duration, now: Instant) {
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(&client) {
            self.sessions
                .retain(|_, session| now.saturating_duration_since(session.used) <= affinity);
            if self.sessions.len() >= SESSIONS_MAX {
                return;
            }
        }
        self.sessions.insert(client, Session { endpoint, used: now });
    }

    /// Forgets who went to endpoints that are no more.
    pub(super) fn keep_only(&mut self, is_there: impl Fn(SocketAddr) -> bool) {
        self.sessions.retain(|_, session| is_there(session.endpoint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u8) -> Vec<Endpoint> {
        let one = |n| Endpoint {
            address: SocketAddr::from(([10, 244, 1, n], 80)),
            is_local: true,
        };
        (0..count).map(one).collect()
    }

    fn client(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(n).into()
    }

    fn last(address: Option<SocketAddr>) -> u8 {
        match address.map(|a| a.ip()) {
            Some(IpAddr::V4(ip)) => ip.octets()[3],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_has_its_turn() {
        let (mut balancer, now) = (Balancer::default(), orlop_base::clock::monotonic());
        let three = endpoints(3);
        let turns: Vec<u8> = (0..6)
            .map(|_| last(balancer.pick(&three, client(1), None, false, now)))
            .collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        assert_eq!(balancer.pick(&[], client(1), None, false, now), None);
        assert_eq!(last(balancer.pick(&three[1..2], client(1), None, false, now)), 1);
    }

    #[test]
    fn clients_come_back_to_theirs_until_it_is_gone_or_they_were_away() {
        let (mut balancer, now) = (Balancer::default(), orlop_base::clock::monotonic());
        let three = endpoints(3);
        let affinity = Some(Duration::from_secs(10));
        let mut pick = |list: &[Endpoint], n, fresh, seconds| {
            last(balancer.pick(list, client(n), affinity, fresh, now + Duration::from_secs(seconds)))
        };
        assert_eq!((pick(&three, 1, false, 0), pick(&three, 2, false, 0)), (0, 1));
        // Each visit counts anew.
        assert_eq!((pick(&three, 1, false, 9), pick(&three, 1, false, 18)), (0, 0));
        assert_eq!(pick(&three, 2, false, 18), 2);
        // One that does not answer is left.
        assert_eq!((pick(&three, 1, true, 19), pick(&three, 1, false, 20)), (0, 0));
        assert_eq!((pick(&three, 1, true, 21), pick(&three, 1, false, 22)), (1, 1));
        assert_eq!(pick(&three[2..], 1, false, 23), 2);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut balancer, now) = (Balancer::default(), orlop_base::clock::monotonic());
        let affinity = Some(Duration::from_secs(10));
        for n in 0..SESSIONS_MAX as u32 + 10 {
            balancer.pick(&endpoints(3), client(n), affinity, false, now);
        }
        assert_eq!(balancer.sessions.len(), SESSIONS_MAX);
        let later = now + Duration::from_secs(11);
        balancer.pick(&endpoints(3), client(u32::MAX), affinity, false, later);
        assert_eq!(balancer.sessions.len(), 1);
    }
}
