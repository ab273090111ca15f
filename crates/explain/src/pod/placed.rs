//! A pod that has a node: the decision as it would be made today.

use std::sync::Arc;

use orlop_scheduler::cluster::pod::PodInfo;

use super::{NodeRow, PodExplanation, PodFacts, PodState, counted, nodes, volumes, warn};
use crate::amount;
use crate::world::World;

pub(super) fn explain(world: &mut World, facts: &PodFacts, answer: &mut PodExplanation) {
    let node = facts.node.clone().unwrap_or_default();
    answer.state = PodState::Scheduled;
    let Some(placed) = world.placed_pod(&facts.key) else {
        answer.verdict = format!(
            "{} is on {node}. The reason is unknown: pods may not be listed.",
            facts.key
        );
        return;
    };
    answer.requests = amount::list(&placed.requests().exact);
    answer.volumes = volumes::rows(&world.cluster, &placed);
    let Some(profile) = world.profile_of(&facts.scheduler_name) else {
        answer.verdict = format!(
            "{} is on {node}, by scheduler {:?}, of which this configuration has no profile.",
            facts.key, facts.scheduler_name
        );
        return;
    };
    warn(world, &placed, profile, answer);
    // As if it were to be placed now: it must not be in its own way.
    let pod = Arc::new(placed.unbound());
    world.cluster.remove_pod(&placed.uid);
    judge(world, profile, facts, &pod, &node, answer);
    world.cluster.add_pod(placed);
}

fn judge(
    world: &mut World,
    profile: usize,
    facts: &PodFacts,
    pod: &Arc<PodInfo>,
    node: &str,
    answer: &mut PodExplanation,
) {
    let explanation = match world.core.explain(profile, &world.cluster, pod) {
        Ok(explanation) => explanation,
        Err(error) => {
            answer.verdict = format!("{} is on {node}. The reason is unknown: {error}.", facts.key);
            return;
        }
    };
    (answer.node_details, answer.reasons) = nodes::rows(&world.cluster, &explanation);
    answer.nodes.feasible = answer.node_details.iter().filter(|row| row.fits).count();
    answer.verdict = sentence(
        facts,
        node,
        answer,
        explanation.ruled_out.as_ref().map(|(_, r)| r.message()),
    );
}

fn sentence(facts: &PodFacts, node: &str, answer: &PodExplanation, ruled_out: Option<String>) -> String {
    let is_on = format!("{} is on {node}", facts.key);
    if let Some(reason) = ruled_out {
        return format!("{is_on}. Today it would go nowhere: {reason}.");
    }
    let Some(row) = answer.node_details.iter().find(|row| row.name == node) else {
        return format!("{is_on}, a node that does not exist (any more).");
    };
    let feasible = answer.nodes.feasible;
    let of = counted(answer.nodes.total, "node");
    if !row.fits {
        let reasons: Vec<&str> = (row.rejections.iter())
            .flat_map(|r| r.reasons.iter().map(String::as_str))
            .collect();
        let rest = match feasible {
            0 => "no other node would take it".to_string(),
            n => format!("{} would take it", counted(n, "other node")),
        };
        return format!(
            "{is_on}. Today that node would refuse it: {}; {rest}.",
            reasons.join(", ")
        );
    }
    if feasible == 1 {
        return format!("{is_on}: it is the only one of {of} that it fits.");
    }
    let (total, rank) = (row.total.unwrap_or(0), row.rank.unwrap_or(0));
    let ties = ties(&answer.node_details, row);
    match (rank, ties) {
        (1, 0) => format!("{is_on}: the best of {feasible} feasible ({of}) with {total} points."),
        (1, ties) => format!(
            "{is_on}: the best of {feasible} feasible ({of}) with {total} points, as good as {}; ties are broken at random.",
            counted(ties, "other")
        ),
        (rank, _) => {
            let best = &answer.node_details[0];
            format!(
                "{is_on}. Today it would rank {rank} of {feasible} feasible ({of}) with {total} points; {} has {}. The cluster \
                 was another when it was placed.",
                best.name,
                best.total.unwrap_or(0)
            )
        }
    }
}

/// Other nodes with the same total.
fn ties(rows: &[NodeRow], of: &NodeRow) -> usize {
    rows.iter()
        .filter(|row| row.fits && row.total == of.total)
        .count()
        .saturating_sub(1)
}
