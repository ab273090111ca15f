//! An HTTPS server of the test's own that webhooks lead to.

use std::future::Future;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub(crate) struct WebhookServer {
    pub(crate) port: u16,
    /// PEM of the authority of its certificate.
    pub(crate) ca: String,
}

impl WebhookServer {
    /// Serves as `localhost`, and under further names, until the test ends.
    pub(crate) async fn start<F, A>(names: &[&str], answer: F) -> WebhookServer
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
        A: Future<Output = Result<Response<Full<Bytes>>, hyper::Error>> + Send + 'static,
    {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = ["localhost"].iter().chain(names).map(|name| name.to_string()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let server = WebhookServer {
            port: listener.local_addr().unwrap().port(),
            ca: ca.pem(),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                });
            }
        });
        server
    }

    /// A `clientConfig` that leads there.
    pub(crate) fn client(&self, path: &str) -> Value {
        json!({"url": format!("https://localhost:{}/{path}", self.port), "caBundle": STANDARD.encode(&self.ca)})
    }
}
