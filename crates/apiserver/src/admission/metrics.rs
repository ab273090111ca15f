//! What admission counts, under Kubernetes' names.
//!
//! Upstream: apiserver/pkg/admission/metrics (v1.36); its summaries are left out.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use orlop_base::metrics::series::{Family, Histogram};
use orlop_base::metrics::text::header;

use super::Operation;

const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITION_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const POLICY_BUCKETS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];
/// Of one metric. Names come from configurations, which come and go.
const MAX_SERIES: usize = 10_000;

/// Which half of admission, as labels call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Admit,
    Validate,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validate",
        }
    }

    /// What the metrics of webhooks call it.
    fn webhook_name(self) -> &'static str {
        match self {
            Step::Admit => "admit",
            Step::Validate => "validating",
        }
    }
}

/// How a webhook call ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallResult {
    Allowed,
    Denied(u16),
    /// No usable answer came; the code is that of the failure.
    Failed {
        code: u16,
        open: bool,
    },
    /// The answer could not be applied.
    Internal,
}

pub(crate) struct AdmissionMetrics {
    steps: Family<Histogram, 3>,
    controllers: Family<Histogram, 4>,
    webhooks: Family<Histogram, 4>,
    requests: Family<AtomicU64, 5>,
    rejections: Family<AtomicU64, 5>,
    fail_open: Family<AtomicU64, 2>,
    exclusions: Family<AtomicU64, 4>,
    evaluation_errors: Family<AtomicU64, 4>,
    evaluations: Family<Histogram, 4>,
    validations: Checks<4>,
    mutations: Checks<3>,
}

/// What the expressions of policies came to.
struct Checks<const N: usize> {
    totals: Family<AtomicU64, N>,
    durations: Family<Histogram, N>,
}

impl<const N: usize> Checks<N> {
    fn new(names: [&'static str; N]) -> Checks<N> {
        Checks {
            totals: counters(names),
            durations: histograms(names, POLICY_BUCKETS),
        }
    }

    fn observe(&self, labels: [&str; N], took: Duration) {
        self.totals.with(labels, add);
        self.durations.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    fn render(&self, out: &mut String, prefix: &str, [total, duration]: [&str; 2]) {
        let name = format!("apiserver_{prefix}_admission_policy_check_total");
        header(out, &name, "counter", total);
        self.totals.write(out, &name);
        let name = format!("apiserver_{prefix}_admission_policy_check_duration_seconds");
        header(out, &name, "histogram", duration);
        self.durations.write(out, &name);
    }
}

fn histograms<const N: usize>(names: [&'static str; N], bounds: &'static [f64]) -> Family<Histogram, N> {
    let bounds: Arc<[f64]> = bounds.into();
    Family::new(names, move || Histogram::new(bounds.clone())).bounded(MAX_SERIES, ["unexpected"; N])
}

fn counters<const N: usize>(names: [&'static str; N]) -> Family<AtomicU64, N> {
    Family::new(names, AtomicU64::default).bounded(MAX_SERIES, ["unexpected"; N])
}

/// What metrics call the reason why an expression of a policy has no value.
// Upstream: policy/validating/errors.go
fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

impl Default for AdmissionMetrics {
    fn default() -> AdmissionMetrics {
        AdmissionMetrics {
            steps: histograms(["operation", "rejected", "type"], BUCKETS),
            controllers: histograms(["name", "operation", "rejected", "type"], BUCKETS),
            webhooks: histograms(["name", "operation", "rejected", "type"], WEBHOOK_BUCKETS),
            requests: counters(["code", "name", "operation", "rejected", "type"]),
            rejections: counters(["error_type", "name", "operation", "rejection_code", "type"]),
            fail_open: counters(["name", "type"]),
            exclusions: counters(["kind", "name", "operation", "type"]),
            evaluation_errors: counters(["kind", "name", "operation", "type"]),
            evaluations: histograms(["kind", "name", "operation", "type"], CONDITION_BUCKETS),
            validations: Checks::new(["enforcement_action", "error_type", "policy", "policy_binding"]),
            mutations: Checks::new(["error_type", "policy", "policy_binding"]),
        }
    }
}

fn word(rejected: bool) -> &'static str {
    if rejected { "true" } else { "false" }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

impl AdmissionMetrics {
    pub(super) fn step(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        let labels = [operation.name(), word(rejected), step.name()];
        self.steps.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    pub(super) fn controller(&self, name: &str, step: Step, operation: Operation, rejected: bool, took: Duration) {
        let labels = [name, operation.name(), word(rejected), step.name()];
        self.controllers.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    pub(super) fn webhook(&self, name: &str, step: Step, operation: Operation, result: CallResult, took: Duration) {
        let (step, operation) = (step.webhook_name(), operation.name());
        let (code, rejected, error_type) = match result {
            CallResult::Allowed => (200, false, ""),
            CallResult::Denied(code) => (code, true, "no_error"),
            CallResult::Failed { code, open } => (code, !open, "calling_webhook_error"),
            CallResult::Internal => (0, true, "apiserver_internal_error"),
        };
        let code = code.min(600).to_string();
        self.webhooks.with([name, operation, word(rejected), step], |h| {
            h.observe(took.as_secs_f64())
        });
        self.requests.with([&code, name, operation, word(rejected), step], add);
        if rejected {
            self.rejections.with([error_type, name, operation, &code, step], add);
        } else if !error_type.is_empty() {
            self.fail_open.with([name, step], add);
        }
    }

    /// `kind` is "webhook" or "policy".
    pub(super) fn excluded(&self, kind: &str, name: &str, step: Step, operation: Operation) {
        self.exclusions.with([kind, name, operation.name(), step.name()], add);
    }

    pub(super) fn evaluation_error(&self, kind: &str, name: &str, step: Step, operation: Operation) {
        self.evaluation_errors
            .with([kind, name, operation.name(), step.name()], add);
    }

    /// Match conditions were evaluated.
    pub(super) fn evaluated(&self, kind: &str, name: &str, step: Step, operation: Operation, took: Duration) {
        let labels = [kind, name, operation.name(), step.name()];
        self.evaluations.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    /// A validation did not hold, or has no value: what was done about it ("allow", "deny", "audit", "warn").
    pub(super) fn checked(&self, action: &str, message: &str, policy: &str, binding: &str, took: Duration) {
        let labels = [action, error_type(message), policy, binding];
        self.validations.observe(labels, took);
    }

    /// A mutation was made, or why not.
    pub(super) fn mutated(&self, error: Option<&str>, policy: &str, binding: &str, took: Duration) {
        let labels = [error.map_or("no_error", error_type), policy, binding];
        self.mutations.observe(labels, took);
    }

    pub(crate) fn render(&self, out: &mut String) {
        let name = "apiserver_admission_step_admission_duration_seconds";
        let help = "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and \
                    step type (validate or admit).";
        header(out, name, "histogram", help);
        self.steps.write(out, name);
        let name = "apiserver_admission_controller_admission_duration_seconds";
        let help = "Admission controller latency histogram in seconds, identified by name and broken out for each \
                    operation and API resource and type (validate or admit).";
        header(out, name, "histogram", help);
        self.controllers.write(out, name);
        let name = "apiserver_admission_webhook_admission_duration_seconds";
        let help = "Admission webhook latency histogram in seconds, identified by name and broken out for each operation \
                    and API resource and type (validate or admit).";
        header(out, name, "histogram", help);
        self.webhooks.write(out, name);
        let name = "apiserver_admission_match_condition_evaluation_seconds";
        let help = "Admission match condition evaluation time in seconds, identified by name and broken out for each kind \
                    containing matchConditions (webhook or policy), operation and type (validate or admit).";
        header(out, name, "histogram", help);
        self.evaluations.write(out, name);
        self.validations.render(
            out,
            "validating",
            [
                "Validation admission policy check total, labeled by policy and further identified by binding and \
                 enforcement action taken.",
                "Validation admission latency for individual validation expressions in seconds, labeled by policy and \
                 further including binding and enforcement action taken.",
            ],
        );
        self.mutations.render(
            out,
            "mutating",
            [
                "Mutation admission policy check total, labeled by policy and further identified by binding.",
                "Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
            ],
        );
        let counters: [(&str, &str, &dyn Fn(&mut String, &str)); 5] = [
            (
                "apiserver_admission_webhook_request_total",
                "Admission webhook request total, identified by name and broken out for each admission type (validating \
                 or admit) and operation.",
                &|out, name| self.requests.write(out, name),
            ),
            (
                "apiserver_admission_webhook_rejection_count",
                "Admission webhook rejection count, identified by name and broken out for each admission type \
                 (validating or admit) and operation.",
                &|out, name| self.rejections.write(out, name),
            ),
            (
                "apiserver_admission_webhook_fail_open_count",
                "Admission webhook fail open count, identified by name and broken out for each admission type \
                 (validating or admit).",
                &|out, name| self.fail_open.write(out, name),
            ),
            (
                "apiserver_admission_match_condition_exclusions_total",
                "Admission match condition evaluation exclusions count, identified by name of resource containing the \
                 match condition and broken out for each kind containing matchConditions (webhook or policy), operation \
                 and admission type (validate or admit).",
                &|out, name| self.exclusions.write(out, name),
            ),
            (
                "apiserver_admission_match_condition_evaluation_errors_total",
                "Admission match condition evaluation errors count, identified by name of resource containing the match \
                 condition and broken out for each kind containing matchConditions (webhook or policy), operation and \
                 admission type (validate or admit).",
                &|out, name| self.evaluation_errors.write(out, name),
            ),
        ];
        for (name, help, write) in counters {
            header(out, name, "counter", help);
            write(out, name);
        }
    }
}
