//! Authorization webhooks: somebody else decides, in SubjectAccessReviews.
// Upstream: staging/src/k8s.io/apiserver/plugin/pkg/authorizer/webhook (v1.36)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orlop_api::selector::{FieldSelector, LabelSelector, Op};
use orlop_base::clock::monotonic;
use orlop_base::metrics::series::{Family, Histogram};
use orlop_base::metrics::text::header;
use serde_json::{Map, Value, json};

use super::configuration::AuthorizationWebhookOptions;
use super::{Attributes, Decision};
use crate::expressions::{Expression, ExpressionError};
use crate::lookup::text;
use crate::remote::{AnswerCache, Backoff, CallError, KubeconfigError, Webhook};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500));
/// What clients say of a request may be this long for its answer to be remembered.
const MAX_REMEMBERED: usize = 10_000;
/// Upstream: the default buckets of its metrics.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const MAX_SERIES: usize = 500;

/// Why a webhook cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
    #[error("{name}: {source}")]
    Kubeconfig { name: String, source: KubeconfigError },
    #[error("{name}: match condition: {reason}")]
    Condition { name: String, reason: String },
}

pub(super) struct WebhookAuthorizer {
    name: String,
    webhook: Webhook,
    version: String,
    timeout: Duration,
    authorized_ttl: Duration,
    unauthorized_ttl: Duration,
    denies_on_error: bool,
    conditions: Vec<Expression>,
    answers: AnswerCache<Arc<Value>>,
    metrics: Arc<WebhookMetrics>,
}

pub(super) struct WebhookMetrics {
    evaluations: Family<AtomicU64, 2>,
    durations: Family<Histogram, 2>,
    fail_open: Family<AtomicU64, 2>,
    condition_errors: Family<AtomicU64, 2>,
    condition_exclusions: Family<AtomicU64, 2>,
}

impl Default for WebhookMetrics {
    fn default() -> WebhookMetrics {
        fn counters(names: [&'static str; 2]) -> Family<AtomicU64, 2> {
            Family::new(names, AtomicU64::default).bounded(MAX_SERIES, ["unexpected"; 2])
        }
        let bounds: Arc<[f64]> = BUCKETS.into();
        let durations = Family::new(["name", "result"], move || Histogram::new(bounds.clone()));
        WebhookMetrics {
            evaluations: counters(["name", "result"]),
            durations: durations.bounded(MAX_SERIES, ["unexpected"; 2]),
            fail_open: counters(["name", "result"]),
            condition_errors: counters(["type", "name"]),
            condition_exclusions: counters(["type", "name"]),
        }
    }
}

impl WebhookMetrics {
    pub(super) fn write(&self, out: &mut String) {
        let prefix = "apiserver_authorization";
        let name = format!("{prefix}_webhook_evaluations_total");
        header(out, &name, "counter", "Round-trips to authorization webhooks.");
        self.evaluations.write(out, &name);
        let name = format!("{prefix}_webhook_duration_seconds");
        header(out, &name, "histogram", "Request latency in seconds.");
        self.durations.write(out, &name);
        let name = format!("{prefix}_webhook_evaluations_fail_open_total");
        header(
            out,
            &name,
            "counter",
            "NoOpinion results due to webhook timeout or error.",
        );
        self.fail_open.write(out, &name);
        let name = format!("{prefix}_match_condition_evaluation_errors_total");
        let help = "Total number of errors when an authorization webhook encounters a match condition error split by \
                    authorizer type and name.";
        header(out, &name, "counter", help);
        self.condition_errors.write(out, &name);
        let name = format!("{prefix}_match_condition_exclusions_total");
        let help = "Total number of exclusions when an authorization webhook is skipped because match conditions \
                    exclude it.";
        header(out, &name, "counter", help);
        self.condition_exclusions.write(out, &name);
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl WebhookAuthorizer {
    /// Options must have been checked.
    pub(super) fn new(
        name: &str,
        options: &AuthorizationWebhookOptions,
        metrics: Arc<WebhookMetrics>,
    ) -> Result<WebhookAuthorizer, WebhookSetupError> {
        let file = options.connection_info.kube_config_file.as_deref();
        let file = file.unwrap_or(std::path::Path::new(""));
        let webhook = Webhook::from_kubeconfig(file).map_err(|source| WebhookSetupError::Kubeconfig {
            name: name.to_string(),
            source,
        })?;
        let conditions = options.match_conditions.iter();
        let conditions: Result<_, ExpressionError> = conditions
            .map(|condition| Expression::request_condition(&condition.expression))
            .collect();
        let ttl = |ttl: Option<Duration>, is_wanted: Option<bool>| match is_wanted {
            Some(false) => Duration::ZERO,
            _ => ttl.unwrap_or_default(),
        };
        Ok(WebhookAuthorizer {
            name: name.to_string(),
            webhook,
            version: options.subject_access_review_version.clone(),
            timeout: options.timeout.unwrap_or(Duration::from_secs(30)),
            authorized_ttl: ttl(options.authorized_ttl, options.cache_authorized_requests),
            unauthorized_ttl: ttl(options.unauthorized_ttl, options.cache_unauthorized_requests),
            denies_on_error: options.failure_policy == "Deny",
            conditions: conditions.map_err(|e| WebhookSetupError::Condition {
                name: name.to_string(),
                reason: e.to_string(),
            })?,
            answers: AnswerCache::default(),
            metrics,
        })
    }

    pub(super) async fn authorize(&self, attrs: &Attributes<'_>) -> Decision {
        let spec = review_spec(attrs);
        match self.applies(&spec) {
            Ok(true) => {}
            Ok(false) => {
                let labels = ["Webhook", &self.name];
                self.metrics.condition_exclusions.with(labels, increment);
                return Decision::default();
            }
            Err(e) => {
                let labels = ["Webhook", &self.name];
                self.metrics.condition_errors.with(labels, increment);
                return self.failed(e.to_string());
            }
        }
        let question = crate::pki::sha256(spec.to_string().as_bytes());
        let ask = async {
            let status = Arc::new(self.ask(&spec).await?);
            let ttl = match status["allowed"] == true {
                _ if !may_remember(attrs) => Duration::ZERO,
                true => self.authorized_ttl,
                false => self.unauthorized_ttl,
            };
            Ok((status, ttl))
        };
        match self.answers.get_or_ask(question, ask).await {
            Ok(status) => read(&status),
            Err::<_, CallError>(e) => {
                tracing::error!(authorizer = self.name, err = %e, "failed to call authorization webhook");
                if !self.denies_on_error {
                    let labels = [self.name.as_str(), result_of(&e)];
                    self.metrics.fail_open.with(labels, increment);
                }
                self.failed(e.to_string())
            }
        }
    }

    fn failed(&self, error: String) -> Decision {
        Decision {
            denied: self.denies_on_error,
            error: Some(error.into()),
            ..Decision::default()
        }
    }

    /// Whether all conditions hold. One that is false counts more than one that can't be evaluated.
    fn applies(&self, spec: &Value) -> Result<bool, ExpressionError> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let spec = with_empty_fields(spec);
        let mut failed = None;
        for condition in &self.conditions {
            match condition.eval(&spec) {
                Ok(Value::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok(true), Err)
    }

    async fn ask(&self, spec: &Value) -> Result<Value, CallError> {
        let mut spec = spec.clone();
        if self.version == "v1beta1"
            && let Some(members) = spec.as_object_mut()
            && let Some(groups) = members.remove("groups")
        {
            members.insert("group".into(), groups);
        }
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.version), "kind": "SubjectAccessReview",
            "metadata": {}, "spec": spec, "status": {"allowed": false},
        });
        let answered = BACKOFF
            .retry(CallError::is_retriable, || Box::pin(self.attempt(&review)))
            .await?;
        Ok(answered["status"].clone())
    }

    async fn attempt(&self, review: &Value) -> Result<Value, CallError> {
        let began = monotonic();
        let outcome = self.webhook.post(review, self.timeout).await;
        let labels = [
            self.name.as_str(),
            outcome.as_ref().map_or_else(result_of, |_| "success"),
        ];
        self.metrics.evaluations.with(labels, increment);
        let seconds = began.elapsed().as_secs_f64();
        self.metrics
            .durations
            .with(labels, |durations| durations.observe(seconds));
        outcome
    }
}

fn result_of(error: &CallError) -> &'static str {
    match error {
        CallError::Timeout { .. } => "timeout",
        CallError::Refused { code, .. } if code.as_u16() == 504 => "timeout",
        _ => "error",
    }
}

/// What the status of a review says.
fn read(status: &Value) -> Decision {
    let (allowed, denied) = (status["allowed"] == true, status["denied"] == true);
    Decision {
        allowed: allowed && !denied,
        denied,
        reason: text(status, &["reason"]).into(),
        error: (allowed && denied)
            .then(|| "webhook subject access review returned both allow and deny response".into()),
    }
}

/// Whether what a client says of a request is short enough to be remembered.
fn may_remember(attrs: &Attributes<'_>) -> bool {
    let said = [
        attrs.namespace,
        attrs.verb,
        attrs.group,
        attrs.version,
        attrs.resource,
        attrs.subresource,
        attrs.name,
        attrs.path,
    ];
    said.iter().map(|text| text.len()).sum::<usize>() < MAX_REMEMBERED
}

/// The spec of a SubjectAccessReview (v1).
fn review_spec(attrs: &Attributes<'_>) -> Value {
    let mut spec = Map::new();
    let put = |map: &mut Map<String, Value>, name: &str, text: &str| {
        if !text.is_empty() {
            map.insert(name.to_string(), text.into());
        }
    };
    let user = attrs.user;
    if attrs.is_resource {
        let mut resource = Map::new();
        for (name, text) in [
            ("namespace", attrs.namespace),
            ("verb", attrs.verb),
            ("group", attrs.group),
            ("version", attrs.version),
            ("resource", attrs.resource),
            ("subresource", attrs.subresource),
            ("name", attrs.name),
        ] {
            put(&mut resource, name, text);
        }
        let selectors = [
            ("fieldSelector", attrs.field_selector.map(field_requirements)),
            ("labelSelector", attrs.label_selector.map(label_requirements)),
        ];
        for (name, requirements) in selectors {
            if let Some(requirements) = requirements.filter(|list| !list.is_empty()) {
                resource.insert(name.to_string(), json!({"requirements": requirements}));
            }
        }
        spec.insert("resourceAttributes".into(), Value::Object(resource));
    } else {
        let mut path = Map::new();
        put(&mut path, "path", attrs.path);
        put(&mut path, "verb", attrs.verb);
        spec.insert("nonResourceAttributes".into(), Value::Object(path));
    }
    put(&mut spec, "user", &user.name);
    put(&mut spec, "uid", &user.uid);
    if !user.groups.is_empty() {
        spec.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), json!(user.extra));
    }
    Value::Object(spec)
}

/// As conditions see it: what is not said is empty.
fn with_empty_fields(spec: &Value) -> Value {
    let fill = |value: &mut Value, names: &[&str]| {
        if let Some(members) = value.as_object_mut() {
            for name in names {
                members.entry(*name).or_insert("".into());
            }
        }
    };
    let mut spec = spec.clone();
    fill(&mut spec, &["user", "uid"]);
    if let Some(resource) = spec.get_mut("resourceAttributes") {
        let names = [
            "namespace",
            "verb",
            "group",
            "version",
            "resource",
            "subresource",
            "name",
        ];
        fill(resource, &names);
    }
    if let Some(members) = spec.as_object_mut() {
        members.entry("groups").or_insert(json!([]));
        members.entry("extra").or_insert(json!({}));
    }
    spec
}

fn field_requirements(selector: &FieldSelector) -> Vec<Value> {
    let terms = selector.terms.iter();
    let operator = |equal: bool| if equal { "In" } else { "NotIn" };
    terms
        .map(|term| json!({"key": term.field, "operator": operator(term.equal), "values": [term.value]}))
        .collect()
}

/// Requirements that the API has no words for are left out, which only makes the question broader.
fn label_requirements(selector: &LabelSelector) -> Vec<Value> {
    let requirements = selector.requirements.iter();
    requirements
        .filter_map(|requirement| {
            let (operator, values) = match &requirement.op {
                Op::In(values) => ("In", Some(values)),
                Op::NotIn(values) => ("NotIn", Some(values)),
                Op::Exists => ("Exists", None),
                Op::DoesNotExist => ("DoesNotExist", None),
                Op::Gt(_) | Op::Lt(_) | Op::Unknown => return None,
            };
            let mut found = json!({"key": requirement.key, "operator": operator});
            if let Some(values) = values.filter(|values| !values.is_empty()) {
                found["values"] = json!(values);
            }
            Some(found)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::UserInfo;

    #[test]
    fn requests_as_reviews() {
        let mut user = UserInfo::new("ann", &["g"]);
        user.extra.insert("k".into(), vec!["v".into()]);
        let fields = FieldSelector::parse("spec.nodeName=n,metadata.name!=x").unwrap();
        let labels = LabelSelector::parse("a in (b,c),!d,e,f>1").unwrap();
        let attrs = Attributes {
            version: "v1",
            field_selector: Some(&fields),
            label_selector: Some(&labels),
            ..Attributes::resource(&user, "list", "", "pods")
        };
        let wanted = json!({"user": "ann", "groups": ["g"], "extra": {"k": ["v"]}, "resourceAttributes": {
            "verb": "list", "version": "v1", "resource": "pods",
            "fieldSelector": {"requirements": [
                {"key": "spec.nodeName", "operator": "In", "values": ["n"]},
                {"key": "metadata.name", "operator": "NotIn", "values": ["x"]}]},
            "labelSelector": {"requirements": [
                {"key": "a", "operator": "In", "values": ["b", "c"]},
                {"key": "d", "operator": "DoesNotExist"}, {"key": "e", "operator": "Exists"}]}}});
        assert_eq!(review_spec(&attrs), wanted);
        let path = Attributes::path(&user, "get", "/healthz");
        assert_eq!(
            review_spec(&path)["nonResourceAttributes"],
            json!({"path": "/healthz", "verb": "get"})
        );
        let long = "x".repeat(MAX_REMEMBERED);
        assert!(may_remember(&path) && !may_remember(&Attributes::path(&user, "get", &long)));
    }

    #[test]
    fn answers_are_read() {
        let both = "webhook subject access review returned both allow and deny response";
        for (status, allowed, denied, error) in [
            (json!({"allowed": true, "reason": "r"}), true, false, None),
            (json!({"allowed": false, "reason": "r"}), false, false, None),
            (json!({"denied": true, "reason": "r"}), false, true, None),
            (
                json!({"allowed": true, "denied": true, "reason": "r"}),
                false,
                true,
                Some(both),
            ),
        ] {
            let found = read(&status);
            let wanted = (allowed, denied, "r", error);
            assert_eq!(
                (found.allowed, found.denied, &*found.reason, found.error.as_deref()),
                wanted
            );
        }
    }
}
