use serde_json::{Value, json};

use super::*;
use crate::cluster::storage::fixture::{World, uses};

const BIND: &str = "UU node(s) didn't find available persistent volumes to bind";
const REACH: &str = "UU node(s) didn't match PersistentVolume's node affinity";
const SPACE: &str = "UU node(s) did not have enough free storage";
const MISSING: &str = "UU node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// Nodes a and b; classes: `local` (no provisioner), `csi` (driver d), `zoned` (only zone of b), `now` (immediate).
fn world() -> World {
    let mut world = World::default();
    for node in ["a", "b"] {
        world.node(
            node,
            json!({"kubernetes.io/hostname": node, "zone": format!("z{node}")}),
        );
    }
    let later = "WaitForFirstConsumer";
    world.class(
        "local",
        json!({"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": later}),
    );
    world.class("csi", json!({"provisioner": "d", "volumeBindingMode": later}));
    let zb = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["zb", "zc"]}]}]);
    world.class(
        "zoned",
        json!({"provisioner": "d", "volumeBindingMode": later, "allowedTopologies": zb}),
    );
    world.class("now", json!({"provisioner": "d", "volumeBindingMode": "Immediate"}));
    world
}

/// Of class `local`, 10Gi, on node `host` if any; `more` goes over the spec.
fn volume(host: Option<&str>, more: Value) -> Value {
    let mut spec = json!({
        "storageClassName": "local",
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
    });
    if let Some(host) = host {
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]});
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [term]}});
    }
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"spec": spec, "status": {"phase": "Available"}})
}

/// Of this class, asks for this much.
fn claim(class: &str, size: &str) -> Value {
    json!({"spec": {
        "storageClassName": class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }})
}

fn bound(volume: &str) -> Value {
    json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume, "storageClassName": "local"},
    })
}

fn ask(world: &World, pod: &PodInfo) -> String {
    world.ask(&VolumeBinding::default(), pod)
}

#[test]
fn claims_that_make_a_pod_impossible() {
    let unbound = "all UU pod has unbound immediate PersistentVolumeClaims";
    let cases = [
        (None, "all UU persistentvolumeclaim \"c\" not found"),
        (
            Some(json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}})),
            "all UU persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
        ),
        (
            Some(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            "all UU persistentvolumeclaim \"c\" is being deleted",
        ),
        (Some(claim("now", "1Gi")), unbound),
        (Some(claim("gone", "1Gi")), unbound),
        (Some(json!({})), unbound),
        (
            Some(json!({"spec": {"storageClassName": "local", "volumeName": "v"}})),
            unbound,
        ),
    ];
    for (object, expected) in cases {
        let mut world = world();
        if let Some(object) = &object {
            world.claim("c", object.clone());
        }
        let pod = world.pod("p", json!([uses("c")]));
        assert_eq!(ask(&world, &pod), expected, "{object:?}");
    }
    let mut world = world();
    let none = world.pod("p", json!([{"name": "x", "csi": {"driver": "d"}}]));
    assert_eq!(ask(&world, &none), "skip");
}

#[test]
fn ephemeral_claims_are_the_pods_own() {
    let mut world = world();
    let pod = world.pod("p", json!([{"name": "e", "ephemeral": {}}]));
    assert_eq!(
        ask(&world, &pod),
        "all UU waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\""
    );
    let mut object = claim("csi", "1Gi");
    world.claim("p-e", object.clone());
    assert_eq!(
        ask(&world, &pod),
        "all UU PVC default/p-e was not created for pod default/p (pod is not owner)"
    );
    object["metadata"] = json!({"ownerReferences": [{"uid": "uid-p", "controller": true}]});
    world.claim("p-e", object);
    assert_eq!(ask(&world, &pod), "a: ok; b: ok");
}

#[test]
fn bound_volumes_are_reached() {
    let mut world = world();
    world.volume("on-a", volume(Some("a"), json!({})));
    world.volume("anywhere", volume(None, json!({})));
    let empty_terms = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": []}}});
    world.volume("nowhere", volume(None, empty_terms));
    let cases: [(&[&str], String); 6] = [
        (&["on-a"], format!("a: ok; b: {REACH}")),
        (&["anywhere"], "a: ok; b: ok".into()),
        (&["nowhere"], format!("a: {REACH}; b: {REACH}")),
        (&["gone"], format!("a: {MISSING}; b: {MISSING}")),
        // The first that is wrong is the only one told of.
        (&["on-a", "gone"], format!("a: {MISSING}; b: {REACH}")),
        (&["gone", "on-a"], format!("a: {MISSING}; b: {MISSING}")),
    ];
    for (volumes, expected) in cases {
        for volume in volumes {
            world.claim(volume, bound(volume));
        }
        let pod = world.pod("p", volumes.iter().map(|v| uses(v)).collect());
        assert_eq!(ask(&world, &pod), expected, "{volumes:?}");
    }
}

#[test]
fn several_things_can_be_wrong() {
    let mut world = world();
    let taken = json!({"claimRef": {"namespace": "default", "name": "on-a", "uid": "uid-on-a"}});
    world.volume("on-a", volume(Some("a"), taken));
    world.claim("on-a", bound("on-a"));
    world.claim("c", claim("local", "1Gi"));
    let pod = world.pod("p", json!([uses("c"), uses("on-a")]));
    let both = format!("{REACH}, {}", BIND.trim_start_matches("UU "));
    assert_eq!(ask(&world, &pod), format!("a: {BIND}; b: {both}"));
}

#[test]
fn unbound_claims_find_volumes() {
    let label = json!({"metadata": {"labels": {"disk": "ssd"}}});
    let with = |mut object: Value, more: &Value| {
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        object
    };
    let spec = |key: &str, value: Value| {
        let mut object = claim("local", "10Gi");
        object["spec"][key] = value;
        object
    };
    let on_a = || volume(Some("a"), json!({}));
    let only_a = format!("a: ok; b: {BIND}");
    let none = format!("a: {BIND}; b: {BIND}");
    let named = |uid: &str| {
        let claim_ref = json!({"claimRef": {"namespace": "default", "name": "c", "uid": uid}});
        volume(Some("a"), claim_ref)
    };
    let selector = || spec("selector", json!({"matchLabels": {"disk": "ssd"}}));
    let cases = [
        (on_a(), claim("local", "10Gi"), &only_a),
        (on_a(), claim("local", "11Gi"), &none),
        (on_a(), claim("csi", "1Gi"), &"a: ok; b: ok".to_string()),
        (on_a(), spec("volumeMode", json!("Block")), &none),
        (on_a(), spec("volumeMode", json!("Filesystem")), &only_a),
        (on_a(), spec("accessModes", json!(["ReadWriteMany"])), &none),
        (on_a(), spec("volumeAttributesClassName", json!("gold")), &none),
        (on_a(), selector(), &none),
        (with(on_a(), &label), selector(), &only_a),
        (
            with(on_a(), &json!({"status": {"phase": "Released"}})),
            claim("local", "1Gi"),
            &none,
        ),
        (
            with(
                on_a(),
                &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            ),
            claim("local", "1Gi"),
            &none,
        ),
        (named("uid-c"), claim("local", "1Gi"), &only_a),
        (named(""), claim("local", "1Gi"), &only_a),
        (named("uid-before"), claim("local", "1Gi"), &none),
        // What is meant for the claim need be neither available nor selected, but large enough.
        (
            with(named("uid-c"), &json!({"status": {"phase": "Bound"}})),
            selector(),
            &only_a,
        ),
        (named("uid-c"), claim("local", "11Gi"), &none),
    ];
    for (at, (volume, claim, expected)) in cases.into_iter().enumerate() {
        let mut world = world();
        world.volume("v", volume);
        world.claim("c", claim);
        let pod = world.pod("p", json!([uses("c")]));
        assert_eq!(&ask(&world, &pod), expected, "case {at}");
    }
}

/// What the pod would get on the node: `claim=volume`, or `claim+` if a volume is to be made.
fn found(world: &World, pod: &PodInfo, node: &str) -> String {
    let claims = Claims::of(pod, &world.cluster.storage).unwrap().unwrap();
    let found = claims.find(world.cluster.node_named(node).unwrap()).unwrap();
    let bindings = found
        .bindings
        .iter()
        .map(|(v, c)| format!("{}={}", c.metadata.name, v.metadata.name));
    let provisions = found.provisions.iter().map(|c| format!("{}+", c.metadata.name));
    bindings.chain(provisions).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_smallest_volume_that_will_do() {
    let mut world = world();
    let sized =
        |host, size: &str, class: &str| volume(host, json!({"capacity": {"storage": size}, "storageClassName": class}));
    world.volume("big", sized(None, "50Gi", "csi"));
    world.volume("mid-a", sized(Some("a"), "20Gi", "csi"));
    world.volume("small", sized(None, "1Gi", "csi"));
    world.volume("same-1", sized(None, "5Gi", "csi"));
    world.volume("same-2", sized(Some("a"), "5Gi", "csi"));
    for (name, size) in [("tiny", "1Gi"), ("five", "5Gi"), ("six", "6Gi"), ("huge", "1Ti")] {
        world.claim(name, claim("csi", size));
    }
    let cases: [(&[&str], &str, &str); 7] = [
        (&["tiny"], "a", "tiny=small"),
        (&["five"], "a", "five=same-1"),
        (&["six"], "a", "six=mid-a"),
        (&["six"], "b", "six=big"),
        (&["huge"], "a", "huge+"),
        (
            &["huge", "six", "five", "tiny"],
            "a",
            "tiny=small five=same-1 six=mid-a huge+",
        ),
        (&["six", "six"], "b", "six=big"),
    ];
    for (claims, node, expected) in cases {
        let pod = world.pod("p", claims.iter().map(|c| uses(c)).collect());
        assert_eq!(found(&world, &pod, node), expected, "{claims:?} on {node}");
    }
    // Each volume goes to one claim.
    world.claim("six-too", claim("csi", "6Gi"));
    let pod = world.pod("p", json!([uses("six"), uses("six-too")]));
    assert_eq!(found(&world, &pod, "a"), "six=mid-a six-too=big");
    assert_eq!(found(&world, &pod, "b"), "six=big six-too+");
}

#[test]
fn volumes_are_made_where_they_may_be() {
    let chosen = |node: &str| {
        let mut object = claim("csi", "1Gi");
        object["metadata"] = json!({"annotations": {"volume.kubernetes.io/selected-node": node}});
        object
    };
    let cases = [
        (claim("csi", "1Gi"), "a: ok; b: ok".to_string()),
        (claim("zoned", "1Gi"), format!("a: {BIND}; b: ok")),
        (claim("local", "1Gi"), format!("a: {BIND}; b: {BIND}")),
        (chosen("a"), format!("a: ok; b: {BIND}")),
        (chosen("elsewhere"), format!("a: {BIND}; b: {BIND}")),
    ];
    for (object, expected) in cases {
        let mut world = world();
        world.claim("c", object.clone());
        let pod = world.pod("p", json!([uses("c")]));
        assert_eq!(ask(&world, &pod), expected, "{object}");
    }
}

#[test]
fn drivers_keep_account_of_space() {
    let near_a = || json!({"matchLabels": {"zone": "za"}});
    let capacity = |class: &str, topology: Value, sizes: Value| {
        let mut object = json!({"storageClassName": class, "nodeTopology": topology});
        for (key, value) in sizes.as_object().unwrap() {
            object[key] = value.clone();
        }
        object
    };
    let none = format!("a: {SPACE}; b: {SPACE}");
    let only_a = format!("a: ok; b: {SPACE}");
    let cases = [
        (capacity("csi", near_a(), json!({"capacity": "10Gi"})), &only_a),
        (
            capacity("csi", json!({}), json!({"capacity": "10Gi"})),
            &"a: ok; b: ok".to_string(),
        ),
        (capacity("csi", json!(null), json!({"capacity": "10Gi"})), &none),
        (capacity("csi", near_a(), json!({"capacity": "1Gi"})), &none),
        (
            capacity("csi", near_a(), json!({"capacity": "10Gi", "maximumVolumeSize": "1Gi"})),
            &none,
        ),
        (
            capacity("csi", near_a(), json!({"capacity": "1Gi", "maximumVolumeSize": "5Gi"})),
            &only_a,
        ),
        (capacity("csi", near_a(), json!({})), &none),
        (capacity("zoned", near_a(), json!({"capacity": "10Gi"})), &none),
    ];
    for (object, expected) in cases {
        let mut world = world();
        world.driver("d", json!({"spec": {"storageCapacity": true}}));
        world.capacity("x", object.clone());
        world.claim("c", claim("csi", "5Gi"));
        world.claim("any", json!({"spec": {"storageClassName": "csi"}}));
        let pod = world.pod("p", json!([uses("c")]));
        assert_eq!(&ask(&world, &pod), expected, "{object}");
        let sizeless = world.pod("q", json!([uses("any")]));
        assert_eq!(ask(&world, &sizeless), "a: ok; b: ok");
        world.driver("d", json!({"spec": {"storageCapacity": false}}));
        assert_eq!(ask(&world, &pod), "a: ok; b: ok", "the driver does not keep account");
    }
}

fn state(plugin: &VolumeBinding, world: &World, pod: &PodInfo, node: &str) -> String {
    let node = world.cluster.node_named(node).unwrap();
    match plugin.progress(pod, node, &world.cluster) {
        Progress::Done => "done".into(),
        Progress::Waiting(time) => format!("waiting {}", time.as_secs()),
        Progress::Failed(reason) => reason,
    }
}

fn reserve(plugin: &VolumeBinding, world: &World, pod: &Arc<PodInfo>, node: &str) -> Result<(), Rejection> {
    Reserve::reserve(plugin, pod, world.cluster.node_named(node).unwrap(), &world.cluster)
}

fn writes(plugin: &VolumeBinding, world: &World, pod: &PodInfo, node: &str) -> Value {
    let writes = plugin.writes(pod, world.cluster.node_named(node).unwrap(), &world.cluster);
    let shown = writes.iter().map(|w| json!([w.method, w.path, w.body]));
    shown.collect()
}

#[test]
fn a_claim_is_bound_to_a_volume() {
    let mut world = world();
    world.volume("v", volume(Some("a"), json!({})));
    world.claim("c", claim("local", "1Gi"));
    let plugin = VolumeBinding::default();
    let pod = world.pod("p", json!([uses("c")]));
    let rival = world.pod("rival", json!([uses("d")]));
    world.claim("d", claim("local", "1Gi"));
    assert_eq!(writes(&plugin, &world, &pod, "a"), json!([]));
    assert_eq!(state(&plugin, &world, &pod, "a"), "done");

    reserve(&plugin, &world, &pod, "a").unwrap();
    assert_eq!(ask(&world, &rival), format!("a: {BIND}; b: {BIND}"));
    assert_eq!(ask(&world, &pod), format!("a: ok; b: {BIND}"));
    let (volume_revision, claim_revision) = {
        let tables = world.cluster.storage.tables();
        let claim = tables.claim("default", "c").unwrap();
        (
            tables.volume("v").unwrap().metadata.resource_version.clone(),
            claim.metadata.resource_version.clone(),
        )
    };
    let patch = json!({
        "metadata": {
            "resourceVersion": volume_revision,
            "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
        },
        "spec": {"claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "default",
            "name": "c",
            "uid": "uid-c",
            "resourceVersion": claim_revision,
        }},
    });
    assert_eq!(
        writes(&plugin, &world, &pod, "a"),
        json!([["PATCH", "/api/v1/persistentvolumes/v", patch]])
    );
    assert_eq!(state(&plugin, &world, &pod, "a"), "waiting 600");

    let claim_ref = json!({"claimRef": {"namespace": "default", "name": "c", "uid": "uid-c"}});
    world.volume("v", volume(Some("a"), claim_ref));
    assert_eq!(state(&plugin, &world, &pod, "a"), "waiting 600");
    assert_eq!(writes(&plugin, &world, &pod, "a"), json!([]));
    world.claim("c", bound("v"));
    assert_eq!(state(&plugin, &world, &pod, "a"), "done");
    plugin.bound(&pod, "a");
    assert!(plugin.reserved.lock().is_empty());
    assert_eq!(world.cluster.storage.assumed().len(), (0, 0));
    assert_eq!(ask(&world, &rival), format!("a: {BIND}; b: {BIND}"));
}

#[test]
fn a_volume_is_made_for_a_claim() {
    let mut world = world();
    world.claim("c", claim("csi", "1Gi"));
    let plugin = VolumeBinding::new(Duration::from_secs(5));
    let pod = world.pod("p", json!([uses("c")]));
    let friend = world.pod("friend", json!([uses("c")]));
    reserve(&plugin, &world, &pod, "b").unwrap();
    assert_eq!(ask(&world, &friend), format!("a: {BIND}; b: ok"), "it shares the claim");
    let revision = world
        .cluster
        .storage
        .claim("default", "c")
        .unwrap()
        .metadata
        .resource_version
        .clone();
    let patch = json!({"metadata": {
        "resourceVersion": revision,
        "annotations": {"volume.kubernetes.io/selected-node": "b"},
    }});
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/c";
    assert_eq!(writes(&plugin, &world, &pod, "b"), json!([["PATCH", path, patch]]));
    assert_eq!(state(&plugin, &world, &pod, "b"), "waiting 5");

    let mut object = claim("csi", "1Gi");
    object["metadata"] = json!({"annotations": {"volume.kubernetes.io/selected-node": "b"}});
    world.claim("c", object.clone());
    assert_eq!(writes(&plugin, &world, &pod, "b"), json!([]));
    assert_eq!(state(&plugin, &world, &pod, "b"), "waiting 5");
    object["spec"]["volumeName"] = json!("made");
    object["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    world.claim("c", object);
    assert_eq!(
        state(&plugin, &world, &pod, "b"),
        "waiting 5",
        "the volume is not known yet"
    );
    world.volume("made", volume(Some("b"), json!({})));
    assert_eq!(state(&plugin, &world, &pod, "b"), "done");
    world.volume("made", volume(Some("a"), json!({})));
    assert_eq!(
        state(&plugin, &world, &pod, "b"),
        "binding volumes: pv \"made\" node affinity doesn't match node \"b\": no matching NodeSelectorTerms"
    );
}

#[test]
fn binding_can_fail() {
    type Change = fn(&mut World);
    let cases: [(&str, Change, &str); 7] = [
        (
            "local",
            |w| drop(w.cluster.storage.observe_volume("v", None)),
            "failed to check binding: persistentvolumes \"v\" not found",
        ),
        (
            "local",
            |w| drop(w.cluster.storage.observe_claim("default", "c", None)),
            "failed to check binding: persistentvolumeclaims \"default/c\" not found",
        ),
        (
            "local",
            |w| drop(w.volume("v", volume(None, json!({})))),
            "ClaimRef got reset for pv \"v\"",
        ),
        (
            "local",
            |w| drop(w.volume("v", volume(Some("b"), json!({})))),
            "pv \"v\" node affinity doesn't match node \"a\": no matching NodeSelectorTerms",
        ),
        (
            "csi",
            |w| drop(w.cluster.storage.observe_claim("default", "c", None)),
            "failed to check provisioning pvc: persistentvolumeclaims \"default/c\" not found",
        ),
        (
            "csi",
            |w| drop(w.claim("c", claim("csi", "1Gi"))),
            "selectedNode annotation reset for PVC \"c\"",
        ),
        (
            "csi",
            |w| {
                let mut object = claim("csi", "1Gi");
                object["metadata"] = json!({"annotations": {"other": ""}});
                w.claim("c", object);
            },
            "provisioning failed for PVC \"c\"",
        ),
    ];
    for (class, change, expected) in cases {
        let mut world = world();
        world.volume("v", volume(Some("a"), json!({})));
        world.claim("c", claim(class, "1Gi"));
        let plugin = VolumeBinding::default();
        let pod = world.pod("p", json!([uses("c")]));
        reserve(&plugin, &world, &pod, "a").unwrap();
        change(&mut world);
        assert_eq!(
            state(&plugin, &world, &pod, "a"),
            format!("binding volumes: {expected}")
        );
    }
}

/// Two pods want one claim: what the second assumes is the first's, and stays when the second lets go.
#[test]
fn a_shared_claim_is_given_back_by_the_pod_that_took_it() {
    let mut world = world();
    world.volume("v", volume(Some("a"), json!({})));
    world.claim("c", claim("local", "1Gi"));
    world.claim("d", claim("csi", "1Gi"));
    let plugin = VolumeBinding::default();
    let first = world.pod("first", json!([uses("c"), uses("d")]));
    let second = world.pod("second", json!([uses("c"), uses("d")]));
    reserve(&plugin, &world, &first, "a").unwrap();
    reserve(&plugin, &world, &second, "a").unwrap();
    assert_eq!(world.cluster.storage.assumed().len(), (1, 1));
    plugin.unreserve(&second, "a");
    assert_eq!(world.cluster.storage.assumed().len(), (1, 1));
    plugin.unreserve(&first, "a");
    plugin.unreserve(&first, "a");
    assert_eq!(world.cluster.storage.assumed().len(), (0, 0));
}

#[test]
fn newer_revisions_win_over_assumptions() {
    let mut world = world();
    world.volume("v", volume(Some("a"), json!({})));
    world.claim("c", claim("local", "1Gi"));
    world.claim("d", claim("local", "1Gi"));
    let plugin = VolumeBinding::default();
    let pod = world.pod("p", json!([uses("c")]));
    let rival = world.pod("rival", json!([uses("d")]));
    reserve(&plugin, &world, &pod, "a").unwrap();
    assert!(reserve(&plugin, &world, &rival, "a").is_err());
    // Somebody changed the volume before we did.
    world.volume("v", volume(Some("a"), json!({"capacity": {"storage": "20Gi"}})));
    assert_eq!(world.cluster.storage.assumed().len(), (0, 0));
    reserve(&plugin, &world, &rival, "a").unwrap();
    // The first pod's late end does not touch what the second assumes.
    plugin.unreserve(&pod, "a");
    assert_eq!(world.cluster.storage.assumed().len(), (1, 0));
}

#[test]
fn hints() {
    let mut world = world();
    let pod = world.pod(
        "p",
        json!([uses("c"), {"name": "e", "ephemeral": {}}, {"name": "i", "csi": {"driver": "d"}}]),
    );
    let capacity = |size: Value| json!({"storageClassName": "csi", "capacity": size});
    let migrated = |plugins: &str| json!({"metadata": {"annotations": {MIGRATED_PLUGINS: plugins}}});
    let topology = json!([{"matchLabelExpressions": [{"key": "k", "values": ["v"]}]}]);
    let events = [
        (world.claim("c", json!({})), Hint::Queue),
        (world.claim("c", claim("csi", "1Gi")), Hint::Queue),
        (world.claim("p-e", json!({})), Hint::Queue),
        (world.claim("other", json!({})), Hint::Skip),
        (world.volume("v", json!({})), Hint::Queue),
        (world.volume("v", volume(None, json!({}))), Hint::Queue),
        (world.class("new", json!({})), Hint::Queue),
        (world.class("new", json!({"provisioner": "x"})), Hint::Skip),
        (world.class("new", json!({"allowedTopologies": topology})), Hint::Queue),
        (world.csi_node("a", json!({"spec": {"drivers": null}})), Hint::Queue),
        (world.csi_node("a", migrated("x")), Hint::Queue),
        (world.csi_node("a", migrated("x")), Hint::Skip),
        (
            world.driver("d", json!({"spec": {"storageCapacity": true}})),
            Hint::Queue,
        ),
        (
            world.driver("d", json!({"spec": {"storageCapacity": true}})),
            Hint::Skip,
        ),
        (
            world.driver("d", json!({"spec": {"storageCapacity": false}})),
            Hint::Queue,
        ),
        (world.capacity("x", capacity(json!(null))), Hint::Queue),
        (world.capacity("x", capacity(json!("1Gi"))), Hint::Queue),
        (world.capacity("x", capacity(json!("1Gi"))), Hint::Skip),
        (world.capacity("x", capacity(json!("2Gi"))), Hint::Queue),
        (world.capacity("x", capacity(json!("1Gi"))), Hint::Skip),
        (world.capacity("x", capacity(json!(null))), Hint::Skip),
    ];
    let plugin = VolumeBinding::default();
    for (at, (event, expected)) in events.into_iter().enumerate() {
        assert_eq!(plugin.hint(&pod, &event, &world.cluster), expected, "event {at}");
    }
}

mod properties {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(usize, &'static str),
        Unreserve(usize),
        /// The watch shows the volume once more, changed in nothing that matters.
        Touch(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let node = prop_oneof![Just("a"), Just("b")];
        let step = prop_oneof![
            3 => (0usize..6, node).prop_map(|(pod, node)| Step::Reserve(pod, node)),
            2 => (0usize..6).prop_map(Step::Unreserve),
            1 => (0usize..5).prop_map(Step::Touch),
        ];
        prop::collection::vec(step, 0..30)
    }

    fn put(world: &mut World, at: usize, hosts: &[usize]) {
        let host = [None, Some("a"), Some("b")][hosts[at] % 3];
        let size = format!("{}Gi", 1 + hosts[at] / 3);
        let class = if at.is_multiple_of(2) { "csi" } else { "local" };
        let more = json!({"capacity": {"storage": size}, "storageClassName": class});
        world.volume(&format!("v{at}"), volume(host, more));
    }

    proptest! {
        #[test]
        fn reservations_do_not_meet_and_leave_nothing(steps in steps(), hosts in prop::collection::vec(0usize..9, 5)) {
            let mut world = world();
            for at in 0..hosts.len() {
                put(&mut world, at, &hosts);
            }
            let mut pods = vec![];
            for i in 0..6 {
                let class = ["csi", "local"][i % 2];
                world.claim(&format!("c{i}"), claim(class, &format!("{}Gi", 1 + i % 3)));
                world.claim(&format!("d{i}"), claim(class, "1Gi"));
                let volumes = json!([uses(&format!("c{i}")), uses(&format!("d{i}"))]);
                pods.push(world.pod(&format!("p{i}"), volumes));
            }
            let answers = |world: &World| pods.iter().map(|p| ask(world, p)).collect::<Vec<_>>();
            let before = answers(&world);
            let plugin = VolumeBinding::default();
            // Volume → pod, as far as the assumption was not overtaken.
            let mut taken: BTreeMap<String, usize> = BTreeMap::new();
            let mut reserved = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Reserve(pod, _) if reserved.contains(&pod) => {}
                    Step::Reserve(pod, node) => {
                        if reserve(&plugin, &world, &pods[pod], node).is_err() {
                            continue;
                        }
                        reserved.insert(pod);
                        let writes = writes(&plugin, &world, &pods[pod], node);
                        for write in writes.as_array().unwrap() {
                            let Some(volume) = write[1].as_str().unwrap().strip_prefix("/api/v1/persistentvolumes/") else {
                                continue;
                            };
                            let other = taken.insert(volume.to_string(), pod);
                            prop_assert_eq!(other, None, "{} was taken", volume);
                        }
                    }
                    Step::Unreserve(pod) => {
                        plugin.unreserve(&pods[pod], "a");
                        reserved.remove(&pod);
                        taken.retain(|_, p| *p != pod);
                    }
                    Step::Touch(volume) => {
                        put(&mut world, volume, &hosts);
                        taken.remove(&format!("v{volume}"));
                    }
                }
            }
            for pod in &pods {
                plugin.unreserve(pod, "a");
            }
            prop_assert_eq!(world.cluster.storage.assumed().len(), (0, 0));
            prop_assert!(plugin.reserved.lock().is_empty());
            prop_assert_eq!(answers(&world), before);
        }
    }
}
