//! delete and deletecollection.

use jiff::Timestamp;
use orlop_api::schema;
use orlop_api::{KindDef, ProblemKind, Status, Value, protobuf};
use orlop_base::clock::{Shift, rfc3339};
use orlop_base::join_all;
use orlop_store::{Action, Expect, Op, Page};
use serde_json::json;

use super::context::{OptionProblems, dry_run};
use super::create::meta_text;
use super::list::ListOptions;
use super::update::is_finished_deletion;
use super::{Context, MAX_RACES, Registry, VerbResult, rules, services};
use crate::admission::{self, Operation, Review};
use crate::kinds;
use crate::negotiate::{Format, body_format};
use crate::object::Object;

/// Resources whose delete answers with the object even when it is gone at once. Upstream: `ReturnDeletedObject`.
pub(crate) const RETURN_DELETED: &[(&str, &str)] = &[
    ("", "namespaces"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "pods"),
    ("", "podtemplates"),
    ("", "resourcequotas"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourceclaimtemplates"),
    ("resource.k8s.io", "resourceslices"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattachments"),
    ("storage.k8s.io", "volumeattributesclasses"),
];

/// How many objects of a collection are on their way out at the same time.
const DELETES_AT_ONCE: usize = 64;

/// How to delete: the body of the request, or its query.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub revision: Option<String>,
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl DeleteOptions {
    /// Puts what was asked for into the object form.
    pub(crate) fn write(&self, options: &mut serde_json::Map<String, Value>) {
        if let Some(seconds) = self.grace_seconds {
            options.insert("gracePeriodSeconds".into(), seconds.into());
        }
        if let Some(propagation) = self.propagation {
            options.insert("propagationPolicy".into(), format!("{propagation:?}").into());
        }
        let preconditions = [("uid", &self.uid), ("resourceVersion", &self.revision)];
        for (name, text) in preconditions {
            if let Some(text) = text {
                let preconditions = options.entry("preconditions").or_insert_with(|| json!({}));
                preconditions[name] = text.as_str().into();
            }
        }
    }

    pub fn parse(bytes: &[u8], ctx: &Context<'_>) -> Result<DeleteOptions, Status> {
        let query = &ctx.info.query;
        let value = if bytes.is_empty() {
            let mut v = json!({});
            if let Some(n) = query.number("gracePeriodSeconds")? {
                v["gracePeriodSeconds"] = n.into();
            }
            if let Some(p) = query.get("propagationPolicy") {
                v["propagationPolicy"] = p.into();
            }
            if query.get("orphanDependents").is_some() {
                v["orphanDependents"] = query.flag("orphanDependents").into();
            }
            v
        } else {
            decode_options(bytes, ctx)?
        };
        DeleteOptions::from_value(&value, ctx)
    }

    /// From a decoded `DeleteOptions`; null means none given.
    pub fn from_value(value: &Value, ctx: &Context<'_>) -> Result<DeleteOptions, Status> {
        let dry = value["dryRun"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let precondition = |name: &str| value["preconditions"][name].as_str().map(str::to_string);
        let mut problems = OptionProblems::default();
        let propagation = propagation(value, &mut problems);
        let dry_run = ctx.options.dry_run || dry_run(dry, &mut problems);
        problems.end("DeleteOptions")?;
        Ok(DeleteOptions {
            grace_seconds: value["gracePeriodSeconds"].as_i64(),
            propagation,
            uid: precondition("uid"),
            revision: precondition("resourceVersion"),
            dry_run,
        })
    }
}

fn decode_options(bytes: &[u8], ctx: &Context<'_>) -> Result<Value, Status> {
    let ty = schema::schema()
        .get("meta/v1.DeleteOptions")
        .expect("the schema table has every type");
    let format = body_format(ctx.headers)?;
    if let (Format::Json, Some(why)) = (format, schema::json_syntax_error(bytes)) {
        return Err(Status::bad_request(format!(
            "couldn't get version/kind; json parse error: {why}"
        )));
    }
    let bad = |e: String| Status::bad_request(e);
    let value = match format {
        Format::Json => schema::decode_json(bytes, ty).map_err(|e| bad(e.to_string()))?.value,
        Format::Yaml => schema::decode_yaml(bytes, ty).map_err(|e| bad(e.to_string()))?.value,
        Format::Protobuf => {
            let (meta, mut value) = protobuf::decode_as(bytes, ty).map_err(|e| bad(e.to_string()))?;
            value["kind"] = meta.kind.into();
            value["apiVersion"] = meta.api_version.into();
            value
        }
    };
    // Any group's DeleteOptions is the same type; another kind is a mistake.
    match value["kind"].as_str().unwrap_or("") {
        "" | "DeleteOptions" => Ok(value),
        other => Err(bad(format!(
            "no kind {other:?} is registered for version {:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
            value["apiVersion"].as_str().unwrap_or("")
        ))),
    }
}

fn propagation(options: &Value, problems: &mut OptionProblems) -> Option<Propagation> {
    let field = "propagationPolicy";
    let policy = options[field].as_str();
    let orphan = options["orphanDependents"].as_bool();
    if let (Some(policy), Some(_)) = (policy, orphan) {
        let detail = "orphanDependents and deletionPropagation cannot be both set".to_string();
        problems.push(ProblemKind::Invalid, field, Some(format!("{policy:?}")), detail);
    }
    match (policy, orphan) {
        (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
        (Some("Foreground"), _) => Some(Propagation::Foreground),
        (None, None) => None,
        (Some(other), _) => {
            let supported = r#""Foreground", "Background", "Orphan", "nil""#;
            problems.not_supported(field, &format!("{other:?}"), supported);
            None
        }
    }
}

/// What a delete comes to, decided from the stored object alone.
#[derive(Debug, PartialEq)]
pub enum DeletePlan {
    /// Gone at once; how it is shown last.
    Remove(Value),
    /// Marked and kept until its finalizers are done or its grace period has run out.
    Mark(Value),
    /// Already on its way out; nothing to write.
    Pending,
}

pub fn plan_delete(
    kind: &KindDef,
    object: &Value,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<DeletePlan, Status> {
    check_delete_preconditions(kind, object, options)?;
    let mut marked = object.clone();
    set_gc_finalizers(
        &mut marked,
        options.propagation.or_else(|| default_propagation(kind, object)),
    );
    let deleting = object["metadata"]["deletionTimestamp"].is_string();
    let grace = if kind.kind == "Pod" {
        pod_grace(object, options.grace_seconds)
    } else {
        0
    };
    if deleting {
        let left = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if grace < left {
            set_deletion(&mut marked, shortened(object, left, grace, now), grace);
        }
    } else {
        let at = now.later_by_seconds(grace);
        set_deletion(&mut marked, at, grace);
        // A namespace has no grace period, not even one of no seconds.
        if kind.kind == "Namespace"
            && let Some(meta) = marked["metadata"].as_object_mut()
        {
            meta.remove("deletionGracePeriodSeconds");
        }
        if let Some(generation) = marked["metadata"]["generation"].as_i64() {
            marked["metadata"]["generation"] = generation.saturating_add(1).into();
        }
        if kind.kind == "Namespace" {
            marked["status"]["phase"] = "Terminating".into();
        }
        rules::prepare_delete(kind, &mut marked, now);
    }
    let wait = marked["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    if !wait && is_finished_deletion(kind, &marked) {
        // Pods are shown as they were marked on their way out, others as they were.
        let last = if kind.kind == "Pod" { marked } else { object.clone() };
        return Ok(DeletePlan::Remove(last));
    }
    Ok(if marked == *object {
        DeletePlan::Pending
    } else {
        DeletePlan::Mark(marked)
    })
}

fn check_delete_preconditions(kind: &KindDef, object: &Value, options: &DeleteOptions) -> Result<(), Status> {
    let checks = [
        ("UID", "uid", &options.uid, "deleted and then recreated"),
        ("ResourceVersion", "resourceVersion", &options.revision, "modified"),
    ];
    for (title, name, wanted, been) in checks {
        let stored = meta_text(object, name);
        if let Some(wanted) = wanted
            && wanted != stored
        {
            let why = format!(
                "the {title} in the precondition ({wanted}) does not match the {title} in record ({stored}). The object might have been {been}"
            );
            // The kind, not the resource, stands here.
            return Err(Status::conflict(kind.group, kind.kind, meta_text(object, "name"), why));
        }
    }
    Ok(())
}

/// A pod goes at once if nothing can be running: no node, or already finished.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or("");
    let placed = pod
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .is_some_and(|n| !n.is_empty());
    if !placed || matches!(phase, "Failed" | "Succeeded") {
        return 0;
    }
    let own = pod
        .pointer("/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64);
    match asked.or(own).unwrap_or(30) {
        ..0 => 1,
        n => n,
    }
}

/// Counted from when the object was marked. Where a grace period went beyond the end of time that is not known: then
/// from now.
fn shortened(object: &Value, left: i64, grace: i64, now: Timestamp) -> Timestamp {
    let time = |name| meta_text(object, name).parse::<Timestamp>().ok();
    let marked = time("deletionTimestamp").map(|until| until.later_by_seconds(left.saturating_neg()));
    let marked = marked.filter(|marked| Some(*marked) >= time("creationTimestamp"));
    marked.unwrap_or(now).later_by_seconds(grace)
}

fn set_deletion(object: &mut Value, at: Timestamp, grace: i64) {
    object["metadata"]["deletionTimestamp"] = rfc3339(at).into();
    object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
}

/// The two oldest kinds of workload leave their pods alone unless told otherwise, by the request or by the object.
fn default_propagation(kind: &KindDef, object: &Value) -> Option<Propagation> {
    let decided = object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|list| list.iter().any(|f| f == "orphan" || f == "foregroundDeletion"));
    let orphans = matches!(kind.kind, "Job" | "ReplicationController");
    (orphans && !decided).then_some(Propagation::Orphan)
}

/// The garbage collector's finalizers, as the propagation policy asks; none given leaves them as they are.
fn set_gc_finalizers(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut list: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.retain(|f| !matches!(f.as_str(), Some("orphan" | "foregroundDeletion")));
    match propagation {
        Propagation::Orphan => list.push("orphan".into()),
        Propagation::Foreground => list.push("foregroundDeletion".into()),
        Propagation::Background => {}
    }
    let meta = object["metadata"]
        .as_object_mut()
        .expect("stored objects have metadata");
    if list.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".into(), list.into());
    }
}

impl Registry {
    pub async fn delete(&self, kind: &'static KindDef, bytes: &[u8], ctx: &Context<'_>) -> Result<VerbResult, Status> {
        let options = DeleteOptions::parse(bytes, ctx)?;
        if kind.kind == "Job" && options.propagation.is_none() {
            ctx.warnings.add("child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning");
        }
        let (value, removed) = self
            .delete_named(kind, &ctx.info.namespace, &ctx.info.name, &options, ctx)
            .await?;
        // Kinds that answer with the object do so always; the others only while it is still there.
        if removed && !RETURN_DELETED.contains(&(kind.group, kind.plural)) {
            return Ok(VerbResult::ok(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": deleted_details(kind, &value),
            })));
        }
        Ok(VerbResult::ok(value))
    }

    /// Deletes one object. Gives back its last state, and whether it is gone.
    pub async fn delete_named(
        &self,
        kind: &'static KindDef,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
        ctx: &Context<'_>,
    ) -> Result<(Value, bool), Status> {
        let review = Review {
            operation: Operation::Delete,
            kind,
            subresource: "",
            namespace: namespace.to_string(),
            name: name.to_string(),
            name_prefix: String::new(),
            user: ctx.user,
            dry_run: options.dry_run,
            now: ctx.now,
            lookup: self,
            config: &self.config,
            authorizer: &self.authorizer,
            warnings: ctx.warnings,
            request: ctx.info,
            delete: Some(options),
            dynamic: &self.dynamic_admission,
            kinds: &self.kinds,
            conversions: Default::default(),
        };
        for _ in 0..MAX_RACES {
            let item = self.find(kind, namespace, name)?;
            let item = self.present(kind, item).await?;
            let old = self.value_as(&item, kind);
            let plan = plan_delete(kind, &old, options, ctx.now)?;
            admission::validate(&review, None, Some(&old)).await?;
            let _turn = self.quota_turn(kind, namespace).await;
            let changes = admission::charge_quota(&review, None, Some(&old))?;
            let expect = Expect::At(item.mod_revision);
            let (op, value, removed) = match plan {
                DeletePlan::Pending => return Ok((old, false)),
                DeletePlan::Remove(last) => (
                    Op {
                        key: item.key,
                        expect,
                        action: Action::Delete,
                    },
                    last,
                    true,
                ),
                DeletePlan::Mark(marked) => {
                    let record = self.encode(&marked, kind).await?;
                    (
                        Op {
                            key: item.key,
                            expect,
                            action: Action::Put(record.into()),
                        },
                        marked,
                        false,
                    )
                }
            };
            if options.dry_run {
                return Ok((value, removed));
            }
            let mut ops = vec![op];
            if removed {
                ops.extend(self.change_ops(changes));
                ops.extend(services::plan(self, kind, None, Some(&old))?);
            }
            if let Some(revision) = self.commit_of_any_size(ops).await? {
                let mut value = value;
                if !removed {
                    value["metadata"]["resourceVersion"] = revision.to_string().into();
                }
                return Ok((value, removed));
            }
        }
        Err(Status::modified(kind.group, kind.plural, name))
    }

    /// Deletes what the selectors match, many at a time so that one wait for the disk serves several. Gives back what
    /// matched, as it was.
    pub async fn delete_collection(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        ctx: &Context<'_>,
    ) -> Result<Page<Object>, Status> {
        let options = DeleteOptions::parse(bytes, ctx)?;
        let page = self.presented_page(kind, &ListOptions::parse(kind, ctx.info)?).await?;
        for batch in page.items.chunks(DELETES_AT_ONCE) {
            let deletes = batch.iter().map(|item| {
                let (namespace, name) = kinds::split_key(kind, &item.key);
                self.delete_named(kind, namespace, name, &options, ctx)
            });
            for result in join_all(deletes).await {
                match result {
                    Err(status) if status.code != 404 => return Err(status),
                    _ => {}
                }
            }
        }
        Ok(page)
    }
}

fn deleted_details(kind: &KindDef, value: &Value) -> Value {
    let mut details = json!({"name": meta_text(value, "name"), "kind": kind.plural, "uid": meta_text(value, "uid")});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(grace: i64) -> Value {
        json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": grace}, "status": {"phase": "Running"}})
    }

    fn marked(object: &Value, grace: Option<i64>, now: &str) -> (String, i64) {
        let kind = kinds::of_stored("pods").expect("pods are stored");
        let options = DeleteOptions {
            grace_seconds: grace,
            ..DeleteOptions::default()
        };
        let plan = plan_delete(kind, object, &options, now.parse().expect("a time")).expect("no precondition fails");
        let (DeletePlan::Mark(object) | DeletePlan::Remove(object)) = plan else {
            panic!("nothing was done");
        };
        let seconds = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
        (
            meta_text(&object, "deletionTimestamp").to_string(),
            seconds.unwrap_or(-1),
        )
    }

    #[test]
    fn a_grace_period_ends_at_the_end_of_time() {
        let now = "2026-01-02T00:00:00Z";
        assert_eq!(marked(&pod(30), None, now), ("2026-01-02T00:00:30Z".into(), 30));
        for (own, asked) in [(i64::MAX, None), (30, Some(i64::MAX)), (i64::MAX, Some(i64::MAX - 1))] {
            let (end, seconds) = marked(&pod(own), asked, now);
            assert_eq!((end.as_str(), seconds), ("9999-12-30T22:00:00Z", asked.unwrap_or(own)));
        }
        // Nobody waits for less than no time.
        assert_eq!(
            marked(&pod(30), Some(i64::MIN), now),
            ("2026-01-02T00:00:01Z".into(), 1)
        );
    }

    #[test]
    fn a_shorter_grace_period_counts_from_when_the_first_began() {
        let mut object = pod(60);
        object["metadata"]["deletionTimestamp"] = "2026-01-02T00:01:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = 60.into();
        let now = "2026-01-02T00:00:20Z";
        assert_eq!(marked(&object, Some(30), now), ("2026-01-02T00:00:30Z".into(), 30));
        // Unless that lies beyond the beginning of time.
        object["metadata"]["deletionTimestamp"] = "9999-12-30T22:00:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = i64::MAX.into();
        assert_eq!(marked(&object, Some(30), now), ("2026-01-02T00:00:50Z".into(), 30));
    }
}
