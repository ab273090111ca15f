//! What objects of a custom kind are accepted and refused, and how they are shown.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn of_version(version: Value) -> CustomVersion {
    let definition = json!({"spec": {
        "group": "ex.io", "names": {"kind": "Foo", "plural": "foos"}, "versions": [version],
    }});
    CustomVersion::compile(&definition, "v1").unwrap()
}

fn of_spec(properties: Value) -> CustomVersion {
    of_version(
        json!({"name": "v1", "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "properties": properties},
        "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}}}}),
    )
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": spec})
}

fn problems(version: &CustomVersion, new: &Value, old: Option<&Value>, subresource: &str) -> Vec<String> {
    let mut p = Problems::default();
    version.validate(new, old, subresource, &mut p);
    p.0.iter().map(ToString::to_string).collect()
}

fn found(schema: &Value, value: &Value) -> Vec<String> {
    problems(&of_spec(json!({"a": schema})), &object(json!({"a": value})), None, "")
}

/// Facts from kube-openapi's validators.
#[test]
fn values_are_judged_in_kubernetes_words() {
    for (schema, value, expected) in [
        (json!({"type": "string"}), json!("x"), vec![]),
        (
            json!({"type": "string"}),
            json!(1),
            vec![r#"spec.a: Invalid value: "integer": spec.a in body must be of type string: "integer""#],
        ),
        (
            json!({"type": "integer"}),
            json!("1"),
            vec![r#"spec.a: Invalid value: "string": spec.a in body must be of type integer: "string""#],
        ),
        (json!({"type": "integer"}), json!(1.0), vec![]),
        (
            json!({"type": "integer"}),
            json!(1.5),
            vec![
                r#"spec.a: Invalid value: "number": spec.a in body must be of type integer: "number""#,
                r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.a"#,
            ],
        ),
        (json!({"type": "number"}), json!(1), vec![]),
        (
            json!({"type": "object"}),
            json!([]),
            vec![r#"spec.a: Invalid value: "array": spec.a in body must be of type object: "array""#],
        ),
        (
            json!({"type": "string"}),
            Value::Null,
            vec![r#"spec.a: Invalid value: "null": spec.a in body must be of type string: "null""#],
        ),
        (json!({"type": "string", "nullable": true}), Value::Null, vec![]),
        (json!({"x-kubernetes-int-or-string": true}), json!("5%"), vec![]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            vec![r#"spec.a: Invalid value: "boolean": spec.a in body must be of type integer,string: "boolean""#],
        ),
        (
            json!({"type": "string", "enum": ["x", "y"]}),
            json!("z"),
            vec![r#"spec.a: Unsupported value: "z": supported values: "x", "y""#],
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            vec![r#"spec.a: Unsupported value: 3: supported values: "1", "2""#],
        ),
        (
            json!({"type": "string", "maxLength": 3}),
            json!("\u{e4}\u{e4}\u{e4}"),
            vec![],
        ),
        (
            json!({"type": "string", "maxLength": 3}),
            json!("abcd"),
            vec!["spec.a: Too long: may not be more than 3 bytes"],
        ),
        (
            json!({"type": "string", "minLength": 3}),
            json!("ab"),
            vec![r#"spec.a: Invalid value: "ab": spec.a in body should be at least 3 chars long"#],
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            vec![r#"spec.a: Invalid value: "b": spec.a in body should match '^a+$'"#],
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            vec!["spec.a: Invalid value: 0: spec.a in body should be greater than or equal to 1"],
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            vec!["spec.a: Invalid value: 1: spec.a in body should be greater than 1"],
        ),
        (
            json!({"type": "number", "maximum": 1.5}),
            json!(1.75),
            vec!["spec.a: Invalid value: 1.75: spec.a in body should be less than or equal to 1.5"],
        ),
        (
            json!({"type": "integer", "maximum": 9, "exclusiveMaximum": true}),
            json!(9),
            vec!["spec.a: Invalid value: 9: spec.a in body should be less than 9"],
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            vec!["spec.a: Invalid value: 7: spec.a in body should be a multiple of 5"],
        ),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), vec![]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(1_i64 << 40),
            vec![r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.a"#],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("now"),
            vec![r#"spec.a: Invalid value: "now": spec.a in body must be of type date-time: "now""#],
        ),
        (json!({"type": "string", "format": "unknown"}), json!("x"), vec![]),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            vec!["spec.a: Invalid value: 0: spec.a in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            vec!["spec.a: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a", 1]),
            vec![r#"spec.a[1]: Invalid value: "integer": spec.a[1] in body must be of type string: "integer""#],
        ),
        (
            json!({"type": "object", "required": ["b", "c"], "properties": {"b": {"type": "string"}}}),
            json!({}),
            vec!["spec.a.b: Required value", "spec.a.c: Required value"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"k": "x"}),
            vec![r#"spec.a.k: Invalid value: "string": spec.a.k in body must be of type integer: "string""#],
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"k": 1, "l": 2}),
            vec!["spec.a: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({}),
            vec!["spec.a: Invalid value: 0: spec.a in body should have at least 1 properties"],
        ),
        (
            json!({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}),
            json!(3),
            vec![
                r#"<nil>: Invalid value: "": "spec.a" must validate at least one schema (anyOf)"#,
                "spec.a: Invalid value: 3: spec.a in body should be greater than or equal to 5",
            ],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 5}, {"minimum": 3}]}),
            json!(7),
            vec![
                r#"<nil>: Invalid value: "": "spec.a" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
            ],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 5}, {"minimum": 9}]}),
            json!(1),
            vec![
                r#"<nil>: Invalid value: "": "spec.a" must validate one and only one schema (oneOf). Found none valid"#,
                "spec.a: Invalid value: 1: spec.a in body should be greater than or equal to 5",
            ],
        ),
        (
            json!({"type": "integer", "allOf": [{"minimum": 5}, {"maximum": 9}]}),
            json!(1),
            vec![
                "spec.a: Invalid value: 1: spec.a in body should be greater than or equal to 5",
                r#"<nil>: Invalid value: "": "spec.a" must validate all the schemas (allOf)"#,
            ],
        ),
        (
            json!({"type": "integer", "not": {"minimum": 5}}),
            json!(7),
            vec![r#"<nil>: Invalid value: "": "spec.a" must not validate the schema (not)"#],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["a", "a"]),
            vec![r#"spec.a[1]: Duplicate value: "a""#],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"kind": "A"}),
            vec!["spec.a.apiVersion: Required value"],
        ),
    ] {
        assert_eq!(found(&schema, &value), expected, "{schema} {value}");
    }
}

#[test]
fn what_has_not_changed_is_forgiven() {
    let strict = of_spec(json!({
        "a": {"type": "string", "maxLength": 1}, "b": {"type": "string", "maxLength": 1},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
              "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
        "p": {"type": "array", "items": {"type": "string", "maxLength": 1}},
    }));
    let old = object(json!({"a": "long", "l": [{"k": "x", "v": "long"}, {"k": "y"}], "p": ["long", "x"]}));
    for (spec, expected) in [
        (
            json!({"a": "long", "b": "x", "l": [{"k": "x", "v": "long"}], "p": ["long", "x"]}),
            vec![],
        ),
        (
            json!({"a": "longer"}),
            vec!["spec.a: Too long: may not be more than 1 byte"],
        ),
        (
            json!({"a": "long", "b": "long"}),
            vec!["spec.b: Too long: may not be more than 1 byte"],
        ),
        // Elements are told apart by their keys, wherever they stand …
        (json!({"l": [{"k": "y"}, {"k": "x", "v": "long"}]}), vec![]),
        (
            json!({"l": [{"k": "y", "v": "long"}]}),
            vec!["spec.l[0].v: Too long: may not be more than 1 byte"],
        ),
        // … and those of plain lists not at all.
        (
            json!({"p": ["long"]}),
            vec!["spec.p[0]: Too long: may not be more than 1 byte"],
        ),
    ] {
        assert_eq!(
            problems(&strict, &object(spec.clone()), Some(&old), ""),
            expected,
            "{spec}"
        );
    }
}

#[test]
fn the_status_is_validated_apart() {
    let version = of_spec(json!({"a": {"type": "string"}}));
    let mut wrong = object(json!({"a": 1}));
    assert!(problems(&version, &wrong, None, "status").is_empty());
    wrong["status"] = json!({"n": "x"});
    assert_eq!(
        problems(&version, &wrong, None, "status"),
        [r#"status.n: Invalid value: "string": n in body must be of type integer: "string""#]
    );
    let other = json!({"apiVersion": "ex.io/v2", "kind": "Bar"});
    assert_eq!(
        problems(&version, &other, None, ""),
        [
            "kind: Invalid value: \"Bar\": must be Foo",
            "apiVersion: Invalid value: \"ex.io/v2\": must be ex.io/v1",
        ]
    );
}

#[test]
fn objects_are_shown_in_columns() {
    let now: Timestamp = "2026-11-18T10:00:00Z".parse().unwrap();
    let version = of_version(json!({"name": "v1", "additionalPrinterColumns": [
        {"name": "Text", "type": "string", "jsonPath": ".spec.t", "description": "d", "priority": 1},
        {"name": "List", "type": "string", "jsonPath": ".spec.l"},
        {"name": "Count", "type": "integer", "jsonPath": ".spec.n"},
        {"name": "Flag", "type": "boolean", "jsonPath": ".spec.b"},
        {"name": "When", "type": "date", "jsonPath": ".spec.when"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Missing", "type": "integer", "jsonPath": ".spec.t"},
    ]}));
    let object = json!({
        "spec": {"t": "x", "l": ["a", 1], "n": 3, "b": true, "when": "2026-11-18T09:59:00Z"},
        "status": {"conditions": [{"type": "Synced", "status": "x"}, {"type": "Ready", "status": "True"}]},
    });
    assert_eq!(
        Value::from(version.cells(&object, now)),
        json!(["x", "[\"a\",1]", 3, true, "60s", "True", null])
    );
    assert_eq!(version.cells(&json!({}), now), vec![Value::Null; 7]);
    let columns = version.columns();
    assert_eq!((&*columns[0].description, columns[0].priority), ("d", 1));
    assert_eq!(
        &*columns[1].description,
        "Custom resource definition column (in JSONPath format): .spec.l"
    );
    let plain = of_version(json!({"name": "v1"}));
    let created = json!({"metadata": {"creationTimestamp": "2026-11-18T09:00:00Z"}});
    assert_eq!(plain.cells(&created, now), ["60m"]);
}

#[test]
fn selectable_fields_have_values() {
    let version =
        of_version(json!({"name": "v1", "selectableFields": [{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.n"}]}));
    assert_eq!(&*version.selectable_fields()[0].name, "spec.a");
    let object = json!({"spec": {"a": "x", "n": 3}});
    assert_eq!(
        [version.field_value(0, &object), version.field_value(1, &object)],
        ["x", "3"]
    );
    assert_eq!(
        [version.field_value(0, &json!({})), version.field_value(9, &object)],
        ["", ""]
    );
}

#[test]
fn deprecated_versions_warn() {
    let definition = |extra: Value| {
        let mut first = json!({"name": "v1alpha1", "served": true, "deprecated": true});
        first
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        json!({"spec": {"group": "ex.io", "names": {"kind": "Foo"}, "versions": [
            first, {"name": "v1beta1", "served": true}, {"name": "v1", "served": true}, {"name": "v2", "served": false}]}})
    };
    let warning = |extra: Value| {
        let version = CustomVersion::compile(&definition(extra), "v1alpha1").unwrap();
        version.deprecation_warning().map(str::to_string)
    };
    assert_eq!(
        warning(json!({})).as_deref(),
        Some("ex.io/v1alpha1 Foo is deprecated; use ex.io/v1 Foo")
    );
    assert_eq!(warning(json!({"deprecationWarning": "old"})).as_deref(), Some("old"));
    assert_eq!(warning(json!({"deprecated": false})), None);
    assert_eq!(
        CustomVersion::compile(&definition(json!({})), "v9").unwrap_err(),
        CompileError::NoVersion("v9".into())
    );
    let mut versions = vec!["v1", "foo", "v10", "v2beta1", "v1alpha1", "v1beta2", "v11alpha2", "bar"];
    versions.sort_by(|a, b| compare_versions(b, a));
    assert_eq!(
        versions,
        ["v10", "v1", "v2beta1", "v1beta2", "v11alpha2", "v1alpha1", "bar", "foo"]
    );
}

#[test]
fn odd_finalizers_are_warned_of() {
    let version = of_version(json!({"name": "v1"}));
    let of = |list: Value| json!({"metadata": {"finalizers": list}});
    assert_eq!(
        version.warnings(&of(json!(["ex.io/f", "orphan", "f", "a.b"])), Some(&of(json!(["f"])))),
        [
            "metadata.finalizers: \"a.b\": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers"
        ]
    );
    assert_eq!(version.warnings(&of(json!(["f"])), None).len(), 1);
}

/// Schemas and bodies that would take long, or much room, are dealt with at once.
#[test]
fn bombs_do_not_go_off() {
    let words: Vec<String> = (0..20_000).map(|i| format!("w{i:05}")).collect();
    let list = json!({"type": "array", "items": {"type": "string", "enum": words}});
    let values: Vec<&str> = vec!["w19999"; 20_000];
    assert!(found(&list, &json!(values)).is_empty());
    assert!(!found(&list, &json!(["nothing"])).is_empty());
    let mut alternatives: Vec<Value> = (0..2_000).map(|i| json!({"minimum": i + 10})).collect();
    alternatives.push(json!({"maximum": 5}));
    let list = json!({"type": "array", "items": {"type": "integer", "anyOf": alternatives}});
    let problems = found(&list, &json!(vec![1; 20_000]));
    assert_eq!(
        problems,
        ["<nil>: Internal error: validation against the schema takes too many steps"]
    );
    let slow = json!({"type": "string", "pattern": "^(((a+)+)+)+$"});
    assert_eq!(found(&slow, &json!("a".repeat(50_000) + "b")).len(), 1);
    let huge = json!({"type": "string", "pattern": "([a-z]{1000}){1000}"});
    assert_eq!(found(&huge, &json!("a")).len(), 1);
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "type",
        "properties",
        "items",
        "object",
        "array",
        "string",
        "integer",
        "default",
        "enum",
        "required",
        "anyOf",
        "allOf",
        "not",
        "minimum",
        "maxLength",
        "pattern",
        "nullable",
        "a",
        "spec",
        "x-kubernetes-list-type",
        "map",
        "set",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
        "additionalProperties",
        "metadata",
        "kind",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            3 => prop::collection::btree_map(words.clone(), inner.clone(), 0..6)
                .prop_map(|m| Value::Object(m.into_iter().map(|(k, v)| (k.to_string(), v)).collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(schema in any_json(), value in any_json(), old in any_json()) {
        let definition = json!({"metadata": {"name": "foos.ex.io"}, "spec": {"group": "ex.io", "names": {"kind": "Foo", "plural": "foos"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        let cursor = orlop_api::Cursor::root(&definition);
        let mut p = Problems::default();
        crate::definition::validate(&cursor, &mut p);
        let mut p = Problems::default();
        crate::definition::validate_update(&cursor, &cursor, &mut p);
        let Ok(version) = CustomVersion::compile(&definition, "v1") else { return Ok(()) };
        let mut object = object(value);
        let _ = version.from_value(object.clone());
        version.default(&mut object);
        let _ = problems(&version, &object, Some(&self::object(old)), "");
        let _ = crate::openapi::v2(&definition, "v1");
        let _ = crate::openapi::v3(&definition, "v1");
    }
}

#[test]
fn versions_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<CustomVersion>();
}
