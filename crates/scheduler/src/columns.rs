//! What is known of each node for one class of pods, kept from cycle to cycle and worked out again only for nodes that
//! changed.
//!
//! Columns hold the answers of plugins of `Scope::Node`: the first filter that rejects the node, the weighted sum of the
//! scores that need no normalising, and the raw values of those that do. A class whose pods need nothing else also gets
//! a tournament over the totals, so that the best node is found without looking at the others.

use rustc_hash::FxHashMap;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::framework::points::{AnyState, MAX_SCORE, Normalize, Scope};
use crate::framework::profile::Profile;
use crate::framework::verdict::{PreFilter, PreScore, Rejection, Verdict};
use crate::tournament::{OUT, Tournament};

/// Memory for all columns together; the least recently used go first.
const MEMORY_MAX: usize = 48 << 20;
/// Rough size of a node's part in the columns of one class.
const BYTES_PER_NODE: usize = 56;

/// The outcome of a node for a class: 0 fits, otherwise one more than the place in `rejections`.
type NodeOutcome = u16;

pub struct Columns {
    /// Per plugin place: what `pre_filter` made of the class.
    pub pre_filters: Vec<Option<PreFilter<AnyState>>>,
    /// Per entry of `profile.score`: what `pre_score` made of the class; None for `Scope::Cluster`.
    scores: Vec<Option<PreScore<AnyState>>>,
    stamps: Vec<u64>,
    outcomes: Vec<NodeOutcome>,
    /// How many of the outcomes say that the node fits.
    fitting: usize,
    /// Position in `profile.filter` of the plugin that rejects, and why.
    rejections: Vec<(usize, Rejection)>,
    known: FxHashMap<(usize, Rejection), NodeOutcome>,
    base: Vec<i64>,
    /// One column for each normalised score, in the order of `shared`.
    raw: Vec<Vec<i64>>,
    /// Places in `profile.score` of the scores that are shares of the largest.
    shared: Vec<usize>,
    /// The log entry up to which all this is up to date.
    seen: u64,
    race: Option<Race>,
    used: u64,
}

/// Totals, for classes that need no plugin of `Scope::Cluster`.
struct Race {
    tree: Tournament,
    /// Per shared score: the largest raw value of nodes that fit, and how many have it.
    largest: Vec<(i64, usize)>,
}

impl Columns {
    fn new(profile: &Profile, cluster: &Cluster, pod: &PodInfo) -> Columns {
        let mut columns = Columns {
            pre_filters: (profile.plugins.iter())
                .map(|p| {
                    p.filter()
                        .filter(|f| f.scope() == Scope::Node)
                        .map(|f| f.pre_filter(pod, cluster))
                })
                .collect(),
            scores: vec![],
            stamps: vec![],
            outcomes: vec![],
            fitting: 0,
            rejections: vec![],
            known: FxHashMap::default(),
            base: vec![],
            raw: vec![],
            shared: vec![],
            seen: 0,
            race: None,
            used: 0,
        };
        columns.prepare_scores(profile, cluster, pod);
        columns
    }

    fn prepare_scores(&mut self, profile: &Profile, cluster: &Cluster, pod: &PodInfo) {
        self.scores = (profile.score.iter())
            .map(|(place, _)| {
                let score = profile.score_at(*place);
                (score.scope() == Scope::Node).then(|| score.pre_score(pod, cluster, &[]))
            })
            .collect();
        self.stamps = stamps(profile, cluster, pod);
        self.shared = (0..self.scores.len())
            .filter(|i| {
                matches!(self.scores[*i], Some(PreScore::Run(_)))
                    && profile.score_at(profile.score[*i].0).normalize_rule() != Normalize::AsIs
            })
            .collect();
        self.raw = vec![vec![]; self.shared.len()];
    }

    /// Brings everything up to date with the cluster. Not needed (and not called) where only a few named nodes are in
    /// question.
    pub fn catch_up(&mut self, profile: &Profile, cluster: &Cluster, pod: &PodInfo) {
        let width = cluster.width();
        let stale = self.stamps != stamps(profile, cluster, pod);
        if stale {
            self.prepare_scores(profile, cluster, pod);
        }
        let grown = width != self.outcomes.len();
        let changes = cluster.log.since(self.seen).filter(|c| c.len() < width / 2 + 16);
        match changes {
            Some(changes) if !stale && !grown => {
                for id in changes {
                    self.update(profile, cluster, pod, id);
                }
            }
            _ => self.rebuild(profile, cluster, pod),
        }
        self.seen = cluster.log.end();
    }

    fn rebuild(&mut self, profile: &Profile, cluster: &Cluster, pod: &PodInfo) {
        let width = cluster.width();
        self.race = None;
        self.outcomes.clear();
        self.outcomes.resize(width, NodeOutcome::MAX);
        self.fitting = 0;
        self.base.clear();
        self.base.resize(width, 0);
        for column in &mut self.raw {
            column.clear();
            column.resize(width, 0);
        }
        for node in cluster.nodes() {
            self.evaluate(profile, pod, node);
        }
    }

    /// One node changed (or came, or went).
    fn update(&mut self, profile: &Profile, cluster: &Cluster, pod: &PodInfo, id: NodeId) {
        let at = id.index();
        let before =
            (self.outcomes[at] == 0).then(|| self.raw.iter().map(|c| c[at]).collect::<smallvec::SmallVec<[i64; 4]>>());
        match cluster.node(id) {
            Some(node) => self.evaluate(profile, pod, node),
            None => self.note(at, NodeOutcome::MAX),
        }
        let Some(race) = &mut self.race else { return };
        let fits = self.outcomes[at] == 0;
        let mut sound = true;
        for (i, column) in self.raw.iter().enumerate() {
            let (largest, count) = &mut race.largest[i];
            if before.as_ref().is_some_and(|b| b[i] == *largest) {
                *count -= 1;
            }
            if fits && column[at] == *largest {
                *count += 1;
            }
            // The largest value is another one now: every share changes.
            sound &= *count > 0 && !(fits && column[at] > *largest);
        }
        if sound {
            let total = if fits { self.total(profile, at) } else { OUT };
            let race = self.race.as_mut().expect("looked at above");
            race.tree.set(at, total);
        } else {
            self.race = None;
        }
    }

    fn evaluate(&mut self, profile: &Profile, pod: &PodInfo, node: &NodeInfo) {
        let at = node.id.index();
        let outcome = match self.judge(profile, pod, node) {
            Ok(()) => 0,
            Err((position, rejection)) => self.intern(position, rejection),
        };
        self.note(at, outcome);
        if outcome != 0 {
            return;
        }
        let mut base = 0;
        let mut column = 0;
        for (i, (place, weight)) in profile.score.iter().enumerate() {
            if let Some(PreScore::Run(state)) = &self.scores[i] {
                let score = profile.score_at(*place);
                let value = score.score(state, pod, node);
                if score.normalize_rule() == Normalize::AsIs {
                    base += weight * value;
                } else {
                    self.raw[column][at] = value;
                    column += 1;
                }
            }
        }
        self.base[at] = base;
    }

    fn note(&mut self, at: usize, outcome: NodeOutcome) {
        self.fitting -= usize::from(self.outcomes[at] == 0);
        self.fitting += usize::from(outcome == 0);
        self.outcomes[at] = outcome;
    }

    /// The first filter of `Scope::Node` that rejects the node.
    fn judge(&self, profile: &Profile, pod: &PodInfo, node: &NodeInfo) -> Result<(), (usize, Rejection)> {
        for (position, place) in profile.filter.iter().enumerate() {
            let verdict = self.node_verdict(profile, *place, pod, node);
            verdict.map_err(|rejection| (position, rejection))?;
        }
        Ok(())
    }

    /// What the plugin says, if it is one of `Scope::Node` that does not skip the class.
    pub fn node_verdict(&self, profile: &Profile, place: usize, pod: &PodInfo, node: &NodeInfo) -> Verdict {
        match self.pre_filter_state(place) {
            Some(state) => profile.filter_at(place).filter(state, pod, node),
            None => Ok(()),
        }
    }

    /// What the plugin, one of `Scope::Node`, made of the class; None if it skips it.
    pub fn pre_filter_state(&self, place: usize) -> Option<&AnyState> {
        match &self.pre_filters[place] {
            Some(PreFilter::Run(state) | PreFilter::Only(state, _)) => Some(state),
            _ => None,
        }
    }

    fn intern(&mut self, position: usize, rejection: Rejection) -> NodeOutcome {
        let key = (position, rejection);
        if let Some(outcome) = self.known.get(&key) {
            return *outcome;
        }
        self.rejections.push(key.clone());
        let outcome = NodeOutcome::try_from(self.rejections.len()).expect("a plugin has a handful of reasons");
        self.known.insert(key, outcome);
        outcome
    }

    pub fn fits(&self, id: NodeId) -> bool {
        self.outcomes[id.index()] == 0
    }

    /// Position in `profile.filter` and why, for a node that does not fit.
    pub fn rejection(&self, id: NodeId) -> Option<&(usize, Rejection)> {
        let outcome = self.outcomes[id.index()];
        (outcome != 0 && outcome != NodeOutcome::MAX).then(|| &self.rejections[usize::from(outcome) - 1])
    }

    /// Nodes that fit as far as these plugins go.
    pub fn fitting(&self) -> Vec<NodeId> {
        let fits = |(i, o): (usize, &NodeOutcome)| (*o == 0).then_some(NodeId(i as u32));
        self.outcomes.iter().enumerate().filter_map(fits).collect()
    }

    pub fn fitting_count(&self) -> usize {
        self.fitting
    }

    /// Adds the weighted scores of `Scope::Node` plugins of these nodes to `totals`.
    pub fn add_scores(&self, profile: &Profile, nodes: &[NodeId], totals: &mut [i64]) {
        for (total, id) in totals.iter_mut().zip(nodes) {
            *total += self.base[id.index()];
        }
        for (column, i) in self.raw.iter().zip(&self.shared) {
            let (place, weight) = profile.score[*i];
            let rule = profile.score_at(place).normalize_rule();
            let largest = nodes.iter().map(|id| column[id.index()]).max().unwrap_or(0);
            for (total, id) in totals.iter_mut().zip(nodes) {
                *total += weight * share(rule, column[id.index()], largest);
            }
        }
    }

    /// Raw value of a `Scope::Node` score, if it counts for this class.
    pub fn raw_score(&self, profile: &Profile, i: usize, pod: &PodInfo, node: &NodeInfo) -> Option<i64> {
        match &self.scores[i] {
            Some(PreScore::Run(state)) => Some(profile.score_at(profile.score[i].0).score(state, pod, node)),
            _ => None,
        }
    }

    fn total(&self, profile: &Profile, at: usize) -> i64 {
        let race = self.race.as_ref().expect("totals are for a race");
        self.base[at] + self.shares(profile, at, &race.largest)
    }

    fn shares(&self, profile: &Profile, at: usize, largest: &[(i64, usize)]) -> i64 {
        let each = self.shared.iter().enumerate().map(|(c, i)| {
            let (place, weight) = profile.score[*i];
            let rule = profile.score_at(place).normalize_rule();
            weight * share(rule, self.raw[c][at], largest[c].0)
        });
        each.sum()
    }

    /// The totals of all nodes that fit.
    pub fn race(&mut self, profile: &Profile) -> &Tournament {
        if self.race.is_none() {
            let fitting = || {
                self.outcomes
                    .iter()
                    .enumerate()
                    .filter(|(_, o)| **o == 0)
                    .map(|(i, _)| i)
            };
            let largest: Vec<(i64, usize)> = (self.raw.iter())
                .map(|column| {
                    let largest = fitting().map(|i| column[i]).max().unwrap_or(0);
                    (largest, fitting().filter(|i| column[*i] == largest).count())
                })
                .collect();
            let total = |at: usize| {
                if self.outcomes[at] == 0 {
                    self.base[at] + self.shares(profile, at, &largest)
                } else {
                    OUT
                }
            };
            let tree = Tournament::new((0..self.outcomes.len()).map(total));
            self.race = Some(Race { tree, largest });
        }
        &self.race.as_ref().expect("made above").tree
    }
}

fn stamps(profile: &Profile, cluster: &Cluster, pod: &PodInfo) -> Vec<u64> {
    let of = |(place, _): &(usize, i64)| profile.score_at(*place).stamp(pod, cluster);
    profile.score.iter().map(of).collect()
}

/// Kubernetes' default normalisation.
pub fn share(rule: Normalize, raw: i64, largest: i64) -> i64 {
    match rule {
        Normalize::Share if largest == 0 => raw,
        Normalize::ShareReversed if largest == 0 => MAX_SCORE,
        Normalize::Share => MAX_SCORE * raw / largest,
        Normalize::ShareReversed => MAX_SCORE - MAX_SCORE * raw / largest,
        Normalize::AsIs | Normalize::Custom => raw,
    }
}

/// The columns of the classes that were scheduled last.
#[derive(Default)]
pub struct ColumnCache {
    by_class: FxHashMap<(usize, u64), Columns>,
    clock: u64,
}

impl ColumnCache {
    /// The columns of the pod's class under this profile (the `index`th), up to date.
    pub fn get(&mut self, index: usize, profile: &Profile, cluster: &Cluster, pod: &PodInfo) -> &mut Columns {
        self.clock += 1;
        let key = (index, pod.class.id);
        if !self.by_class.contains_key(&key) {
            self.make_room(cluster);
            self.by_class.insert(key, Columns::new(profile, cluster, pod));
        }
        let columns = self.by_class.get_mut(&key).expect("made above");
        columns.used = self.clock;
        columns
    }

    fn make_room(&mut self, cluster: &Cluster) {
        let room = (MEMORY_MAX / (BYTES_PER_NODE * cluster.width().max(1))).clamp(4, 1024);
        while self.by_class.len() >= room {
            let oldest = self.by_class.iter().min_by_key(|(_, c)| c.used).map(|(key, _)| *key);
            let Some(oldest) = oldest else { break };
            self.by_class.remove(&oldest);
        }
    }
}
