//! One case for each rule of ownership; `golden` has what Kubernetes does.

use super::*;
use crate::schema::{from_value, schema};
use orlop_base::clock::Shift;
use serde_json::json;

const NOW: &str = "2026-11-15T10:00:00Z";

fn deployment() -> Option<TypeRef> {
    schema().get("apps/v1.Deployment")
}

pub(super) fn pod() -> Option<TypeRef> {
    schema().get("core/v1.Pod")
}

fn service() -> Option<TypeRef> {
    schema().get("core/v1.Service")
}

/// One writer's options; the clock shows `NOW` plus some seconds.
pub(super) fn by<'a>(manager: &'a str, api_version: &'a str, seconds: i64) -> ApplyOptions<'a> {
    let now: Timestamp = NOW.parse().unwrap();
    ApplyOptions {
        manager,
        force: false,
        now: now.later_by_seconds(seconds),
        api_version,
        subresource: "",
        reset: &[&["status"]],
    }
}

pub(super) fn forced(opts: ApplyOptions<'_>) -> ApplyOptions<'_> {
    ApplyOptions { force: true, ..opts }
}

pub(super) fn update_of<'a>(opts: ApplyOptions<'a>) -> UpdateOptions<'a> {
    UpdateOptions {
        manager: opts.manager,
        now: opts.now,
        api_version: opts.api_version,
        subresource: opts.subresource,
        reset: opts.reset,
    }
}

/// What the server makes of a new object before it tracks its fields.
pub(super) fn decoded(object: Value, ty: Option<TypeRef>) -> Value {
    from_value(object, ty.unwrap()).unwrap().value
}

pub(super) fn create(object: Value, ty: Option<TypeRef>, opts: ApplyOptions<'_>) -> Value {
    let mut object = decoded(object, ty);
    update_managed_fields(&mut object, None, ty, &update_of(opts));
    object
}

/// Changes an object as a PUT or PATCH would.
fn update(old: &Value, ty: Option<TypeRef>, opts: ApplyOptions<'_>, change: impl FnOnce(&mut Value)) -> Value {
    let mut new = old.clone();
    change(&mut new);
    update_managed_fields(&mut new, Some(old), ty, &update_of(opts));
    new
}

pub(super) fn entries(object: &Value) -> Vec<&Value> {
    object["metadata"]["managedFields"]
        .as_array()
        .map(|l| l.iter().collect())
        .unwrap_or_default()
}

/// manager:operation of each entry, in order.
fn managers(object: &Value) -> Vec<String> {
    let name = |e: &&Value| {
        format!(
            "{}:{}",
            e["manager"].as_str().unwrap(),
            e["operation"].as_str().unwrap()
        )
    };
    entries(object).iter().map(name).collect()
}

fn fields<'a>(object: &'a Value, manager: &str) -> &'a Value {
    let found = entries(object).into_iter().find(|e| e["manager"] == manager);
    &found.unwrap_or_else(|| panic!("no entry of {manager}"))["fieldsV1"]
}

fn web(replicas: Option<i64>, image: &str) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80}]}]},
            },
        },
    });
    if let Some(n) = replicas {
        object["spec"]["replicas"] = n.into();
    }
    object
}

fn text(error: ApplyError) -> String {
    error.to_string()
}

#[test]
fn a_creator_owns_all_it_set() {
    let created = create(
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "uid": "1", "labels": {"app": "x"}, "finalizers": ["a/b"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}},
                    "ports": [{"containerPort": 80, "protocol": "TCP"}], "command": ["a", "b"]}],
                "nodeSelector": {"a": "b"}, "securityContext": {}, "imagePullSecrets": [{"name": "s"}],
            },
            "status": {"phase": "Running"},
        }),
        pod(),
        by("kubectl-create", "v1", 0),
    );
    let expected = json!([{
        "manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "time": NOW, "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {
                "f:finalizers": {".": {}, "v:\"a/b\"": {}},
                "f:labels": {".": {}, "f:app": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"u\"}": {}},
            },
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:command": {}, "f:image": {}, "f:name": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                        ".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                }},
                "f:imagePullSecrets": {".": {}, "k:{\"name\":\"s\"}": {}},
                "f:nodeSelector": {},
                "f:securityContext": {},
            },
        },
    }]);
    assert_eq!(created["metadata"]["managedFields"], expected);
}

#[test]
fn structs_that_are_always_there_are_no_ones() {
    let created = create(web(Some(1), "a"), deployment(), by("kubectl-create", "apps/v1", 0));
    let spec = &fields(&created, "kubectl-create")["f:spec"];
    assert_eq!(
        spec["f:template"]["f:metadata"],
        json!({"f:labels": {".": {}, "f:app": {}}})
    );
    assert_eq!(spec["f:selector"], json!({}));
    assert_eq!(spec.get("f:strategy"), None);
    assert_eq!(spec.get("."), None);
}

#[test]
fn an_update_takes_what_it_changes() {
    let one = create(web(Some(1), "a"), deployment(), by("one", "apps/v1", 0));
    let two = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["spec"]["replicas"] = 3.into();
        o["metadata"]["labels"]["tier"] = "x".into();
        o["metadata"]["labels"].as_object_mut().unwrap().remove("app");
    });
    assert_eq!(managers(&two), ["one:Update", "two:Update"]);
    assert_eq!(
        fields(&two, "two"),
        &json!({"f:metadata": {"f:labels": {"f:tier": {}}}, "f:spec": {"f:replicas": {}}})
    );
    let first = fields(&two, "one");
    assert_eq!(first["f:spec"].get("f:replicas"), None);
    assert_eq!(first["f:metadata"], json!({"f:labels": {}}));
    // Taking the last of an entry drops the entry.
    let back = update(&two, deployment(), by("one", "apps/v1", 9), |o| {
        o["spec"]["replicas"] = 1.into();
        o["metadata"]["labels"] = json!({"app": "web"});
    });
    assert_eq!(managers(&back), ["one:Update"]);
    assert_eq!(entries(&back)[0]["time"], "2026-11-15T10:00:09Z");
    assert_eq!(fields(&back, "one"), fields(&one, "one"));
}

#[test]
fn an_update_that_changes_nothing_changes_no_entry() {
    let one = create(web(Some(1), "a"), deployment(), by("one", "apps/v1", 0));
    assert_eq!(update(&one, deployment(), by("two", "apps/v1", 5), |_| {}), one);
    // What belongs to no one does not count.
    let system = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["metadata"]["generation"] = 2.into()
    });
    assert_eq!(managers(&system), ["one:Update"]);
    // Removing alone gives nothing and takes no new time.
    let less = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["metadata"].as_object_mut().unwrap().remove("labels");
    });
    assert_eq!(managers(&less), ["one:Update"]);
    assert_eq!(entries(&less)[0]["time"], NOW);
    assert_eq!(fields(&less, "one").get("f:metadata"), None);
}

#[test]
fn subresources_have_entries_of_their_own() {
    let one = create(web(Some(1), "a"), deployment(), by("m", "apps/v1", 0));
    let status = ApplyOptions {
        subresource: "status",
        reset: &[&["spec"], &["metadata", "labels"]],
        ..by("m", "apps/v1", 5)
    };
    let two = update(&one, deployment(), status, |o| {
        o["status"] = json!({"replicas": 1, "conditions": [{"type": "Available", "status": "True"}]});
        o["spec"]["replicas"] = 7.into();
        o["metadata"]["labels"]["x"] = "y".into();
        o["metadata"]["managedFields"] = json!([]);
    });
    assert_eq!(managers(&two), ["m:Update", "m:Update"]);
    let entry = entries(&two)[1];
    assert_eq!(entry["subresource"], "status");
    assert_eq!(
        entry["fieldsV1"],
        json!({"f:status": {
            "f:conditions": {".": {}, "k:{\"type\":\"Available\"}": {".": {}, "f:status": {}, "f:type": {}}},
            "f:replicas": {},
        }})
    );
    assert_eq!(entries(&two)[0], entries(&one)[0]);
}

#[test]
fn managed_fields_can_be_reset_and_sent() {
    let one = create(web(Some(1), "a"), deployment(), by("one", "apps/v1", 0));
    for reset in [json!([]), json!([{}])] {
        let wiped = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
            o["metadata"]["managedFields"] = reset;
            o["spec"]["replicas"] = 2.into();
        });
        assert_eq!(wiped["metadata"].get("managedFields"), None);
        // And no one is tracked from then on …
        let after = update(&wiped, deployment(), by("two", "apps/v1", 6), |o| {
            o["spec"]["replicas"] = 3.into()
        });
        assert_eq!(after["metadata"].get("managedFields"), None);
        // … until someone applies.
        let applied = apply(
            Some(&after),
            &web(Some(3), "a"),
            deployment(),
            &by("three", "apps/v1", 7),
        )
        .unwrap();
        assert_eq!(managers(&applied), ["three:Apply", "before-first-apply:Update"]);
    }
    // Sent entries count if they are well-formed.
    let sent = json!([{"manager": "other", "operation": "Update", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    let renamed = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["metadata"]["managedFields"] = sent.clone();
    });
    assert_eq!(renamed["metadata"]["managedFields"], sent);
    let broken = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["metadata"]["managedFields"] = json!([{"manager": "other"}]);
    });
    assert_eq!(broken, one);
    let dropped = update(&one, deployment(), by("two", "apps/v1", 5), |o| {
        o["metadata"].as_object_mut().unwrap().remove("managedFields");
    });
    assert_eq!(dropped, one);
}

#[test]
fn many_updaters_are_merged_but_not_lost() {
    let mut object = create(web(Some(0), "a"), deployment(), by("m0", "apps/v1", 0));
    for i in 1..15 {
        let name = format!("m{i}");
        object = update(&object, deployment(), by(&name, "apps/v1", i), |o| {
            o["metadata"]["labels"][format!("l{i}")] = "x".into();
        });
    }
    assert_eq!(entries(&object).len(), 10);
    let ancient = fields(&object, "ancient-changes");
    assert_eq!(ancient["f:metadata"]["f:labels"]["f:l3"], json!({}));
    assert_eq!(ancient["f:spec"]["f:replicas"], json!({}));
}

#[test]
fn an_applier_owns_what_it_says_and_no_more() {
    let applied = apply(None, &web(Some(2), "a"), deployment(), &by("ci", "apps/v1", 0)).unwrap();
    assert_eq!(applied["spec"]["replicas"], 2);
    assert_eq!(
        applied["metadata"]["managedFields"],
        json!([{
            "manager": "ci", "operation": "Apply", "apiVersion": "apps/v1", "time": NOW, "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {
                    "f:replicas": {},
                    "f:selector": {},
                    "f:template": {
                        "f:metadata": {"f:labels": {"f:app": {}}},
                        "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {
                            ".": {}, "f:image": {}, "f:name": {},
                            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                        }}},
                    },
                },
            },
        }])
    );
}

#[test]
fn applying_again_removes_what_is_no_longer_said() {
    let opts = by("ci", "apps/v1", 0);
    let mut config = web(Some(2), "a");
    config["metadata"]["annotations"] = json!({"a": "1", "b": "2"});
    config["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "1"}]);
    let one = apply(None, &config, deployment(), &opts).unwrap();
    let mut less = web(None, "b");
    less["metadata"]["annotations"] = json!({"b": "2"});
    let two = apply(Some(&one), &less, deployment(), &by("ci", "apps/v1", 3)).unwrap();
    assert_eq!(two["metadata"]["annotations"], json!({"b": "2"}));
    assert_eq!(two["spec"].get("replicas"), None);
    let container = &two["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((container.get("env"), &container["image"]), (None, &json!("b")));
    assert_eq!(entries(&two)[0]["time"], "2026-11-15T10:00:03Z");
    assert_eq!(managers(&two), ["ci:Apply"]);
}

#[test]
fn what_others_own_or_no_one_does_stays() {
    let one = apply(None, &web(Some(2), "a"), deployment(), &by("ci", "apps/v1", 0)).unwrap();
    // Another applier wants the same replicas: both own them, and when one gives them up, they stay.
    let other =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}});
    let both = apply(Some(&one), &other, deployment(), &by("scaler", "apps/v1", 1)).unwrap();
    assert_eq!(managers(&both), ["scaler:Apply", "ci:Apply"]);
    let given_up = apply(Some(&both), &web(None, "a"), deployment(), &by("ci", "apps/v1", 2)).unwrap();
    assert_eq!(given_up["spec"]["replicas"], 2);
    assert_eq!(fields(&given_up, "ci")["f:spec"].get("f:replicas"), None);
    // The last to give it up removes it.
    let mut nothing = other.clone();
    nothing.as_object_mut().unwrap().remove("spec");
    let gone = apply(Some(&given_up), &nothing, deployment(), &by("scaler", "apps/v1", 3)).unwrap();
    assert_eq!(gone["spec"].get("replicas"), None);
    assert_eq!(managers(&gone), ["ci:Apply"]);
    assert_eq!(gone["metadata"]["name"], "web");
    // Nor does it take what an updater has set in the meantime …
    let scaled = update(&one, deployment(), by("u", "apps/v1", 4), |o| {
        o["spec"]["replicas"] = 7.into()
    });
    let kept = apply(Some(&scaled), &web(None, "a"), deployment(), &by("ci", "apps/v1", 5)).unwrap();
    assert_eq!(kept["spec"]["replicas"], 7);
    // … but a list element goes with its owner, whoever has added to it.
    let added = update(&one, deployment(), by("u", "apps/v1", 4), |o| {
        o["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "1"}]);
    });
    let mut config = web(Some(2), "a");
    config["spec"]["template"]["spec"]["containers"] = json!([{"name": "new", "image": "n"}]);
    let kept = apply(Some(&added), &config, deployment(), &by("ci", "apps/v1", 5)).unwrap();
    let containers = &kept["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers, &json!([{"name": "new", "image": "n"}]));
    assert_eq!(managers(&kept), ["ci:Apply"]);
}

#[test]
fn other_values_conflict_unless_forced() {
    let one = create(
        web(Some(1), "a"),
        deployment(),
        by("kubectl-client-side-apply", "apps/v1", 0),
    );
    let error = apply(Some(&one), &web(Some(5), "a"), deployment(), &by("ci", "apps/v1", 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    let status = error.status().to_value();
    assert_eq!((&status["code"], &status["reason"]), (&json!(409), &json!("Conflict")));
    assert_eq!(
        status["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "field": ".spec.replicas",
            "message": "conflict with \"kubectl-client-side-apply\" using apps/v1"}])
    );
    // Same values are shared, not fought over.
    let shared = apply(Some(&one), &web(Some(1), "a"), deployment(), &by("ci", "apps/v1", 1)).unwrap();
    assert_eq!(managers(&shared), ["ci:Apply", "kubectl-client-side-apply:Update"]);
    assert_eq!(
        fields(&shared, "kubectl-client-side-apply"),
        fields(&one, "kubectl-client-side-apply")
    );

    let error = apply(Some(&shared), &web(Some(5), "b"), deployment(), &by("cd", "apps/v1", 2)).unwrap_err();
    assert_eq!(
        text(error),
        "Apply failed with 4 conflicts: conflicts with \"ci\":\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"web\"].image\n\
         conflicts with \"kubectl-client-side-apply\" using apps/v1:\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"web\"].image"
    );
    let taken = apply(
        Some(&shared),
        &web(Some(5), "b"),
        deployment(),
        &forced(by("cd", "apps/v1", 2)),
    )
    .unwrap();
    assert_eq!((&taken["spec"]["replicas"], managers(&taken).len()), (&json!(5), 3));
    for loser in ["ci", "kubectl-client-side-apply"] {
        assert_eq!(fields(&taken, loser)["f:spec"].get("f:replicas"), None, "{loser}");
    }
}

#[test]
fn lists_keep_the_configurations_order_and_others_elements() {
    let service_with = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let one = apply(
        None,
        &service_with(json!([{"port": 1, "name": "a"}, {"port": 2, "name": "b"}])),
        service(),
        &by("x", "v1", 0),
    )
    .unwrap();
    let two = apply(
        Some(&one),
        &service_with(json!([{"port": 3, "name": "c"}, {"port": 2, "name": "b"}])),
        service(),
        &by("y", "v1", 1),
    )
    .unwrap();
    let names = |o: &Value| -> String {
        let ports = o["spec"]["ports"].as_array().unwrap();
        ports.iter().map(|p| p["name"].as_str().unwrap()).collect()
    };
    assert_eq!(names(&two), "acb");
    // The same port by another protocol is another element.
    let udp = service_with(json!([{"port": 2, "protocol": "UDP", "name": "u"}]));
    let three = apply(Some(&two), &udp, service(), &by("z", "v1", 2)).unwrap();
    assert_eq!(names(&three), "acbu");
    // TCP is TCP, whether said or not.
    let tcp = service_with(json!([{"port": 2, "protocol": "TCP", "name": "b"}]));
    let four = apply(Some(&two), &tcp, service(), &by("z", "v1", 2)).unwrap();
    assert_eq!(names(&four), "acb");
}

#[test]
fn sets_are_shared_value_by_value() {
    let with = |finalizers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": finalizers}});
    let one = apply(None, &with(json!(["a", "b"])), pod(), &by("x", "v1", 0)).unwrap();
    let two = apply(Some(&one), &with(json!(["b", "c"])), pod(), &by("y", "v1", 1)).unwrap();
    assert_eq!(two["metadata"]["finalizers"], json!(["a", "b", "c"]));
    let three = apply(Some(&two), &with(json!([])), pod(), &by("x", "v1", 2)).unwrap();
    assert_eq!(three["metadata"]["finalizers"], json!(["b", "c"]));
    assert_eq!(
        fields(&three, "y"),
        &json!({"f:metadata": {"f:finalizers": {"v:\"b\"": {}, "v:\"c\"": {}}}})
    );
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let opts = by("ci", "apps/v1", 0);
    let refused = |config: Value| apply(None, &config, deployment(), &opts).unwrap_err();
    let mut config = web(Some(1), "a");
    config["apiVersion"] = "apps/v1beta1".into();
    assert_eq!(
        refused(config),
        ApplyError::Malformed("invalid object type: apps/v1beta1, Kind=Deployment".into())
    );
    let mut config = web(Some(1), "a");
    config["metadata"]["managedFields"] = json!([]);
    assert_eq!(
        refused(config),
        ApplyError::Malformed("metadata.managedFields must be nil".into())
    );

    let prefix = "failed to create typed patch object (/web; apps/v1, Kind=Deployment): ";
    let cases = [
        ("/spec/what", json!(1), ".spec.what: field not declared in schema"),
        (
            "/spec/replicas",
            json!("x"),
            ".spec.replicas: expected numeric (int or float), got string",
        ),
        ("/spec/paused", json!("x"), ".spec.paused: expected boolean, got &{x}"),
        ("/spec/template", json!([1]), ".spec.template: expected map, got &{[1]}"),
        (
            "/spec/template/spec/containers/1",
            json!({"name": "web"}),
            ".spec.template.spec.containers: duplicate entries for key [name=\"web\"]",
        ),
        (
            "/spec/template/spec/containers/1",
            json!(null),
            ".spec.template.spec.containers: element 1: associative list with keys may not have a null element",
        ),
        (
            "/spec/template/spec/containers/0/image",
            json!(7),
            ".spec.template.spec.containers[name=\"web\"].image: expected string, got \
             &value.valueUnstructured{Value:7}",
        ),
    ];
    for (path, value, expected) in cases {
        let mut config = web(Some(1), "a");
        let patch = json!([{"op": "add", "path": path, "value": value}]).to_string();
        if path.ends_with("/0/image") || !path.contains("containers") {
            crate::patch::json::apply(&mut config, patch.as_bytes()).unwrap();
        } else {
            config["spec"]["template"]["spec"]["containers"]
                .as_array_mut()
                .unwrap()
                .push(value);
        }
        let error = refused(config);
        assert_eq!(error, ApplyError::Invalid(format!("{prefix}{expected}")));
        assert_eq!(error.status().code, 500);
    }
}

#[test]
fn kubectl_may_change_what_it_had_applied_from_its_own_side() {
    let noted = |replicas: i64, image: &str| {
        let config = web(Some(replicas), image);
        let mut object = config.clone();
        object["metadata"]["annotations"] = json!({last_applied::ANNOTATION: config.to_string() + "\n"});
        object
    };
    let client_side = create(
        noted(1, "a"),
        deployment(),
        by("kubectl-client-side-apply", "apps/v1", 0),
    );
    let kubectl = by("kubectl", "apps/v1", 1);
    let moved = apply(Some(&client_side), &web(Some(4), "b"), deployment(), &kubectl).unwrap();
    assert_eq!(moved["spec"]["replicas"], 4);
    let note: Value = serde_json::from_str(
        moved["metadata"]["annotations"][last_applied::ANNOTATION]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(note, web(Some(4), "b"));
    // Others are not so free, nor is kubectl where someone else has changed the value since.
    assert!(
        apply(
            Some(&client_side),
            &web(Some(4), "b"),
            deployment(),
            &by("ci", "apps/v1", 1)
        )
        .is_err()
    );
    let scaled = update(&client_side, deployment(), by("hpa", "apps/v1", 2), |o| {
        o["spec"]["replicas"] = 9.into()
    });
    let error = apply(Some(&scaled), &web(Some(4), "b"), deployment(), &kubectl).unwrap_err();
    assert_eq!(
        text(error),
        "Apply failed with 1 conflict: conflict with \"hpa\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn times_alone_are_no_change() {
    let one = apply(None, &web(Some(1), "a"), deployment(), &by("ci", "apps/v1", 0)).unwrap();
    let mut two = one.clone();
    two["metadata"]["managedFields"][0]["time"] = "2027-01-01T00:00:00Z".into();
    let mut kept = two.clone();
    keep_times_if_unchanged(&mut kept, &one);
    assert_eq!(kept, one);
    two["spec"]["replicas"] = 2.into();
    let mut changed = two.clone();
    keep_times_if_unchanged(&mut changed, &one);
    assert_eq!(changed, two);
}

#[test]
fn custom_objects_are_tracked_by_what_they_look_like() {
    let config = json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "f", "finalizers": ["x"]},
        "spec": {"a": {"b": 1}, "list": [1, {"c": 2}]}});
    let opts = by("ci", "ex.io/v1", 0);
    let one = apply(None, &config, None, &opts).unwrap();
    assert_eq!(
        fields(&one, "ci"),
        &json!({
            "f:metadata": {"f:finalizers": {"v:\"x\"": {}}},
            "f:spec": {".": {}, "f:a": {".": {}, "f:b": {}}, "f:list": {}},
        })
    );
    let mut created = config.clone();
    update_managed_fields(&mut created, None, None, &update_of(opts));
    assert_eq!(
        fields(&created, "ci"),
        &json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"x\"": {}}},
            "f:spec": {".": {}, "f:a": {".": {}, "f:b": {}}, "f:list": {}},
        })
    );
    let less = json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {"a": {}}});
    let two = apply(Some(&one), &less, None, &opts).unwrap();
    assert_eq!(
        (two["spec"].get("list"), two["metadata"].get("finalizers")),
        (None, None)
    );
    // A map that becomes a scalar loses its parts.
    let three = update(&created, None, by("u", "ex.io/v1", 1), |o| o["spec"]["a"] = 5.into());
    assert_eq!(fields(&three, "u"), &json!({"f:spec": {"f:a": {}}}));
    assert_eq!(fields(&three, "ci")["f:spec"], json!({".": {}, "f:list": {}}));
}

#[test]
fn elements_that_cannot_be_told_apart_are_one() {
    let ports = |ports: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}]}});
        pod["spec"]["containers"][0]["env"] = ports;
        pod
    };
    let one = create(
        ports(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
        pod(),
        by("m", "v1", 0),
    );
    let env = |o: &Value, m: &str| fields(o, m)["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:env"].clone();
    assert_eq!(env(&one, "m"), json!({".": {}, "k:{\"name\":\"A\"}": {}}));
    let two = update(&one, pod(), by("n", "v1", 1), |o| {
        o["spec"]["containers"][0]["env"].as_array_mut().unwrap().pop();
    });
    assert_eq!(
        env(&two, "n"),
        json!({"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}})
    );
    let applied = apply(
        Some(&one),
        &ports(json!([{"name": "A", "value": "3"}])),
        pod(),
        &forced(by("x", "v1", 2)),
    )
    .unwrap();
    assert_eq!(
        applied["spec"]["containers"][0]["env"],
        json!([{"name": "A", "value": "3"}])
    );
}

#[test]
fn managers_come_from_the_request() {
    assert_eq!(manager_name("me", "kubectl/v1.36"), "me");
    assert_eq!(manager_name("", "kubectl/v1.36 (linux/amd64)"), "kubectl");
    assert_eq!(manager_name("", &"x".repeat(200)).len(), 128);
}

mod custom {
    use super::*;
    use crate::structural::Structural;

    fn kind() -> Structural {
        let keyed = |default: bool| {
            let mut protocol = json!({"type": "string"});
            if default {
                protocol["default"] = "TCP".into();
            }
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": protocol, "name": {"type": "string"}}}})
        };
        let spec = json!({"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "ports": keyed(true),
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "plain": {"type": "array", "items": {"type": "string"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "either": {"x-kubernetes-int-or-string": true},
        }});
        Structural::parse(&json!({"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}))
            .unwrap()
    }

    fn object(spec: Value) -> Value {
        json!({"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": spec})
    }

    fn owned(object: &Value, manager: &str) -> Value {
        fields(object, manager)["f:spec"].clone()
    }

    #[test]
    fn fields_are_owned_by_the_schema() {
        let kind = kind();
        let config = object(json!({
            "replicas": 1, "ports": [{"port": 80, "name": "x"}], "tags": ["a"], "plain": ["p"], "whole": {"a": "b"},
            "map": {"k": "v"}, "any": {"x": {"y": 1}}, "either": "5%",
        }));
        let one = apply(None, &config, ObjectType::Custom(&kind), &by("x", "ex.io/v1", 0)).unwrap();
        assert_eq!(
            owned(&one, "x"),
            json!({
                "f:replicas": {}, "f:either": {}, "f:plain": {}, "f:whole": {},
                "f:ports": {r#"k:{"port":80,"protocol":"TCP"}"#: {".": {}, "f:port": {}, "f:name": {}}},
                "f:tags": {"v:\"a\"": {}}, "f:map": {"f:k": {}}, "f:any": {"f:x": {".": {}, "f:y": {}}},
            })
        );
    }

    #[test]
    fn lists_merge_and_conflicts_are_told() {
        let kind = kind();
        let ty = ObjectType::Custom(&kind);
        let ports = |name: &str, port: i64| object(json!({"ports": [{"port": port, "name": name}], "tags": [name]}));
        let one = apply(None, &ports("a", 80), ty, &by("one", "ex.io/v1", 0)).unwrap();
        let two = apply(Some(&one), &ports("b", 81), ty, &by("two", "ex.io/v1", 1)).unwrap();
        assert_eq!(
            two["spec"],
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}], "tags": ["a", "b"]})
        );
        let error = apply(Some(&two), &ports("c", 80), ty, &by("three", "ex.io/v1", 2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Apply failed with 1 conflict: conflict with \"one\": .spec.ports[port=80,protocol=\"TCP\"].name"
        );
        let gone = apply(Some(&two), &object(json!({})), ty, &by("one", "ex.io/v1", 3)).unwrap();
        assert_eq!(
            gone["spec"],
            json!({"ports": [{"port": 81, "name": "b"}], "tags": ["b"]})
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let kind = kind();
        for (spec, why) in [
            (json!({"unknown": 1}), ".spec.unknown: field not declared in schema"),
            (
                json!({"replicas": "x"}),
                ".spec.replicas: expected numeric (int or float), got string",
            ),
            (
                json!({"ports": [{"port": 1}, {"port": 1}]}),
                "duplicate entries for key [port=1,protocol=\"TCP\"]",
            ),
            (json!({"tags": ["a", "a"]}), "duplicate entries for key [=\"a\"]"),
            (json!({"map": 1}), ".spec.map: expected map, got &{1}"),
        ] {
            let error = apply(None, &object(spec), ObjectType::Custom(&kind), &by("x", "ex.io/v1", 0)).unwrap_err();
            assert!(error.to_string().contains(why), "{error} / {why}");
        }
        for spec in [json!({"any": {"q": [1]}}), json!({"either": 1})] {
            assert!(apply(None, &object(spec), ObjectType::Custom(&kind), &by("x", "ex.io/v1", 0)).is_ok());
        }
    }

    #[test]
    fn updates_are_tracked() {
        let kind = kind();
        let mut one = object(json!({"replicas": 1, "ports": [{"port": 80, "protocol": "TCP"}]}));
        update_managed_fields(
            &mut one,
            None,
            ObjectType::Custom(&kind),
            &update_of(by("u", "ex.io/v1", 0)),
        );
        let key = r#"k:{"port":80,"protocol":"TCP"}"#;
        assert_eq!(
            owned(&one, "u"),
            json!({".": {}, "f:replicas": {}, "f:ports": {".": {}, key: {".": {}, "f:port": {}, "f:protocol": {}}}})
        );
        let mut two = one.clone();
        two["spec"]["ports"][0]["name"] = "n".into();
        update_managed_fields(
            &mut two,
            Some(&one),
            ObjectType::Custom(&kind),
            &update_of(by("v", "ex.io/v1", 1)),
        );
        assert_eq!(owned(&two, "v"), json!({"f:ports": {key: {"f:name": {}}}}));
    }
}
