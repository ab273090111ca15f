use super::*;
use crate::objects::fake::FakeCluster;
use crate::spec::testing;
use orlop_base::Clock;
use serde_json::{Value, json};

/// Config maps and secrets of namespace `default`.
fn cluster() -> FakeCluster {
    let cluster = FakeCluster::default();
    for (path, data) in [
        ("configmaps/cm", json!({"data": {"a": "1", "b.c": "2"}})),
        ("configmaps/more", json!({"data": {"a": "3"}})),
        ("configmaps/empty", json!({})),
        // pass; ff 00 41
        ("secrets/s", json!({"data": {"p": "cGFzcw==", "bytes": "/wBB"}})),
    ] {
        cluster.put(&format!("/api/v1/namespaces/default/{path}"), data);
    }
    cluster
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn run_with(
    cluster: &FakeCluster,
    services: &[Arc<Service>],
    spec: Value,
    container: Value,
) -> Result<Vec<KeyValue>, String> {
    let (pod, container, facts) = (testing::pod(spec), testing::container(container), NodeFacts::default());
    let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
    let objects = Objects::new(Some(cluster.api()), clock);
    let ips = ["10.0.0.9".to_string()];
    block_on(resolve(&pod, &container, &objects, services, &ips, &facts)).map_err(|e| e.0)
}

fn run(container: Value) -> Result<Vec<String>, String> {
    let pairs = run_with(&cluster(), &[], json!({}), container)?;
    Ok(pairs
        .iter()
        .map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value)))
        .collect())
}

#[test]
fn variables_in_their_order() {
    for (container, expected) in [
        (json!({}), vec![]),
        (
            json!({"env": [{"name": "B", "value": "1"}, {"name": "A"}]}),
            vec!["B=1", "A="],
        ),
        (
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x$(A)$(C)$$(A)"}, {"name": "C", "value": "3"}]}),
            vec!["A=1", "B=x1$(C)$(A)", "C=3"],
        ),
        (
            json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]}),
            vec!["A=12"],
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}]}),
            vec!["a=1", "b.c=2"],
        ),
        (
            json!({"envFrom": [{"prefix": "X_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}, "prefix": "S_"}]}),
            vec!["X_a=1", "X_b.c=2", "S_bytes=\u{fffd}\0A", "S_p=pass"],
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}, {"configMapRef": {"name": "more"}}],
                "env": [{"name": "b.c", "value": "mine $(a)"}]}),
            vec!["a=3", "b.c=mine 3"],
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "gone", "optional": true}}, {"secretRef": {"name": "gone", "optional": true}},
                {"configMapRef": {"name": "empty"}}, {}]}),
            vec![],
        ),
        (
            json!({"env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}},
                {"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "p"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
                {"name": "ALL", "value": "$(A)-$(P)-$(IP)-$(R)"},
            ]}),
            vec!["A=1", "P=pass", "IP=10.0.0.9", "R=0", "ALL=1-pass-10.0.0.9-0"],
        ),
        (
            json!({"env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "a", "optional": true}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "gone", "optional": true}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "a", "optional": true}}},
                {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "gone", "optional": true}}},
                {"name": "E", "value": "$(A)"},
            ]}),
            vec!["E=$(A)"],
        ),
    ] {
        assert_eq!(run(container.clone()).unwrap(), expected, "{container}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let key = |kind: &str, name: &str, key: &str| json!({"env": [{"name": "A", "valueFrom": {kind: {"name": name, "key": key}}}]});
    for (container, expected) in [
        (
            key("configMapKeyRef", "cm", "k"),
            "couldn't find key k in ConfigMap default/cm",
        ),
        (
            key("configMapKeyRef", "empty", "k"),
            "couldn't find key k in ConfigMap default/empty",
        ),
        (key("secretKeyRef", "s", "k"), "couldn't find key k in Secret default/s"),
        (key("configMapKeyRef", "x", "k"), "configmap \"x\" not found"),
        (key("secretKeyRef", "x", "k"), "secret \"x\" not found"),
        (
            json!({"envFrom": [{"configMapRef": {"name": "x"}}]}),
            "configmap \"x\" not found",
        ),
        (
            json!({"envFrom": [{"secretRef": {"name": "x"}}]}),
            "secret \"x\" not found",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
            "field label not supported: x",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]}),
            "cannot find the volume \"v\" referenced by FileKeyRef",
        ),
    ] {
        assert_eq!(run(container.clone()).unwrap_err(), expected, "{container}");
    }
}

#[test]
fn an_object_that_cannot_be_had_is_not_a_missing_one() {
    let cluster = cluster();
    cluster.set_down(true);
    let optional = json!({"envFrom": [{"configMapRef": {"name": "cm", "optional": true}}]});
    let error = run_with(&cluster, &[], json!({}), optional).unwrap_err();
    assert!(error.contains("down"), "{error}");
}

#[test]
fn secrets_stay_bytes() {
    let container = json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "bytes"}}}]});
    assert_eq!(
        run_with(&cluster(), &[], json!({}), container).unwrap()[0].value,
        [0xff, 0, b'A']
    );
}

#[test]
fn services_fill_in_what_is_left() {
    let service: Service = orlop_api::types::from_value(json!({
        "metadata": {"name": "db", "namespace": "default"}, "spec": {"clusterIP": "1.2.3.4", "ports": [{"port": 5432}]},
    }))
    .unwrap();
    let services = [Arc::new(service)];
    let container = json!({"env": [
        {"name": "URL", "value": "pg://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)"}, {"name": "DB_PORT", "value": "mine"},
    ]});
    let run = |spec: Value| {
        let pairs = run_with(&cluster(), &services, spec, container.clone()).unwrap();
        pairs
            .iter()
            .map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value)))
            .collect::<Vec<_>>()
    };
    let linked = run(json!({}));
    assert_eq!(linked[..2], ["URL=pg://1.2.3.4:5432", "DB_PORT=mine"]);
    assert!(linked.contains(&"DB_SERVICE_HOST=1.2.3.4".to_string()));
    assert_eq!(linked.iter().filter(|v| v.starts_with("DB_PORT=")).count(), 1);
    let unlinked = run(json!({"enableServiceLinks": false}));
    assert_eq!(
        unlinked,
        ["URL=pg://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)", "DB_PORT=mine"]
    );
}

#[test]
fn files_of_variables() {
    let dir = tempfile::tempdir().unwrap();
    let facts = NodeFacts {
        root_dir: dir.path().to_path_buf(),
        ..NodeFacts::default()
    };
    let volume = dir.path().join("pods/u-1/volumes/kubernetes.io~empty-dir/v");
    std::fs::create_dir_all(&volume).unwrap();
    std::fs::write(volume.join("good"), "K='value'\nEMPTY=''\n").unwrap();
    std::fs::write(volume.join("bad"), "K=value\n").unwrap();
    let pod =
        testing::pod(json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/"}}]}));
    let objects = Objects::new(None, Clock::manual("2026-01-02T03:04:05Z".parse().unwrap()));
    for (volume, path, key, optional, expected) in [
        ("v", "good", "K", false, Ok(Some("value"))),
        ("v", "good", "X", true, Ok(None)),
        (
            "v",
            "good",
            "X",
            false,
            Err("environment variable key \"X\" not found in file \"good\""),
        ),
        (
            "v",
            "good",
            "EMPTY",
            false,
            Err("environment variable key \"EMPTY\" not found in file \"good\""),
        ),
        ("v", "bad", "K", false, Err("couldn't parse env file")),
        ("v", "gone", "K", true, Err("couldn't parse env file")),
        (
            "h",
            "good",
            "K",
            false,
            Err("cannot find the volume \"h\" referenced by FileKeyRef"),
        ),
    ] {
        let file = json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
        let container = testing::container(json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": file}}]}));
        let got = block_on(resolve(&pod, &container, &objects, &[], &[], &facts));
        let got = got.map(|pairs| pairs.first().map(|kv| String::from_utf8(kv.value.clone()).unwrap()));
        let expected = expected.map(|v| v.map(String::from)).map_err(SpecError::new);
        assert_eq!(got, expected, "{volume} {path} {key}");
    }
}
