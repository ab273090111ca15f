//! What every component exposes at /metrics, as Prometheus reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use orlop_base::metrics::exposition::{self, MetricFamily};
use orlop_testkit::{Launch, Server, eventually};

/// Ports that nobody uses now, all different.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Reads and checks: one HELP and one TYPE a metric, no series twice, buckets cumulative and `+Inf` the count.
#[track_caller]
fn families(text: &str) -> BTreeMap<String, MetricFamily> {
    exposition::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The page of a component's own port, as the admin.
fn page(server: &Server, port: u16, path: &str) -> String {
    let identity = server.identity();
    let (certificate, key) = identity.certificate.unwrap();
    for (name, pem) in [
        ("ca.crt", &identity.ca),
        ("admin.crt", &certificate),
        ("admin.key", &key),
    ] {
        std::fs::write(server.home().join(name), pem).unwrap();
    }
    let line = format!("curl -sf --cacert ca.crt --cert admin.crt --key admin.key https://127.0.0.1:{port}{path}");
    eventually(&format!("port {port} serves {path}"), || {
        let asked = server.sh(&line);
        asked.succeeded().then(|| asked.ok())
    })
}

/// The values of a label in all series of a metric.
fn values<'a>(family: &'a MetricFamily, label: &str) -> BTreeSet<&'a str> {
    let found = family.samples.iter().filter_map(|sample| sample.labels.get(label));
    found.map(String::as_str).collect()
}

#[test]
fn every_component_exposes_what_prometheus_reads() {
    let [scheduler, manager] = free_ports();
    let server = Launch::up()
        .arg("--nodes=1")
        .arg("--node-name=n")
        .arg("--runtime=simulated")
        .arg(format!("--scheduler-port={scheduler}"))
        .arg(format!("--controller-manager-port={manager}"))
        .start();
    server.run("kubectl create deployment web --image=nginx --replicas=2");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    server.fails("kubectl get configmap nonesuch");
    server.fails("kubectl get --raw /api/v1/namespaces/default/invented");
    server.fails("kubectl get --raw /api/v1/namespaces/default/pods/p/invented");

    let api = families(&server.run("kubectl get --raw /metrics"));
    let histogram = |families: &BTreeMap<String, MetricFamily>, name: &str| {
        let family = families.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(family.kind, "histogram", "{name}");
        let counts = family.samples.iter().filter(|sample| sample.suffix == "_count");
        assert!(
            counts.map(|sample| sample.value).sum::<f64>() > 0.0,
            "{name} counts nothing"
        );
    };
    histogram(&api, "apiserver_request_duration_seconds");
    histogram(&api, "etcd_disk_wal_fsync_duration_seconds");
    let requests = &api["apiserver_request_total"];
    assert!(values(requests, "resource").contains("deployments"));
    assert!(values(requests, "code").contains("404"));
    for label in ["resource", "subresource"] {
        assert!(
            !values(requests, label).contains("invented"),
            "clients invent no {label}"
        );
    }
    // Every answered request that has an end is in both.
    let answered = |sample: &&exposition::Sample| sample.labels["verb"] != "WATCH";
    let total: f64 = requests
        .samples
        .iter()
        .filter(answered)
        .map(|sample| sample.value)
        .sum();
    let timed = api["apiserver_request_duration_seconds"].samples.iter();
    let timed: f64 = timed
        .filter(|sample| sample.suffix == "_count")
        .map(|sample| sample.value)
        .sum();
    assert!(timed > 0.0 && timed <= total, "{timed} of {total} requests are timed");

    histogram(
        &families(&page(&server, scheduler, "/metrics")),
        "scheduler_scheduling_attempt_duration_seconds",
    );
    let manager = families(&page(&server, manager, "/metrics"));
    assert_eq!(manager["workqueue_queue_duration_seconds"].kind, "histogram");
    assert!(values(&manager["workqueue_adds_total"], "name").contains("deployment"));
    for path in ["", "/probes", "/resource", "/cadvisor"] {
        let text = server.run(&format!("kubectl get --raw /api/v1/nodes/n/proxy/metrics{path}"));
        assert!(!families(&text).is_empty() || path == "/probes", "{path}");
    }
}
