//! Facts from Kubernetes' own tables (apiextensions validation_test.go, v1.36): a schema, and the kinds and places of all
//! that is wrong with it.

use orlop_api::field::{Cursor, ProblemKind, Problems};
use serde_json::{Value, json};

use super::*;

const ROOT: &str = "spec.validation.openAPIV3Schema";

fn found(definition: &Value) -> Vec<String> {
    let mut p = Problems::default();
    validate(&Cursor::root(definition), &mut p);
    let kind = |kind: ProblemKind| match kind {
        ProblemKind::TypeInvalid => "type".to_string(),
        other => format!("{other:?}").to_lowercase(),
    };
    let place = |field: &str| match field.strip_prefix(ROOT) {
        Some(rest) => rest.trim_start_matches('.').to_string(),
        None => field.to_string(),
    };
    let mut found: Vec<String> =
        p.0.iter()
            .map(|p| format!("{} {}", kind(p.kind), place(&p.field)))
            .collect();
    found.sort();
    found
}

fn definition(schema: &Value) -> Value {
    let mut definition = json!({
        "metadata": {"name": "foos.ex.io"},
        "spec": {"group": "ex.io", "scope": "Cluster", "names": {"plural": "foos", "kind": "Foo"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    default(&mut definition);
    definition
}

#[track_caller]
fn check(name: &str, schema: &Value, expected: &[&str]) {
    let mut expected: Vec<String> = expected.iter().map(|e| e.trim().to_string()).collect();
    expected.sort();
    let found: Vec<String> = found(&definition(schema))
        .iter()
        .map(|f| f.trim().to_string())
        .collect();
    assert_eq!(found, expected, "{name}");
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn rules(mut schema: Value, rules: &[&str]) -> Value {
    schema["x-kubernetes-validations"] = rules.iter().map(|rule| json!({"rule": rule})).collect();
    schema
}

#[test]
fn costs() {
    let nested = |max_items: Value, max_properties: Value, key: Value| {
        let mut map = json!({"type": "object", "additionalProperties": {"type": "object", "required": ["key"], "properties": {"key": key}}});
        if !max_properties.is_null() {
            map["maxProperties"] = max_properties;
        }
        let mut list = json!({"type": "array", "items": map});
        if !max_items.is_null() {
            list["maxItems"] = max_items;
        }
        object(json!({"value": rules(list, &["self.all(x, x.all(y, x[y].key == x[y].key))"])}))
    };
    let rule = "properties[value].x-kubernetes-validations[0].rule";
    let too_much = [
        format!("forbidden {rule}"),
        format!("forbidden {rule}"),
        "forbidden".to_string(),
    ];
    let too_much: Vec<&str> = too_much.iter().map(String::as_str).collect();
    check(
        "forbid double-nested rule with no limit set",
        &nested(Value::Null, Value::Null, json!({"type": "string"})),
        &too_much,
    );
    check(
        "forbid double-nested rule with one limit set",
        &nested(Value::Null, Value::Null, json!({"type": "string", "maxLength": 10})),
        &too_much,
    );
    check(
        "allow double-nested rule with three limits set",
        &nested(json!(10), json!(10), json!({"type": "string", "maxLength": 10})),
        &[],
    );
    check(
        "allow double-nested rule with one limit set on outermost array",
        &nested(json!(4), Value::Null, json!({"type": "number"})),
        &[],
    );
    check(
        "check for cardinality of 1 under root object",
        &object(json!({"value": rules(json!({"type": "integer"}), &["self < 1024"])})),
        &[],
    );
    let text = || {
        rules(
            json!({"type": "string", "maxLength": 5000}),
            &["self.contains('keyword')"],
        )
    };
    check(
        "forbid validation rules where cost total exceeds total limit",
        &object(json!({
            "list": {"type": "array", "maxItems": 100_000, "items": text()},
            "map": {"type": "object", "maxProperties": 1000, "additionalProperties": text()},
            "field": rules(json!({"type": "integer"}), &["self > 50 && self < 100"]),
        })),
        &[
            "forbidden properties[list].items.x-kubernetes-validations[0].rule",
            "forbidden properties[list].items.x-kubernetes-validations[0].rule",
            "forbidden properties[map].additionalProperties.x-kubernetes-validations[0].rule",
            "forbidden",
        ],
    );
    check(
        "lowerAscii check should be within estimated cost limit",
        &object(json!({"f": rules(
            json!({"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 5}}),
            &["self.all(x, self.exists_one(y, x.lowerAscii() == y.lowerAscii()))"],
        )})),
        &[],
    );
    let message = |expression: &str| {
        object(json!({"f": {"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "true", "messageExpression": expression}]}}))
    };
    let place = "forbidden properties[f].x-kubernetes-validations[0].messageExpression";
    check(
        "messageExpression exceeding per-expression estimated cost limit",
        &message("self[0] + self[1] + self[2] + self[3] + self[4] + self[5] + self[6] + self[7]"),
        &[place],
    );
}

#[test]
fn rules_beside_schemas_that_are_wrong() {
    let both = |properties: Value, additional: Value| json!({"type": "object", "properties": properties, "additionalProperties": additional});
    let integer = || json!({"field": {"type": "integer"}});
    check(
        "skip rules when the schema is invalid",
        &rules(
            both(integer(), json!({"type": "string"})),
            &["self.invalidFieldName > 50"],
        ),
        &["forbidden additionalProperties", "forbidden additionalProperties"],
    );
    check(
        "skip rules when the schema is invalid at the level below",
        &rules(
            object(json!({"field": both(integer(), json!({"type": "string"}))})),
            &["self.invalidFieldName > 50"],
        ),
        &["forbidden properties[field].additionalProperties"],
    );
    check(
        "do not skip when a separate part of the schema is invalid",
        &object(json!({
            "a": both(integer(), json!({"type": "string"})),
            "b": rules(object(integer()), &["self.invalidFieldName > 50"]),
        })),
        &[
            "forbidden properties[a].additionalProperties",
            "invalid properties[b].x-kubernetes-validations[0].rule",
        ],
    );
    check(
        "do not skip when the level above is invalid",
        &object(json!({"a": both(
            json!({"b": rules(json!({"type": "integer"}), &["self == 'abc'"])}),
            json!({"type": "string"}),
        )})),
        &[
            "forbidden properties[a].additionalProperties",
            "invalid properties[a].properties[b].x-kubernetes-validations[0].rule",
        ],
    );
}

#[test]
fn rules_wherever_they_stand() {
    let bad = || rules(json!({"type": "string"}), &["self == 1"]);
    for parent_has_rule in [false, true] {
        let with = |schema: Value| {
            if parent_has_rule {
                rules(schema, &["1 == 1"])
            } else {
                schema
            }
        };
        check(
            "under array items",
            &object(json!({"a": with(json!({"type": "array", "items": bad()}))})),
            &["invalid properties[a].items.x-kubernetes-validations[0].rule"],
        );
        check(
            "under additionalProperties",
            &object(json!({"a": with(json!({"type": "object", "additionalProperties": bad()}))})),
            &["invalid properties[a].additionalProperties.x-kubernetes-validations[0].rule"],
        );
        for name in ["f", "f/2", "f@2"] {
            check(
                "under a property",
                &with(object(json!({ name: bad() }))),
                &[&format!("invalid properties[{name}].x-kubernetes-validations[0].rule")],
            );
        }
    }
    check(
        "for escaped property name",
        &rules(object(json!({"f/2": {"type": "string"}})), &["self.f__slash__2 == 1"]),
        &["invalid x-kubernetes-validations[0].rule"],
    );
    check(
        "access metadata name",
        &rules(
            object(json!({"metadata": {"type": "object"}})),
            &[
                "self.metadata.name.size() > 3 && self.metadata.generateName == 'x' && self.kind == 'x' && self.apiVersion != 'y'",
            ],
        ),
        &[],
    );
    check(
        "not other metadata",
        &rules(object(json!({})), &["self.metadata.labels.size() > 3"]),
        &["invalid x-kubernetes-validations[0].rule"],
    );
    check(
        "forbidden under junctors",
        &object(json!({"a": {"type": "object", "oneOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]}})),
        &["forbidden properties[a].oneOf[0].x-kubernetes-validations"],
    );
}

#[test]
fn transition_rules() {
    let list = |list_type: Value, items: Value| {
        let mut list = json!({"type": "array", "maxItems": 10, "items": items});
        if !list_type.is_null() {
            list["x-kubernetes-list-type"] = list_type.clone();
        }
        if list_type == "map" {
            list["x-kubernetes-list-map-keys"] = json!(["name"]);
        }
        list
    };
    let transition = ["self == oldSelf"];
    let text = || json!({"type": "string", "maxLength": 10});
    let named = || json!({"type": "object", "required": ["name"], "properties": {"name": text()}});
    let element = "invalid properties[value].items.x-kubernetes-validations[0].rule";
    for (list_type, expected) in [
        (json!("atomic"), &[element][..]),
        (Value::Null, &[element]),
        (json!("set"), &[element]),
    ] {
        check(
            "forbid transition rule on element",
            &object(json!({"value": list(list_type.clone(), rules(text(), &transition))})),
            expected,
        );
        check(
            "allow transition rule on list",
            &object(json!({"value": rules(list(list_type, text()), &transition)})),
            &[],
        );
    }
    check(
        "allow transition rule on element of list of type map",
        &object(json!({"value": list(json!("map"), rules(named(), &transition))})),
        &[],
    );
    for map_type in ["granular", "atomic"] {
        let mut map = object(json!({"sub": rules(text(), &transition)}));
        map["x-kubernetes-map-type"] = map_type.into();
        check(
            "allow transition rule on element of map",
            &object(json!({ "value": map })),
            &[],
        );
    }
    let optional = |rule: &str| {
        object(
            json!({"value": {"type": "integer", "x-kubernetes-validations": [{"rule": rule, "optionalOldSelf": true}]}}),
        )
    };
    check("optionalOldSelf", &optional("oldSelf.orValue(0) <= self"), &[]);
    check(
        "forbid setting optionalOldSelf if oldSelf is not used",
        &optional("self > 1"),
        &["invalid properties[value].x-kubernetes-validations[0].optionalOldSelf"],
    );
}

#[test]
fn defaults_of_objects() {
    let of = |mut schema: Value, default: Value| {
        schema["default"] = default;
        schema
    };
    let foo = || object(json!({"foo": {"type": "string"}}));
    let embedded = |preserve: bool| {
        let mut schema = foo();
        schema["x-kubernetes-embedded-resource"] = true.into();
        if preserve {
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
        }
        schema
    };
    let resource = |extra: Value| {
        let mut value = json!({"foo": "abc", "apiVersion": "foo/v1", "kind": "v1", "metadata": {"name": "foo"}});
        value
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        value
    };
    let mut preserving = object(json!({
        "preserveUnknownFields": of(json!({"type": "object"}), json!({"foo": "abc", "bar": 42})),
        "nestedProperties": of(foo(), json!({"foo": "abc", "bar": 42})),
    }));
    preserving["x-kubernetes-preserve-unknown-fields"] = true.into();
    check(
        "invalid defaults, structural schema",
        &object(json!({
            "a": of(foo(), json!({"foo": "abc", "bar": 42})),
            "b": of(foo(), json!({"foo": "abc"})),
            "c": of(foo(), json!({"foo": 42})),
            "d": of(
                object(json!({"good": {"type": "string", "pattern": "a"}, "bad": {"type": "string", "pattern": "b"}})),
                json!({"good": "a", "bad": "a"}),
            ),
            "e": preserving,
            "embedded-fine": of(embedded(false), resource(json!({}))),
            "embedded-preserve": of(embedded(true), resource(json!({"bar": 42}))),
            "embedded-preserve-unpruned-objectmeta":
                of(embedded(true), resource(json!({"metadata": {"name": "foo", "unspecified": "bar"}, "bar": 42}))),
        })),
        &[
            "invalid properties[a].default",
            "type properties[c].default.foo",
            "invalid properties[d].default.bad",
            "invalid properties[e].properties[preserveUnknownFields].default",
            "invalid properties[e].properties[nestedProperties].default",
        ],
    );
    let of_metadata = |metadata: Value, kind: Value| {
        let mut schema = object(json!({"metadata": metadata, "kind": kind}));
        schema["x-kubernetes-embedded-resource"] = true.into();
        object(json!({ "embedded": schema }))
    };
    let kind = || json!({"type": "string"});
    check(
        "unknown fields in metadata are fine",
        &of_metadata(
            of(json!({"type": "object"}), json!({"name": "foo", "unknown": 42})),
            kind(),
        ),
        &[],
    );
    check(
        "values of TypeMeta and ObjectMeta that do not validate",
        &of_metadata(
            of(json!({"type": "object"}), json!({"labels": {"bar": "x y"}})),
            of(kind(), json!("%")),
        ),
        &[
            "invalid properties[embedded].properties[metadata].default",
            "invalid properties[embedded].properties[kind].default",
        ],
    );
    let labels = json!({"type": "object", "properties": {"bar": of(kind(), json!(42))}});
    check(
        "wrongly typed fields of ObjectMeta",
        &of_metadata(object(json!({"name": of(kind(), json!(42)), "labels": labels})), kind()),
        &[
            "invalid properties[embedded].properties[metadata].properties[labels].properties[bar].default",
            "invalid properties[embedded].properties[metadata].properties[name].default",
        ],
    );
    check(
        "default inside additionalProperties of metadata",
        &of_metadata(
            json!({"type": "object", "properties": {"annotations":
                {"type": "object", "additionalProperties": of(kind(), json!("abc"))}}}),
            kind(),
        ),
        &["forbidden properties[embedded].properties[metadata].properties[annotations].additionalProperties.default"],
    );
    check(
        "embedded resource inside resource meta",
        &of_metadata(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            kind(),
        ),
        &["forbidden properties[embedded].properties[metadata].x-kubernetes-embedded-resource"],
    );
}

#[test]
fn field_paths() {
    let schema = object(json!({
        "foo": object(json!({"f1": {"type": "integer"}})),
        "a": object(json!({
            "b": {"type": "integer"},
            "bbb": object(json!({"c": {"type": "integer"}, "34": {"type": "integer"}})),
            "bbb.c": object(json!({"a-b34": {"type": "integer"}, "a-b.34": {"type": "integer"}})),
        })),
        "list": {"type": "array", "items": object(json!({"a": {"type": "integer"}}))},
    }));
    let schema = Structural::parse(&schema).unwrap();
    for (path, expected) in [
        (".a", Ok("a")),
        (".a.b", Ok("a.b")),
        (".foo.f1", Ok("foo.f1")),
        (".a['bbb.c']", Ok("a.bbb.c")),
        (".a['bbb.c'].a-b34", Ok("a.bbb.c.a-b34")),
        (".a['bbb.c']['a-b34']", Ok("a.bbb.c.a-b34")),
        (".a['bbb.c']['a-b.34']", Ok("a.bbb.c.a-b.34")),
        (".a.bbb.c", Ok("a.bbb.c")),
        (".a.bbb.34", Ok("a.bbb.34")),
        (".list", Ok("list")),
        (".a.b.c", Err("does not refer to a valid field")),
        (".a['x']", Err("does not refer to a valid field")),
        (".a[b]", Err("expected single quoted string but got b")),
        (".a['bbb", Err("expected single quoted string but got 'bbb")),
        (".a['bbb'", Err("unexpected end of JSON path")),
        (".list[1]", Err("expected single quoted string but got 1")),
        (".list.a", Err("does not refer to a valid field")),
        (".list['a']", Err("does not refer to a valid field")),
        ("a.b", Err("expected [ or . but got: a")),
        (".a..b", Err("does not refer to a valid field")),
        (".a[-1]", Err("expected single quoted string but got -1")),
        (".a.", Err("unexpected end of JSON path")),
    ] {
        let found = field_path::follow(path, &schema, true);
        let found = found.map(|f| f.path.to_string()).map_err(|e| e.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{path}");
    }
}
