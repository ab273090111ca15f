//! What a kind is to the API server: one `KindDef`, a row of `kinds::ALL`. Everything that differs between kinds is in
//! the row; the request path that reads it is the same for all.

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::names::{self, Rule};

/// A kind in one version. Write one as `KindDef { kind: "Foo", …, ..KindDef::BASE }`.
#[derive(Clone, Copy)]
pub struct KindDef {
    /// "" is the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    /// The type's name in the schema table, e.g. "core/v1.Pod".
    pub schema: &'static str,
    pub verbs: Verbs,
    pub subresources: &'static [Subresource],
    /// Field selectors beside metadata.name and metadata.namespace: the selector's word and where its value is found.
    pub fields: &'static [SelectableField],
    /// What follows NAME in a table. AGE is a column like any other.
    pub columns: &'static [Column],
    /// The cells of one row, one per column (NAME left out).
    pub cells: fn(&Value, Timestamp) -> Vec<Value>,
    pub name_rule: Rule,
    /// Fills in defaults; runs on every decoded object, so it must be idempotent.
    pub default: fn(&mut Value),
    /// Readies a new object before admission: drops what users may not set (status), sets what the system sets.
    pub prepare_create: fn(&mut Value),
    /// Readies an update (new, old): carries over what this endpoint may not change. The main endpoint keeps the old status.
    pub prepare_update: fn(&mut Value, &Value),
    /// Readies an update through the status subresource (new, old): keeps all but the status.
    pub prepare_status: fn(&mut Value, &Value),
    /// All of the object but its ObjectMeta, which is validated alike for all kinds.
    pub validate: fn(&Cursor<'_>, &mut Problems),
    /// Runs in addition to `validate` on creates: what may be there later but not from the start.
    pub validate_create: fn(&Cursor<'_>, &mut Problems),
    /// (new, old). Runs in addition to `validate` on updates through the main endpoint.
    pub validate_update: fn(&Cursor<'_>, &Cursor<'_>, &mut Problems),
    /// (new, old). Runs on updates through the status subresource, instead of `validate` and `validate_update`.
    pub validate_status: fn(&Cursor<'_>, &Cursor<'_>, &mut Problems),
    /// Advice for the writer (deprecated fields and the like), sent as `Warning:` headers. (new, old if an update.)
    pub warnings: fn(&Cursor<'_>, Option<&Cursor<'_>>) -> Vec<String>,
    /// metadata.generation is kept: 1 at first, then raised whenever anything but metadata and status changes.
    pub generation: bool,
    /// An update may create the object (PUT on a name that is not there).
    pub create_on_update: bool,
    /// An update without a resourceVersion is taken as "whatever is there" (else it is refused).
    pub unconditional_update: bool,
    /// The resource whose objects these are in the store, `group/plural` ("" group: the plural alone), where several
    /// kinds share one (events, autoscaling versions). Empty: this kind's own.
    pub stored_as: &'static str,
    /// To and from the form in which they are stored, where `stored_as` names another kind's.
    pub to_stored: fn(&mut Value),
    pub from_stored: fn(&mut Value),
    /// What the API server keeps of a kind that a CustomResourceDefinition made; none in rows that are built in.
    pub custom: Option<&'static (dyn std::any::Any + Send + Sync)>,
}

/// Which of the generic verbs the resource serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verbs {
    /// create, delete, deletecollection, get, list, patch, update, watch.
    All,
    /// All but deletecollection (namespaces).
    NoCollectionDelete,
    /// create: a question and its answer, nothing stored (reviews, bindings).
    CreateOnly,
    /// get and list: made up when asked for, nothing stored (component statuses).
    ReadOnly,
}

impl Verbs {
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Verbs::All => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
            Verbs::NoCollectionDelete => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Verbs::CreateOnly => &["create"],
            Verbs::ReadOnly => &["get", "list"],
        }
    }
}

/// A subresource in discovery. How it behaves is in the API server's `registry/subresources`.
#[derive(Clone, Copy)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what goes in and out; the parent's own where the kind is "".
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

impl Subresource {
    pub const STATUS: Subresource = Subresource {
        name: "status",
        group: "",
        version: "",
        kind: "",
        verbs: &["get", "patch", "update"],
    };
    pub const SCALE: Subresource = Subresource {
        name: "scale",
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        verbs: &["get", "patch", "update"],
    };
}

#[derive(Clone, Copy)]
pub struct SelectableField {
    /// As users write it: "status.phase".
    pub name: &'static str,
    /// Where the value is: the same words, split at dots, unless `read` says otherwise.
    pub read: Option<fn(&Value) -> String>,
}

impl SelectableField {
    pub const fn at(name: &'static str) -> SelectableField {
        SelectableField { name, read: None }
    }

    pub fn value(&self, object: &Value) -> String {
        if let Some(read) = self.read {
            return read(object);
        }
        let found = self.name.split('.').try_fold(object, |v, part| v.get(part));
        match found {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(s)) => s.clone(),
            Some(other) => other.to_string(),
        }
    }
}

/// A column of a table. Priority 0 is always shown, 1 with `-o wide`.
#[derive(Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    /// "string", "integer", "date", "boolean" …
    pub kind: &'static str,
    pub priority: u8,
    pub description: &'static str,
}

impl Column {
    pub const fn string(name: &'static str) -> Column {
        Column {
            name,
            kind: "string",
            priority: 0,
            description: "",
        }
    }
    pub const fn integer(name: &'static str) -> Column {
        Column {
            name,
            kind: "integer",
            priority: 0,
            description: "",
        }
    }
    pub const fn wide(name: &'static str) -> Column {
        Column {
            name,
            kind: "string",
            priority: 1,
            description: "",
        }
    }
    pub const AGE: Column = Column::string("Age");
    /// The one column of kinds for which Kubernetes has no printer of its own.
    pub const CREATED_AT: Column = Column {
        kind: "date",
        ..Column::string("Created At")
    };
}

fn nothing(_: &mut Value) {}
fn no_check(_: &Cursor<'_>, _: &mut Problems) {}
fn no_update_check(_: &Cursor<'_>, _: &Cursor<'_>, _: &mut Problems) {}
fn no_warnings(_: &Cursor<'_>, _: Option<&Cursor<'_>>) -> Vec<String> {
    vec![]
}

impl KindDef {
    /// A plain namespaced kind with all verbs and nothing special about it.
    pub const BASE: KindDef = KindDef {
        group: "",
        version: "v1",
        kind: "",
        plural: "",
        singular: "",
        short_names: &[],
        categories: &[],
        namespaced: true,
        schema: "",
        verbs: Verbs::All,
        subresources: &[],
        fields: &[],
        columns: &[Column::AGE],
        cells: |object, now| vec![crate::printing::age(object, now)],
        name_rule: names::dns_subdomain,
        default: nothing,
        prepare_create: drop_status,
        prepare_update: keep_status,
        prepare_status: keep_all_but_status,
        validate: no_check,
        validate_create: no_check,
        validate_update: no_update_check,
        validate_status: no_update_check,
        warnings: no_warnings,
        generation: false,
        create_on_update: false,
        unconditional_update: true,
        stored_as: "",
        to_stored: nothing,
        from_stored: nothing,
        custom: None,
    };

    /// Whether objects of this kind are kept at all, or only questions answered.
    pub fn is_stored(&self) -> bool {
        matches!(self.verbs, Verbs::All | Verbs::NoCollectionDelete)
    }

    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|s| s.name == "status")
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The first segment(s) of the store key after /registry/: "pods", "deployments.apps".
    pub fn store_prefix(&self) -> String {
        match self.stored_as {
            "" => crate::status::qualified(self.group, self.plural),
            shared => shared.to_string(),
        }
    }
}

/// Status is the system's: what a creator wrote there is dropped. The empty status stays, as Kubernetes shows it.
pub fn drop_status(object: &mut Value) {
    if let Some(map) = object.as_object_mut()
        && map.contains_key("status")
    {
        map.insert("status".into(), Value::Object(Default::default()));
    }
}

pub fn keep_status(new: &mut Value, old: &Value) {
    copy_member(new, old, "status");
}

/// Everything but the status comes from the old object; of the metadata only managedFields (and, as in Kubernetes,
/// labels, annotations and finalizers stay the old ones) is left to the caller.
pub fn keep_all_but_status(new: &mut Value, old: &Value) {
    let status = new.get("status").cloned();
    let managed = new.pointer("/metadata/managedFields").cloned();
    let revision = new.pointer("/metadata/resourceVersion").cloned();
    *new = old.clone();
    for (name, value) in [("managedFields", managed), ("resourceVersion", revision)] {
        match value {
            Some(v) => new["metadata"][name] = v,
            None => {
                if let Some(meta) = new["metadata"].as_object_mut() {
                    meta.remove(name);
                }
            }
        }
    }
    match status {
        Some(v) => new["status"] = v,
        None => {
            if let Some(map) = new.as_object_mut() {
                map.remove("status");
            }
        }
    }
}

/// Sets `new[name]` to what `old` has there, or removes it.
pub fn copy_member(new: &mut Value, old: &Value, name: &str) {
    if let Some(map) = new.as_object_mut() {
        match old.get(name) {
            Some(v) => {
                map.insert(name.to_string(), v.clone());
            }
            None => {
                map.remove(name);
            }
        }
    }
}
