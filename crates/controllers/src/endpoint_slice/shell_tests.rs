//! The controllers of endpoints over an API server that fails, lags and loses them.

use std::collections::BTreeSet;
use std::time::Duration;

use orlop_base::Random;
use serde_json::{Value, json};

use super::DEF;
use crate::objects::{EndpointSlice, Endpoints, Kind, Node, Pod, Service};
use crate::settings::Settings;
use crate::testing::{Cluster, Faults};
use crate::{endpoint_slice_mirroring, endpoints};

fn node(name: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
           "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
           "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}}})
}

fn pod(n: u64, app: &str, ready: bool) -> Value {
    let ip = format!("10.1.0.{n}");
    let status = if ready { "True" } else { "False" };
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"name": format!("p{n}"), "namespace": "ns", "labels": {"app": app}},
           "spec": {"nodeName": format!("n{}", n % 3),
                    "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8080 + n % 2}]}]},
           "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                      "conditions": [{"type": "Ready", "status": status}]}})
}

fn service(name: &str, selector: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"},
           "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "selector": selector,
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]}})
}

fn start() -> (Cluster, Settings) {
    let cluster = Cluster::new();
    for n in 0..3 {
        cluster.put(node(&format!("n{n}"), ["a", "b", "c"][n]));
    }
    cluster.put(service("web", json!({"app": "web"})));
    let settings = Settings {
        max_endpoints_per_slice: 4,
        ..Settings::default()
    };
    (cluster, settings)
}

fn addresses(cluster: &Cluster, service: &str) -> Vec<String> {
    let slices = cluster.list::<EndpointSlice>("ns").into_iter();
    let slices = slices.filter(|slice| slice.service() == Some(service));
    let mut all: Vec<String> = slices.flat_map(|s| s.endpoints).flat_map(|e| e.addresses).collect();
    all.sort();
    all
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_pods_whatever_happens() {
    for seed in 0..12 {
        let (cluster, settings) = start();
        cluster.run_with(&[&DEF, &endpoints::DEF, &endpoint_slice_mirroring::DEF], settings);
        cluster.faults(Faults {
            one_in: 6,
            lag_max: Duration::from_millis(300),
            break_one_in: 40,
        });
        let mut random = Random::seeded(seed);
        for _ in 0..60 {
            let n = random.below(20);
            match random.below(8) {
                0..4 => {
                    let app = if random.below(5) == 0 { "other" } else { "web" };
                    cluster.put(pod(n, app, random.below(2) == 0));
                }
                4 => drop(cluster.remove::<Pod>("ns", &format!("p{n}"))),
                5 => cluster.kill_after_writes(1 + (n % 3) as u32),
                6 => drop(cluster.edit::<Pod>("ns", &format!("p{n}"), |pod| {
                    pod["metadata"]["labels"]["app"] = json!(["web", "other"][(n % 2) as usize]);
                })),
                _ => tokio::time::sleep(Duration::from_millis(random.below(700))).await,
            }
            if random.below(4) == 0 {
                cluster.advance(Duration::from_millis(40)).await;
            }
        }
        cluster.calm().await;
        let mut wanted: Vec<String> = cluster
            .list::<Pod>("ns")
            .into_iter()
            .filter(|pod| pod.metadata.label("app") == Some("web"))
            .map(|pod| pod.status.pod_ip)
            .collect();
        wanted.sort();
        assert_eq!(addresses(&cluster, "web"), wanted, "seed {seed}");
        assert!(
            cluster
                .list::<EndpointSlice>("ns")
                .iter()
                .all(|s| s.endpoints.len() <= 4)
        );
        let listed = cluster.get::<Endpoints>("ns", "web").unwrap().subsets.into_iter();
        let listed = listed.flat_map(|s| s.addresses.into_iter().chain(s.not_ready_addresses));
        let listed: BTreeSet<String> = listed.map(|address| address.ip).collect();
        assert_eq!(listed, wanted.into_iter().collect(), "seed {seed}");
        let before = cluster.writes().len();
        cluster.advance(Duration::from_secs(30)).await;
        assert_eq!(cluster.writes().len(), before, "seed {seed}: all was done");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_and_selectors_come_and_go() {
    let (cluster, settings) = start();
    cluster.remove::<Node>("", "n1");
    (0..3).for_each(|n| drop(cluster.put(pod(n, "web", true))));
    cluster.run_with(&[&DEF, &endpoints::DEF, &endpoint_slice_mirroring::DEF], settings);
    cluster.wait_until_idle().await;
    assert_eq!(addresses(&cluster, "web"), ["10.1.0.0", "10.1.0.2"]);
    cluster.put(node("n1", "b"));
    cluster.wait_until_idle().await;
    assert_eq!(addresses(&cluster, "web").len(), 3);
    cluster.edit::<Node>("", "n1", |n| {
        n["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("z")
    });
    cluster.wait_until_idle().await;
    let zones = cluster
        .list::<EndpointSlice>("ns")
        .into_iter()
        .flat_map(|s| s.endpoints)
        .filter_map(|e| e.zone);
    assert!(zones.collect::<Vec<_>>().contains(&"z".to_string()));
    // A service without a selector keeps what it has; its Endpoints are made by hand from now on, and mirrored.
    cluster.edit::<Service>("ns", "web", |service| {
        service["spec"].as_object_mut().unwrap().remove("selector");
    });
    cluster.edit::<Endpoints>("ns", "web", |endpoints| {
        endpoints["subsets"] = json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1, "protocol": "TCP"}]}]);
    });
    cluster.wait_until_idle().await;
    assert!(addresses(&cluster, "web").contains(&"192.0.2.1".to_string()));
    cluster.remove::<Service>("ns", "web");
    cluster.wait_until_idle().await;
    assert!(cluster.get::<Endpoints>("ns", "web").is_none());
    let mirrored = |slice: &EndpointSlice| {
        slice
            .meta()
            .label("endpointslice.kubernetes.io/managed-by")
            .unwrap_or("")
            .starts_with("endpointslicemirroring")
    };
    assert!(!cluster.list::<EndpointSlice>("ns").iter().any(mirrored));
}
