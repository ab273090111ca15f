use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use super::*;
use crate::authn::CertIdentity;

fn now() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn later(days: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + days * 24 * 3600).unwrap()
}

fn pki(dir: &Path, sans: &[&str], now: Timestamp) -> Result<Pki, PkiError> {
    let sans: Vec<String> = sans.iter().map(|s| s.to_string()).collect();
    Pki::load_or_create(dir, &sans, now)
}

fn identity(pki: &Pki, pem: &str) -> CertIdentity {
    CertIdentity::new(&pki.client_authority().unwrap(), &[der(pem)], now())
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn client_certificates_keep_all_groups() {
    let dir = tempfile::tempdir().unwrap();
    let pki = pki(dir.path(), &[], now()).unwrap();
    let groups = ["system:nodes", "a,b+c=\"d\"", "größe", "system:nodes:extra"];
    let credential = pki
        .issue_client("system:node:n1", &groups, LEAF_VALIDITY, now())
        .unwrap();
    let identity = identity(&pki, &credential.certificate);

    let user = identity.user(now()).unwrap().unwrap();
    assert_eq!(user.name, "system:node:n1");
    assert_eq!(user.groups[..4], groups);
    assert_eq!(user.groups[4..], ["system:authenticated"]);
    assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("X509SHA256="));

    assert!(identity.user(later(364)).is_ok());
    assert!(identity.user(later(366)).is_err());
    assert!(identity.user(later(-1)).is_err());
}

#[test]
fn server_certificates_identify_no_client() {
    let dir = tempfile::tempdir().unwrap();
    let pki = pki(dir.path(), &[], now()).unwrap();
    assert!(identity(&pki, &pki.apiserver.certificate).user(now()).is_err());
    let nameless = pki.issue_client("", &["g"], LEAF_VALIDITY, now()).unwrap();
    assert_eq!(identity(&pki, &nameless.certificate).user(now()).unwrap(), None);
}

#[test]
fn files_are_kept_private_and_renewed_when_needed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("pki");
    let sans = ["10.96.0.1", "192.0.2.7", "Host.example"];
    let first = pki(&at, &sans, now()).unwrap();
    for (name, mode) in [
        (".", 0o40700),
        ("ca.key", 0o100600),
        ("apiserver.crt", 0o100600),
        ("sa.pub", 0o100600),
    ] {
        assert_eq!(
            std::fs::metadata(at.join(name)).unwrap().permissions().mode(),
            mode,
            "{name}"
        );
    }
    let facts = Facts::of(&first.apiserver.certificate).unwrap();
    assert_eq!(facts.sans.len(), SERVER_NAMES.len() + 3);
    assert!(facts.sans.contains(&San::Dns("host.example".into())));
    assert!(facts.sans.contains(&San::Ip("10.96.0.1".parse().unwrap())));

    // name, what it was loaded with, (same server certificate, same administrator)
    let cases = [
        ("nothing changed", pki(&at, &sans, later(1)).unwrap(), (true, true)),
        (
            "another address",
            pki(&at, &["192.0.2.8"], later(1)).unwrap(),
            (false, true),
        ),
        (
            "running out",
            pki(&at, &["192.0.2.8"], later(340)).unwrap(),
            (false, false),
        ),
    ];
    for (name, again, expected) in cases {
        let same = (
            again.apiserver.certificate == first.apiserver.certificate,
            again.admin.certificate == first.admin.certificate,
        );
        assert_eq!(same, expected, "{name}");
        assert_eq!(again.ca.certificate, first.ca.certificate, "{name}");
        assert_eq!(again.service_account_key, first.service_account_key, "{name}");
    }

    // A foreign key beside our certificate does not fit it.
    std::fs::write(at.join("admin.key"), first.ca.key.serialize_pem()).unwrap();
    let mended = pki(&at, &["192.0.2.8"], later(340)).unwrap();
    assert_ne!(mended.admin.key, first.ca.key.serialize_pem());

    assert!(matches!(pki(&at, &sans, later(4000)), Err(PkiError::Expired(_))));
    std::fs::remove_file(at.join("ca.key")).unwrap();
    assert!(matches!(pki(&at, &sans, now()), Err(PkiError::Incomplete { .. })));
    std::fs::write(at.join("ca.key"), "rubbish").unwrap();
    assert!(matches!(pki(&at, &sans, now()), Err(PkiError::Unreadable(_))));
}

#[test]
fn certificates_that_are_not_valid_yet_are_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let first = pki(dir.path(), &[], now()).unwrap();
    for name in ["apiserver", "apiserver-kubelet-client", "admin", "front-proxy-client"] {
        std::fs::remove_file(dir.path().join(format!("{name}.crt"))).unwrap();
    }
    // Made while the clock was ahead; now it is set right again.
    let ahead = pki(dir.path(), &[], later(100)).unwrap();
    let again = pki(dir.path(), &[], later(1)).unwrap();
    for (name, ahead, again) in [
        ("apiserver", &ahead.apiserver, &again.apiserver),
        ("kubelet client", &ahead.kubelet_client, &again.kubelet_client),
        ("admin", &ahead.admin, &again.admin),
        ("front proxy", &ahead.front_proxy_client, &again.front_proxy_client),
    ] {
        assert_ne!(ahead.certificate, again.certificate, "{name}");
        let facts = Facts::of(&again.certificate).unwrap();
        assert!(facts.not_before <= later(1).as_second(), "{name}");
    }
    assert_eq!(first.ca.certificate, again.ca.certificate);
    // An authority can't be made anew without everybody noticing.
    let early = pki(dir.path(), &[], later(-1)).err().unwrap();
    assert!(matches!(early, PkiError::NotYetValid(_)), "{early}");
}

#[test]
fn files_that_do_not_belong_together_are_noticed() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = pki(dir.path(), &[], now()).unwrap();
    let theirs = pki(other.path(), &[], now()).unwrap();
    // The same key, but another holder; our name and key identifier, but signed by somebody else.
    std::fs::write(dir.path().join("admin.crt"), &first.kubelet_client.certificate).unwrap();
    std::fs::write(dir.path().join("admin.key"), &first.kubelet_client.key).unwrap();
    let again = pki(dir.path(), &[], now()).unwrap();
    assert_ne!(again.admin.certificate, first.kubelet_client.certificate);
    let pair = KeyPair::from_pem(&again.admin.key).unwrap();
    let subject = Subject {
        common_name: "kubernetes-admin",
        organizations: &["system:masters"],
    };
    let request = certificate::request_for(Purpose::Client, subject, &pair, LEAF_VALIDITY);
    let issuer = certificate::Issuer {
        key: &theirs.ca.key,
        ..first.ca.issuer()
    };
    let forged = certificate::sign(&request, &issuer, now()).unwrap();
    std::fs::write(dir.path().join("admin.crt"), &forged).unwrap();
    assert_ne!(pki(dir.path(), &[], now()).unwrap().admin.certificate, forged);

    std::fs::write(dir.path().join("ca.key"), theirs.ca.key.serialize_pem()).unwrap();
    let mismatch = pki(dir.path(), &[], now()).err().unwrap();
    assert!(matches!(mismatch, PkiError::KeyMismatch(_)), "{mismatch}");
    assert!(Authority::from_pem(&first.ca.certificate, &theirs.ca.key.serialize_pem()).is_none());
    assert!(Authority::from_pem(&first.admin.certificate, &first.admin.key).is_none());
}

#[test]
fn an_authority_interrupted_between_its_files_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let first = pki(dir.path(), &[], now()).unwrap();
    std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
    let again = pki(dir.path(), &[], now()).unwrap();
    assert_eq!(again.ca.key.serialize_pem(), first.ca.key.serialize_pem());
}

#[test]
fn kubeconfig_is_yaml_with_everything_inside() {
    let dir = tempfile::tempdir().unwrap();
    let pki = pki(dir.path(), &[], now()).unwrap();
    let config: Value = serde_saphyr::from_str(&pki.kubeconfig("https://127.0.0.1:6443", "or\"lop: x")).unwrap();
    assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
    assert_eq!(config["current-context"], "kubernetes-admin@or\"lop: x");
    assert_eq!(config["contexts"][0]["context"]["user"], config["users"][0]["name"]);
    let data = config["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
    let certificate = String::from_utf8(BASE64_STANDARD.decode(data).unwrap()).unwrap();
    let admin = identity(&pki, &certificate).user(now()).unwrap().unwrap();
    assert!(admin.in_group("system:masters"));
}

/// Shakes hands in memory. The real clock is used: rustls asks it.
fn handshake(
    pki: &Pki,
    client: Option<&Credential>,
    host: &'static str,
) -> Result<rustls::ServerConnection, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der(&pki.ca.certificate)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        Some(c) => {
            let key = PrivateKeyDer::from_pem_slice(c.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![der(&c.certificate)], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = rustls::ClientConnection::new(Arc::new(config), host.try_into().unwrap()).unwrap();
    let config = pki.server_tls_config(&TlsOptions::default(), &pki.client_authority().unwrap());
    let mut server = rustls::ServerConnection::new(config.unwrap()).unwrap();
    client.writer().write_all(b"hello").unwrap();
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        wire.clear();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    let mut received = [0; 5];
    server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
    Ok(server)
}

#[test]
fn clients_are_shown_the_certificate_for_the_name_they_ask_for() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let now = orlop_base::Clock::System.now();
    let mut ours = pki(dir.path(), &[], now).unwrap();
    let theirs = pki(other.path(), &[], now).unwrap();
    let issue = |authority: &Pki, names: &[&str]| {
        let subject = Subject {
            common_name: "other",
            organizations: &[],
        };
        let names: Vec<San> = names.iter().map(|name| San::parse(name)).collect();
        authority
            .issue_server(subject, &names, Duration::from_secs(3600), now)
            .unwrap()
    };
    // Taken for its own names; taken for other names than its own, which clients notice.
    ours.named_serving = vec![
        (issue(&ours, &["api.example.com", "*.api.example.com"]), vec![]),
        (issue(&theirs, &["elsewhere.example"]), vec!["elsewhere.example".into()]),
    ];
    for host in ["localhost", "api.example.com", "one.api.example.com"] {
        handshake(&ours, None, host).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
    assert!(
        handshake(&ours, None, "elsewhere.example").is_err(),
        "it is another authority's"
    );
    assert!(handshake(&ours, None, "two.one.api.example.com").is_err());
}

#[test]
fn tls_knows_clients_of_our_authority_only() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ours = pki(dir.path(), &[], orlop_base::Clock::System.now()).unwrap();
    let theirs = pki(other.path(), &[], orlop_base::Clock::System.now()).unwrap();

    let server = handshake(&ours, Some(&ours.admin), "kubernetes.default.svc").unwrap();
    assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
    let clients = ours.client_authority().unwrap();
    let user = |server: &rustls::ServerConnection| {
        let now = orlop_base::Clock::System.now();
        let identity = CertIdentity::new(&clients, server.peer_certificates().unwrap(), now);
        identity.user(now).map(|user| user.unwrap().name.clone())
    };
    assert_eq!(user(&server).unwrap(), "kubernetes-admin");

    assert!(
        handshake(&ours, None, "127.0.0.1")
            .unwrap()
            .peer_certificates()
            .is_none()
    );
    assert!(handshake(&ours, None, "elsewhere.example").is_err());
    // A forged certificate does not end the handshake: it just names nobody.
    let forged = handshake(&ours, Some(&theirs.admin), "localhost").unwrap();
    let refused = user(&forged).unwrap_err().to_string();
    assert_eq!(
        refused,
        "client certificate: x509: certificate signed by unknown authority"
    );
}
