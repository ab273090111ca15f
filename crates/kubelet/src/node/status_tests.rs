use std::collections::BTreeMap;

use orlop_api::types::meta::Quantity;
use orlop_runtime::cri::messages::{RuntimeFeatures, RuntimeHandler, RuntimeStatus};

use super::*;

fn identity() -> Identity {
    Identity {
        name: "n1".into(),
        hostname: "host1".into(),
        addresses: vec!["10.0.0.5".parse().unwrap()],
        labels: BTreeMap::new(),
        port: 10250,
    }
}

fn machine() -> Machine {
    Machine {
        cores: 2,
        memory_bytes: 4 << 30,
        storage_bytes: 10 << 30,
        boot_id: "boot-1".into(),
        ..Machine::default()
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const NOW: &str = "2026-01-01T00:01:00.7Z";

fn runtime(runtime_ready: bool, network_ready: bool) -> RuntimeView {
    let condition = |r#type: &str, status: bool| RuntimeCondition {
        r#type: r#type.into(),
        status,
        reason: if status { "" } else { "Why" }.into(),
        message: if status { "" } else { "because" }.into(),
    };
    RuntimeView {
        version: Some(VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "1.6.20~ds1".into(),
            ..VersionResponse::default()
        }),
        status: Some(StatusResponse {
            status: Some(RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", runtime_ready),
                    condition("NetworkReady", network_ready),
                ],
            }),
            ..StatusResponse::default()
        }),
        ready_at: Some(at("2026-01-01T00:00:55Z")),
    }
}

fn status_of(observed: &Observed, old: &Node) -> (NodeStatus, Vec<NodeEvent>) {
    node_status(&identity(), &Config::default(), &machine(), observed, old, at(NOW))
}

fn ready(observed: &Observed) -> String {
    let (status, _) = status_of(observed, &Node::default());
    let last = status.conditions.unwrap().pop().unwrap();
    format!("{} {} {}", last.type_, last.status, last.message.unwrap())
}

#[test]
fn readiness_and_its_reasons() {
    let observed = |runtime: RuntimeView| Observed {
        runtime,
        ..Observed::default()
    };
    let cases = [
        (runtime(true, true), "Ready True kubelet is posting ready status"),
        (
            RuntimeView::default(),
            "Ready False container runtime status check may not have completed yet",
        ),
        (
            runtime(true, false),
            "Ready False container runtime network not ready: NetworkReady=false reason:Why message:because",
        ),
        (
            runtime(false, true),
            "Ready False container runtime not ready: RuntimeReady=false reason:Why message:because",
        ),
        (
            RuntimeView {
                ready_at: Some(at("2026-01-01T00:00:30Z")),
                status: Some(StatusResponse::default()),
                ..runtime(true, true)
            },
            "Ready False [container runtime is down, container runtime not ready: <nil>, container runtime network \
             not ready: <nil>]",
        ),
    ];
    for (runtime, expected) in cases {
        assert_eq!(ready(&observed(runtime)), expected);
    }
    let stopping = Observed {
        shutting_down: true,
        ..observed(runtime(true, true))
    };
    assert_eq!(ready(&stopping), "Ready False node is shutting down");
}

#[test]
fn conditions_turn_once_and_are_told() {
    let mut observed = Observed {
        runtime: runtime(true, true),
        ..Observed::default()
    };
    let (status, events) = status_of(&observed, &Node::default());
    let reasons: Vec<&str> = events.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(
        reasons,
        [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID"
        ]
    );
    let mut node = Node {
        status: Some(status.clone()),
        ..Node::default()
    };
    // A condition of somebody else, before ours.
    let others = condition("Other", true, "Because", String::new(), at(NOW));
    node.status
        .as_mut()
        .unwrap()
        .conditions
        .as_mut()
        .unwrap()
        .insert(0, others);
    observed.pressure.memory = true;
    let later = at("2026-01-01T00:01:20Z");
    let (status, events) = node_status(&identity(), &Config::default(), &machine(), &observed, &node, later);
    assert_eq!(
        events,
        [(
            "NodeHasInsufficientMemory",
            "Node n1 status is now: NodeHasInsufficientMemory".to_string()
        )]
    );
    let shown: Vec<String> = status
        .conditions
        .as_ref()
        .unwrap()
        .iter()
        .map(|c| {
            let time = |t: &Option<Time>| t.as_ref().unwrap().0.strftime("%M:%S").to_string();
            let (turned, beat) = (time(&c.last_transition_time), time(&c.last_heartbeat_time));
            format!("{} {} {turned} {beat}", c.type_, c.status)
        })
        .collect();
    assert_eq!(
        shown,
        [
            "Other True 01:00 01:00",
            "MemoryPressure True 01:20 01:20",
            "DiskPressure False 01:00 01:20",
            "PIDPressure False 01:00 01:20",
            "Ready True 01:00 01:20",
        ]
    );
    assert!(has_changed(node.status.as_ref(), &status));
}

#[test]
fn heartbeats_alone_are_no_change() {
    let observed = Observed {
        runtime: runtime(true, true),
        ..Observed::default()
    };
    let (status, _) = status_of(&observed, &Node::default());
    let node = Node {
        status: Some(status),
        ..Node::default()
    };
    let later = at("2026-01-01T00:01:10Z");
    let (status, events) = node_status(&identity(), &Config::default(), &machine(), &observed, &node, later);
    assert!(!has_changed(node.status.as_ref(), &status) && events.is_empty());
    assert!(has_changed(None, &status));
}

#[test]
fn resources_of_others_stay_and_a_reboot_is_told() {
    let quantity = |text: &str| Quantity(text.to_string());
    let old = NodeStatus {
        capacity: Some(BTreeMap::from([
            ("example.com/gpu".to_string(), quantity("2")),
            ("hugepages-32Mi".to_string(), quantity("64Mi")),
        ])),
        allocatable: Some(BTreeMap::from([
            ("gone".to_string(), quantity("1")),
            ("example.com/gpu".to_string(), quantity("1")),
        ])),
        node_info: Some(NodeSystemInfo {
            boot_id: "boot-0".into(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    };
    let node = Node {
        status: Some(old),
        ..Node::default()
    };
    let observed = Observed {
        runtime: runtime(true, true),
        ..Observed::default()
    };
    let (status, events) = status_of(&observed, &node);
    assert_eq!(
        events[0],
        ("Rebooted", "Node n1 has been rebooted, boot id: boot-1".to_string())
    );
    let allocatable = status.allocatable.unwrap();
    assert_eq!(allocatable["example.com/gpu"], quantity("2"), "as much as there is now");
    let names: Vec<String> = allocatable.into_keys().collect();
    assert_eq!(names, ["cpu", "ephemeral-storage", "example.com/gpu", "memory", "pods"]);
    let info = status.node_info.unwrap();
    assert_eq!(info.container_runtime_version, "containerd://1.6.20");
    assert_eq!(info.kubelet_version, KUBELET_VERSION);
    let addresses: Vec<String> = status
        .addresses
        .unwrap()
        .into_iter()
        .map(|a| a.type_ + " " + &a.address)
        .collect();
    assert_eq!(addresses, ["InternalIP 10.0.0.5", "Hostname host1"]);
}

#[test]
fn the_largest_images_with_few_names() {
    let image = |id: &str, size: u64, tags: usize| Image {
        id: id.into(),
        size,
        repo_digests: vec![format!("{id}@sha256:1")],
        repo_tags: (0..tags).map(|i| format!("{id}:{i}")).collect(),
        ..Image::default()
    };
    let all = [image("a", 1, 1), image("b", 3, 9), image("c", 2, 0)];
    let shown = images(&all, 2);
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[0].names.as_ref().unwrap().len(), IMAGE_NAMES_MAX);
    assert_eq!(shown[0].names.as_ref().unwrap()[0], "b@sha256:1");
    assert_eq!((shown[0].size_bytes, shown[1].size_bytes), (Some(3), Some(2)));
    assert_eq!((images(&all, -1).len(), images(&all, 0).len()), (3, 0));
}

#[test]
fn handlers_and_versions() {
    let mut view = runtime(true, true);
    let told = view.status.as_mut().unwrap();
    told.runtime_handlers = ["runc", ""]
        .map(|name| RuntimeHandler {
            name: name.into(),
            features: None,
        })
        .to_vec();
    told.features = Some(RuntimeFeatures {
        supplemental_groups_policy: true,
        ..RuntimeFeatures::default()
    });
    let mut status = NodeStatus::default();
    set_runtime_features(&mut status, &view);
    let names: Vec<String> = status
        .runtime_handlers
        .unwrap()
        .into_iter()
        .filter_map(|h| h.name)
        .collect();
    assert_eq!(names, ["", "runc"]);
    assert_eq!(status.features.unwrap().supplemental_groups_policy, Some(true));
    for (text, expected) in [
        ("v1.7.2", "1.7.2"),
        ("2.0.0-rc.1", "2.0.0-rc.1"),
        ("", "Unknown"),
        ("x", "Unknown"),
    ] {
        let version = VersionResponse {
            runtime_name: "r".into(),
            runtime_version: text.into(),
            ..VersionResponse::default()
        };
        assert_eq!(runtime_version(Some(&version)), format!("r://{expected}"));
    }
}

#[test]
fn features_are_declared_in_order_and_by_gates() {
    let declared = |gates: &str| {
        let gates: serde_json::Value = serde_json::from_str(gates).unwrap();
        declared_features(&crate::config::parse(None, &[("featureGates", gates)]).unwrap())
    };
    let all = declared("{}").unwrap();
    assert!(all.is_sorted() && all.len() == 4, "{all:?}");
    let fewer = declared(r#"{"RestartAllContainersOnContainerExits": false}"#).unwrap();
    assert_eq!(fewer, all[..3]);
    assert_eq!(declared(r#"{"NodeDeclaredFeatures": false}"#), None);
    let (status, _) = status_of(&Observed::default(), &Node::default());
    assert_eq!(status.declared_features, Some(all));
}

#[test]
fn devices_of_plugins_are_counted() {
    let observed = Observed {
        devices: [("x.io/gpu".to_string(), (3, 2)), ("x.io/gone".to_string(), (0, 0))].into(),
        ..Observed::default()
    };
    let (status, _) = status_of(&observed, &Node::default());
    let (capacity, allocatable) = (status.capacity.unwrap(), status.allocatable.unwrap());
    let of = |name: &str| (capacity[name].0.as_str(), allocatable[name].0.as_str());
    assert_eq!((of("x.io/gpu"), of("x.io/gone")), (("3", "2"), ("0", "0")));
    assert!(capacity.contains_key("cpu"));
}
