//! Admission webhooks: MutatingAdmissionWebhook and ValidatingAdmissionWebhook.
//!
//! `config` is what a configuration says, compiled; `exchange` what a webhook is sent and what it may answer, both pure;
//! here is who is called, in which order, and what its failure means.
//!
//! Mutating webhooks are called one after the other, ordered by the names of their configurations, each with what those
//! before it made; validating ones all at once, with the object as it will be stored.
//!
//! Upstream: apiserver/pkg/admission/plugin/webhook/{generic,mutating,validating} (v1.36).

mod config;
mod exchange;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use orlop_api::{KindDef, Status, Value, patch};
use orlop_base::clock::monotonic;
use orlop_base::join_all;
use serde_json::json;

use super::Review;
use super::metrics::{CallResult, Step};
use super::shown::{Form, put_back};
use crate::lookup::ObjectLookup;
use crate::shares;
use crate::webhook_client::CallError;
use config::ReviewVersion;
pub(super) use config::Webhook;
use exchange::Answer;
pub(super) use exchange::attributes as request_attributes;

pub(super) const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
pub(super) const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// The webhooks of all configurations of a resource, in the order in which they are called.
pub(super) fn compile(lookup: &(dyn ObjectLookup + Sync), resource: &str) -> Vec<Webhook> {
    let mut configurations = lookup.list(resource, None);
    let name = |c: &Value| c["metadata"]["name"].as_str().unwrap_or("").to_string();
    configurations.sort_by_cached_key(|c| name(c));
    configurations.iter().flat_map(|c| Webhook::all_of(c)).collect()
}

/// Why a webhook does not let a request pass.
#[derive(Debug)]
enum Refusal {
    /// It says no.
    Denied(Status),
    /// It was not asked, or gave no usable answer. What failed, and the code by which it is counted.
    Call { why: String, code: u16 },
    /// What it says can't be carried out.
    Unusable(Status),
}

impl Refusal {
    fn result(&self, open: bool) -> CallResult {
        match self {
            Refusal::Denied(status) => CallResult::Denied(status.code),
            Refusal::Call { code, .. } => CallResult::Failed { code: *code, open },
            Refusal::Unusable(_) => CallResult::Internal,
        }
    }
}

/// What reinvocation remembers of the first round.
#[derive(Default)]
pub(super) struct Rounds {
    /// Called already, and to be called again if something changes after it.
    called: HashSet<String>,
    /// To be called again.
    again: HashSet<String>,
    /// What the last webhook left.
    output: Option<Value>,
}

impl Rounds {
    fn require_all(&mut self) {
        self.again.extend(self.called.drain());
    }
}

/// One round of the mutating webhooks. Says whether one of them has changed the object.
pub(super) async fn mutate(
    review: &Review<'_>,
    hooks: &[Webhook],
    rounds: &mut Rounds,
    round: u8,
    object: Option<&mut Value>,
    old: Option<&Value>,
) -> Result<bool, Status> {
    let mut changed = false;
    let mut object = object;
    if round > 0 && rounds.output.as_ref() != object.as_deref() {
        rounds.require_all();
    }
    for (index, hook) in hooks.iter().enumerate() {
        let concerned = hook.concerns(review, object.as_deref(), old, Step::Admit).await?;
        let Some((kind, form)) = concerned else { continue };
        // One that was passed over in the first round is not called in the second.
        if round > 0 && !rounds.again.contains(&hook.uid) {
            continue;
        }
        let started = monotonic();
        let position = format!("round_{round}_index_{index}");
        let answer = call(review, hook, kind, &form, true).await;
        let made = answer.and_then(|answer| patched(hook, form, answer));
        let called = match (made, object.as_deref_mut()) {
            (Ok(Some((made, patch))), Some(object)) => match put_back(review, kind, made, object).await {
                Ok(has_changed) => {
                    annotate_patch(review, hook, &position, &patch);
                    Ok(has_changed)
                }
                Err(status) => Err(Refusal::Unusable(status)),
            },
            (Ok(_), _) => Ok(false),
            (Err(refusal), _) => Err(refusal),
        };
        let result = called
            .as_ref()
            .map_or_else(|e| e.result(hook.fails_open), |_| CallResult::Allowed);
        let metrics = &review.dynamic.metrics;
        metrics.webhook(&hook.name, Step::Admit, review.operation, result, started.elapsed());
        let has_changed = matches!(called, Ok(true));
        annotate_mutation(review, hook, &position, has_changed);
        if has_changed {
            changed = true;
            rounds.require_all();
        }
        if hook.reinvoke {
            rounds.called.insert(hook.uid.clone());
        }
        if let Err(refusal) = called {
            settle(review, hook, refusal, "mutation", &position)?;
        }
    }
    rounds.output = object.as_deref().cloned();
    Ok(changed)
}

fn annotate_mutation(review: &Review<'_>, hook: &Webhook, position: &str, mutated: bool) {
    let value = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": mutated});
    let key = format!("mutation.webhook.admission.k8s.io/{position}");
    review.warnings.annotate(key, value.to_string());
}

/// For logs that hold what was asked for.
fn annotate_patch(review: &Review<'_>, hook: &Webhook, position: &str, patch: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(patch) else {
        return;
    };
    let value = json!({
        "configuration": hook.configuration, "webhook": hook.name, "patch": patch, "patchType": "JSONPatch",
    });
    let key = format!("patch.webhook.admission.k8s.io/{position}");
    review.warnings.annotate_request(key, value.to_string());
}

/// What a refusal comes to: an error, or nothing if the webhook may fail.
fn settle(review: &Review<'_>, hook: &Webhook, refusal: Refusal, step: &str, position: &str) -> Result<(), Status> {
    match refusal {
        Refusal::Denied(status) | Refusal::Unusable(status) => Err(status),
        Refusal::Call { why, .. } => {
            let text = format!("failed calling webhook {:?}: {why}", hook.name);
            if !hook.fails_open {
                tracing::warn!(webhook = %hook.name, err = %why, "failed to call webhook, failing closed");
                return Err(Status::internal(text));
            }
            tracing::warn!(webhook = %hook.name, err = %why, "failed to call webhook, failing open");
            let key = format!("failed-open.{step}.webhook.admission.k8s.io/{position}");
            review.warnings.annotate(key, hook.name.clone());
            Ok(())
        }
    }
}

/// What the webhook makes of the object, if it changes anything, and the patch by which.
fn patched(hook: &Webhook, form: Form<'_>, answer: Answer) -> Result<Option<(Value, Vec<u8>)>, Refusal> {
    let Some(patch) = answer.patch else { return Ok(None) };
    let internal = |why: String| Refusal::Unusable(Status::internal(why));
    if patch::json::is_empty(&patch).map_err(|why| Refusal::Call {
        why: format!("received undecodable patch in webhook response: {why}"),
        code: 503,
    })? {
        return Ok(None);
    }
    let Some(object) = form.object else {
        return Err(internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            hook.name
        )));
    };
    let mut made = object.into_owned();
    patch::json::apply(&mut made, &patch).map_err(|why| internal(why.to_string()))?;
    Ok(Some((made, patch)))
}

/// All validating webhooks that look at the request, at once.
pub(super) async fn validate(
    review: &Review<'_>,
    hooks: &[Webhook],
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let mut concerned = vec![];
    for hook in hooks {
        if let Some((kind, form)) = hook.concerns(review, object, old, Step::Validate).await? {
            concerned.push((hook, kind, form));
        }
    }
    let calls = concerned.iter().map(|(hook, kind, form)| async move {
        let started = monotonic();
        let called = call(review, hook, kind, form, false).await;
        let result = called
            .as_ref()
            .map_or_else(|e| e.result(hook.fails_open), |_| CallResult::Allowed);
        let metrics = &review.dynamic.metrics;
        metrics.webhook(&hook.name, Step::Validate, review.operation, result, started.elapsed());
        called
    });
    let results = join_all(calls).await;
    for (index, ((hook, ..), called)) in concerned.iter().zip(results).enumerate() {
        if let Err(refusal) = called {
            settle(review, hook, refusal, "validating", &format!("round_0_index_{index}"))?;
        }
    }
    Ok(())
}

/// Asks one webhook.
async fn call(
    review: &Review<'_>,
    hook: &Webhook,
    kind: &'static KindDef,
    form: &Form<'_>,
    mutating: bool,
) -> Result<Answer, Refusal> {
    if review.dry_run && !hook.supports_dry_run {
        let why = format!("admission webhook {:?} does not support dry run", hook.name);
        return Err(Refusal::Unusable(Status::bad_request(why)));
    }
    let version = hook.review_version.ok_or_else(|| Refusal::Call {
        why: "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)"
            .into(),
        code: 400,
    })?;
    let no_client = |why: &dyn std::fmt::Display| Refusal::Call {
        why: format!("could not get REST client: {why}"),
        code: 500,
    };
    let client = hook.client.as_ref().map_err(|e| no_client(e))?;
    let uid = uuid::Uuid::new_v4().to_string();
    let body = exchange::request(review, version, &uid, kind, form);
    // What waits for somebody else does not keep others from large work, least of all that somebody.
    shares::leave_turn();
    let post = review
        .dynamic
        .client
        .post(review.lookup, client, body.into(), hook.timeout);
    let answer = post.await.map_err(|error| match error {
        CallError::Config(why) => no_client(&why),
        CallError::Answered(status) => Refusal::Call {
            why: format!("failed to call webhook: {status}"),
            code: status.code,
        },
        unreached => Refusal::Call {
            why: format!("failed to call webhook: {unreached}"),
            code: 503,
        },
    })?;
    let answer = exchange::read(&answer, version, &uid, mutating).map_err(|why| Refusal::Call {
        why: why.to_string(),
        code: 503,
    })?;
    for (key, value) in &answer.audit_annotations {
        review.warnings.annotate(format!("{}/{key}", hook.name), value.clone());
    }
    for warning in &answer.warnings {
        review.warnings.add(warning.clone());
    }
    match answer.allowed {
        true => Ok(answer),
        false => Err(Refusal::Denied(exchange::denial(&hook.name, answer.status))),
    }
}
