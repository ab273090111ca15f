//! A plain HTTPS client: one connection, any bytes. For what kubectl and the client libraries never send.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::wait::patience;

/// Whom to talk to, and as whom.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `https://127.0.0.1:PORT`
    pub url: String,
    /// PEM.
    pub ca: Vec<u8>,
    /// Client certificate and key, PEM.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub token: Option<String>,
}

impl Identity {
    /// What the current context of a kubeconfig says.
    pub fn of_kubeconfig(path: &Path) -> Identity {
        let text = std::fs::read_to_string(path).expect("a kubeconfig");
        let file: Value = serde_saphyr::from_str(&text).expect("kubeconfigs are YAML");
        let named = |list: &str, name: &Value| {
            let entries = file[list].as_array().expect("a list").iter();
            entries
                .clone()
                .find(|e| e["name"] == *name)
                .unwrap_or_else(|| panic!("no {name} in {list}"))
                .clone()
        };
        let bytes = |value: &Value| value.as_str().map(|t| STANDARD.decode(t).expect("base64"));
        let context = &named("contexts", &file["current-context"])["context"];
        let cluster = &named("clusters", &context["cluster"])["cluster"];
        let user = &named("users", &context["user"])["user"];
        Identity {
            url: cluster["server"].as_str().expect("a server").to_string(),
            ca: bytes(&cluster["certificate-authority-data"]).expect("the CA"),
            certificate: bytes(&user["client-certificate-data"]).zip(bytes(&user["client-key-data"])),
            token: user["token"].as_str().map(str::to_string),
        }
    }

    /// Nobody in particular.
    pub fn anonymous(mut self) -> Identity {
        self.certificate = None;
        self.token = None;
        self
    }

    /// Only a token.
    pub fn with_token(self, token: &str) -> Identity {
        Identity {
            token: Some(token.to_string()),
            ..self.anonymous()
        }
    }

    /// A TLS connection on which the caller speaks HTTP/1.1, or nonsense, by hand.
    pub async fn raw(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        self.connect(b"http/1.1").await
    }

    fn authority(&self) -> &str {
        self.url
            .strip_prefix("https://")
            .expect("servers speak TLS")
            .trim_end_matches('/')
    }

    async fn connect(&self, protocol: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
        let authority = self.authority();
        let tcp = TcpStream::connect(authority).await?;
        tcp.set_nodelay(true)?;
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host)
            .to_string();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.tls(protocol)?));
        Ok(connector.connect(ServerName::try_from(host)?, tcp).await?)
    }

    fn tls(&self, protocol: &[u8]) -> anyhow::Result<rustls::ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&self.ca)?)?;
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(
                CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?,
                PrivateKeyDer::from_pem_slice(key)?,
            )?,
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

/// One HTTP/2 connection. Clones share it; requests on it run side by side.
#[derive(Clone)]
pub struct Http {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
    token: Option<String>,
}

impl Http {
    pub async fn connect(identity: &Identity) -> anyhow::Result<Http> {
        let tls = identity.connect(b"h2").await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        // It ends when the last sender is gone or the server hangs up; requests see the error.
        tokio::spawn(connection);
        Ok(Http {
            sender,
            authority: identity.authority().to_string(),
            token: identity.token.clone(),
        })
    }

    /// Sends a request; the answer's head is there, its body still to come.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// Sends a request and reads the whole answer, which must come while a test is patient.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> anyhow::Result<HttpResponse> {
        let asking = async {
            let (head, body) = self
                .send(method.clone(), path, headers, body.into())
                .await?
                .into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(HttpResponse {
                status: head.status,
                headers: head.headers,
                body,
            })
        };
        let answer = tokio::time::timeout(patience(), asking).await;
        answer.unwrap_or_else(|_| panic!("no answer to {method} {path}"))
    }

    pub async fn get(&self, path: &str) -> HttpResponse {
        self.ask(Method::GET, path, &[], "").await.expect("the server answers")
    }

    pub async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.json(Method::POST, path, body).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> HttpResponse {
        self.json(Method::PUT, path, body).await
    }

    pub async fn delete(&self, path: &str) -> HttpResponse {
        self.ask(Method::DELETE, path, &[], "")
            .await
            .expect("the server answers")
    }

    pub async fn json(&self, method: Method, path: &str, body: &Value) -> HttpResponse {
        let headers = [("content-type", "application/json")];
        self.ask(method, path, &headers, body.to_string())
            .await
            .expect("the server answers")
    }

    /// Opens a watch or another answer that goes on.
    pub async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Stream {
        let (head, body) = self
            .send(Method::GET, path, headers, Bytes::new())
            .await
            .expect("the server answers")
            .into_parts();
        Stream {
            status: head.status,
            headers: head.headers,
            body,
            buffer: BytesMut::new(),
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl HttpResponse {
    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("no JSON ({e}): {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body of an answer with this code, or the end of the test.
    #[track_caller]
    pub fn expect(&self, code: u16) -> Value {
        assert_eq!(self.status.as_u16(), code, "{}", self.text());
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// A refusal: its code, and the Status with this reason that must come with it.
    #[track_caller]
    pub fn refused(&self, code: u16, reason: &str) -> Value {
        let status = self.expect(code);
        assert_eq!(
            (&status["kind"], &status["status"], &status["code"], &status["reason"]),
            (&"Status".into(), &"Failure".into(), &code.into(), &reason.into()),
            "{status:#}"
        );
        status
    }

    /// All values of the Warning header.
    pub fn warnings(&self) -> Vec<String> {
        let values = self.headers.get_all("warning").iter();
        values
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            .collect()
    }
}

/// An answer that goes on.
pub struct Stream {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
}

impl Stream {
    /// The next JSON line; nothing once the server has ended the answer.
    pub async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Some(serde_json::from_slice(&line).expect("a JSON line"));
            }
            self.more().await?;
        }
    }

    /// The next frame of a protobuf watch: its length in four bytes, then the frame.
    pub async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some((length, rest)) = self.buffer.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if rest.len() >= length {
                    let mut frame = self.buffer.split_to(4 + length);
                    return Some(frame.split_off(4).freeze());
                }
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Option<()> {
        let next = tokio::time::timeout(crate::PATIENCE, self.body.frame())
            .await
            .expect("the stream says something");
        let frame = next?.expect("the stream goes on");
        if let Ok(data) = frame.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        Some(())
    }
}
