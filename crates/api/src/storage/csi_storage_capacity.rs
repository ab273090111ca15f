//! CSIStorageCapacity: how much room a CSI driver has where.
//!
//! Upstream: pkg/apis/storage/validation, pkg/registry/storage/csistoragecapacity (v1.36).

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::node::deprecated_label;
use crate::printing::text;
use crate::{meta, names, rules};

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "CSIStorageCapacity",
    plural: "csistoragecapacities",
    singular: "csistoragecapacity",
    schema: "storage/v1.CSIStorageCapacity",
    columns: &[Column::CREATED_AT],
    cells: |c, _| vec![text(c, "/metadata/creationTimestamp").into()],
    validate,
    validate_update,
    warnings,
    unconditional_update: false,
    ..KindDef::BASE
};

fn validate(capacity: &Cursor<'_>, p: &mut Problems) {
    meta::validate_label_selector(&capacity.at("nodeTopology"), p);
    rules::follows(&capacity.at("storageClassName"), names::dns_subdomain, p);
    let amount = capacity.at("capacity");
    // Quantities are in canonical form here, so the sign is all there is to see.
    if amount.str().starts_with('-') {
        p.invalid(&amount, "must be greater than or equal to 0");
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    p.immutable(&new.at("nodeTopology"), &old.at("nodeTopology"));
    p.immutable(&new.at("storageClassName"), &old.at("storageClassName"));
}

fn warnings(capacity: &Cursor<'_>, _: Option<&Cursor<'_>>) -> Vec<String> {
    let topology = capacity.at("nodeTopology");
    let expressions = topology.at("matchExpressions").items().filter_map(|e| {
        let key = e.at("key");
        deprecated_label(key.str()).map(|advice| format!("{}: {} is {advice}", key.path(), key.str()))
    });
    let labels = topology.at("matchLabels");
    let labels = labels
        .entries()
        .filter_map(|(key, _)| deprecated_label(key).map(|advice| format!("nodeTopology.matchLabels.{key}: {advice}")));
    expressions.chain(labels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, refuses, refuses_update, row};
    use serde_json::json;

    #[test]
    fn capacities_are_checked() {
        let base = json!({"storageClassName": "fast", "capacity": "10Gi"});
        refuses(
            &DEF,
            &base,
            &[(
                json!({"capacity": "-1"}),
                r#"capacity: Invalid value: "-1": must be greater than or equal to 0"#,
            )],
        );
        let nameless = create_problems(&DEF, json!({}));
        assert!(
            nameless[0].starts_with(r#"storageClassName: Invalid value: "": a lowercase RFC 1123 subdomain"#),
            "{nameless:?}"
        );
        refuses_update(
            &DEF,
            &base,
            &[
                (
                    json!({"storageClassName": "slow"}),
                    r#"storageClassName: Invalid value: "slow": field is immutable"#,
                ),
                (
                    json!({"nodeTopology": {"matchLabels": {"a": "b"}}}),
                    r#"nodeTopology: Invalid value: {"matchLabels":{"a":"b"}}: field is immutable"#,
                ),
            ],
        );
        assert_eq!(row(&DEF, &json!({"metadata": {"creationTimestamp": "now"}})), "now");
    }

    #[test]
    fn old_labels_are_warned_of() {
        let old = json!({"nodeTopology": {"matchLabels": {"beta.kubernetes.io/os": "linux"},
            "matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}]}});
        assert_eq!(
            warnings(&Cursor::root(&old), None),
            [
                r#"nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use "kubernetes.io/arch" instead"#,
                r#"nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use "kubernetes.io/os" instead"#,
            ]
        );
    }
}
