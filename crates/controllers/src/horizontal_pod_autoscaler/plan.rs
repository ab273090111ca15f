//! From measurements to a size, and what to say of it.
// Upstream: pkg/controller/podautoscaler/horizontal.go reconcileAutoscaler (v1.36)

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::quantity::{Format, Quantity};
use orlop_api::selector::LabelSelector;
use serde_json::{Value, json};

use super::PodMetricsError;
use super::limits::{self, ScalingHistory, Sizes};
use super::usage::{self, Proposal, Question, Target, Tolerances, Warmup};
use crate::objects::horizontal_pod_autoscaler::{
    AutoscalerStatus, HorizontalPodAutoscaler, MetricSpec, PodMetrics, ResourceMetric, Scale,
};
use crate::objects::{Condition, Pod};
use crate::runtime::Key;

/// What is the same for all autoscalers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub tolerance: f64,
    pub down_window: Duration,
    pub warmup: Warmup,
}

/// What the target's pods are, and what they used.
pub(super) struct Observed<'a> {
    pub pods: &'a [Arc<Pod>],
    pub metrics: &'a Result<Vec<PodMetrics>, PodMetricsError>,
    /// Autoscalers that have some of these pods, this one among them.
    pub autoscalers: &'a [Key],
}

#[derive(Debug)]
pub(super) struct Note {
    pub warning: bool,
    pub reason: &'static str,
    pub text: String,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub status: AutoscalerStatus,
    pub rescale: Option<Rescale>,
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rescale {
    pub from: i64,
    pub to: i64,
    pub reason: String,
}

/// Whether measurements decide; else the bounds do, or nothing.
pub(super) fn needs_metrics(hpa: &HorizontalPodAutoscaler, current: i64) -> bool {
    current != 0 && (min_replicas(hpa)..=hpa.spec.max_replicas).contains(&current)
}

fn min_replicas(hpa: &HorizontalPodAutoscaler) -> i64 {
    hpa.spec.min_replicas.unwrap_or(1)
}

impl Plan {
    pub(super) fn new(hpa: &HorizontalPodAutoscaler) -> Plan {
        Plan {
            status: hpa.status.clone(),
            rescale: None,
            notes: vec![],
        }
    }

    fn set_condition(&mut self, kind: &str, state: &str, (reason, message): (&str, &str), now: Timestamp) {
        set_condition(&mut self.status.conditions, kind, state, reason, message, now);
    }

    fn warn(&mut self, reason: &'static str, text: impl Into<String>) {
        self.notes.push(Note {
            warning: true,
            reason,
            text: text.into(),
        });
    }

    /// The scale subresource could not be read.
    pub(super) fn without_scale(mut self, error: &str, now: Timestamp) -> Plan {
        self.warn("FailedGetScale", error);
        let message = format!("the HPA controller was unable to get the target's current scale: {error}");
        self.set_condition("AbleToScale", "False", ("FailedGetScale", &message), now);
        self
    }

    /// The target has the new size.
    pub(super) fn rescaled(&mut self, hpa: &HorizontalPodAutoscaler, memory: &mut ScalingHistory, now: Timestamp) {
        let Some(Rescale { from, to, reason }) = self.rescale.clone() else {
            return;
        };
        let message = format!("the HPA controller was able to update the target scale to {to}");
        self.set_condition("AbleToScale", "True", ("SucceededRescale", &message), now);
        self.notes.push(Note {
            warning: false,
            reason: "SuccessfulRescale",
            text: format!("New size: {to}; reason: {reason}"),
        });
        limits::note_change(memory, hpa.spec.behavior.as_ref(), from, to, now);
        self.status.desired_replicas = to;
        self.status.last_scale_time = Some(whole_seconds(now));
    }

    pub(super) fn not_rescaled(&mut self, hpa: &HorizontalPodAutoscaler, error: &str, now: Timestamp) {
        let Some(Rescale { to, reason, .. }) = self.rescale.clone() else {
            return;
        };
        self.warn(
            "FailedRescale",
            format!("New size: {to}; reason: {reason}; error: {error}"),
        );
        let message = format!("the HPA controller was unable to update the target scale: {error}");
        self.set_condition("AbleToScale", "False", ("FailedUpdateScale", &message), now);
        self.status.desired_replicas = hpa.status.desired_replicas;
    }
}

pub(super) fn plan(
    hpa: &HorizontalPodAutoscaler,
    scale: &Scale,
    observed: Option<&Observed<'_>>,
    config: &Config,
    memory: &mut ScalingHistory,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::new(hpa);
    let current = scale.spec.replicas;
    let able = (
        "SucceededGetScale",
        "the HPA controller was able to get the target's current scale",
    );
    plan.set_condition("AbleToScale", "True", able, now);
    if memory.recommendations.is_empty() {
        memory.recommendations.push((current, now));
    }
    plan.status.current_replicas = current;
    plan.status.current_metrics = vec![];
    plan.status.conditions.retain(|c| c.r#type != "ScaledToZero");
    let wanted = if let Some(observed) = observed {
        by_metrics(&mut plan, hpa, scale, observed, config, memory, now)
    } else {
        by_bounds(&mut plan, hpa, current, now)
    };
    let Some((to, reason)) = wanted else { return plan };
    if to == current {
        plan.status.desired_replicas = current;
    } else {
        plan.rescale = Some(Rescale {
            from: current,
            to,
            reason,
        });
    }
    plan
}

/// Outside of its bounds the size goes back into them, whatever is measured. Nothing is done at zero: somebody has switched
/// the scaling off.
fn by_bounds(plan: &mut Plan, hpa: &HorizontalPodAutoscaler, current: i64, now: Timestamp) -> Option<(i64, String)> {
    let (min, max) = (min_replicas(hpa), hpa.spec.max_replicas);
    if current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        plan.set_condition("ScalingActive", "False", ("ScalingDisabled", message), now);
        return Some((0, String::new()));
    }
    let (to, reason) = match current > max {
        true => (max, "Current number of replicas above Spec.MaxReplicas"),
        false => (min, "Current number of replicas below Spec.MinReplicas"),
    };
    Some((to, reason.to_string()))
}

/// None if it can't be determined.
fn by_metrics(
    plan: &mut Plan,
    hpa: &HorizontalPodAutoscaler,
    scale: &Scale,
    observed: &Observed<'_>,
    config: &Config,
    memory: &mut ScalingHistory,
    now: Timestamp,
) -> Option<(i64, String)> {
    let current = scale.spec.replicas;
    let (desired, name) = match propose(plan, hpa, scale, observed, config, now) {
        Ok(found) => found,
        Err(error) => {
            plan.warn("FailedComputeMetricsReplicas", error.to_string());
            return None;
        }
    };
    let reason = match desired.cmp(&current) {
        std::cmp::Ordering::Greater => format!("{name} above target"),
        std::cmp::Ordering::Less => "All metrics below target".to_string(),
        std::cmp::Ordering::Equal => String::new(),
    };
    let sizes = Sizes {
        current,
        desired,
        min: min_replicas(hpa),
        max: hpa.spec.max_replicas,
    };
    let limited = limits::limit(sizes, hpa.spec.behavior.as_ref(), config.down_window, memory, now);
    let ready = ("ReadyForNewScale", "recommended size matches current size");
    plan.set_condition("AbleToScale", "True", limited.stabilized.unwrap_or(ready), now);
    let state = if limited.is_limited { "True" } else { "False" };
    plan.set_condition("ScalingLimited", state, limited.why, now);
    Some((limited.replicas, reason))
}

/// Why there is no size to go for.
#[derive(Debug, thiserror::Error)]
enum ProposalError {
    /// It is not clear whose pods they are.
    #[error("{0}")]
    Selector(String),
    #[error("{0}")]
    Metrics(String),
}

/// Why a resource metric says nothing.
#[derive(Debug, thiserror::Error)]
enum ResourceMetricError {
    /// It has no target.
    #[error(
        "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set"
    )]
    NoTarget,
    #[error("failed to get {resource} {what}: {reason}")]
    Unavailable {
        resource: String,
        what: &'static str,
        reason: String,
    },
}

/// The largest size that a metric asks for, and its name. If some metrics are unavailable, the others may still ask for
/// more pods, but not for fewer.
fn propose(
    plan: &mut Plan,
    hpa: &HorizontalPodAutoscaler,
    scale: &Scale,
    observed: &Observed<'_>,
    config: &Config,
    now: Timestamp,
) -> Result<(i64, String), ProposalError> {
    check_selector(plan, scale, observed, now)?;
    let (mut best, mut first_error): (Option<(i64, String)>, Option<(&'static str, String, String)>) = (None, None);
    let mut failures = 0;
    for spec in &hpa.spec.metrics {
        match one_metric(hpa, spec, scale, observed, config, now) {
            Ok((proposal, name, status)) => {
                plan.status.current_metrics.push(status);
                if best.as_ref().is_none_or(|(most, _)| proposal.replicas > *most) {
                    best = Some((proposal.replicas, name));
                }
            }
            Err((reason, inner, error)) => {
                failures += 1;
                plan.status.current_metrics.push(json!({"type": ""}));
                plan.warn(reason, inner.clone());
                first_error.get_or_insert((reason, inner, error));
            }
        }
    }
    let fewer = best.as_ref().is_none_or(|(most, _)| *most < scale.spec.replicas);
    match (best, first_error) {
        (Some((replicas, name)), error) if error.is_none() || !fewer => {
            let message = format!("the HPA was able to successfully calculate a replica count from {name}");
            plan.set_condition("ScalingActive", "True", ("ValidMetricFound", &message), now);
            Ok((replicas, name))
        }
        (_, Some((reason, inner, error))) => {
            let message = format!("the HPA was unable to compute the replica count: {inner}");
            plan.set_condition("ScalingActive", "False", (reason, &message), now);
            let all = hpa.spec.metrics.len();
            Err(ProposalError::Metrics(format!(
                "invalid metrics ({failures} invalid out of {all}), first error is: {error}"
            )))
        }
        (_, None) => Err(ProposalError::Metrics("there are no metrics to go by".to_string())),
    }
}

fn check_selector(
    plan: &mut Plan,
    scale: &Scale,
    observed: &Observed<'_>,
    now: Timestamp,
) -> Result<(), ProposalError> {
    let selector = &scale.status.selector;
    if selector.is_empty() {
        plan.warn("SelectorRequired", "selector is required");
        let message = "the HPA target's scale is missing a selector";
        plan.set_condition("ScalingActive", "False", ("InvalidSelector", message), now);
        return Err(ProposalError::Selector("selector is required".to_string()));
    }
    if let Err(why) = LabelSelector::parse(selector) {
        let text = format!("couldn't convert selector into a corresponding internal selector object: {why}");
        plan.warn("InvalidSelector", text.clone());
        plan.set_condition("ScalingActive", "False", ("InvalidSelector", &text), now);
        return Err(ProposalError::Selector(text));
    }
    if observed.autoscalers.len() > 1 {
        let keys = observed
            .autoscalers
            .iter()
            .map(|key| format!("{{{} {}}}", key.name, key.namespace));
        let keys: Vec<String> = keys.collect();
        let text = format!(
            "pods by selector {selector} are controlled by multiple HPAs: [{}]",
            keys.join(" ")
        );
        plan.warn("AmbiguousSelector", text.clone());
        plan.set_condition("ScalingActive", "False", ("AmbiguousSelector", &text), now);
        return Err(ProposalError::Selector(text));
    }
    Ok(())
}

/// A reason in one word, what went wrong, and the same with the metric's name.
type MetricError = (&'static str, String, String);

fn one_metric(
    hpa: &HorizontalPodAutoscaler,
    spec: &MetricSpec,
    scale: &Scale,
    observed: &Observed<'_>,
    config: &Config,
    now: Timestamp,
) -> Result<(Proposal, String, Value), MetricError> {
    let absent = |reason, what: &str, api: &str, metric: &str| {
        let inner = format!(
            "unable to get metric {metric}: unable to fetch metrics from {api} metrics API: no {api} metrics API \
             ({api}.metrics.k8s.io) registered"
        );
        let error = format!("failed to get {what} metric value: {inner}");
        Err((reason, inner, error))
    };
    let name = |metric: &Option<_>| metric.as_ref().map_or("", name_of).to_string();
    match spec.r#type.as_str() {
        "Resource" => {
            let metric = spec.resource.clone().unwrap_or_default();
            one_resource(hpa, &metric, scale, observed, config, now).map_err(|inner| {
                let error = format!("failed to get {} resource metric value: {inner}", metric.name);
                ("FailedGetResourceMetric", inner.to_string(), error)
            })
        }
        "ContainerResource" => {
            let metric = spec.container_resource.clone().unwrap_or_default();
            one_resource(hpa, &metric, scale, observed, config, now).map_err(|inner| {
                let error = format!("failed to get {} container metric value: {inner}", metric.container);
                ("FailedGetContainerResourceMetric", inner.to_string(), error)
            })
        }
        "Pods" => absent("FailedGetPodsMetric", "pods", "custom", &name(&spec.pods)),
        "Object" => absent("FailedGetObjectMetric", "object", "custom", &name(&spec.object)),
        "External" => {
            let metric = name(&spec.external);
            absent(
                "FailedGetExternalMetric",
                &format!("{metric} external"),
                "external",
                &metric,
            )
        }
        other => {
            let error = format!("unknown metric source type {other:?}");
            Err(("InvalidMetricSourceType", error.clone(), error))
        }
    }
}

fn name_of(metric: &crate::objects::horizontal_pod_autoscaler::OtherMetric) -> &str {
    &metric.metric.name
}

fn one_resource(
    hpa: &HorizontalPodAutoscaler,
    metric: &ResourceMetric,
    scale: &Scale,
    observed: &Observed<'_>,
    config: &Config,
    now: Timestamp,
) -> Result<(Proposal, String, Value), ResourceMetricError> {
    let (resource, container) = (&metric.name, &metric.container);
    let milli = |text: &String| Quantity::parse(text).ok().map(|q| q.milli_value());
    let (target, what) = match (&metric.target.average_value, metric.target.average_utilization) {
        (Some(value), _) => (Target::Average(milli(value).unwrap_or(0)), "usage"),
        (None, Some(percent)) => (Target::Utilization(percent), "utilization"),
        (None, None) => return Err(ResourceMetricError::NoTarget),
    };
    let failed = |reason: String| ResourceMetricError::Unavailable {
        resource: resource.clone(),
        what,
        reason,
    };
    let unavailable = |why: &str| failed(format!("unable to get metrics for resource {resource}: {why}"));
    let metrics = match observed.metrics {
        Ok(metrics) if metrics.is_empty() => Err(unavailable("no metrics returned from resource metrics API")),
        Ok(metrics) => Ok(metrics),
        Err(error) => Err(unavailable(&format!(
            "unable to fetch metrics from resource metrics API: {error}"
        ))),
    }?;
    let question = Question {
        current: scale.spec.replicas,
        pods: observed.pods,
        samples: usage::samples(metrics, resource, container),
        resource,
        container,
        target,
        tolerances: tolerances(hpa, config),
        warmup: config.warmup,
        now,
    };
    let proposal = question.answer().map_err(|error| failed(error.to_string()))?;
    let mut shown = format!("{resource} resource");
    if proposal.utilization.is_some() {
        let part = if container.is_empty() { "" } else { "container " };
        shown = format!("{resource} {part}resource utilization (percentage of request)");
    }
    Ok((proposal, shown, metric_status(metric, &proposal)))
}

fn metric_status(metric: &ResourceMetric, proposal: &Proposal) -> Value {
    let format = if metric.name == "memory" {
        Format::BinarySI
    } else {
        Format::DecimalSI
    };
    let mut current = json!({"averageValue": Quantity::from_milli(proposal.average, format).canonical()});
    if let Some(percent) = proposal.utilization {
        current["averageUtilization"] = json!(percent);
    }
    match metric.container.as_str() {
        "" => json!({"type": "Resource", "resource": {"name": metric.name, "current": current}}),
        container => json!({"type": "ContainerResource",
            "containerResource": {"name": metric.name, "container": container, "current": current}}),
    }
}

fn tolerances(hpa: &HorizontalPodAutoscaler, config: &Config) -> Tolerances {
    let own = |text: Option<&String>| text.and_then(|t| Quantity::parse(t).ok()).map(|q| q.as_f64());
    let rules = hpa.spec.behavior.as_ref();
    Tolerances {
        down: own(rules.and_then(|b| b.scale_down.tolerance.as_ref())).unwrap_or(config.tolerance),
        up: own(rules.and_then(|b| b.scale_up.tolerance.as_ref())).unwrap_or(config.tolerance),
    }
}

fn whole_seconds(t: Timestamp) -> Timestamp {
    Timestamp::from_second(t.as_second()).expect("seconds of a timestamp are one")
}

fn set_condition(all: &mut Vec<Condition>, kind: &str, state: &str, reason: &str, message: &str, now: Timestamp) {
    let place = all.iter().position(|c| c.r#type == kind).unwrap_or_else(|| {
        all.push(Condition {
            r#type: kind.to_string(),
            ..Condition::default()
        });
        all.len() - 1
    });
    let condition = &mut all[place];
    if condition.status != state {
        condition.last_transition_time = Some(whole_seconds(now));
    }
    condition.status = state.to_string();
    condition.reason = reason.to_string();
    condition.message = message.to_string();
}
