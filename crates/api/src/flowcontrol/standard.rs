//! The flow schemas and priority levels of every cluster. Two of each are mandatory: they are put back when they go, and
//! may not differ from what is written here. The others are suggestions: an operator may change them by setting the
//! annotation to "false".
//!
//! Upstream: staging/src/k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap (v1.36).

use serde_json::{Value, json};

/// Says whether the spec is the server's to keep up to date.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

pub fn mandatory_flow_schema(name: &str) -> Option<Value> {
    let mandatory = matches!(name, "exempt" | "catch-all");
    mandatory.then(|| flow_schemas().into_iter().find(|s| s["metadata"]["name"] == name))?
}

pub fn mandatory_priority_level(name: &str) -> Option<Value> {
    let mandatory = matches!(name, "exempt" | "catch-all");
    mandatory.then(|| priority_levels().into_iter().find(|l| l["metadata"]["name"] == name))?
}

/// All priority levels, the mandatory ones first.
pub fn priority_levels() -> Vec<Value> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let catch_all = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
        "limitResponse": {"type": "Reject"}}});
    // Name, shares, lendable percent, queues, hand size.
    let queued = [
        ("system", 30, 33, 64, 6),
        ("node-high", 40, 25, 64, 6),
        ("leader-election", 10, 0, 16, 4),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ];
    let queued = queued.map(|(name, shares, lendable, queues, hand)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let limited = json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing}});
        (name, json!({"type": "Limited", "limited": limited}))
    });
    let all = [("exempt", exempt), ("catch-all", catch_all)].into_iter().chain(queued);
    all.map(|(name, spec)| object("PriorityLevelConfiguration", name, spec))
        .collect()
}

/// All flow schemas, by precedence.
pub fn flow_schemas() -> Vec<Value> {
    const EVERYONE: &[Subject] = &[
        Subject::Group("system:unauthenticated"),
        Subject::Group("system:authenticated"),
    ];
    const NODES: &[Subject] = &[Subject::Group("system:nodes")];
    const CONTROLLERS: Subject = Subject::User("system:kube-controller-manager");
    const SCHEDULER: Subject = Subject::User("system:kube-scheduler");
    let everything = || vec![resource("*", &["*"])];
    let leases = |verbs: &[&str]| json!({"verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]});
    let probes = json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]});
    let urls = || Some(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    vec![
        schema(
            "exempt",
            "exempt",
            1,
            "",
            &[Subject::Group("system:masters")],
            everything(),
            urls(),
        ),
        schema("probes", "exempt", 2, "", EVERYONE, vec![], Some(probes)),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            &[CONTROLLERS, SCHEDULER, Subject::SystemAccounts],
            vec![leases(&["get", "create", "update"])],
            None,
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            NODES,
            vec![resource("", &["nodes", "nodes/status"]), leases(&["*"])],
            None,
        ),
        schema("system-nodes", "system", 500, "ByUser", NODES, everything(), urls()),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            &[CONTROLLERS],
            everything(),
            urls(),
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            &[SCHEDULER],
            everything(),
            urls(),
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            &[Subject::SystemAccounts],
            everything(),
            urls(),
        ),
        schema(
            "service-accounts",
            "workload-low",
            9000,
            "ByUser",
            &[Subject::Group("system:serviceaccounts")],
            everything(),
            urls(),
        ),
        schema(
            "global-default",
            "global-default",
            9900,
            "ByUser",
            EVERYONE,
            everything(),
            urls(),
        ),
        schema(
            "catch-all",
            "catch-all",
            10000,
            "ByUser",
            EVERYONE,
            everything(),
            urls(),
        ),
    ]
}

enum Subject {
    User(&'static str),
    Group(&'static str),
    /// The service accounts of kube-system.
    SystemAccounts,
}

impl Subject {
    fn to_value(&self) -> Value {
        match self {
            Subject::User(name) => json!({"kind": "User", "user": {"name": name}}),
            Subject::Group(name) => json!({"kind": "Group", "group": {"name": name}}),
            Subject::SystemAccounts => {
                json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}})
            }
        }
    }
}

/// All verbs on resources of one group (or of all), in and outside namespaces.
fn resource(group: &str, resources: &[&str]) -> Value {
    json!({"verbs": ["*"], "apiGroups": [group], "resources": resources, "clusterScope": true, "namespaces": ["*"]})
}

fn schema(
    name: &str,
    level: &str,
    precedence: i32,
    flows: &str,
    subjects: &[Subject],
    resources: Vec<Value>,
    urls: Option<Value>,
) -> Value {
    let subjects: Vec<Value> = subjects.iter().map(Subject::to_value).collect();
    let mut rule = json!({"subjects": subjects});
    if !resources.is_empty() {
        rule["resourceRules"] = resources.into();
    }
    if let Some(urls) = urls {
        rule["nonResourceRules"] = json!([urls]);
    }
    let mut spec =
        json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule]});
    if !flows.is_empty() {
        spec["distinguisherMethod"] = json!({"type": flows});
    }
    object("FlowSchema", name, spec)
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{}/v1", super::GROUP), "kind": kind,
        "metadata": {"name": name, "annotations": {AUTO_UPDATE: "true"}}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_has_its_level_and_one_is_mandatory_of_each_end() {
        let levels: Vec<Value> = priority_levels()
            .iter()
            .map(|l| l["metadata"]["name"].clone())
            .collect();
        let schemas = flow_schemas();
        assert_eq!((levels.len(), schemas.len()), (8, 11));
        for s in &schemas {
            assert!(levels.contains(&s["spec"]["priorityLevelConfiguration"]["name"]), "{s}");
        }
        let precedences: Vec<i64> = schemas
            .iter()
            .filter_map(|s| s["spec"]["matchingPrecedence"].as_i64())
            .collect();
        assert!(precedences.is_sorted());
        assert!(mandatory_flow_schema("exempt").is_some() && mandatory_priority_level("catch-all").is_some());
        assert!(mandatory_flow_schema("probes").is_none() && mandatory_priority_level("system").is_none());
    }
}
