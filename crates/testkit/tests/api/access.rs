//! Who may do what: certificates, tokens, roles, impersonation, nodes, and the log of it all.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use orlop_testkit::{Http, Identity, Launch, Server, User, eventually};
use serde_json::{Value, json};

fn server() -> Server {
    let server = Server::start();
    server.run("kubectl create namespace team && kubectl wait -n team --for=create sa/default --timeout=60s");
    server
}

#[track_caller]
fn forbidden(server: &Server, user: &User, line: &str, message: &str) {
    let said = server.fails_as(user, line);
    let is_refusal = said.to_lowercase().contains("forbidden") && said.contains(message);
    assert!(is_refusal, "{line}: no {message:?} in:\n{said}");
}

#[test]
fn a_viewer_views_one_namespace_and_no_more() {
    let server = server();
    let ann = server.user("ann", &["staff"]);
    let nobody = r#"pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "team""#;
    forbidden(&server, &ann, "kubectl get pods -n team", nobody);
    server.run("kubectl create rolebinding -n team ann-views --clusterrole=view --user=ann");
    server.run("kubectl create secret generic -n team key --from-literal=k=v && kubectl create configmap -n team c");

    // A right that was given counts at once.
    assert!(
        server
            .run_as(&ann, "kubectl get configmaps -n team -o name")
            .contains("configmap/c")
    );
    server.run_as(&ann, "kubectl get all -n team");
    server.run_as(&ann, "timeout 2 kubectl get pods -n team -w || [ $? = 124 ]");
    for line in [
        "kubectl get secrets -n team",
        "kubectl get pods -n default",
        "kubectl get pods -A",
        "kubectl get nodes",
        "kubectl get roles -n team",
        "kubectl create configmap -n team d",
        "kubectl delete configmap -n team c",
        "kubectl label configmap -n team c a=b",
        "kubectl create token -n team default",
        "kubectl run -n team p --image=i",
        "kubectl get --raw /metrics",
    ] {
        forbidden(&server, &ann, line, r#"User "ann" cannot"#);
    }
    assert_eq!(server.run_as(&ann, "kubectl auth can-i list pods -n team"), "yes\n");
    assert_eq!(
        server.sh_as(&ann, "kubectl auth can-i list secrets -n team").stdout,
        "no\n"
    );
    let who: Value = serde_json::from_str(&server.run_as(&ann, "kubectl auth whoami -o json")).unwrap();
    assert_eq!(who["status"]["userInfo"]["username"], "ann");
    assert_eq!(
        who["status"]["userInfo"]["groups"],
        json!(["staff", "system:authenticated"])
    );

    // By group, and taken away again.
    server.run("kubectl create clusterrolebinding staff-views --clusterrole=view --group=staff");
    server.run_as(&ann, "kubectl get pods -A");
    server.run("kubectl delete clusterrolebinding staff-views && kubectl delete rolebinding -n team ann-views");
    forbidden(&server, &ann, "kubectl get pods -n team", nobody);
    // What anyone known may read.
    server.run_as(&ann, "kubectl get --raw /version && kubectl api-resources > /dev/null");
}

#[tokio::test]
async fn strangers_are_turned_away() {
    let server = server();
    let identity = server.identity();
    let anonymous = Http::connect(&identity.clone().anonymous()).await.unwrap();
    let status = anonymous
        .get("/api/v1/namespaces/default/pods")
        .await
        .refused(403, "Forbidden");
    assert_eq!(
        status["message"],
        r#"pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default""#
    );
    assert_eq!(status["details"], json!({"kind": "pods"}));
    anonymous.get("/apis").await.refused(403, "Forbidden");
    anonymous.get("/metrics").await.refused(403, "Forbidden");
    // As Kubernetes: health and version are anybody's.
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(anonymous.get(path).await.status, 200, "{path}");
    }
    let bad = Http::connect(&identity.clone().with_token("no.such.token"))
        .await
        .unwrap();
    let status = bad
        .get("/api/v1/namespaces/default/pods")
        .await
        .refused(401, "Unauthorized");
    assert_eq!(status["message"], "Unauthorized");
    bad.get("/healthz").await.refused(401, "Unauthorized");

    // A certificate of somebody else's CA is no credential at all.
    server.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout other.key -subj /CN=admin/O=system:masters -days 1 -out other.crt 2> /dev/null",
    );
    let read = |name: &str| std::fs::read(server.home().join(name)).unwrap();
    let mut stranger = identity.clone();
    stranger.certificate = Some((read("other.crt"), read("other.key")));
    // The handshake does not look at it: alone it is refused, and beside a token the token decides.
    let pods = "/api/v1/namespaces/default/pods";
    let forger = Http::connect(&stranger).await.unwrap();
    forger.get(pods).await.refused(401, "Unauthorized");
    forger.get("/healthz").await.refused(401, "Unauthorized");
    server.run("kubectl create rolebinding viewer --clusterrole=view --serviceaccount=team:default");
    let token = server.run("kubectl create token -n team default");
    for (token, code) in [(token.trim(), 200), ("no.such.token", 401)] {
        let header = format!("Bearer {token}");
        let headers = [("authorization", header.as_str())];
        let answer = forger.ask(http::Method::GET, pods, &headers, "").await.unwrap();
        assert_eq!(answer.status.as_u16(), code, "{answer:?}");
    }
    let secrets = [("authorization", format!("Bearer {}", token.trim()))];
    let secrets: Vec<(&str, &str)> = secrets.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let answer = forger
        .ask(http::Method::GET, "/api/v1/secrets", &secrets, "")
        .await
        .unwrap();
    let status = answer.refused(403, "Forbidden");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("system:serviceaccount:team:default"),
        "{status}"
    );

    // Neither plain HTTP nor old TLS.
    let address = identity.url.strip_prefix("https://").unwrap();
    let plain = server.sh(&format!(
        "curl -sS -m 10 -o /dev/null -w '%{{http_code}}' http://{address}/version"
    ));
    assert!(plain.code != Some(0) || plain.stdout == "400", "{plain}");
    server.fails(&format!("openssl s_client -connect {address} -tls1_1 < /dev/null"));
    server.run(&format!(
        "openssl s_client -connect {address} -tls1_2 -CAfile data/pki/ca.crt -verify_return_error < /dev/null"
    ));
}

#[test]
fn private_files_are_private() {
    let server = server();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&server.kubeconfig()), 0o600);
    assert_eq!(mode(server.data_dir()), 0o700);
    for entry in std::fs::read_dir(server.data_dir().join("pki")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "key") {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}

#[tokio::test]
async fn service_accounts_have_tokens() {
    let server = server();
    server.run("kubectl create serviceaccount -n team robot");
    let token = server.run("kubectl create token -n team robot --duration=20m");
    let token = token.trim();
    let robot = server.bearer("robot", token);
    let name = r#"User "system:serviceaccount:team:robot" cannot"#;
    forbidden(&server, &robot, "kubectl get pods -n team", name);
    server.run("kubectl create rolebinding -n team robot --clusterrole=edit --serviceaccount=team:robot");
    server.run_as(
        &robot,
        "kubectl create configmap -n team mine && kubectl get secrets -n team",
    );
    forbidden(&server, &robot, "kubectl create configmap -n default mine", name);
    forbidden(
        &server,
        &robot,
        "kubectl create role -n team r --verb=get --resource=pods",
        name,
    );
    let groups = server.run_as(&robot, "kubectl auth whoami -o jsonpath='{.status.userInfo.groups}'");
    assert_eq!(
        groups,
        r#"["system:serviceaccounts","system:serviceaccounts:team","system:authenticated"]"#
    );

    // What a token says, and who signed it.
    let parts: Vec<Value> = token
        .split('.')
        .take(2)
        .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
        .collect();
    let (header, claims) = (&parts[0], &parts[1]);
    assert_eq!(claims["sub"], "system:serviceaccount:team:robot");
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 1200);
    assert_eq!(claims["kubernetes.io"]["serviceaccount"]["name"], "robot");
    let http = server.http().await;
    let discovery = http.get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(discovery["issuer"], claims["iss"]);
    assert_eq!(claims["aud"], json!([discovery["issuer"]]));
    let keys = http.get("/openid/v1/jwks").await.expect(200);
    assert!(
        keys["keys"]
            .as_array()
            .unwrap()
            .iter()
            .any(|k| k["kid"] == header["kid"] && k["alg"] == header["alg"]),
        "{keys} {header}"
    );

    // Changed by one character it is nobody's; for another audience it is not for us; and it dies with its account.
    let mut forged = token.to_string();
    let at = forged.len() - 10;
    forged.replace_range(at..=at, if &forged[at..=at] == "A" { "B" } else { "A" });
    let forger = server.bearer("forger", &forged);
    assert!(
        server
            .fails_as(&forger, "kubectl get pods -n team")
            .contains("Unauthorized")
    );
    let elsewhere = server.run("kubectl create token -n team robot --audience=https://elsewhere.example.org");
    let elsewhere = server.bearer("elsewhere", elsewhere.trim());
    assert!(
        server
            .fails_as(&elsewhere, "kubectl get pods -n team")
            .contains("Unauthorized")
    );
    server.run("kubectl delete serviceaccount -n team robot && kubectl create serviceaccount -n team robot");
    assert!(
        server
            .fails_as(&robot, "kubectl get pods -n team")
            .contains("Unauthorized")
    );
}

#[test]
fn nobody_gives_away_what_they_do_not_have() {
    let server = server();
    let ann = server.user("ann", &[]);
    server.run("kubectl create rolebinding -n team ann --clusterrole=edit --user=ann");
    server.run(
        "kubectl create clusterrole role-writer --verb=create,update,patch,get,list --resource=roles,rolebindings",
    );
    server.run("kubectl create rolebinding -n team ann-writes-roles --clusterrole=role-writer --user=ann");
    // Her own rights she may pass on, more she may not.
    server.run_as(&ann, "kubectl create role -n team pods --verb=get --resource=pods");
    let message = "attempting to grant RBAC permissions not currently held";
    forbidden(
        &server,
        &ann,
        "kubectl create role -n team more --verb='*' --resource='*'",
        message,
    );
    forbidden(
        &server,
        &ann,
        "kubectl create role -n team nodes --verb=escalate --resource=roles",
        message,
    );
    let patch = r#"[{"op":"add","path":"/rules/0/resources/-","value":"nodes"}]"#;
    forbidden(
        &server,
        &ann,
        &format!("kubectl patch role -n team pods --type=json -p '{patch}'"),
        message,
    );
    forbidden(
        &server,
        &ann,
        "kubectl create rolebinding -n team self --clusterrole=cluster-admin --user=ann",
        message,
    );
    server.run_as(&ann, "kubectl create rolebinding -n team bob --role=pods --user=bob");
    // Unless she may bind or escalate.
    server.run("kubectl create clusterrole binder --verb=bind --resource=clusterroles --resource-name=view && kubectl create rolebinding -n team ann-binds --clusterrole=binder --user=ann");
    server.run_as(
        &ann,
        "kubectl create rolebinding -n team carl --clusterrole=view --user=carl",
    );
    forbidden(
        &server,
        &ann,
        "kubectl create rolebinding -n team self --clusterrole=cluster-admin --user=ann",
        message,
    );
    let changed =
        server.fails("kubectl patch rolebinding -n team carl --type=merge -p '{\"roleRef\":{\"name\":\"admin\"}}'");
    assert!(changed.contains("cannot change roleRef"), "{changed}");
    // Rules gather under an aggregated role by label.
    server.run_with("kubectl create -f -", "---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: see-widgets, labels: {rbac.authorization.k8s.io/aggregate-to-view: 'true'}}, rules: [{apiGroups: [example.org], resources: [widgets], verbs: [get]}]}");
    server.run("kubectl create rolebinding -n team dora --clusterrole=view --user=dora");
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "dora", "resourceAttributes": {"verb": "get", "group": "example.org", "resource": "widgets", "namespace": "team"}},
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    eventually("view includes the new rule", || {
        let answer = server.run_with(&format!("kubectl create --raw {path} -f -"), &review.to_string());
        answer.contains(r#""allowed":true"#).then_some(())
    });
}

/// Whoever may only change things can't make them by changing what is not there.
#[tokio::test]
async fn a_right_to_change_is_none_to_create() {
    let server = server();
    let ann = server.user("ann", &[]);
    server.run("kubectl create clusterrole changer --verb=get,update,patch --resource=configmaps,leases,rolebindings");
    server.run("kubectl create clusterrole binder --verb=bind --resource=clusterroles");
    server.run("kubectl create rolebinding -n team ann --clusterrole=changer --user=ann");
    server.run("kubectl create clusterrolebinding ann --clusterrole=binder --user=ann");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "team"}});
    let line = "kubectl apply --server-side -f -";
    let refused = server.fails_as_with(&ann, line, &map.to_string());
    let message = r#"configmaps "m" is forbidden: User "ann" cannot create resource "configmaps" in API group "" in the namespace "team""#;
    assert!(refused.contains(message), "{refused}");
    let http = Http::connect(&Identity::of_kubeconfig(&ann.kubeconfig)).await.unwrap();
    let put = async |path: &str, body: Value| {
        let media = [("content-type", "application/json")];
        http.ask(http::Method::PUT, path, &media, body.to_string())
            .await
            .unwrap()
    };
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/team/leases/l";
    let status = put(leases, lease.clone()).await.refused(403, "Forbidden");
    assert!(
        status["message"].as_str().unwrap().contains("cannot create resource"),
        "{status}"
    );
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/b";
    put(bindings, binding).await.refused(403, "Forbidden");
    // What is there she may change; and with the right to create, make.
    server.run_with(line, &map.to_string());
    server.run_as_with(
        &ann,
        "kubectl apply --server-side --force-conflicts -f -",
        &map.to_string(),
    );
    server.run("kubectl create role -n team maker --verb=create --resource=leases");
    server.run("kubectl create rolebinding -n team maker --role=maker --user=ann");
    put(leases, lease).await.expect(201);
}

/// A group in a type of string that not everybody reads is still a group.
#[test]
fn hidden_groups_are_not_requested() {
    let server = server();
    let config = "[req]\ndistinguished_name=dn\nprompt=no\nstring_mask=MASK:0x800\n[dn]\nCN=me\nO=system:masters\n";
    std::fs::write(server.home().join("hidden.cnf"), config).unwrap();
    server.run(
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout h.key -config hidden.cnf -out h.csr 2> /dev/null
         openssl asn1parse -in h.csr | grep -q BMPSTRING",
    );
    let pem = std::fs::read(server.home().join("h.csr")).unwrap();
    let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "h"},
        "spec": {"request": encoded, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
    });
    let refused = server.fails_with("kubectl create -f -", &request.to_string());
    assert!(refused.contains("failed to parse CSR: subject attribute"), "{refused}");
}

/// Bound to all addresses, the server names one at which pods find it.
#[test]
fn the_keys_of_tokens_are_where_pods_reach_them() {
    let server = Launch::up().arg("--bind=0.0.0.0").start();
    let document: Value =
        serde_json::from_str(&server.run("kubectl get --raw /.well-known/openid-configuration")).unwrap();
    let uri = document["jwks_uri"].as_str().unwrap();
    let endpoints = server.get("endpoints kubernetes -n default --ignore-not-found");
    // A machine without a route has no address to give but its own.
    let host = endpoints["subsets"][0]["addresses"][0]["ip"]
        .as_str()
        .unwrap_or("127.0.0.1");
    let port = server.url().rsplit(':').next().unwrap().to_string();
    assert_eq!(uri, format!("https://{host}:{port}/openid/v1/jwks"));
}

#[test]
fn impersonation_needs_a_right_of_its_own() {
    let server = server();
    let ann = server.user("ann", &[]);
    forbidden(
        &server,
        &ann,
        "kubectl get pods --as=bob",
        r#"User "ann" cannot impersonate"#,
    );
    server.run("kubectl create clusterrole as-bob --verb=impersonate --resource=users --resource-name=bob && kubectl create clusterrolebinding ann-as-bob --clusterrole=as-bob --user=ann");
    server.run("kubectl create rolebinding -n team bob --clusterrole=view --user=bob");
    server.run_as(&ann, "kubectl get pods -n team --as=bob");
    forbidden(&server, &ann, "kubectl get pods -n team", r#"User "ann" cannot"#);
    forbidden(
        &server,
        &ann,
        "kubectl get pods -n team --as=bob --as-group=system:masters",
        r#"User "ann" cannot impersonate"#,
    );
    forbidden(
        &server,
        &ann,
        "kubectl get pods -n team --as=carl",
        r#"User "ann" cannot impersonate"#,
    );
    let who = server.run("kubectl auth whoami --as=system:serviceaccount:team:x --as-group=g --as-uid=7 -o jsonpath='{.status.userInfo}'");
    let who: Value = serde_json::from_str(&who).unwrap();
    assert_eq!(who["username"], "system:serviceaccount:team:x");
    assert_eq!(who["uid"], "7");
    assert!(who["groups"].as_array().unwrap().contains(&json!("g")), "{who}");
}

/// An agent may speak for its own node, and read what its own pods need.
#[tokio::test]
async fn nodes_keep_to_themselves() {
    let server = server();
    let node = server.user("system:node:n1", &["system:nodes"]);
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        server.run_with("kubectl create -f -", &node.to_string());
    }
    server.run("kubectl create secret generic -n team used && kubectl create secret generic -n team unused");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "secret": {"secretName": "used"}}],
        },
    });
    server.run_with("kubectl create -f -", &pod.to_string());

    // Agents patch what they may not read back, so not with kubectl.
    let agent = Http::connect(&Identity::of_kubeconfig(&node.kubeconfig)).await.unwrap();
    let patch = async |path: &str, body: Value| {
        let media = [("content-type", "application/merge-patch+json")];
        agent
            .ask(http::Method::PATCH, path, &media, body.to_string())
            .await
            .unwrap()
    };
    patch(
        "/api/v1/namespaces/team/pods/p/status",
        json!({"status": {"phase": "Running"}}),
    )
    .await
    .expect(200);
    let ready = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.36.4"}}});
    patch("/api/v1/nodes/n1/status", ready.clone()).await.expect(200);
    let other = patch("/api/v1/nodes/n2/status", ready).await.refused(403, "Forbidden");
    let message = other["message"].as_str().unwrap();
    assert!(
        message.contains(r#"node "n1" is not allowed to modify node "n2""#),
        "{message}"
    );
    let labels = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}});
    let label = patch("/api/v1/nodes/n1", labels).await.refused(403, "Forbidden");
    let message = label["message"].as_str().unwrap();
    assert!(
        message.contains("is not allowed to modify labels: node-restriction.kubernetes.io/x"),
        "{message}"
    );
    let taints = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
    let taint = patch("/api/v1/nodes/n1", taints).await.refused(403, "Forbidden");
    assert!(
        taint["message"]
            .as_str()
            .unwrap()
            .contains("is not allowed to modify taints"),
        "{taint:#}"
    );

    // A name that is still to be generated is not the node's, whatever it starts with.
    for (path, api_version, kind) in [
        ("/api/v1/nodes", "v1", "Node"),
        ("/apis/storage.k8s.io/v1/csinodes", "storage.k8s.io/v1", "CSINode"),
        (
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            "coordination.k8s.io/v1",
            "Lease",
        ),
    ] {
        let body = json!({"apiVersion": api_version, "kind": kind, "metadata": {"generateName": "n1"}, "spec": {}});
        let media = [("content-type", "application/json")];
        let answer = agent
            .ask(http::Method::POST, path, &media, body.to_string())
            .await
            .unwrap();
        answer.refused(403, "Forbidden");
    }

    server.run_as(&node, "kubectl get secret -n team used");
    let unused = server.fails_as(&node, "kubectl get secret -n team unused");
    assert!(
        unused.contains("no relationship found between node 'n1' and this object"),
        "{unused}"
    );
    assert!(
        server
            .fails_as(&node, "kubectl get secrets -n team")
            .contains("Forbidden")
    );
    server.run_as(&node, "kubectl delete pod -n team p --grace-period=0 --force");
}

#[test]
fn bootstrap_tokens_introduce_nodes() {
    let server = server();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:workers",
        },
    });
    server.run_with("kubectl create -f -", &secret.to_string());
    let newcomer = server.bearer("newcomer", "abcdef.0123456789abcdef");
    let who: Value = serde_json::from_str(&server.run_as(&newcomer, "kubectl auth whoami -o json")).unwrap();
    assert_eq!(who["status"]["userInfo"]["username"], "system:bootstrap:abcdef");
    assert_eq!(
        who["status"]["userInfo"]["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:workers",
            "system:authenticated"
        ])
    );
    server.run("kubectl delete secret -n kube-system bootstrap-token-abcdef");
    assert!(
        server
            .fails_as(&newcomer, "kubectl auth whoami")
            .contains("Unauthorized")
    );
}

#[test]
fn the_audit_log_has_a_line_for_each_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let server = Launch::up().arg(format!("--audit-log={}", path.display())).start();
    server.run("kubectl create configmap audited --from-literal=password=hidden");
    server.fails("kubectl get secrets --as=ann");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("each line is JSON"))
        .collect();
    // The cluster's own components are in the log, too.
    let masters = |l: &Value| {
        let groups = l["user"]["groups"].as_array();
        groups.is_some_and(|groups| groups.contains(&json!("system:masters")))
    };
    let is_map = |l: &Value| l["objectRef"]["resource"] == "configmaps" && l["objectRef"]["namespace"] == "default";
    let of_create = |l: &&Value| l["verb"] == "create" && is_map(l) && masters(l);
    let created: Vec<&Value> = lines.iter().filter(of_create).collect();
    let [received, complete] = created[..] else {
        panic!("two lines for the create: {created:#?}")
    };
    assert_eq!(
        (&received["stage"], &complete["stage"]),
        (&json!("RequestReceived"), &json!("ResponseComplete"))
    );
    assert_eq!(received["auditID"], complete["auditID"]);
    assert!(received["responseStatus"].is_null());
    assert_eq!(complete["responseStatus"]["code"], 201);
    for line in [received, complete] {
        assert_eq!(
            (&line["kind"], &line["apiVersion"]),
            (&json!("Event"), &json!("audit.k8s.io/v1"))
        );
        assert_eq!(
            (&line["objectRef"]["namespace"], &line["objectRef"]["name"]),
            (&json!("default"), &json!("audited"))
        );
        assert_eq!(line["sourceIPs"], json!(["127.0.0.1"]));
        assert!(line["userAgent"].as_str().unwrap().starts_with("kubectl"));
        assert_eq!(line["annotations"]["authorization.k8s.io/decision"], "allow");
    }
    let refused = lines
        .iter()
        .find(|l| l["objectRef"]["resource"] == "secrets" && l["impersonatedUser"]["username"] == "ann")
        .expect("refusals are logged");
    assert!(masters(refused), "by whom it was really asked: {refused:#}");
    assert_eq!(refused["responseStatus"]["code"], 403);
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert!(!text.contains("hidden"), "contents are not for this log");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn the_audit_log_and_the_answer_call_a_request_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let server = Launch::apiserver()
        .arg(format!("--audit-log-path={}", path.display()))
        .start();
    let http = server.http().await;
    let own = http.get("/api/v1/namespaces").await;
    let own = own.headers["audit-id"].to_str().unwrap().to_string();
    let headers = [("audit-id", "mine"), ("x-forwarded-for", "192.0.2.1")];
    let given = http.ask(Method::GET, "/api/v1/nodes", &headers, "").await.unwrap();
    assert_eq!(given.headers["audit-id"], "mine");
    // A watch is recorded when it begins and when it ends.
    let watch = http.stream("/api/v1/namespaces?watch=true&timeoutSeconds=1", &[]).await;
    let watched = watch.headers["audit-id"].to_str().unwrap().to_string();
    let mut watch = watch;
    while watch.line().await.is_some() {}
    let stages = |id: &str| -> (Vec<String>, Value) {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines: Vec<Value> = lines.filter(|line| line["auditID"] == id).collect();
        let stages = lines.iter().map(|line| line["stage"].as_str().unwrap().to_string());
        (stages.collect(), lines.last().cloned().unwrap_or_default())
    };
    assert_eq!(stages(&own).0, ["ResponseComplete"]);
    assert_eq!(stages("mine").1["sourceIPs"], json!(["192.0.2.1", "127.0.0.1"]));
    eventually("the end of the watch is written down", || {
        (stages(&watched).0 == ["ResponseStarted", "ResponseComplete"]).then_some(())
    });
}
