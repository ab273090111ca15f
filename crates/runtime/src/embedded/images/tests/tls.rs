//! Registries over TLS: authorities of their own, certificates that are their own authority, none at all, and clients
//! that have to show who they are.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    }

    /// A certificate for an address, with its key, both as PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_string()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn server_config(certificate: &str, key: &str, clients: Option<&Authority>) -> Arc<rustls::ServerConfig> {
    use rustls_pki_types::pem::PemObject;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(authority.issuer.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = vec![rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivatePkcs8KeyDer::from_pem_slice(key.as_bytes()).unwrap();
    Arc::new(builder.with_single_cert(chain, PrivateKeyDer::Pkcs8(key)).unwrap())
}

/// Pulls with a `tls` section.
async fn pull(registry: &TestRegistry, tls: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let yaml = format!("configs: {{ \"{}\": {{ tls: {tls} }} }}", registry.address);
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
    let pulled = store.pull(&spec(&registry.name("a:v1")), None, silent()).await;
    pulled.map_err(|e| e.chain())
}

#[tokio::test]
async fn certificates_of_registries() {
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let authority = Authority::new("one");
    let other = Authority::new("other");
    let (certificate, key) = authority.issue("127.0.0.1");
    let image = TestImage::small("one");
    let registry = TestRegistry::start_with(Some(server_config(&certificate, &key, None))).await;
    registry.push("a", "v1", &image);
    let ca = file("ca.pem", &authority.issuer.pem());
    let wrong = file("wrong.pem", &other.issuer.pem());

    pull(&registry, &format!("{{ ca_file: {ca} }}")).await.unwrap();
    pull(&registry, "{ insecure_skip_verify: true }").await.unwrap();
    let error = pull(&registry, &format!("{{ ca_file: {wrong} }}")).await.unwrap_err();
    assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{error}");
    // The same as an authority and as a server.
    let own = TestRegistry::start_with(Some(server_config(
        &authority.issuer.pem(),
        &authority.issuer.key().serialize_pem(),
        None,
    )))
    .await;
    own.push("a", "v1", &image);
    pull(&own, &format!("{{ ca_file: {ca} }}")).await.unwrap();
    // For another host.
    let (elsewhere, elsewhere_key) = authority.issue("10.0.0.1");
    let named = TestRegistry::start_with(Some(server_config(&elsewhere, &elsewhere_key, None))).await;
    let error = pull(&named, &format!("{{ ca_file: {ca} }}")).await.unwrap_err();
    assert!(error.contains("certificate not valid for name"), "{error}");
    // One that wants to know who asks.
    let strict = TestRegistry::start_with(Some(server_config(&certificate, &key, Some(&other)))).await;
    strict.push("a", "v1", &image);
    assert!(pull(&strict, &format!("{{ ca_file: {ca} }}")).await.is_err());
    let (client, client_key) = other.issue("client");
    let (client, client_key) = (file("client.pem", &client), file("client.key", &client_key));
    pull(
        &strict,
        &format!("{{ ca_file: {ca}, cert_file: {client}, key_file: {client_key} }}"),
    )
    .await
    .unwrap();
}

/// A proxy for tunnels, whose names all lead to one address.
async fn start_proxy(to: std::net::SocketAddr) -> (std::net::SocketAddr, tokio::task::JoinHandle<String>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first_line = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        String::from_utf8(head).unwrap()
    });
    (address, first_line)
}

#[tokio::test]
async fn registries_behind_a_proxy() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    let ca = files.path().join("ca.pem");
    std::fs::write(&ca, authority.issuer.pem()).unwrap();
    let (certificate, key) = authority.issue("registry.test");
    let registry = TestRegistry::start_with(Some(server_config(&certificate, &key, None))).await;
    let image = TestImage::new(&[images::files(&[("a", b"1")])]);
    registry.push("a", "v1", &image);
    let (proxy, head) = start_proxy(registry.address).await;
    let yaml = format!(
        "configs: {{ 'registry.test': {{ tls: {{ ca_file: {} }} }} }}",
        ca.display()
    );
    let registries = Registries::parse(&yaml, Path::new("registries.yaml")).unwrap();
    let proxies = Proxies::all(&format!("http://user:secret@{proxy}"));
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        registries,
        proxies,
        ..options()
    };
    let store = ImageStore::open(dir.path(), options).await.unwrap();
    store.pull(&spec("registry.test/a:v1"), None, silent()).await.unwrap();
    let head = head.await.unwrap();
    assert!(head.starts_with("CONNECT registry.test:443 HTTP/1.1\r\n"), "{head}");
    assert!(
        head.to_lowercase()
            .contains("proxy-authorization: basic dxnlcjpzzwnyzxq="),
        "{head}"
    );
}
