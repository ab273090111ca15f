//! ResourceClaimTemplate: claims made for pods are made from these.

use super::claim_spec;
use crate::field::Cursor;
use crate::kind::KindDef;
use crate::meta;

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "ResourceClaimTemplate",
    plural: "resourceclaimtemplates",
    singular: "resourceclaimtemplate",
    schema: "resource/v1.ResourceClaimTemplate",
    default: |template| {
        if let Some(spec) = template.pointer_mut("/spec/spec") {
            claim_spec::default(spec);
        }
    },
    validate: |template, p| {
        meta::validate_template(&template.at("spec").at("metadata"), p);
        claim_spec::validate(&template.at("spec").at("spec"), p);
    },
    validate_update: |new, old, p| {
        let spec = |template: &Cursor<'_>| template.at("spec").value().cloned();
        if spec(new) != spec(old) {
            p.invalid(&new.at("spec"), "field is immutable");
        }
    },
    ..KindDef::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses, refuses_update};
    use serde_json::json;

    #[test]
    fn templates_are_checked_as_claims_are() {
        let base =
            json!({"spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}});
        assert_eq!(
            defaulted(&DEF, base.clone())["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"],
            1
        );
        let broken = json!({"spec": {"spec": {"devices": {"requests": [{"name": "r"}]}}}});
        refuses(
            &DEF,
            &base,
            &[(
                broken,
                "spec.spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
            )],
        );
        refuses_update(
            &DEF,
            &base,
            &[(
                json!({"spec": {"spec": {"devices": {"requests": null}}}}),
                r#"spec: Invalid value: {"metadata":{},"spec":{"devices":{"requests":null}}}: field is immutable"#,
            )],
        );
    }
}
