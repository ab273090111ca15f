//! What webhooks and policies are shown: the object of the request in the version that they ask for, and what they made of
//! it put back.

use std::borrow::Cow;

use orlop_api::schema::{self, TypeRef};
use orlop_api::{KindDef, Status, Value};
use parking_lot::Mutex;
use serde_json::{Map, json};

use super::{Operation, Review};
use crate::custom::{self, Converter};
use crate::registry::rules;
use crate::registry::subresources::scale::{scale_of, scaled};

/// Group, version and kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypeName<'k> {
    pub group: &'k str,
    pub version: &'k str,
    pub kind: &'k str,
}

impl TypeName<'_> {
    pub(super) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_string(),
            group => format!("{group}/{}", self.version),
        }
    }

    pub(super) fn to_value(self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// What goes in and out where the request is for: some subresources have a kind of their own.
pub(super) fn type_name<'k>(kind: &'k KindDef, subresource: &str) -> TypeName<'k> {
    match kind.subresource(subresource).filter(|sub| !sub.kind.is_empty()) {
        Some(sub) => TypeName {
            group: sub.group,
            version: if sub.version.is_empty() { "v1" } else { sub.version },
            kind: sub.kind,
        },
        None => TypeName {
            group: kind.group,
            version: kind.version,
            kind: kind.kind,
        },
    }
}

/// A Scale is made from its workload, which is what the registry reviews.
fn is_scale(review: &Review<'_>) -> bool {
    review.subresource == "scale"
}

/// What a conversion webhook made of objects of one request, so that it is asked once for each of them.
#[derive(Default)]
pub(crate) struct Conversions(Mutex<Vec<Conversion>>);

struct Conversion {
    kind: &'static KindDef,
    from: Value,
    to: Value,
}

impl Conversions {
    async fn convert(&self, review: &Review<'_>, kind: &'static KindDef, object: &Value) -> Result<Value, Status> {
        let is_same = |known: &&Conversion| std::ptr::eq(known.kind, kind) && known.from == *object;
        if let Some(known) = self.0.lock().iter().find(is_same) {
            return Ok(known.to.clone());
        }
        let from = object.clone();
        let mut typed = object.clone();
        typed["apiVersion"] = review.kind.api_version().into();
        typed["kind"] = review.kind.kind.into();
        let to = converter(review).convert_one(kind, typed).await?;
        let known = Conversion {
            kind,
            from,
            to: to.clone(),
        };
        self.0.lock().push(known);
        Ok(to)
    }
}

pub(super) fn converter<'r>(review: &'r Review<'_>) -> Converter<'r> {
    Converter {
        client: &review.dynamic.client,
        lookup: review.lookup,
        kinds: review.kinds,
    }
}

/// The objects of a request in the form in which a webhook or policy wants to see them.
pub(super) struct Form<'v> {
    pub object: Option<Cow<'v, Value>>,
    pub old: Option<Cow<'v, Value>>,
}

impl<'v> Form<'v> {
    pub(super) async fn new(
        review: &Review<'_>,
        kind: &'static KindDef,
        object: Option<&'v Value>,
        old: Option<&'v Value>,
    ) -> Result<Form<'v>, Status> {
        let mut form = Form {
            object: None,
            old: None,
        };
        if let Some(object) = object {
            form.object = Some(shown(review, kind, object).await?);
        }
        if let Some(old) = old {
            form.old = Some(shown(review, kind, old).await?);
        }
        Ok(form)
    }

    pub(super) fn borrowed(&self) -> Form<'_> {
        Form {
            object: self.object.as_deref().map(Cow::Borrowed),
            old: self.old.as_deref().map(Cow::Borrowed),
        }
    }
}

/// The object as it is in the form of `kind`: the request's own, or an equivalent one.
pub(super) async fn shown<'v>(
    review: &Review<'_>,
    kind: &'static KindDef,
    object: &'v Value,
) -> Result<Cow<'v, Value>, Status> {
    if is_scale(review) {
        let scale = scale_of(review.kind, object);
        // A workload whose replicas can't be read has none to show.
        return Ok(Cow::Owned(scale.unwrap_or(Value::Null)));
    }
    if std::ptr::eq(kind, review.kind) {
        return Ok(Cow::Borrowed(object));
    }
    if custom::is_converted_by_webhook(kind) {
        return review.conversions.convert(review, kind, object).await.map(Cow::Owned);
    }
    Ok(Cow::Owned(converted(review.kind, kind, object.clone())))
}

pub(super) fn converted(from: &KindDef, to: &KindDef, mut object: Value) -> Value {
    if !from.stored_as.is_empty() {
        (from.to_stored)(&mut object);
    }
    if !to.stored_as.is_empty() {
        (to.from_stored)(&mut object);
    }
    object["apiVersion"] = to.api_version().into();
    object["kind"] = to.kind.into();
    object
}

/// Puts what was made of the shown object in the place of the request's own, decoded and defaulted again. Says whether
/// anything has changed.
pub(super) async fn put_back(
    review: &Review<'_>,
    kind: &'static KindDef,
    mut made: Value,
    object: &mut Value,
) -> Result<bool, Status> {
    let name = type_name(kind, review.subresource);
    for (member, expected) in [("apiVersion", name.api_version()), ("kind", name.kind.to_string())] {
        match made.get(member).map(|given| *given == *expected.as_str()) {
            Some(true) => {}
            // Whoever writes the whole object may leave them out.
            None if made.is_object() => made[member] = expected.into(),
            _ => {
                return Err(Status::internal(format!(
                    "the object's {member} is not {expected} any more"
                )));
            }
        }
    }
    let mut made = decoded(kind, name, made)?;
    // What is in flight may lack what every decoded object has.
    if decoded(kind, name, shown(review, kind, object).await?.into_owned())? == made {
        return Ok(false);
    }
    if is_scale(review) {
        // The rest of a Scale, its revision among it, is not for admission to change.
        let (kept, mut changed) = (object["metadata"].clone(), scaled(review.kind, object, &made)?);
        changed["metadata"] = kept;
        *object = changed;
        return Ok(true);
    }
    // Bodies of subresources have no defaults of their own.
    if name == type_name(kind, "") {
        match custom::schema_of(kind) {
            Some(version) => version.default(&mut made),
            None => rules::fill_defaults(kind, &mut made),
        }
    }
    *object = match std::ptr::eq(kind, review.kind) {
        true => made,
        false if custom::is_converted_by_webhook(kind) => {
            let back = converter(review).convert_one(review.kind, made).await?;
            decoded(review.kind, type_name(review.kind, ""), back)?
        }
        false => converted(kind, review.kind, made),
    };
    Ok(true)
}

pub(super) fn schema_type(kind: &KindDef, name: TypeName<'_>) -> Option<TypeRef> {
    let types = schema::schema();
    match name == type_name(kind, "") {
        true => types.get(kind.schema),
        false => types.kind(&name.api_version(), name.kind),
    }
}

/// Only what the kind's type has; anything of another type is an error.
fn decoded(kind: &KindDef, name: TypeName<'_>, made: Value) -> Result<Value, Status> {
    let own = custom::schema_of(kind).filter(|_| name == type_name(kind, ""));
    let decoded = match (own, schema_type(kind, name)) {
        (Some(version), _) => version.from_value(made),
        (None, Some(ty)) => schema::from_value(made, ty),
        (None, None) => return Ok(made),
    };
    let mut decoded = decoded.map_err(Status::internal)?.value;
    decoded["apiVersion"] = name.api_version().into();
    decoded["kind"] = name.kind.into();
    Ok(decoded)
}

/// The options of the request, as an object of `meta.k8s.io/v1`.
pub(super) fn options(review: &Review<'_>) -> Value {
    let kind = match review.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = Map::new();
    options.insert("kind".into(), kind.into());
    options.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    if review.dry_run {
        options.insert("dryRun".into(), json!(["All"]));
    }
    if let Some(delete) = review.delete {
        delete.write(&mut options);
    } else {
        for name in ["fieldManager", "fieldValidation"] {
            if let Some(given) = review.request.query.get(name).filter(|given| !given.is_empty()) {
                options.insert(name.into(), given.into());
            }
        }
    }
    Value::Object(options)
}
