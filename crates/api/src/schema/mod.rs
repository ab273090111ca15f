//! The types of the API as a table: every field's JSON name, protobuf number, type, and how patches and server-side
//! apply merge it. The table is text (`schema/kubernetes-1.36.txt`, written by `tools/schema.py`), read at first use.
//!
//! On the table stand `decode_json`, `decode_yaml` and `from_value` here, and `crate::protobuf`. All give the same: the
//! object exactly as Kubernetes' own decode and encode of that type would give it.

mod build;
mod decode;
mod names;
mod ordered;
mod syntax;
mod table;
mod text;
mod time;
mod yaml;

use std::sync::OnceLock;

use names::Names;

pub(crate) use build::Builder;
pub use build::zero;
pub use decode::{DecodeError, Decoded, MAX_DEPTH, STACK_BYTES, TypeMeta, decode_json, from_value, peek_type};
pub(crate) use decode::{PartSeed, any_json, base64_bytes, base64_text, float};
pub use ordered::{InOrder, members_in_order};
pub use syntax::json_syntax_error;
pub(crate) use text::of_bytes as text_of_bytes;
pub(crate) use time::{is_plain_time, micro_time_text, parse_micro_time, parse_time, time_text, unless_zero};
pub use yaml::{decode_yaml, peek_yaml_type, yaml_to_value};

/// All types, in order of their names.
pub struct Schema {
    types: Vec<Type>,
}

/// A type, by its place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TypeRef(u16);

/// A struct: an object with known fields.
#[derive(Debug)]
pub struct Type {
    /// "core/v1.Pod"
    pub name: &'static str,
    /// In order of their JSON names.
    pub fields: Vec<Field>,
    /// Server-side apply takes it as a whole (unless the field says otherwise, see `Field::struct_atomic`).
    pub atomic: bool,
    /// Finds a field by its JSON name.
    pub(crate) names: Names,
    /// The fields that are written even if absent: their places in `fields`.
    pub(crate) always: Vec<u16>,
    /// The message in protobuf, in order of field numbers.
    pub(crate) wire: Vec<(u32, Wire)>,
}

/// What a protobuf field number stands for.
#[derive(Debug)]
pub(crate) enum Wire {
    /// The field at that place of `Type::fields`.
    Field(u16),
    /// A message whose fields are this type's own in JSON.
    Inline(Vec<(u32, Wire)>),
}

#[derive(Debug)]
pub struct Field {
    /// The JSON name.
    pub name: &'static str,
    /// Its place among the fields as they are declared, in which they are written.
    pub order: u16,
    /// The protobuf field number; 0 if the field is not in protobuf (apiVersion and kind).
    pub tag: u32,
    /// The field's message is inlined in JSON: the numbers that lead to it, outermost first; 0: none.
    pub via: [u32; 2],
    pub ty: Ty,
    pub presence: Presence,
    /// Neither optional nor left out when empty: what OpenAPI lists as required.
    pub required: bool,
    /// How server-side apply merges a list.
    pub list: ListType,
    /// Server-side apply takes a map as a whole.
    pub map_atomic: bool,
    /// Overrides the struct type's own `atomic`.
    pub struct_atomic: Option<bool>,
    /// How a strategic merge patch merges it.
    pub patch: PatchStrategy,
    pub merge_key: Option<&'static str>,
    /// The default in the OpenAPI schema, as JSON; server-side apply needs those of list keys.
    pub default: Option<&'static str>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ty {
    String,
    /// Base64 in JSON.
    Bytes,
    Bool,
    Int32,
    Int64,
    Float64,
    Quantity,
    IntOrString,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339 with six decimals.
    MicroTime,
    /// "1h30m0s"
    Duration,
    /// Any JSON (RawExtension, FieldsV1, apiextensions' JSON).
    Any,
    /// A JSONSchemaProps or a boolean.
    SchemaOrBool(TypeRef),
    /// A JSONSchemaProps or a list of them.
    SchemaOrArray(TypeRef),
    /// A JSONSchemaProps or a list of strings.
    SchemaOrStrings(TypeRef),
    Struct(TypeRef),
    List(Box<Ty>),
    /// A list that is a message of its own in protobuf; in JSON like `List`.
    Items(Box<Ty>),
    /// From strings.
    Map(Box<Ty>),
}

impl Ty {
    /// The type of the elements of a list.
    pub fn item(&self) -> Option<&Ty> {
        match self {
            Ty::List(item) | Ty::Items(item) => Some(item),
            _ => None,
        }
    }

    /// The struct this is, or that its elements are.
    pub fn struct_ref(&self) -> Option<TypeRef> {
        match self {
            Ty::Struct(r) => Some(*r),
            Ty::List(inner) | Ty::Items(inner) | Ty::Map(inner) => inner.struct_ref(),
            _ => None,
        }
    }
}

/// When a field is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// A value; zero ("", 0, false, an empty list or map) is left out.
    OmitEmpty,
    /// A pointer: left out if absent, a given zero is kept.
    Pointer,
    /// Always; its zero value if absent.
    Always,
    /// A pointer, always written: null if absent.
    Nullable,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListType {
    Atomic,
    Set,
    /// Elements are told apart by the values of these fields.
    Map(Box<[&'static str]>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchStrategy {
    Replace,
    Merge,
    RetainKeys,
    MergeRetainKeys,
}

impl PatchStrategy {
    pub fn merges(self) -> bool {
        matches!(self, PatchStrategy::Merge | PatchStrategy::MergeRetainKeys)
    }

    pub fn retains_keys(self) -> bool {
        matches!(self, PatchStrategy::RetainKeys | PatchStrategy::MergeRetainKeys)
    }
}

/// The table.
pub fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| table::read(include_str!("../../schema/kubernetes-1.36.txt")))
}

impl Schema {
    /// The type of that name, e.g. "core/v1.Pod".
    pub fn get(&self, name: &str) -> Option<TypeRef> {
        self.types
            .binary_search_by(|t| t.name.cmp(name))
            .ok()
            .map(|i| TypeRef(i as u16))
    }

    pub fn ty(&self, r: TypeRef) -> &Type {
        &self.types[usize::from(r.0)]
    }

    pub fn types(&self) -> impl Iterator<Item = &Type> {
        self.types.iter()
    }

    /// The type of a kind: `("apps/v1", "Deployment")`. Options, Status and the like belong to every group.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<TypeRef> {
        let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
        let short = group.split('.').next().unwrap_or(group);
        let own = self.get(&format!("{short}/{version}.{kind}"));
        own.or_else(|| {
            let meta = self.get(&format!("meta/v1.{kind}"))?;
            self.ty(meta).field("apiVersion").map(|_| meta)
        })
    }
}

impl Type {
    pub fn field(&self, json: &str) -> Option<&Field> {
        self.index(json).map(|i| &self.fields[i])
    }

    pub(crate) fn index(&self, json: &str) -> Option<usize> {
        self.names.find(json, |i| self.fields[i].name)
    }

    /// The field of that protobuf number; fields of inlined messages are not found by their inner numbers.
    pub fn by_tag(&self, n: u32) -> Option<&Field> {
        match self.wire.binary_search_by_key(&n, |w| w.0).map(|i| &self.wire[i].1) {
            Ok(Wire::Field(i)) => Some(&self.fields[usize::from(*i)]),
            _ => None,
        }
    }

    /// "Pod"
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit_once('.').map_or(self.name, |(_, name)| name)
    }

    /// As Go would name it: "v1.Pod".
    pub(crate) fn go_name(&self) -> &'static str {
        self.name.split_once('/').map_or(self.name, |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(ty: &str, name: &str) -> &'static Field {
        let s = schema();
        s.ty(s.get(ty).unwrap_or_else(|| panic!("no {ty}")))
            .field(name)
            .unwrap_or_else(|| panic!("no {ty} {name}"))
    }

    #[test]
    fn the_table_says_how_fields_merge() {
        let containers = field("core/v1.PodSpec", "containers");
        assert_eq!(containers.list, ListType::Map(["name"].into()));
        assert_eq!(
            (containers.patch, containers.merge_key),
            (PatchStrategy::Merge, Some("name"))
        );
        assert_eq!(
            (containers.tag, containers.presence, containers.required),
            (2, Presence::Always, true)
        );
        let ports = field("core/v1.Container", "ports");
        assert_eq!(ports.list, ListType::Map(["containerPort", "protocol"].into()));
        assert_eq!(field("core/v1.ContainerPort", "protocol").default, Some("\"TCP\""));
        let volumes = field("core/v1.PodSpec", "volumes");
        assert_eq!(
            (volumes.patch, volumes.merge_key),
            (PatchStrategy::MergeRetainKeys, Some("name"))
        );
        assert_eq!(
            field("apps/v1.DeploymentSpec", "strategy").patch,
            PatchStrategy::RetainKeys
        );
        assert_eq!(field("meta/v1.ObjectMeta", "finalizers").list, ListType::Set);
        assert!(field("core/v1.PodSpec", "nodeSelector").map_atomic);
        assert_eq!(
            field("core/v1.PersistentVolumeSpec", "claimRef").struct_atomic,
            Some(false)
        );
        assert!(schema().ty(schema().get("meta/v1.LabelSelector").unwrap()).atomic);
        assert_eq!(
            field("meta/v1.ObjectMeta", "creationTimestamp").presence,
            Presence::OmitEmpty
        );
        assert_eq!(field("core/v1.Volume", "hostPath").via, [2, 0]);
        assert_eq!(
            field("core/v1.ResourceRequirements", "limits").ty,
            Ty::Map(Box::new(Ty::Quantity))
        );
    }

    #[test]
    fn kinds_are_found_by_api_version() {
        let s = schema();
        for (api_version, kind, name) in [
            ("v1", "Pod", "core/v1.Pod"),
            ("apps/v1", "Deployment", "apps/v1.Deployment"),
            ("rbac.authorization.k8s.io/v1", "Role", "rbac/v1.Role"),
            (
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                "apiextensions/v1.CustomResourceDefinition",
            ),
            ("v1", "DeleteOptions", "meta/v1.DeleteOptions"),
            ("apps/v1", "DeleteOptions", "meta/v1.DeleteOptions"),
            ("v1", "List", "meta/v1.List"),
        ] {
            assert_eq!(s.kind(api_version, kind).map(|r| s.ty(r).name), Some(name));
        }
        assert_eq!(s.kind("v1", "Deployment"), None);
        assert_eq!(s.kind("example.com/v1", "ObjectMeta"), None);
    }

    #[test]
    fn every_type_is_sound() {
        for t in schema().types() {
            assert!(t.fields.is_sorted_by_key(|f| f.name), "{}", t.name);
            assert!(t.fields.len() <= 128, "{}: the builder's bit set is too small", t.name);
            let mut numbers: Vec<_> = t.fields.iter().filter(|f| f.tag != 0).map(|f| (f.via, f.tag)).collect();
            let all = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), all, "{}: a number twice", t.name);
        }
    }
}
