//! Server-side apply, and the record of who set which field.
//!
//! `apply` merges a configuration into an object on behalf of an applier: what it says is set, what it said last time
//! and says no more is removed (unless someone else wants it), and what another manager has set to another value is a
//! conflict. `update_managed_fields` does the bookkeeping for all other writes. Both work on sets of field paths (`set`)
//! that the schema defines: what is one leaf and what has parts with owners of their own (`shape`).
//!
//! Upstream: apimachinery/pkg/util/managedfields and structured-merge-diff (v1.36). Entries of other API versions of the
//! kind are taken as if they were of this one: there is no conversion here.

mod check;
mod configuration;
mod element;
mod last_applied;
mod managed;
mod merge;
mod set;
mod shape;
mod walk;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use self::managed::{Entry, Operation, Trust};
use self::set::Set;
use self::shape::Shape;
use self::walk::Diff;
use super::merge::drop_nulls;
use crate::schema::TypeRef;
use crate::status::{Cause, Details, Status};
use crate::structural::Structural;

/// Stands for whoever wrote an object before anyone applied to it.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// A manager without a name.
const UNKNOWN: &str = "unknown";
/// The most conflicts that are told: their paths can be long, and an object can have very many.
const MAX_CONFLICTS: usize = 1000;
/// The longest manager name, in bytes.
const MAX_MANAGER_BYTES: usize = 128;

/// Paths that no one owns: they are the system's, or the object's identity.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    let mut metadata = Set::new();
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set::put(&mut metadata, element::field(name), true, Set::new());
    }
    let mut all = Set::new();
    set::put(&mut all, element::field("apiVersion"), true, Set::new());
    set::put(&mut all, element::field("kind"), true, Set::new());
    set::put(&mut all, element::field("metadata"), true, metadata);
    all
});

/// What is known of an object's type, for the question which of its parts have owners of their own.
#[derive(Clone, Copy, Debug)]
pub enum ObjectType<'s> {
    BuiltIn(TypeRef),
    /// A custom kind with its schema.
    Custom(&'s Structural),
    /// Only its metadata: maps have parts, all else is a leaf.
    Unknown,
}

impl From<TypeRef> for ObjectType<'_> {
    fn from(ty: TypeRef) -> Self {
        ObjectType::BuiltIn(ty)
    }
}

impl From<Option<TypeRef>> for ObjectType<'_> {
    fn from(ty: Option<TypeRef>) -> Self {
        ty.map_or(ObjectType::Unknown, ObjectType::BuiltIn)
    }
}

pub use configuration::merge_configuration;

/// Who writes, and how. An `Update` is any write but an apply.
#[derive(Clone, Copy, Debug)]
pub struct UpdateOptions<'a> {
    pub manager: &'a str,
    pub now: Timestamp,
    pub api_version: &'a str,
    /// "" for the object itself.
    pub subresource: &'a str,
    /// Fields (with all below them) that this endpoint resets, so that writing them gives no ownership: `status` for the
    /// object itself, `spec` and the like for its status.
    pub reset: &'a [&'a [&'a str]],
}

#[derive(Clone, Copy, Debug)]
pub struct ApplyOptions<'a> {
    pub manager: &'a str,
    /// Take over what others have set to other values, instead of reporting conflicts.
    pub force: bool,
    pub now: Timestamp,
    pub api_version: &'a str,
    pub subresource: &'a str,
    /// As in `UpdateOptions`.
    pub reset: &'a [&'a [&'a str]],
}

/// A field that another manager has set to another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// As messages name it: `"kubectl-client-side-apply" using apps/v1`.
    pub manager: String,
    /// `.spec.template.spec.containers[name="web"].image`
    pub field: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Someone else's fields: force, give them up, or agree on a value.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// Not something to apply here: 400.
    #[error("{0}")]
    Malformed(String),
    /// Does not fit the type. Kubernetes answers this with a 500.
    #[error("{0}")]
    Invalid(String),
}

impl ApplyError {
    pub fn status(&self) -> Status {
        match self {
            ApplyError::Conflicts(conflicts) => {
                let mut status = Status::new(409, "Conflict", self.to_string());
                let causes = conflicts.iter().map(|c| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: format!("conflict with {}", c.manager),
                    field: c.field.clone(),
                });
                status.details = Some(Box::new(Details {
                    causes: causes.collect(),
                    ..Details::default()
                }));
                status
            }
            ApplyError::Malformed(why) => Status::bad_request(why),
            ApplyError::Invalid(why) => Status::new(500, "", why),
        }
    }
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Status {
        error.status()
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager, one.field
        );
    }
    let mut lines = vec![];
    for group in conflicts.chunk_by(|a, b| a.manager == b.manager) {
        lines.push(format!("conflicts with {}:", group[0].manager));
        lines.extend(group.iter().map(|c| format!("- {}", c.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// The manager of a request: the one it names, or the program in front of the user agent's first slash.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_string();
    }
    let mut name = String::new();
    for c in user_agent
        .split('/')
        .next()
        .unwrap_or("")
        .chars()
        .filter(|c| !c.is_control())
    {
        if name.len() + c.len_utf8() > MAX_MANAGER_BYTES {
            break;
        }
        name.push(c);
    }
    name
}

/// Merges what an applier sent (as it was sent) into the live object, if there is one. The result has its managedFields
/// brought up to date, and still has to be decoded against the schema (it may have nulls), defaulted and validated.
pub fn apply<'s>(
    live: Option<&Value>,
    applied: &Value,
    ty: impl Into<ObjectType<'s>>,
    opts: &ApplyOptions<'_>,
) -> Result<Value, ApplyError> {
    apply_to(live, applied, ty.into(), opts)
}

fn apply_to(
    live: Option<&Value>,
    applied: &Value,
    ty: ObjectType<'_>,
    opts: &ApplyOptions<'_>,
) -> Result<Value, ApplyError> {
    check_applied(live, applied, ty, opts)?;
    let shape = Shape::of_object(ty);
    let mut live = live.cloned();
    let mut entries = vec![];
    if let Some(live) = &mut live {
        entries = managed::decode(take_managed_fields(live).unwrap_or_default(), Trust::Ours)
            .ok_or_else(|| ApplyError::Invalid("failed to decode managed fields".into()))?;
        if entries.is_empty() {
            let before = UpdateOptions {
                manager: BEFORE_FIRST_APPLY,
                now: opts.now,
                api_version: opts.api_version,
                subresource: opts.subresource,
                reset: opts.reset,
            };
            record_update(&mut entries, walk::compare(None, live, shape), &before);
        }
    }
    let merged = Merged::new(live.as_ref(), applied, shape, &entries, opts);
    let mut conflicts = merged.conflicts(&entries);
    if !opts.force && !conflicts.is_empty() {
        if opts.manager == last_applied::KUBECTL
            && let Some(live) = &live
            && let Some(allowed) = last_applied::allowed_conflicts(live, ty, opts.api_version)
        {
            for (_, fields) in &mut conflicts {
                set::subtract(fields, &allowed);
            }
            conflicts.retain(|(_, fields)| !fields.is_empty());
        }
        if !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(list_conflicts(conflicts)));
        }
    }
    let entries = merged.take_over(entries);
    let mut object = merged.object;
    if opts.manager == last_applied::KUBECTL {
        last_applied::note(&mut object, applied);
    }
    put_managed_fields(&mut object, entries);
    Ok(object)
}

fn check_applied(
    live: Option<&Value>,
    applied: &Value,
    ty: ObjectType<'_>,
    opts: &ApplyOptions<'_>,
) -> Result<(), ApplyError> {
    let text = |object: &'_ Value, name: &str| object.get(name).and_then(Value::as_str).unwrap_or("").to_string();
    let (api_version, kind) = (text(applied, "apiVersion"), text(applied, "kind"));
    // The core group's name is empty, but its slash is there.
    let slash = if api_version.contains('/') { "" } else { "/" };
    let type_name = format!("{slash}{api_version}, Kind={kind}");
    if api_version != opts.api_version || live.is_some_and(|l| text(l, "kind") != kind) {
        return Err(ApplyError::Malformed(format!("invalid object type: {type_name}")));
    }
    let metadata = applied.get("metadata").unwrap_or(&Value::Null);
    if metadata.get("managedFields").is_some_and(|m| !m.is_null()) {
        return Err(ApplyError::Malformed("metadata.managedFields must be nil".into()));
    }
    match check::problems(applied, ty) {
        None => Ok(()),
        Some(problems) => Err(ApplyError::Invalid(format!(
            "failed to create typed patch object ({}/{}; {type_name}): {problems}",
            text(metadata, "namespace"),
            text(metadata, "name"),
        ))),
    }
}

/// A configuration merged into an object, before it is known whether others object.
struct Merged {
    object: Value,
    /// What this manager owns from now on.
    own: Entry,
    /// How the object differs from the live one.
    diff: Diff,
}

impl Merged {
    fn new(
        live: Option<&Value>,
        applied: &Value,
        shape: Shape<'_>,
        entries: &[Entry],
        opts: &ApplyOptions<'_>,
    ) -> Merged {
        let empty = Value::Object(Map::new());
        let mut own = Entry {
            manager: if opts.manager.is_empty() { UNKNOWN } else { opts.manager }.to_string(),
            operation: Operation::Apply,
            api_version: opts.api_version.to_string(),
            subresource: opts.subresource.to_string(),
            time: None,
            fields: walk::fields_of(applied, shape),
        };
        remove_reset(&mut own.fields, opts.reset);
        let mut object = merge::merge(live.unwrap_or(&empty), applied, shape);
        let last = entries.iter().find(|e| e.same_owner(&own));
        if let Some(last) = last.filter(|l| !l.fields.is_empty()) {
            let mut owned = own.fields.clone();
            for other in entries.iter().filter(|e| !e.same_owner(&own)) {
                set::union(&mut owned, other.fields.clone());
            }
            prune(&mut object, last.fields.clone(), owned, shape);
        }
        let mut diff = walk::compare(live, &object, shape);
        remove_reset(&mut diff.changed, opts.reset);
        remove_reset(&mut diff.removed, opts.reset);
        set::subtract(&mut own.fields, &UNOWNED);
        let unchanged = live.is_some_and(|live| walk::same(live, &object));
        own.time = match last {
            _ if !unchanged => Some(time_text(opts.now)),
            Some(last) => last.time.clone(),
            None => None,
        };
        // With a schema, decoding makes of a null what it means at its place.
        if matches!(shape, Shape::Custom) {
            drop_nulls(&mut object);
        }
        Merged { object, own, diff }
    }

    /// The other managers whose fields get another value, and those fields.
    fn conflicts<'e>(&self, entries: &'e [Entry]) -> Vec<(&'e Entry, Set)> {
        let others = entries.iter().filter(|e| !e.same_owner(&self.own));
        others
            .map(|e| (e, set::intersection(&e.fields, &self.diff.changed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect()
    }

    /// The entries after the change, conflicts or not.
    fn take_over(&self, mut entries: Vec<Entry>) -> Vec<Entry> {
        entries.retain(|e| !e.same_owner(&self.own));
        lose(&mut entries, &self.diff);
        if !self.own.fields.is_empty() {
            entries.push(self.own.clone());
        }
        entries
    }
}

fn list_conflicts(mut conflicts: Vec<(&Entry, Set)>) -> Vec<Conflict> {
    conflicts.sort_by(|(a, _), (b, _)| a.conflict_order(b));
    let of_manager = |(entry, fields): (&Entry, Set)| {
        let manager = entry.describe();
        set::paths(&fields, MAX_CONFLICTS)
            .into_iter()
            .map(move |field| Conflict {
                manager: manager.clone(),
                field,
            })
    };
    conflicts.into_iter().flat_map(of_manager).take(MAX_CONFLICTS).collect()
}

/// Removes what the applier had applied before, does not apply now, and no one else owns. `owned` is what anyone owns
/// with the applier's new configuration.
fn prune(object: &mut Value, last: Set, owned: Set, shape: Shape<'_>) {
    let last = merge::with_named_parents(last, shape);
    let owned = merge::with_named_parents(owned, shape);
    let fields = |object: &Value| merge::with_named_parents(walk::fields_of(object, shape), shape);
    let all = fields(object);

    // Without all of it, then with what is owned put back …
    let mut pruned = object.clone();
    merge::remove(&mut pruned, &last, shape);
    let mut gone = all.clone();
    set::subtract(&mut gone, &fields(&pruned));
    set::subtract(&mut gone, &owned);
    pruned = object.clone();
    merge::remove(&mut pruned, &gone, shape);

    // … and then with what had not been the applier's own, but went with what was.
    let mut gone = all;
    set::subtract(&mut gone, &fields(&pruned));
    merge::remove(object, &set::intersection(&gone, &last), shape);
}

/// Brings the managedFields of an object that is about to be written (created if there is no old one) up to date.
/// Managed fields that the writer sent count, as in Kubernetes: an empty list, or one with an empty entry, wipes them.
pub fn update_managed_fields<'s>(
    new: &mut Value,
    old: Option<&Value>,
    ty: impl Into<ObjectType<'s>>,
    opts: &UpdateOptions<'_>,
) {
    update_entries(new, old, ty.into(), opts);
}

fn update_entries(new: &mut Value, old: Option<&Value>, ty: ObjectType<'_>, opts: &UpdateOptions<'_>) {
    let sent = take_managed_fields(new);
    let mut entries = entries_to_update(sent, old, opts);
    // Nothing is tracked on an object that lost its record, until someone applies to it.
    if entries.is_empty() && old.is_some() {
        return;
    }
    let diff = walk::compare(old, new, Shape::of_object(ty));
    record_update(&mut entries, diff, opts);
    managed::cap_updaters(&mut entries);
    put_managed_fields(new, entries);
}

/// The record of who owns which fields, to be put back by [`restore_owners`].
pub fn owners_of(object: &Value) -> Option<Value> {
    object["metadata"].get("managedFields").cloned()
}

/// Puts the record back if what admission made of it can't be read, and says so.
pub fn restore_owners(object: &mut Value, before: Option<Value>) -> Option<&'static str> {
    let now = object["metadata"].get("managedFields").cloned();
    if now == before {
        return None;
    }
    let list = match now {
        None => vec![],
        Some(Value::Array(list)) => list,
        Some(_) => vec![Value::Null],
    };
    if managed::decode(list, Trust::Sent).is_some() {
        return None;
    }
    let meta = object["metadata"].as_object_mut()?;
    match before {
        Some(before) => meta.insert("managedFields".into(), before),
        None => meta.remove("managedFields"),
    };
    Some("failed to decode managed fields")
}

fn entries_to_update(sent: Option<Vec<Value>>, old: Option<&Value>, opts: &UpdateOptions<'_>) -> Vec<Entry> {
    let stored = old.and_then(managed_fields);
    let from_old = || {
        let list = stored.cloned().unwrap_or_default();
        managed::decode(list, Trust::Ours).unwrap_or_default()
    };
    match sent {
        Some(sent) if opts.subresource.is_empty() => {
            if is_reset(&sent) {
                return vec![];
            }
            if stored == Some(&sent) {
                return managed::decode(sent, Trust::Ours).unwrap_or_default();
            }
            match managed::decode(sent, Trust::Sent) {
                Some(entries) if !entries.is_empty() => entries,
                _ => from_old(),
            }
        }
        _ => from_old(),
    }
}

fn is_reset(sent: &[Value]) -> bool {
    match sent {
        [] => true,
        [one] => one.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// Gives the manager what changed, and takes from all what changed or went.
fn record_update(entries: &mut Vec<Entry>, mut diff: Diff, opts: &UpdateOptions<'_>) {
    remove_reset(&mut diff.changed, opts.reset);
    remove_reset(&mut diff.removed, opts.reset);
    lose(entries, &diff);
    let mut fields = diff.changed;
    set::subtract(&mut fields, &UNOWNED);
    if fields.is_empty() {
        return;
    }
    let own = Entry {
        manager: if opts.manager.is_empty() { UNKNOWN } else { opts.manager }.to_string(),
        operation: Operation::Update,
        api_version: opts.api_version.to_string(),
        subresource: opts.subresource.to_string(),
        time: Some(time_text(opts.now)),
        fields,
    };
    match entries.iter_mut().find(|e| e.same_owner(&own)) {
        Some(previous) => {
            set::union(&mut previous.fields, own.fields);
            previous.time = own.time;
        }
        None => entries.push(own),
    }
}

fn lose(entries: &mut Vec<Entry>, diff: &Diff) {
    if diff.changed.is_empty() && diff.removed.is_empty() {
        return;
    }
    for entry in entries.iter_mut() {
        set::subtract(&mut entry.fields, &diff.changed);
        set::subtract(&mut entry.fields, &diff.removed);
    }
    entries.retain(|e| !e.fields.is_empty());
}

fn remove_reset(fields: &mut Set, reset: &[&[&str]]) {
    for path in reset {
        set::remove_field(fields, path);
    }
}

/// If a write changes nothing but times in managedFields, takes the old times back, so that it changes nothing at all.
/// To be called last, on the object as it would be stored.
pub fn keep_times_if_unchanged(new: &mut Value, old: &Value) {
    let (Some(ours), Some(theirs)) = (managed_fields(new), managed_fields(old)) else {
        return;
    };
    if ours.len() != theirs.len() || ours == theirs {
        return;
    }
    let same_but_time = |(a, b): (&Value, &Value)| {
        let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
            return false;
        };
        let rest = |m: &'_ Map<String, Value>| m.iter().filter(|(k, _)| *k != "time").count();
        rest(a) == rest(b) && a.iter().all(|(k, v)| k == "time" || b.get(k) == Some(v))
    };
    if !ours.iter().zip(theirs).all(same_but_time) {
        return;
    }
    let theirs = Value::Array(theirs.clone());
    let Some(slot) = new.pointer_mut("/metadata/managedFields") else {
        return;
    };
    let ours = std::mem::replace(slot, theirs);
    if new != old {
        new["metadata"]["managedFields"] = ours;
    }
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

fn take_managed_fields(object: &mut Value) -> Option<Vec<Value>> {
    match object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")? {
        Value::Array(list) => Some(list),
        _ => None,
    }
}

fn put_managed_fields(object: &mut Value, entries: Vec<Entry>) {
    if let Some(object) = object.as_object_mut()
        && !entries.is_empty()
    {
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("managedFields".into(), managed::encode(entries));
        }
    }
}

/// RFC 3339, whole seconds.
fn time_text(now: Timestamp) -> String {
    let seconds = Timestamp::from_second(now.as_second()).expect("the seconds of a timestamp are in its range");
    seconds.to_string()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
