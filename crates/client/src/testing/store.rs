//! The objects, every change to them, and the rules by which an API server takes changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_base::clock::{Shift, rfc3339};
use orlop_base::{Clock, Random};
use serde_json::{Map, Value, json};

/// Where an object is: group and resource, namespace (empty for none), name (empty for all of them).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectPath {
    pub collection: Collection,
    pub namespace: String,
    pub name: String,
}

/// Group and resource. All versions of a group are one, and so are the two kinds of events.
pub type Collection = (String, String);

pub fn collection(group: &str, resource: &str) -> Collection {
    let group = if resource == "events" { "" } else { group };
    (group.to_string(), resource.to_string())
}

/// Why a request is not done, as a `Status` says it.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub cause: Option<&'static str>,
}

impl Refusal {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            reason,
            message: message.into(),
            cause: None,
        }
    }

    fn not_found(place: &ObjectPath) -> Refusal {
        let message = format!("{} \"{}\" not found", place.collection.1, place.name);
        Refusal::new(404, "NotFound", message)
    }

    fn conflict(place: &ObjectPath, why: &str) -> Refusal {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": {why}",
            place.collection.1, place.name
        );
        Refusal::new(409, "Conflict", message)
    }

    pub fn body(&self) -> Value {
        let causes: Vec<Value> = self.cause.iter().map(|cause| json!({"reason": cause})).collect();
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code, "reason": self.reason,
               "message": self.message, "details": {"causes": causes}})
    }
}

pub type StoreResult<T> = Result<T, Refusal>;

/// What to list or watch.
#[derive(Clone, Debug, Default)]
pub struct ListSelector {
    pub place: ObjectPath,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl ListSelector {
    fn is_for(&self, collection: &Collection, namespace: &str) -> bool {
        self.place.collection == *collection && (self.place.namespace.is_empty() || self.place.namespace == namespace)
    }

    fn matches(&self, object: &Value) -> bool {
        self.labels.matches_map(object.pointer("/metadata/labels"))
            && self.fields.matches(|field| {
                let pointer = format!("/{}", field.replace('.', "/"));
                object.pointer(&pointer).and_then(Value::as_str).unwrap_or("")
            })
    }
}

struct StoreChange {
    revision: u64,
    place: ObjectPath,
    before: Option<Arc<Value>>,
    /// As it is, or as it was last.
    object: Arc<Value>,
    gone: bool,
}

pub struct Store {
    pub clock: Clock,
    pub random: Random,
    revision: u64,
    /// Changes up to this one are forgotten.
    compacted: u64,
    uids: u64,
    objects: BTreeMap<Collection, BTreeMap<(String, String), Arc<Value>>>,
    history: Vec<StoreChange>,
}

impl Store {
    pub fn new(clock: Clock, seed: u64) -> Store {
        Store {
            clock,
            random: Random::seeded(seed),
            revision: 1,
            compacted: 0,
            uids: 0,
            objects: BTreeMap::new(),
            history: vec![],
        }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
    }

    /// Whether what came after this revision is forgotten, at least in part.
    pub(super) fn is_compacted(&self, revision: u64) -> bool {
        revision < self.compacted
    }

    pub fn get(&self, place: &ObjectPath) -> StoreResult<Arc<Value>> {
        let found = self.objects.get(&place.collection);
        let found = found.and_then(|all| all.get(&(place.namespace.clone(), place.name.clone())));
        found.cloned().ok_or_else(|| Refusal::not_found(place))
    }

    pub fn list(&self, wanted: &ListSelector) -> Vec<Arc<Value>> {
        let all = self.objects.get(&wanted.place.collection).into_iter().flatten();
        all.filter(|((namespace, _), object)| {
            wanted.is_for(&wanted.place.collection, namespace) && wanted.matches(object)
        })
        .map(|(_, object)| object.clone())
        .collect()
    }

    /// The lines of a watch: what has changed after this revision, and the revision up to which that is.
    pub fn changes(&self, wanted: &ListSelector, after: u64) -> (Vec<String>, u64) {
        let first = self.history.partition_point(|change| change.revision <= after);
        let line = |change: &StoreChange| {
            if !wanted.is_for(&change.place.collection, &change.place.namespace) {
                return None;
            }
            let before = change.before.as_ref().is_some_and(|o| wanted.matches(o));
            let now = !change.gone && wanted.matches(&change.object);
            let kind = match (before, now) {
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
                (false, false) => return None,
            };
            Some(format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", change.object))
        };
        let lines = self.history[first..].iter().filter_map(line).collect();
        (lines, self.revision)
    }

    /// Stores the object, or what it was last if it goes.
    fn commit(&mut self, place: &ObjectPath, mut object: Value, gone: bool) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = Arc::new(object);
        let all = self.objects.entry(place.collection.clone()).or_default();
        let key = (place.namespace.clone(), place.name.clone());
        let before = match gone {
            true => all.remove(&key),
            false => all.insert(key, object.clone()),
        };
        self.history.push(StoreChange {
            revision: self.revision,
            place: place.clone(),
            before,
            object: object.clone(),
            gone,
        });
        object
    }

    /// `place` without the name.
    pub fn create(&mut self, place: &ObjectPath, object: Value, with_status: bool) -> StoreResult<Arc<Value>> {
        let (place, object) = self.fill_in(place, object, with_status)?;
        Ok(self.commit(&place, object, false))
    }

    /// A new object with all that a server adds, and where it will be.
    fn fill_in(
        &mut self,
        place: &ObjectPath,
        mut object: Value,
        with_status: bool,
    ) -> StoreResult<(ObjectPath, Value)> {
        self.refuse_in_terminating_namespace(place)?;
        let meta = object["metadata"].take();
        let mut meta = if meta.is_object() { meta } else { json!({}) };
        if meta["name"].as_str().unwrap_or("").is_empty() {
            let Some(prefix) = meta["generateName"].as_str() else {
                return Err(Refusal::new(
                    422,
                    "Invalid",
                    "metadata.name: name or generateName is required",
                ));
            };
            meta["name"] = json!(format!("{prefix}{}", self.random.name_suffix(5)));
        }
        let place = ObjectPath {
            name: meta["name"].as_str().unwrap_or("").to_string(),
            ..place.clone()
        };
        if self.get(&place).is_ok() {
            let message = format!("{} \"{}\" already exists", place.collection.1, place.name);
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        if !place.namespace.is_empty() {
            meta["namespace"] = json!(place.namespace);
        }
        self.uids += 1;
        meta["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.uids));
        meta["creationTimestamp"] = json!(rfc3339(self.clock.now()));
        meta["generation"] = json!(1);
        object["metadata"] = meta;
        let resource = place.collection.1.as_str();
        if !with_status && resource != "nodes" {
            remove(&mut object, "status");
        }
        match resource {
            "pods" => default_pod(&mut object),
            "namespaces" => {
                object["spec"]["finalizers"] = json!(["kubernetes"]);
                object["status"]["phase"] = json!("Active");
            }
            _ => {}
        }
        Ok((place, object))
    }

    fn refuse_in_terminating_namespace(&self, place: &ObjectPath) -> StoreResult<()> {
        let namespace = ObjectPath {
            collection: (String::new(), "namespaces".to_string()),
            namespace: String::new(),
            name: place.namespace.clone(),
        };
        let terminating = self
            .get(&namespace)
            .is_ok_and(|n| n["metadata"]["deletionTimestamp"].is_string());
        if !terminating {
            return Ok(());
        }
        let message = format!(
            "unable to create new content in namespace {} because it is being terminated",
            place.namespace
        );
        let mut refusal = Refusal::new(403, "Forbidden", message);
        refusal.cause = Some("NamespaceTerminating");
        Err(refusal)
    }

    /// Changes an object, or one part of it (`status`, `finalize`).
    pub fn update(
        &mut self,
        place: &ObjectPath,
        part: &str,
        change: impl FnOnce(&mut Value) -> StoreResult<()>,
    ) -> StoreResult<Arc<Value>> {
        let old = self.get(place)?;
        let mut new = (*old).clone();
        change(&mut new)?;
        for field in ["resourceVersion", "uid"] {
            let given = new["metadata"][field].as_str().unwrap_or("");
            if !given.is_empty() && old["metadata"][field] != given {
                let why = "the object has been modified; please apply your changes to the latest version and try again";
                return Err(Refusal::conflict(place, why));
            }
        }
        let mut new = match part {
            "" => {
                copy(&old, &mut new, "status");
                new
            }
            "finalize" => {
                let mut whole = (*old).clone();
                whole["spec"]["finalizers"] = new["spec"]["finalizers"].take();
                whole
            }
            _ => {
                let mut whole = (*old).clone();
                copy(&new, &mut whole, "status");
                copy(&new["metadata"], &mut whole["metadata"], "annotations");
                whole
            }
        };
        for field in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
        ] {
            copy(&old["metadata"], &mut new["metadata"], field);
        }
        prune_empty(&mut new["metadata"]);
        let of_deployment = place.collection.1 == "deployments"
            && part.is_empty()
            && old["metadata"]["annotations"] != new["metadata"]["annotations"];
        if part != "finalize" && (old["spec"] != new["spec"] || of_deployment) {
            bump_generation(&mut new);
        }
        if *old == new {
            return Ok(old);
        }
        let gone = is_deleted(&new) && !is_held(&new) && grace_of(&new) == 0;
        Ok(self.commit(place, new, gone))
    }

    /// With the options of a delete.
    pub fn delete(&mut self, place: &ObjectPath, options: &Value) -> StoreResult<Arc<Value>> {
        let old = self.get(place)?;
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if wanted.is_string() && *wanted != old["metadata"][field] {
                let why = format!(
                    "the {field} in the precondition ({wanted}) does not match the {field} in record ({})",
                    old["metadata"][field]
                );
                return Err(Refusal::conflict(place, &why));
            }
        }
        let mut new = (*old).clone();
        match options["propagationPolicy"].as_str() {
            Some("Orphan") => add_finalizer(&mut new, "orphan"),
            Some("Foreground") => add_finalizer(&mut new, "foregroundDeletion"),
            _ => {}
        }
        let mut grace = match place.collection.1.as_str() {
            "pods" => pod_grace(&old, options["gracePeriodSeconds"].as_i64()),
            _ => 0,
        };
        if is_deleted(&old) {
            grace = grace.min(grace_of(&old));
        }
        if grace == 0 && !is_held(&new) {
            return Ok(self.commit(place, new, true));
        }
        if !is_deleted(&old) || grace < grace_of(&old) {
            let at = self.clock.now().later_by_seconds(grace);
            new["metadata"]["deletionTimestamp"] = json!(rfc3339(at));
            new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            bump_generation(&mut new);
        }
        if place.collection.1 == "namespaces" {
            new["status"]["phase"] = json!("Terminating");
        }
        if *old == new {
            return Ok(old);
        }
        Ok(self.commit(place, new, false))
    }

    /// Away with it, whatever holds it.
    pub fn remove(&mut self, place: &ObjectPath) -> StoreResult<Arc<Value>> {
        let old = self.get(place)?;
        Ok(self.commit(place, (*old).clone(), true))
    }

    /// What a test says an object is like, status and all; made if it is not there.
    pub fn put(&mut self, place: &ObjectPath, object: Value) -> Arc<Value> {
        let Ok(old) = self.get(place) else {
            let finalizers = object.pointer("/spec/finalizers").cloned();
            let given = object["metadata"].clone();
            let made = self.fill_in(place, object, true);
            let (place, mut whole) = made.expect("an object that can be made");
            for (field, value) in given.as_object().into_iter().flatten() {
                whole["metadata"][field] = value.clone();
            }
            if let Some(finalizers) = finalizers {
                whole["spec"]["finalizers"] = finalizers;
            }
            return self.commit(&place, whole, false);
        };
        let mut new = object;
        for field in ["uid", "creationTimestamp", "generation"] {
            if new["metadata"][field].is_null() {
                copy(&old["metadata"], &mut new["metadata"], field);
            }
        }
        if old["spec"] != new["spec"] {
            bump_generation(&mut new);
        }
        self.commit(place, new, false)
    }
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().map(|map| map.remove(field));
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

fn prune_empty(meta: &mut Value) {
    let Some(meta) = meta.as_object_mut() else { return };
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = |value: &Value| {
            value.is_null()
                || value.as_object().is_some_and(Map::is_empty)
                || value.as_array().is_some_and(Vec::is_empty)
        };
        if meta.get(field).is_some_and(empty) {
            meta.remove(field);
        }
    }
}

fn default_pod(pod: &mut Value) {
    if pod["status"]["phase"].is_null() {
        pod["status"]["phase"] = json!("Pending");
    }
    if pod["spec"]["terminationGracePeriodSeconds"].is_null() {
        pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
    }
}

fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let assigned = !pod["spec"]["nodeName"].as_str().unwrap_or("").is_empty();
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    match assigned && !ended {
        false => 0,
        true => asked.unwrap_or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30)),
    }
}

fn bump_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    object["metadata"]["generation"] = json!(generation + 1);
}

fn is_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn grace_of(object: &Value) -> i64 {
    object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0)
}

/// Has finalizers; namespaces have theirs in the spec, too.
fn is_held(object: &Value) -> bool {
    let any = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    any(&object["metadata"]["finalizers"]) || (object["kind"] == "Namespace" && any(&object["spec"]["finalizers"]))
}

fn add_finalizer(object: &mut Value, name: &str) {
    let list = &mut object["metadata"]["finalizers"];
    match list.as_array_mut() {
        Some(list) if list.iter().any(|f| f == name) => {}
        Some(list) => list.push(json!(name)),
        None => *list = json!([name]),
    }
}
