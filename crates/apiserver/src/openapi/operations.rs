//! One operation: a method on a path, what goes in and what comes out; and its form in either version of OpenAPI.

use serde_json::{Map, Value, json};

use super::definitions::{Definition, Dialect};
use super::parameters::Parameter;

/// How objects are written.
pub(super) const OBJECT_MEDIA: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
/// How lists are, which may also be watched.
pub(super) const LIST_MEDIA: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
pub(super) const PATCH_MEDIA: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Custom kinds have no protobuf, and are not patched strategically: kubectl chooses its patch by what is named here.
const CUSTOM_MEDIA: &[&str] = &["application/json", "application/yaml"];
const CUSTOM_PATCH_MEDIA: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];
pub(super) const ANY_MEDIA: &[&str] = &["*/*"];

pub(super) struct Operation {
    pub method: &'static str,
    pub id: String,
    pub description: String,
    pub tag: String,
    /// x-kubernetes-action; "" if the operation is on no kind.
    pub action: &'static str,
    pub gvk: Option<Value>,
    pub query: Vec<Parameter>,
    pub body: Option<Body>,
    pub answer: OperationResponse,
}

pub(super) struct Body {
    pub definition: Definition,
    pub media: &'static [&'static str],
    pub required: bool,
}

pub(super) struct OperationResponse {
    pub codes: &'static [u16],
    /// `None`: text.
    pub definition: Option<Definition>,
    pub media: &'static [&'static str],
}

impl Operation {
    /// What this operation's types are, so that they get defined.
    pub(super) fn definitions(&self) -> impl Iterator<Item = Definition> {
        let body = self.body.as_ref().map(|b| b.definition);
        body.into_iter().chain(self.answer.definition)
    }

    /// The same on a custom kind.
    pub(super) fn restrict_to_custom(&mut self) {
        if let Some(body) = &mut self.body {
            body.media = match body.media == PATCH_MEDIA {
                true => CUSTOM_PATCH_MEDIA,
                false => CUSTOM_MEDIA,
            };
        }
        self.answer.media = CUSTOM_MEDIA;
    }

    fn render(&self, dialect: Dialect, shared: &[Parameter], globals: &mut Globals) -> Value {
        let mut value = json!({"operationId": self.id, "description": self.description, "tags": [self.tag]});
        let mut parameters: Vec<Value> = vec![];
        match dialect {
            Dialect::V2 => {
                let consumes = self.body.as_ref().map_or(ANY_MEDIA, |b| b.media);
                value["consumes"] = consumes.into();
                value["produces"] = self.answer.media.into();
                value["schemes"] = json!(["https"]);
                parameters.extend(self.body.as_ref().map(|b| globals.place(b.parameter())));
            }
            Dialect::V3 => {
                if let Some(body) = &self.body {
                    value["requestBody"] = body.render();
                }
            }
        }
        let own = self.query.iter().filter(|p| !shared.contains(p));
        parameters.extend(own.map(|p| match dialect {
            Dialect::V2 => globals.place(p.render(dialect)),
            Dialect::V3 => p.render(dialect),
        }));
        if !parameters.is_empty() {
            value["parameters"] = parameters.into();
        }
        value["responses"] = self.answer.render(dialect);
        if !self.action.is_empty() {
            value["x-kubernetes-action"] = self.action.into();
        }
        if let Some(gvk) = &self.gvk {
            value["x-kubernetes-group-version-kind"] = gvk.clone();
        }
        value
    }
}

impl Body {
    fn parameter(&self) -> Value {
        let mut value = json!({
            "name": "body", "in": "body", "schema": Dialect::V2.reference(&self.definition.name()),
        });
        if self.required {
            value["required"] = true.into();
        }
        value
    }

    fn render(&self) -> Value {
        let mut value = json!({"content": content(&self.definition.name().into(), self.media)});
        if self.required {
            value["required"] = true.into();
        }
        value
    }
}

/// The definition of that name, or text, in each media type.
fn content(name: &Option<String>, media: &[&str]) -> Value {
    let schema = match name {
        Some(name) => Dialect::V3.reference(name),
        None => json!({"type": "string"}),
    };
    let entry = |m: &&str| (m.to_string(), json!({"schema": schema}));
    Value::Object(media.iter().map(entry).collect())
}

impl OperationResponse {
    pub(super) fn object(codes: &'static [u16], definition: Definition) -> OperationResponse {
        OperationResponse {
            codes,
            definition: Some(definition),
            media: OBJECT_MEDIA,
        }
    }

    fn render(&self, dialect: Dialect) -> Value {
        let name = self.definition.map(Definition::name);
        let mut responses = Map::new();
        for code in self.codes {
            let mut value = json!({"description": reason(*code)});
            match dialect {
                Dialect::V2 => {
                    value["schema"] = match &name {
                        Some(name) => dialect.reference(name),
                        None => json!({"type": "string"}),
                    }
                }
                Dialect::V3 => value["content"] = content(&name, self.media),
            }
            responses.insert(code.to_string(), value);
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        responses.into()
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        201 => "Created",
        202 => "Accepted",
        _ => "OK",
    }
}

/// Parameters that many operations have: in Swagger 2.0 they stand in the document once.
#[derive(Default)]
pub(super) struct Globals(pub Map<String, Value>);

impl Globals {
    /// A reference to the parameter, which is kept; or the parameter, where clients look for it in place.
    fn place(&mut self, parameter: Value) -> Value {
        let name = parameter["name"].as_str().unwrap_or_default();
        let target = parameter["schema"]["$ref"].as_str().unwrap_or_default();
        let one_off = parameter["in"] == "body" && !target.ends_with(".Patch") && !target.ends_with(".DeleteOptions");
        // Old kubectls look for these two in the operation itself, and "name" is everywhere.
        if one_off || matches!(name, "dryRun" | "fieldValidation" | "name") {
            return parameter;
        }
        let key = match target.rsplit('.').next() {
            Some(kind) if !target.is_empty() => format!("body-{kind}"),
            _ => format!("{name}-{}", parameter["in"].as_str().unwrap_or_default()),
        };
        let reference = json!({"$ref": format!("#/parameters/{key}")});
        self.0.entry(key).or_insert(parameter);
        reference
    }
}

/// A path and all that can be done there.
pub(super) struct PathItem {
    pub path: String,
    pub operations: Vec<Operation>,
}

impl PathItem {
    /// Parameters that all operations have are given once, for the path.
    pub(super) fn render(&self, dialect: Dialect, globals: &mut Globals) -> Value {
        let mut shared = super::parameters::of_path(&self.path);
        if let Some((first, others)) = self.operations.split_first() {
            let everywhere = |p: &&Parameter| others.iter().all(|o| o.query.contains(p));
            shared.extend(first.query.iter().filter(everywhere).cloned());
        }
        shared.sort();
        let mut item = Map::new();
        for operation in &self.operations {
            item.insert(operation.method.into(), operation.render(dialect, &shared, globals));
        }
        if !shared.is_empty() {
            let parameters: Vec<Value> = match dialect {
                Dialect::V2 => shared.iter().map(|p| globals.place(p.render(dialect))).collect(),
                Dialect::V3 => shared.iter().map(|p| p.render(dialect)).collect(),
            };
            item.insert("parameters".into(), parameters.into());
        }
        item.into()
    }
}
