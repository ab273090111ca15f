//! ServiceCIDR: a range of addresses for services.
//!
//! Upstream: pkg/apis/networking/validation, pkg/registry/networking/servicecidr (v1.36).

use ipnet::IpNet;
use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, Subresource};
use crate::printing::age;
use crate::rules;

pub const DEF: KindDef = KindDef {
    group: super::GROUP,
    kind: "ServiceCIDR",
    plural: "servicecidrs",
    singular: "servicecidr",
    namespaced: false,
    schema: "networking/v1.ServiceCIDR",
    subresources: &[Subresource::STATUS],
    columns: &[Column::string("CIDRs"), Column::AGE],
    cells: |range, now| {
        let cidrs: Vec<&str> = Cursor::root(range)
            .at("spec")
            .at("cidrs")
            .items()
            .map(|c| c.str())
            .collect();
        vec![cidrs.join(",").into(), age(range, now)]
    },
    validate: |range, p| validate(&range.at("spec"), p),
    validate_update,
    ..KindDef::BASE
};

fn validate(spec: &Cursor<'_>, p: &mut Problems) {
    let cidrs = spec.at("cidrs");
    if cidrs.is_empty() {
        return p.required(&cidrs, "at least one CIDR required");
    }
    if cidrs.len() > 2 {
        let whole = spec.value().unwrap_or(&Value::Null);
        return p.invalid_value(cidrs.path(), whole, "may only hold up to 2 values");
    }
    for cidr in cidrs.items() {
        rules::follows(&cidr, rules::strict_cidr, p);
    }
    let families: Vec<bool> = cidrs
        .items()
        .filter_map(|c| c.str().parse::<IpNet>().ok())
        .map(|net| matches!(net, IpNet::V4(_)))
        .collect();
    if families.len() == 2 && families[0] == families[1] {
        p.invalid(
            &cidrs,
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
        );
    }
}

/// Ranges do not change, but a second family may be added to a first.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (new.at("spec").at("cidrs"), old.at("spec").at("cidrs"));
    match (old.len(), new.len()) {
        (before, after) if before == after || (before, after) == (1, 2) => {
            for (n, o) in new.items().zip(old.items()) {
                p.immutable(&n, &o);
            }
        }
        _ => p.invalid(&new, "field is immutable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row, update_problems};
    use serde_json::json;

    #[test]
    fn ranges_are_checked() {
        let base = json!({"spec": {"cidrs": ["10.96.0.0/12"]}});
        let with = |cidrs: &[&str]| json!({"spec": {"cidrs": cidrs}});
        refuses(
            &DEF,
            &base,
            &[
                (with(&[]), "spec.cidrs: Required value: at least one CIDR required"),
                (
                    with(&["10.0.0.0/8", "fd00::/64", "11.0.0.0/8"]),
                    r#"spec.cidrs: Invalid value: {"cidrs":["10.0.0.0/8","fd00::/64","11.0.0.0/8"]}: may only hold up to 2 values"#,
                ),
                (
                    with(&["10.0.0.0/8", "11.0.0.0/8"]),
                    r#"spec.cidrs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"#,
                ),
                (
                    with(&["FD00::/64"]),
                    r#"spec.cidrs[0]: Invalid value: "FD00::/64": must be in canonical form ("fd00::/64")"#,
                ),
            ],
        );
        refuses_update(
            &DEF,
            &base,
            &[
                (
                    with(&["10.0.0.0/8"]),
                    r#"spec.cidrs[0]: Invalid value: "10.0.0.0/8": field is immutable"#,
                ),
                (
                    with(&["11.0.0.0/8", "fd00::/64"]),
                    r#"spec.cidrs[0]: Invalid value: "11.0.0.0/8": field is immutable"#,
                ),
            ],
        );
        let dual = with(&["10.96.0.0/12", "fd00::/64"]);
        assert!(update_problems(&DEF, dual.clone(), base.clone()).is_empty());
        assert_eq!(
            update_problems(&DEF, base, dual.clone()),
            [r#"spec.cidrs: Invalid value: ["10.96.0.0/12"]: field is immutable"#]
        );
        assert_eq!(row(&DEF, &dual), "10.96.0.0/12,fd00::/64|<unknown>");
    }
}
