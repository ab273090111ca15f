//! A pod without a node.

use std::sync::Arc;

use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::cycle::ScheduleFailure;
use orlop_scheduler::fit_error::FitError;
use orlop_scheduler::preemption::{Preemption, best};

use super::{PodExplanation, PodFacts, PodState, PreemptionAccount, Victim, counted, nodes, queue, volumes, warn};
use crate::amount;
use crate::world::World;

/// Reasons that the sentence tells; the table has all of them.
const REASONS: usize = 3;

pub(super) fn explain(world: &mut World, facts: &PodFacts, answer: &mut PodExplanation) {
    let Some(pod) = world.pending.get(&facts.key).cloned() else {
        answer.verdict = match unreadable(world, "pods") {
            Some(message) => format!("{} can't be judged: you may not list pods ({message}).", facts.key),
            None => format!(
                "{} can't be judged: it changed while the cluster was read. Ask again.",
                facts.key
            ),
        };
        return tell_what_was_written(facts, answer);
    };
    let info = world.cluster.decode(pod);
    answer.requests = amount::list(&info.class.requests.exact);
    answer.volumes = volumes::rows(&world.cluster, &info);
    let profile = world.profile_of(&facts.scheduler_name);
    let Some(profile) = profile else {
        let queue = queue::state(world, facts, None, None, None);
        answer.verdict = format!("{} is not for this scheduler: {}.", facts.key, queue.message);
        answer.queue = Some(queue);
        return;
    };
    warn(world, &info, profile, answer);
    if let Some(message) = unreadable(world, "nodes") {
        answer.verdict = format!("{} can't be judged: you may not list nodes ({message}).", facts.key);
        return tell_what_was_written(facts, answer);
    }
    judge(world, facts, profile, &info, answer);
}

fn unreadable(world: &World, resource: &str) -> Option<String> {
    let found = world.unreadable.iter().find(|u| u.resource == resource);
    found.map(|u| u.message.clone())
}

/// Too little may be read: what the scheduler wrote is all there is.
fn tell_what_was_written(facts: &PodFacts, answer: &mut PodExplanation) {
    if let Some(message) = facts.scheduled_message() {
        answer.verdict += &format!(" What the scheduler wrote last: {message}");
    }
}

fn judge(world: &mut World, facts: &PodFacts, profile: usize, info: &Arc<PodInfo>, answer: &mut PodExplanation) {
    let gate = gate(world, profile, info);
    let unfit = match world.core.feasible(profile, &world.cluster, info) {
        Ok(_) => None,
        Err(ScheduleFailure::Unfit(error)) => Some(*error),
        Err(ScheduleFailure::Error(error)) => {
            answer.verdict = format!("{} can't be judged: {error}.", facts.key);
            return;
        }
    };
    let explanation = match world.core.explain(profile, &world.cluster, info) {
        Ok(explanation) => explanation,
        Err(error) => {
            answer.verdict = format!("{} can't be judged: {error}.", facts.key);
            return;
        }
    };
    (answer.node_details, answer.reasons) = nodes::rows(&world.cluster, &explanation);
    answer.nodes.feasible = answer.node_details.iter().filter(|row| row.fits).count();
    let mut rejected_by: Vec<&'static str> = vec![];
    if let Some(error) = &unfit {
        rejected_by.extend(error.diagnosis.rejected_by.iter().copied());
        answer.preemption = preemption(world, profile, info, error);
    }
    let ruled_out = explanation.ruled_out.as_ref();
    let queue = queue::state(
        world,
        facts,
        Some(profile),
        gate.as_deref(),
        unfit.is_some().then_some(&rejected_by),
    );
    answer.state = match (&gate, &unfit, queue.state) {
        (Some(_), _, _) => PodState::Gated,
        (None, Some(_), "Preempting") => PodState::Preempting,
        (None, Some(_), _) => PodState::Unschedulable,
        (None, None, _) => PodState::Schedulable,
    };
    answer.queue = Some(queue);
    answer.verdict = match (&gate, &unfit) {
        (Some(gate), _) => format!("{} is not tried: {gate}.{}", facts.key, fits_beside(answer)),
        (None, Some(_)) => match ruled_out {
            Some((plugin, rejection)) => {
                format!(
                    "{} fits no node, whichever it is: {} ({plugin}).",
                    facts.key,
                    rejection.message()
                )
            }
            None => unschedulable(facts, answer),
        },
        (None, None) => schedulable(world, profile, facts, info, answer),
    };
}

/// What a PreEnqueue plugin says.
fn gate(world: &World, profile: usize, pod: &PodInfo) -> Option<String> {
    let profile = &world.core.profiles[profile];
    let mut plugins = profile
        .pre_enqueue
        .iter()
        .filter_map(|place| profile.plugins[*place].pre_enqueue());
    let rejection = plugins.find_map(|plugin| plugin.pre_enqueue(pod).err())?;
    Some(rejection.message())
}

fn fits_beside(answer: &PodExplanation) -> String {
    match answer.nodes.feasible {
        0 => " Without that it would fit no node either.".into(),
        n => format!(
            " Without that it would fit {} of {}.",
            n,
            counted(answer.nodes.total, "node")
        ),
    }
}

fn unschedulable(facts: &PodFacts, answer: &PodExplanation) -> String {
    if answer.nodes.total == 0 {
        return format!("{} fits nowhere: the cluster has no nodes.", facts.key);
    }
    let told = answer
        .reasons
        .iter()
        .take(REASONS)
        .map(|row| match row.summary.as_str() {
            "" => format!("{} {}", row.nodes, row.reason),
            summary => {
                // Of several facts the commonest; the table has the others.
                let (first, more) = summary
                    .split_once("; ")
                    .map_or((summary, ""), |(first, _)| (first, ", …"));
                format!("{} {} ({first}{more})", row.nodes, row.reason)
            }
        });
    let mut text = told.collect::<Vec<_>>().join(", ");
    let more = answer.reasons.len().saturating_sub(REASONS);
    if more > 0 {
        text += &format!(", and {}", counted(more, "more reason"));
    }
    let nodes = match answer.nodes.total {
        1 => "does not fit the only node".to_string(),
        n => format!("fits none of {n} nodes"),
    };
    let mut sentence = format!("{} {nodes}: {text}.", facts.key);
    match (&facts.nominated_node, &answer.preemption) {
        (Some(node), _) => sentence += &format!(" Evictions are making room on {node}."),
        (None, Some(account)) if account.possible => {
            sentence += &format!(" Preemption would help: {}.", account.message)
        }
        _ => {}
    }
    sentence
}

fn schedulable(
    world: &mut World,
    profile: usize,
    facts: &PodFacts,
    info: &Arc<PodInfo>,
    answer: &PodExplanation,
) -> String {
    let choice = world.core.schedule(profile, &world.cluster, info);
    let goes = match choice {
        Ok(choice) => format!("; it would go to {}", world.node_name(choice.node)),
        Err(_) => String::new(),
    };
    format!(
        "{} fits {} of {} now{goes}. {}.",
        facts.key,
        answer.nodes.feasible,
        counted(answer.nodes.total, "node"),
        answer
            .queue
            .as_ref()
            .map_or_else(String::new, |queue| capitalized(&queue.message))
    )
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What evicting pods of lower priority could do: by the code that would do it.
fn preemption(world: &mut World, profile: usize, pod: &Arc<PodInfo>, error: &FitError) -> Option<PreemptionAccount> {
    let none = |message: String| PreemptionAccount {
        possible: false,
        message,
        node: None,
        victims: vec![],
        budget_violations: 0,
    };
    let Some(args) = world.preemption[profile] else {
        return Some(none("the profile has no DefaultPreemption plugin".into()));
    };
    if error.all_nodes == 0 {
        return None;
    }
    let found = world
        .core
        .preempt(profile, &world.cluster, pod, &error.diagnosis, &args);
    let best = match found {
        Preemption::Hopeless { message, .. } => {
            let message = message.strip_prefix("preemption: ").unwrap_or(&message);
            return Some(none(message.to_string()));
        }
        Preemption::Candidates(candidates) => best(candidates)?,
    };
    let victims: Vec<Victim> = (best.victims.iter())
        .map(|victim| Victim {
            namespace: victim.key.namespace.to_string(),
            name: victim.key.name.to_string(),
            priority: victim.priority(),
        })
        .collect();
    let names: Vec<String> = victims
        .iter()
        .map(|v| format!("{}/{} (priority {})", v.namespace, v.name, v.priority))
        .collect();
    let against = match best.violations {
        0 => String::new(),
        n => format!(", against the PodDisruptionBudgets of {n}"),
    };
    Some(PreemptionAccount {
        possible: true,
        message: format!("evicting {} makes room on {}{against}", names.join(", "), best.name),
        node: Some(best.name.to_string()),
        victims,
        budget_violations: best.violations,
    })
}
