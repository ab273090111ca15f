//! How fast the pods of failed nodes are evicted, zone by zone.
//!
//! One node after another, at a rate that depends on how much of the zone has failed: the more, the likelier it is that not
//! the nodes have failed but the way to them. If nothing at all is ready any more, nobody has to leave.
//!
//! Nodes wait in line. Only the first of a line needs a timer; whoever leaves the line says who is first now.
// Upstream: pkg/controller/nodelifecycle handleDisruption (v1.36)

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// Upstream: fewer failed nodes than this never make a zone unhealthy.
const FEW: usize = 2;
/// Zones that are remembered, empty ones too: nodes that come and go must not find a fresh rate each time.
const ZONES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Nodes a second.
    pub normal: f64,
    /// In large zones that are unhealthy.
    pub reduced: f64,
    /// Nodes that a zone must have more of to be large.
    pub large: usize,
    /// The share of failed nodes from which on a zone is unhealthy.
    pub unhealthy: f64,
}

pub(super) struct Zones {
    rates: Rates,
    nodes: FxHashMap<String, TrackedNode>,
    zones: BTreeMap<String, Zone>,
    all_down: bool,
    tickets: u64,
}

struct TrackedNode {
    zone: String,
    ready: bool,
    counts: bool,
    ticket: Option<u64>,
}

#[derive(Default)]
struct Zone {
    /// Nodes in it, and those of them that count.
    members: usize,
    size: usize,
    ready: usize,
    line: BTreeMap<u64, String>,
    last: Option<Instant>,
}

/// What follows from a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ZoneChange {
    Nothing,
    /// These nodes should ask again.
    Wake(Vec<String>),
    /// Nothing is ready any more.
    AllDown,
    /// Something is ready again.
    SomeUp,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum TaintPermission {
    /// Go ahead. The other node is first in line now.
    Go {
        next: Option<String>,
    },
    After(Duration),
    /// You will be woken.
    Wait,
}

impl Zone {
    fn rate(&self, rates: &Rates) -> f64 {
        let failed = self.size - self.ready;
        let unhealthy = failed > FEW && failed as f64 / self.size as f64 >= rates.unhealthy;
        match unhealthy && self.ready > 0 {
            false => rates.normal,
            true if self.size > rates.large => rates.reduced,
            true => 0.0,
        }
    }
}

impl Zones {
    pub(super) fn new(rates: Rates) -> Zones {
        Zones {
            rates,
            nodes: FxHashMap::default(),
            zones: BTreeMap::new(),
            all_down: false,
            tickets: 0,
        }
    }

    /// No node at all is ready.
    pub(super) fn all_down(&self) -> bool {
        self.all_down
    }

    /// `counts`: whether the node says something of its zone's health.
    pub(super) fn observe(&mut self, name: &str, zone: &str, ready: bool, counts: bool) -> ZoneChange {
        let same = |p: &TrackedNode| p.zone == zone && p.ready == ready && p.counts == counts;
        if self.nodes.get(name).is_some_and(same) {
            return ZoneChange::Nothing;
        }
        let before = self.zone_rates(name, zone);
        let mut woken = self.take(name);
        let place = TrackedNode {
            zone: zone.to_string(),
            ready,
            counts,
            ticket: None,
        };
        self.nodes.insert(name.to_string(), place);
        if self.zones.len() >= ZONES_MAX {
            self.zones.retain(|_, zone| zone.members > 0);
        }
        let held = self.zones.entry(zone.to_string()).or_default();
        held.members += 1;
        if counts {
            held.size += 1;
            held.ready += usize::from(ready);
        }
        // What stood in line does so no more; if it still has to, it will ask again.
        woken.push(name.to_string());
        self.changed(before, woken)
    }

    pub(super) fn forget(&mut self, name: &str) -> ZoneChange {
        let Some(place) = self.nodes.get(name) else {
            return ZoneChange::Nothing;
        };
        let zone = place.zone.clone();
        let before = self.zone_rates(name, &zone);
        let woken = self.take(name);
        self.nodes.remove(name);
        self.changed(before, woken)
    }

    /// Whether this node's pods may be evicted now; if not, the node is queued.
    pub(super) fn ask(&mut self, name: &str, now: Instant) -> TaintPermission {
        let Some(place) = self.nodes.get_mut(name) else {
            return TaintPermission::Wait;
        };
        let zone = self.zones.get_mut(&place.zone).expect("the zone of a node is there");
        let ticket = *place.ticket.get_or_insert_with(|| {
            self.tickets += 1;
            zone.line.insert(self.tickets, name.to_string());
            self.tickets
        });
        let rate = zone.rate(&self.rates);
        let first = zone.line.first_key_value().is_some_and(|(first, _)| *first == ticket);
        if self.all_down || !first || rate <= 0.0 {
            return TaintPermission::Wait;
        }
        let since = zone.last.map(|last| now.saturating_duration_since(last));
        // Rates far below one a year are as good as never.
        let gap = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX);
        if let Some(left) = since
            .and_then(|since| gap.checked_sub(since))
            .filter(|left| !left.is_zero())
        {
            return TaintPermission::After(left);
        }
        zone.last = Some(now);
        zone.line.pop_first();
        place.ticket = None;
        TaintPermission::Go {
            next: zone.line.first_key_value().map(|(_, name)| name.clone()),
        }
    }

    /// What was allowed was not done: it was free.
    pub(super) fn give_back(&mut self, name: &str) {
        if let Some(zone) = self.nodes.get(name).and_then(|place| self.zones.get_mut(&place.zone)) {
            zone.last = None;
        }
    }

    /// The node no longer has to wait. Says who is first in line instead.
    pub(super) fn leave(&mut self, name: &str) -> Option<String> {
        let place = self.nodes.get_mut(name)?;
        let ticket = place.ticket.take()?;
        let zone = self.zones.get_mut(&place.zone)?;
        let was_first = zone.line.first_key_value().is_some_and(|(first, _)| *first == ticket);
        zone.line.remove(&ticket);
        let (_, first) = zone.line.first_key_value()?;
        was_first.then(|| first.clone())
    }

    /// Takes a node out of its zone's counts and line.
    fn take(&mut self, name: &str) -> Vec<String> {
        let first = self.leave(name);
        let Some(place) = self.nodes.get(name) else {
            return vec![];
        };
        let zone = self.zones.get_mut(&place.zone).expect("the zone of a node is there");
        zone.members -= 1;
        if place.counts {
            zone.size -= 1;
            zone.ready -= usize::from(place.ready);
        }
        first.into_iter().collect()
    }

    /// The rates of the zones that a change of the node can touch.
    fn zone_rates(&self, name: &str, zone: &str) -> Vec<(String, f64)> {
        let old = self.nodes.get(name).map(|place| place.zone.as_str());
        let touched = [old, Some(zone).filter(|zone| Some(*zone) != old)];
        let rate = |zone: &str| self.zones.get(zone).map_or(self.rates.normal, |z| z.rate(&self.rates));
        touched
            .into_iter()
            .flatten()
            .map(|zone| (zone.to_string(), rate(zone)))
            .collect()
    }

    fn changed(&mut self, before: Vec<(String, f64)>, mut woken: Vec<String>) -> ZoneChange {
        let counted = || self.zones.values().filter(|zone| zone.size > 0);
        let all_down = counted().next().is_some() && counted().all(|zone| zone.ready == 0);
        if all_down != self.all_down {
            self.all_down = all_down;
            return if all_down {
                ZoneChange::AllDown
            } else {
                ZoneChange::SomeUp
            };
        }
        for (name, rate) in before {
            let Some(zone) = self.zones.get(&name) else { continue };
            if zone.rate(&self.rates) != rate {
                woken.extend(zone.line.first_key_value().map(|(_, node)| node.clone()));
            }
        }
        ZoneChange::Wake(woken)
    }
}
