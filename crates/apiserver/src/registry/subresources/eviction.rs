//! pods/eviction: a delete that asks the pod's disruption budget first.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::selector::LabelSelector;
use orlop_api::status::{Cause, Details};
use orlop_api::{Status, Value};
use orlop_base::clock::rfc3339;
use serde_json::json;

use super::binding::set_condition;
use crate::kinds;
use crate::lookup::ObjectLookup;
use crate::registry::body::{self, BodyType};
use crate::registry::create::meta_text;
use crate::registry::delete::DeleteOptions;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Registry, VerbResult};

/// A budget whose controller has not yet confirmed this many evictions takes no more.
const MAX_DISRUPTED: usize = 2000;

/// The server's own status writes: nothing to carry over, nothing for users to get wrong.
const OWN_STATUS: Endpoint = Endpoint {
    subresource: "status",
    prepare: |_, _, _| {},
    validate: |_, _, _, _| {},
    generation: false,
    owns: false,
};

/// What the budget says.
#[derive(Debug, PartialEq)]
enum Budget {
    /// Evict without counting it.
    Free,
    /// Evict and count it.
    Counted,
}

impl Registry {
    pub async fn evict(&self, bytes: &[u8], headers: &HeaderMap, ctx: &Context<'_>) -> Result<VerbResult, Status> {
        let wanted = BodyType::new("policy", "v1", "Eviction", "policy/v1.Eviction");
        let mut eviction = body::decode(bytes, headers, &wanted, ctx)?;
        let (namespace, name) = (&ctx.info.namespace, &ctx.info.name);
        if meta_text(&eviction, "name").is_empty() {
            eviction["metadata"]["name"] = name.as_str().into();
        }
        if meta_text(&eviction, "name") != name {
            return Err(Status::bad_request(
                "name in URL does not match name in Eviction object",
            ));
        }
        let kind = kinds::of_resource("", "v1", "pods").expect("pods are built in");
        self.admit_body(kind, &mut eviction, ctx).await?;
        let mut options = DeleteOptions::from_value(&eviction["deleteOptions"], ctx)?;
        options.dry_run |= ctx.options.dry_run;
        let pod =
            ObjectLookup::get(self, "pods", namespace, name).ok_or_else(|| Status::not_found("", "pods", name))?;
        if let Some(budget) = self.budget_of(&pod)?
            && judge(&pod, &budget)? == Budget::Counted
            && !options.dry_run
        {
            self.count_disruption(&budget, name, ctx).await?;
        }
        if !options.dry_run && !meta_text(&pod, "deletionTimestamp").is_empty() {
            return Ok(evicted());
        }
        if !options.dry_run {
            self.mark_disrupted(kind, ctx).await?;
        }
        self.delete_named(kind, namespace, name, &options, ctx).await?;
        Ok(evicted())
    }

    /// The one budget that covers the pod.
    fn budget_of(&self, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
        let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or("");
        if matches!(phase, "Succeeded" | "Failed" | "Pending") || pod["metadata"]["deletionTimestamp"].is_string() {
            return Ok(None);
        }
        let labels = pod["metadata"].get("labels");
        let mut covering = self
            .list("poddisruptionbudgets.policy", Some(meta_text(pod, "namespace")))
            .into_iter()
            .filter(|b| {
                let selector = b.pointer("/spec/selector").cloned().unwrap_or(Value::Null);
                !selector.is_null() && LabelSelector::from_object(&selector).is_ok_and(|s| s.matches_map(labels))
            });
        let first = covering.next();
        if covering.next().is_some() {
            return Err(Status::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        Ok(first)
    }

    async fn count_disruption(&self, budget: &Value, pod: &str, ctx: &Context<'_>) -> Result<(), Status> {
        let kind = kinds::of_stored("poddisruptionbudgets.policy").expect("budgets are built in");
        let (namespace, name) = (meta_text(budget, "namespace"), meta_text(budget, "name"));
        let counted = |old: &Value| -> Result<Value, Status> {
            let mut new = old.clone();
            if allowed(old) <= 0 {
                return Err(would_violate(old));
            }
            new["status"]["disruptionsAllowed"] = (allowed(old) - 1).into();
            new["status"]["disruptedPods"][pod] = rfc3339(ctx.now).into();
            Ok(new)
        };
        self.change_named(kind, namespace, name, &OWN_STATUS, ctx, &counted)
            .await
            .map(|_| ())
    }

    async fn mark_disrupted(&self, kind: &'static orlop_api::KindDef, ctx: &Context<'_>) -> Result<(), Status> {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "lastProbeTime": null, "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": rfc3339(ctx.now),
        });
        let marked = |old: &Value| -> Result<Value, Status> {
            let mut pod = old.clone();
            set_condition(&mut pod, condition.clone());
            Ok(pod)
        };
        self.change(kind, &OWN_STATUS, ctx, &marked).await.map(|_| ())
    }
}

fn evicted() -> VerbResult {
    VerbResult::Value {
        value: json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        code: 201,
    }
}

fn allowed(budget: &Value) -> i64 {
    budget
        .pointer("/status/disruptionsAllowed")
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

fn status_count(budget: &Value, name: &str) -> i64 {
    budget["status"][name].as_i64().unwrap_or(0)
}

/// Whether the budget lets the pod go, and whether that counts against it.
fn judge(pod: &Value, budget: &Value) -> Result<Budget, Status> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Ready" && c["status"] == "True");
    if !ready {
        let policy = budget
            .pointer("/spec/unhealthyPodEvictionPolicy")
            .and_then(Value::as_str);
        let (healthy, desired) = (
            status_count(budget, "currentHealthy"),
            status_count(budget, "desiredHealthy"),
        );
        if policy == Some("AlwaysAllow") || (healthy >= desired && desired > 0) {
            return Ok(Budget::Free);
        }
    }
    let name = meta_text(budget, "name");
    if status_count(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        return Err(too_many(
            message,
            format!("The disruption budget {name} is still being processed by the server."),
            10,
        ));
    }
    if allowed(budget) < 0 {
        return Err(Status::forbidden(
            "policy",
            "poddisruptionbudgets",
            name,
            "pdb disruptions allowed is negative",
        ));
    }
    if budget
        .pointer("/status/disruptedPods")
        .and_then(Value::as_object)
        .is_some_and(|m| m.len() > MAX_DISRUPTED)
    {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Status::forbidden("policy", "poddisruptionbudgets", name, why));
    }
    if allowed(budget) == 0 {
        return Err(would_violate(budget));
    }
    Ok(Budget::Counted)
}

fn would_violate(budget: &Value) -> Status {
    let why = format!(
        "The disruption budget {} needs {} healthy pods and has {} currently",
        meta_text(budget, "name"),
        status_count(budget, "desiredHealthy"),
        status_count(budget, "currentHealthy")
    );
    too_many(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        why,
        0,
    )
}

fn too_many(message: &str, why: String, retry_after_seconds: u32) -> Status {
    let mut status = Status::too_many_requests(message, retry_after_seconds);
    let cause = Cause {
        reason: "DisruptionBudget".into(),
        message: why,
        field: String::new(),
    };
    status.details = Some(Box::new(Details {
        causes: vec![cause],
        retry_after_seconds,
        ..Default::default()
    }));
    status
}
