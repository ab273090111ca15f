//! create.

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::patch::apply as ownership;
use orlop_api::{Cursor, KindDef, Problems, Status, Value, meta, schema};
use orlop_base::clock::rfc3339;
use orlop_store::{Action, Expect, Item, Op};

use super::body::{self, BodyType};
use super::{Context, MAX_RACES, Registry, VerbResult, rules, services, stamps};
use crate::admission::{self, Operation, Review};
use crate::object::Object;
use crate::{authz, custom, kinds};

impl Registry {
    pub async fn create(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let mut value = body::decode(bytes, headers, &BodyType::of(kind)?, ctx)?;
        place_in_namespace(kind, &mut value, &ctx.info.namespace)?;
        if !ctx.info.name.is_empty() {
            check_name(&value, &ctx.info.name)?;
        }
        self.create_value(kind, value, ctx).await
    }

    /// Whether the user may create the object of the request: asked where another verb would make it.
    pub(super) fn authorize_create(&self, ctx: &Context<'_>) -> Result<(), Status> {
        let info = ctx.info;
        let attributes = authz::Attributes {
            version: &info.version,
            path: &info.path,
            ..authz::Attributes::resource(ctx.user, "create", &info.group, &info.resource)
        };
        let attributes = attributes.in_namespace(&info.namespace).named(&info.name);
        let decision = self.authorizer.authorize(&attributes, self);
        match decision.allowed {
            true => Ok(()),
            false => Err(authz::forbidden(&attributes, &decision.reason)),
        }
    }

    /// Creates an object that is already decoded: also the way of apply and of the server's own objects.
    pub async fn create_value(
        &self,
        kind: &'static KindDef,
        mut value: Value,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        check_no_revision(&value)?;
        rules::fill_defaults(kind, &mut value);
        wipe_system_fields(&mut value);
        // The creator owns what they wrote and its defaults, not what admission and the system add. An apply has
        // settled the ownership already.
        if !ctx.is_apply() {
            own_fields(&mut value, None, kind, ctx, "");
        }
        let namespace = meta_text(&value, "namespace").to_string();
        let review = |name: &str| -> Review<'_> {
            Review {
                operation: Operation::Create,
                kind,
                subresource: "",
                namespace: namespace.clone(),
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
        };
        admission::mutate(&review(meta_text(&value, "name")), &mut value, None).await?;
        // Admission may have changed much of the object, but not what is the system's.
        place_in_namespace(kind, &mut value, &namespace)?;
        wipe_system_fields(&mut value);
        check_no_revision(&value)?;
        let generated = meta_text(&value, "name").is_empty() && !meta_text(&value, "generateName").is_empty();
        if !generated {
            return self.create_named(kind, value, ctx, &review).await;
        }
        // A generated name that is taken is drawn again.
        let mut last = Status::internal("a new name was never found");
        for _ in 0..8 {
            let mut candidate = value.clone();
            let base: String = meta_text(&value, "generateName").chars().take(58).collect();
            candidate["metadata"]["name"] = format!("{base}{}", self.random_suffix()).into();
            match self.create_named(kind, candidate, ctx, &review).await {
                Err(status) if status.reason == "AlreadyExists" => last = status,
                other => return other,
            }
        }
        Err(last)
    }

    async fn create_named<'r>(
        &self,
        kind: &'static KindDef,
        mut value: Value,
        ctx: &Context<'_>,
        review: &(dyn Fn(&str) -> Review<'r> + Sync),
    ) -> Result<VerbResult, Status> {
        self.fill_metadata(kind, &mut value, ctx);
        let status = value.get("status").filter(|_| ctx.options.keep_status).cloned();
        rules::prepare_create(kind, &mut value);
        // Whatever the status was, it is gone; what the schema puts in its place is not.
        if let Some(version) = custom::schema_of(kind).filter(|version| version.schema().has_defaults) {
            version.default(&mut value);
        }
        fill_empty_status(kind, &mut value);
        if let Some(status) = status {
            value["status"] = status;
        }
        let name = meta_text(&value, "name").to_string();
        let namespace = meta_text(&value, "namespace").to_string();
        check_not_terminating(kind)?;
        validate_new(kind, &value, &name)?;
        stamps::on_create(self, kind, &mut value, ctx);
        ctx.warn_about(kind, &value, None);
        for _ in 0..MAX_RACES {
            let key: Arc<str> = kinds::key(kind, &namespace, &name).into();
            if self.store.get(&key).is_some() {
                return Err(Status::already_exists(kind.group, kind.plural, &name));
            }
            // What is chosen for a service is chosen anew in each attempt; other objects need no copy of their own.
            let mut service = services::concerns(kind).then(|| value.clone());
            let mut ops = match &mut service {
                Some(service) => services::plan(self, kind, Some(service), None)?,
                None => vec![],
            };
            let object = service.as_ref().unwrap_or(&value);
            let review = review(&name);
            admission::validate(&review, Some(object), None).await?;
            let _turn = self.quota_turn(kind, &namespace).await;
            let changes = admission::charge_quota(&review, Some(object), None)?;
            if ctx.options.dry_run {
                return Ok(VerbResult::Value {
                    value: object.clone(),
                    code: 201,
                });
            }
            ops.extend(self.change_ops(changes));
            let stored = self.in_stored_form(object, kind).await?;
            let (record, is_whole) = encode_fitting(stored.as_ref().unwrap_or(object), self.stored_kind(kind));
            let record = Arc::new(record);
            ops.push(Op {
                key: key.clone(),
                expect: Expect::Absent,
                action: Action::Put(record.clone()),
            });
            if let Some(revision) = self.commit(ops).await? {
                if let Some(mut value) = stored {
                    if kind.custom.is_some() {
                        value = object.clone();
                    }
                    (kind.from_stored)(&mut value);
                    value["apiVersion"] = kind.api_version().into();
                    value["kind"] = kind.kind.into();
                    value["metadata"]["resourceVersion"] = revision.to_string().into();
                    return Ok(VerbResult::Value { value, code: 201 });
                }
                if is_whole && kind.plural == "pods" && kind.group.is_empty() {
                    self.fresh.put(&key, revision, value);
                }
                let item = Item {
                    key,
                    record,
                    create_revision: revision,
                    mod_revision: revision,
                };
                return Ok(VerbResult::Stored { item, created: true });
            }
        }
        Err(Status::modified(kind.group, kind.plural, &name))
    }

    /// What the system, not the creator, says about a new object.
    fn fill_metadata(&self, kind: &KindDef, value: &mut Value, ctx: &Context<'_>) {
        let meta = value["metadata"]
            .as_object_mut()
            .expect("decoded objects have metadata");
        meta.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        meta.insert("creationTimestamp".into(), rfc3339(ctx.now).into());
        if kind.generation {
            meta.insert("generation".into(), 1.into());
        }
    }
}

/// An empty status still has the fields that are always written.
fn fill_empty_status(kind: &KindDef, value: &mut Value) {
    let empty = value["status"].as_object().is_some_and(serde_json::Map::is_empty);
    let types = schema::schema();
    if empty
        && let Some(ty) = types.get(kind.schema)
        && let Some(field) = types.ty(ty).field("status")
    {
        value["status"] = schema::zero(&field.ty);
    }
}

fn check_no_revision(value: &Value) -> Result<(), Status> {
    match meta_text(value, "resourceVersion") {
        "" => Ok(()),
        _ => Err(Status::plain_error(
            "resourceVersion should not be set on objects to be created",
        )),
    }
}

/// Metadata that is the system's to write.
fn wipe_system_fields(value: &mut Value) {
    let meta = value["metadata"]
        .as_object_mut()
        .expect("decoded objects have metadata");
    let system = [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ];
    meta.retain(|name, _| !system.contains(&name.as_str()));
}

impl Context<'_> {
    pub fn warn_about(&self, kind: &KindDef, new: &Value, old_value: Option<&Value>) {
        let old = old_value.map(Cursor::root);
        for text in rules::warnings(kind, &Cursor::root(new), old.as_ref()) {
            self.warnings.add(text);
        }
        if let Some(version) = custom::schema_of(kind) {
            version
                .warnings(new, old_value)
                .into_iter()
                .for_each(|text| self.warnings.add(text));
        }
    }
}

fn validate_new(kind: &KindDef, value: &Value, name: &str) -> Result<(), Status> {
    let mut problems = Problems::default();
    let root = Cursor::root(value);
    meta::validate_create(&root.at("metadata"), kind.namespaced, kind.name_rule, &mut problems);
    rules::validate_finalizers(kind, &root.at("metadata").at("finalizers"), &mut problems);
    rules::validate_create(kind, &root, &mut problems);
    custom::validate(kind, value, None, "", &mut problems);
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(kind.group, kind.kind, name, &problems))
    }
}

/// The kind in whose form objects of this kind are stored.
pub fn stored_kind(kind: &'static KindDef) -> &'static KindDef {
    if kind.stored_as.is_empty() {
        kind
    } else {
        kinds::of_stored(kind.stored_as).expect("stored_as names a kind")
    }
}

impl Registry {
    fn stored_kind(&self, kind: &'static KindDef) -> &'static KindDef {
        match kind.custom {
            Some(_) => self.kinds.snapshot().stored_form(kind),
            None => stored_kind(kind),
        }
    }

    /// Encodes an object in the form in which its kind is stored.
    pub(super) async fn encode(&self, value: &Value, kind: &'static KindDef) -> Result<Object, Status> {
        Ok(match self.in_stored_form(value, kind).await? {
            Some(stored) => encode_fitting(&stored, self.stored_kind(kind)).0,
            None => encode_fitting(value, kind).0,
        })
    }

    /// The form in which the object is stored, if that is another kind's or version's.
    pub(super) async fn in_stored_form(&self, value: &Value, kind: &'static KindDef) -> Result<Option<Value>, Status> {
        if kind.custom.is_some() {
            return self.in_storage_version(kind, value).await;
        }
        Ok((!kind.stored_as.is_empty()).then(|| {
            let mut stored = value.clone();
            (kind.to_stored)(&mut stored);
            stored
        }))
    }
}

/// No object comes while its definition goes.
fn check_not_terminating(kind: &KindDef) -> Result<(), Status> {
    if custom::of(kind).is_some_and(|served| served.facts.is_terminating) {
        let mut status = Status::method_not_allowed();
        status.message = "create not allowed while custom resource definition is terminating".to_string();
        return Err(status);
    }
    Ok(())
}

/// Encodes an object; without the record of who owns its fields if it would be too large with it, as Kubernetes does.
/// Also says whether it is all there.
fn encode_fitting(value: &Value, kind: &'static KindDef) -> (Object, bool) {
    let record = Object::encode(value, kind);
    if !record.is_too_large() || value["metadata"].get("managedFields").is_none() {
        return (record, true);
    }
    let mut value = value.clone();
    if let Some(meta) = value["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    (Object::encode(&value, kind), false)
}

/// Records who owns which fields, by what this write changed.
pub fn own_fields(new: &mut Value, old: Option<&Value>, kind: &KindDef, ctx: &Context<'_>, subresource: &str) {
    let options = ownership::UpdateOptions {
        manager: &ctx.options.manager,
        now: ctx.now,
        api_version: &kind.api_version(),
        subresource,
        reset: reset_fields(kind, subresource),
    };
    let version = custom::schema_of(kind);
    ownership::update_managed_fields(new, old, custom::object_type(kind, &version), &options);
}

/// Fields that a writer through this endpoint can't own, because the endpoint does not change them.
pub fn reset_fields(kind: &KindDef, subresource: &str) -> &'static [&'static [&'static str]] {
    match (subresource, kind.kind) {
        ("", "CertificateSigningRequest") => &[&["spec"], &["status"]],
        ("status", "CertificateSigningRequest") => &[&["spec"], &["status", "conditions"]],
        ("approval", "CertificateSigningRequest") => &[&["spec"], &["status", "certificate"]],
        ("status", "Pod") => &[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "ownerReferences"],
        ],
        ("status", "Deployment") => &[&["spec"], &["metadata", "labels"]],
        (
            "status",
            "ValidatingAdmissionPolicy"
            | "FlowSchema"
            | "PriorityLevelConfiguration"
            | "ServiceCIDR"
            | "ResourceClaim"
            | "VolumeAttachment",
        ) => &[&["spec"], &["metadata"]],
        ("status", _) if kind.custom.is_some() => &[&["metadata"], &["spec"]],
        ("status", _) => &[&["spec"]],
        ("finalize", "Namespace") => &[&["status"]],
        ("", _) if kind.has_status() && kind.kind != "ServiceCIDR" => &[&["status"]],
        _ => &[],
    }
}

/// A text member of the metadata, or "".
pub fn meta_text<'v>(value: &'v Value, name: &str) -> &'v str {
    value["metadata"].get(name).and_then(Value::as_str).unwrap_or("")
}

/// The object's namespace is the path's; if both say one, they must agree.
pub fn place_in_namespace(kind: &KindDef, value: &mut Value, namespace: &str) -> Result<(), Status> {
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Default::default());
    }
    let given = meta_text(value, "namespace").to_string();
    if !kind.namespaced {
        // Kinds without a namespace: what the client wrote there is dropped unless it contradicts the path.
        if !given.is_empty() {
            return Err(Status::bad_request(
                "namespace may not be set on a cluster-scoped object",
            ));
        }
        return Ok(());
    }
    if !given.is_empty() && given != namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    value["metadata"]["namespace"] = namespace.into();
    Ok(())
}

pub fn check_name(value: &Value, name: &str) -> Result<(), Status> {
    let given = meta_text(value, "name");
    if given != name {
        return Err(Status::bad_request(if given.is_empty() {
            format!("the name of the object ({name} based on URL) was undeterminable: name must be provided")
        } else {
            format!("the name of the object ({given}) does not match the name on the URL ({name})")
        }));
    }
    Ok(())
}
