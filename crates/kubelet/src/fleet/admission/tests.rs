//! What is remembered of pods is enough: judged by it, a pod fares as it would by the whole pods.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::wire::RawPod;
use super::*;

fn container(cpu: u32, memory: u32, gpus: u32, port: u16) -> Value {
    let mut made =
        json!({"name": "c", "resources": {"requests": {"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")}}});
    if gpus > 0 {
        made["resources"]["requests"]["example.com/gpu"] = gpus.to_string().into();
        made["resources"]["limits"] = json!({"example.com/gpu": gpus.to_string()});
    }
    if port > 0 {
        made["ports"] = json!([{"containerPort": 80, "hostPort": port, "protocol": "TCP"}]);
    }
    made
}

fn pod() -> impl Strategy<Value = Value> {
    let one = || (0..1200u32, 0..600u32, 0..3u32, 0..4u16).prop_map(|(c, m, g, p)| container(c, m, g, p));
    let extras = (0..3u8, any::<bool>(), 0..4u8, proptest::option::of(0..300u32));
    let lists = (
        proptest::collection::vec(one(), 1..3),
        proptest::collection::vec((one(), any::<bool>()), 0..3),
    );
    (lists, extras).prop_map(|((containers, init), (disk, tolerant, priority, overhead))| {
        let init: Vec<Value> = init
            .into_iter()
            .map(|(mut container, sidecar)| {
                if sidecar {
                    container["restartPolicy"] = "Always".into();
                }
                container
            })
            .collect();
        let mut spec = json!({"nodeName": "n", "containers": containers, "initContainers": init});
        match disk {
            0 => {}
            1 => spec["nodeSelector"] = json!({"disk": "ssd"}),
            _ => {
                let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]});
                spec["affinity"] = json!({"nodeAffinity":
                    {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
            }
        }
        if tolerant {
            spec["tolerations"] = json!([{"key": "gone", "operator": "Exists"}]);
        }
        // One in four is critical.
        spec["priority"] = if priority == 0 {
            json!(2_000_000_000)
        } else {
            json!(priority)
        };
        if let Some(cpu) = overhead {
            spec["overhead"] = json!({"cpu": format!("{cpu}m")});
        }
        json!({"metadata": {"namespace": "d", "name": "p", "uid": "u"}, "spec": spec})
    })
}

fn traits(tainted: bool, gpus: Option<u32>) -> NodeTraits {
    let mut allocatable: Amounts = [("cpu", "4"), ("memory", "2Gi"), ("pods", "4")]
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .into();
    allocatable.extend(gpus.map(|n| ("example.com/gpu".to_string(), n.to_string())));
    let taint = tainted.then(|| Taint {
        key: "gone".into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    });
    NodeTraits {
        labels: [("disk".to_string(), "ssd".to_string())].into(),
        taints: taint.into_iter().collect(),
        allocatable,
    }
}

proptest! {
    #[test]
    fn pods_fare_as_they_would_on_a_real_node(
        candidate in pod(),
        others in proptest::collection::vec(pod(), 0..5),
        tainted in any::<bool>(),
        gpus in proptest::option::of(0..5u32),
    ) {
        let view = |pod: &Value| serde_json::from_value::<RawPod>(pod.clone()).unwrap().view();
        let whole = |pod: &Value| orlop_api::types::from_value::<Pod>(pod.clone()).unwrap();
        let traits = traits(tainted, gpus);
        let node = traits.clone().node("n");
        let pods: Vec<Pod> = others.iter().map(whole).collect();
        let expected = admit(&whole(&candidate), &pods.iter().collect::<Vec<_>>(), &node, NodeState::default());

        let allocated: Vec<AllocatedResources> = others.iter().map(|pod| {
            let mut allocated = AllocatedResources::unsummed(view(pod).pod_resources);
            allocated.sum_up();
            allocated
        }).collect();
        let seen = view(&candidate);
        let candidate = Candidate {
            pod_resources: &seen.pod_resources,
            placement: (!seen.placement.is_any()).then_some(&seen.placement),
            host_network: false,
        };
        let allocated: Vec<&AllocatedResources> = allocated.iter().collect();
        prop_assert_eq!(admit_candidate(&candidate, &allocated, "n", traits, None), expected);
    }
}
