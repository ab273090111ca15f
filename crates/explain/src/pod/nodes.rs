//! Nodes in an explanation: one row each, and the reasons that they have in common.

use std::collections::{BTreeMap, HashMap};

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::node::NodeInfo;
use orlop_scheduler::explain::{Explanation, NodeAccount};
use orlop_scheduler::framework::detail::Detail;
use serde::{Serialize, Serializer};

use crate::{amount, detail};

/// Pods that are named as the largest of a node.
const LARGEST: usize = 3;
/// Nodes of which they are named: those that lack least.
const LARGEST_ROWS: usize = 50;
/// Different facts that a reason's summary tells.
const FACTS: usize = 3;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    pub name: String,
    pub fits: bool,
    pub rejections: Vec<PluginRejection>,
    /// Pods of equal or higher priority that are nominated to the node are in the way, and nothing else.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nominated_pods_in_the_way: bool,
    /// Where a resource is short: the pods that request most of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub largest_pods: Vec<LargePod>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<ScoreRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LargePod {
    pub pod: String,
    pub resource: String,
    pub requested: String,
    pub priority: i32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginRejection {
    pub plugin: &'static str,
    pub reasons: Vec<String>,
    #[serde(serialize_with = "as_json")]
    pub details: Vec<Detail>,
    /// Evicting pods of the node could change it.
    pub preemption_may_help: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreRow {
    pub plugin: &'static str,
    pub raw: i64,
    pub normalized: i64,
    pub weight: i64,
    pub weighted: i64,
}

/// What nodes have in common.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonRow {
    pub plugin: &'static str,
    /// In Kubernetes' words.
    pub reason: String,
    pub nodes: usize,
    /// Nodes that nothing else keeps off.
    pub only_reason: usize,
    /// The figures, put together.
    pub summary: String,
    pub preemption_may_help: bool,
    pub names: Vec<String>,
}

fn as_json<S: Serializer>(details: &[Detail], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(details.iter().map(detail::json))
}

/// Rows for all nodes, and the reasons they share, the commonest first.
pub(super) fn rows(cluster: &Cluster, explanation: &Explanation) -> (Vec<NodeRow>, Vec<ReasonRow>) {
    let mut rows: Vec<NodeRow> = (explanation.nodes.iter()).map(row).collect();
    // Those that fit are in order already.
    rows.sort_by_cached_key(|row| (!row.fits, if row.fits { (0, 0) } else { distance(row) }));
    for row in rows.iter_mut().filter(|row| !row.fits).take(LARGEST_ROWS) {
        let node = cluster.node_named(&row.name);
        row.largest_pods = short_of(row)
            .zip(node)
            .map_or(vec![], |(resource, node)| largest(node, &resource));
    }
    let reasons = reasons(&rows);
    (rows, reasons)
}

fn row(account: &NodeAccount) -> NodeRow {
    let mut details: BTreeMap<&str, Vec<Detail>> = BTreeMap::new();
    for (plugin, detail) in &account.details {
        details.entry(plugin).or_default().push(detail.clone());
    }
    let rejected = (account.filters.iter()).filter_map(|(plugin, rejection)| Some((*plugin, rejection.as_ref()?)));
    let rejections: Vec<PluginRejection> = rejected
        .chain(account.nominated.iter().map(|(plugin, rejection)| (*plugin, rejection)))
        .map(|(plugin, rejection)| PluginRejection {
            plugin,
            reasons: rejection.reasons().map(str::to_string).collect(),
            details: details.remove(plugin).unwrap_or_default(),
            preemption_may_help: !rejection.unresolvable,
        })
        .collect();
    NodeRow {
        name: account.name.clone(),
        fits: account.fits(),
        rejections,
        nominated_pods_in_the_way: account.nominated.is_some(),
        largest_pods: vec![],
        scores: (account.scores.iter())
            .map(|score| ScoreRow {
                plugin: score.plugin,
                raw: score.raw,
                normalized: score.normalized,
                weight: score.weight,
                weighted: score.weight * score.normalized,
            })
            .collect(),
        total: account.total,
        rank: account.rank,
    }
}

/// The first resource that is short.
fn short_of(row: &NodeRow) -> Option<String> {
    let mut details = row.rejections.iter().flat_map(|r| &r.details);
    details.find_map(|detail| match detail {
        Detail::Resource { resource, .. } => Some(resource.clone()),
        _ => None,
    })
}

fn largest(node: &NodeInfo, resource: &str) -> Vec<LargePod> {
    let amount_of = |pod: &orlop_scheduler::cluster::pod::PodInfo| pod.requests().exact.amount(resource);
    let mut pods: Vec<_> = node.pods.iter().filter(|pod| amount_of(pod) > 0).collect();
    pods.sort_by(|a, b| amount_of(b).cmp(&amount_of(a)).then_with(|| a.key.cmp(&b.key)));
    let largest = pods.into_iter().take(LARGEST);
    largest
        .map(|pod| LargePod {
            pod: pod.key.to_string(),
            resource: resource.to_string(),
            requested: amount::exact(resource, amount_of(pod)),
            priority: pod.priority(),
        })
        .collect()
}

/// How far a node is from taking the pod: reasons, then what is short, in thousandths of what is requested.
fn distance(row: &NodeRow) -> (usize, i64) {
    let reasons = row.rejections.iter().map(|r| r.reasons.len()).sum();
    let shortage = row
        .rejections
        .iter()
        .flat_map(|r| &r.details)
        .map(|detail| match detail {
            Detail::Resource {
                requested,
                used,
                allocatable,
                ..
            } => {
                let missing = requested.saturating_sub(allocatable.saturating_sub(*used));
                missing.saturating_mul(1000).checked_div(*requested).unwrap_or(0)
            }
            _ => 0,
        });
    (reasons, shortage.max().unwrap_or(0))
}

fn reasons(rows: &[NodeRow]) -> Vec<ReasonRow> {
    struct Group<'a> {
        names: Vec<String>,
        only: usize,
        details: Vec<(&'a str, &'a Detail)>,
        preemption_may_help: bool,
        nominated: bool,
    }
    let mut groups: BTreeMap<(&'static str, &str), Group> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.fits) {
        let all = row.rejections.iter().map(|r| r.reasons.len()).sum::<usize>();
        for rejection in &row.rejections {
            for reason in &rejection.reasons {
                let group = groups.entry((rejection.plugin, reason)).or_insert_with(|| Group {
                    names: vec![],
                    only: 0,
                    details: vec![],
                    preemption_may_help: false,
                    nominated: false,
                });
                group.names.push(row.name.clone());
                group.only += usize::from(all == 1);
                group.preemption_may_help |= rejection.preemption_may_help;
                group.nominated |= row.nominated_pods_in_the_way;
                let own = rejection.details.iter().filter(|detail| is_behind(detail, reason));
                group.details.extend(own.map(|detail| (row.name.as_str(), detail)));
            }
        }
    }
    let rows = groups.into_iter().map(|((plugin, reason), mut group)| {
        group.names.sort();
        ReasonRow {
            plugin,
            reason: reason.to_string(),
            nodes: group.names.len(),
            only_reason: group.only,
            summary: match group.nominated && group.details.is_empty() {
                true => "once the pods nominated to the node are there".to_string(),
                false => summary(&group.details),
            },
            preemption_may_help: group.preemption_may_help,
            names: group.names,
        }
    });
    let mut rows: Vec<ReasonRow> = rows.collect();
    rows.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    rows
}

/// A plugin with several reasons gives facts for each of them.
fn is_behind(detail: &Detail, reason: &str) -> bool {
    match detail {
        Detail::Resource { resource, .. } => reason.strip_prefix("Insufficient ") == Some(resource),
        Detail::Pods { .. } => reason == "Too many pods",
        Detail::MissingTopologyKey { .. } => reason.contains("missing required label") || reason.contains("affinity"),
        Detail::Spread { .. } => !reason.contains("missing required label"),
        Detail::PodAffinity { .. } => reason.contains("match pod affinity"),
        Detail::PodAntiAffinity { .. } => reason.contains("match pod anti-affinity"),
        Detail::ExistingAntiAffinity { .. } => reason.contains("existing pods"),
        _ => true,
    }
}

fn summary(details: &[(&str, &Detail)]) -> String {
    if let Some((
        _,
        Detail::Resource {
            resource, requested, ..
        },
    )) = details.first()
    {
        let free = |detail: &Detail| match detail {
            Detail::Resource { used, allocatable, .. } => allocatable.saturating_sub(*used).max(0),
            _ => 0,
        };
        let whole = |detail: &Detail| match detail {
            Detail::Resource { allocatable, .. } => *allocatable,
            _ => 0,
        };
        let short = |amount| amount::short(resource, amount);
        let largest = details.iter().map(|(_, d)| whole(d)).max().unwrap_or(0);
        if *requested > largest {
            return format!(
                "needs {}, the largest of them has {}",
                short(*requested),
                short(largest)
            );
        }
        // The first of those with most.
        let best = details.iter().rev().max_by_key(|(_, d)| free(d));
        let (node, most) = best.map_or(("", 0), |(node, d)| (*node, free(d)));
        return format!("needs {}, at most {} free ({node})", short(*requested), short(most));
    }
    // Many nodes have few different facts: text is made of those only.
    let mut counts: HashMap<&Detail, usize> = HashMap::new();
    for (_, detail) in details {
        *counts.entry(detail).or_default() += 1;
    }
    let mut facts: Vec<(String, usize)> = (counts.into_iter())
        .map(|(detail, nodes)| (detail::text(detail), nodes))
        .collect();
    facts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let more = facts.len().saturating_sub(FACTS);
    let single = facts.len() == 1;
    let told = facts.into_iter().take(FACTS).map(|(text, nodes)| match single {
        true => text,
        false => format!("{text} on {nodes}"),
    });
    let mut text = told.collect::<Vec<_>>().join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    text
}
