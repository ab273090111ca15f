use super::*;
use crate::schema::from_value;
use proptest::prelude::*;
use serde_json::json;

fn ty(name: &str) -> TypeRef {
    schema().get(name).unwrap()
}

fn patched(target: Value, patch: Value, name: &str) -> Result<Value, PatchError> {
    let mut target = target;
    apply(&mut target, patch, ty(name))?;
    Ok(target)
}

/// Patches the spec of a pod.
fn spec(target: Value, patch: Value) -> Result<Value, PatchError> {
    patched(json!({"spec": target}), json!({"spec": patch}), "core/v1.Pod").map(|mut v| v["spec"].take())
}

#[test]
fn maps_merge_and_lists_merge_by_key() {
    let target =
        json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]});
    let cases = [
        // Merged in place; the patch's elements come first unless the old order says otherwise.
        (
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "2"}]}),
        ),
        (
            json!({"containers": [{"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a", "image": null, "env": [{"name": "Y", "value": "2"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "z", "$patch": "delete"}, {"name": "a", "$patch": "delete"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"$patch": "replace"}, {"name": "n"}]}),
            json!({"containers": [{"name": "n"}]}),
        ),
        (json!({"containers": null}), json!({})),
        (json!({"hostNetwork": true}), {
            let mut t = target.clone();
            t["hostNetwork"] = true.into();
            t
        }),
        (
            json!({"$patch": "replace", "hostNetwork": true}),
            json!({"hostNetwork": true}),
        ),
        (json!({"$patch": "delete"}), json!({})),
    ];
    for (patch, expected) in cases {
        assert_eq!(spec(target.clone(), patch.clone()), Ok(expected), "{patch}");
    }
}

#[test]
fn lists_without_a_strategy_are_replaced() {
    assert_eq!(
        spec(
            json!({"tolerations": [{"key": "a"}], "containers": [{"name": "a", "command": ["x"]}]}),
            json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["y", "z"]}]}),
        ),
        Ok(json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["y", "z"]}]}))
    );
    // A policy's selector is one thing; other maps merge.
    let selector = |labels: Value| json!({"spec": {"selector": {"matchLabels": labels}}});
    assert_eq!(
        patched(
            selector(json!({"a": "1"})),
            selector(json!({"b": "2"})),
            "policy/v1.PodDisruptionBudget"
        ),
        Ok(selector(json!({"b": "2"})))
    );
    assert_eq!(
        patched(
            selector(json!({"a": "1"})),
            selector(json!({"b": "2"})),
            "apps/v1.Deployment"
        ),
        Ok(selector(json!({"a": "1", "b": "2"})))
    );
}

#[test]
fn scalars_are_added_and_deleted_one_by_one() {
    let meta = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let patch_meta = |target: Value, patch: Value| {
        patched(meta(target), json!({"metadata": patch}), "core/v1.Pod").map(|v| v["metadata"]["finalizers"].clone())
    };
    assert_eq!(
        patch_meta(json!(["a", "b"]), json!({"finalizers": ["c", "b"]})),
        Ok(json!(["c", "a", "b"]))
    );
    assert_eq!(
        patch_meta(
            json!(["a", "b", "c"]),
            json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]})
        ),
        Ok(json!(["a", "c"]))
    );
    assert_eq!(
        patch_meta(
            json!(["a", "b"]),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["d"],
                "$setElementOrder/finalizers": ["d", "b"]})
        ),
        Ok(json!(["d", "b"]))
    );
    // Nothing to delete from.
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
    assert_eq!(
        patched(json!({"metadata": {}}), patch, "core/v1.Pod"),
        Ok(json!({"metadata": {}}))
    );
}

#[test]
fn element_order_is_the_patchs_then_the_servers() {
    let named = |names: &str| -> Value { names.chars().map(|c| json!({"name": c.to_string()})).collect() };
    let cases = [
        ("abc", "c", "cb", "acb"),
        ("abc", "", "cba", "cba"),
        ("abcx", "d", "dcb", "dacbx"),
        ("", "ab", "ab", "ab"),
        ("xa", "b", "ab", "xab"),
    ];
    for (old, new, order, expected) in cases {
        let mut target = json!({});
        let mut patch = json!({"$setElementOrder/containers": named(order)});
        if !old.is_empty() {
            target["containers"] = named(old);
        }
        if !new.is_empty() {
            patch["containers"] = named(new);
        }
        assert_eq!(
            spec(target, patch),
            Ok(json!({"containers": named(expected)})),
            "{old} + {new} by {order}"
        );
    }
    let error = spec(
        json!({"containers": named("a")}),
        json!({"containers": named("ba"), "$setElementOrder/containers": named("ab")}),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("The order in patch list:\n[map[name:b] map[name:a]]\n"),
        "{error}"
    );
}

#[test]
fn retained_keys_are_all_that_is_kept() {
    let strategy = |s: Value| json!({"spec": {"strategy": s}});
    assert_eq!(
        patched(
            strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}})),
            strategy(json!({"$retainKeys": ["type"], "type": "Recreate"})),
            "apps/v1.Deployment",
        ),
        Ok(strategy(json!({"type": "Recreate"})))
    );
    let error = patched(
        strategy(json!({})),
        strategy(json!({"$retainKeys": ["type"], "rollingUpdate": {}})),
        "apps/v1.Deployment",
    );
    assert_eq!(
        error,
        Err(PatchError::Malformed("invalid patch format of retainKeys".into()))
    );
    assert_eq!(
        spec(
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}, "$retainKeys": ["name", "hostPath"]}]}),
        ),
        Ok(json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}))
    );
}

#[test]
fn broken_patches_say_why() {
    let target = json!({"containers": [{"name": "a"}], "hostAliases": []});
    let cases = [
        (
            json!({"containers": [{"image": "x"}]}),
            500,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"containers": [{"$patch": "delete"}]}),
            500,
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "merge"}]}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"containers": [{"name": "a", "$patch": "frob"}]}),
            500,
            "unknown patch type: frob in map: map[$patch:frob name:a]",
        ),
        (
            json!({"$patch": "merge"}),
            500,
            "unknown patch type: merge in map: map[$patch:merge]",
        ),
        (
            json!({"containers": ["x"]}),
            500,
            "list element types are not identical: [[map[name:a]] [x]]",
        ),
        (
            json!({"$setElementOrder": []}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"$setElementOrder/containers": 1}),
            500,
            "expected a []interface {}, but received a int64",
        ),
        (
            json!({"$deleteFromPrimitiveList": []}),
            400,
            "invalid patch format of primitive list",
        ),
        (json!({"$retainKeys": 1}), 400, "invalid patch format of retainKeys"),
    ];
    for (patch, code, message) in cases {
        let error = spec(target.clone(), patch.clone()).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.status().code),
            (message, code),
            "{patch}"
        );
    }
    let lists = patched(
        json!({"metadata": {"finalizers": [["a"]]}}),
        json!({"metadata": {"finalizers": [["b"]]}}),
        "core/v1.Pod",
    );
    assert_eq!(lists.unwrap_err().status().code, 422);
    assert_eq!(decode(b"[]").unwrap_err().status().code, 400);
    assert_eq!(decode(b"null"), Ok(json!({})));
}

#[test]
fn what_is_new_comes_without_directives_and_nulls() {
    assert_eq!(
        spec(
            json!({}),
            json!({"securityContext": {"runAsUser": null, "fsGroup": 1}, "affinity": {"$patch": "delete"},
                "containers": [{"name": "a"}, {"name": "b", "$patch": "delete"}]}),
        ),
        Ok(json!({"securityContext": {"fsGroup": 1}, "containers": [{"name": "a"}]}))
    );
}

fn any_spec() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0i64..3).prop_map(Value::from),
        "[ab]".prop_map(Value::from)
    ];
    let keys = prop::sample::select(vec![
        "containers",
        "name",
        "env",
        "ports",
        "containerPort",
        "tolerations",
        "volumes",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/env",
        "$deleteFromPrimitiveList/tolerations",
        "finalizers",
    ]);
    leaf.prop_recursive(5, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..5).prop_map(|m| m
                .into_iter()
                .map(|(k, v)| (k.to_string(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #[test]
    fn no_patch_panics(target in any_spec(), patch in any_spec()) {
        let _ = spec(target, patch);
    }

    #[test]
    fn an_empty_patch_changes_nothing(target in any_spec()) {
        let target = json!({"spec": target});
        prop_assert_eq!(patched(target.clone(), json!({}), "core/v1.Pod"), Ok(target.clone()));
        if target["spec"].is_object() {
            prop_assert_eq!(patched(target.clone(), json!({"spec": {}}), "core/v1.Pod"), Ok(target));
        }
    }

    /// A patch without directives, applied twice, does what it does once.
    #[test]
    fn plain_patches_are_idempotent(names in prop::collection::btree_map("[a-d]", "[12]", 0..4),
                                    patch in prop::collection::btree_map("[a-d]", "[12]", 0..4)) {
        let containers = |m: &std::collections::BTreeMap<String, String>| {
            let list: Vec<Value> = m.iter().map(|(n, i)| json!({"name": n, "image": i})).collect();
            json!({"spec": {"containers": list}})
        };
        let decoded = |v: Value| from_value(v, ty("core/v1.Pod")).unwrap().value;
        let once = patched(decoded(containers(&names)), containers(&patch), "core/v1.Pod").unwrap();
        let twice = patched(once.clone(), containers(&patch), "core/v1.Pod").unwrap();
        prop_assert_eq!(once, twice);
    }
}
