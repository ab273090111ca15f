//! What controller-runtime's envtest does to a control plane, step by step: it looks for flags in `--help`, starts etcd, then
//! kube-apiserver, waits for their health, adds a user by a client certificate, and stops them by SIGTERM.
//!
//! Upstream: controller-runtime, pkg/internal/testing/{controlplane,process}.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use orlop_base::clock::monotonic;
use orlop_testkit::{eventually, orlop};
use serde_json::Value;

use crate::etcd::{Certificates, Process, free_port, run};

struct ControlPlane {
    directory: PathBuf,
    port: u16,
    etcd: Process,
    apiserver: Process,
    /// Until each was healthy.
    starts: [Duration; 2],
}

/// envtest keeps to the flags that it finds at the beginning of a line.
fn has_flag(binary: &Path, flag: &str) -> bool {
    let help = run(Command::new(binary).arg("--help"));
    help.lines().any(|line| {
        let rest = line
            .trim_start()
            .strip_prefix("--")
            .and_then(|line| line.strip_prefix(flag));
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

fn is_ok(url: &str) -> bool {
    Command::new("curl")
        .args(["-skf", "-o", "/dev/null", url])
        .status()
        .unwrap()
        .success()
}

impl ControlPlane {
    fn start(directory: &Path, environment: &[(&str, &str)]) -> ControlPlane {
        let assets = directory.join("assets");
        let told = run(Command::new(orlop()).arg("envtest").arg(&assets));
        assert_eq!(told, format!("export KUBEBUILDER_ASSETS='{}'\n", assets.display()));
        let file = |name: &str| directory.join(name).display().to_string();
        let log = |name: &str| {
            std::fs::File::options()
                .create(true)
                .append(true)
                .open(file(name))
                .unwrap()
        };

        assert!(has_flag(&assets.join("etcd"), "unsafe-no-fsync"));
        let client_url = format!("http://127.0.0.1:{}", free_port());
        let begun = monotonic();
        let etcd = Command::new(assets.join("etcd"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--data-dir={}", file("etcd-data")))
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{}", free_port()))
            .arg("--unsafe-no-fsync=true")
            .stderr(log("etcd.log"))
            .spawn();
        let etcd = Process(etcd.unwrap());
        eventually("etcd is healthy", || {
            is_ok(&format!("{client_url}/health")).then_some(())
        });
        let etcd_took = begun.elapsed();

        let certificates = Certificates(directory.into());
        let port = free_port();
        if !directory.join("client-cert-auth-ca.crt").exists() {
            for authority in ["serving-ca", "sa-signer", "client-cert-auth-ca"] {
                certificates.authority(authority);
            }
            let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth";
            certificates.signed("apiserver", "serving-ca", "/CN=localhost", names);
            let user = "/O=system:masters/CN=default";
            certificates.signed("user", "client-cert-auth-ca", user, "extendedKeyUsage=clientAuth");
        }
        // It asks for flags that are long gone, to leave them out.
        assert!(!has_flag(&assets.join("kube-apiserver"), "insecure-port"));
        let authorization =
            has_flag(&assets.join("kube-apiserver"), "authorization-mode").then_some("--authorization-mode=RBAC");
        let begun = monotonic();
        let apiserver = Command::new(assets.join("kube-apiserver"))
            .args(["--allow-privileged=true", "--bind-address=127.0.0.1"])
            .arg(format!("--cert-dir={}", directory.display()))
            .arg(format!("--client-ca-file={}", file("client-cert-auth-ca.crt")))
            .arg("--disable-admission-plugins=ServiceAccount")
            .arg(format!("--etcd-servers={client_url}"))
            .arg(format!("--secure-port={port}"))
            .arg(format!("--service-account-issuer=https://127.0.0.1:{port}/"))
            .arg(format!("--service-account-key-file={}", file("sa-signer.crt")))
            .arg(format!("--service-account-signing-key-file={}", file("sa-signer.key")))
            .arg("--service-cluster-ip-range=10.0.0.0/24")
            .args(authorization)
            .envs(environment.iter().copied())
            .stderr(log("kube-apiserver.log"))
            .spawn();
        let apiserver = Process(apiserver.unwrap());
        eventually("kube-apiserver is healthy", || {
            is_ok(&format!("https://127.0.0.1:{port}/healthz")).then_some(())
        });
        let starts = [etcd_took, begun.elapsed()];
        ControlPlane {
            directory: directory.into(),
            port,
            etcd,
            apiserver,
            starts,
        }
    }

    /// As the user that envtest adds, who trusts the authority that signed apiserver.crt and no other.
    fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let answer = run(Command::new("curl")
            .args([
                "-s",
                "--cacert",
                &file("serving-ca.crt"),
                "--cert",
                &file("user.crt"),
                "--key",
                &file("user.key"),
            ])
            .args(["-X", method, "-H", "Content-Type: application/json"])
            .args((!body.is_empty()).then_some(["-d", body]).into_iter().flatten())
            .arg(format!("https://127.0.0.1:{}{path}", self.port)));
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer}: {error}"))
    }

    fn stop(mut self) -> Duration {
        let begun = monotonic();
        assert!(self.apiserver.terminate() && self.etcd.terminate());
        begun.elapsed()
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POD: &str =
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;

#[test]
fn a_go_projects_tests_find_their_control_plane() {
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(dir.path(), &[]);
    let created = plane.request(
        "POST",
        MAPS,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}"#,
    );
    assert_eq!(created["metadata"]["name"], "m", "{created}");
    // The plugin is off: no token is mounted.
    let pod = plane.request("POST", "/api/v1/namespaces/default/pods", POD);
    assert_eq!(pod["spec"].get("volumes"), None, "{pod}");
    let token = plane.request(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}"#,
    );
    let review = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token["status"]["token"]},
    });
    let review = plane.request(
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        &review.to_string(),
    );
    assert_eq!(
        review["status"]["user"]["username"], "system:serviceaccount:default:default",
        "{review}"
    );
    let keys = plane.request("GET", "/openid/v1/jwks", "");
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
    let starts = plane.starts;
    println!("healthy after {starts:?}, stopped after {:?}", plane.stop());

    // The state is etcd's: it is there as long as its data directory is.
    let again = ControlPlane::start(dir.path(), &[]);
    assert_eq!(
        again.request("GET", &format!("{MAPS}/m"), "")["metadata"]["uid"],
        created["metadata"]["uid"]
    );
    again.stop();
}

#[test]
fn controllers_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(dir.path(), &[("ORLOP_ENVTEST_CONTROLLERS", "1")]);
    plane.request(
        "POST",
        "/api/v1/namespaces",
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}"#,
    );
    let maps = "/api/v1/namespaces/n/configmaps";
    let owner = plane.request(
        "POST",
        maps,
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"owner"}}"#,
    );
    let owned = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
        }]},
    });
    plane.request("POST", maps, &owned.to_string());
    plane.request("DELETE", &format!("{maps}/owner"), "");
    let is_gone = |path: &str| plane.request("GET", path, "")["code"] == 404;
    eventually("what was owned is gone", || {
        is_gone(&format!("{maps}/owned")).then_some(())
    });
    plane.request("DELETE", "/api/v1/namespaces/n", "");
    eventually("the namespace is gone", || {
        is_gone("/api/v1/namespaces/n").then_some(())
    });
    plane.stop();
}
