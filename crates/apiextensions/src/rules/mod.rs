//! Rules in CEL (`x-kubernetes-validations`): compiled once with the types that the schema declares, evaluated on every
//! write within the budget of Kubernetes.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/cel (v1.36).

mod evaluate;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use orlop_api::structural::{SchemaListType, SchemaType, Structural, ValidationRule};
use orlop_cel::{CompileError, DeclType, Env, Program, Type, limits, self_type};
use serde_json::{Map, Value};

pub(crate) use evaluate::{validate_rules, validate_rules_at};

use crate::definition::follow_path;

/// The rules of a schema and of what lies below it; only nodes on the way to rules are there.
#[derive(Debug)]
pub(crate) struct RuleTree {
    ty: SchemaType,
    /// How rules see a value here. None: they cannot.
    decl: Option<Arc<DeclType>>,
    rules: Box<[CompiledRule]>,
    items: Option<Box<RuleTree>>,
    additional: Option<Box<RuleTree>>,
    /// In order of their names.
    properties: Box<[(Box<str>, RuleTree)]>,
    /// The keys of a list with keys: by them its elements are the same as before.
    keys: Box<[Box<str>]>,
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    /// What messages call the rule by: its message, or itself.
    name: Box<str>,
    message: Box<str>,
    reason: Option<Box<str>>,
    /// Where problems are told, below the place of the rule.
    field_path: Option<Box<str>>,
    optional_old_self: bool,
    uses_old_self: bool,
    /// None if there is nothing to evaluate.
    program: Option<Result<Program, RuleError>>,
    message_expression: Option<Result<Program, RuleError>>,
}

/// The rules of a version, compiled when the first object is written: most definitions on a cluster wait for theirs, and
/// compiled rules take ten times the room of the schema.
#[derive(Debug)]
pub(crate) struct LazyRules {
    /// What declares types, as JSON.
    given: Box<str>,
    tree: OnceLock<Option<RuleTree>>,
}

impl LazyRules {
    /// None if the schema has no rules.
    pub(crate) fn new(given: &Value, schema: &Structural) -> Option<LazyRules> {
        schema.has_rules.then(|| LazyRules {
            given: declaring(given, schema).to_string().into(),
            tree: OnceLock::new(),
        })
    }

    pub(crate) fn tree(&self, schema: &Structural) -> Option<&RuleTree> {
        let compile = || {
            // It was written from JSON.
            let given: Value = serde_json::from_str(&self.given).unwrap_or_default();
            RuleTree::compile(&given, schema, true)
        };
        self.tree.get_or_init(compile).as_ref()
    }
}

/// A schema without what declares no types, and of parts without rules above them nothing at all.
fn declaring(given: &Value, schema: &Structural) -> Value {
    let Some(map) = given.as_object().filter(|_| schema.has_rules) else {
        return Value::Bool(true);
    };
    // Rules here see all that is below.
    if !schema.rules().is_empty() {
        return without_words(given);
    }
    let mut out = Map::new();
    for (name, value) in map {
        let kept = match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                let of = |(name, below): (&String, &Value)| {
                    let schema = schema.property(name)?;
                    Some((name.clone(), declaring(below, schema)))
                };
                Value::Object(properties.iter().filter_map(of).collect())
            }
            ("items", below) => schema.items.as_deref().map_or(Value::Null, |s| declaring(below, s)),
            ("additionalProperties", below) => schema
                .additional_schema()
                .map_or_else(|| below.clone(), |s| declaring(below, s)),
            (name, _) if says_nothing_of_types(name) => continue,
            (_, value) => value.clone(),
        };
        out.insert(name.clone(), kept);
    }
    Value::Object(out)
}

fn says_nothing_of_types(name: &str) -> bool {
    matches!(
        name,
        "description"
            | "title"
            | "example"
            | "externalDocs"
            | "pattern"
            | "x-kubernetes-validations"
            | "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "minItems"
            | "minProperties"
            | "allOf"
            | "anyOf"
            | "oneOf"
            | "not"
    )
}

fn without_words(given: &Value) -> Value {
    let Some(map) = given.as_object() else {
        return given.clone();
    };
    let mut out = Map::new();
    for (name, value) in map {
        let kept = match (name.as_str(), value) {
            ("properties", Value::Object(properties)) => Value::Object(
                properties
                    .iter()
                    .map(|(name, below)| (name.clone(), without_words(below)))
                    .collect(),
            ),
            ("items" | "additionalProperties", below) => without_words(below),
            (name, _) if says_nothing_of_types(name) => continue,
            (_, value) => value.clone(),
        };
        out.insert(name.clone(), kept);
    }
    Value::Object(out)
}

/// Why a rule does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RuleError(String);

impl CompiledRule {
    pub(crate) fn error(&self) -> Option<&RuleError> {
        self.program.as_ref()?.as_ref().err()
    }

    pub(crate) fn message_error(&self) -> Option<&RuleError> {
        self.message_expression.as_ref()?.as_ref().err()
    }

    pub(crate) fn uses_old_self(&self) -> bool {
        self.uses_old_self
    }

    /// The highest cost that an evaluation may have; 0 of what does not compile.
    pub(crate) fn max_cost(&self) -> u64 {
        max_cost(&self.program)
    }

    /// The same of the message expression, if it compiles.
    pub(crate) fn message_max_cost(&self) -> Option<u64> {
        let compiled = matches!(self.message_expression, Some(Ok(_)));
        compiled.then(|| max_cost(&self.message_expression))
    }
}

fn max_cost(program: &Option<Result<Program, RuleError>>) -> u64 {
    match program {
        Some(Ok(program)) => program.estimate().max,
        _ => 0,
    }
}

/// How rules at a node of a schema see its values; None if they cannot.
pub(crate) fn declared(schema: &Value, root: bool) -> Option<Arc<DeclType>> {
    let embedded = schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
    self_type(schema, "selfType", root || embedded)
}

/// How often values of a type fit in a request.
pub(crate) fn max_cardinality(decl: &DeclType) -> u64 {
    // At least a comma stands between two of them.
    limits::MAX_REQUEST_SIZE_BYTES / (decl.min_serialized_size() + 1)
}

/// The variables of a rule.
struct Environments {
    plain: Env,
    optional: Env,
}

impl Environments {
    fn new(decl: &Arc<DeclType>) -> Environments {
        let of = |old: Arc<DeclType>| {
            let builder = Env::builder().variable("self", decl.clone());
            builder.variable("oldSelf", old).build()
        };
        Environments {
            plain: of(decl.clone()),
            optional: of(Arc::new(DeclType::optional(decl))),
        }
    }
}

/// Compiles the rules of one node.
pub(crate) fn compile_rules(schema: &Structural, decl: &Arc<DeclType>) -> Box<[CompiledRule]> {
    let environments = Environments::new(decl);
    schema
        .rules()
        .iter()
        .map(|rule| compile_rule(schema, rule, &environments))
        .collect()
}

fn compile_rule(schema: &Structural, rule: &ValidationRule, environments: &Environments) -> CompiledRule {
    let optional_old_self = rule.optional_old_self == Some(true);
    let env = if optional_old_self {
        &environments.optional
    } else {
        &environments.plain
    };
    let program = (!rule.rule.trim().is_empty()).then(|| compile(env, &rule.rule, Type::Bool, &RULE));
    let compiled = matches!(program, Some(Ok(_)));
    let expression = (compiled && !rule.message_expression.is_empty())
        .then(|| compile(env, &rule.message_expression, Type::String, &MESSAGE));
    let path = (!rule.field_path.is_empty())
        .then(|| follow_path(&rule.field_path, schema))
        .flatten();
    let name = if rule.message.is_empty() {
        &rule.rule
    } else {
        &rule.message
    };
    CompiledRule {
        name: name.trim().into(),
        message: rule.message.trim().into(),
        reason: rule.reason.clone(),
        field_path: path.map(Box::from),
        optional_old_self,
        uses_old_self: program
            .as_ref()
            .is_some_and(|p| p.as_ref().is_ok_and(|p| p.uses("oldSelf"))),
        program,
        message_expression: expression,
    }
}

/// The words for what is wrong with an expression.
struct Words {
    compilation: &'static str,
    output: &'static str,
    instantiation: &'static str,
}

const RULE: Words = Words {
    compilation: "compilation failed: ",
    output: "cel expression must evaluate to a bool",
    instantiation: "program instantiation failed: ",
};

const MESSAGE: Words = Words {
    compilation: "messageExpression compilation failed: ",
    output: "messageExpression must evaluate to a string",
    instantiation: "messageExpression instantiation failed: ",
};

fn compile(env: &Env, text: &str, expected: Type, words: &Words) -> Result<Program, RuleError> {
    env.compile(text, &[expected]).map_err(|e| match e {
        CompileError::Issues(issues) => RuleError(format!("{}{issues}", words.compilation)),
        CompileError::Output { .. } => RuleError(words.output.to_string()),
        CompileError::Program(e) => RuleError(format!("{}{e}", words.instantiation)),
    })
}

impl RuleTree {
    /// Compiles all rules of a schema: as it is given, since types are declared by it, and as it was read. None if it has
    /// no rules. `root`: it is that of a resource.
    pub(crate) fn compile(given: &Value, schema: &Structural, root: bool) -> Option<RuleTree> {
        node(given, schema, root)
    }
}

fn node(given: &Value, schema: &Structural, root: bool) -> Option<RuleTree> {
    if !schema.has_rules {
        return None;
    }
    let below = |given: Option<&Value>, schema: Option<&Structural>| node(given?, schema?, false).map(Box::new);
    let decl = match schema.rules() {
        [] => None,
        _ => declared(given, root),
    };
    let properties = given.get("properties");
    let properties = schema.properties.iter().filter_map(|property| {
        let given = properties?.get(&*property.name)?;
        Some((property.name.clone(), node(given, &property.schema, false)?))
    });
    Some(RuleTree {
        ty: schema.ty,
        rules: decl
            .as_ref()
            .map(|decl| compile_rules(schema, decl))
            .unwrap_or_default(),
        decl,
        items: below(given.get("items"), schema.items.as_deref()),
        additional: below(given.get("additionalProperties"), schema.additional_schema()),
        properties: properties.collect(),
        keys: match schema.list_type() {
            Some(SchemaListType::Map) => schema.list_map_keys().into(),
            _ => Box::default(),
        },
    })
}
