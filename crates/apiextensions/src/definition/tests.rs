//! What definitions are accepted and refused.

use orlop_api::field::{Cursor, Problems};
use serde_json::{Value, json};

use super::*;

/// A definition that is fine, with a schema.
fn of_schema(schema: Value) -> Value {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.ex.io"},
        "spec": {
            "group": "ex.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    default(&mut definition);
    definition
}

fn plain() -> Value {
    of_schema(json!({"type": "object"}))
}

fn of_property(property: Value) -> Value {
    of_schema(json!({"type": "object", "properties": {"a": property}}))
}

/// A JSON merge patch on a definition.
fn with(mut definition: Value, patch: Value) -> Value {
    fn merge(into: &mut Value, patch: Value) {
        match patch {
            Value::Object(patch) => {
                if !into.is_object() {
                    *into = json!({});
                }
                for (name, value) in patch {
                    if value.is_null() {
                        into.as_object_mut().unwrap().remove(&name);
                    } else {
                        merge(&mut into[name.as_str()], value);
                    }
                }
            }
            other => *into = other,
        }
    }
    merge(&mut definition, patch);
    definition
}

/// The same for its first version.
fn with_version(mut definition: Value, patch: Value) -> Value {
    let version = definition["spec"]["versions"][0].take();
    definition["spec"]["versions"][0] = with(version, patch);
    definition
}

fn created(definition: &Value) -> Vec<String> {
    let mut p = Problems::default();
    validate(&Cursor::root(definition), &mut p);
    p.0.iter().map(ToString::to_string).collect()
}

fn updated(new: &Value, old: &Value) -> Vec<String> {
    let mut p = Problems::default();
    validate_update(&Cursor::root(new), &Cursor::root(old), &mut p);
    p.0.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn refuses(cases: &[(Value, &str)]) {
    for (definition, expected) in cases {
        let found = created(definition);
        match *expected {
            "" => assert!(found.is_empty(), "{found:#?}"),
            expected => assert!(found.iter().any(|f| f.contains(expected)), "{expected}\n{found:#?}"),
        }
    }
}

#[test]
fn defaults() {
    let definition = with(
        plain(),
        json!({"spec": {"conversion": {"strategy": "Webhook",
        "webhook": {"clientConfig": {"service": {"name": "a", "namespace": "b"}}}}}}),
    );
    let mut definition = definition;
    default(&mut definition);
    assert_eq!(definition["spec"]["names"]["singular"], "foo");
    assert_eq!(definition["spec"]["names"]["listKind"], "FooList");
    assert_eq!(
        definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"],
        443
    );
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(plain()["spec"]["conversion"], json!({"strategy": "None"}));
    let before = definition.clone();
    default(&mut definition);
    assert_eq!(definition, before);
}

#[test]
fn writers_do_not_set_the_status() {
    let mut new = with(
        plain(),
        json!({"status": {"acceptedNames": {"kind": "X"}, "storedVersions": ["v9"]}}),
    );
    prepare_create(&mut new);
    assert_eq!(new["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(new["status"]["acceptedNames"]["kind"], "");
    let mut changed = with_version(new.clone(), json!({"name": "v2"}));
    changed["status"] = json!({});
    prepare_update(&mut changed, &new);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn names_and_versions() {
    let names = |patch: Value| with(plain(), json!({"spec": {"names": patch}}));
    let spec = |patch: Value| with(plain(), json!({"spec": patch}));
    let version = |patch: Value| with_version(plain(), patch);
    refuses(&[
        (plain(), ""),
        (
            with(plain(), json!({"metadata": {"name": "x.ex.io"}})),
            "metadata.name: Invalid value: \"x.ex.io\": must be spec.names.plural+\".\"+spec.group",
        ),
        (spec(json!({"group": null})), "spec.group: Required value"),
        (
            spec(json!({"group": "io"})),
            "spec.group: Invalid value: \"io\": should be a domain with at least one dot",
        ),
        (
            spec(json!({"group": "A.b"})),
            "spec.group: Invalid value: \"A.b\": a lowercase RFC 1123 subdomain",
        ),
        (spec(json!({"scope": null})), "spec.scope: Required value"),
        (
            spec(json!({"scope": "Some"})),
            "spec.scope: Unsupported value: \"Some\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (names(json!({"kind": null})), "spec.names.kind: Required value"),
        (
            names(json!({"kind": "F_o"})),
            "spec.names.kind: Invalid value: \"F_o\": may have mixed case, but should otherwise match: a DNS-1035 label",
        ),
        (
            names(json!({"listKind": "Foo"})),
            "spec.names.listKind: Invalid value: \"Foo\": kind and listKind may not be the same",
        ),
        (
            names(json!({"shortNames": ["a", "B"]})),
            "spec.names.shortNames[1]: Invalid value: \"B\": a DNS-1035 label",
        ),
        (
            names(json!({"categories": ["B"]})),
            "spec.names.categories[0]: Invalid value: \"B\"",
        ),
        (
            version(json!({"name": "1"})),
            "spec.versions[0].name: Invalid value: \"1\": a DNS-1035 label",
        ),
        (
            version(json!({"storage": false})),
            "must have exactly one version marked as storage version",
        ),
        (
            version(json!({"schema": null})),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
        ),
        (
            version(json!({"deprecationWarning": "x"})),
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions",
        ),
        (version(json!({"deprecated": true, "deprecationWarning": "x"})), ""),
        (
            version(json!({"deprecated": true, "deprecationWarning": "a\tb"})),
            "must only contain printable UTF-8 characters; non-printable character found at index 1",
        ),
        (
            spec(json!({"preserveUnknownFields": true})),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (
            with(plain(), json!({"status": {"storedVersions": ["v1", "v0"]}})),
            "status.storedVersions[1]: Invalid value: \"v0\": missing from spec.versions; v0 was previously a storage version",
        ),
        (
            with(plain(), json!({"status": {"storedVersions": ["v0"]}})),
            "status.storedVersions: Invalid value: [\"v0\"]: must have the storage version v1",
        ),
        (
            with(plain(), json!({"status": {"storedVersions": []}})),
            "status.storedVersions: Invalid value: []: must have at least one stored version",
        ),
    ]);
    let mut twice = plain();
    let version = twice["spec"]["versions"][0].clone();
    twice["spec"]["versions"].as_array_mut().unwrap().push(version);
    refuses(&[(twice, "must contain unique version names")]);
}

#[test]
fn protected_groups_are_approved() {
    let of = |annotation: Value| {
        with(
            plain(),
            json!({"metadata": {"name": "foos.x.k8s.io", "annotations": {"api-approved.kubernetes.io": annotation}},
                   "spec": {"group": "x.k8s.io"}}),
        )
    };
    refuses(&[
        (of(json!("https://github.com/kubernetes/kubernetes/pull/1")), ""),
        (of(json!("unapproved, for tests")), ""),
        (
            of(Value::Null),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see",
        ),
        (
            of(json!("yes")),
            "with either a URL or a reason starting with \"unapproved\"",
        ),
    ]);
    let (missing, invalid) = (of(Value::Null), of(json!("x")));
    assert!(updated(&missing, &missing).is_empty());
    assert!(!updated(&invalid, &missing).is_empty());
}

#[test]
fn schemas_are_structural() {
    let root = |schema: Value| of_schema(schema);
    refuses(&[
        (
            root(json!({})),
            "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root",
        ),
        (
            root(json!({"type": "string"})),
            "openAPIV3Schema.type: Invalid value: \"string\": must be object at the root",
        ),
        (
            of_property(json!({})),
            "spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            of_property(json!({"type": "array"})),
            "spec.validation.openAPIV3Schema.properties[a].items: Required value: must be specified",
        ),
        (
            of_property(json!({"type": "array", "items": {}})),
            "properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            root(json!({"type": "object", "additionalProperties": true})),
            "openAPIV3Schema.additionalProperties: Forbidden: must not be used at the root",
        ),
        (of_property(json!({"x-kubernetes-int-or-string": true})), ""),
        (of_property(json!({"x-kubernetes-preserve-unknown-fields": true})), ""),
        (
            of_property(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            "",
        ),
        (
            of_property(
                json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "x"}]}),
            ),
            "",
        ),
        (
            of_property(json!({"type": "string", "anyOf": [{"type": "integer"}]})),
            "properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            of_property(json!({"type": "string", "not": {"nullable": true, "default": 1, "description": "d"}})),
            "properties[a].not.default: Forbidden: must be undefined to be structural",
        ),
        (
            root(json!({"type": "object", "oneOf": [{"required": ["b"], "properties": {"b": {"minimum": 1}}}]})),
            "openAPIV3Schema.properties[b]: Required value: because it is defined in spec.validation.openAPIV3Schema.oneOf[0].properties[b]",
        ),
        (
            root(json!({"type": "object", "allOf": [{"items": {"minimum": 1}}]})),
            "openAPIV3Schema.items: Required value: because it is defined in spec.validation.openAPIV3Schema.allOf[0].items",
        ),
        (
            of_property(json!({"type": "string", "pattern": "("})),
            "properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
        ),
        (
            root(
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}}),
            ),
            "",
        ),
        (
            root(json!({"type": "object", "properties": {"metadata": {"type": "object", "additionalProperties": {}}}})),
            "properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            root(
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            ),
            "properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            root(json!({"type": "object", "properties": {"kind": {"type": "integer"}}})),
            "properties[kind].type: Invalid value: \"integer\": must be string",
        ),
        (
            of_property(json!({"type": "object", "x-kubernetes-embedded-resource": true})),
            "properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            of_property(
                json!({"type": "string", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            ),
            "properties[a].type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true",
        ),
        (
            of_property(json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true})),
            "x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
    ]);
}

#[test]
fn what_openapi_knows_and_definitions_may_not_have() {
    refuses(&[
        (
            of_property(json!({"type": "text"})),
            "properties[a].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            of_property(json!({"type": "null"})),
            "properties[a].type: Forbidden: type cannot be set to null, use nullable as an alternative",
        ),
        (
            of_property(json!({"type": "string", "$ref": "x"})),
            "properties[a].$ref: Forbidden: $ref is not supported",
        ),
        (
            of_property(json!({"type": "object", "patternProperties": {"a": {}}})),
            "properties[a].patternProperties: Forbidden: patternProperties is not supported",
        ),
        (
            of_property(json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
            "properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            of_property(
                json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ),
            "properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            of_schema(json!({"type": "object", "nullable": true})),
            "spec.validation.openAPIV3Schema.nullable: Forbidden: nullable cannot be true at the root",
        ),
        (
            with_version(
                of_schema(json!({"type": "object", "minProperties": 1})),
                json!({"subresources": {"status": {}}}),
            ),
            "spec.validation.openAPIV3Schema: Invalid value: ",
        ),
        (with_version(plain(), json!({"subresources": {"status": {}}})), ""),
    ]);
}

#[test]
fn lists_and_maps() {
    let list = |patch: Value| of_property(with(json!({"type": "array", "items": {"type": "string"}}), patch));
    let keyed = |items: Value, keys: Value| {
        list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items}))
    };
    let object = |properties: Value| json!({"type": "object", "required": ["k"], "properties": properties});
    refuses(&[
        (list(json!({"x-kubernetes-list-type": "set"})), ""),
        (
            list(json!({"x-kubernetes-list-type": "bag"})),
            "properties[a].x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            of_property(json!({"type": "string", "x-kubernetes-list-type": "set"})),
            "properties[a].type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
        ),
        (
            of_property(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
            "properties[a].type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
        ),
        (
            list(json!({"x-kubernetes-list-type": "set", "items": {"type": "object"}})),
            "properties[a].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (keyed(object(json!({"k": {"type": "string"}})), json!(["k"])), ""),
        (
            keyed(object(json!({"k": {"type": "string"}})), json!([])),
            "properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            keyed(object(json!({"k": {"type": "string"}})), json!(["x"])),
            "properties[a].x-kubernetes-list-map-keys: Invalid value: [\"x\"]: entries must all be names of item properties",
        ),
        (
            keyed(object(json!({"k": {"type": "string"}})), json!(["k", "k"])),
            "properties[a].x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\"]: must not contain duplicate entries",
        ),
        (
            keyed(object(json!({"k": {"type": "object"}})), json!(["k"])),
            "items.properties[k].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
        ),
        (
            keyed(json!({"type": "string"}), json!(["k"])),
            "properties[a].items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
        ),
        (
            keyed(
                object(json!({"k": {"type": "string"}, "l": {"type": "string"}})),
                json!(["k", "l"]),
            ),
            "items.properties[l].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ),
        (
            keyed(object(json!({"k": {"type": "string", "nullable": true}})), json!(["k"])),
            "items.properties[k].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
        ),
        (
            list(json!({"x-kubernetes-list-type": "set", "items": {"nullable": true}})),
            "properties[a].items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        ),
        (
            list(json!({"x-kubernetes-list-map-keys": ["k"]})),
            "properties[a].x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
    ]);
}

#[test]
fn defaults_satisfy_their_schema() {
    let embedded = |properties: Value| {
        of_property(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "properties": properties}),
        )
    };
    refuses(&[
        (of_property(json!({"type": "string", "default": "x"})), ""),
        (
            of_property(json!({"type": "string", "default": 1})),
            "properties[a].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
        ),
        (
            of_property(
                json!({"type": "object", "default": {"b": 1, "c": 2}, "properties": {"b": {"type": "integer"}}}),
            ),
            "properties[a].default: Invalid value: {\"b\":1,\"c\":2}: must not have unknown fields",
        ),
        (
            of_property(json!({"type": "string", "enum": ["x"], "default": "y"})),
            "properties[a].default: Unsupported value: \"y\": supported values: \"x\"",
        ),
        (
            of_schema(json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}})),
            "properties[metadata].default: Forbidden: must not be set in top-level metadata",
        ),
        (
            embedded(
                json!({"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "ok"}}}}),
            ),
            "",
        ),
        (
            embedded(
                json!({"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "a/b"}}}}),
            ),
            "properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'",
        ),
        (
            embedded(json!({"kind": {"type": "string", "default": "A_b"}})),
            "must result in valid metadata: kind: Invalid value",
        ),
    ]);
}

#[test]
fn subresources_columns_and_fields() {
    let scale = |patch: Value| {
        let base = json!({"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"});
        with_version(plain(), json!({"subresources": {"scale": with(base, patch)}}))
    };
    let column = |patch: Value| {
        let base = json!({"name": "A", "type": "string", "jsonPath": ".a"});
        with_version(plain(), json!({"additionalPrinterColumns": [with(base, patch)]}))
    };
    let field = |path: &str| {
        let schema = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": {"type": "object", "properties": {"color": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}}}}}});
        with_version(of_schema(schema), json!({"selectableFields": [{"jsonPath": path}]}))
    };
    refuses(&[
        (scale(json!({})), ""),
        (
            scale(json!({"specReplicasPath": ""})),
            "spec.subresources.scale.specReplicasPath: Required value",
        ),
        (
            scale(json!({"specReplicasPath": "spec.r"})),
            "spec.subresources.scale.specReplicasPath: Invalid value: \"spec.r\": must be a simple json path starting with .",
        ),
        (
            scale(json!({"specReplicasPath": ".status.r"})),
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.r\": should be a json path under .spec",
        ),
        (
            scale(json!({"statusReplicasPath": ".spec.r"})),
            "spec.subresources.scale.statusReplicasPath: Invalid value: \".spec.r\": should be a json path under .status",
        ),
        (
            scale(json!({"labelSelectorPath": ".x.r"})),
            "spec.subresources.scale.labelSelectorPath: Invalid value: \".x.r\": should be a json path under either .spec or .status",
        ),
        (column(json!({})), ""),
        (
            column(json!({"type": "text"})),
            "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
        ),
        (
            column(json!({"name": ""})),
            "spec.additionalPrinterColumns[0].name: Required value",
        ),
        (
            column(json!({"jsonPath": "a"})),
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"a\": must be a simple json path starting with .",
        ),
        (
            column(json!({"format": "x"})),
            "spec.additionalPrinterColumns[0].format: Invalid value: \"x\": must be one of byte,date,date-time,double,float,int32,int64,password",
        ),
        (field(".spec.color"), ""),
        (
            field(".spec.none"),
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field",
        ),
        (
            field(".metadata.name"),
            "Invalid value: \".metadata.name\": must not point to fields in metadata",
        ),
        (
            field(".spec.l"),
            "must point to a field of type string, boolean or integer.",
        ),
        (
            field(".spec['color']"),
            "is an invalid path: array notation is not allowed",
        ),
        (field("spec.color"), "is an invalid path: expected [ or . but got: spec"),
    ]);
}

#[test]
fn conversion_webhooks() {
    let base = || json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://a/b"}}});
    let conversion = |patch: Value| with(plain(), json!({"spec": {"conversion": with(base(), patch)}}));
    refuses(&[
        (conversion(json!({})), ""),
        (
            conversion(json!({"webhook": {"clientConfig": null}})),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
        (
            conversion(json!({"webhook": {"clientConfig": {"service": {"name": "a", "namespace": "b", "port": 1}}}})),
            "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
        ),
        (
            conversion(json!({"webhook": {"clientConfig": {"url": "http://a"}}})),
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
        ),
        (
            conversion(json!({"webhook": {"conversionReviewVersions": []}})),
            "spec.conversion.conversionReviewVersions: Required value",
        ),
        (
            conversion(json!({"webhook": {"conversionReviewVersions": ["v9"]}})),
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
        ),
        (
            conversion(json!({"webhook": {"conversionReviewVersions": ["v1", "v1"]}})),
            "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
        ),
        (
            conversion(json!({"strategy": "None"})),
            "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
        ),
        (
            conversion(json!({"strategy": "Magic"})),
            "spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\"",
        ),
    ]);
    let established = json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let old = with(conversion(json!({})), established.clone());
    let bad = with(
        conversion(json!({"webhook": {"clientConfig": {"caBundle": "eA=="}}})),
        established,
    );
    let found = updated(&bad, &old);
    assert!(
        found[0].contains(
            "caBundle: Invalid value: \"eA==\": unable to load root certificates: unable to parse bytes as PEM block"
        ),
        "{found:?}"
    );
    assert!(updated(&bad, &bad).is_empty());
}

#[test]
fn several_versions_have_schemas_of_their_own() {
    let mut two = of_property(json!({"type": "string"}));
    let second = json!({"name": "v2", "served": true, "storage": false,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}}});
    two["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(
        created(&two),
        [
            "spec.versions[1].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields"
        ]
    );
}

#[test]
fn updates_keep_what_was_allowed() {
    let established = |definition: Value| {
        with(
            definition,
            json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}}),
        )
    };
    let old = established(plain());
    for (patch, expected) in [
        (
            json!({"group": "other.io"}),
            "spec.group: Invalid value: \"other.io\": field is immutable",
        ),
        (
            json!({"scope": "Cluster"}),
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
        ),
        (
            json!({"names": {"kind": "Bar"}}),
            "spec.names.kind: Invalid value: \"Bar\": field is immutable",
        ),
        (
            json!({"names": {"plural": "bars"}}),
            "spec.names.plural: Invalid value: \"bars\": field is immutable",
        ),
    ] {
        let found = updated(&with(old.clone(), json!({"spec": patch})), &old);
        assert!(found.iter().any(|f| f == expected), "{found:?}");
    }
    let fresh = plain();
    assert!(updated(&with(fresh.clone(), json!({"spec": {"scope": "Cluster"}})), &fresh).is_empty());
    // A type that is none, and a set of objects: refused in new definitions, kept in old ones.
    for property in [
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object", "properties": {"b": {"type": "string"}}}}),
        json!({"type": "object", "default": {"x": 1}, "properties": {"b": {"type": "string"}}}),
    ] {
        let old = of_property(property);
        assert!(!created(&old).is_empty());
        assert_eq!(updated(&old, &old), Vec::<String>::new());
    }
}

#[test]
fn unknown_formats_are_warned_of() {
    let odd = of_property(json!({"type": "string", "format": "odd"}));
    let fine = of_property(json!({"type": "string", "format": "date-time"}));
    assert_eq!(warnings(&Cursor::root(&odd), None), ["unrecognized format \"odd\""]);
    assert!(warnings(&Cursor::root(&odd), Some(&Cursor::root(&odd))).is_empty());
    assert!(warnings(&Cursor::root(&fine), None).is_empty());
}

#[test]
fn rules_are_looked_at() {
    let rule = |rule: Value| {
        of_property(
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "x-kubernetes-validations": [rule]}),
        )
    };
    refuses(&[
        (
            rule(json!({"rule": " "})),
            "properties[a].x-kubernetes-validations[0].rule: Required value: rule is not specified",
        ),
        (
            rule(json!({"rule": "true", "message": " "})),
            "x-kubernetes-validations[0].message: Invalid value: \" \": must be non-empty if specified",
        ),
        (
            rule(json!({"rule": "true\n&& true"})),
            "x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks",
        ),
        (
            rule(json!({"rule": "true", "reason": "Odd"})),
            "x-kubernetes-validations[0].reason: Unsupported value: \"Odd\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            rule(json!({"rule": "true", "fieldPath": ".c"})),
            "x-kubernetes-validations[0].fieldPath: Invalid value: \".c\": must be a valid path",
        ),
        (
            rule(json!({"rule": "true", "fieldPath": ".b", "reason": "FieldValueRequired"})),
            "",
        ),
    ]);
}

#[test]
fn rules_are_compiled() {
    let rule = |property: Value, rule: Value| {
        let mut property = property;
        property["x-kubernetes-validations"] = json!([rule]);
        of_property(property)
    };
    let string = || json!({"type": "string", "maxLength": 10});
    refuses(&[
        (rule(string(), json!({"rule": "self == 'x'"})), ""),
        (
            rule(string(), json!({"rule": "self.foo"})),
            "properties[a].x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.foo\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: compilation failed: ERROR: <input>:1:5: type 'string' does not support field selection",
        ),
        (
            rule(string(), json!({"rule": "self"})),
            "cel expression must evaluate to a bool",
        ),
        (
            rule(string(), json!({"rule": "self =="})),
            "compilation failed: ERROR: <input>:1:8: Syntax error",
        ),
        (
            rule(string(), json!({"rule": "true", "messageExpression": "1"})),
            "x-kubernetes-validations[0].messageExpression: Invalid value: ",
        ),
        (
            rule(string(), json!({"rule": "true", "optionalOldSelf": true})),
            "x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
        (
            of_property(
                json!({"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 3, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
            ),
            "items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[a]",
        ),
        (
            of_property(
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}),
            ),
            "properties[a].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
        ),
    ]);
    // An unchanged schema is not refused for what its rules may cost each, but a new one is.
    let costly = of_property(
        json!({"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 100_000}, "x-kubernetes-validations": [{"rule": "self.all(x, x.contains('yyyyyyyyyyyyyyyyyyyyy'))"}]}),
    );
    let found = created(&costly);
    assert!(
        found
            .iter()
            .any(|f| f.contains("estimated rule cost exceeds budget by factor of")),
        "{found:?}"
    );
    assert!(updated(&costly, &costly).is_empty(), "{:?}", updated(&costly, &costly));
}
