//! Who is connected to a port. Bounded in all and by address; those who never said who they are give way first.
//!
//! A connection is a stranger until a request on it was authenticated. Strangers have little time and little room: the
//! oldest of them that has no request under way goes when another one comes and there is no room, so a newcomer is let in
//! even while somebody holds all the places they may hold.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a connection whose time is up may take to say goodbye.
const GRACE: Duration = Duration::from_secs(5);
/// How often one with a request under way is looked at again.
const LOOK: Duration = Duration::from_secs(5);

/// How many connections, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At the same time. Strangers may have three quarters of them.
    pub most: usize,
    /// Strangers from one address (of IPv6: one network of 64 bits).
    pub per_address: usize,
    /// Within which a request begins after the connection was accepted, or after a stranger's last one.
    pub first_request: Duration,
    /// How long somebody known may be without a request.
    pub idle: Duration,
}

impl Limits {
    /// For so many connections, with upstream's times.
    pub const fn of(most: usize) -> Limits {
        let quarter = if most < 4 { 1 } else { most / 4 };
        Limits {
            most,
            per_address: if quarter < 512 { quarter } else { 512 },
            first_request: Duration::from_secs(30),
            idle: Duration::from_secs(90),
        }
    }

    fn strangers(&self) -> usize {
        self.most - self.most / 4
    }

    /// Whoever is on this machine finds a place even when all others are taken.
    fn most_for(&self, address: IpAddr) -> usize {
        match address.is_loopback() {
            true => self.most + self.most / 16,
            false => self.most,
        }
    }
}

/// The table of connections to one port.
pub struct Connections {
    limits: Limits,
    table: Mutex<Table>,
    accepted: AtomicU64,
    rejected: AtomicU64,
    shed: AtomicU64,
    expired: AtomicU64,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By age.
    strangers: BTreeMap<u64, Arc<Peer>>,
    known: BTreeMap<u64, Arc<Peer>>,
    /// The strangers of each address.
    addresses: HashMap<IpAddr, BTreeMap<u64, Arc<Peer>>>,
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open connections without an authenticated request.
    pub strangers: u64,
    /// Open connections with one.
    pub known: u64,
    /// All that were ever accepted and found room.
    pub accepted: u64,
    /// Closed at once, for want of room.
    pub rejected: u64,
    /// Closed to make room for another.
    pub shed: u64,
    /// Closed after too long without a request.
    pub expired: u64,
}

/// The other side of a connection.
pub struct Peer {
    /// Where it connected from.
    pub address: SocketAddr,
    number: u64,
    connections: Arc<Connections>,
    known: AtomicBool,
    use_: Mutex<Use>,
    shed: Notify,
}

struct Use {
    requests: usize,
    /// The end of the last request, or the beginning.
    idle_since: Instant,
}

/// A place in the table; free again when dropped.
pub(crate) struct ConnectionSlot(pub(crate) Arc<Peer>);

/// A request under way until dropped, its answer included.
pub struct Busy(Arc<Peer>);

impl Connections {
    /// An empty table.
    pub fn new(limits: Limits) -> Arc<Connections> {
        Arc::new(Connections {
            limits,
            table: Mutex::default(),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        })
    }

    /// What is open now, and what has happened since the start.
    pub fn counts(&self) -> Counts {
        let table = self.table.lock();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            strangers: table.strangers.len() as u64,
            known: table.known.len() as u64,
            accepted: read(&self.accepted),
            rejected: read(&self.rejected),
            shed: read(&self.shed),
            expired: read(&self.expired),
        }
    }

    /// Resolves when nobody is connected any more.
    pub async fn gone(&self) {
        loop {
            let counts = self.counts();
            if counts.strangers + counts.known == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A place for somebody who just connected; none if there is no room and nobody gives way.
    pub(crate) fn admit(self: &Arc<Self>, address: SocketAddr) -> Option<ConnectionSlot> {
        let network = network(address.ip());
        let mut table = self.table.lock();
        match table.room(&self.limits, network) {
            Room::Free => {}
            Room::After(peer) => self.shed(&mut table, &peer),
            Room::None => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        table.next += 1;
        let peer = Arc::new(Peer {
            address,
            number: table.next,
            connections: self.clone(),
            known: AtomicBool::new(false),
            use_: Mutex::new(Use {
                requests: 0,
                idle_since: Instant::now(),
            }),
            shed: Notify::new(),
        });
        table.strangers.insert(peer.number, peer.clone());
        table
            .addresses
            .entry(network)
            .or_default()
            .insert(peer.number, peer.clone());
        Some(ConnectionSlot(peer))
    }

    /// Closes those strangers that have been without a request the longest: somebody needs what they hold.
    pub(crate) fn make_room(&self) {
        let mut table = self.table.lock();
        for _ in 0..(table.strangers.len() / 8).max(1) {
            let Some(peer) = first_idle(&table.strangers) else {
                return;
            };
            self.shed(&mut table, &peer);
        }
    }

    fn shed(&self, table: &mut Table, peer: &Peer) {
        self.shed.fetch_add(1, Ordering::Relaxed);
        table.remove(peer);
        peer.shed.notify_one();
    }
}

enum Room {
    Free,
    /// When this one has gone.
    After(Arc<Peer>),
    None,
}

impl Table {
    fn room(&self, limits: &Limits, network: IpAddr) -> Room {
        let neighbours = self.addresses.get(&network);
        let after = |peer: Option<Arc<Peer>>| peer.map_or(Room::None, Room::After);
        if let Some(neighbours) = neighbours.filter(|peers| peers.len() >= limits.per_address) {
            return after(first_idle(neighbours));
        }
        if self.strangers.len() >= limits.strangers() {
            return after(first_idle(&self.strangers));
        }
        if self.strangers.len() + self.known.len() >= limits.most_for(network) {
            return after(first_idle(&self.strangers).or_else(|| first_idle(&self.known)));
        }
        Room::Free
    }

    /// Whether it was there.
    fn remove(&mut self, peer: &Peer) -> bool {
        let is_stranger = self.strangers.remove(&peer.number).is_some();
        if is_stranger {
            self.forget_stranger(peer);
        }
        is_stranger || self.known.remove(&peer.number).is_some()
    }

    fn forget_stranger(&mut self, peer: &Peer) {
        let network = network(peer.address.ip());
        if let Some(peers) = self.addresses.get_mut(&network) {
            peers.remove(&peer.number);
            if peers.is_empty() {
                self.addresses.remove(&network);
            }
        }
    }
}

/// The oldest that has no request under way.
fn first_idle(peers: &BTreeMap<u64, Arc<Peer>>) -> Option<Arc<Peer>> {
    peers.values().find(|peer| peer.use_.lock().requests == 0).cloned()
}

/// What counts as one address: whoever has one of IPv6 has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
        canonical => canonical,
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let connections = &self.0.connections;
        let is_there = connections.table.lock().remove(&self.0);
        if is_there && self.0.time_left() == Some(Duration::ZERO) {
            connections.expired.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut use_ = self.0.use_.lock();
        use_.requests -= 1;
        use_.idle_since = Instant::now();
    }
}

impl Peer {
    /// A request begins. Hold what this gives until its answer is sent.
    pub fn request(self: &Arc<Self>) -> Busy {
        self.use_.lock().requests += 1;
        Busy(self.clone())
    }

    /// Somebody proved who they are.
    pub fn authenticated(self: &Arc<Self>) {
        if self.known.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut table = self.connections.table.lock();
        // Not there any more: it has been shed.
        if table.strangers.remove(&self.number).is_some() {
            table.forget_stranger(self);
            table.known.insert(self.number, self.clone());
        }
    }

    /// How long it may stay unless a request begins; none while one is under way.
    fn time_left(&self) -> Option<Duration> {
        let use_ = self.use_.lock();
        let limits = &self.connections.limits;
        let patience = match self.known.load(Ordering::Relaxed) {
            true => limits.idle,
            false => limits.first_request,
        };
        (use_.requests == 0).then(|| patience.saturating_sub(use_.idle_since.elapsed()))
    }

    /// Resolves when the connection has been without a request for too long.
    pub async fn overdue(&self) {
        loop {
            match self.time_left() {
                Some(Duration::ZERO) => return,
                Some(left) => tokio::time::sleep(left).await,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Resolves when the connection is to be cut: it must make room, or has not ended by itself although overdue.
    pub(crate) async fn cut(&self) {
        let late = async {
            self.overdue().await;
            tokio::time::sleep(GRACE.min(self.connections.limits.first_request)).await;
        };
        tokio::select! {
            () = self.shed.notified() => {}
            () = late => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(most: usize, per_address: usize) -> Limits {
        Limits {
            per_address,
            ..Limits::of(most)
        }
    }

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    fn was_shed(place: &ConnectionSlot) -> bool {
        let table = place.0.connections.table.lock();
        !table.strangers.contains_key(&place.0.number) && !table.known.contains_key(&place.0.number)
    }

    #[tokio::test]
    async fn the_oldest_stranger_of_an_address_gives_way_to_the_next() {
        let table = Connections::new(limits(100, 2));
        let (first, second) = (
            table.admit(at("10.0.0.1")).unwrap(),
            table.admit(at("10.0.0.1")).unwrap(),
        );
        let other = table.admit(at("10.0.0.2")).unwrap();
        // One that is being served is not the one to go.
        let busy = first.0.request();
        let third = table.admit(at("::ffff:10.0.0.1")).unwrap();
        assert!(!was_shed(&first) && was_shed(&second) && !was_shed(&third) && !was_shed(&other));
        let _served = third.0.request();
        assert!(table.admit(at("10.0.0.1")).is_none(), "both are being served");
        drop(busy);
        assert!(table.admit(at("10.0.0.1")).is_some());
        let counts = table.counts();
        assert_eq!((counts.accepted, counts.rejected, counts.shed), (5, 1, 2));
    }

    #[tokio::test]
    async fn those_who_are_known_keep_their_places_and_a_share_of_them() {
        let table = Connections::new(limits(8, 100));
        let known: Vec<ConnectionSlot> = (0..2)
            .map(|_| {
                let place = table.admit(at("10.0.0.1")).unwrap();
                place.0.authenticated();
                place
            })
            .collect();
        let strangers: Vec<ConnectionSlot> = (0..20)
            .map(|i| table.admit(at(&format!("10.0.1.{i}"))).unwrap())
            .collect();
        assert_eq!(table.counts().strangers, 6);
        assert!(known.iter().all(|place| !was_shed(place)));
        // More who are known push strangers out, down to the last.
        let more: Vec<ConnectionSlot> = (0..6)
            .map(|_| {
                let place = table.admit(at("10.0.2.1")).unwrap();
                place.0.authenticated();
                place
            })
            .collect();
        assert!(more.iter().chain(&known).all(|place| !was_shed(place)));
        assert!(strangers.iter().all(was_shed));
        let busy: Vec<Busy> = more.iter().chain(&known).map(|place| place.0.request()).collect();
        assert!(table.admit(at("10.0.3.1")).is_none(), "all places are taken and used");
        drop((busy, more, known, strangers));
        let counts = table.counts();
        assert_eq!((counts.known, counts.strangers), (0, 0));
        assert!(table.table.lock().addresses.is_empty());
    }

    #[tokio::test]
    async fn this_machine_finds_a_place_when_all_others_are_taken() {
        let table = Connections::new(limits(16, 100));
        let full: Vec<(ConnectionSlot, Busy)> = (0..16)
            .map(|i| {
                let place = table.admit(at(&format!("10.0.0.{i}"))).unwrap();
                place.0.authenticated();
                let busy = place.0.request();
                (place, busy)
            })
            .collect();
        assert!(table.admit(at("10.0.1.1")).is_none());
        assert!(table.admit(at("127.0.0.1")).is_some());
        assert!(table.admit(at("::1")).is_some());
        drop(full);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection_and_work_does_not() {
        let table = Connections::new(limits(8, 8));
        let began = Instant::now();
        let silent = table.admit(at("10.0.0.1")).unwrap();
        silent.0.overdue().await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));

        let watcher = table.admit(at("10.0.0.1")).unwrap();
        watcher.0.authenticated();
        let busy = watcher.0.request();
        let over = tokio::time::timeout(Duration::from_secs(3600), watcher.0.overdue());
        assert!(over.await.is_err(), "a request under way may take its time");
        drop(busy);
        let began = Instant::now();
        watcher.0.overdue().await;
        assert!((Duration::from_secs(90)..Duration::from_secs(96)).contains(&began.elapsed()));
        // Whoever does not go is cut.
        silent.0.cut().await;
        drop(silent);
        assert_eq!(table.counts().expired, 1);
    }
}
