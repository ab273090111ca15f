//! Who comes in by other ways than the cluster's own: tokens from a file, of other issuers, of a webhook; front proxies; who
//! else decides what they may do; what is written down of it; and how records look on the disk.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::Method;
use orlop_testkit::{Http, Identity, Launch, Server, eventually, until};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server of the test: answers each request with what a function makes of its path and its body.
struct Answering {
    url: String,
}

type Answer = dyn Fn(&str, Value) -> (u16, Value) + Send + Sync;

impl Answering {
    /// Over plain HTTP, or over TLS with a certificate and key in these files.
    fn start(
        tls: Option<(&Path, &Path)>,
        answer: impl Fn(&str, Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Answering {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let tls = tls.map(|(certificate, key)| {
            let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider);
            let config = config
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth();
            Arc::new(config.with_single_cert(chain, key).unwrap())
        });
        let answer: Arc<Answer> = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, answer) = (tls.clone(), answer.clone());
                std::thread::spawn(move || match tls {
                    None => exchange(stream, &*answer),
                    Some(config) => {
                        let connection = rustls::ServerConnection::new(config).unwrap();
                        exchange(rustls::StreamOwned::new(connection, stream), &*answer);
                    }
                });
            }
        });
        Answering { url }
    }
}

/// One request, one answer, and the end. Whoever sends nothing gets nothing.
fn exchange(mut stream: impl Read + Write, answer: &Answer) {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let (head, length) = loop {
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            _ => return,
        }
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            break (
                end + 4,
                length.map_or(0, |length| length.trim().parse::<usize>().unwrap()),
            );
        }
    };
    while bytes.len() < head + length {
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
    let line = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let path = line.split(' ').nth(1).unwrap_or("/").to_string();
    let body = serde_json::from_slice(&bytes[head..]).unwrap_or(Value::Null);
    let (code, value) = answer(&path, body);
    let text = value.to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = stream.flush();
}

/// Files of a test.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// The kubeconfig of a webhook.
    fn kubeconfig(&self, name: &str, url: &str) -> String {
        let cluster = json!({"server": url, "insecure-skip-tls-verify": true});
        let config = json!({"kind": "Config", "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "hook"}}], "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]});
        self.write(name, &config.to_string())
    }

    fn sh(&self, line: &str) -> String {
        let done = std::process::Command::new("bash")
            .args(["-c", line])
            .current_dir(self.0.path())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    }

    /// An RSA key, its certificate for 127.0.0.1, and the certificate's text.
    fn certificate(&self) -> String {
        self.sh(
            "openssl req -x509 -newkey rsa:2048 -nodes -keyout tls.key -out tls.crt -days 2 -subj /CN=issuer \
             -addext subjectAltName=IP:127.0.0.1 2>/dev/null",
        );
        std::fs::read_to_string(self.path("tls.crt")).unwrap()
    }

    /// The public half of the key, as providers show it.
    fn jwks(&self, id: &str) -> Value {
        let modulus = self.sh("openssl rsa -in tls.key -noout -modulus 2>/dev/null");
        let hex = modulus.trim().strip_prefix("Modulus=").unwrap();
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let key = json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": id, "e": "AQAB",
            "n": URL_SAFE_NO_PAD.encode(bytes)});
        json!({"keys": [key]})
    }

    fn jwt(&self, id: &str, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "RS256", "kid": id})), part(claims));
        let path = self.write("signed", &signed);
        let signature = self.sh(&format!("openssl dgst -sha256 -sign tls.key {path} | base64 -w0"));
        let signature = STANDARD.decode(signature.trim()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

async fn as_token(server: &Server, token: &str) -> Http {
    Http::connect(&server.identity().with_token(token)).await.unwrap()
}

/// Whom the server takes somebody for; none if it takes them for nobody.
async fn who(http: &Http) -> Option<Value> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = http
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
        .await;
    match answer.status.as_u16() {
        201 => Some(answer.json()["status"]["userInfo"].clone()),
        401 => None,
        code => panic!("{code}: {}", answer.text()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_file_and_of_a_webhook() {
    let files = Files::new();
    let tokens = files.write("tokens.csv", "filed,ann,7,\"dev,ops\"\n");
    let hook = Answering::start(None, |_, review| {
        assert_eq!(review["kind"], "TokenReview");
        let user = json!({"username": "bob", "uid": "9", "groups": ["hooked"], "extra": {"k": ["v"]}});
        let status = match review["spec"]["token"] == "hooked" {
            true => json!({"authenticated": true, "user": user}),
            false => json!({"authenticated": false, "error": "never heard of it"}),
        };
        (
            200,
            json!({"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}),
        )
    });
    let config = files.kubeconfig("hook.yaml", &hook.url);
    let server = Launch::apiserver()
        .arg(format!("--token-auth-file={tokens}"))
        .arg(format!("--authentication-token-webhook-config-file={config}"))
        .arg("--authentication-token-webhook-version=v1")
        .arg("--anonymous-auth=false")
        .start();
    let ann = who(&as_token(&server, "filed").await).await.unwrap();
    assert_eq!((&ann["username"], &ann["uid"]), (&json!("ann"), &json!("7")));
    assert_eq!(ann["groups"], json!(["dev", "ops", "system:authenticated"]));
    for _ in 0..2 {
        let bob = who(&as_token(&server, "hooked").await).await.unwrap();
        let wanted =
            json!({"username": "bob", "uid": "9", "groups": ["hooked", "system:authenticated"], "extra": {"k": ["v"]}});
        assert_eq!(bob, wanted);
    }
    assert_eq!(who(&as_token(&server, "other").await).await, None);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "other"}});
    let reviewed = server
        .http()
        .await
        .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
        .await;
    assert_eq!(reviewed.json()["status"]["error"], "never heard of it");
    // Who shows nothing is not let in at all.
    let nobody = Http::connect(&server.identity().anonymous()).await.unwrap();
    nobody.get("/version").await.refused(401, "Unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_other_issuers() {
    let files = Files::new();
    let authority = files.certificate();
    let jwks = files.jwks("k1");
    let (certificate, key) = (files.path("tls.crt"), files.path("tls.key"));
    // The issuer is where it is: its address stands in what it says of itself.
    let own = Arc::new(std::sync::OnceLock::<String>::new());
    let issuer = Answering::start(Some((&certificate, &key)), {
        let own = own.clone();
        move |path, _| match path {
            "/.well-known/openid-configuration" => {
                let url = own.get().unwrap();
                (200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
            }
            "/keys" => (200, jwks.clone()),
            _ => (404, json!({})),
        }
    });
    own.set(issuer.url.clone()).unwrap();
    let configuration = |anonymous: Value| {
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": issuer.url, "certificateAuthority": authority, "audiences": ["orlop", "other"],
                    "audienceMatchPolicy": "MatchAny"},
                "claimMappings": {
                    "username": {"expression": "'oidc:' + claims.sub"},
                    "groups": {"claim": "roles", "prefix": "oidc:"},
                    "extra": [{"key": "example.com/tenant", "valueExpression": "claims.?tenant.orValue('none')"}],
                },
                "claimValidationRules": [{"expression": "claims.exp - claims.iat <= 7200", "message": "too long"}],
                "userValidationRules": [{"expression": "!user.username.endsWith('root')"}],
            }],
            "anonymous": anonymous})
        .to_string()
    };
    let file = files.write("authn.yaml", &configuration(json!({"enabled": true})));
    let server = Launch::apiserver()
        .arg(format!("--authentication-config={file}"))
        .start();

    let now = orlop_base::Clock::System.now().as_second();
    let claims = |change: Value| {
        let mut claims = json!({"iss": issuer.url, "aud": "orlop", "sub": "ann", "iat": now, "exp": now + 3600,
            "roles": ["admin"], "jti": "id1"});
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    };
    let token = |change: Value| files.jwt("k1", &claims(change));
    let good = who(&as_token(&server, &token(json!({}))).await).await.unwrap();
    assert_eq!(good["username"], "oidc:ann");
    assert_eq!(good["groups"], json!(["oidc:admin", "system:authenticated"]));
    assert_eq!(good["extra"]["example.com/tenant"], json!(["none"]));
    assert_eq!(
        good["extra"]["authentication.kubernetes.io/credential-id"],
        json!(["JTI=id1"])
    );
    for bad in [
        json!({"aud": "elsewhere"}),
        json!({"exp": now - 10}),
        json!({"exp": now + 10_000}),
        json!({"sub": "root"}),
        json!({"iss": "https://else.example"}),
    ] {
        assert_eq!(who(&as_token(&server, &token(bad.clone())).await).await, None, "{bad}");
    }
    let forged = token(json!({})).replacen('.', ".x", 1);
    assert_eq!(who(&as_token(&server, &forged).await).await, None);

    // The file is read again.
    let nobody = Http::connect(&server.identity().anonymous()).await.unwrap();
    nobody.get("/version").await.expect(200);
    let limited = json!({"enabled": true, "conditions": [{"path": "/livez"}]});
    files.write("authn.yaml", &configuration(limited));
    until("anonymous requests are refused", async || {
        (nobody.get("/version").await.status.as_u16() == 401).then_some(())
    })
    .await;
    assert_eq!(nobody.get("/livez").await.status.as_u16(), 200);
    let metrics = server.http().await.get("/metrics").await.text();
    let name = "apiserver_authentication_config_controller_automatic_reloads_total{status=\"success\"} 1";
    assert!(metrics.contains(name), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn front_proxies_say_for_whom_they_ask() {
    let server = Launch::apiserver().start();
    let pki = server.data_dir().join("pki");
    let pem = |name: &str| std::fs::read(pki.join(name)).unwrap();
    let ask = async |identity: Identity| {
        let http = Http::connect(&identity).await.unwrap();
        let headers = [
            ("x-remote-user", "ann"),
            ("x-remote-group", "dev"),
            ("x-remote-extra-example.com%2fk", "v"),
            ("content-type", "application/json"),
        ];
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        http.ask(Method::POST, path, &headers, review).await.unwrap()
    };
    let proxy = Identity {
        certificate: Some((pem("front-proxy-client.crt"), pem("front-proxy-client.key"))),
        ..server.identity()
    };
    let user = ask(proxy).await.json()["status"]["userInfo"].clone();
    let wanted =
        json!({"username": "ann", "groups": ["dev", "system:authenticated"], "extra": {"example.com/k": ["v"]}});
    assert_eq!(user, wanted);
    // Others may say what they like.
    let admin = ask(server.identity()).await.json();
    assert_eq!(admin["status"]["userInfo"]["username"], "kubernetes-admin");
    ask(server.identity().anonymous()).await.refused(403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_decides() {
    let files = Files::new();
    let tokens = files.write("tokens.csv", "t,ann,7,dev\n");
    let hook = Answering::start(None, |_, review| {
        let attributes = &review["spec"]["resourceAttributes"];
        let status = match (attributes["resource"].as_str(), attributes["namespace"].as_str()) {
            (Some("configmaps"), Some("team")) => json!({"allowed": true, "reason": "it is their team"}),
            (Some("secrets"), _) => json!({"allowed": false, "denied": true, "reason": "secrets are secret"}),
            _ => json!({"allowed": false}),
        };
        (
            200,
            json!({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status}),
        )
    });
    let kubeconfig = files.kubeconfig("hook.yaml", &hook.url);
    let configuration = |condition: &str| {
        let webhook = json!({"authorizedTTL": "5m", "unauthorizedTTL": "30s", "timeout": "3s",
            "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1", "failurePolicy": "Deny",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
            "matchConditions": [{"expression": condition}]});
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": [
            {"type": "Webhook", "name": "team", "webhook": webhook},
            {"type": "Node", "name": "node"}, {"type": "RBAC", "name": "rbac"}]})
        .to_string()
    };
    let humans = "has(request.resourceAttributes) && !request.user.startsWith('system:')";
    let file = files.write("authz.yaml", &configuration(humans));
    let server = Launch::apiserver()
        .arg(format!("--token-auth-file={tokens}"))
        .arg(format!("--authorization-config={file}"))
        .start();
    server.run("kubectl create clusterrolebinding ann --clusterrole=view --user=ann");
    let ann = as_token(&server, "t").await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    ann.get(&maps("team")).await.expect(200);
    ann.get(&maps("default")).await.expect(200);
    let refused = ann.get("/api/v1/namespaces/default/secrets").await;
    let refused = refused.refused(403, "Forbidden");
    assert!(
        refused["message"].as_str().unwrap().ends_with(": secrets are secret"),
        "{refused}"
    );
    let may = |resource: &str| {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "create", "resource": resource, "namespace": "team"}}})
    };
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let status = ann.post(path, &may("configmaps")).await.expect(201)["status"].clone();
    assert_eq!(status, json!({"allowed": true, "reason": "it is their team"}));
    let status = ann.post(path, &may("secrets")).await.expect(201)["status"].clone();
    assert_eq!(
        status,
        json!({"allowed": false, "denied": true, "reason": "secrets are secret"})
    );
    let rules = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "team"}});
    let rules = ann
        .post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &rules)
        .await
        .expect(201);
    assert_eq!(rules["status"]["incomplete"], true);
    // The admin may do everything, whatever others say.
    server.run("kubectl get secrets -A");
    let metrics = server.http().await.get("/metrics").await.text();
    for wanted in [
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"team\",type=\"Webhook\"}",
        "apiserver_authorization_decisions_total{decision=\"denied\",name=\"team\",type=\"Webhook\"}",
        "apiserver_authorization_webhook_evaluations_total{name=\"team\",result=\"success\"}",
    ] {
        assert!(metrics.contains(wanted), "{wanted}\n{metrics}");
    }
    // Another configuration, and it is not asked any more.
    files.write("authz.yaml", &configuration("false"));
    until("RBAC decides alone", async || {
        let answer = ann.post(path, &may("configmaps")).await;
        (answer.json()["status"]["allowed"] == false).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_say_what_is_recorded() {
    let files = Files::new();
    let (sent, received) = std::sync::mpsc::channel();
    let sent = std::sync::Mutex::new(sent);
    let hook = Answering::start(None, move |_, list| {
        assert_eq!(list["kind"], "EventList");
        let _ = sent.lock().unwrap().send(list);
        (200, json!({}))
    });
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps"]}],
            "namespaces": ["default"], "omitManagedFields": true},
        {"level": "Metadata", "nonResourceURLs": ["/version"], "omitStages": []},
        {"level": "None"},
    ]});
    let policy = files.write("policy.yaml", &policy.to_string());
    let config = files.kubeconfig("hook.yaml", &hook.url);
    let log = files.path("audit.log");
    let server = Launch::apiserver()
        .arg(format!("--audit-policy-file={policy}"))
        .arg(format!("--audit-log-path={}", log.display()))
        .arg(format!("--audit-webhook-config-file={config}"))
        .arg("--audit-webhook-batch-max-wait=100ms")
        .start();
    server.run("kubectl create secret generic s --from-literal=password=hidden");
    server.run("kubectl create configmap m --from-literal=key=shown && kubectl get configmap m");
    server.run("kubectl create configmap -n kube-system m && kubectl get --raw /version && kubectl get nodes");
    let lines: Vec<Value> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |resource: &str, verb: &str| -> Vec<&Value> {
        let is_wanted = |l: &&Value| l["objectRef"]["resource"] == resource && l["verb"] == verb;
        lines.iter().filter(is_wanted).collect()
    };
    let [secret] = of("secrets", "create")[..] else {
        panic!("{lines:#?}")
    };
    assert_eq!(
        (&secret["level"], &secret["stage"]),
        (&json!("Metadata"), &json!("ResponseComplete"))
    );
    assert!(secret["requestObject"].is_null() && secret["responseObject"].is_null());
    let [map] = of("configmaps", "create")[..] else {
        panic!("{lines:#?}")
    };
    assert_eq!(map["level"], "RequestResponse");
    assert_eq!(map["requestObject"]["data"], json!({"key": "shown"}));
    let answered = &map["responseObject"];
    assert_eq!(answered["data"], json!({"key": "shown"}));
    assert!(answered["metadata"]["uid"].is_string() && answered["metadata"]["managedFields"].is_null());
    assert!(of("nodes", "list").is_empty(), "no rule wants them");
    assert!(
        lines
            .iter()
            .any(|line| line["requestURI"].as_str().unwrap().starts_with("/version"))
    );
    assert!(lines.iter().all(|line| line["stage"] != "RequestReceived"));
    assert!(!lines.iter().any(|line| line.to_string().contains("hidden")));
    let sent = eventually("the webhook gets the same events", || {
        let list = received.try_recv().ok()?;
        list["items"].as_array().filter(|items| !items.is_empty()).cloned()
    });
    assert!(
        sent.iter()
            .all(|event| event["auditID"].is_string() && event["level"] != "None")
    );
    let metrics = server.http().await.get("/metrics").await.text();
    assert!(
        metrics.contains("apiserver_audit_level_total{level=\"RequestResponse\"}"),
        "{metrics}"
    );
}

#[test]
fn records_are_encrypted_on_the_disk() {
    let files = Files::new();
    let data = tempfile::tempdir().unwrap();
    let provider = |kind: &str, name: &str| {
        let secret = STANDARD.encode(name.repeat(32).get(..32).unwrap());
        json!({kind: {"keys": [{"name": name, "secret": secret}]}})
    };
    let configure = |providers: Value| {
        let entry = json!({"resources": ["secrets", "*.apps"], "providers": providers});
        let file = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": [entry]});
        files.write("encryption.yaml", &file.to_string())
    };
    let holds = |text: &str| {
        let store = data.path().join("store");
        let entries = std::fs::read_dir(store)
            .unwrap()
            .map(|entry| std::fs::read(entry.unwrap().path()).unwrap_or_default());
        entries
            .into_iter()
            .any(|bytes| bytes.windows(text.len()).any(|w| w == text.as_bytes()))
    };
    let file = configure(json!([provider("aescbc", "k1"), {"identity": {}}]));
    let launch = || {
        Launch::apiserver()
            .data_dir(data.path())
            .arg(format!("--encryption-provider-config={file}"))
    };
    let mut server = launch().start();
    // base64 of "tell-nobody-at-all"
    let hidden = STANDARD.encode("tell-nobody-at-all");
    server.run("kubectl create secret generic s --from-literal=k=tell-nobody-at-all");
    server.run("kubectl create configmap m --from-literal=k=tell-everybody");
    let read = |server: &Server| server.get("secret s")["data"]["k"].clone();
    assert_eq!(read(&server), json!(hidden));
    assert!(holds("k8s:enc:aescbc:v1:k1:") && holds("tell-everybody") && !holds(&hidden));
    server.kill();

    // Another key writes, both read; and after everything was written anew the first may go.
    configure(json!([provider("secretbox", "k2"), provider("aescbc", "k1")]));
    let mut server = server.relaunch(launch());
    assert_eq!(read(&server), json!(hidden));
    assert!(!holds("k8s:enc:secretbox:v1:k2:"));
    server.run("kubectl get secrets -A -o json | kubectl replace -f -");
    assert!(holds("k8s:enc:secretbox:v1:k2:"));
    server.kill();
    configure(json!([provider("secretbox", "k2")]));
    let mut server = server.relaunch(launch());
    assert_eq!(read(&server), json!(hidden));

    // A change while it runs.
    configure(json!([provider("aesgcm", "k3"), provider("secretbox", "k2")]));
    eventually("the file is read again", || {
        server.run("kubectl annotate --overwrite secret s again=$RANDOM");
        holds("k8s:enc:aesgcm:v1:k3:").then_some(())
    });
    server.kill();

    // The wrong key, or none: it does not start, and says why. Nothing is lost.
    for (providers, wanted) in [
        (
            Some(json!([provider("aesgcm", "k4")])),
            "failed to decrypt secrets: no key of that name",
        ),
        (None, "it is encrypted; start with the --encryption-provider-config"),
    ] {
        let launch = match providers {
            Some(providers) => {
                configure(providers);
                launch()
            }
            None => Launch::apiserver().data_dir(data.path()),
        };
        let ended = launch.command(data.path()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(
            !ended.status.success() && said.contains(wanted) && said.contains("/registry/secrets/default/s"),
            "{said}"
        );
    }
    configure(json!([provider("aesgcm", "k3"), provider("secretbox", "k2")]));
    let server = server.relaunch(launch());
    assert_eq!(read(&server), json!(hidden));
}
