//! Against Debian's `docker-registry`, where it is installed: the registry that most others descend from.

use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::*;
use crate::embedded::images::manifest::{OCI_INDEX, OCI_MANIFEST};

/// `user:secret`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "user:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

struct Registry {
    child: Child,
    address: String,
    _dir: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// `None` where it is not installed.
    async fn start(with_auth: bool) -> Option<Registry> {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("127.0.0.1:{port}");
        let root = dir.path().display();
        std::fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
        let auth = match with_auth {
            true => format!("auth: {{ htpasswd: {{ realm: test, path: {root}/htpasswd }} }}\n"),
            false => String::new(),
        };
        let config = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {root}/data }} }}\n\
             http: {{ addr: '{address}' }}\n{auth}"
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let registry = Registry {
            child,
            address,
            _dir: dir,
        };
        while tokio::net::TcpStream::connect(&registry.address).await.is_err() {
            tokio::task::yield_now().await;
        }
        Some(registry)
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        media_type: &str,
        body: &[u8],
    ) -> http::Response<hyper::body::Incoming> {
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", media_type)
            .header("authorization", "Basic dXNlcjpzZWNyZXQ=")
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        client.request(request).await.unwrap()
    }

    async fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        let base = format!("http://{}/v2/{repository}", self.address);
        for blob in image.blobs() {
            let begun = self
                .send(Method::POST, &format!("{base}/blobs/uploads/"), "", b"")
                .await;
            let location = begun.headers()["location"].to_str().unwrap().to_string();
            let url = format!("{location}&digest={}", Digest::of(&blob));
            let done = self.send(Method::PUT, &url, "application/octet-stream", &blob).await;
            assert_eq!(done.status(), StatusCode::CREATED);
        }
        self.put_manifest(&base, &image.digest().to_string(), OCI_MANIFEST, &image.manifest)
            .await;
        self.put_manifest(&base, tag, OCI_MANIFEST, &image.manifest).await;
    }

    async fn put_manifest(&self, base: &str, tag: &str, media_type: &str, content: &[u8]) {
        let url = format!("{base}/manifests/{tag}");
        let done = self.send(Method::PUT, &url, media_type, content).await;
        assert_eq!(done.status(), StatusCode::CREATED, "{tag}");
    }
}

#[tokio::test]
async fn pulls_from_the_registry_that_others_descend_from() {
    let Some(open_registry) = Registry::start(false).await else {
        return;
    };
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let image = TestImage::new(&[
        images::files(&[("large", &large)]),
        images::files(&[("b", b"2")]),
        images::files(&[("c", b"3")]),
    ]);
    open_registry.push("team/app", "v1", &image).await;
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": OCI_INDEX,
        "manifests": [{
            "mediaType": OCI_MANIFEST, "digest": image.digest(), "size": image.manifest.len(),
            "platform": { "os": "linux", "architecture": manifest::Platform::host().architecture },
        }],
    });
    let base = format!("http://{}/v2/team/app", open_registry.address);
    open_registry
        .put_manifest(&base, "multi", OCI_INDEX, index.to_string().as_bytes())
        .await;

    // By tag, by digest, by an index; as a mirror of docker.io.
    let by_digest = format!("{}/team/app@{}", open_registry.address, image.digest());
    let yaml = format!(
        "mirrors: {{ docker.io: {{ endpoint: ['http://{}'] }} }}",
        open_registry.address
    );
    for name in [
        format!("{}/team/app:v1", open_registry.address),
        by_digest,
        format!("{}/team/app:multi", open_registry.address),
        "team/app:v1".to_string(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let registries = Registries::parse(&yaml, Path::new("registries.yaml")).unwrap();
        let store = ImageStore::open(
            dir.path(),
            Options {
                registries,
                ..options()
            },
        )
        .await
        .unwrap();
        let id = store.pull(&spec(&name), None, silent()).await.unwrap();
        assert_eq!(id, image.id().to_string(), "{name}");
        let prepared = store.prepare(&name, &holder("c")).await.unwrap();
        assert_eq!(std::fs::read(prepared.layers[0].join("large")).unwrap(), large);
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let missing = format!("{}/team/none:v1", open_registry.address);
    let error: crate::Error = store.pull(&spec(&missing), None, silent()).await.unwrap_err().into();
    assert_eq!(error.code, crate::Code::NotFound);

    let closed_registry = Registry::start(true).await.unwrap();
    closed_registry.push("team/app", "v1", &image).await;
    let name = format!("{}/team/app:v1", closed_registry.address);
    let error = store.pull(&spec(&name), None, silent()).await.unwrap_err().chain();
    assert!(error.contains("401 Unauthorized"), "{error}");
    let auth = AuthConfig {
        username: "user".to_string(),
        password: "secret".to_string(),
        ..AuthConfig::default()
    };
    store.pull(&spec(&name), Some(&auth), silent()).await.unwrap();
}
