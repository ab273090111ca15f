//! A client and a server over real sockets.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::error::chain;

struct Authority {
    pem: String,
    der: rustls_pki_types::CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    Authority {
        pem: certificate.pem(),
        der: certificate.der().clone(),
        issuer: Issuer::new(params, key),
    }
}

impl Authority {
    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

#[derive(Clone, Default)]
struct Server {
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
    /// The token that is good; every one if there is none.
    token: Arc<Mutex<Option<String>>>,
    /// What is sent here is the body of the next response, as it comes.
    stream: Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>,
}

impl Server {
    async fn respond(&self, request: Request<Incoming>, user: &str) -> Response<ResponseBody> {
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .map_or("-", |v| v.to_str().unwrap())
                .to_string()
        };
        let authorization = header("authorization");
        let line = format!("{} {} {user} {authorization}", request.method(), request.uri());
        let line = match header("impersonate-user").as_str() {
            "-" => line,
            whom => format!("{line} as {whom}"),
        };
        assert_eq!(header("user-agent"), "test/1");
        assert_eq!(request.headers().get_all("user-agent").iter().count(), 1);
        self.seen.lock().push(line);
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let good = self.token.lock().clone();
        let code = match good.is_none_or(|good| authorization == format!("Bearer {good}")) {
            true => 200,
            false => 401,
        };
        let stream = self.stream.lock().take();
        let body = match stream {
            None => Full::new(body).map_err(|never| match never {}).boxed_unsync(),
            Some(receiver) => {
                let frames = futures::stream::unfold(receiver, async |mut receiver| {
                    let frame = Ok(Frame::data(receiver.recv().await?));
                    Some((frame, receiver))
                });
                StreamBody::new(Box::pin(frames)).boxed_unsync()
            }
        };
        Response::builder().status(code).body(body).unwrap()
    }

    async fn serve<S>(self, stream: S, user: String)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(move |request| {
            let (server, user) = (self.clone(), user.clone());
            async move { Ok::<_, Infallible>(server.respond(request, &user).await) }
        });
        let _ = http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    /// Gives the address. `tls` is who vouches for clients, and the certificate to show.
    async fn start(&self, tls: Option<(&Authority, (rcgen::Certificate, KeyPair))>) -> String {
        let acceptor = tls.map(|(clients, (certificate, key))| {
            let provider = Arc::new(aws_lc_rs::default_provider());
            let mut roots = RootCertStore::empty();
            roots.add(clients.der.clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()
                .unwrap();
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_client_cert_verifier(verifier)
                .with_single_cert(
                    vec![certificate.der().clone()],
                    PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
                )
                .unwrap();
            TlsAcceptor::from(Arc::new(config))
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                server.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(server.clone().connection(stream, acceptor.clone()));
            }
        });
        address.to_string()
    }

    async fn connection(self, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
        let Some(acceptor) = acceptor else {
            return self.serve(stream, "-".to_string()).await;
        };
        let Ok(stream) = acceptor.accept(stream).await else {
            return;
        };
        let user = match stream.get_ref().1.peer_certificates() {
            None => "nobody".to_string(),
            Some(chain) => match chain[0].windows(3).any(|part| part == b"amy") {
                true => "amy".to_string(),
                false => "bob".to_string(),
            },
        };
        self.serve(stream, user).await;
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }
}

struct Case {
    folder: tempfile::TempDir,
    server: Server,
}

impl Case {
    fn new() -> Case {
        Case {
            folder: tempfile::tempdir().unwrap(),
            server: Server::default(),
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// A client by a kubeconfig with these fields of cluster and user.
    async fn client(&self, cluster: &str, user: &str) -> Result<Client, ConnectError> {
        self.write(
            "config",
            &format!(
                "{{current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}],
                   clusters: [{{name: k, cluster: {{{cluster}}}}}], users: [{{name: u, user: {{{user}}}}}]}}"
            ),
        );
        from_kubeconfig(Some(&self.folder.path().join("config")), None, "test/1").await
    }
}

async fn get(client: &Client) -> Result<u16, String> {
    let request = Request::get("/api?a=b").body(Full::default()).unwrap();
    match client.send(request).await {
        Ok(response) => {
            let code = response.status().as_u16();
            response.into_body().collect().await.map_err(|e| e.to_string())?;
            Ok(code)
        }
        Err(error) => Err(chain(&error)),
    }
}

#[tokio::test]
async fn plain_http_connections_are_kept_alive() {
    let case = Case::new();
    let address = case.server.start(None).await;
    let client = case
        .client(&format!("server: '{address}'"), "token: t, as: jo")
        .await
        .unwrap();
    for _ in 0..5 {
        assert_eq!(get(&client).await, Ok(200));
    }
    assert_eq!(case.server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(case.server.seen()[0], "GET /api?a=b - Bearer t as jo");
    // Requests that are under way at the same time have a connection each.
    let request = || {
        Request::post("/x")
            .body(Full::new(Bytes::from_static(b"body")))
            .unwrap()
    };
    let (one, two) = tokio::join!(client.send(request()), client.send(request()));
    assert_eq!(case.server.connections.load(Ordering::SeqCst), 2);
    for response in [one, two] {
        let body = response.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "body");
    }
}

#[tokio::test]
async fn servers_may_have_a_path_and_callers_a_header() {
    let case = Case::new();
    let address = case.server.start(None).await;
    let client = case
        .client(&format!("server: 'http://{address}/k/x/'"), "token: t")
        .await
        .unwrap();
    let request = Request::get("/api")
        .header(AUTHORIZATION, "Bearer own")
        .header(USER_AGENT, "test/1")
        .body(Full::default())
        .unwrap();
    client.send(request).await.unwrap();
    assert_eq!(case.server.seen(), ["GET /k/x/api - Bearer own"]);
    let file = case.folder.path().join("config");
    let client = without_credentials(Some(&file), None, "test/1").await.unwrap();
    assert_eq!(get(&client).await, Ok(200));
    assert_eq!(case.server.seen(), ["GET /k/x/api?a=b - -"]);
}

#[tokio::test]
async fn bodies_come_as_they_are_sent() {
    let case = Case::new();
    let address = case.server.start(None).await;
    let client = case.client(&format!("server: '{address}'"), "").await.unwrap();
    let (sender, receiver) = mpsc::channel(1);
    *case.server.stream.lock() = Some(receiver);
    let response = client.send(Request::get("/watch").body(Full::default()).unwrap()).await;
    let mut body = response.unwrap().into_body();
    for part in ["one\n", "two\n"] {
        // The first is read while the second has not been sent: nothing waits for the end.
        sender.send(Bytes::from(part)).await.unwrap();
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, part);
    }
    drop(sender);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn client_certificates_and_server_names() {
    let case = Case::new();
    let (authority, clients) = (authority(), authority());
    let address = case
        .server
        .start(Some((&clients, authority.issue("api.example"))))
        .await;
    case.write("ca.crt", &authority.pem);
    let (certificate, key) = clients.issue("amy");
    let user = format!(
        "client-certificate-data: {}, client-key-data: {}",
        BASE64_STANDARD.encode(certificate.pem()),
        BASE64_STANDARD.encode(key.serialize_pem())
    );
    let named = format!("server: 'https://{address}', certificate-authority: ca.crt, tls-server-name: api.example");
    let client = case.client(&named, &user).await.unwrap();
    assert_eq!(get(&client).await, Ok(200));
    assert_eq!(case.server.seen(), ["GET /api?a=b amy -"]);

    // The certificate is for another name than that of the address.
    let client = case
        .client(&named.replace(", tls-server-name: api.example", ""), &user)
        .await
        .unwrap();
    let error = get(&client).await.unwrap_err();
    let start = format!("failed to verify the certificate of https://{address}/: ");
    assert!(error.starts_with(&start), "{error}");
    assert!(
        error.ends_with("; check the server's address or set tls-server-name"),
        "{error}"
    );
    let insecure = format!("server: 'https://{address}', insecure-skip-tls-verify: true");
    assert_eq!(get(&case.client(&insecure, &user).await.unwrap()).await, Ok(200));

    // Somebody else's authority.
    case.write("ca.crt", &clients.pem);
    let client = case.client(&named, &user).await.unwrap();
    let expected = "certificate signed by unknown authority; check clusters[k].cluster.certificate-authority";
    assert_eq!(get(&client).await, Err(format!("{start}{expected}")));
}

#[tokio::test]
async fn what_is_no_certificate_is_named() {
    let case = Case::new();
    let clients = authority();
    let (certificate, key) = clients.issue("amy");
    let other = clients.issue("bob").1;
    case.write("ca.crt", "no PEM");
    case.write("good.crt", &certificate.pem());
    case.write("good.key", &key.serialize_pem());
    case.write("other.key", &other.serialize_pem());
    let server = "server: 'https://127.0.0.1:1'";
    let identity = |key: &str| format!("client-certificate: good.crt, client-key: {key}");
    let path = case.folder.path().join("config");
    for (cluster, user, expected) in [
        (
            format!("{server}, certificate-authority: ca.crt"),
            String::new(),
            "clusters[k].cluster.certificate-authority: no PEM certificate (-----BEGIN CERTIFICATE-----) found",
        ),
        (
            format!("{server}, insecure-skip-tls-verify: true"),
            identity("good.crt"),
            "users[u].user.client-key: no PEM private key (PKCS #8, PKCS #1 or SEC1) found",
        ),
        (
            format!("{server}, insecure-skip-tls-verify: true"),
            identity("other.key"),
            "users[u].user.client-certificate and users[u].user.client-key can't be used together: ",
        ),
    ] {
        let error = chain(&case.client(&cluster, &user).await.err().unwrap());
        let expected = format!("failed to load kubeconfig {}: {expected}", path.display());
        assert!(error.starts_with(&expected), "{error}");
    }
    // Nothing of it is looked at without TLS.
    let plain = case
        .client("server: 'http://127.0.0.1:1', certificate-authority: absent", "")
        .await;
    assert!(plain.is_ok());
}

#[tokio::test]
async fn rotated_files_are_used_without_a_restart() {
    let case = Case::new();
    let (old, new, clients) = (authority(), authority(), authority());
    let address = case.server.start(Some((&clients, new.issue("127.0.0.1")))).await;
    let rotate = |name: &str| {
        let (certificate, key) = clients.issue(name);
        case.write("u.crt", &certificate.pem());
        case.write("u.key", &key.serialize_pem());
    };
    rotate("bob");
    case.write("ca.crt", &old.pem);
    let cluster = format!("server: 'https://{address}', certificate-authority: ca.crt");
    let client = case
        .client(&cluster, "client-certificate: u.crt, client-key: u.key")
        .await
        .unwrap();
    assert!(get(&client).await.unwrap_err().contains("unknown authority"));
    case.write("ca.crt", &new.pem);
    let minute_later =
        || client.shared.connections.lock().checked = Instant::now().checked_sub(TLS_FILES_PERIOD).unwrap();
    minute_later();
    assert_eq!(get(&client).await, Ok(200));
    rotate("amy");
    assert_eq!(get(&client).await, Ok(200));
    minute_later();
    assert_eq!(get(&client).await, Ok(200));
    // Half of a pair: the previous one goes on being used.
    case.write("u.key", "");
    minute_later();
    assert_eq!(get(&client).await, Ok(200));
    let users: Vec<String> = case.server.seen();
    let users: Vec<&str> = users.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(users, ["bob", "bob", "amy", "amy"]);
}

#[tokio::test]
async fn a_refused_request_is_sent_again_with_a_new_token() {
    let case = Case::new();
    let address = case.server.start(None).await;
    case.write("token", "old");
    let client = case
        .client(&format!("server: '{address}'"), "tokenFile: token")
        .await
        .unwrap();
    *case.server.token.lock() = Some("new".to_string());
    // The same token once more would be of no use.
    assert_eq!(get(&client).await, Ok(401));
    assert_eq!(case.server.seen().len(), 1);
    case.write("token", "new\n");
    assert_eq!(get(&client).await, Ok(200));
    assert_eq!(
        case.server.seen(),
        ["GET /api?a=b - Bearer old", "GET /api?a=b - Bearer new"]
    );
    assert_eq!(get(&client).await, Ok(200));
    assert_eq!(case.server.seen(), ["GET /api?a=b - Bearer new"]);
}

#[tokio::test]
async fn certificates_of_plugins_are_shown() {
    let case = Case::new();
    let (authority, clients) = (authority(), authority());
    let address = case.server.start(Some((&clients, authority.issue("127.0.0.1")))).await;
    case.write("ca.crt", &authority.pem);
    let answer = |name: &str| {
        let (certificate, key) = clients.issue(name);
        let status = serde_json::json!({
            "clientCertificateData": certificate.pem(), "clientKeyData": key.serialize_pem(),
            "expirationTimestamp": "2020-01-01T00:00:00Z",
        });
        let version = "client.authentication.k8s.io/v1";
        case.write(
            "answer",
            &serde_json::json!({"apiVersion": version, "status": status}).to_string(),
        );
    };
    answer("bob");
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: cat, args: ['{}']}}",
        case.folder.path().join("answer").display()
    );
    let cluster = format!("server: 'https://{address}', certificate-authority: ca.crt");
    let client = case.client(&cluster, &exec).await.unwrap();
    assert_eq!(get(&client).await, Ok(200));
    // It has long expired: the plugin is asked again, and connections with the old certificate are left.
    answer("amy");
    assert_eq!(get(&client).await, Ok(200));
    assert_eq!(case.server.seen(), ["GET /api?a=b bob -", "GET /api?a=b amy -"]);
    let error = case
        .client(&cluster, &exec.replace("command: cat", "command: nonexistent-plugin"))
        .await
        .err()
        .unwrap();
    let error = chain(&error);
    assert!(
        error.contains(
            "config: credential plugin users[u].user.exec: failed to start \"nonexistent-plugin\": No such file"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_is_away_is_named() {
    let case = Case::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = case.client(&format!("server: '{address}'"), "").await.unwrap();
    let error = get(&client).await.unwrap_err();
    assert!(error.starts_with(&format!("http://{address}/: ")), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}

#[tokio::test]
async fn errors_name_the_file_and_the_address() {
    let error = from_kubeconfig(Some(Path::new("/nowhere/kubeconfig")), None, "t").await;
    assert_eq!(
        chain(&error.err().unwrap()),
        "failed to load kubeconfig /nowhere/kubeconfig: failed to read the file: No such file or directory (os error 2)"
    );
    for address in ["http://a b", "ftp://a", "https://"] {
        let error = from_kubeconfig(None, Some(address), "t").await.err().unwrap();
        let expected = format!("invalid API server address {address:?}: expected [http://|https://]HOST[:PORT]");
        assert_eq!(error.to_string(), expected);
    }
    let error = from_kubeconfig(None, Some("localhost:1"), "a\nb").await.err().unwrap();
    assert_eq!(
        error.to_string(),
        "invalid user agent \"a\\nb\": it has characters that a header can't have"
    );
    assert!(from_kubeconfig(None, Some("localhost:1"), "t").await.is_ok());
}
