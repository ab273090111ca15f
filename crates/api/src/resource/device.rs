//! One device of a slice: attributes, capacities, taints, counters.

use serde_json::Value;

use super::{TAINT_EFFECTS, unique, validate_attribute_name, within};
use crate::core::pod_spec;
use crate::field::{Cursor, Problems};
use crate::quantity::Quantity;
use crate::{names, rules};

const PROPERTIES_MAX: usize = 32;
const TAINTS_MAX: usize = 16;
const CONSUMPTIONS_MAX: usize = 2;
const VALUE_BYTES_MAX: usize = 64;

pub(super) fn validate(device: &Cursor<'_>, chooses_nodes: bool, p: &mut Problems) {
    rules::follows(&device.at("name"), names::dns_label, p);
    let (attributes, capacity) = (device.at("attributes"), device.at("capacity"));
    let count = attributes.len() + capacity.len();
    if count > PROPERTIES_MAX {
        let detail = format!("the total number of attributes and capacities must not exceed {PROPERTIES_MAX}");
        p.invalid_value(device.path(), &count.into(), detail);
    }
    for (name, attribute) in attributes.entries() {
        validate_attribute_name(name, attributes.path(), p);
        validate_attribute(&attribute, p);
    }
    let shared = device.at("allowMultipleAllocations").is_true();
    for (name, amount) in capacity.entries() {
        validate_attribute_name(name, capacity.path(), p);
        let policy = amount.at("requestPolicy");
        match (policy.exists(), shared) {
            (true, true) => validate_policy(&amount, &policy, p),
            (true, false) => p.forbidden(&policy, "allowMultipleAllocations must be true"),
            (false, _) => {}
        }
    }
    let taints = device.at("taints");
    if within(&taints, TAINTS_MAX, p) {
        for taint in taints.items() {
            rules::follows(&taint.at("key"), names::qualified_name, p);
            rules::optional(&taint.at("value"), names::label_value, p);
            p.one_of(&taint.at("effect"), true, TAINT_EFFECTS);
        }
    }
    let consumed = device.at("consumesCounters");
    if within(&consumed, CONSUMPTIONS_MAX, p) {
        for consumption in consumed.items() {
            rules::required(&consumption.at("counterSet"), names::dns_label, p);
            super::resource_slice::validate_counters(&consumption.at("counters"), p);
        }
        unique(&consumed, |c| c.at("counterSet").str().to_string(), p);
    }
    validate_place(device, chooses_nodes, p);
    super::validate_binding_conditions(device, p);
}

/// A value of exactly one type.
fn validate_attribute(attribute: &Cursor<'_>, p: &mut Problems) {
    let (text, version) = (attribute.at("string"), attribute.at("version"));
    if version.exists() && !is_semver(version.str()) {
        p.invalid(&version, "must be a string compatible with semver.org spec 2.0.0");
    }
    for value in [&text, &version] {
        if value.len() > VALUE_BYTES_MAX {
            p.too_long(value, VALUE_BYTES_MAX);
        }
    }
    let set = ["bool", "int", "string", "version"]
        .into_iter()
        .filter(|f| attribute.at(f).exists())
        .count();
    match set {
        0 => p.invalid_value(attribute.path(), &"".into(), "exactly one value must be specified"),
        1 => {}
        _ => p.invalid(attribute, "exactly one value must be specified"),
    }
}

fn is_semver(text: &str) -> bool {
    let (text, build) = text.split_once('+').map_or((text, None), |(t, b)| (t, Some(b)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(c, p)| (c, Some(p)));
    let word = |s: &str| !s.is_empty() && s.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric());
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let number = |s: &str| digits(s) && (s == "0" || !s.starts_with('0'));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|p| p.split('.').all(|s| word(s) && (!digits(s) || number(s))))
        && build.is_none_or(|b| b.split('.').all(word))
}

fn validate_place(device: &Cursor<'_>, chooses_nodes: bool, p: &mut Problems) {
    let (node, selector, all) = (device.at("nodeName"), device.at("nodeSelector"), device.at("allNodes"));
    if !chooses_nodes {
        if node.exists() || selector.exists() || all.exists() {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            p.invalid_value(device.path(), &Value::Null, detail);
        }
        return;
    }
    let mut set = vec![];
    if node.exists() && node.is_empty() {
        p.invalid(&node, "must not be empty");
    } else if node.exists() {
        set.push("`nodeName`");
        p.invalid_each(&node, names::dns_subdomain(node.str()));
    }
    if selector.exists() {
        set.push("`nodeSelector`");
        pod_spec::validate_node_selector(&selector, p);
    }
    match all.as_bool() {
        Some(true) => set.push("`allNodes`"),
        Some(false) => p.invalid(&all, "must be either unset or set to true"),
        None => {}
    }
    let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match set.len() {
        0 => p.required(device, detail),
        1 => {}
        _ => p.invalid_value(device.path(), &format!("{{{}}}", set.join(", ")).into(), detail),
    }
}

fn quantity(c: &Cursor<'_>) -> Option<Quantity> {
    c.as_str().and_then(|text| Quantity::parse(text).ok())
}

/// How a capacity may be asked for in parts: by listed amounts, or within a range.
fn validate_policy(capacity: &Cursor<'_>, policy: &Cursor<'_>, p: &mut Problems) {
    let (listed, range, default) = (policy.at("validValues"), policy.at("validRange"), policy.at("default"));
    let whole = quantity(&capacity.at("value")).unwrap_or_default();
    match (listed.is_empty(), range.exists(), quantity(&default)) {
        (false, true, _) => p.forbidden(
            policy,
            r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#,
        ),
        (false, false, None) => p.required(&default, "required when validValues is defined"),
        (true, true, None) => p.required(&default, "required when validRange is defined"),
        (false, false, Some(default)) => validate_listed(&listed, &default, &whole, p),
        (true, true, Some(default)) => validate_range(&range, &default, &whole, p),
        (true, false, _) => {}
    }
}

fn validate_listed(listed: &Cursor<'_>, default: &Quantity, whole: &Quantity, p: &mut Problems) {
    const OPTIONS_MAX: usize = 10;
    let values: Vec<(Cursor<'_>, Quantity)> = listed.items().filter_map(|c| quantity(&c).map(|q| (c, q))).collect();
    for pair in values.windows(2) {
        if pair[0].1 > pair[1].1 {
            p.invalid(&pair[1].0, "values must be sorted in ascending order");
        }
    }
    if !within(listed, OPTIONS_MAX, p) {
        return;
    }
    for (c, option) in &values {
        if option > whole {
            p.invalid(c, format!("option is larger than capacity value: {whole}"));
        }
    }
    unique(
        listed,
        |c| quantity(c).map_or(String::new(), |q| q.value().to_string()),
        p,
    );
    if !values.iter().any(|(_, q)| q == default) {
        let detail = "default value is not valid according to the requestPolicy";
        p.invalid_value(listed.path(), &default.to_string().into(), detail);
    }
}

fn validate_range(range: &Cursor<'_>, default: &Quantity, whole: &Quantity, p: &mut Problems) {
    let (lower, upper, step) = (range.at("min"), range.at("max"), range.at("step"));
    let Some(min) = quantity(&lower) else {
        return p.required(&lower, "required when validRange is defined");
    };
    let mut too_much = |c: &Cursor<'_>, amount: &Quantity, detail: String, is: bool| {
        if is {
            p.invalid_value(c.path(), &amount.to_string().into(), detail);
        }
    };
    let (max, one) = (quantity(&upper), quantity(&step));
    too_much(
        &lower,
        &min,
        format!("min is larger than capacity value: {whole}"),
        min > *whole,
    );
    too_much(
        &lower,
        default,
        format!("default is less than min: {min}"),
        *default < min,
    );
    if let Some(max) = &max {
        too_much(&upper, &min, format!("min is larger than max: {max}"), min > *max);
        too_much(
            &upper,
            max,
            format!("max is larger than capacity value: {whole}"),
            max > whole,
        );
        too_much(
            &upper,
            default,
            format!("default is more than max: {max}"),
            default > max,
        );
    }
    let Some(one) = one else { return };
    let mut reached = min.clone();
    reached.add(&one);
    let detail = format!("one step {reached} is larger than capacity value: {whole}");
    too_much(&step, &one, detail, reached > *whole);
    for value in std::iter::once(default).chain(&max) {
        let detail = format!("value is not a multiple of a given step ({one}) from ({min})");
        let off = one.value() != 0 && (value.value() - min.value()) % one.value() != 0;
        too_much(&step, value, detail, off);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;
    use serde_json::json;

    fn check(device: Value, chooses_nodes: bool) -> String {
        let mut p = Problems::default();
        validate(&Cursor::root(&device), chooses_nodes, &mut p);
        p.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn attributes_taints_and_counters() {
        let many: serde_json::Map<String, Value> = (0..33).map(|i| (format!("a{i}"), json!({"int": 1}))).collect();
        for (patch, wanted) in [
            (
                json!({"attributes": {"a.com/x": {"version": "1.2.3-rc.1+b"}, "y": {"bool": false}}}),
                "",
            ),
            (
                json!({"attributes": {"x": {}}}),
                r#"attributes[x]: Invalid value: "": exactly one value must be specified"#,
            ),
            (
                json!({"attributes": {"x": {"int": 1, "bool": true}}}),
                r#"attributes[x]: Invalid value: {"bool":true,"int":1}: exactly one value must be specified"#,
            ),
            (
                json!({"attributes": {"x": {"version": "1.02.3"}}}),
                r#"attributes[x].version: Invalid value: "1.02.3": must be a string compatible with semver.org spec 2.0.0"#,
            ),
            (
                json!({"attributes": {"x": {"string": "x".repeat(65)}}}),
                "attributes[x].string: Too long: may not be more than 64 bytes",
            ),
            (
                json!({"attributes": many}),
                "<nil>: Invalid value: 33: the total number of attributes and capacities must not exceed 32",
            ),
            (json!({"taints": [{"key": "k"}]}), "taints[0].effect: Required value"),
            (
                json!({"taints": [{"key": "k", "effect": "Never"}]}),
                r#"taints[0].effect: Unsupported value: "Never": supported values: "NoExecute", "NoSchedule", "None""#,
            ),
            (
                json!({"consumesCounters": [{"counters": {"c": {}}}]}),
                "consumesCounters[0].counterSet: Required value",
            ),
            (
                json!({"consumesCounters": [{"counterSet": "s"}]}),
                "consumesCounters[0].counters: Required value",
            ),
            (
                json!({"nodeName": "n"}),
                "<nil>: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            ),
        ] {
            let mut device = patch;
            device["name"] = "d".into();
            assert_eq!(check(device, false), wanted);
        }
    }

    #[test]
    fn devices_that_choose_their_nodes() {
        let detail = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        assert_eq!(check(json!({"name": "d", "allNodes": true}), true), "");
        assert_eq!(
            check(json!({"name": "d"}), true),
            format!("<nil>: Required value: {detail}")
        );
        assert_eq!(
            check(json!({"name": "d", "allNodes": true, "nodeName": "n"}), true),
            format!(r#"<nil>: Invalid value: "{{`nodeName`, `allNodes`}}": {detail}"#)
        );
    }

    #[test]
    fn capacities_in_parts() {
        let range = |min: &str, max: &str, step: &str, default: &str| json!({"default": default, "validRange": {"min": min, "max": max, "step": step}});
        for (policy, wanted) in [
            (json!({"default": "1", "validValues": ["1", "2"]}), ""),
            (range("1", "9", "2", "3"), ""),
            (
                json!({"validValues": ["1"]}),
                "default: Required value: required when validValues is defined",
            ),
            (
                json!({"validRange": {"min": "1"}}),
                "default: Required value: required when validRange is defined",
            ),
            (
                json!({"default": "1", "validRange": {}}),
                "validRange.min: Required value: required when validRange is defined",
            ),
            (
                json!({"default": "1", "validValues": ["2", "1"]}),
                r#"validValues[1]: Invalid value: "1": values must be sorted in ascending order"#,
            ),
            (
                json!({"default": "1", "validValues": ["1", "11"]}),
                r#"validValues[1]: Invalid value: "11": option is larger than capacity value: 10"#,
            ),
            (
                json!({"default": "3", "validValues": ["1"]}),
                r#"validValues: Invalid value: "3": default value is not valid according to the requestPolicy"#,
            ),
            (
                range("1", "9", "2", "2"),
                r#"validRange.step: Invalid value: "2": value is not a multiple of a given step (2) from (1)"#,
            ),
            (
                range("1", "11", "2", "1"),
                r#"validRange.max: Invalid value: "11": max is larger than capacity value: 10"#,
            ),
            (
                range("3", "9", "2", "1"),
                r#"validRange.min: Invalid value: "1": default is less than min: 3"#,
            ),
        ] {
            let device = |shared: bool| json!({"name": "d", "allowMultipleAllocations": shared, "capacity": {"m": {"value": "10", "requestPolicy": policy}}});
            let wanted = match wanted {
                "" => String::new(),
                text => format!("capacity[m].requestPolicy.{text}"),
            };
            assert_eq!(check(device(true), false), wanted);
            assert_eq!(
                check(device(false), false),
                "capacity[m].requestPolicy: Forbidden: allowMultipleAllocations must be true"
            );
        }
    }
}
