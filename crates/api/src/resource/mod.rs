//! The kinds of the resource group: devices, and claims to them.
//!
//! Upstream: pkg/apis/resource/{v1/defaults.go,validation}, pkg/registry/resource (v1.36). What is checked elsewhere,
//! because it takes more than the object: that a CEL selector compiles, that the namespace of a claim to admin access
//! allows it, and who may write which part of a claim's status.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::field::{Cursor, Path, Problems};
use crate::kind::KindDef;
use crate::names;

mod claim_spec;
mod device;
pub mod device_class;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;

pub const GROUP: &str = "resource.k8s.io";

pub const ALL: &[&KindDef] = &[
    &device_class::DEF,
    &resource_claim::DEF,
    &resource_claim_template::DEF,
    &resource_slice::DEF,
];

/// Of configurations in a class or a claim, of selectors, and of constraints.
const LIST_MAX: usize = 32;
/// Of a CEL expression and of opaque parameters.
const TEXT_BYTES_MAX: usize = 10 << 10;

/// True if the list is short enough to be looked into; a longer one is refused as a whole.
fn within(list: &Cursor<'_>, max: usize, p: &mut Problems) -> bool {
    let fits = list.len() <= max;
    if !fits {
        p.too_many(list, list.len(), max);
    }
    fits
}

/// No two elements with the same key.
fn unique<'a>(list: &Cursor<'a>, key: impl Fn(&Cursor<'a>) -> String, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for item in list.items() {
        let key = key(&item);
        if !seen.contains(&key) {
            seen.insert(key);
        } else {
            p.duplicate(&Cursor::new(Some(&Value::from(key)), item.path().clone()));
        }
    }
}

/// Each complaint of a rule about a text that is (part of) what stands at a path.
fn complain(path: &Path, text: &str, messages: Vec<String>, p: &mut Problems) {
    for message in messages {
        p.invalid_value(path, &text.into(), message);
    }
}

fn validate_pool_name(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    if c.len() > 253 {
        p.too_long(c, 253);
    }
    for part in c.str().split('/') {
        complain(c.path(), part, names::dns_subdomain(part), p);
    }
}

fn validate_selectors(selectors: &Cursor<'_>, p: &mut Problems) {
    if !within(selectors, LIST_MAX, p) {
        return;
    }
    for selector in selectors.items() {
        let cel = selector.at("cel");
        let expression = cel.at("expression");
        if !cel.exists() {
            p.required(&cel, "");
        } else if expression.len() > TEXT_BYTES_MAX {
            p.too_long(&expression, TEXT_BYTES_MAX);
        }
    }
}

/// The part of a configuration that goes to the driver as it is.
fn validate_opaque(config: &Cursor<'_>, p: &mut Problems) {
    let opaque = config.at("opaque");
    if !opaque.exists() {
        return p.required(&opaque, "");
    }
    crate::storage::validate_driver_name(&opaque.at("driver"), p);
    validate_raw(&opaque.at("parameters"), p);
}

/// Any JSON object, but not a huge one.
fn validate_raw(c: &Cursor<'_>, p: &mut Problems) {
    match c.value() {
        None => p.required(c, ""),
        Some(value) if value.to_string().len() > TEXT_BYTES_MAX => p.too_long(c, TEXT_BYTES_MAX),
        Some(Value::Object(_)) => {}
        Some(_) => p.invalid_value(c.path(), &"<value omitted>".into(), "must be a valid JSON object"),
    }
}

fn c_identifier(text: &str) -> Vec<String> {
    let starts = text.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    if starts && text.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
        return vec![];
    }
    vec![names::pattern_message(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// The name of an attribute or capacity: a C identifier, perhaps with a domain before it.
fn validate_attribute_name(name: &str, path: &Path, p: &mut Problems) {
    let identifier = |id: &str, p: &mut Problems| {
        let value = Value::from(id);
        if id.len() > 32 {
            p.too_long(&Cursor::new(Some(&value), path.clone()), 32);
        }
        complain(path, id, c_identifier(id), p);
    };
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(id, p),
        [domain, id] => {
            let value = Value::from(*domain);
            match domain.is_empty() {
                true => p.invalid_value(path, &"".into(), "the domain must not be empty"),
                false => crate::storage::validate_driver_name(&Cursor::new(Some(&value), path.clone()), p),
            }
            match id.is_empty() {
                true => p.invalid_value(path, &"".into(), "the name must not be empty"),
                false => identifier(id, p),
            }
        }
        _ => {}
    }
}

/// An attribute's name with its domain.
fn validate_full_name(c: &Cursor<'_>, p: &mut Problems) {
    validate_attribute_name(c.str(), c.path(), p);
    if !c.str().contains('/') {
        p.invalid(
            c,
            "a fully qualified name must be a domain and a name separated by a slash",
        );
    }
}

/// Conditions that must hold, or that mean failure, before a pod is bound: both or none, and none in both.
fn validate_binding_conditions(of: &Cursor<'_>, p: &mut Problems) {
    const MAX: usize = 4;
    let (wanted, failures) = (of.at("bindingConditions"), of.at("bindingFailureConditions"));
    for list in [&wanted, &failures] {
        if within(list, MAX, p) {
            for condition in list.items() {
                p.invalid_each(&condition, names::qualified_name(condition.str()));
            }
        }
        unique(list, |c| c.str().to_string(), p);
    }
    for failure in failures.items() {
        if wanted.items().any(|w| w.str() == failure.str()) {
            p.invalid(
                &failure,
                "bindingFailureConditions must not overlap with bindingConditions",
            );
        }
    }
    match (wanted.is_empty(), failures.is_empty()) {
        (true, false) => p.invalid(
            &wanted,
            "bindingConditions are required to use bindingFailureConditions",
        ),
        (false, true) => p.invalid(
            &failures,
            "bindingFailureConditions are required to use bindingConditions",
        ),
        _ => {}
    }
}

/// The id of one share of a device.
fn validate_share_id(c: &Cursor<'_>, p: &mut Problems) {
    let shaped = |text: &str| {
        let dash = |i: usize| matches!(i, 8 | 13 | 18 | 23);
        text.len() == 36
            && text
                .bytes()
                .enumerate()
                .all(|(i, b)| if dash(i) { b == b'-' } else { b.is_ascii_hexdigit() })
    };
    if !c.exists() {
        return;
    }
    if !shaped(c.str()) {
        let detail = format!("error validating uid: invalid UUID length: {}", c.len());
        p.invalid(c, detail);
    } else if c.str() != c.str().to_lowercase() {
        p.invalid(
            c,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters",
        );
    }
}

const TAINT_EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;
    use serde_json::json;

    fn check(validate: fn(&Cursor<'_>, &mut Problems), value: Value) -> String {
        let mut p = Problems::default();
        validate(&Cursor::root(&value), &mut p);
        p.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn names_of_attributes() {
        for (name, wanted) in [
            ("a.com/x_1", ""),
            (
                "x_1",
                r#"<nil>: Invalid value: "x_1": a fully qualified name must be a domain and a name separated by a slash"#,
            ),
            ("/x", r#"<nil>: Invalid value: "": the domain must not be empty"#),
            ("a.com/", r#"<nil>: Invalid value: "": the name must not be empty"#),
            (
                &format!("a.com/{}", "x".repeat(33)),
                "<nil>: Too long: may not be more than 32 bytes",
            ),
        ] {
            assert_eq!(check(validate_full_name, json!(name)), wanted, "{name}");
        }
        assert!(check(validate_full_name, json!("a.com/1x")).contains("a valid C identifier must start"));
    }

    #[test]
    fn pools_and_shares() {
        for (name, wanted) in [
            ("a/b.c", ""),
            ("", "<nil>: Required value"),
            (&"a".repeat(254), "<nil>: Too long: may not be more than 253 bytes"),
        ] {
            let found = check(validate_pool_name, json!(name));
            assert!(
                found.starts_with(wanted) && found.is_empty() == wanted.is_empty(),
                "{name}: {found}"
            );
        }
        for (id, wanted) in [
            ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", ""),
            (
                "x",
                r#"<nil>: Invalid value: "x": error validating uid: invalid UUID length: 1"#,
            ),
        ] {
            assert_eq!(check(validate_share_id, json!(id)), wanted);
        }
        assert!(check(validate_share_id, json!("6BA7B810-9dad-11d1-80b4-00c04fd430c8")).contains("normalized form"));
    }

    #[test]
    fn binding_conditions_come_in_pairs() {
        for (object, wanted) in [
            (
                json!({"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}),
                "",
            ),
            (
                json!({"bindingConditions": ["a"]}),
                "bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
            ),
            (
                json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}),
                r#"bindingFailureConditions[0]: Invalid value: "a": bindingFailureConditions must not overlap with bindingConditions"#,
            ),
            (
                json!({"bindingConditions": ["a", "a"], "bindingFailureConditions": ["b"]}),
                r#"bindingConditions[1]: Duplicate value: "a""#,
            ),
            (
                json!({"bindingConditions": ["a", "b", "c", "d", "e"], "bindingFailureConditions": ["f"]}),
                "bindingConditions: Too many: 5: must have at most 4 items",
            ),
        ] {
            assert_eq!(check(validate_binding_conditions, object), wanted);
        }
    }
}
