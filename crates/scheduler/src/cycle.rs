//! One scheduling cycle: filter, score, choose. Pure: the same cluster, pod and seed give the same node.
//!
//! Two roads lead to the same choice. If every plugin that has something to say about the pod looks at class and node
//! only, the best node stands at the top of the class's tournament. Otherwise the nodes that fit are listed, the other
//! plugins are asked about each, and scores are added up.

use std::collections::BTreeSet;
use std::sync::Arc;

use orlop_base::Random;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::columns::{ColumnCache, Columns, share};
use crate::extender::ExtenderError;
use crate::fit_error::{Diagnosis, FitError};
use crate::framework::points::{AnyState, MAX_SCORE, Normalize, Scope};
use crate::framework::profile::Profile;
use crate::framework::verdict::{PreFilter, PreScore, Rejection};
use crate::timing::{Laps, Step, Stopwatch};

/// Kubernetes never samples fewer nodes than this.
const SAMPLE_MIN: usize = 100;

/// Decides for all profiles. Holds nothing that could not be worked out again, but for the random numbers.
pub struct Core {
    pub profiles: Vec<Profile>,
    columns: ColumnCache,
    random: Random,
    /// Where the next search starts if only part of the nodes is looked at.
    next_start: usize,
    stopwatch: Stopwatch,
}

/// Nodes that passed every filter, and what was worked out on the way.
pub struct Feasible {
    pub nodes: Vec<NodeId>,
    /// Nodes that were looked at.
    pub evaluated: usize,
    /// Answers of plugins for other nodes, where nothing else is known: extenders may turn to them.
    pub diagnosis: Diagnosis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleResult {
    pub node: NodeId,
    pub evaluated: usize,
    pub feasible: usize,
}

#[derive(Debug)]
pub enum ScheduleFailure {
    Unfit(Box<FitError>),
    /// The attempt is over without a decision.
    Error(CycleError),
}

/// Why a scheduling cycle came to no decision. The texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum CycleError {
    /// A plugin broke the rules.
    #[error(
        "plugin {plugin:?} returns an invalid score {score}, it should in the range of [0, {MAX_SCORE}] after normalizing"
    )]
    InvalidScore { plugin: &'static str, score: i64 },
    #[error(transparent)]
    Extender(#[from] ExtenderError),
}

/// What `pre_filter` of all plugins made of the pod.
pub struct Prepared {
    /// Per plugin place: state of plugins of `Scope::Cluster` that run.
    pub states: Vec<Option<AnyState>>,
    /// Only these nodes can do.
    pub only: Option<BTreeSet<Arc<str>>>,
    /// Who said so.
    pub narrowed_by: BTreeSet<&'static str>,
    /// A plugin says that no node will do, though evicting pods may help.
    pub rejected: Option<(&'static str, Rejection)>,
}

impl Core {
    pub fn new(profiles: Vec<Profile>, seed: u64) -> Core {
        Core {
            profiles,
            columns: ColumnCache::default(),
            random: Random::seeded(seed),
            next_start: 0,
            stopwatch: Stopwatch::default(),
        }
    }

    /// From now on ties are broken as by a core that is new: for those who want the same answer to the same question.
    pub fn reseed(&mut self, seed: u64) {
        self.random = Random::seeded(seed);
        self.next_start = 0;
    }

    /// From now on decisions are timed.
    pub fn measure(&mut self) {
        self.stopwatch.on = true;
    }

    /// How long the last decision took. Told once.
    pub fn laps(&mut self) -> Laps {
        self.stopwatch.take()
    }

    /// Filter, score and choose, without extenders.
    pub fn schedule(
        &mut self,
        profile: usize,
        cluster: &Cluster,
        pod: &PodInfo,
    ) -> Result<ScheduleResult, ScheduleFailure> {
        let prepared = self.prepare(profile, cluster, pod)?;
        if let Some(choice) = self.quick(profile, cluster, pod, &prepared) {
            return Ok(choice);
        }
        let feasible = self.search(profile, cluster, pod, &prepared)?;
        self.choose(profile, cluster, pod, &feasible, None)
    }

    /// Runs the filters: for those who want to see the nodes before scores are given.
    pub fn feasible(&mut self, profile: usize, cluster: &Cluster, pod: &PodInfo) -> Result<Feasible, ScheduleFailure> {
        let prepared = self.prepare(profile, cluster, pod)?;
        self.search(profile, cluster, pod, &prepared)
    }

    /// Up to `limit` of the nodes that pass every filter, in the order of their ids. Nothing is scored and nothing kept for
    /// later cycles: for those who ask about pods that may never come.
    pub fn fitting(&mut self, index: usize, cluster: &Cluster, pod: &PodInfo, limit: usize) -> Vec<NodeId> {
        let mut found = vec![];
        self.for_pod(index, cluster, pod, |search| {
            for node in cluster.nodes() {
                if found.len() == limit {
                    break;
                }
                if search.admits(node) {
                    found.push(node.id);
                }
            }
        });
        found
    }

    /// Whether one node passes every filter.
    pub fn fits_on(&mut self, index: usize, cluster: &Cluster, pod: &PodInfo, node: NodeId) -> bool {
        let mut fits = false;
        self.for_pod(index, cluster, pod, |search| {
            fits = cluster.node(node).is_some_and(|node| search.admits(node));
        });
        fits
    }

    /// Not called if a plugin rules out every node.
    fn for_pod(&mut self, index: usize, cluster: &Cluster, pod: &PodInfo, use_it: impl FnOnce(&Search)) {
        let profile = &self.profiles[index];
        let columns = self.columns.get(index, profile, cluster, pod);
        let prepared = prepare(profile, columns, cluster, pod);
        if let Ok(prepared) = prepared
            && prepared.rejected.is_none()
        {
            use_it(&Search {
                profile,
                columns,
                cluster,
                pod,
                prepared: &prepared,
            });
        }
    }

    fn prepare(&mut self, index: usize, cluster: &Cluster, pod: &PodInfo) -> Result<Prepared, ScheduleFailure> {
        if cluster.is_empty() {
            return Err(ScheduleFailure::Unfit(Box::default()));
        }
        self.stopwatch.start();
        let profile = &self.profiles[index];
        let columns = self.columns.get(index, profile, cluster, pod);
        let prepared = prepare(profile, columns, cluster, pod);
        self.stopwatch.lap(Step::PreFilter);
        let (plugin, rejection) = match prepared {
            Err(for_good) => for_good,
            Ok(Prepared {
                rejected: Some(rejected),
                ..
            }) => rejected,
            Ok(prepared) => return Ok(prepared),
        };
        Err(unfit(
            cluster,
            Diagnosis {
                rejected_by: [plugin].into(),
                others: Some(rejection.clone()),
                pre_filter: Some((plugin, rejection)),
                nodes: vec![],
            },
        ))
    }

    /// The quick road; None if it does not lead there.
    fn quick(&mut self, index: usize, cluster: &Cluster, pod: &PodInfo, prepared: &Prepared) -> Option<ScheduleResult> {
        let profile = &self.profiles[index];
        if profile.percentage_of_nodes_to_score.is_some()
            || pod.nominated_node.is_some()
            || !cluster.nominated.is_empty()
            || !is_local(profile, cluster, pod, prepared)
        {
            return None;
        }
        let columns = self.columns.get(index, profile, cluster, pod);
        columns.catch_up(profile, cluster, pod);
        let feasible = columns.fitting_count();
        self.stopwatch.lap(Step::Filter);
        let race = columns.race(profile);
        let (_, ties) = race.top()?;
        let nth = match ties {
            1 => 0,
            _ => self.random.below(u64::from(ties)) as u32,
        };
        let node = NodeId(race.nth_best(nth) as u32);
        self.stopwatch.lap(Step::Score);
        Some(ScheduleResult {
            node,
            evaluated: cluster.len(),
            feasible,
        })
    }

    fn search(
        &mut self,
        index: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        prepared: &Prepared,
    ) -> Result<Feasible, ScheduleFailure> {
        let profile = &self.profiles[index];
        let search = Search {
            profile,
            columns: self.columns.get(index, profile, cluster, pod),
            cluster,
            pod,
            prepared,
        };
        if let Some(found) = search.nominated_first() {
            self.stopwatch.lap(Step::Filter);
            return Ok(found);
        }
        let limit = sample(profile, cluster.len());
        let found = match (&prepared.only, limit) {
            (Some(names), _) => search.among(names),
            (None, Some(limit)) => search.sampled(limit, self.next_start),
            (None, None) => search.everywhere(),
        };
        self.next_start = (self.next_start + found.evaluated) % cluster.len();
        self.stopwatch.lap(Step::Filter);
        if found.nodes.is_empty() {
            return Err(unfit(cluster, found.diagnosis));
        }
        Ok(found)
    }

    /// Scores the nodes and takes the best. `extra` is added to each total (extenders).
    pub fn choose(
        &mut self,
        index: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        feasible: &Feasible,
        extra: Option<&[i64]>,
    ) -> Result<ScheduleResult, ScheduleFailure> {
        let choice = |node| ScheduleResult {
            node,
            evaluated: feasible.evaluated,
            feasible: feasible.nodes.len(),
        };
        if let ([only], None) = (feasible.nodes.as_slice(), extra) {
            return Ok(choice(*only));
        }
        if extra.is_some() {
            // Extenders were asked meanwhile.
            self.stopwatch.resume();
        }
        let profile = &self.profiles[index];
        let columns = self.columns.get(index, profile, cluster, pod);
        columns.catch_up(profile, cluster, pod);
        let mut totals = vec![0; feasible.nodes.len()];
        columns.add_scores(profile, &feasible.nodes, &mut totals);
        cluster_scores(profile, cluster, pod, &feasible.nodes, |i, stage, scores| {
            if stage == Stage::Raw {
                return;
            }
            for (total, score) in totals.iter_mut().zip(scores) {
                *total += profile.score[i].1 * score;
            }
        })
        .map_err(ScheduleFailure::Error)?;
        for (total, extra) in totals.iter_mut().zip(extra.unwrap_or_default()) {
            *total += extra;
        }
        let best = totals.iter().copied().max().expect("some node is feasible");
        let ties = totals.iter().filter(|t| **t == best).count();
        let nth = if ties == 1 {
            0
        } else {
            self.random.below(ties as u64) as usize
        };
        let at = (totals.iter().enumerate().filter(|(_, t)| **t == best))
            .nth(nth)
            .expect("counted")
            .0;
        self.stopwatch.lap(Step::Score);
        Ok(choice(feasible.nodes[at]))
    }

    /// Lends what preemption and explanations need.
    pub fn look<T>(
        &mut self,
        index: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        use_it: impl FnOnce(&Profile, &mut Columns, &mut Random) -> T,
    ) -> T {
        let profile = &self.profiles[index];
        let columns = self.columns.get(index, profile, cluster, pod);
        use_it(profile, columns, &mut self.random)
    }
}

/// No plugin of `Scope::Cluster` has anything to say about this pod, and any node may do.
fn is_local(profile: &Profile, cluster: &Cluster, pod: &PodInfo, prepared: &Prepared) -> bool {
    prepared.only.is_none()
        && prepared.states.iter().all(Option::is_none)
        && profile.score.iter().all(|(place, _)| {
            let score = profile.score_at(*place);
            score.scope() == Scope::Node || score.is_idle(pod, cluster)
        })
}

fn unfit(cluster: &Cluster, diagnosis: Diagnosis) -> ScheduleFailure {
    ScheduleFailure::Unfit(Box::new(FitError {
        all_nodes: cluster.len(),
        diagnosis,
        post_filter: String::new(),
    }))
}

/// How many feasible nodes are enough; None for all.
///
/// Upstream: numFeasibleNodesToFind in pkg/scheduler/schedule_one.go (v1.36). A percentage of 0 means "adaptive" there;
/// here it is only set if the user set it.
fn sample(profile: &Profile, nodes: usize) -> Option<usize> {
    let percentage = profile.percentage_of_nodes_to_score? as usize;
    if nodes < SAMPLE_MIN || percentage >= 100 {
        return None;
    }
    Some((nodes * percentage / 100).max(SAMPLE_MIN))
}

/// Runs `pre_filter` of all plugins. An error is a plugin that rules out every node for good.
pub fn prepare(
    profile: &Profile,
    columns: &Columns,
    cluster: &Cluster,
    pod: &PodInfo,
) -> Result<Prepared, (&'static str, Rejection)> {
    let mut prepared = Prepared {
        states: profile.plugins.iter().map(|_| None).collect(),
        only: None,
        narrowed_by: BTreeSet::new(),
        rejected: None,
    };
    for place in places(profile) {
        let name = profile.plugins[place].name();
        match &columns.pre_filters[place] {
            Some(kept) => prepared.heed(name, kept)?,
            None => {
                let answer = profile.filter_at(place).pre_filter(pod, cluster);
                prepared.heed(name, &answer)?;
                if let PreFilter::Run(state) | PreFilter::Only(state, _) = answer {
                    prepared.states[place] = Some(state);
                }
            }
        }
    }
    Ok(prepared)
}

/// Every plugin with a filter, in the order of PreFilter; then those that are enabled at Filter only.
fn places(profile: &Profile) -> impl Iterator<Item = usize> + '_ {
    let later = profile.filter.iter().filter(|p| !profile.pre_filter.contains(p));
    profile.pre_filter.iter().chain(later).copied()
}

impl Prepared {
    fn heed(&mut self, name: &'static str, answer: &PreFilter<AnyState>) -> Result<(), (&'static str, Rejection)> {
        match answer {
            PreFilter::Skip | PreFilter::Run(_) => {}
            PreFilter::Reject(rejection) if rejection.unresolvable => return Err((name, rejection.clone())),
            PreFilter::Reject(rejection) => self.rejected = Some((name, rejection.clone())),
            PreFilter::Only(_, nodes) => self.narrow(name, nodes)?,
        }
        Ok(())
    }

    fn narrow(&mut self, name: &'static str, nodes: &BTreeSet<Arc<str>>) -> Result<(), (&'static str, Rejection)> {
        self.narrowed_by.insert(name);
        let both = match self.only.take() {
            None => nodes.clone(),
            Some(before) => before.intersection(nodes).cloned().collect(),
        };
        if both.is_empty() {
            let names: Vec<&str> = self.narrowed_by.iter().copied().collect();
            let text = match names.as_slice() {
                [one] => format!("node(s) didn't satisfy plugin {one}"),
                all => format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", all.join(" ")),
            };
            return Err((name, Rejection::because(text, true)));
        }
        self.only = Some(both);
        Ok(())
    }
}

struct Search<'a> {
    profile: &'a Profile,
    columns: &'a mut Columns,
    cluster: &'a Cluster,
    pod: &'a PodInfo,
    prepared: &'a Prepared,
}

impl Search<'_> {
    /// A pod that was promised a node is tried there first, and alone.
    fn nominated_first(&self) -> Option<Feasible> {
        let promised = self.cluster.nominated.node_of(&self.pod.uid);
        let name = promised.or(self.pod.nominated_node.as_ref())?;
        let node = self.cluster.node_named(name)?;
        if self.prepared.only.as_ref().is_some_and(|only| !only.contains(name)) {
            return None;
        }
        self.verdict(node).ok()?;
        Some(Feasible {
            nodes: vec![node.id],
            evaluated: 1,
            diagnosis: Diagnosis::default(),
        })
    }

    /// All filters on one node: first with the pods that were promised it, as Kubernetes does, then without.
    fn verdict(&self, node: &NodeInfo) -> Result<(), (usize, Rejection)> {
        self.verdict_with_nominated(node)?;
        judge(self.profile, self.columns, self.prepared, self.pod, node)
    }

    fn verdict_with_nominated(&self, node: &NodeInfo) -> Result<(), (usize, Rejection)> {
        judge_with_nominated(self.profile, self.columns, self.prepared, self.cluster, self.pod, node)
    }

    /// Whether the node passes, be it one of those that are not looked at.
    fn admits(&self, node: &NodeInfo) -> bool {
        let outside = (self.prepared.only.as_ref()).is_some_and(|only| !only.contains(&node.name));
        !outside && self.verdict(node).is_ok()
    }

    /// Only these nodes.
    fn among(&self, names: &BTreeSet<Arc<str>>) -> Feasible {
        let mut found = Feasible {
            nodes: vec![],
            evaluated: 0,
            diagnosis: Diagnosis::default(),
        };
        for node in names.iter().filter_map(|n| self.cluster.node_named(n)) {
            found.evaluated += 1;
            match self.verdict(node) {
                Ok(()) => found.nodes.push(node.id),
                Err((position, rejection)) => self.note(&mut found.diagnosis, node.id, position, rejection),
            }
        }
        found.nodes.sort();
        let by: Vec<&str> = self.prepared.narrowed_by.iter().copied().collect();
        let text = format!("node(s) didn't satisfy plugin(s) [{}]", by.join(" "));
        found.diagnosis.others = Some(Rejection::because(text, true));
        found.diagnosis.rejected_by.extend(by);
        found
    }

    /// Nodes in turn, from `start` on, until enough fit.
    fn sampled(self, limit: usize, start: usize) -> Feasible {
        self.columns.catch_up(self.profile, self.cluster, self.pod);
        let mut found = Feasible {
            nodes: vec![],
            evaluated: 0,
            diagnosis: Diagnosis::default(),
        };
        let nodes: Vec<&NodeInfo> = self.cluster.nodes().collect();
        for at in 0..nodes.len() {
            let node = nodes[(start + at) % nodes.len()];
            found.evaluated += 1;
            match self.verdict(node) {
                Ok(()) => found.nodes.push(node.id),
                Err((position, rejection)) => self.note(&mut found.diagnosis, node.id, position, rejection),
            }
            if found.nodes.len() == limit {
                break;
            }
        }
        found.nodes.sort();
        found
    }

    fn everywhere(self) -> Feasible {
        self.columns.catch_up(self.profile, self.cluster, self.pod);
        let mut nodes = self.columns.fitting();
        if !self.cluster.nominated.is_empty() {
            self.drop_promised(&mut nodes);
        }
        for place in &self.profile.filter {
            if let Some(state) = &self.prepared.states[*place] {
                let filter = self.profile.filter_at(*place);
                filter.retain(state, self.pod, self.cluster, &mut nodes, &mut |_, _| {});
            }
        }
        let diagnosis = if nodes.is_empty() {
            self.diagnose()
        } else {
            Diagnosis::default()
        };
        Feasible {
            nodes,
            evaluated: self.cluster.len(),
            diagnosis,
        }
    }

    /// Takes out nodes that do not do any more once those that were promised them are there.
    fn drop_promised(&self, nodes: &mut Vec<NodeId>) {
        let promised = self
            .cluster
            .nominated
            .nodes()
            .filter_map(|n| self.cluster.node_named(n));
        let refused: BTreeSet<NodeId> = promised
            .filter(|n| self.columns.fits(n.id) && self.verdict_with_nominated(n).is_err())
            .map(|n| n.id)
            .collect();
        nodes.retain(|id| !refused.contains(id));
    }

    /// Why each node was rejected: the first filter that does so.
    fn diagnose(&self) -> Diagnosis {
        let mut diagnosis = Diagnosis::default();
        diagnosis.nodes.reserve(self.cluster.len());
        for node in self.cluster.nodes() {
            let first = self.verdict_with_nominated(node).err();
            if let Some((position, rejection)) = first.or_else(|| self.first_rejection(node)) {
                self.note(&mut diagnosis, node.id, position, rejection);
            }
        }
        diagnosis
    }

    fn first_rejection(&self, node: &NodeInfo) -> Option<(usize, Rejection)> {
        let local = self.columns.rejection(node.id);
        let before = local.map_or(self.profile.filter.len(), |(position, _)| *position);
        for (position, place) in self.profile.filter[..before].iter().enumerate() {
            if let Some(state) = &self.prepared.states[*place]
                && let Err(rejection) = self.profile.filter_at(*place).filter(state, self.pod, node)
            {
                return Some((position, rejection));
            }
        }
        local.cloned()
    }

    fn note(&self, diagnosis: &mut Diagnosis, id: NodeId, position: usize, rejection: Rejection) {
        let name = self.profile.plugins[self.profile.filter[position]].name();
        if !diagnosis.rejected_by.contains(name) {
            diagnosis.rejected_by.insert(name);
        }
        diagnosis.nodes.push((id, name, rejection));
    }
}

/// All filters on one node, in order; the position in `profile.filter` of the first that rejects it.
pub fn judge(
    profile: &Profile,
    columns: &Columns,
    prepared: &Prepared,
    pod: &PodInfo,
    node: &NodeInfo,
) -> Result<(), (usize, Rejection)> {
    judge_with(profile, columns, &prepared.states, pod, node)
}

/// The same with the pods of no lower priority that were promised the node; nothing to say if there are none.
pub fn judge_with_nominated(
    profile: &Profile,
    columns: &Columns,
    prepared: &Prepared,
    cluster: &Cluster,
    pod: &PodInfo,
    node: &NodeInfo,
) -> Result<(), (usize, Rejection)> {
    let counts = |p: &&Arc<PodInfo>| p.priority() >= pod.priority() && p.uid != pod.uid;
    let mut rivals = cluster.nominated.on(&node.name).iter().filter(counts).peekable();
    if rivals.peek().is_none() {
        return Ok(());
    }
    let mut what_if = WhatIf::new(profile, prepared, node);
    for rival in rivals {
        what_if.add(profile, pod, rival.clone());
    }
    what_if.judge(profile, columns, pod)
}

fn judge_with(
    profile: &Profile,
    columns: &Columns,
    states: &[Option<AnyState>],
    pod: &PodInfo,
    node: &NodeInfo,
) -> Result<(), (usize, Rejection)> {
    for (position, place) in profile.filter.iter().enumerate() {
        let verdict = match &states[*place] {
            Some(state) => profile.filter_at(*place).filter(state, pod, node),
            None => columns.node_verdict(profile, *place, pod, node),
        };
        verdict.map_err(|rejection| (position, rejection))?;
    }
    Ok(())
}

/// A node as it would be with other pods on it.
pub struct WhatIf {
    pub node: NodeInfo,
    states: Vec<Option<AnyState>>,
}

impl WhatIf {
    pub fn new(profile: &Profile, prepared: &Prepared, node: &NodeInfo) -> WhatIf {
        let clone = |(place, state): (usize, &Option<AnyState>)| {
            state.as_ref().map(|s| profile.filter_at(place).clone_state(s))
        };
        WhatIf {
            node: node.clone(),
            states: prepared.states.iter().enumerate().map(clone).collect(),
        }
    }

    pub fn add(&mut self, profile: &Profile, pod: &PodInfo, added: Arc<PodInfo>) {
        for (place, state) in self.states.iter_mut().enumerate() {
            if let Some(state) = state {
                profile.filter_at(place).add_pod(state, pod, &added, &self.node);
            }
        }
        self.node.add_pod(added);
    }

    pub fn remove(&mut self, profile: &Profile, pod: &PodInfo, removed: &PodInfo) {
        self.node.remove_pod(&removed.uid);
        for (place, state) in self.states.iter_mut().enumerate() {
            if let Some(state) = state {
                profile.filter_at(place).remove_pod(state, pod, removed, &self.node);
            }
        }
    }

    pub fn judge(&self, profile: &Profile, columns: &Columns, pod: &PodInfo) -> Result<(), (usize, Rejection)> {
        judge_with(profile, columns, &self.states, pod, &self.node)
    }
}

/// How far a plugin's scores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Raw,
    Normalized,
}

/// Scores of plugins of `Scope::Cluster`, raw and then normalised, one plugin (place in `profile.score`) after the other.
pub fn cluster_scores(
    profile: &Profile,
    cluster: &Cluster,
    pod: &PodInfo,
    nodes: &[NodeId],
    mut take: impl FnMut(usize, Stage, &[i64]),
) -> Result<(), CycleError> {
    let mut scores = vec![];
    for (i, (place, _)) in profile.score.iter().enumerate() {
        let score = profile.score_at(*place);
        if score.scope() == Scope::Node || score.is_idle(pod, cluster) {
            continue;
        }
        let PreScore::Run(state) = score.pre_score(pod, cluster, nodes) else {
            continue;
        };
        score.score_all(&state, pod, cluster, nodes, &mut scores);
        take(i, Stage::Raw, &scores);
        normalize(score.normalize_rule(), &mut scores, |scores| {
            score.normalize(&state, pod, nodes, scores)
        });
        if let Some(score) = scores.iter().copied().find(|s| !(0..=MAX_SCORE).contains(s)) {
            let plugin = profile.plugins[*place].name();
            return Err(CycleError::InvalidScore { plugin, score });
        }
        take(i, Stage::Normalized, &scores);
    }
    Ok(())
}

fn normalize(rule: Normalize, scores: &mut [i64], custom: impl FnOnce(&mut [i64])) {
    if rule == Normalize::Custom {
        return custom(scores);
    }
    let largest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = share(rule, *score, largest);
    }
}
