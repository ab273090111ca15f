//! Whole documents. They are large, so they are written path by path and definition by definition, never held as a tree.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::custom::CustomDefinitions;
use super::definitions::{self, Definition, Dialect, Writer};
use super::docs::Docs;
use super::enums::Enums;
use super::gnostic::{self, Kind};
use super::names::GroupVersion;
use super::operations::{Globals, PathItem};
use super::order::InOrder;
use super::paths::{self, Root};
use super::{gnostic_v2, gnostic_v3};
use crate::custom::Snapshot;
use crate::discovery::GIT_VERSION;

/// Which document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Document {
    /// Swagger 2.0, of everything.
    Swagger,
    /// OpenAPI 3.0, of a part.
    Group(GroupVersion),
    Root(Root),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Document {
    /// The documents of OpenAPI 3.0.
    pub(super) fn parts(custom: &Snapshot) -> Vec<Document> {
        let groups = GroupVersion::all(custom).into_iter().map(Document::Group);
        groups.chain(Root::all().into_iter().map(Document::Root)).collect()
    }

    /// "apis/apps/v1": where it is found below /openapi/v3. Swagger has no such name.
    pub(super) fn name(self) -> String {
        match self {
            Document::Swagger => String::new(),
            Document::Group(gv) => gv.path(),
            Document::Root(root) => root.path(),
        }
    }

    fn dialect(self) -> Dialect {
        match self {
            Document::Swagger => Dialect::V2,
            _ => Dialect::V3,
        }
    }

    fn items(self, custom: &Snapshot) -> Vec<PathItem> {
        match self {
            Document::Group(gv) => paths::of_group_version(gv, custom),
            Document::Root(root) => vec![root.item()],
            Document::Swagger => {
                let of = |gv| paths::of_group_version(gv, custom);
                let groups = GroupVersion::all(custom).into_iter().flat_map(of);
                let mut items: Vec<_> = groups.chain(Root::all().into_iter().map(Root::item)).collect();
                items.sort_by(|a, b| a.path.cmp(&b.path));
                items
            }
        }
    }

    pub(super) fn write(self, custom: &Snapshot, format: Format, out: &mut dyn Write) -> io::Result<()> {
        let items = self.items(custom);
        let roots = items
            .iter()
            .flat_map(|i| i.operations.iter().flat_map(|o| o.definitions()));
        let custom = CustomDefinitions::of(custom);
        let definitions = definitions::reachable(roots, &custom);
        let parts = Parts {
            dialect: self.dialect(),
            custom,
            docs: Docs::load(|name| definitions.contains_key(name)),
            definitions,
            items,
        };
        match format {
            Format::Json => parts.write_json(out),
            Format::Protobuf => parts.write_protobuf(out),
        }
    }
}

struct Parts {
    dialect: Dialect,
    custom: CustomDefinitions,
    items: Vec<PathItem>,
    definitions: BTreeMap<String, Definition>,
    docs: Docs,
}

impl Parts {
    fn paths(&self, globals: &mut Globals) -> impl Iterator<Item = (&str, Value)> {
        let items = self.items.iter();
        items.map(|item| (item.path.as_str(), item.render(self.dialect, globals)))
    }

    fn definitions(&self) -> impl Iterator<Item = (&str, Value)> {
        let writer = Writer {
            dialect: self.dialect,
            docs: &self.docs,
            custom: &self.custom,
            enums: Enums::load(),
        };
        let definitions = self.definitions.iter();
        definitions.map(move |(name, definition)| (name.as_str(), writer.definition(*definition)))
    }

    /// What stands before the paths.
    fn head(&self) -> Vec<(&'static str, Value)> {
        let version = match self.dialect {
            Dialect::V2 => ("swagger", "2.0".into()),
            Dialect::V3 => ("openapi", "3.0.0".into()),
        };
        vec![
            version,
            ("info", json!({"title": "Kubernetes", "version": GIT_VERSION})),
        ]
    }

    /// What stands after the definitions.
    fn tail(&self, globals: Globals) -> Vec<(&'static str, Value)> {
        match self.dialect {
            Dialect::V2 => vec![
                ("parameters", globals.0.into()),
                ("securityDefinitions", security()),
                ("security", json!([{"BearerToken": []}])),
            ],
            Dialect::V3 => vec![],
        }
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut globals = Globals::default();
        out.write_all(b"{")?;
        members(out, self.head().into_iter())?;
        out.write_all(b",\"paths\":{")?;
        members(out, self.paths(&mut globals))?;
        match self.dialect {
            Dialect::V2 => {
                out.write_all(b"},\"definitions\":{")?;
                members(out, self.definitions())?;
                out.write_all(b"}")?;
            }
            Dialect::V3 => {
                out.write_all(b"},\"components\":{")?;
                if !self.definitions.is_empty() {
                    out.write_all(b"\"schemas\":{")?;
                    members(out, self.definitions())?;
                    out.write_all(b"},")?;
                }
                write!(out, "\"securitySchemes\":{}}}", security())?;
            }
        }
        for member in self.tail(globals) {
            out.write_all(b",")?;
            members(out, std::iter::once(member))?;
        }
        out.write_all(b"}")
    }

    fn write_protobuf(&self, out: &mut dyn Write) -> io::Result<()> {
        let (document, path, path_item, definition) = match self.dialect {
            Dialect::V2 => (
                &gnostic_v2::DOCUMENT,
                gnostic_v2::PATH,
                &gnostic_v2::PATH_ITEM,
                &gnostic_v2::SCHEMA,
            ),
            Dialect::V3 => (
                &gnostic_v3::DOCUMENT,
                gnostic_v3::PATH,
                &gnostic_v3::PATH_ITEM,
                &gnostic_v3::SCHEMA_OR_REFERENCE,
            ),
        };
        let mut globals = Globals::default();
        let mut paths = vec![];
        for (name, item) in self.paths(&mut globals) {
            gnostic::named(&mut paths, path, name, Kind::Message(path_item), &item);
        }
        let mut definitions = vec![];
        for (name, value) in self.definitions() {
            // The field of a pair has the same number in both.
            gnostic::named(
                &mut definitions,
                gnostic_v2::DEFINITION,
                name,
                Kind::Message(definition),
                &value,
            );
        }
        let rest: Map<String, Value> = (self.head().into_iter().chain(self.tail(globals)))
            .map(|(name, value)| (name.to_string(), value))
            .collect();
        out.write_all(&gnostic::encode(document, &rest.into()))?;
        match self.dialect {
            Dialect::V2 => {
                gnostic::write(out, gnostic_v2::PATHS, &[&paths])?;
                gnostic::write(out, gnostic_v2::DEFINITIONS, &[&definitions])
            }
            Dialect::V3 => {
                let schemes = json!({"securitySchemes": security()});
                let schemes = gnostic::encode(&gnostic_v3::COMPONENTS_REST, &schemes);
                let mut schemas = vec![];
                gnostic::write(&mut schemas, gnostic_v3::SCHEMAS, &[&definitions])?;
                gnostic::write(out, gnostic_v3::PATHS, &[&paths])?;
                gnostic::write(out, gnostic_v3::COMPONENTS, &[&schemes, &schemas])
            }
        }
    }
}

fn members<'v>(out: &mut dyn Write, values: impl Iterator<Item = (&'v str, Value)>) -> io::Result<()> {
    for (i, (name, value)) in values.enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        write!(out, "{}:", Value::from(name))?;
        serde_json::to_writer(&mut *out, &InOrder::of(&value))?;
    }
    Ok(())
}

fn security() -> Value {
    json!({
        "BearerToken": {
            "type": "apiKey", "in": "header", "name": "authorization", "description": "Bearer Token authentication",
        },
    })
}
