//! A bare HTTPS client for load: HTTP/2 or HTTP/1.1 over TLS with the credentials of a kubeconfig, and nothing that would
//! get in the way of measuring the server.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where and as whom to connect.
#[derive(Clone)]
pub(crate) struct Target {
    host: String,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
    /// The same without a certificate.
    plain_tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

impl Target {
    /// The current context of a kubeconfig.
    pub(crate) fn from_kubeconfig(path: &Path) -> anyhow::Result<Target> {
        let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        let config: Value =
            serde_saphyr::from_str(&text).with_context(|| format!("{} is not a valid kubeconfig", path.display()))?;
        let named = |list: &str, name: &Value, what: &str| -> Value {
            let entries = config[list].as_array().into_iter().flatten();
            entries
                .filter(|e| e["name"] == *name)
                .map(|e| e[what].clone())
                .next()
                .unwrap_or(Value::Null)
        };
        let context = named("contexts", &config["current-context"], "context");
        let cluster = named("clusters", &context["cluster"], "cluster");
        let user = named("users", &context["user"], "user");
        let url: http::Uri = cluster["server"]
            .as_str()
            .unwrap_or("")
            .parse()
            .context("cluster.server is not a valid URL")?;
        let Some(host) = url.host() else {
            bail!("the kubeconfig names no server")
        };
        let dir = path.parent().unwrap_or(Path::new(""));
        Ok(Target {
            host: host.trim_matches(['[', ']']).to_string(),
            port: url.port_u16().unwrap_or(443),
            tls: Arc::new(tls(dir, &cluster, &user)?),
            plain_tls: Arc::new(tls(dir, &cluster, &Value::Null)?),
            token: user["token"].as_str().map(str::to_string),
        })
    }

    /// The same server for the bearer of a token; for nobody in particular without one.
    pub(crate) fn bearer(&self, token: Option<String>) -> Target {
        Target {
            tls: self.plain_tls.clone(),
            token,
            ..self.clone()
        }
    }

    /// A TLS connection on which the caller speaks HTTP/1.1 by hand.
    pub(crate) async fn raw(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        self.stream(self.tls.clone()).await
    }

    /// The head of an HTTP/1.1 request, but for the empty line at its end.
    pub(crate) fn head(&self, method: &str, path: &str, headers: &str) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {}:{}\r\nauthorization: Bearer {token}\r\n{headers}",
            self.host, self.port
        )
    }

    async fn stream(&self, tls: Arc<rustls::ClientConfig>) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .context("failed to connect to the server")?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.clone())?;
        TlsConnector::from(tls)
            .connect(name, stream)
            .await
            .context("failed to set up TLS")
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = self.stream(self.tls.clone()).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection {
            sender,
            host: format!("{}:{}", self.host, self.port),
            token: self.token.clone(),
        })
    }
}

impl Target {
    /// A connection that carries many requests at once.
    pub(crate) async fn connect_http2(&self) -> anyhow::Result<Http2> {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let stream = self.stream(Arc::new(tls)).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            // A watch must not wait for the window of a busy connection.
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        let authorization = self
            .token
            .as_ref()
            .map(|t| HeaderValue::try_from(format!("Bearer {t}")));
        Ok(Http2 {
            sender,
            authority: format!("{}:{}", self.host, self.port).parse()?,
            authorization: authorization.transpose()?,
        })
    }
}

/// Files named in a kubeconfig are looked for beside it, in `dir`.
fn tls(dir: &Path, cluster: &Value, user: &Value) -> anyhow::Result<rustls::ClientConfig> {
    let data = |value: &Value, name: &str| -> anyhow::Result<Vec<u8>> {
        if let Some(encoded) = value[format!("{name}-data")].as_str() {
            return Ok(BASE64_STANDARD.decode(encoded)?);
        }
        match value[name].as_str() {
            Some(path) => std::fs::read(dir.join(path)).with_context(|| format!("failed to read {path}")),
            None => Ok(vec![]),
        }
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&data(cluster, "certificate-authority")?) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&data(user, "client-certificate")?).collect::<Result<_, _>>()?;
    if chain.is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let key = PrivateKeyDer::from_pem_slice(&data(user, "client-key")?)?;
    Ok(builder.with_client_auth_cert(chain, key)?)
}

/// One connection for many requests at once; clones share it.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: http::uri::Authority,
    authorization: Option<HeaderValue>,
}

impl Http2 {
    /// Sends a request; `PATCH` bodies are merge patches, all others plain JSON.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Incoming)> {
        let uri = http::Uri::builder()
            .scheme("https")
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()?;
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert("user-agent", HeaderValue::from_static("orlop-bench"));
        headers.insert("content-type", HeaderValue::from_static(content_type));
        headers.insert("accept", HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.authorization {
            headers.insert("authorization", authorization.clone());
        }
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// Sends and reads the whole answer.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        let (code, body) = self.send(method, path, body).await?;
        Ok((code, body.collect().await?.to_bytes()))
    }
}

/// One connection, one request at a time: what one client does.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    token: Option<String>,
}

impl Connection {
    pub(crate) async fn send(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Incoming)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("user-agent", "orlop-bench")
            .header("content-type", "application/json")
            .header("accept", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request.body(Full::new(body))?).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// Sends and reads the whole answer.
    pub(crate) async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(u16, Bytes)> {
        let (code, body) = self.send(method, path, body).await?;
        Ok((code, body.collect().await?.to_bytes()))
    }

    /// Like `call`, but anything other than success is an error that shows the answer.
    pub(crate) async fn expect(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let (code, bytes) = self.call(method.clone(), path, body).await?;
        if !(200..300).contains(&code) {
            bail!("{method} {path}: {code}: {}", String::from_utf8_lossy(&bytes));
        }
        Ok(bytes)
    }
}
