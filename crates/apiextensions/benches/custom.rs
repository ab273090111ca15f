//! What a custom object costs beside a ConfigMap of the same size: decode, default, validate. And what a definition costs.

use criterion::{Criterion, criterion_group, criterion_main};
use orlop_api::field::{Cursor, Problems};
use orlop_api::schema::{decode_json, schema};
use orlop_apiextensions::{CustomVersion, definition};
use serde_json::{Map, Value, json};
use std::hint::black_box;

const FIELDS: usize = 200;

fn name(i: usize) -> String {
    format!("field{i:03}")
}

fn metadata() -> Value {
    json!({"name": "a", "namespace": "default", "labels": {"app": "x"}, "annotations": {"note": "y"}})
}

fn config_map() -> Vec<u8> {
    let data: Map<String, Value> = (0..FIELDS).map(|i| (name(i), "some value".into())).collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(), "data": data});
    object.to_string().into_bytes()
}

fn custom_object() -> Vec<u8> {
    let spec: Map<String, Value> = (0..FIELDS).map(|i| (name(i), "some value".into())).collect();
    let object = json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": metadata(), "spec": spec});
    object.to_string().into_bytes()
}

fn a_definition() -> Value {
    let description = "What this field is for, in a sentence or two, as generated schemas have it for every field.";
    let property = |i: usize| match i % 4 {
        0 => json!({"type": "string", "description": description, "maxLength": 100}),
        1 => json!({"type": "string", "description": description, "pattern": "^[a-z ]+$"}),
        2 => json!({"type": "string", "description": description, "enum": ["some value", "other"]}),
        _ => json!({"type": "string", "description": description, "default": "some value"}),
    };
    let properties: Map<String, Value> = (0..FIELDS).map(|i| (name(i), property(i))).collect();
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.ex.io"},
        "spec": {"group": "ex.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
             "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                 "spec": {"type": "object", "properties": properties}, "status": {"type": "object"}}}}}]},
    });
    definition::default(&mut definition);
    definition
}

fn objects(c: &mut Criterion) {
    let ty = schema().get("core/v1.ConfigMap").expect("the table has ConfigMap");
    let bytes = config_map();
    c.bench_function("config_map/decode", |b| {
        b.iter(|| decode_json(black_box(&bytes), ty).expect("it is a ConfigMap"));
    });
    let def = &orlop_api::core::config_map::DEF;
    c.bench_function("config_map/decode_default_validate", |b| {
        b.iter(|| {
            let mut value = decode_json(black_box(&bytes), ty).expect("it is a ConfigMap").value;
            (def.default)(&mut value);
            let mut p = Problems::default();
            (def.validate)(&Cursor::root(&value), &mut p);
            assert!(p.is_empty());
        });
    });
    let version = CustomVersion::compile(&a_definition(), "v1").expect("the definition is fine");
    let bytes = custom_object();
    c.bench_function("custom/decode", |b| {
        b.iter(|| version.decode_json(black_box(&bytes)).expect("it is an object"));
    });
    c.bench_function("custom/decode_default_validate", |b| {
        b.iter(|| {
            let mut value = version.decode_json(black_box(&bytes)).expect("it is an object").value;
            version.default(&mut value);
            let mut p = Problems::default();
            version.validate(&value, None, "", &mut p);
            assert!(p.is_empty());
        });
    });
}

fn definitions(c: &mut Criterion) {
    let definition = a_definition();
    c.bench_function("definition/validate", |b| {
        b.iter(|| {
            let mut p = Problems::default();
            definition::validate(&Cursor::root(black_box(&definition)), &mut p);
            assert!(p.is_empty());
        });
    });
    c.bench_function("definition/compile", |b| {
        b.iter(|| CustomVersion::compile(black_box(&definition), "v1").expect("the definition is fine"));
    });
}

criterion_group!(benches, objects, definitions);
criterion_main!(benches);
