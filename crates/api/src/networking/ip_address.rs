//! IPAddress: that an address of a service range is taken, and by whom. Its name is the address.
//!
//! Upstream: pkg/apis/networking/validation, pkg/registry/networking/ipaddress (v1.36).

use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::printing::text;
use crate::status::qualified;
use crate::{names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "IPAddress",
    plural: "ipaddresses",
    singular: "ipaddress",
    short_names: &["ip"],
    namespaced: false,
    schema: "networking/v1.IPAddress",
    columns: &[Column::string("ParentRef")],
    cells: |address, _| vec![parent(address).into()],
    name_rule: rules::strict_ip,
    validate,
    validate_update: |new, old, p| p.immutable(&new.at("spec").at("parentRef"), &old.at("spec").at("parentRef")),
    ..KindDef::BASE
};

fn validate(address: &Cursor<'_>, p: &mut Problems) {
    let parent = address.at("spec").at("parentRef");
    if !parent.exists() {
        return p.required(&parent, "");
    }
    rules::optional(&parent.at("group"), names::dns_subdomain, p);
    rules::required(&parent.at("resource"), names::path_segment, p);
    rules::required(&parent.at("name"), names::path_segment, p);
    rules::optional(&parent.at("namespace"), names::path_segment, p);
}

fn parent(address: &Value) -> String {
    let Some(parent) = address.pointer("/spec/parentRef") else {
        return "<none>".to_string();
    };
    let resource = qualified(text(parent, "/group"), text(parent, "/resource")).to_lowercase();
    let name = text(parent, "/name");
    match text(parent, "/namespace") {
        "" => format!("{resource}/{name}"),
        namespace => format!("{resource}/{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row};
    use serde_json::json;

    #[test]
    fn addresses_have_a_parent() {
        let base = json!({"spec": {"parentRef": {"resource": "services", "namespace": "a", "name": "web"}}});
        refuses(
            &DEF,
            &base,
            &[
                (json!({"spec": {"parentRef": null}}), "spec.parentRef: Required value"),
                (
                    json!({"spec": {"parentRef": {"resource": null}}}),
                    "spec.parentRef.resource: Required value",
                ),
                (
                    json!({"spec": {"parentRef": {"name": null}}}),
                    "spec.parentRef.name: Required value",
                ),
                (
                    json!({"spec": {"parentRef": {"namespace": "a/b"}}}),
                    r#"spec.parentRef.namespace: Invalid value: "a/b": may not contain '/'"#,
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[(
                json!({"spec": {"parentRef": {"name": "b"}}}),
                r#"spec.parentRef: Invalid value: {"name":"b","namespace":"a","resource":"services"}: field is immutable"#,
            )],
        );
        assert_eq!(row(&DEF, &base), "services/a/web");
        assert!((DEF.name_rule)("fe80::42:1dff:fe84:f9e2").is_empty());
        assert!(!(DEF.name_rule)("a").is_empty());
    }
}
