//! Type checking of validating policies against the kinds that they name: what does not fit is told in the policy's status,
//! and changes nothing of what the policy does.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/validating/typechecking.go (v1.36), run by kube-controller-manager;
//! here by the API server itself, which has the schemas.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_api::admissionregistration::expressions::Role;
use orlop_api::schema::{Field as SchemaField, ListType as SchemaList, Ty, TypeRef, schema};
use orlop_api::{KindDef, Value};
use orlop_cel::{DeclType, Field, ListType, ObjectType, Type, escape};
use serde_json::json;

use super::super::cel::Compiler;
use crate::custom::{self, Kinds};
use crate::lookup::{items, strings, text};

/// Of one rule of a policy.
const TYPES_MAX: usize = 10;

/// The status of a policy that was looked at.
pub(crate) fn status(policy: &Value, kinds: &Kinds) -> Value {
    let warnings = warnings(policy, kinds);
    let checking = if warnings.is_empty() {
        json!({})
    } else {
        json!({"expressionWarnings": warnings})
    };
    let mut status = policy
        .get("status")
        .filter(|s| s.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    status["observedGeneration"] = policy["metadata"]["generation"].clone();
    status["typeChecking"] = checking;
    status
}

/// Whether a policy has changed since it was looked at.
pub(crate) fn is_due(policy: &Value) -> bool {
    let number = |pointer: &str| policy.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    number("/metadata/generation") > number("/status/observedGeneration")
}

fn warnings(policy: &Value, kinds: &Kinds) -> Vec<Value> {
    let spec = &policy["spec"];
    let param_kind = spec.get("paramKind").filter(|kind| kind.is_object());
    let params = param_kind.and_then(|kind| kinds.of_kind(text(kind, &["apiVersion"]), text(kind, &["kind"])));
    let params = params.and_then(declared_kind);
    let checks: Vec<(String, Compiler)> = kinds_to_check(spec, kinds)
        .into_iter()
        .filter_map(|kind| {
            let name = format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind);
            let mut compiler = Compiler::checking(declared_kind(kind)?, params.clone());
            for variable in items(spec, &["variables"]) {
                let text_of = |name| text(variable, &[name]);
                let compiled = compiler.compile(text_of("expression"), Role::Variable, param_kind.is_some());
                let ty = compiled.map_or(Type::Dyn, |program| program.output_type().clone());
                compiler.declare(text_of("name"), ty);
            }
            Some((name, compiler))
        })
        .collect();
    let mut found = vec![];
    for (index, validation) in items(spec, &["validations"]).iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let expression = text(validation, &[field]);
            if expression.is_empty() {
                continue;
            }
            let problems = checks.iter().filter_map(|(kind, compiler)| {
                let compiled = compiler.compile(expression, Role::Variable, param_kind.is_some());
                compiled.err().map(|why| format!("{kind}: {why}\n"))
            });
            let problems: Vec<String> = problems.collect();
            if !problems.is_empty() {
                let field_ref = format!("spec.validations[{index}].{field}");
                found.push(json!({"fieldRef": field_ref, "warning": problems.join("\n")}));
            }
        }
    }
    found
}

/// The kinds that the rules name, without wildcards and subresources.
fn kinds_to_check(spec: &Value, kinds: &Kinds) -> Vec<&'static KindDef> {
    let mut found: BTreeMap<(&str, &str, &str), &'static KindDef> = BTreeMap::new();
    for rule in items(spec, &["matchConstraints", "resourceRules"]) {
        let words = |name: &str| -> Vec<String> {
            let mut words = strings(rule.get(name));
            if words.iter().any(|word| word == "*") {
                return vec![];
            }
            words.retain(|word| !word.contains('/'));
            words.sort();
            words
        };
        let (groups, versions, resources) = (words("apiGroups"), words("apiVersions"), words("resources"));
        let mut of_rule = 0;
        for group in &groups {
            for version in &versions {
                for resource in &resources {
                    let Some(kind) = kinds.of_resource(group, version, resource) else {
                        continue;
                    };
                    found.insert((kind.group, kind.version, kind.kind), kind);
                    of_rule += 1;
                    if of_rule == TYPES_MAX {
                        return found.into_values().collect();
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

/// The type of a kind's objects.
fn declared_kind(kind: &'static KindDef) -> Option<DeclType> {
    let Some(served) = custom::of(kind) else {
        return schema()
            .get(kind.schema)
            .map(|ty| declared_struct(ty, kind.kind.to_string()));
    };
    let definition = served.facts.definition();
    let versions = items(&definition, &["spec", "versions"]);
    let version = versions
        .iter()
        .find(|version| text(version, &["name"]) == kind.version)?;
    orlop_cel::declare(version.pointer("/schema/openAPIV3Schema")?, kind.kind, true)
}

/// A struct of the schema table. Its fields are looked at when an expression does, since types contain themselves.
fn declared_struct(ty: TypeRef, name: String) -> DeclType {
    let prefix = name.clone();
    let fields = move || {
        let fields = schema().ty(ty).fields.iter();
        let declared =
            fields.filter_map(|field| Some((escape(field.name)?.into_owned(), declared_field(field, &prefix))));
        declared.collect::<Vec<_>>()
    };
    DeclType::object(Arc::new(ObjectType::lazy(name, fields)))
}

fn declared_field(field: &'static SchemaField, parent: &str) -> Field {
    let list = match &field.list {
        SchemaList::Atomic => ListType::Atomic,
        SchemaList::Set => ListType::Set,
        SchemaList::Map(keys) => ListType::Map(keys.iter().map(ToString::to_string).collect()),
    };
    let decl = declared(&field.ty, list, format!("{parent}.{}", field.name));
    Field {
        name: field.name.to_string(),
        decl: Arc::new(decl),
    }
}

fn declared(ty: &Ty, list: ListType, name: String) -> DeclType {
    let simple = match ty {
        Ty::String | Ty::Quantity | Ty::Duration => Type::String,
        Ty::Bytes => Type::Bytes,
        Ty::Bool => Type::Bool,
        Ty::Int32 | Ty::Int64 => Type::Int,
        Ty::Float64 => Type::Double,
        Ty::Time | Ty::MicroTime => Type::Timestamp,
        Ty::IntOrString | Ty::Any | Ty::SchemaOrBool(_) | Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => Type::Dyn,
        Ty::Struct(r) => return declared_struct(*r, name),
        Ty::List(item) | Ty::Items(item) => {
            let items = declared(item, ListType::Atomic, format!("{name}.@idx"));
            return DeclType::list(Arc::new(items), list, None);
        }
        Ty::Map(value) => {
            let values = declared(value, ListType::Atomic, format!("{name}.@elem"));
            return DeclType::map(Arc::new(values), None);
        }
    };
    DeclType::simple(simple)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(validations: Value) -> Value {
        json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}, "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments", "replicasets"]},
                {"apiGroups": ["*"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
            "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
            "validations": validations}})
    }

    #[test]
    fn expressions_are_checked_by_the_kinds_they_are_for() {
        let kinds = Kinds::default();
        let good = policy(json!([
            {"expression": "variables.replicas > 1", "messageExpression": "object.metadata.name"},
            {"expression": "object.spec.template.spec.containers.all(c, c.image.startsWith('x'))"},
            {"expression": "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')"}]));
        assert!(is_due(&good));
        let checked = status(&good, &kinds);
        assert_eq!(checked, json!({"observedGeneration": 2, "typeChecking": {}}));
        let bad = policy(
            json!([{"expression": "object.spec.replicas > '1'", "messageExpression": "object.spec.wrong"},
            {"expression": "object.spec.strategy.type == 'Recreate'"}]),
        );
        let checked = status(&bad, &kinds);
        let warnings = items(&checked, &["typeChecking", "expressionWarnings"]);
        let fields: Vec<&str> = warnings.iter().map(|w| text(w, &["fieldRef"])).collect();
        assert_eq!(
            fields,
            [
                "spec.validations[0].expression",
                "spec.validations[0].messageExpression",
                "spec.validations[1].expression"
            ]
        );
        let warning = text(&warnings[0], &["warning"]);
        assert!(
            warning.starts_with(
                "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'"
            ) && warning.contains("\n\napps/v1, Kind=ReplicaSet: "),
            "{warning}"
        );
        assert!(text(&warnings[1], &["warning"]).contains("undefined field 'wrong'"));
        assert!(
            text(&warnings[2], &["warning"]).starts_with("apps/v1, Kind=ReplicaSet: "),
            "Deployments have a strategy"
        );
    }
}
