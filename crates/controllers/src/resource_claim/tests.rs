use super::*;
use crate::testing::Cluster;

fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name, "uid": name},
           "spec": {"nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"},
                                                         {"name": "shared", "resourceClaimName": "s"}]},
           "status": {"phase": "Pending"}})
}

fn template() -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
           "metadata": {"namespace": "ns", "name": "t"},
           "spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": {"requests": [{"name": "x"}]}}}})
}

fn made(cluster: &Cluster) -> Vec<ResourceClaim> {
    let mut claims = cluster.list::<ResourceClaim>("ns");
    claims.retain(|claim| claim.metadata.name != "s");
    claims
}

fn allocate(cluster: &Cluster, name: &str, pod: &str) {
    cluster.edit::<ResourceClaim>("ns", name, |claim| {
        claim["metadata"]["finalizers"] = json!([plan::FINALIZER])
    });
    cluster.edit_status::<ResourceClaim>("ns", name, |claim| {
        claim["status"] = json!({"allocation": {"devices": {}},
                                 "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}]});
    });
}

#[tokio::test(start_paused = true)]
async fn a_claim_comes_and_goes_with_its_pod() {
    let cluster = Cluster::new();
    cluster.put(pod("p", ""));
    cluster.run(&[&DEF]);
    cluster.advance(std::time::Duration::from_secs(2)).await;
    let missing = "Warning FailedResourceClaimCreation PodResourceClaim gpu: resource claim template \"t\": \
                   resourceclaimtemplate.resource.k8s.io \"t\" not found";
    assert!(
        cluster.events().iter().any(|event| event == missing),
        "{:?}",
        cluster.events()
    );
    cluster.put(template());
    cluster.wait_until_idle().await;
    let claims = made(&cluster);
    assert_eq!(claims.len(), 1);
    let meta = &claims[0].metadata;
    assert!(meta.name.starts_with("p-gpu-"));
    assert_eq!((meta.label("a"), meta.annotation(plan::FOR)), (Some("b"), Some("gpu")));
    let status = &cluster.get::<Pod>("ns", "p").unwrap().status;
    assert_eq!(
        status.resource_claim_statuses[0].resource_claim_name.as_ref(),
        Some(&meta.name)
    );
    // It is allocated, used, and the pod ends.
    allocate(&cluster, &meta.name, "p");
    cluster.wait_until_idle().await;
    assert_eq!(made(&cluster)[0].status.reserved_for.len(), 1);
    cluster.edit_status::<Pod>("ns", "p", |pod| pod["status"]["phase"] = json!("Succeeded"));
    cluster.wait_until_idle().await;
    assert!(made(&cluster).is_empty());
}

#[tokio::test(start_paused = true)]
async fn shared_claims_are_freed_by_their_last_user() {
    let cluster = Cluster::new();
    cluster.put(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                       "metadata": {"namespace": "ns", "name": "s"}}));
    cluster.put(template());
    for name in ["p", "q"] {
        cluster.put(pod(name, "n"));
    }
    allocate(&cluster, "s", "p");
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    // The other one got its node without the scheduler.
    let shared = || cluster.get::<ResourceClaim>("ns", "s").unwrap();
    assert_eq!(shared().status.reserved_for.len(), 2);
    cluster.remove::<Pod>("ns", "p");
    cluster.wait_until_idle().await;
    assert_eq!(shared().status.reserved_for[0].name, "q");
    cluster.kill_after_writes(1);
    cluster.remove::<Pod>("ns", "q");
    cluster.wait_until_idle().await;
    assert!(shared().status.allocation.is_none() && shared().status.reserved_for.is_empty());
    cluster.delete::<ResourceClaim>("ns", "s");
    cluster.wait_until_idle().await;
    assert!(cluster.get::<ResourceClaim>("ns", "s").is_none());
}

#[tokio::test(start_paused = true)]
async fn being_killed_at_any_write_makes_no_claim_twice() {
    for writes in 1..5 {
        let cluster = Cluster::new();
        cluster.put(template());
        cluster.run(&[&DEF]);
        cluster.kill_after_writes(writes);
        for name in ["p", "q"] {
            cluster.put(pod(name, ""));
        }
        cluster.wait_until_idle().await;
        assert_eq!(made(&cluster).len(), 2, "killed after {writes} writes");
        for name in ["p", "q"] {
            assert_eq!(
                cluster
                    .get::<Pod>("ns", name)
                    .unwrap()
                    .status
                    .resource_claim_statuses
                    .len(),
                1
            );
        }
    }
}

#[test]
fn long_names_are_cut_in_proportion() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p".repeat(60)}})).unwrap();
    let claim = plan::claim_from(&ResourceClaimTemplate::default(), &pod, "claim");
    let name = claim["metadata"]["generateName"].as_str().unwrap();
    assert!(name.len() <= 57 && name.ends_with("p-clai"), "{name}");
}
