//! What a Job's owner has said about failures and success: the pod failure policy and the success policy.
// Upstream: pkg/controller/job/{pod_failure_policy,success_policy}.go (v1.36)

use super::indexes::Indexes;
use crate::objects::Pod;
use crate::objects::job::{FailureRule, Job, OnExitCodes, SuccessRule};
use crate::objects::pod::ContainerStatus;

/// What a pod's failure means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It counts against the limits.
    Counts,
    /// As if it had not been.
    Ignored,
    /// Its index has failed for good.
    FailsIndex,
    /// The whole Job has failed; in words.
    FailsJob(String),
}

impl Failure {
    pub(super) fn counts(&self) -> bool {
        *self != Failure::Ignored
    }
}

/// The first rule that fits has the word.
pub(super) fn judge(job: &Job, pod: &Pod) -> Failure {
    let rules = job.spec.pod_failure_policy.as_ref().map_or(&[][..], |p| &p.rules[..]);
    for (place, rule) in rules.iter().enumerate() {
        let Some(what) = what_fits(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Failure::Ignored,
            "Count" => Failure::Counts,
            "FailIndex" => Failure::FailsIndex,
            "FailJob" => Failure::FailsJob(format!("{what} matching FailJob rule at index {place}")),
            // A rule from the future.
            _ => continue,
        };
    }
    Failure::Counts
}

/// In words, if the rule fits the pod.
fn what_fits(rule: &FailureRule, pod: &Pod) -> Option<String> {
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    if let Some(codes) = &rule.on_exit_codes {
        let lists = [&pod.status.container_statuses, &pod.status.init_container_statuses];
        let (container, code) = lists
            .into_iter()
            .flatten()
            .find_map(|status| Some((&status.name, matching_code(codes, status)?)))?;
        return Some(format!(
            "Container {container} for pod {namespace}/{name} failed with exit code {code}"
        ));
    }
    let fits = |kind: &str, status: &str| {
        let mut patterns = rule.on_pod_conditions.iter();
        patterns.any(|p| p.r#type == kind && p.status.as_deref().unwrap_or("True") == status)
    };
    let found = pod.status.conditions.iter().find(|c| fits(&c.r#type, &c.status))?;
    Some(format!("Pod {namespace}/{name} has condition {}", found.r#type))
}

/// Success never matches, and neither does a container that has not ended.
fn matching_code(codes: &OnExitCodes, status: &ContainerStatus) -> Option<i32> {
    let code = status.state.terminated.as_ref()?.exit_code;
    let concerned = codes.container_name.as_ref().is_none_or(|name| *name == status.name);
    let matching = match codes.operator.as_str() {
        "In" => codes.values.contains(&code),
        "NotIn" => !codes.values.contains(&code),
        _ => false,
    };
    (concerned && code != 0 && matching).then_some(code)
}

/// Why enough has succeeded, if it has.
pub(super) fn success(job: &Job, succeeded: &Indexes) -> Option<String> {
    let policy = job.spec.success_policy.as_ref()?;
    let completions = job.spec.completions.unwrap_or(0);
    let place = policy
        .rules
        .iter()
        .position(|rule| enough(rule, completions, succeeded))?;
    Some(format!("Matched rules at index {place}"))
}

fn enough(rule: &SuccessRule, completions: i64, succeeded: &Indexes) -> bool {
    if succeeded.is_empty() {
        return false;
    }
    let Some(text) = &rule.succeeded_indexes else {
        return rule.succeeded_count.is_some_and(|count| succeeded.count() >= count);
    };
    let wanted = Indexes::parse(text, completions);
    let there = wanted.common(succeeded);
    !wanted.is_empty() && (there == wanted.count() || rule.succeeded_count.is_some_and(|count| there >= count))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value) -> Job {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn pod(exit_codes: &[(&str, Option<i32>)], init: Option<i32>, condition: &str) -> Pod {
        let status = |(name, code): &(&str, Option<i32>)| match code {
            Some(code) => json!({"name": name, "state": {"terminated": {"exitCode": code}}}),
            None => json!({"name": name, "state": {"running": {}}}),
        };
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "status": {"containerStatuses": exit_codes.iter().map(status).collect::<Vec<_>>(),
                       "initContainerStatuses": init.iter().map(|c| status(&("init", Some(*c)))).collect::<Vec<_>>(),
                       "conditions": [{"type": condition, "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_first_fitting_rule_judges() {
        let policy = job(json!({"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42, 43]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [7]}},
            {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}},
            {"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "True"}]},
        ]}}));
        let fails = |text: &str| Failure::FailsJob(text.to_string());
        for (pod, wanted) in [
            (pod(&[("main", Some(42))], None, "DisruptionTarget"), Failure::Ignored),
            (
                pod(&[("main", Some(42))], None, ""),
                fails("Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 1"),
            ),
            (pod(&[("side", Some(42))], None, ""), Failure::Counts),
            (pod(&[("side", None), ("main", Some(7))], None, ""), Failure::FailsIndex),
            (pod(&[("main", Some(0))], Some(7), ""), Failure::FailsIndex),
            (
                pod(&[("main", Some(2))], None, "ConfigIssue"),
                fails("Pod ns/p has condition ConfigIssue matching FailJob rule at index 4"),
            ),
            (pod(&[("main", Some(1))], None, ""), Failure::Counts),
            (pod(&[("main", Some(0))], None, ""), Failure::Counts),
        ] {
            assert_eq!(judge(&policy, &pod), wanted, "{:?}", pod.status);
        }
        assert_eq!(
            judge(&job(json!({})), &pod(&[("main", Some(1))], None, "")),
            Failure::Counts
        );
    }

    #[test]
    fn success_by_policy() {
        for (rules, succeeded, wanted) in [
            (json!([{"succeededIndexes": "0-2"}]), "0,1", None),
            (
                json!([{"succeededIndexes": "0-2"}]),
                "0-4",
                Some("Matched rules at index 0"),
            ),
            (
                json!([{"succeededIndexes": "0-2", "succeededCount": 2}]),
                "1,2",
                Some("Matched rules at index 0"),
            ),
            (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), "2-9", None),
            (
                json!([{"succeededCount": 3}, {"succeededCount": 2}]),
                "0,9",
                Some("Matched rules at index 1"),
            ),
            (json!([{"succeededIndexes": "x"}]), "0-9", None),
            (json!([{"succeededCount": 0}]), "", None),
        ] {
            let job = job(json!({"completions": 10, "successPolicy": {"rules": rules}}));
            let found = success(&job, &Indexes::parse(succeeded, 10));
            assert_eq!(found.as_deref(), wanted, "{:?} {succeeded}", job.spec.success_policy);
        }
        assert_eq!(success(&job(json!({"completions": 1})), &Indexes::parse("0", 1)), None);
    }
}
