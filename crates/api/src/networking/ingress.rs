//! Ingress.
//!
//! Upstream: pkg/apis/networking/validation, pkg/registry/networking/ingress (v1.36).
//! Differs from upstream: an ingress class annotation that contradicts `ingressClassName` is let through on creation too.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource, copy_member};
use crate::printing::age;
use crate::{ip, names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "Ingress",
    plural: "ingresses",
    singular: "ingress",
    short_names: &["ing"],
    schema: "networking/v1.Ingress",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Class"),
        Column::string("Hosts"),
        Column::string("Address"),
        Column::string("Ports"),
        Column::AGE,
    ],
    cells,
    // Labels and annotations may be written through status too.
    prepare_status: |new, old| copy_member(new, old, "spec"),
    validate: |ingress, p| validate_spec(&ingress.at("spec"), p),
    validate_status,
    warnings,
    generation: true,
    ..KindDef::BASE
};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

fn validate_spec(spec: &Cursor<'_>, p: &mut Problems) {
    let (backend, rule_list) = (spec.at("defaultBackend"), spec.at("rules"));
    if rule_list.is_empty() && !backend.exists() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        p.invalid_value(spec.path(), rule_list.value().unwrap_or(&Value::Null), detail);
    }
    if backend.exists() {
        validate_backend(&backend, p);
    }
    for rule in rule_list.items() {
        validate_rule(&rule, p);
    }
    for tls in spec.at("tls").items() {
        for host in tls.at("hosts").items() {
            validate_host(&host, p);
        }
        rules::optional(&tls.at("secretName"), names::dns_subdomain, p);
    }
    let class = spec.at("ingressClassName");
    if class.exists() {
        rules::follows(&class, names::dns_subdomain, p);
    }
}

fn validate_host(host: &Cursor<'_>, p: &mut Problems) {
    let rule = if host.str().contains('*') {
        wildcard_subdomain
    } else {
        names::dns_subdomain
    };
    rules::follows(host, rule, p);
}

fn wildcard_subdomain(host: &str) -> Vec<String> {
    let mut found = vec![];
    if host.len() > 253 {
        found.push("must be no more than 253 characters".to_string());
    }
    let well_formed = host
        .strip_prefix("*.")
        .is_some_and(|rest| names::dns_subdomain(rest).is_empty());
    if !well_formed {
        found.push(names::pattern_message(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["*.example.com"],
        ));
    }
    found
}

fn validate_rule(rule: &Cursor<'_>, p: &mut Problems) {
    let host = rule.at("host");
    if !host.is_empty() {
        if ip::parse(host.str()).is_some() {
            p.invalid(&host, "must be a DNS name, not an IP address");
        }
        validate_host(&host, p);
    }
    let http = rule.at("http");
    if !http.exists() {
        return;
    }
    if http.at("paths").is_empty() {
        p.required(&http.at("paths"), "");
    }
    for path in http.at("paths").items() {
        validate_path(&path, p);
    }
}

fn validate_path(path: &Cursor<'_>, p: &mut Problems) {
    let (kind, text) = (path.at("pathType"), rules::as_text(&path.at("path")));
    if !kind.exists() {
        return p.required(&kind, "pathType must be specified");
    }
    match kind.str() {
        "Exact" | "Prefix" => {
            if !text.str().starts_with('/') {
                p.invalid(&text, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.str().contains(part) {
                    p.invalid(&text, format!("must not contain '{part}'"));
                }
            }
            for end in ["/..", "/."] {
                if text.str().ends_with(end) {
                    p.invalid(&text, format!("cannot end with '{end}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.str().starts_with('/') {
                p.invalid(&text, "must be an absolute path");
            }
        }
        _ => p.not_supported(&kind, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    validate_backend(&path.at("backend"), p);
}

fn validate_backend(backend: &Cursor<'_>, p: &mut Problems) {
    let (resource, service) = (backend.at("resource"), backend.at("service"));
    let blank = Value::from("");
    match (resource.exists(), service.exists()) {
        (true, true) => p.invalid_value(backend.path(), &blank, "cannot set both resource and service backends"),
        (false, false) => p.invalid_value(backend.path(), &blank, "resource or service backend is required"),
        (true, false) => validate_reference(&resource, p),
        (false, true) => {
            rules::required(&service.at("name"), names::dns_label, p);
            let (name, number) = (service.at("port").at("name"), service.at("port").at("number"));
            match (name.is_empty(), number.is_empty()) {
                (false, false) => p.invalid_value(backend.path(), &blank, "cannot set both port name & port number"),
                (true, true) => p.required(backend, "port name or number is required"),
                (false, true) => p.invalid_each(&name, names::port_name(name.str())),
                (true, false) => p.invalid_each(&number, names::port_number(number.as_i64().unwrap_or(0))),
            }
        }
    }
}

/// A reference to an object of any kind: group, kind and name.
pub(super) fn validate_reference(reference: &Cursor<'_>, p: &mut Problems) {
    let group = reference.at("apiGroup");
    if group.exists() {
        rules::follows(&group, names::dns_subdomain, p);
    }
    rules::required(&reference.at("kind"), names::path_segment, p);
    rules::required(&reference.at("name"), names::path_segment, p);
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let balancer = |ingress: &Cursor<'_>| ingress.at("status").at("loadBalancer").at("ingress").value().cloned();
    if balancer(new) == balancer(old) {
        return;
    }
    for point in new.at("status").at("loadBalancer").at("ingress").items() {
        rules::optional(&point.at("ip"), rules::lenient_ip, p);
        let host = point.at("hostname");
        rules::optional(&host, names::dns_subdomain, p);
        if ip::parse(host.str()).is_some() {
            p.invalid(&host, "must be a DNS name, not an IP address");
        }
    }
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let points = new.at("status").at("loadBalancer").at("ingress");
    if let Some(old) = old
        && points.value() != old.at("status").at("loadBalancer").at("ingress").value()
    {
        // Upstream names the list's element, not its field.
        return points
            .items()
            .flat_map(|point| ip::ip_warnings(point.path(), point.at("ip").str()))
            .collect();
    }
    let annotated = new.at("metadata").at("annotations").has_key(CLASS_ANNOTATION);
    if old.is_some() || !annotated || new.at("spec").at("ingressClassName").exists() {
        return vec![];
    }
    vec![format!(
        "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
    )]
}

fn cells(ingress: &Value, now: Timestamp) -> Vec<Value> {
    let root = Cursor::root(ingress);
    let spec = root.at("spec");
    let points = root.at("status").at("loadBalancer").at("ingress").items();
    let addresses: BTreeSet<&str> = points
        .filter_map(|point| match (point.at("ip").str(), point.at("hostname").str()) {
            ("", "") => None,
            ("", host) => Some(host),
            (ip, _) => Some(ip),
        })
        .collect();
    let ports = if spec.at("tls").is_empty() { "80" } else { "80, 443" };
    vec![
        spec.at("ingressClassName").as_str().unwrap_or("<none>").into(),
        hosts(&spec.at("rules")).into(),
        addresses.into_iter().collect::<Vec<_>>().join(",").into(),
        ports.into(),
        age(ingress, now),
    ]
}

/// The first three hosts, and how many rules there are beyond three.
fn hosts(rule_list: &Cursor<'_>) -> String {
    let mut shown = vec![];
    let mut more = false;
    for rule in rule_list.items() {
        more |= shown.len() == 3;
        if !more && !rule.at("host").is_empty() {
            shown.push(rule.at("host").str());
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_string(),
        (false, false) => shown.join(","),
        (false, true) => format!("{} + {} more...", shown.join(","), rule_list.len() - 3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, merged, refuses, row, status_problems};
    use serde_json::json;

    fn backend() -> Value {
        json!({"service": {"name": "web", "port": {"number": 80}}})
    }

    fn ingress() -> Value {
        json!({"metadata": {"name": "i"}, "spec": {"rules": [{"host": "a.example.com",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend()}]}}]}})
    }

    fn with_backend(b: Value) -> Value {
        json!({"spec": {"rules": null, "defaultBackend": b}})
    }

    fn with_path(patch: Value) -> Value {
        let path = merged(&json!({"path": "/", "pathType": "Exact", "backend": backend()}), &patch);
        json!({"spec": {"rules": [{"http": {"paths": [path]}}]}})
    }

    #[test]
    fn backends_are_checked() {
        refuses(
            &DEF,
            &ingress(),
            &[
                (
                    json!({"spec": {"rules": null}}),
                    "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified",
                ),
                (
                    with_backend(json!({})),
                    r#"spec.defaultBackend: Invalid value: "": resource or service backend is required"#,
                ),
                (
                    with_backend(json!({"service": {"name": "a"}, "resource": {}})),
                    r#"spec.defaultBackend: Invalid value: "": cannot set both resource and service backends"#,
                ),
                (
                    with_backend(json!({"service": {"port": {"number": 1}}})),
                    "spec.defaultBackend.service.name: Required value",
                ),
                (
                    with_backend(json!({"service": {"name": "a"}})),
                    "spec.defaultBackend: Required value: port name or number is required",
                ),
                (
                    with_backend(json!({"service": {"name": "a", "port": {"name": "http", "number": 1}}})),
                    r#"spec.defaultBackend: Invalid value: "": cannot set both port name & port number"#,
                ),
                (
                    with_backend(json!({"service": {"name": "a", "port": {"number": 70000}}})),
                    "spec.defaultBackend.service.port.number: Invalid value: 70000: must be between 1 and 65535, inclusive",
                ),
                (
                    with_backend(json!({"service": {"name": "a", "port": {"name": "a--b"}}})),
                    r#"spec.defaultBackend.service.port.name: Invalid value: "a--b": must not contain consecutive hyphens"#,
                ),
                (
                    with_backend(json!({"resource": {"name": "a"}})),
                    "spec.defaultBackend.resource.kind: Required value",
                ),
                (
                    with_backend(json!({"resource": {"kind": "K", "name": "a/b"}})),
                    r#"spec.defaultBackend.resource.name: Invalid value: "a/b": may not contain '/'"#,
                ),
            ],
        );
        assert!(
            create_problems(
                &DEF,
                with_backend(json!({"service": {"name": "1a", "port": {"number": 1}}}))
            )
            .is_empty()
        );
    }

    #[test]
    fn paths_and_hosts_are_checked() {
        refuses(
            &DEF,
            &ingress(),
            &[
                (
                    json!({"spec": {"rules": [{"http": {}}]}}),
                    "spec.rules[0].http.paths: Required value",
                ),
                (
                    with_path(json!({"pathType": null})),
                    "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
                ),
                (
                    with_path(json!({"pathType": "Regex"})),
                    r#"spec.rules[0].http.paths[0].pathType: Unsupported value: "Regex": supported values: "Exact", "ImplementationSpecific", "Prefix""#,
                ),
                (
                    with_path(json!({"path": null})),
                    r#"spec.rules[0].http.paths[0].path: Invalid value: "": must be an absolute path"#,
                ),
                (
                    with_path(json!({"path": "/a//b"})),
                    r#"spec.rules[0].http.paths[0].path: Invalid value: "/a//b": must not contain '//'"#,
                ),
                (
                    with_path(json!({"path": "/a/.."})),
                    r#"spec.rules[0].http.paths[0].path: Invalid value: "/a/..": cannot end with '/..'"#,
                ),
                (
                    with_path(json!({"path": "a", "pathType": "ImplementationSpecific"})),
                    r#"spec.rules[0].http.paths[0].path: Invalid value: "a": must be an absolute path"#,
                ),
                (
                    json!({"spec": {"rules": [{"host": "10.0.0.1"}]}}),
                    r#"spec.rules[0].host: Invalid value: "10.0.0.1": must be a DNS name, not an IP address"#,
                ),
            ],
        );
        for (host, wanted) in [("*.example.com", 0), ("*", 1), ("a.*.com", 1), ("A.com", 1)] {
            let rules = json!({"spec": {"rules": [{"host": host}], "tls": [{"hosts": [host]}]}});
            assert_eq!(create_problems(&DEF, rules).len(), 2 * wanted, "{host}");
        }
    }

    #[test]
    fn status_may_carry_annotations() {
        let patch = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"rules": null},
            "status": {"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}}});
        let mut new = merged(&ingress(), &patch);
        (DEF.prepare_status)(&mut new, &ingress());
        assert_eq!(new["spec"], ingress()["spec"]);
        assert_eq!(new["metadata"]["annotations"]["a"], "b");
        let bad = |point: Value| {
            let new = merged(&ingress(), &json!({"status": {"loadBalancer": {"ingress": [point]}}}));
            status_problems(&DEF, new, ingress())
        };
        assert!(bad(json!({"ip": "169.1.1.1", "hostname": "a.com"})).is_empty());
        assert_eq!(
            bad(json!({"ip": "x"})),
            [
                r#"status.loadBalancer.ingress[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#
            ]
        );
        assert_eq!(
            bad(json!({"hostname": "1.2.3.4"})),
            [
                r#"status.loadBalancer.ingress[0].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#
            ]
        );
    }

    #[test]
    fn rows_and_warnings() {
        let rules: Vec<Value> = ["a.x", "b.x", "c.x", "d.x", "e.x"]
            .iter()
            .map(|h| json!({"host": h}))
            .collect();
        let full = json!({"spec": {"ingressClassName": "nginx", "rules": rules, "tls": [{}]},
            "status": {"loadBalancer": {"ingress": [{"hostname": "z"}, {"ip": "1.1.1.1", "hostname": "y"}]}}});
        assert_eq!(
            row(&DEF, &full),
            "nginx|a.x,b.x,c.x + 2 more...|1.1.1.1,z|80, 443|<unknown>"
        );
        assert_eq!(row(&DEF, &json!({"spec": {}})), "<none>|*||80|<unknown>");
        let old = json!({"metadata": {"annotations": {CLASS_ANNOTATION: "nginx"}}});
        assert_eq!(
            warnings(&Cursor::root(&old), None),
            [r#"annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead"#]
        );
    }
}
