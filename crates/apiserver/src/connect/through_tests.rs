//! Requests of a client through a whole API server to a kubelet that is made here.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orlop_base::Clock;
use orlop_streaming::{Exit, IDLE_DEFAULT, Pipe, Session, Streams, serve_port_forward, serve_session};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::internal::Internal;
use crate::pki::{Pki, San, Subject};
use crate::{Config, Running, kinds};

const STREAMS: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: false,
};

/// Echoes its input, then says what it was asked, and ends with 7.
fn echo(asked: String) -> Session {
    let (near, far) = duplex(4096);
    let (stdout, stdin) = split(near);
    let exit = tokio::spawn(async move {
        let (mut source, mut sink) = split(far);
        tokio::io::copy(&mut source, &mut sink).await.unwrap();
        sink.write_all(asked.as_bytes()).await.unwrap();
        sink.shutdown().await.unwrap();
        Exit::Code(7)
    });
    Session {
        stdin: Some(Box::new(stdin)),
        stdout: Some(Box::new(stdout)),
        stderr: None,
        resize: None,
        exit: Box::pin(async { exit.await.unwrap() }),
    }
}

async fn open(port: u16) -> Result<Box<dyn Pipe>, String> {
    if port != 80 {
        return Err(format!("nobody listens on {port}"));
    }
    let (near, far) = duplex(4096);
    tokio::spawn(async move {
        let (mut source, mut sink) = split(far);
        tokio::io::copy(&mut source, &mut sink).await.unwrap();
        sink.shutdown().await.unwrap();
    });
    Ok(Box::new(near))
}

async fn kubelet_answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert!(
        request.headers().get("authorization").is_none(),
        "credentials stay with the API server"
    );
    let asked = request.uri().to_string();
    let served = if asked.starts_with("/exec/") {
        serve_session(&mut request, STREAMS, IDLE_DEFAULT, || async { Ok(echo(asked)) })
    } else if asked.starts_with("/portForward/") {
        serve_port_forward(&mut request, IDLE_DEFAULT, open)
    } else if asked.starts_with("/containerLogs/default/p/waiting") {
        let text = "container \"waiting\" in pod \"p\" is waiting to start: ContainerCreating";
        return Ok(Response::builder().status(400).body(Full::from(text)).unwrap());
    } else {
        return Ok(Response::new(Full::from(asked)));
    };
    Ok(match served {
        Ok(upgrade) => {
            tokio::spawn(upgrade.run);
            upgrade.response.map(|()| Full::default())
        }
        Err(refusal) => refusal.response().map(Full::from),
    })
}

/// Starts a kubelet and returns its port.
async fn kubelet(pki: &Pki) -> u16 {
    let subject = Subject {
        common_name: "system:node:n",
        organizations: &["system:nodes"],
    };
    let hour = std::time::Duration::from_secs(3600);
    let credential = pki
        .issue_server(subject, &[San::parse("127.0.0.1")], hour, Clock::System.now())
        .unwrap();
    let certificate = CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = acceptor.accept(stream).await.unwrap();
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(
                http.serve_connection(TokioIo::new(stream), service_fn(kubelet_answer))
                    .with_upgrades(),
            );
        }
    });
    port
}

/// A cluster with two nodes behind one kubelet, one of which takes WebSocket connections, and pods on them and on none.
async fn start(directory: &tempfile::TempDir) -> Running {
    let mut config = Config::new(directory.path().join("data"));
    config.port = 0;
    let running = crate::start(config, Clock::System).await.unwrap();
    let port = kubelet(&running.pki).await;
    let internal = Internal::new(running.server.registry.clone());
    let kind = |plural: &str| kinds::of_resource("", "v1", plural).unwrap();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"}});
    internal.ensure(kind("serviceaccounts"), account).await.unwrap();
    for (name, features) in [("old", json!([])), ("new", json!(["ExtendWebSocketsToKubelet"]))] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}, "declaredFeatures": features}});
        internal.create(kind("nodes"), node).await.unwrap();
    }
    // Nodes that claim to be where the API server is.
    for (name, kind_of_address, address) in [
        ("mapped", "InternalIP", "::ffff:127.0.0.1"),
        ("local", "Hostname", "localhost"),
    ] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {
            "addresses": [{"type": kind_of_address, "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        internal.create(kind("nodes"), node).await.unwrap();
    }
    for (name, node) in [("p", "old"), ("q", "new"), ("nowhere", "")] {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "waiting", "image": "i"}]}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        internal.create(kind("pods"), pod).await.unwrap();
    }
    running
}

/// A connection of the administrator.
pub(crate) async fn connect(running: &Running) -> tokio_rustls::client::TlsStream<TcpStream> {
    let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem(&running.pki.ca.certificate)).unwrap();
    let admin = &running.pki.admin;
    let key = PrivateKeyDer::from_pem_slice(admin.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![pem(&admin.certificate)], key);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config.unwrap()));
    let stream = TcpStream::connect(("127.0.0.1", running.address.port())).await.unwrap();
    connector
        .connect(ServerName::try_from("127.0.0.1").unwrap(), stream)
        .await
        .unwrap()
}

async fn get(running: &Running, target: &str) -> (u16, String) {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(connect(running).await))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get(format!("/api/v1/{target}")).header("host", "server");
    let response = sender
        .send_request(request.body(Full::<Bytes>::default()).unwrap())
        .await
        .unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let message = serde_json::from_str::<serde_json::Value>(&text).ok();
    let message = message.and_then(|status| Some(status["message"].as_str()?.to_string()));
    (status, message.unwrap_or(text))
}

#[tokio::test]
async fn through_the_server_to_the_kubelet() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory).await;
    logs_and_proxies(&running).await;
    commands(&running).await;
    ports(&running).await;
    running.stop().await;
}

async fn logs_and_proxies(running: &Running) {
    let pods = "namespaces/default/pods";
    for (target, code, text) in [
        (
            "p/log?container=c&tailLines=5",
            200,
            "/containerLogs/default/p/c?stream=All&tailLines=5",
        ),
        (
            "p/log?container=waiting",
            400,
            "container \"waiting\" in pod \"p\" is waiting to start: ContainerCreating",
        ),
        (
            "p/log",
            400,
            "a container name must be specified for pod p, choose one of: [c waiting]",
        ),
        (
            "p/log?container=c&limitBytes=0",
            422,
            "PodLogOptions \"p\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
        ),
        ("nowhere/log?container=c", 204, ""),
        ("none/log", 404, "pods \"none\" not found"),
        (
            "nowhere/exec?container=c&command=ls&stdout=1",
            400,
            "pod nowhere does not have a host assigned",
        ),
        (
            "p/exec?container=c&command=ls&stdout=1",
            400,
            "Upgrade request required",
        ),
        ("p/proxy/", 400, "address not allowed"),
        ("a:b:c:d/proxy/", 400, "invalid pod request \"a:b:c:d\""),
    ] {
        assert_eq!(
            get(running, &format!("{pods}/{target}")).await,
            (code, text.to_string()),
            "{target}"
        );
    }
    assert_eq!(
        get(running, "nodes/old/proxy/stats").await,
        (400, "address not allowed".to_string())
    );
    for name in ["mapped", "local"] {
        for target in [
            name.to_string(),
            format!("{name}:1"),
            format!("https:{name}:{}", running.address.port()),
        ] {
            assert_eq!(
                get(running, &format!("nodes/{target}/proxy/stats")).await,
                (400, "address not allowed".to_string()),
                "{target}"
            );
        }
    }
    assert_eq!(
        get(running, "nodes/none/proxy/stats").await,
        (404, "nodes \"none\" not found".to_string())
    );
    assert_eq!(get(running, "nodes/old/proxy").await.0, 301);
}

/// Over SPDY to both nodes, and over WebSocket: passed through to one node, translated for the other.
async fn commands(running: &Running) {
    let payload: Vec<u8> = (0..300_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for pod in ["p", "q"] {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/exec?container=c&command=a+b&stdin=1&stdout=1");
        let asked = format!("/exec/default/{pod}/c?command=a+b&input=1&output=1");
        let expected = [payload.as_slice(), asked.as_bytes()].concat();

        let request = Request::get(&path).header("host", "server").body(()).unwrap();
        let mut session = orlop_streaming::session_over(connect(running).await, request, STREAMS)
            .await
            .unwrap();
        let (mut stdin, mut stdout, mut received) = (
            session.stdin.take().unwrap(),
            session.stdout.take().unwrap(),
            Vec::new(),
        );
        let writing = async {
            stdin.write_all(&payload).await.unwrap();
            stdin.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(writing, stdout.read_to_end(&mut received));
        read.unwrap();
        assert!(received == expected, "{} bytes", received.len());
        assert_eq!(session.exit.await, Exit::Code(7));

        let mut request = format!("wss://server{path}").into_client_request().unwrap();
        request
            .headers_mut()
            .insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
        let (socket, _) = tokio_tungstenite::client_async(request, connect(running).await)
            .await
            .unwrap();
        let (mut sink, mut source) = socket.split();
        let sending = async {
            for chunk in payload.chunks(20_000) {
                sink.send(Message::binary([&[0], chunk].concat())).await.unwrap();
            }
            sink.send(Message::binary(b"\xff\0".as_slice())).await.unwrap();
        };
        let receiving = async {
            let (mut output, mut status) = (Vec::new(), Vec::new());
            while let Some(Ok(Message::Binary(message))) = source.next().await {
                let channel = if message[0] == 1 { &mut output } else { &mut status };
                channel.extend_from_slice(&message[1..]);
            }
            (output, String::from_utf8(status).unwrap())
        };
        let ((), (output, status)) = tokio::join!(sending, receiving);
        assert!(output == expected, "{} bytes", output.len());
        assert!(status.contains(r#""reason":"ExitCode","message":"7""#), "{status}");
    }
}

async fn ports(running: &Running) {
    let request = Request::get("/api/v1/namespaces/default/pods/p/portforward").header("host", "server");
    let ports = orlop_streaming::port_forward_over(connect(running).await, request.body(()).unwrap())
        .await
        .unwrap();
    let mut pipe = ports.open(80).await.unwrap();
    pipe.write_all(b"hello").await.unwrap();
    pipe.shutdown().await.unwrap();
    let mut text = String::new();
    pipe.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    let error = ports
        .open(81)
        .await
        .unwrap()
        .read_to_string(&mut text)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "nobody listens on 81");
}
