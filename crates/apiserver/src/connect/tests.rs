//! Connections to a kubelet that is made here: certificates, byte for byte, and what is said when there is none.

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::transport::Trust;
use super::*;
use crate::authn::CertIdentity;
use crate::pki::{Credential, Pki, San, Subject};

fn pki(dir: &std::path::Path) -> Pki {
    Pki::load_or_create(dir, &[], orlop_base::Clock::System.now()).unwrap()
}

fn serving(pki: &Pki, name: &str) -> Credential {
    let subject = Subject {
        common_name: "system:node:n",
        organizations: &["system:nodes"],
    };
    pki.issue_server(
        subject,
        &[San::parse(name)],
        Duration::from_secs(3600),
        orlop_base::Clock::System.now(),
    )
    .unwrap()
}

/// Answers with what the client's certificate says, or echoes once it is asked to leave HTTP.
async fn answer(user: String, mut request: http::Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if !is_upgrade(request.headers()) {
        return Ok(Response::new(Full::from(user)));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut source, mut sink) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        tokio::io::copy(&mut source, &mut sink).await.unwrap();
        sink.shutdown().await.unwrap();
    });
    let response = Response::builder()
        .status(101)
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    Ok(response.body(Full::default()).unwrap())
}

/// A kubelet with this certificate, which wants to see a client certificate of the authority; returns where it is.
async fn kubelet(pki: &Pki, credential: &Credential) -> ConnectTarget {
    let certificate = CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = pki.client_authority().unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .with_client_cert_verifier(clients.in_handshake())
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let now = orlop_base::Clock::System.now();
            let shown = stream.get_ref().1.peer_certificates();
            let user = shown.and_then(|shown| CertIdentity::new(&clients, shown, now).user(now).unwrap());
            let user = user.map_or("nobody".to_string(), |user| user.name.clone());
            let service = service_fn(move |request| answer(user.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection.with_upgrades());
        }
    });
    let kubelet = Kubelet {
        node: "n".into(),
        hosts: vec!["127.0.0.1".into()],
        port,
        speaks_websocket: true,
    };
    ConnectTarget::kubelet(&kubelet, "/pods".into())
}

async fn ask(nodes: &Nodes, place: &ConnectTarget, trust: Trust) -> Result<String, String> {
    let io = nodes.dial(place, trust).await.map_err(|error| error.to_string())?;
    let response = forward::get(io, place).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

/// The node `sim`, in this process.
struct Inside;

impl NodesInside for Inside {
    fn dial(&self, node: &str) -> Option<Box<dyn orlop_streaming::Pipe>> {
        if node != "sim" {
            return None;
        }
        let (ours, theirs) = tokio::io::duplex(1024);
        let service = service_fn(|request| answer("inside".into(), request));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service));
        Some(Box::new(ours))
    }
}

#[tokio::test]
async fn nodes_in_this_process_are_reached_without_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let own = pki(dir.path());
    let nodes = Nodes::new(&own).unwrap();
    nodes.set_inside(Arc::new(Inside));
    let outside = kubelet(&own, &serving(&own, "127.0.0.1")).await;
    let of = |node: Option<&str>| ConnectTarget {
        node: node.map(str::to_string),
        ..outside.clone()
    };
    assert_eq!(ask(&nodes, &of(Some("sim")), Trust::Kubelet).await.unwrap(), "inside");
    let user = crate::pki::KUBELET_CLIENT;
    assert_eq!(ask(&nodes, &of(Some("n")), Trust::Kubelet).await.unwrap(), user);
    // What is no kubelet is not there either.
    assert_eq!(ask(&nodes, &of(None), Trust::Kubelet).await.unwrap(), user);
}

#[tokio::test]
async fn certificates_of_our_authority_must_be_right() {
    let (dir, strange) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, other) = (pki(dir.path()), pki(strange.path()));
    let nodes = Nodes::new(&own).unwrap();
    let user = Ok(crate::pki::KUBELET_CLIENT.to_string());

    let right = kubelet(&own, &serving(&own, "127.0.0.1")).await;
    assert_eq!(ask(&nodes, &right, Trust::Kubelet).await, user);

    let misnamed = kubelet(&own, &serving(&own, "10.0.0.7")).await;
    let error = ask(&nodes, &misnamed, Trust::Kubelet).await.unwrap_err();
    assert!(
        error.starts_with("tls: failed to verify certificate: x509: "),
        "{error}"
    );
    assert_eq!(ask(&nodes, &misnamed, Trust::Anyone).await, user);

    // Same name of the authority, another key: a forgery. Another authority altogether: as kubelets make them.
    let forged = kubelet(&own, &serving(&other, "127.0.0.1")).await;
    assert!(ask(&nodes, &forged, Trust::Kubelet).await.is_err());
    let issued = rcgen::generate_simple_self_signed(vec!["n".to_string()]).unwrap();
    let own_made = Credential {
        certificate: issued.cert.pem(),
        key: issued.signing_key.serialize_pem(),
    };
    assert_eq!(ask(&nodes, &kubelet(&own, &own_made).await, Trust::Kubelet).await, user);
}

/// As `--kubelet-certificate-authority` and `--kubelet-client-certificate` have it.
#[tokio::test]
async fn kubelets_may_be_of_an_authority_of_their_own() {
    let (dir, strange) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut own, theirs) = (pki(dir.path()), pki(strange.path()));
    own.kubelet_authorities = Some(theirs.ca.certificate.clone());
    let now = orlop_base::Clock::System.now();
    own.kubelet_client = theirs
        .issue_client("someone", &[], Duration::from_secs(3600), now)
        .unwrap();
    let nodes = Nodes::new(&own).unwrap();
    let right = kubelet(&theirs, &serving(&theirs, "127.0.0.1")).await;
    assert_eq!(ask(&nodes, &right, Trust::Kubelet).await, Ok("someone".to_string()));
    // Others are not taken any more.
    let issued = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_string()]).unwrap();
    let own_made = Credential {
        certificate: issued.cert.pem(),
        key: issued.signing_key.serialize_pem(),
    };
    let place = kubelet(&theirs, &own_made).await;
    assert!(ask(&nodes, &place, Trust::Kubelet).await.is_err());
    assert_eq!(ask(&nodes, &place, Trust::Anyone).await, Ok("someone".to_string()));
}

#[tokio::test]
async fn who_we_are_is_for_kubelets_alone() {
    let dir = tempfile::tempdir().unwrap();
    let own = pki(dir.path());
    let nodes = Nodes::new(&own).unwrap();
    let place = kubelet(&own, &serving(&own, "127.0.0.1")).await;
    assert_eq!(ask(&nodes, &place, Trust::Proxied).await, Ok("nobody".to_string()));
    // However this machine is called, proxies don't lead to it.
    for host in ["127.0.0.1", "::ffff:127.0.0.1", "localhost", "127.1", "0"] {
        let place = ConnectTarget {
            hosts: vec![host.to_string()],
            only_proxyable: true,
            ..place.clone()
        };
        for trust in [Trust::Proxied, Trust::Kubelet, Trust::Anyone] {
            let refused = ask(&nodes, &place, trust).await;
            assert_eq!(refused, Err("address not allowed".to_string()), "{host} {trust:?}");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_said_in_known_words() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = Nodes::new(&pki(dir.path())).unwrap();
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let at = |host: &str| {
        let kubelet = Kubelet {
            node: "n".into(),
            hosts: vec![host.into()],
            port: free,
            speaks_websocket: false,
        };
        ConnectTarget::kubelet(&kubelet, "/".into())
    };
    let refused = ask(&nodes, &at("127.0.0.1"), Trust::Kubelet).await;
    assert_eq!(
        refused,
        Err(format!("dial tcp 127.0.0.1:{free}: connect: connection refused"))
    );
    let unknown = ask(&nodes, &at("no-such-host.invalid"), Trust::Kubelet).await;
    assert_eq!(
        unknown,
        Err("dial tcp: lookup no-such-host.invalid: no such host".to_string())
    );
}

/// A client's connection to us, with whose upgrade the backend's is joined.
#[tokio::test]
async fn upgraded_connections_pass_through() {
    let dir = tempfile::tempdir().unwrap();
    let own = pki(dir.path());
    let nodes = Arc::new(Nodes::new(&own).unwrap());
    let place = kubelet(&own, &serving(&own, "127.0.0.1")).await;
    let (near, far) = tokio::io::duplex(4096);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        let (nodes, place) = (nodes.clone(), place.clone());
        async move {
            let io = nodes.dial(&place, Trust::Kubelet).await.unwrap();
            let client = hyper::upgrade::on(&mut request);
            let request = http::Request::get("/")
                .header("connection", "upgrade")
                .header("upgrade", "echo");
            let request = request.body(AnyBody::default()).unwrap();
            let (response, run) = forward::upgraded(io, request, client).await.unwrap();
            tokio::spawn(run.unwrap());
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service);
    tokio::spawn(connection.with_upgrades());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = http::Request::get("/")
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    let response = sender
        .send_request(request.body(Full::<Bytes>::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    let upgraded = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let (mut source, mut sink) = tokio::io::split(upgraded);
    let sent: Vec<u8> = (0..1_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let (writing, mut received) = (sent.clone(), Vec::new());
    let (_, read) = tokio::join!(
        async move {
            sink.write_all(&writing).await.unwrap();
            sink.shutdown().await.unwrap();
        },
        source.read_to_end(&mut received)
    );
    read.unwrap();
    assert!(received == sent, "{} bytes", received.len());
}
