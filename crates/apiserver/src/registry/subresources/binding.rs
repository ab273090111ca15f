//! Binding a pod to a node: pods/NAME/binding and the older /bindings.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::{KindDef, Status, Value};
use orlop_base::clock::rfc3339;
use orlop_store::{Action, Expect, Op};
use serde_json::json;

use crate::admission::{self, Operation, Review};
use crate::kinds;
use crate::lookup::text;
use crate::object::Object;
use crate::registry::body::{self, BodyType};
use crate::registry::create::meta_text;
use crate::registry::{Context, MAX_RACES, Registry, VerbResult};

impl Registry {
    pub async fn bind(
        &self,
        pod: &str,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let mut binding = body::decode(
            bytes,
            headers,
            &BodyType::new("", "v1", "Binding", "core/v1.Binding"),
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
                tracing::debug!(why, path, given, "refused binding");
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
        admission::review_dynamic(&self.binding_review(kind, &name, ctx), &mut binding).await?;
        let node = text(&binding, &["target", "name"]).to_string();
        self.bind_to(&name, &binding, &node, ctx).await
    }

    /// Each pod goes this way once, so it is kept short: nothing of what a general update looks for can have changed.
    async fn bind_to(&self, name: &str, binding: &Value, node: &str, ctx: &Context<'_>) -> Result<VerbResult, Status> {
        let kind = kinds::of_resource("", "v1", "pods").expect("pods are built in");
        for _ in 0..MAX_RACES {
            let item = self.find(kind, &ctx.info.namespace, name)?;
            let mut pod = self.fresh.take(&item).unwrap_or_else(|| self.value_of(&item));
            check_pod(&pod, binding)?;
            assign(&mut pod, binding, node, ctx);
            let review = self.binding_review(kind, name, ctx);
            admission::mutate_built_in(&review, &mut pod, None)?;
            admission::validate_built_in(&review, Some(&pod), None)?;
            let changes = admission::charge_quota(&review, Some(&pod), None)?;
            if ctx.options.dry_run {
                return Ok(VerbResult::ok(pod));
            }
            let mut ops = self.change_ops(changes);
            ops.push(Op {
                key: item.key.clone(),
                expect: Expect::At(item.mod_revision),
                action: Action::Put(Arc::new(Object::encode(&pod, kind))),
            });
            if let Some(revision) = self.commit(ops).await? {
                self.fresh.put(&item.key, revision, pod);
                let value =
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
                return Ok(VerbResult::Value { value, code: 201 });
            }
        }
        Err(Status::modified(kind.group, kind.plural, name))
    }

    /// To admission a binding is something that is created.
    fn binding_review<'r>(&'r self, kind: &'static KindDef, name: &str, ctx: &'r Context<'_>) -> Review<'r> {
        Review {
            operation: Operation::Create,
            kind,
            subresource: "binding",
            namespace: ctx.info.namespace.clone(),
            name: name.to_string(),
            name_prefix: String::new(),
            user: ctx.user,
            dry_run: ctx.options.dry_run,
            now: ctx.now,
            lookup: self,
            config: &self.config,
            authorizer: &self.authorizer,
            warnings: ctx.warnings,
            request: ctx.info,
            delete: None,
            dynamic: &self.dynamic_admission,
            kinds: &self.kinds,
            conversions: Default::default(),
        }
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

/// Why the pod can't have this node, or any.
fn check_pod(pod: &Value, binding: &Value) -> Result<(), Status> {
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
    Ok(())
}

/// Writes the node's name past the rules for pod updates; it is no new generation of the spec.
fn assign(pod: &mut Value, binding: &Value, node: &str, ctx: &Context<'_>) {
    pod["spec"]["nodeName"] = node.into();
    // A promise of some node is over once the pod has one.
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
        pod["metadata"]["annotations"][key.as_str()] = value.clone();
    }
    set_condition(
        pod,
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": rfc3339(ctx.now)}),
    );
}

/// Sets a pod condition by its type; an unchanged status keeps its transition time.
pub(super) fn set_condition(pod: &mut Value, mut condition: Value) {
    let mut list = match pod["status"]["conditions"].take() {
        Value::Array(list) => list,
        _ => vec![],
    };
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
