//! IngressClass: which controller serves an ingress, and with what parameters.
//!
//! Upstream: pkg/apis/networking/{v1/defaults.go,validation}, pkg/registry/networking/ingressclass (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use super::ingress::validate_reference;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::{age, text};
use crate::{fill, meta, names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "IngressClass",
    plural: "ingressclasses",
    singular: "ingressclass",
    namespaced: false,
    schema: "networking/v1.IngressClass",
    columns: &[
        Column::string("Name"),
        Column::string("Controller"),
        Column::string("Parameters"),
        Column::AGE,
    ],
    cells,
    default,
    validate,
    validate_update: |new, old, p| {
        let controller = |class: &Cursor<'_>| class.at("spec").at("controller").str().to_string();
        if controller(new) != controller(old) {
            p.invalid(&rules::as_text(&new.at("spec").at("controller")), "field is immutable");
        }
    },
    generation: true,
    ..KindDef::BASE
};

fn default(class: &mut Value) {
    if let Some(parameters) = class.pointer_mut("/spec/parameters") {
        fill::absent(parameters, "scope", "Cluster");
    }
}

fn validate(class: &Cursor<'_>, p: &mut Problems) {
    const CONTROLLER_BYTES_MAX: usize = 250;
    let controller = class.at("spec").at("controller");
    if controller.len() > CONTROLLER_BYTES_MAX {
        p.too_long(&controller, CONTROLLER_BYTES_MAX);
    }
    validate_domain_path(&controller, p);
    let parameters = class.at("spec").at("parameters");
    if parameters.exists() {
        validate_reference(&parameters, p);
        validate_scope(&parameters, p);
    }
}

fn validate_scope(parameters: &Cursor<'_>, p: &mut Problems) {
    let (scope, namespace) = (parameters.at("scope"), parameters.at("namespace"));
    match (scope.str(), namespace.exists()) {
        ("Namespace", true) => rules::follows(&namespace, names::dns_label, p),
        ("Namespace", false) => p.required(&namespace, "`parameters.scope` is set to 'Namespace'"),
        ("Cluster", true) => p.forbidden(&namespace, "`parameters.scope` is set to 'Cluster'"),
        ("Cluster", false) => {}
        _ => p.not_supported(&scope, &["Cluster", "Namespace"]),
    }
}

/// `example.com/some/path`.
fn validate_domain_path(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    let (domain, path) = match c.str().split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => (domain, path),
        _ => return p.invalid(c, r#"must be a domain-prefixed path (such as "acme.io/foo")"#),
    };
    for message in names::dns_subdomain(domain) {
        p.invalid_value(c.path(), &domain.into(), message);
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(allowed) {
        let detail = names::pattern_message("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
        p.invalid_value(c.path(), &path.into(), detail);
    }
}

fn cells(class: &Value, now: Timestamp) -> Vec<Value> {
    let parameters = match class.pointer("/spec/parameters") {
        None => "<none>".to_string(),
        Some(of) => {
            let group = of.get("apiGroup").and_then(Value::as_str);
            let group = group.map(|g| format!(".{g}")).unwrap_or_default();
            format!("{}{group}/{}", text(of, "/kind"), text(of, "/name"))
        }
    };
    let annotation = "ingressclass.kubernetes.io/is-default-class";
    let is_default = meta::annotation(&Cursor::root(class), annotation) == Some("true");
    let mark = if is_default { " (default)" } else { "" };
    vec![
        format!("{}{mark}", text(class, "/metadata/name")).into(),
        text(class, "/spec/controller").into(),
        parameters.into(),
        age(class, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, refuses_update, row};
    use serde_json::json;

    #[test]
    fn classes_are_checked() {
        let base = json!({"spec": {"controller": "example.com/c", "parameters": {"apiGroup": "g.io", "kind": "K", "name": "n"}}});
        assert_eq!(defaulted(&DEF, base.clone())["spec"]["parameters"]["scope"], "Cluster");
        assert_eq!(row(&DEF, &base), "|example.com/c|K.g.io/n|<unknown>");
        let marked =
            json!({"metadata": {"name": "c", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}});
        assert_eq!(row(&DEF, &marked), "c (default)||<none>|<unknown>");
        refuses(
            &DEF,
            &base,
            &[
                (json!({"spec": {"controller": null}}), "spec.controller: Required value"),
                (
                    json!({"spec": {"controller": "c"}}),
                    r#"spec.controller: Invalid value: "c": must be a domain-prefixed path (such as "acme.io/foo")"#,
                ),
                (
                    json!({"spec": {"controller": "a.b/ c"}}),
                    r#"spec.controller: Invalid value: " c": Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')"#,
                ),
                (
                    json!({"spec": {"controller": format!("a/{}", "b".repeat(249))}}),
                    "spec.controller: Too long: may not be more than 250 bytes",
                ),
                (
                    json!({"spec": {"parameters": {"name": null}}}),
                    "spec.parameters.name: Required value",
                ),
                (
                    json!({"spec": {"parameters": {"scope": "Node"}}}),
                    r#"spec.parameters.scope: Unsupported value: "Node": supported values: "Cluster", "Namespace""#,
                ),
                (
                    json!({"spec": {"parameters": {"scope": "Namespace"}}}),
                    "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
                ),
                (
                    json!({"spec": {"parameters": {"namespace": "a"}}}),
                    "spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'",
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[(
                json!({"spec": {"controller": "a.b/d"}}),
                r#"spec.controller: Invalid value: "a.b/d": field is immutable"#,
            )],
        );
    }
}
