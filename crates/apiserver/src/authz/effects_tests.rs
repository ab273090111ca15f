//! What can be done with a right, and with nothing less: each request below needs all the rights of its row, and whoever
//! lacks one of them is refused even with every other right of the table. So no verb has the effect of another.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use orlop_base::{Clock, join_all};
use serde_json::{Value, json};
use tower::Service;

use crate::internal::Internal;
use crate::{Config, Running, in_process, kinds};

/// Verb and resource, `pods/status`, `deployments/scale.apps`.
type Right = (&'static str, &'static str);

struct Row {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    content_type: &'static str,
    body: Value,
    needs: Vec<Right>,
    /// What who may gets.
    code: u16,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests/there";

fn row(name: &'static str, request: (&'static str, &'static str, &'static str), body: Value, needs: &[Right]) -> Row {
    let (method, path, content_type) = request;
    let code = if method == "POST" { 201 } else { 200 };
    Row {
        name,
        method,
        path,
        content_type,
        body,
        needs: needs.to_vec(),
        code,
    }
}

fn object(api_version: &str, kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

fn pod(name: &str) -> Value {
    object(
        "v1",
        "Pod",
        name,
        json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
}

fn lease(name: &str) -> Value {
    object(
        "coordination.k8s.io/v1",
        "Lease",
        name,
        json!({"spec": {"holderIdentity": "me"}}),
    )
}

/// Grants what no right of the table is.
fn role(name: &str) -> Value {
    let rules = json!([{"apiGroups": ["example.com"], "resources": ["secrets"], "verbs": ["get"]}]);
    object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        name,
        json!({"rules": rules}),
    )
}

fn role_binding(name: &str) -> Value {
    let more = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "strong"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
    });
    object("rbac.authorization.k8s.io/v1", "RoleBinding", name, more)
}

fn bodies_of_pods() -> Vec<Row> {
    let pods = "/api/v1/namespaces/default/pods";
    let there = "/api/v1/namespaces/default/pods/there";
    let absent = "/api/v1/namespaces/default/pods/absent";
    let mut missing = row(
        "patch what is not there",
        ("PATCH", absent, MERGE),
        json!({}),
        &[("patch", "pods")],
    );
    missing.code = 404;
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
    let binding = object("v1", "Binding", "there", json!({"target": node}));
    vec![
        row("create", ("POST", pods, JSON), pod("absent"), &[("create", "pods")]),
        row("get", ("GET", there, JSON), json!({}), &[("get", "pods")]),
        row("list", ("GET", pods, JSON), json!({}), &[("list", "pods")]),
        // Who may is told next that pods don't change like this.
        Row {
            code: 422,
            ..row("update", ("PUT", there, JSON), pod("there"), &[("update", "pods")])
        },
        row("patch", ("PATCH", there, MERGE), labels.clone(), &[("patch", "pods")]),
        row(
            "apply",
            ("PATCH", there, APPLY),
            object("v1", "Pod", "there", json!({})),
            &[("patch", "pods")],
        ),
        Row {
            code: 201,
            ..row(
                "apply what is not there",
                ("PATCH", absent, APPLY),
                pod("absent"),
                &[("patch", "pods"), ("create", "pods")],
            )
        },
        missing,
        row("delete", ("DELETE", there, JSON), json!({}), &[("delete", "pods")]),
        row(
            "delete all",
            ("DELETE", pods, JSON),
            json!({}),
            &[("deletecollection", "pods")],
        ),
        row(
            "status",
            ("PATCH", "/api/v1/namespaces/default/pods/there/status", MERGE),
            labels.clone(),
            &[("patch", "pods/status")],
        ),
        row(
            "resize",
            ("PATCH", "/api/v1/namespaces/default/pods/there/resize", MERGE),
            json!({}),
            &[("patch", "pods/resize")],
        ),
        row(
            "debug",
            (
                "PATCH",
                "/api/v1/namespaces/default/pods/there/ephemeralcontainers",
                MERGE,
            ),
            debugger,
            &[("patch", "pods/ephemeralcontainers")],
        ),
        row(
            "evict",
            ("POST", "/api/v1/namespaces/default/pods/there/eviction", JSON),
            object("policy/v1", "Eviction", "there", json!({})),
            &[("create", "pods/eviction")],
        ),
        Row {
            code: 200,
            ..row(
                "bind",
                ("POST", "/api/v1/namespaces/default/pods/there/binding", JSON),
                binding.clone(),
                &[("create", "pods/binding")],
            )
        },
        Row {
            code: 200,
            ..row(
                "bind the older way",
                ("POST", "/api/v1/namespaces/default/bindings", JSON),
                binding,
                &[("create", "bindings")],
            )
        },
    ]
}

/// These lead on to a node; there is none, so who may gets another refusal.
fn what_leads_on() -> Vec<Row> {
    let leading = |name, method, path, needs: &[Right], code| Row {
        code,
        ..row(name, (method, path, JSON), json!({}), needs)
    };
    let exec = "/api/v1/namespaces/default/pods/there/exec?container=c&command=ls&stdout=1";
    let (proxy, log) = (
        "/api/v1/namespaces/default/pods/there/proxy/x",
        "/api/v1/namespaces/default/pods/there/log",
    );
    let service = "/api/v1/namespaces/default/services/kubernetes/proxy/x";
    vec![
        leading("log", "GET", log, &[("get", "pods/log")], 204),
        leading("exec", "POST", exec, &[("create", "pods/exec")], 400),
        leading(
            "exec by get",
            "GET",
            exec,
            &[("get", "pods/exec"), ("create", "pods/exec")],
            400,
        ),
        leading("proxy", "GET", proxy, &[("get", "pods/proxy")], 400),
        leading("proxied write", "POST", proxy, &[("create", "pods/proxy")], 400),
        leading("proxied delete", "DELETE", proxy, &[("delete", "pods/proxy")], 400),
        leading("service proxy", "GET", service, &[("get", "services/proxy")], 503),
        leading(
            "node proxy",
            "GET",
            "/api/v1/nodes/none/proxy/x",
            &[("get", "nodes/proxy")],
            404,
        ),
    ]
}

fn others() -> Vec<Row> {
    let (there, absent) = (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/there",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/absent",
    );
    let (leases, scale) = ("leases.coordination.k8s.io", "deployments/scale.apps");
    let scales = "/apis/apps/v1/namespaces/default/deployments/there/scale";
    let approved =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
    let failed =
        json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "r", "message": "m"}]}});
    let requests = "certificatesigningrequests";
    let approval: &str = "certificatesigningrequests/approval.certificates.k8s.io";
    let status: &str = "certificatesigningrequests/status.certificates.k8s.io";
    assert!(approval.starts_with(requests) && status.starts_with(requests));
    let token = object("authentication.k8s.io/v1", "TokenRequest", "", json!({"spec": {}}));
    let finalize = object(
        "v1",
        "Namespace",
        "default",
        json!({"spec": {"finalizers": ["kubernetes"]}}),
    );
    vec![
        // Who may is told next to name a revision.
        Row {
            code: 422,
            ..row(
                "update a lease",
                ("PUT", there, JSON),
                lease("there"),
                &[("update", leases)],
            )
        },
        Row {
            code: 201,
            ..row(
                "update a lease that is not there",
                ("PUT", absent, JSON),
                lease("absent"),
                &[("update", leases), ("create", leases)],
            )
        },
        Row {
            code: 201,
            ..row(
                "apply a lease that is not there",
                ("PATCH", absent, APPLY),
                lease("absent"),
                &[("patch", leases), ("create", leases)],
            )
        },
        row("see the scale", ("GET", scales, JSON), json!({}), &[("get", scale)]),
        row(
            "scale",
            ("PATCH", scales, MERGE),
            json!({"spec": {"replicas": 2}}),
            &[("patch", scale)],
        ),
        row(
            "token",
            ("POST", "/api/v1/namespaces/default/serviceaccounts/there/token", JSON),
            token,
            &[("create", "serviceaccounts/token")],
        ),
        row(
            "finalize",
            ("PUT", "/api/v1/namespaces/default/finalize", JSON),
            finalize,
            &[("update", "namespaces/finalize")],
        ),
        row(
            "approve",
            ("PATCH", const_path(CSR, "/approval"), MERGE),
            approved,
            &[("patch", approval), ("approve", "signers.certificates.k8s.io")],
        ),
        row(
            "sign",
            ("PATCH", const_path(CSR, "/status"), MERGE),
            failed,
            &[("patch", status), ("sign", "signers.certificates.k8s.io")],
        ),
    ]
}

fn const_path(base: &str, sub: &str) -> &'static str {
    Box::leak(format!("{base}{sub}").into_boxed_str())
}

fn rbac() -> Vec<Row> {
    let bindings = "rolebindings.rbac.authorization.k8s.io";
    let roles = "clusterroles.rbac.authorization.k8s.io";
    let binding = const_path(RBAC, "/namespaces/default/rolebindings/absent");
    let (strong, absent) = (
        const_path(RBAC, "/clusterroles/weak"),
        const_path(RBAC, "/clusterroles/absent"),
    );
    let bind = ("bind", roles);
    let escalate = ("escalate", roles);
    vec![
        Row {
            code: 201,
            ..row(
                "update a binding that is not there",
                ("PUT", binding, JSON),
                role_binding("absent"),
                &[("update", bindings), ("create", bindings), bind],
            )
        },
        Row {
            code: 201,
            ..row(
                "apply a binding that is not there",
                ("PATCH", binding, APPLY),
                role_binding("absent"),
                &[("patch", bindings), ("create", bindings), bind],
            )
        },
        Row {
            code: 201,
            ..row(
                "update a role that is not there",
                ("PUT", absent, JSON),
                role("absent"),
                &[("update", roles), ("create", roles), escalate],
            )
        },
        row(
            "strengthen a role",
            ("PUT", strong, JSON),
            role("weak"),
            &[("update", roles), escalate],
        ),
        row(
            "strengthen it by apply",
            ("PATCH", strong, APPLY),
            role("weak"),
            &[("patch", roles), escalate],
        ),
    ]
}

async fn start(directory: &tempfile::TempDir) -> Running {
    let mut config = Config::new(directory.path().join("data"));
    config.port = 0;
    crate::start(config, Clock::System).await.unwrap()
}

/// The users' names by the rights they lack ("" for those who have just what a row needs).
fn users(rows: &[Row]) -> BTreeMap<String, BTreeSet<Right>> {
    let all: BTreeSet<Right> = rows.iter().flat_map(|row| row.needs.iter().copied()).collect();
    let mut users = BTreeMap::new();
    for row in rows {
        users.insert(format!("with {:?}", row.needs), row.needs.iter().copied().collect());
        for lacking in &row.needs {
            let rest = all.iter().copied().filter(|right| right != lacking).collect();
            users.insert(format!("without {lacking:?}"), rest);
        }
    }
    users
}

async fn grant(internal: &Internal, users: &BTreeMap<String, BTreeSet<Right>>) {
    let mut holders: BTreeMap<Right, Vec<Value>> = BTreeMap::new();
    for (user, rights) in users {
        for right in rights {
            let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
            holders.entry(*right).or_default().push(subject);
        }
    }
    let kind = |plural: &str| kinds::of_resource("rbac.authorization.k8s.io", "v1", plural).unwrap();
    let objects = holders
        .iter()
        .enumerate()
        .flat_map(|(number, ((verb, what), subjects))| {
            let (resource, group) = what.split_once('.').unwrap_or((what, ""));
            let name = format!("right-{number}");
            let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]);
            let role = object(
                "rbac.authorization.k8s.io/v1",
                "ClusterRole",
                &name,
                json!({"rules": rules}),
            );
            let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
            let more = json!({"roleRef": role_ref, "subjects": subjects});
            let binding = object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", &name, more);
            [(kind("clusterroles"), role), (kind("clusterrolebindings"), binding)]
        });
    for result in join_all(objects.map(|(kind, object)| internal.create(kind, object))).await {
        result.unwrap();
    }
}

async fn furnish(internal: &Internal) {
    let request = crate::admission::signing_request("someone", "somewhere");
    let spec = json!({"request": request, "signerName": "example.com/signer", "usages": ["client auth"]});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    let weak = object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "weak",
        json!({"rules": []}),
    );
    for (group, plural, mut object) in [
        (
            "",
            "serviceaccounts",
            object("v1", "ServiceAccount", "default", json!({})),
        ),
        (
            "",
            "serviceaccounts",
            object("v1", "ServiceAccount", "there", json!({})),
        ),
        ("", "pods", pod("there")),
        ("coordination.k8s.io", "leases", lease("there")),
        (
            "apps",
            "deployments",
            object("apps/v1", "Deployment", "there", json!({"spec": deployment})),
        ),
        (
            "certificates.k8s.io",
            "certificatesigningrequests",
            object(
                "certificates.k8s.io/v1",
                "CertificateSigningRequest",
                "there",
                json!({"spec": spec}),
            ),
        ),
        ("rbac.authorization.k8s.io", "clusterroles", role("strong")),
        ("rbac.authorization.k8s.io", "clusterroles", weak),
    ] {
        let kind = kinds::of_resource(group, "v1", plural).unwrap();
        if kind.namespaced {
            object["metadata"]["namespace"] = "default".into();
        }
        internal.ensure(kind, object).await.unwrap();
    }
}

/// Nothing is changed: all writes are dry runs.
async fn ask(running: &Running, user: &str, row: &Row) -> (u16, String) {
    let mut path = row.path.to_string();
    if row.method != "GET" {
        path.push(if path.contains('?') { '&' } else { '?' });
        path.push_str("dryRun=All&fieldManager=m&force=true");
    }
    let mut body = row.body.to_string();
    if row.method == "GET" || row.method == "DELETE" {
        body.clear();
    }
    if row.content_type != APPLY {
        path = path.replace("&force=true", "");
    }
    let request = Request::builder()
        .method(row.method)
        .uri(path)
        .header("content-type", row.content_type)
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = in_process::service(running.server.clone(), user, &[])
        .call(request)
        .await
        .unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn no_verb_has_the_effect_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory).await;
    let internal = Internal::new(running.server.registry.clone());
    let rows: Vec<Row> = [bodies_of_pods(), what_leads_on(), others(), rbac()]
        .into_iter()
        .flatten()
        .collect();
    furnish(&internal).await;
    grant(&internal, &users(&rows)).await;
    let mut wrong = vec![];
    for row in &rows {
        let (code, text) = ask(&running, &format!("with {:?}", row.needs), row).await;
        if code != row.code {
            wrong.push(format!("{} with {:?}: {code} {text}", row.name, row.needs));
        }
        for lacking in &row.needs {
            let (code, text) = ask(&running, &format!("without {lacking:?}"), row).await;
            if code != 403 {
                wrong.push(format!("{} without {lacking:?}: {code} {text}", row.name));
            }
        }
    }
    running.stop().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn who_may_not_create_is_told_so_in_the_words_of_kubernetes() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory).await;
    let internal = Internal::new(running.server.registry.clone());
    let rows = others();
    grant(&internal, &users(&rows)).await;
    let create = rows
        .iter()
        .find(|row| row.name == "update a lease that is not there")
        .unwrap();
    let user = format!("without {:?}", ("create", "leases.coordination.k8s.io"));
    let (code, text) = ask(&running, &user, create).await;
    running.stop().await;
    assert_eq!(code, 403);
    let status: Value = serde_json::from_str(&text).unwrap();
    let wanted = format!(
        "leases.coordination.k8s.io \"absent\" is forbidden: User {user:?} cannot create resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"default\""
    );
    assert_eq!(status["message"], wanted);
}
