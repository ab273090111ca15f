//! Definitions: a JSON schema per type, made from the table of types, for both versions of OpenAPI.

use std::collections::BTreeMap;

use orlop_api::schema::{Field, ListType, PatchStrategy, Presence, Schema, Ty, Type, TypeRef, schema};
use serde_json::{Map, Value, json};

use super::custom::CustomDefinitions;
use super::enums::Enums;
use super::names::{self, GroupVersion};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// Swagger 2.0: no defaults, no alternatives.
    V2,
    V3,
}

impl Dialect {
    pub(super) fn reference(self, name: &str) -> Value {
        let home = match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{home}{name}")})
    }
}

/// What a `$ref` may point to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Definition {
    Type(TypeRef),
    /// A type that is no struct, or that is not in the table.
    Word(&'static str),
}

pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const DURATION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration";
const FIELDS_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";
const PROPS_OR_BOOL: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool";
const PROPS_OR_ARRAY: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray";
const PROPS_OR_STRINGS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray";

impl Definition {
    pub(super) fn name(self) -> String {
        match self {
            Definition::Type(r) => names::of_type(schema().ty(r).name),
            Definition::Word(name) => name.to_string(),
        }
    }

    /// A type of the table by its name there.
    pub(super) fn named(name: &str) -> Option<Definition> {
        schema().get(name).map(Definition::Type)
    }

    /// What values of that type are defined as, if they are defined by name.
    fn of(owner: &Type, ty: &Ty) -> Option<Definition> {
        Some(match ty {
            Ty::Struct(r) => Definition::Type(*r),
            Ty::Quantity => Definition::Word(QUANTITY),
            Ty::IntOrString => Definition::Word(INT_OR_STRING),
            Ty::Time => Definition::Word(TIME),
            Ty::MicroTime => Definition::Word(MICRO_TIME),
            Ty::Duration => Definition::Word(DURATION),
            // The table does not tell these apart.
            Ty::Any if owner.name == "meta/v1.ManagedFieldsEntry" => Definition::Word(FIELDS_V1),
            Ty::Any if owner.name.starts_with("apiextensions/") => Definition::Word(JSON),
            Ty::Any => Definition::Word(RAW_EXTENSION),
            Ty::SchemaOrBool(_) => Definition::Word(PROPS_OR_BOOL),
            Ty::SchemaOrArray(_) => Definition::Word(PROPS_OR_ARRAY),
            Ty::SchemaOrStrings(_) => Definition::Word(PROPS_OR_STRINGS),
            _ => return None,
        })
    }
}

/// The roots and all they refer to, by name.
pub(super) fn reachable(
    roots: impl IntoIterator<Item = Definition>,
    custom: &CustomDefinitions,
) -> BTreeMap<String, Definition> {
    let mut found = BTreeMap::new();
    let mut waiting: Vec<Definition> = roots.into_iter().collect();
    while let Some(definition) = waiting.pop() {
        if found.insert(definition.name(), definition).is_some() {
            continue;
        }
        if let Definition::Word(word) = definition
            && custom.contains(word)
        {
            let meta = ["meta/v1.ObjectMeta", "meta/v1.ListMeta"].map(Definition::named);
            waiting.extend(meta.into_iter().flatten());
        }
        if let Definition::Type(r) = definition {
            let owner = schema().ty(r);
            let inner = |f: &Field| Definition::of(owner, innermost(&f.ty));
            waiting.extend(owner.fields.iter().filter_map(inner));
        }
    }
    found
}

fn innermost(ty: &Ty) -> &Ty {
    match ty {
        Ty::List(inner) | Ty::Items(inner) | Ty::Map(inner) => innermost(inner),
        other => other,
    }
}

/// Where descriptions come from.
pub(super) trait Describe {
    fn definition(&self, name: &str) -> Option<&str>;
    fn field(&self, definition: &str, field: &str) -> Option<&str>;
}

/// Makes definitions in one dialect.
pub(super) struct Writer<'d> {
    pub dialect: Dialect,
    pub docs: &'d dyn Describe,
    pub custom: &'d CustomDefinitions,
    pub enums: Enums,
}

impl Writer<'_> {
    pub(super) fn definition(&self, definition: Definition) -> Value {
        let mut value = match definition {
            Definition::Word(word) if self.custom.contains(word) => return self.custom.definition(word, self.dialect),
            Definition::Type(r) => self.object(schema(), schema().ty(r)),
            Definition::Word(word) => self.word(word),
        };
        if let Some(text) = self.docs.definition(&definition.name()) {
            value["description"] = text.into();
        }
        value
    }

    fn word(&self, word: &str) -> Value {
        match (word, self.dialect) {
            (QUANTITY, Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            (INT_OR_STRING, Dialect::V3) => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            (INT_OR_STRING, Dialect::V2) => json!({"type": "string", "format": "int-or-string"}),
            (QUANTITY | DURATION, _) => json!({"type": "string"}),
            (TIME | MICRO_TIME, _) => json!({"type": "string", "format": "date-time"}),
            (FIELDS_V1 | RAW_EXTENSION | PATCH, _) => json!({"type": "object"}),
            (VERSION_INFO, _) => self.version_info(),
            // Any JSON.
            _ => json!({}),
        }
    }

    fn version_info(&self) -> Value {
        const REQUIRED: [&str; 9] = [
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ];
        const OTHERS: [&str; 4] = [
            "emulationMajor",
            "emulationMinor",
            "minCompatibilityMajor",
            "minCompatibilityMinor",
        ];
        let mut properties = Map::new();
        for name in REQUIRED {
            let mut property = json!({"type": "string"});
            if self.dialect == Dialect::V3 {
                property["default"] = "".into();
            }
            properties.insert(name.into(), property);
        }
        properties.extend(OTHERS.map(|name| (name.to_string(), json!({"type": "string"}))));
        for (name, property) in &mut properties {
            if let Some(text) = self.docs.field(VERSION_INFO, name) {
                property["description"] = text.into();
            }
        }
        json!({"type": "object", "properties": properties, "required": REQUIRED})
    }

    fn object(&self, types: &Schema, ty: &Type) -> Value {
        let mut value = json!({"type": "object"});
        if !ty.fields.is_empty() {
            let property = |f: &Field| (f.name.to_string(), self.property(types, ty, f));
            value["properties"] = Value::Object(ty.fields.iter().map(property).collect());
        }
        let required: Vec<&str> = ty.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
        if !required.is_empty() {
            value["required"] = required.into();
        }
        let kinds = kinds_of(ty);
        if !kinds.is_empty() {
            value["x-kubernetes-group-version-kind"] = kinds.into();
        }
        if ty.atomic {
            value["x-kubernetes-map-type"] = "atomic".into();
        }
        if let Some(union) = union_of(ty.name) {
            value["x-kubernetes-unions"] = json!([union]);
        }
        value
    }

    fn property(&self, types: &Schema, owner: &Type, field: &Field) -> Value {
        let mut value = self.of_ty(owner, &field.ty);
        if self.dialect == Dialect::V3
            && let Some(default) = default_of(field)
        {
            value["default"] = default;
        }
        let possible = self.enums.of_field(owner.name, field.name);
        if !possible.is_empty() {
            match field.ty {
                Ty::List(_) => value["items"]["enum"] = possible.into(),
                _ => value["enum"] = possible.into(),
            }
        }
        merge_markers(&mut value, types, owner, field);
        if let Some(text) = self.docs.field(&names::of_type(owner.name), field.name) {
            value["description"] = text.into();
        }
        self.with_reference_apart(value)
    }

    /// In version 3 nothing may stand beside a `$ref`.
    fn with_reference_apart(&self, mut value: Value) -> Value {
        if self.dialect == Dialect::V3
            && let Some(members) = value.as_object_mut()
            && members.len() > 1
            && let Some(target) = members.remove("$ref")
        {
            members.insert("allOf".into(), json!([{"$ref": target}]));
        }
        value
    }

    fn of_ty(&self, owner: &Type, ty: &Ty) -> Value {
        if let Some(definition) = Definition::of(owner, ty) {
            return self.dialect.reference(&definition.name());
        }
        match ty {
            Ty::Bool => json!({"type": "boolean"}),
            Ty::Int32 => json!({"type": "integer", "format": "int32"}),
            Ty::Int64 => json!({"type": "integer", "format": "int64"}),
            Ty::Float64 => json!({"type": "number", "format": "double"}),
            Ty::Bytes => json!({"type": "string", "format": "byte"}),
            Ty::List(item) | Ty::Items(item) => json!({"type": "array", "items": self.element(owner, item)}),
            Ty::Map(value) => json!({"type": "object", "additionalProperties": self.element(owner, value)}),
            _ => json!({"type": "string"}),
        }
    }

    /// An element of a list or a map: never absent, so its zero value is its default.
    fn element(&self, owner: &Type, ty: &Ty) -> Value {
        let mut value = self.of_ty(owner, ty);
        if self.dialect == Dialect::V3
            && let Some(zero) = zero_of(ty)
        {
            value["default"] = zero;
        }
        self.with_reference_apart(value)
    }
}

fn zero_of(ty: &Ty) -> Option<Value> {
    match ty {
        Ty::String => Some("".into()),
        Ty::Bool => Some(false.into()),
        Ty::Int32 | Ty::Int64 | Ty::Float64 => Some(0.into()),
        Ty::Struct(_) => Some(json!({})),
        _ => None,
    }
}

fn default_of(field: &Field) -> Option<Value> {
    if let Some(text) = field.default {
        return serde_json::from_str(text).ok();
    }
    match (field.presence, &field.ty) {
        (Presence::Always | Presence::OmitEmpty, Ty::Struct(_)) => Some(json!({})),
        (Presence::Always, ty) => zero_of(ty),
        _ => None,
    }
}

/// How patches and server-side apply merge the field.
fn merge_markers(value: &mut Value, types: &Schema, owner: &Type, field: &Field) {
    let is_list_of_kind = owner.name.ends_with("List") && field.name == "items";
    let unmarked = is_list_of_kind || (owner.name, field.name) == ("meta/v1.APIResource", "verbs");
    if field.ty.item().is_some() && !unmarked {
        let (word, keys): (_, &[&str]) = match &field.list {
            ListType::Atomic => ("atomic", &[]),
            ListType::Set => ("set", &[]),
            ListType::Map(keys) => ("map", keys),
        };
        value["x-kubernetes-list-type"] = word.into();
        if !keys.is_empty() {
            value["x-kubernetes-list-map-keys"] = keys.into();
        }
    }
    let type_is_atomic = field.ty.struct_ref().is_some_and(|r| types.ty(r).atomic);
    match (field.map_atomic, field.struct_atomic) {
        (true, _) | (_, Some(true)) => value["x-kubernetes-map-type"] = "atomic".into(),
        (_, Some(false)) if type_is_atomic => value["x-kubernetes-map-type"] = "granular".into(),
        _ => {}
    }
    // Markers that change nothing, which the table leaves out.
    match (owner.name, field.name) {
        ("apiregistration/v1.APIServiceSpec", "caBundle") => value["x-kubernetes-list-type"] = "atomic".into(),
        ("core/v1.PersistentVolumeClaimStatus", "allocatedResourceStatuses") => {
            value["x-kubernetes-map-type"] = "granular".into();
        }
        ("policy/v1.PodDisruptionBudgetSpec", "selector") => value["x-kubernetes-patch-strategy"] = "replace".into(),
        _ => {}
    }
    let strategy = match field.patch {
        PatchStrategy::Replace => return,
        PatchStrategy::Merge => "merge",
        PatchStrategy::RetainKeys => "retainKeys",
        PatchStrategy::MergeRetainKeys => "merge,retainKeys",
    };
    value["x-kubernetes-patch-strategy"] = strategy.into();
    if let Some(key) = field.merge_key {
        value["x-kubernetes-patch-merge-key"] = key.into();
    }
}

/// The group, version and kind that objects of the type call themselves.
fn kinds_of(ty: &Type) -> Vec<Value> {
    let kind = ty.short_name();
    let core = GroupVersion {
        group: "",
        version: "v1",
    };
    match ty.name {
        // Every group version has these.
        "meta/v1.DeleteOptions" | "meta/v1.WatchEvent" => {
            GroupVersion::built_in().into_iter().map(|gv| gv.gvk(kind)).collect()
        }
        _ if ty.field("kind").is_none() || ty.field("apiVersion").is_none() => vec![],
        "meta/v1.APIGroup"
        | "meta/v1.APIGroupList"
        | "meta/v1.APIResourceList"
        | "meta/v1.APIVersions"
        | "meta/v1.Status" => vec![core.gvk(kind)],
        name if name.starts_with("meta/") => vec![],
        name => {
            let (package, rest) = name.split_once('/').unwrap_or(("core", name));
            let version = rest.split('.').next().unwrap_or("v1");
            // Only kinds have metadata; references to objects have a kind and an apiVersion, too.
            match ty.field("metadata") {
                Some(_) => vec![json!({"group": names::full_group(package), "version": version, "kind": kind})],
                None => vec![],
            }
        }
    }
}

/// Types of which one field at a time is set.
fn union_of(name: &str) -> Option<Value> {
    Some(match name {
        "core/v1.AppArmorProfile" | "core/v1.SeccompProfile" => {
            json!({"discriminator": "type", "fields-to-discriminateBy": {"localhostProfile": "LocalhostProfile"}})
        }
        "core/v1.PodSchedulingGroup" => json!({"fields-to-discriminateBy": {"podGroupName": "PodGroupName"}}),
        "flowcontrol/v1.LimitResponse" => {
            json!({"discriminator": "type", "fields-to-discriminateBy": {"queuing": "Queuing"}})
        }
        "flowcontrol/v1.PriorityLevelConfigurationSpec" => {
            json!({"discriminator": "type", "fields-to-discriminateBy": {"exempt": "Exempt", "limited": "Limited"}})
        }
        "flowcontrol/v1.Subject" => json!({
            "discriminator": "kind",
            "fields-to-discriminateBy": {"group": "Group", "serviceAccount": "ServiceAccount", "user": "User"},
        }),
        _ => return None,
    })
}
