//! Rules against Kubernetes' own cases.

use orlop_api::field::{Path, Problems};
use serde_json::json;

use super::*;

fn tree(schema: &Value) -> RuleTree {
    let parsed = Structural::parse(schema).unwrap();
    RuleTree::compile(schema, &parsed, true).expect("there are rules")
}

/// A kind whose spec has these properties and rules.
fn of_spec(properties: Value, rules: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": properties, "x-kubernetes-validations": rules}}})
}

fn judged(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut p = Problems::default();
    validate_rules(
        &tree(schema),
        &json!({"spec": new}),
        old.map(|o| json!({"spec": o})).as_ref(),
        &mut p,
    );
    p.0.iter().map(ToString::to_string).collect()
}

#[test]
fn rules_see_what_the_schema_declares() {
    let properties = json!({
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "either": {"x-kubernetes-int-or-string": true}, "namespace": {"type": "string"}, "a-b": {"type": "string"},
        "when": {"type": "string", "format": "date-time"}, "long": {"type": "string", "format": "duration"},
        "l": {"type": "array", "items": {"type": "integer"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
        "opt": {"type": "string", "nullable": true},
        "k": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
    });
    let object = json!({
        "s": "abc", "i": 3, "n": 1, "b": true, "either": "5%", "namespace": "x", "a-b": "y",
        "when": "2026-11-18T10:00:00Z", "long": "1h30m", "l": [1, 2, 3], "set": ["a", "b"], "m": {"x": "1"}, "opt": null,
        "k": [{"k": "a", "v": 1}, {"k": "b", "v": 2}],
    });
    for rule in [
        "self.s == 'abc' && self.s.size() == 3 && self.s.startsWith('a')",
        "self.i > 2 && self.n < 1.5 && self.b",
        "type(self.either) == string && self.either == '5%'",
        "self.__namespace__ == 'x' && self.a__dash__b == 'y'",
        "self.when.getFullYear() == 2026 && self.long == duration('90m')",
        "self.l.all(x, x > 0) && self.l.sum() == 6 && self.l[0] == 1",
        "self.set == ['b', 'a']",
        "self.m.x == '1' && 'x' in self.m && self.m.all(k, self.m[k] == '1')",
        "self.k.exists(e, e.k == 'b' && e.v == 2)",
    ] {
        let schema = of_spec(properties.clone(), json!([{"rule": rule}]));
        assert_eq!(judged(&schema, &object, None), Vec::<String>::new(), "{rule}");
    }
    let unknown = of_spec(properties, json!([{"rule": "!has(self.missing)"}]));
    let found = judged(&unknown, &object, None);
    assert!(
        found[0].starts_with("spec: Invalid value: \"object\": rule compile error: compilation failed: ERROR: <input>:1:5: undefined field 'missing'"),
        "{found:?}"
    );
}

#[test]
fn failed_rules_are_told_in_kubernetes_words() {
    let properties = || json!({"a": {"type": "integer"}, "b": {"type": "integer"}});
    for (rule, expected) in [
        (
            json!({"rule": "self.a > 5"}),
            "spec: Invalid value: failed rule: self.a > 5",
        ),
        (
            json!({"rule": "self.a > 5", "message": " too small "}),
            "spec: Invalid value: too small",
        ),
        (
            json!({"rule": "self.a > 5", "messageExpression": "'a is ' + string(self.a)", "message": "m"}),
            "spec: Invalid value: a is 1",
        ),
        (
            json!({"rule": "self.a > 5", "messageExpression": "'a\\nb'", "message": "m"}),
            "spec: Invalid value: m",
        ),
        (
            json!({"rule": "self.a > 5", "reason": "FieldValueRequired", "fieldPath": ".a"}),
            "spec.a: Required value: failed rule: self.a > 5",
        ),
        (
            json!({"rule": "self.a > 5", "reason": "FieldValueForbidden", "message": "m"}),
            "spec: Forbidden: m",
        ),
        (
            json!({"rule": "self.a > 5", "reason": "FieldValueDuplicate"}),
            "spec: Duplicate value",
        ),
        (
            json!({"rule": "self.b > 5"}),
            "spec: Invalid value: \"object\": no such key: b evaluating rule: self.b > 5",
        ),
    ] {
        let found = judged(&of_spec(properties(), json!([rule])), &json!({"a": 1}), None);
        assert_eq!(found, [expected], "{rule}");
    }
    let schema = json!({"type": "object", "properties": {"spec": {"type": "array", "items": {
        "type": "integer", "x-kubernetes-validations": [{"rule": "self < 3"}]}}}});
    assert_eq!(
        judged(&schema, &json!([1, 5]), None),
        ["spec[1]: Invalid value: 5: failed rule: self < 3"]
    );
}

#[test]
fn transition_rules_compare_with_the_old() {
    let properties = || {
        json!({
            "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
            "k": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
                "type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "grows"}]}},
        })
    };
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties()}}});
    let old = json!({"a": 1, "k": [{"k": "x", "v": 5}, {"k": "y", "v": 1}]});
    for (new, expected) in [
        (json!({"a": 1}), vec![]),
        (json!({"a": 2}), vec!["spec.a: Invalid value: 2: immutable"]),
        (
            json!({"k": [{"k": "y", "v": 2}, {"k": "x", "v": 4}]}),
            vec!["spec.k[1]: Invalid value: grows"],
        ),
        (json!({"k": [{"k": "new", "v": 0}]}), vec![]),
    ] {
        assert_eq!(judged(&schema, &new, Some(&old)), expected, "{new}");
        assert!(judged(&schema, &new, None).is_empty(), "nothing to compare with");
    }
    let optional = of_spec(
        json!({"a": {"type": "integer"}}),
        json!([{"rule": "oldSelf.hasValue() || self.a == 0", "optionalOldSelf": true, "message": "starts at 0"}]),
    );
    assert_eq!(
        judged(&optional, &json!({"a": 1}), None),
        ["spec: Invalid value: starts at 0"]
    );
    assert!(judged(&optional, &json!({"a": 1}), Some(&json!({"a": 0}))).is_empty());
}

#[test]
fn what_has_not_changed_is_forgiven() {
    let schema = of_spec(
        json!({"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5"}]}, "b": {"type": "integer"}}),
        json!([{"rule": "self.b > 5"}]),
    );
    let old = json!({"a": 1, "b": 1});
    assert!(judged(&schema, &old, Some(&old)).is_empty());
    assert_eq!(
        judged(&schema, &json!({"a": 1, "b": 2}), Some(&old)),
        ["spec: Invalid value: failed rule: self.b > 5"]
    );
    assert_eq!(
        judged(&schema, &json!({"a": 2, "b": 9}), Some(&old)),
        ["spec.a: Invalid value: 2: failed rule: self > 5"]
    );
}

#[test]
fn budgets_end_evaluation() {
    let long = "self.all(x, self.all(y, self.all(z, x <= y || y <= z || z <= x || x != y)))";
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": long}, {"rule": "false"}]}}});
    let list: Vec<i64> = (0..300).collect();
    let found = judged(&schema, &json!(list), None);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule"),
        "{found:?}"
    );
}

#[test]
fn the_roots_metadata_is_seen() {
    let schema = json!({"type": "object", "x-kubernetes-validations": [
        {"rule": "self.metadata.name.startsWith('a') && self.kind == 'Foo'", "message": "m"}]});
    let of = |name: &str| json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": name}});
    let judged = |object: &Value| {
        let mut p = Problems::default();
        validate_rules(&tree(&schema), object, None, &mut p);
        p.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(judged(&of("abc")).is_empty());
    assert_eq!(judged(&of("xyz")), ["<nil>: Invalid value: m"]);
    assert_eq!(Path::default().to_string(), "");
}
