//! How long typical rules take.

use criterion::{Criterion, criterion_group, criterion_main};
use orlop_cel::{Activation, Budget, Env, Type, Value, self_type};
use serde_json::json;
use std::hint::black_box;

fn rules(c: &mut Criterion) {
    let schema = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"}, "minReplicas": {"type": "integer"}, "maxReplicas": {"type": "integer"},
        "name": {"type": "string", "maxLength": 63},
        "mode": {"type": "string"},
        "ports": {"type": "array", "maxItems": 20, "items": {"type": "object", "properties": {
            "name": {"type": "string"}, "port": {"type": "integer"}}}},
    }});
    let decl = self_type(&schema, "selfType", false).expect("the schema can be seen");
    let object = json!({"replicas": 3, "minReplicas": 1, "maxReplicas": 5, "name": "web-frontend", "mode": "Fast",
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "metrics", "port": 9090}]});
    let env = Env::builder().variable("self", decl.clone()).build();
    for (name, rule) in [
        (
            "compare",
            "self.minReplicas <= self.replicas && self.replicas <= self.maxReplicas",
        ),
        ("pattern", "self.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')"),
        ("among", "has(self.mode) && self.mode in ['Fast', 'Slow', 'Off']"),
        ("all", "self.ports.all(p, p.port > 0 && p.port < 65536)"),
        (
            "unique",
            "self.ports.all(p, self.ports.exists_one(q, q.name == p.name))",
        ),
    ] {
        let program = env.compile(rule, &[Type::Bool]).expect("the rule compiles");
        c.bench_function(name, |b| {
            b.iter(|| {
                let value = Value::declared(&object, &decl).expect("the object fits its schema");
                let activation = Activation::new().bind("self", value);
                black_box(
                    program
                        .eval(&activation, &mut Budget::per_call())
                        .expect("the rule holds")
                        .as_bool(),
                )
            });
        });
        c.bench_function(&format!("compile {name}"), |b| {
            b.iter(|| black_box(env.compile(rule, &[Type::Bool])))
        });
    }
}

criterion_group!(benches, rules);
criterion_main!(benches);
