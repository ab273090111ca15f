//! Whose traffic an endpoint is best for: that of its zone or its node, or as much of each zone's as the zone's CPUs can
//! be expected to make.
// Upstream: staging/src/k8s.io/endpointslice/{trafficdist,topologycache} (v1.36)

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_api::quantity::Quantity;

use super::pack::Draft;
use crate::objects::endpoint_slice::{Endpoint, Hints, Named};
use crate::objects::{Node, Service, condition};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// How much more than its share an endpoint may get.
const OVERLOAD: f64 = 0.2;

/// What part of the cluster's CPU each zone has.
pub(super) type ZoneShares = BTreeMap<String, f64>;

/// How a service wants its traffic to flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintMode {
    Anywhere,
    SameZone,
    SameNode,
    /// In proportion to the zones' CPUs.
    Auto,
}

impl HintMode {
    pub(super) fn from_service(service: &Service) -> HintMode {
        let mode = service
            .metadata
            .annotation("service.kubernetes.io/topology-aware-hints");
        let mode = mode.or_else(|| service.metadata.annotation("service.kubernetes.io/topology-mode"));
        if matches!(mode, Some("Auto" | "auto")) {
            return HintMode::Auto;
        }
        match service.spec.traffic_distribution.as_deref() {
            Some("PreferClose" | "PreferSameZone") => HintMode::SameZone,
            Some("PreferSameNode") => HintMode::SameNode,
            _ => HintMode::Anywhere,
        }
    }
}

pub(super) fn clear(drafts: &mut [Draft]) {
    endpoints(drafts).for_each(|endpoint| endpoint.hints = None);
}

/// Each ready endpoint for its own zone, and if wanted for its own node.
pub(super) fn keep_close(drafts: &mut [Draft], and_node: bool) {
    for endpoint in endpoints(drafts) {
        let names = |name: &Option<String>| name.iter().map(|name| Named { name: name.clone() }).collect();
        let hints = Hints {
            for_zones: names(&endpoint.zone),
            for_nodes: if and_node { names(&endpoint.node_name) } else { vec![] },
        };
        endpoint.hints = Some(hints).filter(|hints| endpoint.is_ready() && *hints != Hints::default());
    }
}

fn endpoints(drafts: &mut [Draft]) -> impl Iterator<Item = &mut Endpoint> {
    drafts.iter_mut().flat_map(|draft| &mut draft.endpoints)
}

/// None unless all nodes that count say enough, and are in two zones at least.
pub(super) fn zone_shares(nodes: &[Arc<Node>]) -> Option<ZoneShares> {
    let mut milli_cpu: BTreeMap<String, i64> = BTreeMap::new();
    for node in nodes {
        let labels = &node.metadata.labels;
        let left_out = CONTROL_PLANE.iter().any(|role| labels.contains_key(*role));
        if left_out || !condition::holds(&node.status.conditions, "Ready") {
            continue;
        }
        let zone = node.metadata.label(ZONE).filter(|zone| !zone.is_empty())?;
        let cpu = Quantity::parse(node.status.allocatable.get("cpu")?).ok()?.milli_value();
        if cpu <= 0 {
            return None;
        }
        *milli_cpu.entry(zone.to_string()).or_default() += cpu;
    }
    let all: i64 = milli_cpu.values().sum();
    let share = |(zone, cpu): (String, i64)| (zone, cpu as f64 / all as f64);
    (milli_cpu.len() >= 2).then(|| milli_cpu.into_iter().map(share).collect())
}

/// Why there can't be any hints, for users.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoHints(String);

struct Room {
    wanted: f64,
    max: usize,
}

/// Gives each zone about its share of the endpoints, those in the zone first. Slices that are not touched keep their hints
/// as long as these leave room for the other zones.
pub(super) fn spread(drafts: &mut [Draft], shares: Option<&ZoneShares>) -> Result<(), NoHints> {
    let ready = drafts
        .iter()
        .flat_map(|d| &d.endpoints)
        .filter(|e| e.is_ready())
        .count();
    let rooms = rooms(shares, ready)?;
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    let mut open = vec![];
    for draft in drafts {
        match standing(draft, &rooms, &given) {
            Some(hints) => hints
                .into_iter()
                .for_each(|(zone, n)| *given.entry(zone).or_default() += n),
            None => open.extend(&mut draft.endpoints),
        }
    }
    for endpoint in &mut open {
        if !endpoint.is_ready() {
            endpoint.hints = None;
            continue;
        }
        let Some(zone) = endpoint.zone.clone().filter(|zone| !zone.is_empty()) else {
            return Err(NoHints(
                "One or more endpoints do not have a zone specified".to_string(),
            ));
        };
        *given.entry(zone.clone()).or_default() += 1;
        endpoint.hints = Some(for_zone(&zone));
    }
    let (mut giving, mut receiving) = moves(&rooms, &given);
    for endpoint in open {
        let Some(left) = endpoint
            .zone
            .as_ref()
            .and_then(|zone| giving.get_mut(zone))
            .filter(|n| **n > 0)
        else {
            continue;
        };
        if endpoint.is_ready()
            && let Some((zone, needed)) = receiving.iter_mut().find(|(_, n)| **n > 0)
        {
            endpoint.hints = Some(for_zone(zone));
            *left -= 1;
            *needed -= 1;
        }
    }
    match given.is_empty() {
        true => Err(NoHints("No hints allocated for zones".to_string())),
        false => Ok(()),
    }
}

fn for_zone(zone: &str) -> Hints {
    let name = zone.to_string();
    Hints {
        for_zones: vec![Named { name }],
        for_nodes: vec![],
    }
}

fn rooms(shares: Option<&ZoneShares>, ready: usize) -> Result<BTreeMap<String, Room>, NoHints> {
    let Some(shares) = shares else {
        let why = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(NoHints(why.to_string()));
    };
    let counts = format!("({ready} endpoints, {} zones)", shares.len());
    if shares.len() > ready {
        return Err(NoHints(format!("Insufficient number of endpoints {counts}")));
    }
    let least = |share: f64| (share * ready as f64 / (1.0 + OVERLOAD)).ceil() as usize;
    let Some(over) = ready.checked_sub(shares.values().map(|share| least(*share)).sum()) else {
        return Err(NoHints(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold {counts}"
        )));
    };
    let room = |(zone, share): (&String, &f64)| {
        let wanted = (share * ready as f64).max(least(*share) as f64);
        let max = least(*share) + over;
        (zone.clone(), Room { wanted, max })
    };
    Ok(shares.iter().map(room).collect())
}

/// The hints of a slice that can stay as they are.
fn standing(
    draft: &Draft,
    rooms: &BTreeMap<String, Room>,
    given: &BTreeMap<String, usize>,
) -> Option<BTreeMap<String, usize>> {
    let mut hints: BTreeMap<String, usize> = BTreeMap::new();
    if draft.touched {
        return None;
    }
    for endpoint in draft.endpoints.iter().filter(|e| e.is_ready()) {
        let zones = endpoint
            .hints
            .as_ref()
            .map(|hints| &hints.for_zones)
            .filter(|zones| !zones.is_empty())?;
        for zone in zones {
            *hints.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = |(zone, n): (&String, &usize)| {
        let before = given.get(zone).copied().unwrap_or(0);
        rooms.get(zone).is_some_and(|room| n + before <= room.max)
    };
    hints.iter().all(fits).then_some(hints)
}

/// How many endpoints each zone gives away, and how many it gets from others.
fn moves(
    rooms: &BTreeMap<String, Room>,
    given: &BTreeMap<String, usize>,
) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    // Positive: has more than it should.
    let over = |(zone, room): (&String, &Room)| {
        let has = given.get(zone).copied().unwrap_or(0) as f64;
        (zone.clone(), has - room.wanted)
    };
    let mut over: Vec<(String, f64)> = rooms.iter().map(over).collect();
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    loop {
        over.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (Some(needs), Some(has)) = (over.first(), over.last()) else {
            break;
        };
        // Half an endpoint too many or too few is nothing to move one for, unless the other zone is off by a whole one.
        if has.1 < 0.5 || -needs.1 < 0.5 || (has.1 < 1.0 && -needs.1 < 1.0) {
            break;
        }
        *giving.entry(has.0.clone()).or_default() += 1;
        *receiving.entry(needs.0.clone()).or_default() += 1;
        let last = over.len() - 1;
        over[0].1 += 1.0;
        over[last].1 -= 1.0;
    }
    (giving, receiving)
}
