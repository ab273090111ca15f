//! What holds for all configurations.

use proptest::prelude::*;
use serde_json::json;

use super::tests::{by, create, decoded, entries, forced, pod, update_of};
use super::*;

fn drop_empty(value: &mut Value) {
    if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(drop_empty);
    } else if let Some(map) = value.as_object_mut() {
        map.values_mut().for_each(drop_empty);
        map.retain(|_, v| v != &json!([]) && v != &json!({}));
    }
}

/// A pod configuration with some of a few fields.
fn any_config() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[abc]", "[12]", 0..3);
    let finalizers = prop::collection::btree_set("[xyz]", 0..3);
    let env = prop::collection::btree_map("[AB]", "[12]", 0..3);
    let container = (prop::option::of("[12]"), env);
    let containers = prop::collection::btree_map("[cd]", container, 0..3);
    (labels, finalizers, containers, prop::option::of(0i64..3)).prop_map(|(labels, finalizers, containers, grace)| {
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|(name, (image, env))| {
                let env: Vec<Value> = env.iter().map(|(k, v)| json!({"name": k, "value": v})).collect();
                let mut container = json!({"name": name, "env": env});
                if let Some(image) = image {
                    container["image"] = image.into();
                }
                container
            })
            .collect();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "labels": labels, "finalizers": finalizers.into_iter().collect::<Vec<_>>()},
            "spec": {"containers": containers},
        });
        // An empty list or map is no one's, so it would stay when all else goes.
        drop_empty(&mut pod);
        if let Some(grace) = grace {
            pod["spec"]["terminationGracePeriodSeconds"] = grace.into();
        }
        pod
    })
}

/// The server's step after an apply: decoding against the schema.
fn stored(object: Value) -> Value {
    let managed = object["metadata"].get("managedFields").cloned();
    let mut object = decoded(object, pod());
    if let Some(managed) = managed {
        object["metadata"]["managedFields"] = managed;
    }
    object
}

fn without_managed(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    object
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(live in any_config(), config in any_config()) {
        let live = create(live, pod(), by("u", "v1", 0));
        let once = stored(apply(Some(&live), &config, pod(), &forced(by("x", "v1", 1))).unwrap());
        let twice = stored(apply(Some(&once), &config, pod(), &by("x", "v1", 2)).unwrap());
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn a_sole_owner_that_says_nothing_leaves_nothing(config in any_config()) {
        let empty = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        let one = stored(apply(None, &config, pod(), &by("x", "v1", 0)).unwrap());
        let two = stored(apply(Some(&one), &empty, pod(), &by("x", "v1", 1)).unwrap());
        prop_assert_eq!(two, decoded(empty, pod()));
    }

    #[test]
    fn what_another_applied_stays(a in any_config(), b in any_config()) {
        let empty = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        let alone = stored(apply(None, &b, pod(), &by("b", "v1", 0)).unwrap());
        let one = stored(apply(None, &a, pod(), &by("a", "v1", 0)).unwrap());
        let two = stored(apply(Some(&one), &b, pod(), &forced(by("b", "v1", 1))).unwrap());
        let three = stored(apply(Some(&two), &empty, pod(), &by("a", "v1", 2)).unwrap());
        prop_assert_eq!(without_managed(&three), without_managed(&alone));
        let of_b = |o: &Value| entries(o).first().map(|e| e["fieldsV1"].clone());
        prop_assert_eq!(of_b(&three), of_b(&alone));
    }

    #[test]
    fn an_updaters_entry_covers_the_change(a in any_config(), b in any_config()) {
        // Whoever writes the whole object anew owns, with those before, all that is in it.
        let one = create(a, pod(), by("a", "v1", 0));
        prop_assume!(!entries(&one).is_empty());
        let mut new = decoded(b.clone(), pod());
        update_managed_fields(&mut new, Some(&one), pod(), &update_of(by("b", "v1", 1)));
        let mut owned = Set::new();
        for entry in managed::decode(managed_fields(&new).cloned().unwrap_or_default(), Trust::Ours).unwrap() {
            set::union(&mut owned, entry.fields);
        }
        let whole = create(b, pod(), by("b", "v1", 0));
        let expected = managed::decode(managed_fields(&whole).cloned().unwrap_or_default(), Trust::Ours).unwrap();
        let expected = expected.into_iter().next().map(|e| e.fields).unwrap_or_default();
        prop_assert_eq!(set::paths(&owned, 1000), set::paths(&expected, 1000));
    }

    #[test]
    fn nothing_applied_panics(live in any_config(), junk in any_junk()) {
        let live = create(live, pod(), by("u", "v1", 0));
        let mut config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        config["spec"] = junk.clone();
        let _ = apply(Some(&live), &config, pod(), &by("x", "v1", 1));
        let _ = apply(Some(&live), &config, None, &by("x", "v1", 1));
        let mut sent = live.clone();
        sent["metadata"]["managedFields"] = junk;
        update_managed_fields(&mut sent, Some(&live), pod(), &update_of(by("x", "v1", 1)));
    }
}

fn any_junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (0i64..3).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from)
    ];
    let keys = prop::sample::select(vec![
        "containers",
        "name",
        "env",
        "ports",
        "image",
        "f:spec",
        "k:{}",
        ".",
        "operation",
        "fieldsV1",
        "x",
    ]);
    leaf.prop_recursive(5, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..4).prop_map(|m| m
                .into_iter()
                .map(|(k, v)| (k.to_string(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}
