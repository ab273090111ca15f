//! update, and what all ways of changing an object share: patches, status, scale and the other subresources.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::patch::apply as ownership;
use orlop_api::{Cursor, KindDef, Problems, Status, Value, meta};
use orlop_store::{Action, Expect, Item, Op};

use super::body::{self, BodyType};
use super::create::{check_name, meta_text, own_fields, place_in_namespace};
use super::{Context, MAX_RACES, Registry, VerbResult, rules, services, stamps};
use crate::admission::{self, Operation, Review};
use crate::object::Object;
use crate::{custom, kinds};

/// Which side of an object an endpoint may change, and how.
#[derive(Clone, Copy)]
pub struct Endpoint {
    /// "" for the object itself.
    pub subresource: &'static str,
    /// Carries over from the old object what this endpoint leaves alone (new, old).
    pub prepare: fn(&KindDef, &mut Value, &Value),
    /// Checks the prepared object (new, old).
    pub validate: fn(&KindDef, &Cursor<'_>, &Cursor<'_>, &mut Problems),
    /// Whether a changed spec makes a new generation.
    pub generation: bool,
    /// Whether the writer owns what they changed. The server's own doings are nobody's.
    pub owns: bool,
}

impl Endpoint {
    pub const MAIN: Endpoint = Endpoint {
        subresource: "",
        prepare: rules::prepare_update,
        validate: rules::validate_update,
        generation: true,
        owns: true,
    };
    pub const STATUS: Endpoint = Endpoint {
        subresource: "status",
        prepare: |kind, new, old| (kind.prepare_status)(new, old),
        validate: rules::validate_status,
        generation: false,
        owns: true,
    };
}

/// Who decides the new object: called with what is stored now, again after each lost race.
pub type Desired<'f> = dyn Fn(&Value) -> Result<Value, Status> + Send + Sync + 'f;

impl Registry {
    pub async fn update(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let mut value = body::decode(bytes, headers, &BodyType::of(kind)?, ctx)?;
        place_in_namespace(kind, &mut value, &ctx.info.namespace)?;
        if meta_text(&value, "name").is_empty() && !ctx.info.name.is_empty() && !endpoint.subresource.is_empty() {
            value["metadata"]["name"] = ctx.info.name.as_str().into();
        }
        check_name(&value, &ctx.info.name)?;
        let exists = self
            .store
            .get(&kinds::key(kind, &ctx.info.namespace, &ctx.info.name))
            .is_some();
        if !exists && kind.create_on_update && endpoint.subresource.is_empty() {
            self.authorize_create(ctx)?;
            return self.create_value(kind, value, ctx).await;
        }
        if !kind.unconditional_update && meta_text(&value, "resourceVersion").is_empty() {
            let mut problems = Problems::default();
            let root = Cursor::root(&value);
            problems.push(
                orlop_api::ProblemKind::Invalid,
                root.at("metadata").at("resourceVersion").path(),
                Some("0".into()),
                "must be specified for an update",
            );
            return Err(Status::invalid(kind.group, kind.kind, &ctx.info.name, &problems));
        }
        self.change(kind, endpoint, ctx, &|_| Ok(value.clone())).await
    }

    /// Replaces the stored object by what `desired` makes of it, through `endpoint`, until it wins the race or the
    /// desired object names a revision that is no longer there.
    pub async fn change(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        ctx: &Context<'_>,
        desired: &Desired<'_>,
    ) -> Result<VerbResult, Status> {
        self.change_named(kind, &ctx.info.namespace, &ctx.info.name, endpoint, ctx, desired)
            .await
    }

    pub async fn change_named(
        &self,
        kind: &'static KindDef,
        namespace: &str,
        name: &str,
        endpoint: &Endpoint,
        ctx: &Context<'_>,
        desired: &Desired<'_>,
    ) -> Result<VerbResult, Status> {
        for _ in 0..MAX_RACES {
            let stored = self.find(kind, namespace, name)?;
            let item = self.present(kind, stored.clone()).await?;
            let old = self.value_as(&item, kind);
            let new = desired(&old)?;
            match self
                .try_change(kind, endpoint, ctx, (&stored, &item), &old, new)
                .await?
            {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
        Err(Status::modified(kind.group, kind.plural, name))
    }

    /// One attempt, at an object as it is stored and as it is served; `None` if the race was lost.
    async fn try_change(
        &self,
        kind: &'static KindDef,
        endpoint: &Endpoint,
        ctx: &Context<'_>,
        (stored, item): (&Item<Object>, &Item<Object>),
        old: &Value,
        mut new: Value,
    ) -> Result<Option<VerbResult>, Status> {
        let name = meta_text(old, "name");
        check_preconditions(kind, &new, old, name, ctx)?;
        // From here on it is about this revision, whether or not the client named one.
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        rules::fill_defaults(kind, &mut new);
        let review = Review {
            operation: Operation::Update,
            kind,
            subresource: endpoint.subresource,
            namespace: meta_text(old, "namespace").to_string(),
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
        };
        // Everyone owns what they changed, before admission and the system have their say; an apply has settled it.
        if endpoint.owns && !ctx.is_apply() {
            own_fields(&mut new, Some(old), kind, ctx, endpoint.subresource);
        }
        admission::mutate(&review, &mut new, Some(old)).await?;
        prepare(kind, endpoint, &mut new, old);
        stamps::on_update(self, kind, &mut new, old, ctx);
        validate_changed(kind, endpoint, &new, old, name)?;
        ctx.warn_about(kind, &new, Some(old));
        let mut ops = services::plan(self, kind, Some(&mut new), Some(old))?;
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        ownership::keep_times_if_unchanged(&mut new, old);
        // One that is to be encrypted with another key is written even so, and one that would be stored in another form now.
        if new == *old && !self.store.is_stale(&item.key) && self.is_stored_as(stored, item, &new, kind).await? {
            return Ok(Some(VerbResult::Stored {
                item: item.clone(),
                created: false,
            }));
        }
        admission::validate(&review, Some(&new), Some(old)).await?;
        let _turn = self.quota_turn(kind, &review.namespace).await;
        let changes = admission::charge_quota(&review, Some(&new), Some(old))?;
        if ctx.options.dry_run {
            return Ok(Some(VerbResult::ok(new)));
        }
        ops.extend(self.change_ops(changes));
        let expect = Expect::At(item.mod_revision);
        if is_finished_deletion(kind, &new) {
            ops.extend(services::plan(self, kind, None, Some(old))?);
            ops.push(Op {
                key: item.key.clone(),
                expect,
                action: Action::Delete,
            });
            return Ok(self.commit(ops).await?.map(|revision| {
                new["metadata"]["resourceVersion"] = revision.to_string().into();
                VerbResult::ok(new)
            }));
        }
        let record = Arc::new(self.encode(&new, kind).await?);
        ops.push(Op {
            key: item.key.clone(),
            expect,
            action: Action::Put(record.clone()),
        });
        Ok(self.commit(ops).await?.map(|revision| {
            if kind.custom.is_some() {
                // As it was written, whatever version it is stored in.
                new["metadata"]["resourceVersion"] = revision.to_string().into();
                return VerbResult::ok(new);
            }
            let item = Item {
                key: item.key.clone(),
                record,
                create_revision: item.create_revision,
                mod_revision: revision,
            };
            VerbResult::Stored { item, created: false }
        }))
    }
}

impl Registry {
    /// Whether what is stored of a custom object is what would be stored of it now: in the same version, pruned and filled
    /// in by the same schema. `item` is how it is served.
    async fn is_stored_as(
        &self,
        stored: &Item<Object>,
        item: &Item<Object>,
        new: &Value,
        kind: &'static KindDef,
    ) -> Result<bool, Status> {
        if Arc::ptr_eq(&stored.record, &item.record) {
            return Ok(true);
        }
        let before = self.value_of(stored);
        Ok(match self.in_stored_form(new, kind).await? {
            Some(converted) => converted == before,
            None => *new == before,
        })
    }
}

impl Context<'_> {
    /// Whether this request is a server-side apply.
    pub fn is_apply(&self) -> bool {
        self.info.verb == "patch" && super::patch::is_apply(self.headers)
    }
}

/// The revision and uid the client had in mind, if it named any.
fn check_preconditions(kind: &KindDef, new: &Value, old: &Value, name: &str, ctx: &Context<'_>) -> Result<(), Status> {
    let revision = meta_text(new, "resourceVersion");
    if !revision.is_empty() && revision.parse::<u64>().is_err() {
        let why = format!("strconv.ParseUint: parsing {revision:?}: invalid syntax");
        return Err(Status::plain_error(why));
    }
    if !revision.is_empty() && revision != "0" && revision != meta_text(old, "resourceVersion") {
        return Err(Status::modified(kind.group, kind.plural, name));
    }
    let (uid, stored) = (meta_text(new, "uid"), meta_text(old, "uid"));
    if !uid.is_empty() && uid != stored {
        // A patch is made from what is stored: there another uid is no mix-up but a change, and a forbidden one.
        if ctx.info.verb == "patch" {
            let mut problems = Problems::default();
            let path = orlop_api::Path::default().field("metadata").field("uid");
            problems.invalid_value(&path, &uid.into(), "field is immutable");
            return Err(Status::invalid(kind.group, kind.kind, name, &problems));
        }
        let namespace = meta_text(old, "namespace");
        let slash = if namespace.is_empty() { "" } else { "/" };
        let key = format!("{}{}/{namespace}{slash}{name}", kinds::PREFIX, kind.plural);
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}"
        );
        return Err(Status::conflict(kind.group, kind.plural, name, why));
    }
    Ok(())
}

/// Metadata that only the system changes comes from the old object; then the endpoint's own rules; then the generation.
fn prepare(kind: &KindDef, endpoint: &Endpoint, new: &mut Value, old: &Value) {
    for name in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "selfLink",
    ] {
        let meta = new["metadata"].as_object_mut().expect("decoded objects have metadata");
        match old["metadata"].get(name) {
            Some(v) => meta.insert(name.into(), v.clone()),
            None => meta.remove(name),
        };
    }
    (endpoint.prepare)(kind, new, old);
    let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
    let untouched = new["metadata"]["generation"].as_i64().unwrap_or(0) == generation;
    if kind.generation && endpoint.generation && untouched && content_differs(kind, new, old) {
        new["metadata"]["generation"] = generation.saturating_add(1).into();
    }
}

/// Anything but metadata and status; the status of a custom kind that does not set it apart is content like any other.
fn content_differs(kind: &KindDef, new: &Value, old: &Value) -> bool {
    let has_plain_status = kind.custom.is_some() && !kind.has_status();
    let content = |v: &Value| -> Vec<(String, Value)> {
        let members = v.as_object().into_iter().flatten();
        members
            .filter(|(k, _)| !matches!(k.as_str(), "metadata" | "apiVersion" | "kind"))
            .filter(|(k, _)| *k != "status" || has_plain_status)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    content(new) != content(old)
}

fn validate_changed(kind: &KindDef, endpoint: &Endpoint, new: &Value, old: &Value, name: &str) -> Result<(), Status> {
    let mut problems = Problems::default();
    let (new, old) = (Cursor::root(new), Cursor::root(old));
    meta::validate_update(&new.at("metadata"), &old.at("metadata"), &mut problems);
    rules::validate_finalizers(kind, &new.at("metadata").at("finalizers"), &mut problems);
    (endpoint.validate)(kind, &new, &old, &mut problems);
    if let (Some(new), Some(old)) = (new.value(), old.value()) {
        custom::validate(kind, new, Some(old), endpoint.subresource, &mut problems);
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(kind.group, kind.kind, name, &problems))
    }
}

/// The object was waiting only for its finalizers, and this write took the last one away.
pub fn is_finished_deletion(kind: &KindDef, value: &Value) -> bool {
    let empty = |pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_array)
            .is_none_or(Vec::is_empty)
    };
    value
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|t| !t.is_null())
        && empty("/metadata/finalizers")
        && value
            .pointer("/metadata/deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or(0)
            == 0
        && (kind.kind != "Namespace" || empty("/spec/finalizers"))
}
