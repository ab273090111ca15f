use super::super::{MemoryQos, Swap, testing};
use super::*;
use proptest::prelude::*;

const GI: i64 = 1 << 30;
const MI: i64 = 1 << 20;

fn facts() -> NodeFacts {
    NodeFacts {
        memory_capacity: 8 * GI,
        ..NodeFacts::default()
    }
}

#[test]
fn classes() {
    let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    let resources = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let equal = resources(both("1", "1Gi"), both("1", "1Gi"));
    for (spec, expected) in [
        (json!({}), QosClass::BestEffort),
        (
            json!({"containers": [{"name": "c", "resources": equal}]}),
            QosClass::Guaranteed,
        ),
        (
            json!({"containers": [{"name": "c", "resources": equal}, {"name": "d"}]}),
            QosClass::Burstable,
        ),
        (
            json!({"containers": [{"name": "c", "resources": resources(both("1", "1Gi"), both("2", "1Gi"))}]}),
            QosClass::Burstable,
        ),
        (
            json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}),
            QosClass::BestEffort,
        ),
        (json!({"resources": equal}), QosClass::Guaranteed),
        (json!({"resources": {"requests": {"cpu": "1"}}}), QosClass::Burstable),
        (
            json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c", "resources": equal}]}),
            QosClass::Burstable,
        ),
    ] {
        assert_eq!(qos_class(&testing::pod(spec.clone())), expected, "{spec}");
    }
    let mut pod = testing::pod(json!({}));
    pod.status = Some(orlop_api::types::from_value(json!({"qosClass": "Guaranteed"})).unwrap());
    assert_eq!(qos_class(&pod), QosClass::Guaranteed);
    assert_eq!(qos_class(&Pod::default()), QosClass::BestEffort);
}

#[test]
fn shares_and_quotas() {
    for (milli, shares) in [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 3),
        (100, 102),
        (1000, 1024),
        (1500, 1536),
        (300_000, 262_144),
    ] {
        assert_eq!(milli_cpu_to_shares(milli), shares, "{milli}m");
    }
    for (milli, period, quota) in [
        (0, 100_000, 0),
        (5, 100_000, 1000),
        (10, 100_000, 1000),
        (20, 100_000, 2000),
        (500, 100_000, 50_000),
        (1500, 100_000, 150_000),
        (1000, 5000, 5000),
        (5, 5000, 1000),
    ] {
        assert_eq!(milli_cpu_to_quota(milli, period), quota, "{milli}m of {period}");
    }
    assert_eq!([0, 1, 2, 102, 1024].map(shares_to_milli_cpu), [0, 0, 2, 100, 1000]);
    assert_eq!(quota_to_milli_cpu(-1, 100_000), 0);
    assert_eq!(quota_to_milli_cpu(50_000, 100_000), 500);
    assert_eq!(quota_to_milli_cpu(1, 0), 0);
}

proptest! {
    #[test]
    fn a_request_survives_the_kernels_units(milli in 2i64..256_000) {
        // Shares are finer than a thousandth: what was asked for can be told from them.
        prop_assert_eq!(shares_to_milli_cpu(milli_cpu_to_shares(milli)), milli);
        if milli >= 10 {
            prop_assert_eq!(quota_to_milli_cpu(milli_cpu_to_quota(milli, 100_000), 100_000), milli);
        }
    }

    #[test]
    fn scores_stay_in_range(request in 0i64..1 << 45, capacity in 0i64..1 << 45) {
        let c = json!({"name": "c", "resources": {"requests": {"cpu": "1", "memory": request.to_string()}}});
        let pod = testing::pod(json!({"containers": [c]}));
        let score = oom_score_adj(&pod, &pod.spec.as_ref().unwrap().containers[0], capacity);
        prop_assert!((3..=999).contains(&score), "{}", score);
    }
}

#[test]
fn container_limits() {
    // shares, quota, memory
    for (resources, expected) in [
        (json!({}), (2, 0, 0)),
        (json!({"requests": {"cpu": "250m", "memory": "1Gi"}}), (256, 0, 0)),
        (
            json!({"limits": {"cpu": "500m", "memory": "64Mi"}}),
            (512, 50_000, 64 * MI),
        ),
        (
            json!({"requests": {"cpu": "0"}, "limits": {"cpu": "2", "memory": "1G"}}),
            (2, 200_000, 1_000_000_000),
        ),
        (
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "5m"}}),
            (1024, 1000, 0),
        ),
    ] {
        let pod = testing::pod(json!({}));
        let got = linux_resources(&pod, &testing::container(json!({"resources": resources})), &facts());
        assert_eq!(
            (got.cpu_shares, got.cpu_quota, got.memory_limit_in_bytes),
            expected,
            "{resources}"
        );
        assert_eq!(got.cpu_period, 100_000);
        assert!(got.unified.is_empty() && got.hugepage_limits.is_empty());
    }
    let off = NodeFacts {
        cpu_cfs_quota: false,
        ..facts()
    };
    let limited = testing::container(json!({"resources": {"limits": {"cpu": "1"}}}));
    let got = linux_resources(&testing::pod(json!({})), &limited, &off);
    assert_eq!((got.cpu_period, got.cpu_quota, got.cpu_shares), (0, 0, 1024));
}

#[test]
fn pod_level_limits_apply_where_the_container_has_none() {
    let pod = testing::pod(json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "8Mi"}}}));
    let facts = NodeFacts {
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        ..facts()
    };
    let got = linux_resources(&pod, &testing::container(json!({})), &facts);
    assert_eq!((got.cpu_quota, got.memory_limit_in_bytes), (200_000, GI));
    assert_eq!(got.cpu_shares, 2048);
    let shown: Vec<_> = got
        .hugepage_limits
        .iter()
        .map(|h| (h.page_size.as_str(), h.limit))
        .collect();
    assert_eq!(shown, [("2MB", 8 * MI as u64), ("1GB", 0)]);
    let own =
        testing::container(json!({"resources": {"limits": {"cpu": "1", "memory": "1Mi", "hugepages-2Mi": "4Mi"}}}));
    let got = linux_resources(&pod, &own, &facts);
    assert_eq!((got.cpu_quota, got.memory_limit_in_bytes), (100_000, MI));
    assert_eq!(got.hugepage_limits[0].limit, 4 * MI as u64);
}

#[test]
fn page_sizes() {
    for (bytes, expected) in [
        (2 * MI, Some("2MB")),
        (GI, Some("1GB")),
        (64 << 10, Some("64KB")),
        (512, Some("512B")),
        (1500, None),
        (0, None),
        (-1, None),
    ] {
        assert_eq!(page_size(bytes).as_deref(), expected, "{bytes}");
    }
}

#[test]
fn scores() {
    let mem = |m: &str| json!({"requests": {"memory": m}});
    let equal = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    // (spec, container, score), on a node with 8 Gi
    for (spec, name, expected) in [
        (json!({}), "c", 1000),
        (json!({"containers": [{"name": "c", "resources": equal}]}), "c", -997),
        (
            json!({"containers": [{"name": "c", "resources": mem("1Gi")}]}),
            "c",
            875,
        ),
        (json!({"containers": [{"name": "c", "resources": mem("1")}]}), "c", 999),
        (json!({"containers": [{"name": "c", "resources": mem("8Gi")}]}), "c", 3),
        (json!({"containers": [{"name": "c", "resources": mem("16Gi")}]}), "c", 3),
        (
            json!({"containers": [{"name": "c"}, {"name": "d", "resources": mem("1Gi")}]}),
            "c",
            999,
        ),
        (
            json!({"priority": 2_000_001_000, "priorityClassName": "system-node-critical"}),
            "c",
            -997,
        ),
        (
            json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"}),
            "c",
            1000,
        ),
        (json!({"priorityClassName": "system-node-critical"}), "c", 1000),
        // A sidecar goes no sooner than the least of the containers.
        (
            json!({"containers": [{"name": "c", "resources": mem("1Gi")}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": mem("1Mi")}]}),
            "s",
            875,
        ),
        (
            json!({"containers": [{"name": "c", "resources": mem("1Gi")}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": mem("4Gi")}]}),
            "s",
            500,
        ),
        (
            json!({"containers": [{"name": "c", "resources": mem("1Gi")}], "initContainers": [{"name": "i", "resources": mem("1Mi")}]}),
            "i",
            999,
        ),
        // 4 Gi for the pod, 1 Gi of it a container's: 1.5 Gi more for each.
        (
            json!({"resources": mem("4Gi"), "containers": [{"name": "c", "resources": mem("1Gi")}, {"name": "d"}]}),
            "c",
            688,
        ),
        (
            json!({"resources": mem("4Gi"), "containers": [{"name": "c", "resources": mem("1Gi")}, {"name": "d"}]}),
            "d",
            813,
        ),
    ] {
        let pod = testing::pod(spec.clone());
        let found = super::super::containers(&pod).find(|(_, c)| c.name == name).unwrap().1;
        assert_eq!(oom_score_adj(&pod, &found, 8 * GI), expected, "{spec}");
    }
    let mut fixed = testing::pod(json!({"priorityClassName": "system-node-critical"}));
    fixed.metadata.annotations = Some([(labels::CONFIG_SOURCE.to_string(), "file".to_string())].into());
    let container = testing::container(json!({}));
    assert_eq!(oom_score_adj(&fixed, &container, GI), -997);
}

#[test]
fn swap() {
    let burstable = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}}}]});
    let run = |swap: Swap, version, spec: &Value| {
        let mut facts = facts();
        facts.swap = swap;
        facts.cgroups.version = version;
        let pod = testing::pod(spec.clone());
        let got = linux_resources(&pod, &pod.spec.as_ref().unwrap().containers[0], &facts);
        (
            got.memory_swap_limit_in_bytes,
            got.unified.get("memory.swap.max").cloned(),
        )
    };
    let swap = |controller, limited| Swap {
        controller,
        limited,
        capacity: 4 * GI,
    };
    let zero = Some("0".to_string());
    assert_eq!(run(swap(false, true), CgroupVersion::V2, &burstable), (0, None));
    assert_eq!(run(swap(true, false), CgroupVersion::V2, &burstable), (0, zero.clone()));
    assert_eq!(
        run(swap(true, true), CgroupVersion::V2, &burstable),
        (0, Some(GI.to_string()))
    );
    assert_eq!(run(swap(true, true), CgroupVersion::V1, &burstable), (4 * GI, None));
    assert_eq!(run(swap(true, true), CgroupVersion::V2, &json!({})), (0, zero.clone()));
    let equal = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}}]});
    assert_eq!(run(swap(true, true), CgroupVersion::V2, &equal), (0, zero));
}

#[test]
fn memory_is_kept_and_throttled_where_that_is_on() {
    let run = |tiered, resources: Value| {
        let mut facts = facts();
        facts.memory_qos = Some(MemoryQos {
            throttling_factor: 0.9,
            tiered_reservation: tiered,
        });
        facts.allocatable = quantities(Some(&[(MEMORY.to_string(), ApiQuantity("4Gi".into()))].into()));
        let pod = testing::pod(json!({"containers": [{"name": "c", "resources": resources}]}));
        let unified = linux_resources(&pod, &pod.spec.as_ref().unwrap().containers[0], &facts).unified;
        unified
            .into_iter()
            .map(|(k, v)| format!("{}={v}", k.trim_start_matches("memory.")))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let burstable = json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}});
    let high = (100 * MI + 90 * MI) / 4096 * 4096;
    assert_eq!(run(true, burstable.clone()), format!("high={high} low={}", 100 * MI));
    assert_eq!(run(false, burstable), format!("high={high} low=0 min=0"));
    let equal = json!({"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Mi"}});
    assert_eq!(run(true, equal), format!("min={MI}"));
    // Without a limit the node's memory stands for it; without a request too there is nothing to go by.
    let high = ((GI + (4 * GI - GI) / 10 * 9) / 4096) * 4096;
    assert_eq!(
        run(true, json!({"requests": {"memory": "1Gi"}})),
        format!("high={high} low={GI}")
    );
    assert_eq!(run(true, json!({"requests": {"cpu": "1"}})), "low=0 min=0");
}

#[test]
fn an_oom_kill_may_take_the_whole_container() {
    let mut facts = facts();
    facts.single_process_oom_kill = false;
    let container = testing::container(json!({}));
    let pod = testing::pod(json!({}));
    assert_eq!(
        linux_resources(&pod, &container, &facts).unified["memory.oom.group"],
        "1"
    );
    facts.cgroups.version = CgroupVersion::V1;
    assert!(linux_resources(&pod, &container, &facts).unified.is_empty());
}

#[test]
fn group_names() {
    let cgroupfs = CgroupLayout::default();
    let systemd = CgroupLayout {
        driver: cri::CgroupDriver::Systemd,
        ..CgroupLayout::default()
    };
    let uid = "a-b";
    for (layout, class, expected) in [
        (&cgroupfs, QosClass::Guaranteed, "/kubepods/poda-b"),
        (&cgroupfs, QosClass::Burstable, "/kubepods/burstable/poda-b"),
        (&cgroupfs, QosClass::BestEffort, "/kubepods/besteffort/poda-b"),
        (&systemd, QosClass::Guaranteed, "/kubepods.slice/kubepods-poda_b.slice"),
        (
            &systemd,
            QosClass::Burstable,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
        ),
    ] {
        assert_eq!(pod_cgroup(layout, class, uid), expected);
    }
    let rooted = CgroupLayout {
        root: "/orlop/x".into(),
        ..cgroupfs.clone()
    };
    assert_eq!(qos_cgroup(&rooted, QosClass::Burstable), "/orlop/x/kubepods/burstable");
    let rooted = CgroupLayout {
        root: "/my-root".into(),
        ..systemd
    };
    assert_eq!(
        qos_cgroup(&rooted, QosClass::Guaranteed),
        "/my_root.slice/my_root-kubepods.slice"
    );
    let none = CgroupLayout {
        per_qos: false,
        ..cgroupfs
    };
    assert_eq!(pod_cgroup_parent(&testing::pod(json!({})), &none), "");
}
