//! Binding a pod to a node: pods/NAME/binding and the older /bindings.

use http::HeaderMap;
use orlop_api::{Status, Value};
use orlop_base::clock::rfc3339;
use serde_json::json;

use crate::kinds;
use crate::registry::body::{self, BodyType};
use crate::registry::create::meta_text;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Outcome, Registry};

/// Binding writes the node's name past the rules for pod updates, and is no new generation of the spec.
const BINDING: Endpoint = Endpoint {
    subresource: "binding",
    prepare: |_, _, _| {},
    validate: |_, _, _, _| {},
    generation: false,
    owns: false,
};

impl Registry {
    pub async fn bind(
        &self,
        pod: &str,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<Outcome, Status> {
        let mut binding = body::decode(
            bytes,
            headers,
            BodyType::new("", "v1", "Binding", "core/v1.Binding"),
            ctx,
        )?;
        let name = match (pod, meta_text(&binding, "name")) {
            ("", "") => {
                return Err(Status::bad_request(
                    "metadata.name is required: it names the pod to bind",
                ));
            }
            ("", given) => given.to_string(),
            (path, "") => path.to_string(),
            (path, given) if path == given => path.to_string(),
            (path, given) => {
                let why = "name in URL does not match name in Binding object";
                tracing::debug!("{why}: {path} != {given}");
                return Err(Status::bad_request(why));
            }
        };
        let node = binding
            .pointer("/target/name")
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_string();
        check_target(&binding, &node)?;
        // The older way in does not look at the uid.
        if pod.is_empty()
            && let Some(meta) = binding["metadata"].as_object_mut()
        {
            meta.remove("uid");
        }
        let kind = kinds::of_resource("", "v1", "pods").expect("pods are built in");
        let outcome = self
            .change_named(kind, &ctx.info.namespace, &name, &BINDING, ctx, &|old| {
                bound(old, &binding, &node, ctx)
            })
            .await?;
        if ctx.options.dry_run {
            return Ok(outcome);
        }
        Ok(Outcome::Value {
            value: json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
            code: 201,
        })
    }
}

fn check_target(binding: &Value, node: &str) -> Result<(), Status> {
    let mut problems = orlop_api::Problems::default();
    let target = orlop_api::Cursor::root(binding).at("target");
    problems.one_of(&target.at("kind"), false, &["Node", "<empty>"]);
    if node.is_empty() {
        problems.required(&target.at("name"), "");
    }
    // Kubernetes gives the problems as they are, in no Invalid status.
    let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => Ok(()),
        [one] => Err(Status::plain_error(one)),
        many => Err(Status::plain_error(format!("[{}]", many.join(", ")))),
    }
}

/// The pod with its node, or why it can't have one.
fn bound(pod: &Value, binding: &Value, node: &str, ctx: &Context<'_>) -> Result<Value, Status> {
    let name = meta_text(pod, "name");
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", name, why));
    for (field, title) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, stored) = (meta_text(binding, field), meta_text(pod, field));
        if !wanted.is_empty() && wanted != stored {
            return refuse(format!(
                "Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {stored}"
            ));
        }
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if let Some(current) = pod.pointer("/spec/nodeName").and_then(Value::as_str)
        && !current.is_empty()
    {
        return refuse(format!("pod {name} is already assigned to node {current:?}"));
    }
    if pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array)
        .is_some_and(|g| !g.is_empty())
    {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = node.into();
    // A promise of some node is over once the pod has one.
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
        pod["metadata"]["annotations"][key.as_str()] = value.clone();
    }
    set_condition(
        &mut pod,
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": rfc3339(ctx.now)}),
    );
    Ok(pod)
}

/// Sets a pod condition by its type; an unchanged status keeps its transition time.
pub fn set_condition(pod: &mut Value, mut condition: Value) {
    let conditions = pod["status"]["conditions"].take();
    let mut list = conditions.as_array().cloned().unwrap_or_default();
    match list.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(there) => {
            if there["status"] == condition["status"] {
                condition["lastTransitionTime"] = there["lastTransitionTime"].clone();
            }
            *there = condition;
        }
        None => list.push(condition),
    }
    pod["status"]["conditions"] = list.into();
}
