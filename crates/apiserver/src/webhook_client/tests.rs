//! The client against real TLS servers on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::lookup::fixture::Objects;

/// A server that answers each request with what `answer` makes of it.
struct Server {
    port: u16,
    ca: String,
    connections: Arc<AtomicUsize>,
}

fn acceptor(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// An authority, and a certificate of it for these names.
fn issued(names: &[&str]) -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
    (ca.pem(), acceptor(vec![leaf.der().clone()], &key))
}

async fn serve(ca: String, acceptor: TlsAcceptor, answer: fn(usize) -> Vec<u8>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        let served = Arc::new(AtomicUsize::new(0));
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let (acceptor, served) = (acceptor.clone(), served.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let mut buffer = vec![0; 64 << 10];
                // Test requests fit one read.
                while let Ok(1..) = stream.read(&mut buffer).await {
                    let bytes = answer(served.fetch_add(1, Ordering::SeqCst));
                    if bytes.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    if stream.write_all(&bytes).await.is_err() || bytes.ends_with(b"bye") {
                        return;
                    }
                }
            });
        }
    });
    Server { port, ca, connections }
}

fn http(code: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {code} X\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Server {
    fn config(&self, host: &str) -> ClientConfig {
        let url = format!("https://{host}:{}/hook", self.port);
        ClientConfig::from_url(&url, self.ca.as_bytes().into()).unwrap()
    }

    async fn call(&self, client: &WebhookClient, host: &str, seconds: u64) -> Result<String, String> {
        let timeout = Duration::from_secs(seconds);
        let config = self.config(host);
        let answer = client
            .post(&Objects::default(), &config, Bytes::from_static(b"{}"), timeout)
            .await;
        let told = |e: CallError| e.to_string().replace(&self.port.to_string(), "PORT");
        answer
            .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .map_err(told)
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let (ca, acceptor) = issued(&["localhost"]);
    // The third answer is the last on its connection.
    let answer = |n| {
        http(
            "200",
            if n == 2 { "connection: close\r\n" } else { "" },
            if n == 2 { "bye" } else { "hi" },
        )
    };
    let server = serve(ca, acceptor, answer).await;
    let client = WebhookClient::default();
    for expected in ["hi", "hi", "bye", "hi"] {
        assert_eq!(server.call(&client, "localhost", 10).await.unwrap(), expected);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn certificates_must_be_right() {
    let (ca, acceptor) = issued(&["localhost"]);
    let server = serve(ca, acceptor, |_| http("200", "", "hi")).await;
    let client = WebhookClient::default();
    assert_eq!(
        server.call(&client, "127.0.0.1", 10).await.unwrap_err(),
        r#"Post "https://127.0.0.1:PORT/hook?timeout=10s": tls: failed to verify certificate: x509: certificate is valid for localhost, not 127.0.0.1"#
    );
    let other = Server {
        ca: issued(&["localhost"]).0,
        ..server
    };
    assert_eq!(
        other.call(&client, "localhost", 10).await.unwrap_err(),
        r#"Post "https://localhost:PORT/hook?timeout=10s": tls: failed to verify certificate: x509: certificate signed by unknown authority"#
    );
    let broken = ClientConfig::from_url("https://localhost/", (*b"nonsense").into()).unwrap();
    let refused = client
        .post(&Objects::default(), &broken, Bytes::new(), Duration::from_secs(1))
        .await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "unable to load root certificates: unable to parse bytes as PEM block"
    );
}

#[tokio::test]
async fn a_certificate_may_be_its_own_bundle() {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_string()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let acceptor = acceptor(vec![certificate.der().clone()], &key);
    let server = serve(certificate.pem(), acceptor, |_| http("200", "", "hi")).await;
    let client = WebhookClient::default();
    assert_eq!(server.call(&client, "localhost", 10).await.unwrap(), "hi");
    assert!(
        server
            .call(&client, "127.0.0.1", 10)
            .await
            .unwrap_err()
            .contains("not 127.0.0.1")
    );
}

#[tokio::test]
async fn answers_without_success_are_refused() {
    let client = WebhookClient::default();
    let cases: [(fn(usize) -> Vec<u8>, &str); 7] = [
        (
            |_| http("302", "location: https://elsewhere/\r\n", ""),
            "the server responded with the status code 302 but did not return more information",
        ),
        (
            |_| http("404", "", "no"),
            "the server could not find the requested resource",
        ),
        (
            |_| http("500", "", "oops\n"),
            r#"an error on the server ("oops") has prevented the request from succeeding"#,
        ),
        (
            |_| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "message": "my own words", "code": 418});
                http("418", "", &status.to_string())
            },
            "my own words",
        ),
        (
            |_| {
                b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n"
                    .iter()
                    .copied()
                    .chain(vec![b' '; 9_000_000])
                    .collect()
            },
            r#"Post "https://localhost:PORT/hook?timeout=10s": http: response body too large"#,
        ),
        (
            |_| b"bye".to_vec(),
            r#"Post "https://localhost:PORT/hook?timeout=10s": invalid HTTP version parsed"#,
        ),
        (
            |_| b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbye".to_vec(),
            r#"Post "https://localhost:PORT/hook?timeout=10s": error reading a body from connection"#,
        ),
    ];
    for (answer, expected) in cases {
        let (ca, acceptor) = issued(&["localhost"]);
        let server = serve(ca, acceptor, answer).await;
        assert_eq!(server.call(&client, "localhost", 10).await.unwrap_err(), expected);
    }
}

#[tokio::test]
async fn nobody_waits_longer_than_they_said() {
    let (ca, acceptor) = issued(&["localhost"]);
    let server = serve(ca, acceptor, |_| vec![]).await;
    let client = WebhookClient::default();
    let refused = server.call(&client, "localhost", 1).await.unwrap_err();
    assert_eq!(
        refused,
        r#"Post "https://localhost:PORT/hook?timeout=1s": context deadline exceeded"#
    );
    // Nobody listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let gone = Server { port: closed, ..server };
    let refused = gone.call(&client, "127.0.0.1", 5).await.unwrap_err();
    assert_eq!(
        refused,
        r#"Post "https://127.0.0.1:PORT/hook?timeout=5s": dial tcp 127.0.0.1:PORT: connect: connection refused"#
    );
}

#[test]
fn client_configs_are_read() {
    let read = |config: Value| ClientConfig::from_value(&config).map(|c| c.url(Duration::from_secs(10)));
    let service = json!({"service": {"namespace": "n", "name": "s", "path": "/p", "port": 8443}});
    assert_eq!(read(service), Ok("https://s.n.svc:8443/p?timeout=10s".into()));
    let service = json!({"service": {"namespace": "n", "name": "s"}});
    assert_eq!(read(service), Ok("https://s.n.svc:443/?timeout=10s".into()));
    assert_eq!(
        read(json!({"url": "https://a/b"})),
        Ok("https://a/b?timeout=10s".into())
    );
    assert_eq!(read(json!({})), Err(ConfigError::NoDestination));
}
