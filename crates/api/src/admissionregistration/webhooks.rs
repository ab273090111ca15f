//! ValidatingWebhookConfiguration and MutatingWebhookConfiguration.

use std::collections::BTreeSet;

use serde_json::Value;

use super::matching;
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::age;
use crate::{fill, meta, names, rules};

pub const VALIDATING: KindDef = KindDef {
    kind: "ValidatingWebhookConfiguration",
    plural: "validatingwebhookconfigurations",
    singular: "validatingwebhookconfiguration",
    schema: "admissionregistration/v1.ValidatingWebhookConfiguration",
    columns: &[Column::integer("Webhooks"), Column::AGE],
    cells: |object, now| vec![Cursor::root(object).at("webhooks").len().into(), age(object, now)],
    default: |object| default(object, false),
    validate,
    ..super::BASE
};

pub const MUTATING: KindDef = KindDef {
    kind: "MutatingWebhookConfiguration",
    plural: "mutatingwebhookconfigurations",
    singular: "mutatingwebhookconfiguration",
    schema: "admissionregistration/v1.MutatingWebhookConfiguration",
    default: |object| default(object, true),
    ..VALIDATING
};

fn default(object: &mut Value, mutating: bool) {
    for hook in fill::items(object, "webhooks") {
        fill::absent(hook, "failurePolicy", "Fail");
        matching::default_selectors(hook);
        fill::absent(hook, "timeoutSeconds", 10);
        if mutating {
            fill::absent(hook, "reinvocationPolicy", "Never");
        }
        matching::default_rules(hook, "rules");
        if let Some(service) = hook.pointer_mut("/clientConfig/service") {
            fill::absent(service, "port", 443);
        }
    }
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for hook in object.at("webhooks").items() {
        validate_hook(&hook, p);
        validate_review_versions(&hook.at("admissionReviewVersions"), p);
        let name = hook.at("name");
        if !name.is_empty() && !seen.insert(name.str()) {
            p.duplicate(&name);
        }
    }
}

fn validate_hook(hook: &Cursor<'_>, p: &mut Problems) {
    let name = hook.at("name");
    let complaints = names::dns_subdomain(name.str());
    if name.is_empty() {
        p.required(&name, "");
    } else if !complaints.is_empty() {
        p.invalid(&name, complaints.join(","));
    } else if name.str().split('.').count() < 3 {
        p.invalid(
            &name,
            "should be a domain with at least three segments separated by dots",
        );
    }
    for rule in hook.at("rules").items() {
        matching::validate_rule(&rule, p);
    }
    p.one_of(&hook.at("failurePolicy"), false, &["Fail", "Ignore"]);
    p.one_of(&hook.at("matchPolicy"), false, &["Equivalent", "Exact"]);
    let effects = hook.at("sideEffects");
    match effects.exists() {
        true => p.one_of(&effects, true, &["None", "NoneOnDryRun"]),
        false => p.required(&effects, "must specify one of None, NoneOnDryRun"),
    }
    let timeout = hook.at("timeoutSeconds");
    if timeout.as_i64().is_some_and(|t| !(1..=30).contains(&t)) {
        p.invalid(&timeout, "the timeout value must be between 1 and 30 seconds");
    }
    meta::validate_label_selector(&hook.at("namespaceSelector"), p);
    meta::validate_label_selector(&hook.at("objectSelector"), p);
    p.one_of(&hook.at("reinvocationPolicy"), false, &["IfNeeded", "Never"]);
    validate_client(&hook.at("clientConfig"), p);
    matching::validate_conditions(&hook.at("matchConditions"), p);
}

/// Where a webhook is reached: a URL or a service.
pub fn validate_client(client: &Cursor<'_>, p: &mut Problems) {
    let (url, service) = (client.at("url"), client.at("service"));
    match (url.exists(), service.exists()) {
        (true, false) => validate_url(&url, p),
        (false, true) => validate_service(&service, p),
        _ => p.required(client, "exactly one of url or service is required"),
    }
}

/// `https://host[/path]`, with nothing else in it.
fn validate_url(url: &Cursor<'_>, p: &mut Problems) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (path, text) = (url.path(), url.str());
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None => text.split_once(':').map_or(("", ""), |(scheme, _)| (scheme, "")),
    };
    let authority = rest.split('/').next().unwrap_or("");
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if scheme != "https" {
        p.invalid_value(
            path,
            &scheme.into(),
            format!("'https' is the only allowed URL scheme{FORM}"),
        );
    }
    if host.is_empty() {
        p.invalid_value(path, &"".into(), format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        p.invalid_value(path, &user.into(), "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        p.invalid_value(path, &fragment.into(), "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        p.invalid_value(path, &query.into(), "query parameters are not permitted in the URL");
    }
}

fn validate_service(service: &Cursor<'_>, p: &mut Problems) {
    for field in ["name", "namespace"] {
        if service.at(field).is_empty() {
            p.required(&service.at(field), "");
        }
    }
    let port = service.at("port");
    for message in names::port_number(port.as_i64().unwrap_or(443)) {
        p.invalid(&port, format!("port is not valid: {message}"));
    }
    validate_service_path(&service.at("path"), p);
}

fn validate_service_path(path: &Cursor<'_>, p: &mut Problems) {
    match path.str() {
        "" | "/" => return,
        "//" => return p.invalid(path, "segment[0] may not be empty"),
        other if !other.starts_with('/') => p.invalid(path, "must start with a '/'"),
        _ => {}
    }
    let inner = path.str().get(1..).unwrap_or("");
    for (i, step) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if step.is_empty() {
            p.invalid(path, format!("segment[{i}] may not be empty"));
            continue;
        }
        for message in names::dns_subdomain(step) {
            p.invalid(path, format!("segment[{i}]: {message}"));
        }
    }
}

fn validate_review_versions(versions: &Cursor<'_>, p: &mut Problems) {
    if versions.is_empty() {
        return p.required(versions, "must specify one of v1, v1beta1");
    }
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if seen.insert(version.str()) {
            rules::follows(&version, names::dns_1035_label, p);
        } else {
            p.invalid(&version, "duplicate version");
        }
    }
    if !seen.contains("v1") && !seen.contains("v1beta1") {
        p.invalid(versions, "must include at least one of v1, v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, merged, refuses, row};
    use serde_json::json;

    fn with(patch: Value) -> Value {
        let hook = json!({"name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://example.com/path"},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]});
        json!({"webhooks": [merged(&hook, &patch)]})
    }

    #[test]
    fn defaults() {
        let service = json!({"clientConfig": {"url": null, "service": {"name": "a", "namespace": "b"}}});
        let filled = defaulted(&MUTATING, with(service));
        let hook = &filled["webhooks"][0];
        for (pointer, wanted) in [
            ("/failurePolicy", json!("Fail")),
            ("/matchPolicy", json!("Equivalent")),
            ("/namespaceSelector", json!({})),
            ("/objectSelector", json!({})),
            ("/timeoutSeconds", json!(10)),
            ("/reinvocationPolicy", json!("Never")),
            ("/rules/0/scope", json!("*")),
            ("/clientConfig/service/port", json!(443)),
        ] {
            assert_eq!(hook.pointer(pointer), Some(&wanted), "{pointer}");
        }
        let validating = defaulted(&VALIDATING, with(json!({})));
        assert!(validating["webhooks"][0].get("reinvocationPolicy").is_none());
        assert_eq!(row(&VALIDATING, &validating), "1|<unknown>");
    }

    #[test]
    fn hooks_are_checked() {
        let url = |u: &str| with(json!({"clientConfig": {"url": u}}));
        let service = |s: Value| {
            let base = json!({"name": "a", "namespace": "b"});
            with(json!({"clientConfig": {"url": null, "service": merged(&base, &s)}}))
        };
        let cases = [
            (with(json!({"name": null})), "webhooks[0].name: Required value"),
            (
                with(json!({"name": "a.b"})),
                r#"webhooks[0].name: Invalid value: "a.b": should be a domain with at least three segments separated by dots"#,
            ),
            (
                with(json!({"failurePolicy": "Retry"})),
                r#"webhooks[0].failurePolicy: Unsupported value: "Retry": supported values: "Fail", "Ignore""#,
            ),
            (
                with(json!({"matchPolicy": "Some"})),
                r#"webhooks[0].matchPolicy: Unsupported value: "Some": supported values: "Equivalent", "Exact""#,
            ),
            (
                with(json!({"sideEffects": null})),
                "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
            ),
            (
                with(json!({"sideEffects": "Some"})),
                r#"webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun""#,
            ),
            (
                with(json!({"timeoutSeconds": 31})),
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
            (
                with(json!({"clientConfig": null})),
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ),
            (
                url("http://a"),
                r#"webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#,
            ),
            (
                url("https:///x"),
                r#"webhooks[0].clientConfig.url: Invalid value: "": host must be specified; desired format: https://host[/path]"#,
            ),
            (
                url("https://u:p@a"),
                r#"webhooks[0].clientConfig.url: Invalid value: "u:p": user information is not permitted in the URL"#,
            ),
            (
                url("https://a/b?c=d"),
                r#"webhooks[0].clientConfig.url: Invalid value: "c=d": query parameters are not permitted in the URL"#,
            ),
            (
                url("https://a#f"),
                r#"webhooks[0].clientConfig.url: Invalid value: "f": fragments are not permitted in the URL"#,
            ),
            (
                service(json!({"name": null})),
                "webhooks[0].clientConfig.service.name: Required value",
            ),
            (
                service(json!({"port": 65536})),
                "webhooks[0].clientConfig.service.port: Invalid value: 65536: port is not valid: must be between 1 and 65535, inclusive",
            ),
            (
                service(json!({"path": "/a//b"})),
                r#"webhooks[0].clientConfig.service.path: Invalid value: "/a//b": segment[1] may not be empty"#,
            ),
            (
                with(json!({"admissionReviewVersions": null})),
                "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
            ),
            (
                with(json!({"admissionReviewVersions": ["v1", "v1"]})),
                r#"webhooks[0].admissionReviewVersions[1]: Invalid value: "v1": duplicate version"#,
            ),
            (
                with(json!({"admissionReviewVersions": ["v3"]})),
                r#"webhooks[0].admissionReviewVersions: Invalid value: ["v3"]: must include at least one of v1, v1beta1"#,
            ),
        ];
        refuses(&VALIDATING, &with(json!({})), &cases);
        refuses(&MUTATING, &with(json!({})), &cases);
        refuses(
            &MUTATING,
            &with(json!({})),
            &[(
                with(json!({"reinvocationPolicy": "Twice"})),
                r#"webhooks[0].reinvocationPolicy: Unsupported value: "Twice": supported values: "IfNeeded", "Never""#,
            )],
        );
        let hook = &with(json!({}))["webhooks"][0];
        refuses(
            &VALIDATING,
            &with(json!({})),
            &[(
                json!({"webhooks": [hook, hook]}),
                r#"webhooks[1].name: Duplicate value: "a.example.com""#,
            )],
        );
    }
}
