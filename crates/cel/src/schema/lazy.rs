//! Declared types of schemas that refer to others (`$ref`), such as those of built-in kinds. An object's fields are made
//! when an expression first looks into it, so that large and recursive schemas cost nothing.
//!
//! For checking types only: sizes are not bounded.

use super::{flag, text};
use crate::decl::{DeclType, Field, ListType, ObjectType};
use crate::escape::escape;
use crate::types::Type;
use serde_json::Value as Json;
use std::sync::Arc;

/// Finds the schema that a `$ref` means.
pub type Resolver = Arc<dyn Fn(&str) -> Option<Json> + Send + Sync>;

/// The declared type of a schema of OpenAPI v3; objects without a name of their own are named after `name`.
///
/// `resource_root` says that it is a resource, of which `apiVersion`, `kind` and `metadata` can always be seen.
pub fn declare_lazily(schema: &Json, name: &str, resource_root: bool, resolver: &Resolver) -> Option<DeclType> {
    let (schema, name) = follow(schema, name, resolver)?;
    if flag(&schema, "x-kubernetes-int-or-string") || text(&schema, "format") == "int-or-string" {
        return Some(DeclType::int_or_string());
    }
    match text(&schema, "type") {
        "array" => {
            let items = schema.get("items")?;
            let items = declare_lazily(items, &format!("{name}.@idx"), false, resolver)?;
            Some(DeclType::list(Arc::new(items), ListType::Atomic, None))
        }
        "object" => match schema.get("additionalProperties").filter(|values| values.is_object()) {
            Some(values) => {
                let values = declare_lazily(values, &format!("{name}.@elem"), false, resolver)?;
                Some(DeclType::map(Arc::new(values), None))
            }
            None => Some(declare_object(schema, name, resource_root, resolver)),
        },
        "string" => Some(DeclType::simple(match text(&schema, "format") {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            _ => Type::String,
        })),
        "boolean" => Some(DeclType::simple(Type::Bool)),
        "number" => Some(DeclType::simple(Type::Double)),
        "integer" => Some(DeclType::simple(Type::Int)),
        // Quantities and raw extensions, which may be of several types.
        _ => Some(DeclType::dynamic()),
    }
}

/// The schema that is meant, and the name of its type. References to references end after some steps.
fn follow(schema: &Json, name: &str, resolver: &Resolver) -> Option<(Json, String)> {
    const MOST: usize = 8;
    let (mut schema, mut name) = (schema.clone(), name.to_string());
    for _ in 0..MOST {
        let within = schema
            .get("allOf")
            .and_then(Json::as_array)
            .filter(|all| all.len() == 1);
        let target = schema.get("$ref").or_else(|| within?.first()?.get("$ref"));
        let Some(target) = target.and_then(Json::as_str).map(str::to_string) else {
            return Some((schema, name));
        };
        name = target.rsplit('/').next().unwrap_or(&target).to_string();
        schema = resolver(&target)?;
    }
    None
}

fn declare_object(schema: Json, name: String, resource_root: bool, resolver: &Resolver) -> DeclType {
    let (resolver, base) = (resolver.clone(), name.clone());
    let fields = move || {
        let mut fields = Vec::new();
        let properties = schema.get("properties").and_then(Json::as_object);
        for (property, inner) in properties.into_iter().flatten() {
            let Some(escaped) = escape(property) else {
                continue;
            };
            if let Some(decl) = declare_lazily(inner, &format!("{base}.{escaped}"), false, &resolver) {
                let (_, field) = Field::new(property.as_str(), decl);
                fields.push((escaped.into_owned(), field));
            }
        }
        if resource_root {
            for property in ["apiVersion", "kind"] {
                if !fields.iter().any(|(name, _)| name == property) {
                    fields.push(Field::new(property, DeclType::simple(Type::String)));
                }
            }
        }
        fields
    };
    DeclType::object(Arc::new(ObjectType::lazy(name, fields)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Env;
    use serde_json::json;

    #[test]
    fn recursive_schemas_are_looked_into_as_far_as_expressions_do() {
        let resolver: Resolver = Arc::new(|target| {
            Some(match target {
                "#/components/schemas/Tree" => json!({"type": "object", "properties": {
                    "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
                    "parent": {"allOf": [{"$ref": "#/components/schemas/Tree"}], "default": {}},
                    "size": {"oneOf": [{"type": "string"}, {"type": "number"}]},
                    "loop": {"$ref": "#/components/schemas/Loop"},
                    "name": {"type": "string"}}}),
                "#/components/schemas/Loop" => json!({"$ref": "#/components/schemas/Loop"}),
                _ => return None,
            })
        });
        let root = json!({"$ref": "#/components/schemas/Tree"});
        let decl = declare_lazily(&root, "object", true, &resolver).unwrap();
        let env = Env::builder().variable("object", decl).build();
        let compile = |text: &str| env.compile(text, &[]).map_err(|error| error.to_string());
        assert!(compile("object.parent.parent.children[0].children.all(c, c.name == object.kind)").is_ok());
        assert!(compile("object.size == 1 || object.size == 'x'").is_ok());
        for (expression, problem) in [
            ("object.parent.nothing", "undefined field 'nothing'"),
            ("object.loop", "undefined field 'loop'"),
            (
                "object.children == object",
                "no matching overload for '_==_' applied to '(list(Tree), Tree)'",
            ),
        ] {
            let error = compile(expression).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
