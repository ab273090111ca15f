//! Why a pod goes where it goes, or nowhere: every node, every plugin, by the code that decides.

use std::collections::HashMap;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeInfo};
use crate::cluster::pod::PodInfo;
use crate::columns::{Columns, share};
use crate::cycle::{Core, CycleError, Prepared, Stage, cluster_scores, judge, judge_with_nominated, prepare};
use crate::framework::detail::Detail;
use crate::framework::profile::Profile;
use crate::framework::verdict::Rejection;

/// The full account of one decision. Nothing is changed by asking for it.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// A plugin ruled out every node before any was looked at.
    pub ruled_out: Option<(&'static str, Rejection)>,
    /// Nodes that fit first, best first; then the others by name.
    pub nodes: Vec<NodeAccount>,
}

#[derive(Clone, Debug)]
pub struct NodeAccount {
    pub id: NodeId,
    pub name: String,
    /// Every filter, in order, with its reason if it rejects the node: also those after the first that does.
    pub filters: Vec<(&'static str, Option<Rejection>)>,
    /// What stands behind the rejections, by plugin.
    pub details: Vec<(&'static str, Detail)>,
    /// What rejects the node only because of the pods that were promised it.
    pub nominated: Option<(&'static str, Rejection)>,
    /// Empty unless the node fits.
    pub scores: Vec<ScoreAccount>,
    pub total: Option<i64>,
    /// 1 is the best; nodes with the same total share a rank.
    pub rank: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreAccount {
    pub plugin: &'static str,
    pub raw: i64,
    pub normalized: i64,
    pub weight: i64,
}

impl NodeAccount {
    pub fn fits(&self) -> bool {
        self.nominated.is_none() && self.filters.iter().all(|(_, rejection)| rejection.is_none())
    }
}

impl Core {
    /// Decides as `schedule` does, and reports every filter and score. Extenders are not called.
    pub fn explain(&mut self, profile: usize, cluster: &Cluster, pod: &PodInfo) -> Result<Explanation, CycleError> {
        self.look(profile, cluster, pod, |profile, columns, _| {
            let prepared = match prepare(profile, columns, cluster, pod) {
                Err(ruled_out) => {
                    return Ok(Explanation {
                        ruled_out: Some(ruled_out),
                        nodes: vec![],
                    });
                }
                Ok(prepared) => prepared,
            };
            columns.catch_up(profile, cluster, pod);
            let mut accounts: Vec<NodeAccount> = cluster
                .nodes()
                .map(|n| {
                    let mut account = filters(profile, columns, &prepared, pod, n);
                    if account.fits() {
                        let verdict = judge_with_nominated(profile, columns, &prepared, cluster, pod, n);
                        let name = |position: usize| profile.plugins[profile.filter[position]].name();
                        account.nominated = verdict.err().map(|(position, why)| (name(position), why));
                    }
                    account
                })
                .collect();
            let fitting: Vec<NodeId> = accounts.iter().filter(|a| a.fits()).map(|a| a.id).collect();
            let mut scores = node_scores(profile, columns, cluster, pod, &fitting);
            add_cluster_scores(profile, cluster, pod, &fitting, &mut scores)?;
            for account in &mut accounts {
                if let Some(lines) = scores.remove(&account.id) {
                    account.scores = in_order(Some(lines));
                    account.total = Some(account.scores.iter().map(|s| s.weight * s.normalized).sum());
                }
            }
            rank(&mut accounts);
            Ok(Explanation {
                ruled_out: prepared.rejected,
                nodes: accounts,
            })
        })
    }
}

impl Core {
    /// Every plugin's score of each of these nodes, which passed the filters, in the order of the profile.
    pub fn scores(
        &mut self,
        profile: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        nodes: &[NodeId],
    ) -> Result<Vec<(NodeId, Vec<ScoreAccount>)>, CycleError> {
        self.look(profile, cluster, pod, |profile, columns, _| {
            columns.catch_up(profile, cluster, pod);
            let mut scores = node_scores(profile, columns, cluster, pod, nodes);
            add_cluster_scores(profile, cluster, pod, nodes, &mut scores)?;
            Ok(nodes.iter().map(|id| (*id, in_order(scores.remove(id)))).collect())
        })
    }
}

/// In the order of the profile, whichever road each came by.
fn in_order(lines: Option<Vec<(usize, ScoreAccount)>>) -> Vec<ScoreAccount> {
    let mut lines = lines.unwrap_or_default();
    lines.sort_by_key(|(i, _)| *i);
    lines.into_iter().map(|(_, line)| line).collect()
}

fn filters(profile: &Profile, columns: &Columns, prepared: &Prepared, pod: &PodInfo, node: &NodeInfo) -> NodeAccount {
    let outside = prepared.only.as_ref().is_some_and(|only| !only.contains(&node.name));
    let mut details = vec![];
    let each = profile.filter.iter().map(|place| {
        let plugin = &profile.plugins[*place];
        let verdict = match &prepared.states[*place] {
            Some(state) => profile.filter_at(*place).filter(state, pod, node),
            None => columns.node_verdict(profile, *place, pod, node),
        };
        if verdict.is_err() {
            let state = prepared.states[*place].as_ref().or(columns.pre_filter_state(*place));
            let facts = state.map(|state| profile.filter_at(*place).details(state, pod, node));
            details.extend(facts.into_iter().flatten().map(|fact| (plugin.name(), fact)));
        }
        let narrowed = outside && prepared.narrowed_by.contains(plugin.name());
        let rejection = verdict.err().or_else(|| {
            let text = format!("node(s) didn't satisfy plugin(s) [{}]", plugin.name());
            narrowed.then(|| Rejection::because(text, true))
        });
        (plugin.name(), rejection)
    });
    let filters: Vec<_> = each.collect();
    debug_assert!(
        outside || judge(profile, columns, prepared, pod, node).is_ok() == filters.iter().all(|(_, r)| r.is_none()),
        "an explanation that differs from the decision"
    );
    NodeAccount {
        id: node.id,
        name: node.name.to_string(),
        filters,
        details,
        nominated: None,
        scores: vec![],
        total: None,
        rank: None,
    }
}

type Lines = HashMap<NodeId, Vec<(usize, ScoreAccount)>>;

fn node_scores(profile: &Profile, columns: &Columns, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Lines {
    let mut lines: Lines = nodes.iter().map(|id| (*id, vec![])).collect();
    for (i, (place, weight)) in profile.score.iter().enumerate() {
        let raw = |id: &NodeId| columns.raw_score(profile, i, pod, cluster.node(*id)?);
        let raws: Vec<Option<i64>> = nodes.iter().map(raw).collect();
        let largest = raws.iter().flatten().copied().max().unwrap_or(0);
        let rule = profile.score_at(*place).normalize_rule();
        for (id, raw) in nodes.iter().zip(raws) {
            let Some(raw) = raw else { continue };
            let line = ScoreAccount {
                plugin: profile.plugins[*place].name(),
                raw,
                normalized: share(rule, raw, largest),
                weight: *weight,
            };
            lines.get_mut(id).expect("every node has lines").push((i, line));
        }
    }
    lines
}

fn add_cluster_scores(
    profile: &Profile,
    cluster: &Cluster,
    pod: &PodInfo,
    nodes: &[NodeId],
    lines: &mut Lines,
) -> Result<(), CycleError> {
    if nodes.is_empty() {
        return Ok(());
    }
    let mut raws: Vec<i64> = vec![];
    cluster_scores(profile, cluster, pod, nodes, |i, stage, scores| match stage {
        Stage::Raw => raws = scores.to_vec(),
        Stage::Normalized => {
            let (place, weight) = profile.score[i];
            for (at, id) in nodes.iter().enumerate() {
                let line = ScoreAccount {
                    plugin: profile.plugins[place].name(),
                    raw: raws[at],
                    normalized: scores[at],
                    weight,
                };
                lines.get_mut(id).expect("every node has lines").push((i, line));
            }
        }
    })
}

fn rank(accounts: &mut [NodeAccount]) {
    accounts.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    let mut before = None;
    for (at, account) in accounts.iter_mut().enumerate() {
        let Some(total) = account.total else { break };
        let rank = match before {
            Some((t, r)) if t == total => r,
            _ => at + 1,
        };
        before = Some((total, rank));
        account.rank = Some(rank);
    }
}
