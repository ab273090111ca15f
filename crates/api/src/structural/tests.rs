//! What holds for structural schemas.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::field::{Path, Problems};

fn schema(value: Value) -> Structural {
    Structural::parse(&value).unwrap_or_else(|e| panic!("{value}: {e}"))
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[test]
fn what_the_schema_does_not_name_is_pruned() {
    let preserve = |mut s: Value| {
        s["x-kubernetes-preserve-unknown-fields"] = true.into();
        s
    };
    for (name, of, given, left, removed) in [
        (
            "an empty schema",
            json!({}),
            json!({"a": 1, "b": {"c": 1}}),
            json!({}),
            vec!["a", "b"],
        ),
        (
            "meta fields at the root stay",
            object(json!({})),
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"x": 1}, "spec": 1}),
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"x": 1}}),
            vec!["spec"],
        ),
        (
            "known and unknown fields",
            object(
                json!({"spec": object(json!({"a": {"type": "string"}, "l": {"type": "array", "items": object(json!({"x": {}}))}}))}),
            ),
            json!({"spec": {"a": "1", "b": 2, "l": [{"x": 1, "y": 2}, 3]}}),
            json!({"spec": {"a": "1", "l": [{"x": 1}, 3]}}),
            vec!["spec.b", "spec.l[0].y"],
        ),
        (
            "preserved ones, and known ones below them",
            preserve(object(json!({"spec": object(json!({"a": {}}))}))),
            json!({"spec": {"a": 1, "b": 2}, "other": {"any": [{"thing": 1}]}}),
            json!({"spec": {"a": 1}, "other": {"any": [{"thing": 1}]}}),
            vec!["spec.b"],
        ),
        (
            "additional properties",
            object(json!({"m": {"type": "object", "additionalProperties": object(json!({"a": {}}))}})),
            json!({"m": {"k": {"a": 1, "b": 2}}}),
            json!({"m": {"k": {"a": 1}}}),
            vec!["m.k.b"],
        ),
        (
            "any additional properties have no fields of their own",
            object(json!({"m": {"type": "object", "additionalProperties": true}})),
            json!({"m": {"k": {"a": 1}, "l": 1}}),
            json!({"m": {"k": {}, "l": 1}}),
            vec!["m.k.a"],
        ),
        (
            "embedded resources",
            object(
                json!({"e": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": object(json!({"a": {}}))}}}),
            ),
            json!({"e": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"a": 1, "b": 2}, "x": 1}}),
            json!({"e": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"a": 1}}}),
            vec!["e.spec.b", "e.x"],
        ),
    ] {
        let of = schema(of);
        let mut value = given.clone();
        assert_eq!(of.prune(&mut value, true), removed, "{name}");
        assert_eq!(value, left, "{name}");
        let decoded = of.decode_json(given.to_string().as_bytes()).unwrap();
        assert_eq!(without_meta(decoded.value), without_meta(left), "{name}: decoded");
        let unknown: Vec<String> = removed.iter().map(|path| format!("unknown field \"{path}\"")).collect();
        let found: Vec<String> = decoded
            .problems
            .into_iter()
            .filter(|p| !p.contains("metadata"))
            .collect();
        assert_eq!(found, unknown, "{name}: decoded");
    }
}

fn without_meta(mut value: Value) -> Value {
    value.as_object_mut().unwrap().remove("metadata");
    value
}

#[test]
fn bodies_are_decoded_as_custom_resources() {
    let of = schema(object(json!({
        "spec": object(json!({
            "a": {"type": "string"}, "n": {"type": "string", "nullable": true}, "d": {"type": "string", "default": "x"},
            "l": {"type": "array", "items": {"type": "string"}},
        })),
        "e": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    })));
    let text = r#"{"apiVersion": "ex.io/v1", "kind": "A", "metadata": {"name": "x", "foo": 1, "labels": {"a": "b"}, "creationTimestamp": null},
        "spec": {"a": null, "n": null, "d": null, "l": ["1", null], "a": "1", "z": {"y": 1, "y": 2}},
        "e": {"apiVersion": "v1", "kind": "B", "metadata": {"name": "e", "bar": 1}, "big": 1.0, "huge": 18446744073709551615}}"#;
    let decoded = of.decode_json(text.as_bytes()).unwrap();
    assert_eq!(
        decoded.value,
        json!({
            "apiVersion": "ex.io/v1", "kind": "A", "metadata": {"name": "x", "labels": {"a": "b"}},
            "spec": {"a": "1", "n": null, "d": null, "l": ["1", null]},
            "e": {"apiVersion": "v1", "kind": "B", "metadata": {"name": "e"}, "big": 1, "huge": 18446744073709551615.0},
        })
    );
    assert_eq!(
        decoded.problems,
        [
            "duplicate field \"spec.z.y\"",
            "unknown field \"metadata.foo\"",
            "unknown field \"spec.z\"",
            "unknown field \"e.metadata.bar\"",
        ]
    );
    let mut value = decoded.value;
    of.default(&mut value);
    assert_eq!(value["spec"]["d"], "x");
    for (text, expected) in [
        ("[]", "couldn't get version/kind; json parse error: expected an object"),
        ("{", "unexpected end of JSON input"),
        (
            r#"{"metadata": {"labels": {"a": 1}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
        ),
        (r#"{"e": {"kind": 1}}"#, "e.kind: Invalid value: 1: must be a string"),
    ] {
        assert_eq!(
            of.decode_json(text.as_bytes()).unwrap_err().to_string(),
            expected,
            "{text}"
        );
    }
    let deep = format!("{}{}", "{\"a\":".repeat(200), "1");
    assert!(of.decode_json(deep.as_bytes()).is_err());
    let yaml = of.decode_yaml(b"kind: A\nspec:\n  a: x\n  q: 1\n").unwrap();
    assert_eq!(yaml.value, json!({"kind": "A", "spec": {"a": "x"}}));
    assert_eq!(yaml.problems, ["unknown field \"spec.q\""]);
}

#[test]
fn defaults_are_filled_in() {
    for (of, given, expected) in [
        (object(json!({"a": {"default": "A"}})), json!({}), json!({"a": "A"})),
        (
            object(json!({"a": {"default": "A"}})),
            json!({"a": "B"}),
            json!({"a": "B"}),
        ),
        (
            object(json!({"a": {"default": "A"}})),
            json!({"a": null}),
            json!({"a": "A"}),
        ),
        (
            object(json!({"a": {"default": "A", "nullable": true}})),
            json!({"a": null}),
            json!({"a": null}),
        ),
        (object(json!({"a": {"type": "string"}})), json!({"a": null}), json!({})),
        (
            object(json!({"a": {"type": "object", "default": {}, "properties": {"b": {"default": 1}}}})),
            json!({}),
            json!({"a": {"b": 1}}),
        ),
        (
            object(json!({"a": object(json!({"b": {"default": 1}}))})),
            json!({}),
            json!({}),
        ),
        (
            object(json!({"l": {"type": "array", "items": object(json!({"b": {"default": 1}}))}})),
            json!({"l": [{}, {"b": 2}]}),
            json!({"l": [{"b": 1}, {"b": 2}]}),
        ),
        (
            object(json!({"l": {"type": "array", "items": {"type": "string"}}})),
            json!({"l": [null]}),
            json!({"l": [null]}),
        ),
        (
            object(json!({"m": {"type": "object", "additionalProperties": object(json!({"b": {"default": 1}}))}})),
            json!({"m": {"k": {}, "n": null}}),
            json!({"m": {"k": {"b": 1}}}),
        ),
    ] {
        let of = schema(of);
        let mut value = given;
        of.default(&mut value);
        assert_eq!(value, expected);
    }
    let mut of = schema(object(
        json!({"a": {"type": "object", "default": {"b": 1, "c": 2}, "properties": {"b": {}}}}),
    ));
    of.prune_defaults();
    let mut value = json!({});
    of.default(&mut value);
    assert_eq!(value, json!({"a": {"b": 1}}));
}

#[test]
fn what_is_not_structural_at_all_is_not_read() {
    for (of, expected) in [
        (
            json!({"items": [{}]}),
            "OpenAPIV3Schema 'items' must be a schema, but is an array",
        ),
        (
            json!({"properties": {"a": {"$ref": "#/x"}}}),
            "OpenAPIV3Schema '$ref' is not supported",
        ),
        (
            json!({"definitions": {"a": {}}}),
            "OpenAPIV3Schema 'definitions' is not supported",
        ),
        (json!({"properties": {"a": 1}}), "schema must be an object"),
    ] {
        assert_eq!(Structural::parse(&of).unwrap_err().to_string(), expected);
    }
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    assert_eq!(Structural::parse(&deep), Err(ParseError::TooDeep));
}

#[test]
fn metadata_of_embedded_resources_is_validated() {
    let of = schema(object(
        json!({"e": {"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true}}),
    ));
    for (e, expected) in [
        (json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}}), ""),
        (json!({"kind": "A"}), "e.apiVersion: Required value"),
        (
            json!({"apiVersion": "", "kind": "A"}),
            "e.apiVersion: Invalid value: \"\": must not be empty",
        ),
        (
            json!({"apiVersion": "a/b/c", "kind": "A"}),
            "e.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
        ),
        (
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"name": ".."}}),
            "e.metadata.name: Invalid value: \"..\": may not be '..'",
        ),
        (
            json!({"apiVersion": "v1", "kind": "A", "metadata": {"labels": {"a": "!"}}}),
            "e.metadata.labels: Invalid value: \"!\": a valid label",
        ),
    ] {
        let mut p = Problems::default();
        validate_metadata(&of, &json!({"e": e}), false, &Path::default(), &mut p);
        let found = p.0.first().map(ToString::to_string).unwrap_or_default();
        assert!(
            found.starts_with(expected) && p.is_empty() == expected.is_empty(),
            "{e}: {found}"
        );
    }
}

pub(crate) fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "default": "d"})),
        Just(json!({"type": "integer", "nullable": true})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
        Just(json!({"type": "object"})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let properties = prop::collection::btree_map("[a-d]", inner.clone(), 0..4);
        prop_oneof![
            (properties, any::<bool>(), any::<bool>()).prop_map(|(properties, preserve, embedded)| {
                let mut s = json!({"type": "object", "properties": properties});
                if preserve {
                    s["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                if embedded {
                    s["x-kubernetes-embedded-resource"] = true.into();
                }
                s
            }),
            inner.clone().prop_map(|s| json!({"type": "array", "items": s})),
            inner
                .clone()
                .prop_map(|s| json!({"type": "object", "additionalProperties": s})),
            inner.prop_map(|s| json!({"type": "object", "default": {}, "properties": {"a": s}})),
        ]
    })
}

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i8>().prop_map(Value::from),
        "[a-c]?".prop_map(Value::from)
    ];
    leaf.prop_recursive(5, 32, 4, |inner| {
        let names = prop_oneof!["[a-e]", Just("metadata".to_string()), Just("kind".to_string())];
        prop_oneof![
            prop::collection::btree_map(names, inner.clone(), 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_and_defaulting_are_done_once(of in any_schema(), value in any_value()) {
        let of = schema(of);
        let mut pruned = value.clone();
        of.prune(&mut pruned, true);
        let mut again = pruned.clone();
        prop_assert!(of.prune(&mut again, true).is_empty());
        prop_assert_eq!(&again, &pruned);
        let mut defaulted = value;
        of.default(&mut defaulted);
        let mut again = defaulted.clone();
        of.default(&mut again);
        prop_assert_eq!(again, defaulted);
    }

    /// Decoding is pruning, dropping nulls and reading metadata.
    #[test]
    fn decoding_agrees_with_pruning(of in any_schema(), value in any_value()) {
        let of = schema(of);
        let Ok(decoded) = of.from_value(value.clone()) else { return Ok(()) };
        let mut pruned = value;
        let removed = of.prune(&mut pruned, true);
        let unknown = decoded.problems.iter().filter(|p| !p.contains("metadata"));
        let reported = removed.iter().filter(|p| !p.contains("metadata")).count();
        prop_assert_eq!(unknown.count(), reported.min(100));
        let mut read = decoded.value.clone();
        let before = read.clone();
        of.prune(&mut read, true);
        prop_assert_eq!(&read, &before, "what was decoded is pruned");
        let json = of.decode_json(before.to_string().as_bytes()).unwrap();
        prop_assert_eq!(json.value, before);
    }
}
