//! LimitRange and ResourceQuota: defaults filled in, violations refused in Kubernetes' words, counts exact.

use futures::future::join_all;
use orlop_testkit::{Server, fixture};
use serde_json::{Value, json};

fn apply(server: &Server, name: &str) {
    server.run(&format!(
        "kubectl apply -f {}",
        fixture(&format!("notes/{name}")).display()
    ));
}

fn pod(name: &str, resources: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    })
}

#[test]
fn limit_ranges_fill_in_and_refuse() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", &pod("before", json!({})).to_string());
    apply(&server, "limit-range-cpu.yaml");
    apply(&server, "limit-range-memory.yaml");

    // Only what is created later is touched.
    assert_eq!(
        server.get("pod before")["spec"]["containers"][0]["resources"],
        json!({})
    );
    server.run_with("kubectl create -f -", &pod("after", json!({})).to_string());
    let after = server.get("pod after");
    let full = json!({"cpu": "500m", "memory": "1Gi"});
    assert_eq!(
        after["spec"]["containers"][0]["resources"],
        json!({"limits": full, "requests": full})
    );
    assert_eq!(after["status"]["qosClass"], "Guaranteed");
    let told = after["metadata"]["annotations"]["kubernetes.io/limit-ranger"]
        .as_str()
        .unwrap();
    assert!(told.starts_with("LimitRanger plugin set: "), "{told}");
    assert!(
        told.contains("memory request for container c; memory limit for container c"),
        "{told}"
    );

    // A limit alone becomes the request too, before the range's own default request.
    server.run_with(
        "kubectl create -f -",
        &pod("limited", json!({"limits": {"cpu": "200m"}})).to_string(),
    );
    assert_eq!(
        server.get("pod limited")["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "200m"
    );

    let refused = |name: &str, resources: Value, message: &str| {
        let said = server.fails_with("kubectl create -f -", &pod(name, resources).to_string());
        assert!(
            said.contains("Error from server (Forbidden)") && said.contains(message),
            "no {message:?} in: {said}"
        );
    };
    refused(
        "big",
        json!({"limits": {"cpu": "2"}}),
        "maximum cpu usage per Container is 1, but limit is 2",
    );
    refused(
        "small",
        json!({"requests": {"cpu": "50m"}}),
        "minimum cpu usage per Container is 100m, but request is 50m",
    );
    refused(
        "thin",
        json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "600Mi"}}),
        "minimum memory usage per Container is 500Mi, but request is 1Mi",
    );
    assert!(
        server
            .run("kubectl describe limitrange cpu-bounds")
            .contains("Container   cpu       100m  1    500m")
    );

    // Ranges of pods and claims, and ratios.
    server.run("kubectl create namespace more && kubectl wait -n more --for=create sa/default --timeout=60s");
    server.run_with("kubectl create -n more -f -", r#"---
{apiVersion: v1, kind: LimitRange, metadata: {name: more}, spec: {limits: [
        {type: Pod, max: {cpu: "2"}}, {type: Container, maxLimitRequestRatio: {memory: "2"}}, {type: PersistentVolumeClaim, max: {storage: 2Gi}, min: {storage: 1Gi}}]}}"#);
    let pod_limit = server.fails_with(
        "kubectl create -n more -f -",
        &pod("p", json!({"limits": {"cpu": "3", "memory": "1Gi"}})).to_string(),
    );
    assert!(
        pod_limit.contains("maximum cpu usage per Pod is 2, but limit is 3"),
        "{pod_limit}"
    );
    let ratio = server.fails_with(
        "kubectl create -n more -f -",
        &pod(
            "p",
            json!({"limits": {"cpu": "1", "memory": "4Gi"}, "requests": {"memory": "1Gi"}}),
        )
        .to_string(),
    );
    assert!(
        ratio.contains("memory max limit to request ratio per Container is 2, but provided ratio is 4"),
        "{ratio}"
    );
    // All that one range has to say is said at once.
    let resources = json!({"limits": {"cpu": "3", "memory": "4Gi"}, "requests": {"memory": "1Gi"}});
    let both = server.fails_with("kubectl create -n more -f -", &pod("p", resources).to_string());
    assert!(
        both.contains("maximum cpu usage per Pod is 2") && both.contains("provided ratio is 4"),
        "{both}"
    );
    let claim = |size: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
        .to_string()
    };
    let large = server.fails_with("kubectl create -n more -f -", &claim("3Gi"));
    assert!(
        large.contains("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        "{large}"
    );
    server.run_with("kubectl create -n more -f -", &claim("1Gi"));
    let invalid = server.fails_with("kubectl create -f -", "---\n{apiVersion: v1, kind: LimitRange, metadata: {name: bad}, spec: {limits: [{type: Container, min: {cpu: 2}, max: {cpu: 1}}]}}");
    assert!(
        invalid.contains("spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"),
        "{invalid}"
    );
}

#[test]
fn quotas_refuse_what_exceeds_them() {
    let server = Server::with_accounts();
    apply(&server, "resource-quota.yaml");
    let used = |name: &str| server.get(&format!("quota {name}"))["status"]["used"].clone();
    let fit = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}});
    server.run_with("kubectl create -f -", &pod("one", fit.clone()).to_string());
    assert_eq!(
        used("team-quota"),
        json!({"limits.cpu": "2", "limits.memory": "2Gi", "requests.cpu": "1", "requests.memory": "1Gi"})
    );

    // What a quota counts must be said.
    let silent = server.fails_with("kubectl create -f -", &pod("silent", json!({})).to_string());
    let wanted = r#"pods "silent" is forbidden: failed quota: team-quota: must specify limits.cpu for: c; limits.memory for: c; requests.cpu for: c; requests.memory for: c"#;
    assert!(silent.contains(wanted), "{silent}");
    let large = json!({"requests": {"cpu": "3500m", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "2Gi"}});
    let exceeded = server.fails_with("kubectl create -f -", &pod("large", large).to_string());
    let wanted = r#"pods "large" is forbidden: exceeded quota: team-quota, requested: requests.cpu=3500m, used: requests.cpu=1, limited: requests.cpu=4"#;
    assert!(exceeded.contains(wanted), "{exceeded}");

    // Deleting gives back.
    server.run("kubectl delete pod one");
    assert_eq!(
        used("team-quota"),
        json!({"limits.cpu": "0", "limits.memory": "0", "requests.cpu": "0", "requests.memory": "0"})
    );
    let described = server.run("kubectl describe quota team-quota");
    assert!(described.contains("requests.cpu     0     4"), "{described}");

    // Counts of anything, and scopes.
    server.run("kubectl create namespace counts && kubectl wait -n counts --for=create sa/default --timeout=60s");
    server.run("kubectl create quota -n counts q --hard=count/configmaps=3,services=2,services.nodeports=1,secrets=1,count/deployments.apps=1");
    server.run("kubectl create quota -n counts best --hard=pods=1 --scopes=BestEffort");
    let mut settled = server
        .command("kubectl wait -n counts quota/q --for=jsonpath='{.status.used.count/configmaps}'=1 --timeout=60s")
        .spawn()
        .unwrap();
    assert!(
        settled.wait().unwrap().success(),
        "the config map that was there before the quota counts"
    );
    server.run("kubectl create configmap -n counts a && kubectl create configmap -n counts b");
    let full = server.fails("kubectl create configmap -n counts c");
    assert!(
        full.contains(
            "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=3, limited: count/configmaps=3"
        ),
        "{full}"
    );
    server.run("kubectl create service nodeport -n counts n1 --tcp=80");
    let ports = server.fails("kubectl create service nodeport -n counts n2 --tcp=80");
    assert!(
        ports.contains("requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1"),
        "{ports}"
    );
    server.run("kubectl create deployment -n counts d --image=i");
    assert!(
        server
            .fails("kubectl create deployment -n counts e --image=i")
            .contains("count/deployments.apps=1")
    );
    server.run_with("kubectl create -n counts -f -", &pod("best", json!({})).to_string());
    assert!(
        server
            .fails_with("kubectl create -n counts -f -", &pod("more", json!({})).to_string())
            .contains("exceeded quota: best, requested: pods=1")
    );
    server.run_with(
        "kubectl create -n counts -f -",
        &pod("burst", json!({"requests": {"cpu": "1m"}})).to_string(),
    );
    // A dry run counts nothing.
    server.run("kubectl delete configmap -n counts b && kubectl create configmap -n counts dry --dry-run=server");
    assert_eq!(
        server.get("quota -n counts q")["status"]["used"]["count/configmaps"],
        "2"
    );
    assert_eq!(
        server.get("quota -n counts best")["status"],
        json!({"hard": {"pods": "1"}, "used": {"pods": "1"}})
    );
}

/// Fifty at the same time against ten places: ten, never eleven, never nine.
#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_exact_under_concurrent_creates() {
    let server = Server::start();
    let http = server.http().await;
    let ns = "/api/v1/namespaces";
    http.post(
        ns,
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "crowd"}}),
    )
    .await
    .expect(201);
    server.run("kubectl wait -n crowd --for=create sa/default --timeout=60s");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "ten"}, "spec": {"hard": {"pods": "10", "requests.cpu": "1"}}});
    http.post(&format!("{ns}/crowd/resourcequotas"), &quota)
        .await
        .expect(201);
    let used = async || http.get(&format!("{ns}/crowd/resourcequotas/ten")).await.json()["status"]["used"].clone();

    for round in 0..2 {
        let creates = (0..50).map(|i| {
            let http = http.clone();
            let body = pod(&format!("p-{round}-{i}"), json!({"requests": {"cpu": "100m"}}));
            async move { http.post(&format!("{ns}/crowd/pods"), &body).await }
        });
        let answers = join_all(creates).await;
        let made = answers.iter().filter(|a| a.status == 201).count();
        assert_eq!(made, 10);
        for refused in answers.iter().filter(|a| a.status != 201) {
            let status = refused.refused(403, "Forbidden");
            let message = status["message"].as_str().unwrap();
            assert!(
                message.contains("exceeded quota: ten, requested: pods=1") && message.contains("limited: pods=10"),
                "{message}"
            );
        }
        let list = http.get(&format!("{ns}/crowd/pods")).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), 10);
        assert_eq!(used().await, json!({"pods": "10", "requests.cpu": "1"}));
        // All go, at the same time too, and all is free again.
        let names: Vec<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["metadata"]["name"].as_str().unwrap().to_string())
            .collect();
        let deletes = names.iter().map(|name| {
            let http = http.clone();
            async move { http.delete(&format!("{ns}/crowd/pods/{name}")).await.expect(200) }
        });
        join_all(deletes).await;
        assert_eq!(used().await, json!({"pods": "0", "requests.cpu": "0"}));
    }
}
