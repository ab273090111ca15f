//! A webhook as its configuration describes it, ready to be asked.

use std::time::Duration;

use orlop_api::{KindDef, Status, Value};

use super::super::Review;
use super::super::conditions::{Conditions, Matched};
use super::super::matching::Matcher;
use super::super::metrics::Step;
use super::super::shown::Form;
use crate::lookup::{items, strings, text};
use crate::webhook_client::{ClientConfig, ConfigError};

/// Which AdmissionReview a webhook understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ReviewVersion {
    V1,
    V1Beta1,
}

impl ReviewVersion {
    pub(super) fn api_version(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "admission.k8s.io/v1",
            ReviewVersion::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

pub(in super::super) struct Webhook {
    pub configuration: String,
    pub name: String,
    /// Tells it from all others of its sort.
    pub uid: String,
    matcher: Matcher,
    conditions: Conditions,
    pub fails_open: bool,
    pub timeout: Duration,
    pub supports_dry_run: bool,
    /// May be called again if the object is changed after it.
    pub reinvoke: bool,
    /// The first that it lists and we know.
    pub review_version: Option<ReviewVersion>,
    pub client: Result<ClientConfig, ConfigError>,
}

impl Webhook {
    /// The webhooks of one configuration.
    pub(super) fn all_of(configuration: &Value) -> Vec<Webhook> {
        let name = text(configuration, &["metadata", "name"]);
        let hooks = items(configuration, &["webhooks"]).iter().enumerate();
        hooks.map(|(index, hook)| Webhook::new(name, index, hook)).collect()
    }

    fn new(configuration: &str, index: usize, hook: &Value) -> Webhook {
        let name = text(hook, &["name"]);
        let review_version = |version: String| match version.as_str() {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1Beta1),
            _ => None,
        };
        let versions = strings(hook.get("admissionReviewVersions"));
        Webhook {
            configuration: configuration.to_string(),
            name: name.to_string(),
            uid: format!("{configuration}/{name}/{index}"),
            matcher: Matcher::of_webhook(hook),
            conditions: Conditions::new(
                items(hook, &["matchConditions"]),
                false,
                text(hook, &["failurePolicy"]) == "Ignore",
            ),
            fails_open: text(hook, &["failurePolicy"]) == "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
            supports_dry_run: matches!(text(hook, &["sideEffects"]), "None" | "NoneOnDryRun"),
            reinvoke: text(hook, &["reinvocationPolicy"]) == "IfNeeded",
            review_version: versions.into_iter().find_map(review_version),
            client: ClientConfig::from_value(&hook["clientConfig"]),
        }
    }

    /// The kind in whose form the webhook is to see the object, if it is to be asked at all, and that form.
    pub(super) async fn concerns<'v>(
        &self,
        review: &Review<'_>,
        object: Option<&'v Value>,
        old: Option<&'v Value>,
        step: Step,
    ) -> Result<Option<(&'static KindDef, Form<'v>)>, Status> {
        let Some(kind) = self.matcher.matches(review, object, old)? else {
            return Ok(None);
        };
        let form = Form::new(review, kind, object, old).await?;
        match self.conditions.evaluate(review, &self.name, step, kind, &form) {
            Matched::Yes => Ok(Some((kind, form))),
            Matched::No | Matched::Failed { open: true, .. } => Ok(None),
            Matched::Failed { why, open: false } => Err(review.forbidden(why)),
        }
    }
}
