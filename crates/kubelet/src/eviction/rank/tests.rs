use super::*;
use crate::config;
use crate::eviction::signals::Observation;
use proptest::prelude::*;

const MI: u64 = 1 << 20;

/// A pod with one container `c`; priority, requests of memory and of disk.
fn pod(name: &str, priority: i32, memory: &str, disk: &str) -> Pod {
    orlop_api::types::from_value(serde_json::json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests":
            {"memory": memory, "ephemeral-storage": disk}}}],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}]},
    }))
    .unwrap()
}

fn uses(memory: u64, layer: u64, logs: u64, volume: u64) -> PodUse {
    let disk = |bytes| DiskUse {
        bytes,
        inodes: bytes / 10,
    };
    PodUse {
        memory: Some(memory),
        processes: memory,
        containers: vec![ContainerUse {
            name: "c".to_string(),
            memory: Some(memory),
            layer: Some(disk(layer)),
            logs: Some(disk(logs)),
        }],
        volumes: [("e".to_string(), disk(volume)), ("m".to_string(), disk(1 << 40))].into(),
    }
}

fn ranked(pods: &[(Pod, Option<PodUse>)], signal: Signal, layout: Layout) -> String {
    let of = |(pod, used): &'_ (Pod, Option<PodUse>)| (pod.clone(), used.clone());
    let pods: Vec<_> = pods.iter().map(of).collect();
    let mut candidates: Vec<Candidate<'_>> = pods
        .iter()
        .map(|(pod, used)| Candidate {
            pod,
            used: used.as_ref(),
        })
        .collect();
    rank(&mut candidates, signal, layout);
    let names = candidates.iter().map(|c| c.pod.metadata.name.clone().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_order_in_which_pods_go() {
    let single = Layout::default();
    let apart = Layout {
        dedicated_images: true,
        split_containers: false,
    };
    let split = Layout {
        dedicated_images: true,
        split_containers: true,
    };
    let pods = [
        (pod("within", 0, "500", "500"), Some(uses(400, 100, 100, 100))),
        (pod("over-high", 5, "100", "100"), Some(uses(900, 900, 0, 0))),
        (pod("over-low", 0, "100", "100"), Some(uses(200, 0, 150, 0))),
        (pod("over-low-more", 0, "100", "100"), Some(uses(300, 10, 0, 300))),
        (pod("unknown", 9, "0", "0"), None),
    ];
    for (signal, layout, want) in [
        (
            Signal::MemoryAvailable,
            single,
            "unknown over-low-more over-low over-high within",
        ),
        (
            Signal::AllocatableMemoryAvailable,
            single,
            "unknown over-low-more over-low over-high within",
        ),
        (
            Signal::PidAvailable,
            single,
            "within over-low-more over-low over-high unknown",
        ),
        (
            Signal::NodeFsAvailable,
            single,
            "unknown over-low-more over-low over-high within",
        ),
        (
            Signal::ImageFsAvailable,
            single,
            "unknown over-low-more over-low over-high within",
        ),
        // Logs and volumes on the node's disk, layers on the images'.
        (
            Signal::NodeFsAvailable,
            apart,
            "unknown over-low-more over-low within over-high",
        ),
        (
            Signal::ImageFsAvailable,
            apart,
            "unknown over-high over-low-more over-low within",
        ),
        (
            Signal::ContainerFsAvailable,
            apart,
            "unknown over-high over-low-more over-low within",
        ),
        (
            Signal::NodeFsAvailable,
            split,
            "unknown over-low-more over-low over-high within",
        ),
        // Nobody asks for inodes: all that use any.
        (
            Signal::NodeFsInodesFree,
            single,
            "unknown over-low-more over-low within over-high",
        ),
    ] {
        assert_eq!(ranked(&pods, signal, layout), want, "{signal:?} {layout:?}");
    }
}

#[test]
fn who_is_spared() {
    let with = |priority: i32, key: &str, value: &str| {
        let mut pod = pod("p", priority, "0", "0");
        pod.metadata.annotations = Some([(key.to_string(), value.to_string())].into());
        pod
    };
    for (pod, want) in [
        (with(0, "a", "b"), false),
        (with(2_000_000_000, "a", "b"), true),
        (with(1_999_999_999, "a", "b"), false),
        (with(0, "kubernetes.io/config.source", "file"), true),
        (with(0, "kubernetes.io/config.source", "api"), false),
        (with(0, "kubernetes.io/config.mirror", "hash"), true),
    ] {
        assert_eq!(crate::spec::resources::is_critical(&pod), want, "{pod:?}");
    }
}

#[test]
fn what_pods_are_told() {
    let quantity = |text: &str| config::Threshold::Quantity(Quantity::parse(text).unwrap());
    let threshold = |signal, value| Threshold {
        signal,
        value,
        grace: Default::default(),
        min_reclaim: None,
    };
    let memory = threshold(Signal::MemoryAvailable, quantity("100Mi"));
    let disk = threshold(Signal::NodeFsAvailable, config::Threshold::Fraction(0.1));
    let inodes = threshold(Signal::NodeFsInodesFree, config::Threshold::Fraction(0.05));
    let observations: Observations = [
        (Signal::MemoryAvailable, Observation::of(50 * MI, 1000 * MI)),
        (Signal::NodeFsAvailable, Observation::of(7 << 30, 100 << 30)),
        (Signal::NodeFsInodesFree, Observation::of(4000, 100_000)),
    ]
    .into();
    let pod = pod("p", 0, "10Mi", "1Gi");
    let used = uses(300 * MI, 2 << 30, 1 << 30, 0);
    let candidate = Candidate {
        pod: &pod,
        used: Some(&used),
    };
    let all = [&memory, &disk, &inodes];
    assert_eq!(
        message(Signal::MemoryAvailable, &candidate, &all, &observations),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
         Container c was using 300Mi, request is 10Mi, has larger consumption of memory. "
    );
    assert_eq!(
        message(Signal::NodeFsAvailable, &candidate, &all, &observations),
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10737418400, available: 7Gi. \
         Container c was using 3Gi, request is 1Gi, has larger consumption of ephemeral-storage. "
            .replace("10737418400", &disk.quantity(100 << 30).canonical())
    );
    assert_eq!(
        message(Signal::NodeFsInodesFree, &candidate, &all, &observations),
        format!(
            "The node was low on resource: inodes. Threshold quantity: {}, available: 4k. ",
            inodes.quantity(100_000).canonical()
        )
    );
    let unknown = Candidate { pod: &pod, used: None };
    assert_eq!(
        message(Signal::PidAvailable, &unknown, &all, &observations),
        "The node was low on resource: pids. "
    );
    // No request: 0.
    let mut bare = pod.clone();
    bare.spec.as_mut().unwrap().containers[0].resources = None;
    let candidate = Candidate {
        pod: &bare,
        used: Some(&used),
    };
    assert!(message(Signal::MemoryAvailable, &candidate, &all, &observations).contains("request is 0, has"));
}

#[test]
fn limits_of_local_disk() {
    let pod: Pod = orlop_api::types::from_value(serde_json::json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
                {"name": "d", "resources": {"limits": {"ephemeral-storage": "20Mi"}}}],
            "volumes": [{"name": "e", "emptyDir": {"sizeLimit": "5Mi"}}]},
    }))
    .unwrap();
    assert!(has_local_limits(&pod));
    assert!(!has_local_limits(&self::pod("p", 0, "1", "1")));
    let apart = Layout {
        dedicated_images: true,
        split_containers: false,
    };
    for (layer, logs, volume, layout, want) in [
        (5, 5, 5, Layout::default(), None),
        (
            0,
            0,
            6,
            Layout::default(),
            Some("Usage of EmptyDir volume \"e\" exceeds the limit \"5Mi\". "),
        ),
        (
            20,
            10,
            1,
            Layout::default(),
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. "),
        ),
        (
            9,
            2,
            0,
            Layout::default(),
            Some("Container c exceeded its local ephemeral storage limit \"10Mi\". "),
        ),
        (9, 2, 0, apart, None),
    ] {
        let used = uses(0, layer * MI, logs * MI, volume * MI);
        assert_eq!(
            over_local_limit(&pod, &used, layout)
                .map(|(_, message)| message)
                .as_deref(),
            want,
            "{layer} {logs} {volume}"
        );
    }
}

proptest! {
    /// A pod within its requests never goes before one of no higher priority that uses more than it asked for.
    #[test]
    fn the_well_behaved_go_last(all in proptest::collection::vec((0i32..3, 0u64..10, 0u64..10), 2..12)) {
        let pods: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(i, (priority, request, used))| {
                (pod(&i.to_string(), *priority, &request.to_string(), "0"), Some(uses(*used, 0, 0, 0)))
            })
            .collect();
        let order = ranked(&pods, Signal::MemoryAvailable, Layout::default());
        let order: Vec<usize> = order.split(' ').map(|i| i.parse().unwrap()).collect();
        for (place, &first) in order.iter().enumerate() {
            for &second in &order[place + 1..] {
                let ((p1, r1, u1), (p2, r2, u2)) = (all[first], all[second]);
                prop_assert!(u1 > r1 || u2 <= r2);
                if (u1 > r1) == (u2 > r2) {
                    prop_assert!(p1 <= p2);
                    prop_assert!(p1 < p2 || u1 as i64 - r1 as i64 >= u2 as i64 - r2 as i64);
                }
            }
        }
    }
}
