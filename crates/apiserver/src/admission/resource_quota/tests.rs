use orlop_base::clock::Shift;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::admission::fixture::{Desk, told, with};

/// A namespace whose writes go through the plugin and are stored with what it wants changed.
struct Namespace {
    desk: Desk,
    revision: u64,
}

impl Namespace {
    fn new(quotas: &[Value]) -> Namespace {
        let mut namespace = Namespace {
            desk: Desk::new(),
            revision: 1,
        };
        for quota in quotas {
            let mut quota = quota.clone();
            quota["status"] = recount(&quota, "ns", &namespace.desk.objects, namespace.desk.now);
            namespace.put("resourcequotas", quota).unwrap();
        }
        namespace
    }

    fn stored(&self, resource: &str, name: &str) -> Option<Value> {
        let object = self.desk.objects.get(resource, "ns", name);
        object.map(|o| (*o).clone())
    }

    /// Creates or updates through `what`.
    fn put(&mut self, what: &str, object: Value) -> Result<(), Status> {
        let resource = what.split('/').next().unwrap();
        let old = self.stored(resource, text(&object, &["metadata", "name"]));
        let operation = match old {
            None => Operation::Create,
            Some(_) => Operation::Update,
        };
        let review = self.desk.review(operation, what, &object);
        let changes = validate(&review, Some(&object), old.as_ref())?;
        let kind = review.kind;
        drop(review);
        self.apply(changes);
        match is_finished_deletion(kind, &object) {
            true => self.forget(resource, &object),
            false => self.store(resource, object),
        }
        Ok(())
    }

    fn delete(&mut self, resource: &str, name: &str) {
        let Some(old) = self.stored(resource, name) else { return };
        let changes = self.desk.delete(&PLUGIN, resource, old.clone()).unwrap();
        self.apply(changes);
        self.forget(resource, &old);
    }

    fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            let stored = self.stored("resourcequotas", &change.name).unwrap();
            assert_eq!(stored["metadata"]["resourceVersion"], change.revision.to_string());
            self.store("resourcequotas", change.value);
        }
    }

    fn store(&mut self, resource: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["namespace"] = "ns".into();
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.desk.objects.put(resource, object);
    }

    fn forget(&self, resource: &str, object: &Value) {
        let name = text(object, &["metadata", "name"]);
        self.desk.objects.remove(resource, "ns", name);
    }

    fn used(&self, quota: &str) -> Value {
        self.stored("resourcequotas", quota).unwrap()["status"]["used"].clone()
    }

    fn counted(&self, quota: &str) -> Value {
        let quota = self.stored("resourcequotas", quota).unwrap();
        recount(&quota, "ns", &self.desk.objects, self.desk.now)["used"].clone()
    }
}

fn quota(name: &str, hard: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"hard": hard}})
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]}})
}

#[test]
fn limits_hold_and_are_told() {
    let mut ns = Namespace::new(&[quota(
        "q",
        json!({"pods": "2", "requests.cpu": "1", "limits.cpu": "2", "secrets": "1"}),
    )]);
    assert_eq!(told(ns.put("pods", pod("a", "600m"))), "ok");
    assert_eq!(
        told(ns.put("pods", pod("b", "500m"))),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1"
    );
    assert_eq!(
        told(ns.put("pods", pod("b", "1500m"))),
        "pods \"b\" is forbidden: exceeded quota: q, requested: limits.cpu=1500m,requests.cpu=1500m, \
         used: limits.cpu=600m,requests.cpu=600m, limited: limits.cpu=2,requests.cpu=1"
    );
    let silent = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "y"}, {"name": "x"}],
        "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1m"}}}]}});
    assert_eq!(
        told(ns.put("pods", silent)),
        "pods \"b\" is forbidden: failed quota: q: must specify limits.cpu for: i,x,y; requests.cpu for: x,y"
    );
    let as_whole = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "x"}],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "100m"}}}});
    assert_eq!(told(ns.put("pods", as_whole)), "ok");
    assert_eq!(
        ns.used("q"),
        json!({"pods": "2", "requests.cpu": "700m", "limits.cpu": "700m", "secrets": "0"})
    );
    assert_eq!(
        told(ns.put("pods", pod("c", "1m"))),
        "pods \"c\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    );
    let secret = |name: &str| json!({"metadata": {"name": name}});
    assert_eq!(told(ns.put("secrets", secret("a"))), "ok");
    assert_eq!(told(ns.put("secrets", secret("a"))), "ok");
    assert_eq!(
        told(ns.put("secrets", secret("b"))),
        "secrets \"b\" is forbidden: exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=1"
    );
    ns.delete("secrets", "a");
    assert_eq!(told(ns.put("secrets", secret("b"))), "ok");
    assert_eq!(told(ns.put("configmaps", secret("b"))), "ok");
}

#[test]
fn pods_take_more_and_less_as_they_live() {
    let mut ns = Namespace::new(&[quota("q", json!({"pods": "1", "requests.cpu": "1"}))]);
    ns.put("pods", pod("a", "500m")).unwrap();
    ns.put("pods/resize", pod("a", "800m")).unwrap();
    assert_eq!(ns.used("q"), json!({"pods": "1", "requests.cpu": "800m"}));
    assert_eq!(
        told(ns.put("pods/resize", pod("a", "2"))),
        "pods \"a\" is forbidden: exceeded quota: q, requested: requests.cpu=1200m, used: requests.cpu=800m, limited: requests.cpu=1"
    );
    let silent = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(
        told(ns.put("pods/resize", silent)),
        "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: c"
    );
    // Shrinking, but not yet in effect: the larger amount counts until then.
    let shrinking = with(
        pod("a", "100m"),
        json!({"status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "resources": {"requests": {"cpu": "800m"}}}]}}),
    );
    ns.put("pods/status", shrinking.clone()).unwrap();
    assert_eq!(ns.used("q")["requests.cpu"], "800m");
    let done = with(shrinking, json!({"status": {"phase": "Succeeded"}}));
    ns.put("pods/status", done.clone()).unwrap();
    assert_eq!(ns.used("q"), json!({"pods": "0", "requests.cpu": "0"}));
    ns.put("pods", pod("b", "1")).unwrap();
    // What kubelets tell is true, limits or not.
    ns.put("pods/status", with(done, json!({"status": {"phase": "Running"}})))
        .unwrap();
    assert_eq!(ns.used("q"), json!({"pods": "2", "requests.cpu": "1800m"}));
    ns.delete("pods", "a");
    ns.delete("pods", "b");
    assert_eq!(ns.used("q"), json!({"pods": "0", "requests.cpu": "0"}));
}

#[test]
fn overdue_pods_stop_counting() {
    let mut ns = Namespace::new(&[quota("q", json!({"pods": "1", "count/pods": "5"}))]);
    let going = with(
        pod("a", "1"),
        json!({"metadata": {"deletionTimestamp": "2026-11-15T12:00:30Z", "deletionGracePeriodSeconds": 30}}),
    );
    ns.put("pods", pod("a", "1")).unwrap();
    ns.put("pods", going.clone()).unwrap();
    let full = "pods \"b\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    assert_eq!(told(ns.put("pods", pod("b", "1"))), full);
    ns.desk.now = "2026-11-15T12:01:00Z".parse().unwrap();
    assert_eq!(ns.counted("q"), json!({"pods": "1", "count/pods": "1"}));
    ns.desk.now = "2026-11-15T12:01:01Z".parse().unwrap();
    assert_eq!(ns.counted("q"), json!({"pods": "0", "count/pods": "1"}));
    // Counted anew or not: the last write of the pod leaves the truth.
    let mut recounted = ns.stored("resourcequotas", "q").unwrap();
    recounted["status"]["used"] = ns.counted("q");
    ns.delete("pods", "a");
    assert_eq!(ns.used("q"), json!({"pods": "0", "count/pods": "0"}));
    ns.store("pods", going);
    ns.store("resourcequotas", recounted);
    ns.put("pods", pod("b", "1")).unwrap();
    ns.delete("pods", "a");
    assert_eq!(ns.used("q"), json!({"pods": "1", "count/pods": "1"}));
}

#[test]
fn services_claims_and_devices_are_weighed() {
    let service = |kind: &str, node_ports: &[i64], more: Value| {
        let ports: Vec<Value> = node_ports.iter().map(|n| json!({"port": 1, "nodePort": n})).collect();
        with(
            json!({"metadata": {"name": "x"}, "spec": {"type": kind, "ports": ports}}),
            json!({"spec": more}),
        )
    };
    let weigh = |resource: &str, hard: &[&str], object: Value| -> Vec<String> {
        let hard: serde_json::Map<String, Value> = hard.iter().map(|n| (n.to_string(), "99Gi".into())).collect();
        let mut ns = Namespace::new(&[quota("q", hard.clone().into())]);
        ns.put(resource, object).unwrap();
        let used = ns.used("q");
        hard.keys().map(|n| used[n].as_str().unwrap().to_string()).collect()
    };
    let names = [
        "count/services",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    ];
    for (object, expected) in [
        (service("ClusterIP", &[0, 0], json!({})), ["1", "1", "0", "0"]),
        (service("NodePort", &[0, 0], json!({})), ["1", "1", "0", "2"]),
        (service("LoadBalancer", &[0, 0], json!({})), ["1", "1", "1", "2"]),
        (
            service(
                "LoadBalancer",
                &[0, 30000],
                json!({"allocateLoadBalancerNodePorts": false}),
            ),
            ["1", "1", "1", "1"],
        ),
        (service("ExternalName", &[], json!({})), ["1", "1", "0", "0"]),
    ] {
        assert_eq!(weigh("services", &names, object), expected);
    }

    let names = [
        "count/persistentvolumeclaims",
        "fast.storageclass.storage.k8s.io/persistentvolumeclaims",
        "fast.storageclass.storage.k8s.io/requests.storage",
        "persistentvolumeclaims",
        "requests.storage",
    ];
    let claim = |class: &str, more: Value| {
        with(
            json!({"metadata": {"name": "x"}, "spec": {"storageClassName": class, "resources": {"requests": {"storage": "2Gi"}}}}),
            more,
        )
    };
    for (object, expected) in [
        (claim("fast", json!({})), ["1", "1", "2Gi", "1", "2Gi"]),
        (claim("slow", json!({})), ["1", "0", "0", "1", "2Gi"]),
        (
            claim(
                "slow",
                json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}}),
            ),
            ["1", "1", "2Gi", "1", "2Gi"],
        ),
        (
            claim("fast", json!({"status": {"allocatedResources": {"storage": "3Gi"}}})),
            ["1", "1", "3Gi", "1", "3Gi"],
        ),
        (
            claim("fast", json!({"status": {"allocatedResources": {"storage": "1Gi"}}})),
            ["1", "1", "2Gi", "1", "2Gi"],
        ),
        (
            claim(
                "fast",
                json!({"spec": {"resources": {"requests": {"storage": "100m"}}}}),
            ),
            ["1", "1", "1", "1", "1"],
        ),
    ] {
        assert_eq!(weigh("persistentvolumeclaims", &names, object), expected);
    }

    let names = [
        "a.deviceclass.resource.k8s.io/devices",
        "b.deviceclass.resource.k8s.io/devices",
        "count/resourceclaims.resource.k8s.io",
    ];
    let exactly =
        |class: &str, count: i64| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
    let requests = json!([
        {"name": "1", "exactly": exactly("a", 2)},
        {"name": "2", "exactly": {"deviceClassName": "a", "allocationMode": "All"}},
        {"name": "3", "firstAvailable": [exactly("a", 1), exactly("a", 3), exactly("b", 1)]},
    ]);
    let object = json!({"metadata": {"name": "x"}, "spec": {"devices": {"requests": requests}}});
    assert_eq!(
        weigh("resourceclaims.resource.k8s.io", &names, object),
        ["37", "1", "1"]
    );

    let names = [
        "count/pods",
        "hugepages-2Mi",
        "memory",
        "requests.example.com/gpu",
        "requests.hugepages-2Mi",
        "requests.memory",
    ];
    let requests = json!({"memory": "1Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"});
    let object = json!({"metadata": {"name": "x"}, "spec": {"overhead": {"memory": "1Mi"},
        "containers": [{"name": "c", "resources": {"requests": requests}}]}});
    assert_eq!(
        weigh("pods", &names, object),
        ["1", "4Mi", "1025Mi", "2", "4Mi", "1025Mi"]
    );

    let plain = json!({"metadata": {"name": "x"}});
    assert_eq!(
        weigh("deployments.apps", &["count/deployments.apps"], plain.clone()),
        ["1"]
    );
    assert_eq!(weigh("events", &["count/events"], plain), ["0"]);
}

#[test]
fn quotas_count_one_another() {
    let mut ns = Namespace::new(&[quota("a", json!({"resourcequotas": "3"}))]);
    assert_eq!(ns.used("a"), json!({"resourcequotas": "1"}));
    let mut other = quota("b", json!({"resourcequotas": "3"}));
    other["status"] = recount(&other, "ns", &ns.desk.objects, ns.desk.now);
    ns.put("resourcequotas", other).unwrap();
    assert_eq!(
        (ns.used("a"), ns.used("b")),
        (json!({"resourcequotas": "2"}), json!({"resourcequotas": "2"}))
    );
    ns.delete("resourcequotas", "b");
    assert_eq!(ns.used("a"), json!({"resourcequotas": "1"}));
}

#[test]
fn what_passes_through_or_ends_is_not_kept() {
    let mut ns = Namespace::new(&[quota(
        "q",
        json!({"persistentvolumeclaims": "5", "count/serviceaccounts": "5", "pods": "5"}),
    )]);
    let claim = json!({"metadata": {"name": "c", "finalizers": ["a/b"]}});
    ns.put("persistentvolumeclaims", claim.clone()).unwrap();
    assert_eq!(ns.used("q")["persistentvolumeclaims"], "1");
    let gone = json!({"metadata": {"name": "c", "deletionTimestamp": "2026-11-15T12:00:00Z", "deletionGracePeriodSeconds": 0}});
    ns.put("persistentvolumeclaims", gone).unwrap();
    assert_eq!(ns.used("q")["persistentvolumeclaims"], "0");
    let before = ns.used("q");
    for what in ["serviceaccounts/token", "pods/eviction"] {
        let review = ns.desk.review(Operation::Create, what, &claim);
        assert!(validate(&review, Some(&claim), None).unwrap().is_empty());
    }
    assert_eq!(ns.used("q"), before);
}

#[test]
fn a_use_that_was_never_counted_is() {
    let mut ns = Namespace::new(&[]);
    ns.put("configmaps", json!({"metadata": {"name": "a"}})).unwrap();
    let unknown = with(
        quota("q", json!({"configmaps": "2"})),
        json!({"status": {"hard": {"configmaps": "2"}}}),
    );
    ns.store("resourcequotas", unknown);
    ns.put("configmaps", json!({"metadata": {"name": "b"}})).unwrap();
    assert_eq!(ns.used("q"), json!({"configmaps": "2"}));
}

#[derive(Clone, Debug)]
enum Step {
    Pod {
        name: u8,
        what: &'static str,
        cpu: u8,
        phase: u8,
        ends: bool,
        high: bool,
    },
    Claim {
        name: u8,
        gib: u8,
        class: u8,
        allocated: u8,
    },
    Service {
        name: u8,
        kind: u8,
        ports: u8,
    },
    Map {
        name: u8,
    },
    Mark {
        name: u8,
        grace: u8,
    },
    Delete {
        resource: u8,
        name: u8,
    },
    Wait {
        seconds: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let pod = (
        0..4u8,
        prop::sample::select(vec!["pods", "pods/status", "pods/resize"]),
        0..4u8,
        0..4u8,
        any::<bool>(),
        any::<bool>(),
    );
    prop_oneof![
        6 => pod.prop_map(|(name, what, cpu, phase, ends, high)| Step::Pod { name, what, cpu, phase, ends, high }),
        2 => (0..3u8, 0..4u8, 0..2u8, 0..4u8).prop_map(|(name, gib, class, allocated)| Step::Claim { name, gib, class, allocated }),
        2 => (0..3u8, 0..3u8, 0..3u8).prop_map(|(name, kind, ports)| Step::Service { name, kind, ports }),
        1 => (0..3u8).prop_map(|name| Step::Map { name }),
        2 => (0..4u8, 0..20u8).prop_map(|(name, grace)| Step::Mark { name, grace }),
        4 => (0..4u8, 0..4u8).prop_map(|(resource, name)| Step::Delete { resource, name }),
        1 => (0..30u8).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

fn run(ns: &mut Namespace, step: &Step) -> Result<(), Status> {
    let meta = |name: &u8| json!({"metadata": {"name": format!("o{name}"), "namespace": "ns"}});
    match step {
        Step::Pod {
            name,
            what,
            cpu,
            phase,
            ends,
            high,
        } => {
            let kept = ns.stored("pods", &format!("o{name}")).unwrap_or(meta(name));
            let phase = ["Pending", "Running", "Succeeded", "Failed"][*phase as usize];
            let amounts = json!({"cpu": format!("{cpu}00m"), "memory": "1Mi"});
            let mut pod = with(
                kept,
                json!({"status": {"phase": phase}, "spec": {"activeDeadlineSeconds": null,
                "priorityClassName": if *high { "high" } else { "" },
                "containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}}),
            );
            if *ends {
                pod["spec"]["activeDeadlineSeconds"] = 5.into();
            }
            let exists = ns.stored("pods", &format!("o{name}")).is_some();
            ns.put(if exists { what } else { "pods" }, pod)
        }
        Step::Claim {
            name,
            gib,
            class,
            allocated,
        } => {
            let class = ["fast", "slow"][*class as usize];
            let claim = json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": format!("{gib}Gi")}}},
                "status": {"allocatedResources": {"storage": format!("{allocated}Gi")}}});
            ns.put("persistentvolumeclaims", with(meta(name), claim))
        }
        Step::Service { name, kind, ports } => {
            let kind = ["ClusterIP", "NodePort", "LoadBalancer"][*kind as usize];
            let ports: Vec<Value> = (0..*ports).map(|p| json!({"port": p})).collect();
            ns.put(
                "services",
                with(meta(name), json!({"spec": {"type": kind, "ports": ports}})),
            )
        }
        Step::Map { name } => ns.put("configmaps", meta(name)),
        Step::Mark { name, grace } => {
            let Some(pod) = ns.stored("pods", &format!("o{name}")) else {
                return Ok(());
            };
            let at = ns.desk.now.later_by_seconds((*grace).into());
            let marked =
                json!({"metadata": {"deletionTimestamp": at.to_string(), "deletionGracePeriodSeconds": grace}});
            ns.put("pods", with(pod, marked))
        }
        Step::Delete { resource, name } => {
            let resource = ["pods", "persistentvolumeclaims", "services", "configmaps"][*resource as usize];
            ns.delete(resource, &format!("o{name}"));
            Ok(())
        }
        Step::Wait { seconds } => {
            ns.desk.now = ns.desk.now.later_by_seconds((*seconds).into());
            Ok(())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// Whatever is written in whatever order: the use is what a recount finds, and no limit is passed by a create.
    #[test]
    fn use_is_always_what_is_there(steps in prop::collection::vec(step(), 1..40)) {
        let hard = json!({"pods": "3", "count/pods": "4", "cpu": "700m", "limits.memory": "3Mi", "services": "2",
            "services.nodeports": "3", "services.loadbalancers": "1", "requests.storage": "6Gi", "configmaps": "2",
            "fast.storageclass.storage.k8s.io/requests.storage": "4Gi", "slow.storageclass.storage.k8s.io/persistentvolumeclaims": "1"});
        let scoped = |scope: &str| with(quota(&scope.to_lowercase(), json!({"pods": "2", "requests.cpu": "500m"})), json!({"spec": {"scopes": [scope]}}));
        let mut ns = Namespace::new(&[quota("all", hard), scoped("Terminating"), scoped("PriorityClass")]);
        for step in &steps {
            let held: Vec<Value> = ["all", "terminating", "priorityclass"].iter().map(|q| ns.used(q)).collect();
            if run(&mut ns, step).is_err() {
                let after: Vec<Value> = ["all", "terminating", "priorityclass"].iter().map(|q| ns.used(q)).collect();
                prop_assert_eq!(held, after, "a refused write changes nothing");
            }
            let pods = ns.desk.objects.list("pods", Some("ns"));
            let overdue = pods.iter().any(|p| usage::is_overdue(p, ns.desk.now));
            for name in ["all", "terminating", "priorityclass"] {
                let (used, counted) = (ns.used(name), ns.counted(name));
                if !overdue {
                    prop_assert_eq!(&used, &counted, "{} after {:?}", name, step);
                }
                let (used, counted) = (resources::list(Some(&used)), resources::list(Some(&counted)));
                for (resource, found) in counted {
                    prop_assert!(used[&resource] >= found, "{} of {} after {:?}", resource, name, step);
                }
            }
        }
    }
}
