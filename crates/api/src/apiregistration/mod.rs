//! The kinds of the apiregistration group: APIService, which says who serves a version of a group.
//!
//! Upstream: staging/src/k8s.io/kube-aggregator/pkg/{apis/apiregistration,registry/apiservice} (v1.36).

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource, drop_status};
use crate::printing::{age, text};
use crate::{fill, names, rules};

pub const GROUP: &str = "apiregistration.k8s.io";

pub const ALL: &[&KindDef] = &[&API_SERVICE];

pub const API_SERVICE: KindDef = KindDef {
    group: GROUP,
    kind: "APIService",
    plural: "apiservices",
    singular: "apiservice",
    categories: &["api-extensions"],
    namespaced: false,
    schema: "apiregistration/v1.APIService",
    subresources: &[Subresource::STATUS],
    columns: &[Column::string("Service"), Column::string("Available"), Column::AGE],
    cells,
    name_rule: names::path_segment,
    default: |service| {
        if let Some(reference) = service.pointer_mut("/spec/service") {
            fill::absent(reference, "port", 443);
        }
    },
    prepare_create,
    validate,
    validate_status,
    unconditional_update: false,
    ..KindDef::BASE
};

/// One that has no service behind it is served here, so it is available from the start.
fn prepare_create(service: &mut Value) {
    drop_status(service);
    if service.pointer("/spec/service").is_none() {
        let since = service
            .pointer("/metadata/creationTimestamp")
            .cloned()
            .unwrap_or_default();
        service["status"] = json!({"conditions": [{"type": "Available", "status": "True", "lastTransitionTime": since,
            "reason": "Local", "message": "Local APIServices are always available"}]});
    }
}

fn validate(service: &Cursor<'_>, p: &mut Problems) {
    let spec = service.at("spec");
    let (group, version) = (spec.at("group"), spec.at("version"));
    let (name, wanted) = (
        service.at("metadata").at("name"),
        format!("{}.{}", version.str(), group.str()),
    );
    if name.str() != wanted && names::path_segment(name.str()).is_empty() {
        p.invalid(&name, format!("must be `spec.version+\".\"+spec.group`: {wanted:?}"));
    }
    if group.is_empty() && version.str() != "v1" {
        p.required(&group, "only v1 may have an empty group and it better be legacy kube");
    }
    rules::optional(&group, names::dns_subdomain, p);
    rules::follows(&version, names::dns_1035_label, p);
    for (field, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let priority = spec.at(field).as_i64().unwrap_or(0);
        if priority <= 0 || priority > max {
            let detail = format!("must be positive and less than {max}");
            p.invalid_value(spec.at(field).path(), &priority.into(), detail);
        }
    }
    validate_reference(&spec, p);
}

fn validate_reference(spec: &Cursor<'_>, p: &mut Problems) {
    let (service, bundle, insecure) = (
        spec.at("service"),
        spec.at("caBundle"),
        spec.at("insecureSkipTLSVerify"),
    );
    if !service.exists() {
        if !bundle.is_empty() {
            let bytes = base64::prelude::BASE64_STANDARD
                .decode(bundle.str())
                .map_or(0, |b| b.len());
            let shown = Value::from(format!("{bytes} bytes"));
            p.invalid_value(bundle.path(), &shown, "local APIServices may not have a caBundle");
        }
        if insecure.is_true() {
            p.invalid(&insecure, "local APIServices may not have insecureSkipTLSVerify");
        }
        return;
    }
    for field in ["namespace", "name"] {
        if service.at(field).is_empty() {
            p.required(&service.at(field), "");
        }
    }
    let port = service.at("port");
    for message in names::port_number(port.as_i64().unwrap_or(0)) {
        p.invalid(&port, format!("port is not valid: {message}"));
    }
    if insecure.is_true() && !bundle.is_empty() {
        p.invalid(&insecure, "may not be true if caBundle is present");
    }
}

fn validate_status(new: &Cursor<'_>, _: &Cursor<'_>, p: &mut Problems) {
    for condition in new.at("status").at("conditions").items() {
        if !["True", "False", "Unknown"].contains(&condition.at("status").str()) {
            p.not_supported(&condition.at("status"), &["True", "False", "Unknown"]);
        }
    }
}

fn cells(service: &Value, now: Timestamp) -> Vec<Value> {
    let behind = match service.pointer("/spec/service") {
        Some(reference) => format!("{}/{}", text(reference, "/namespace"), text(reference, "/name")),
        None => "Local".to_string(),
    };
    let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions
        .into_iter()
        .flatten()
        .find(|c| text(c, "/type") == "Available");
    let available = match condition {
        None => "Unknown".to_string(),
        Some(c) => match (text(c, "/status"), text(c, "/reason")) {
            ("True", _) | (_, "") => text(c, "/status").to_string(),
            (status, reason) => format!("{status} ({reason})"),
        },
    };
    vec![behind.into(), available.into(), age(service, now)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, merged, refuses, row, status_problems};

    fn remote() -> Value {
        json!({"metadata": {"name": "v1.g.io"}, "spec": {"group": "g.io", "version": "v1",
            "groupPriorityMinimum": 100, "versionPriority": 10, "service": {"namespace": "a", "name": "b"}}})
    }

    #[test]
    fn services_are_checked() {
        let local = json!({"spec": {"service": null}});
        assert_eq!(defaulted(&API_SERVICE, remote())["spec"]["service"]["port"], 443);
        refuses(
            &API_SERVICE,
            &remote(),
            &[
                (
                    json!({"metadata": {"name": "x"}}),
                    r#"metadata.name: Invalid value: "x": must be `spec.version+"."+spec.group`: "v1.g.io""#,
                ),
                (
                    json!({"metadata": {"name": "v2."}, "spec": {"version": "v2", "group": null}}),
                    "spec.group: Required value: only v1 may have an empty group and it better be legacy kube",
                ),
                (
                    json!({"spec": {"groupPriorityMinimum": 20001}}),
                    "spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000",
                ),
                (
                    json!({"spec": {"versionPriority": null}}),
                    "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
                ),
                (
                    merged(&local, &json!({"spec": {"caBundle": "AAAA"}})),
                    r#"spec.caBundle: Invalid value: "3 bytes": local APIServices may not have a caBundle"#,
                ),
                (
                    merged(&local, &json!({"spec": {"insecureSkipTLSVerify": true}})),
                    "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
                ),
                (
                    json!({"spec": {"service": {"namespace": null}}}),
                    "spec.service.namespace: Required value",
                ),
                (
                    json!({"spec": {"service": {"name": null}}}),
                    "spec.service.name: Required value",
                ),
                (
                    json!({"spec": {"service": {"port": 70000}}}),
                    "spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive",
                ),
                (
                    json!({"spec": {"insecureSkipTLSVerify": true, "caBundle": "AAAA"}}),
                    "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
                ),
            ],
        );
    }

    #[test]
    fn availability() {
        let mut local = merged(&remote(), &json!({"spec": {"service": null}}));
        prepare_create(&mut local);
        assert_eq!(row(&API_SERVICE, &local), "Local|True|<unknown>");
        assert_eq!(row(&API_SERVICE, &remote()), "a/b|Unknown|<unknown>");
        let with = |status: &str| {
            let condition = json!([{"type": "Available", "status": status, "reason": "Gone"}]);
            merged(&remote(), &json!({"status": {"conditions": condition}}))
        };
        assert_eq!(row(&API_SERVICE, &with("False")), "a/b|False (Gone)|<unknown>");
        assert_eq!(
            status_problems(&API_SERVICE, with("Maybe"), remote()),
            [
                r#"status.conditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown""#
            ]
        );
    }
}
