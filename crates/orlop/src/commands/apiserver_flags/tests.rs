//! Every flag of kube-apiserver is carried out, taken or refused, and docs/api-server-flags.md says which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::super::upstream_flags::{Fate, flags};
use super::names::ALL;
use super::others::ApiServerFlags;
use super::*;
use crate::commands::{Alone, apiserver};

/// Flags that the command carries out, and what they do.
fn carried_out() -> BTreeMap<String, String> {
    let command = Alone::<apiserver::Args>::command();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut found: BTreeMap<String, String> = shown
        .filter_map(|arg| {
            Some((
                arg.get_long()?.to_string(),
                arg.get_help().map(ToString::to_string).unwrap_or_default(),
            ))
        })
        .collect();
    found.insert("logging-format".into(), "Format of log lines: text or json".into());
    for name in ["help", "version"] {
        found.insert(name.into(), format!("Print {name}"));
    }
    found
}

#[test]
fn every_flag_of_kube_apiserver_is_known() {
    assert!(ALL.is_sorted());
    let carried_out = carried_out();
    // Refused by those who define them.
    let command = Alone::<apiserver::Args>::command();
    let hidden: BTreeSet<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let mut others = BTreeSet::new();
    for flag in flags::<ApiServerFlags>() {
        assert!(others.insert(flag.name), "{} is there twice", flag.name);
        assert!(!carried_out.contains_key(flag.name), "{} is carried out", flag.name);
    }
    let unknown: Vec<_> = ALL
        .iter()
        .filter(|name| !carried_out.contains_key(**name) && !others.contains(**name) && !hidden.contains(**name))
        .collect();
    assert_eq!(unknown, Vec::<&&str>::new());
}

const HEAD: &str = "\
# kube-apiserver's flags

`orlop apiserver`, or a link named `kube-apiserver`, takes every flag of kube-apiserver 1.36: most are carried out, some would
change nothing here and are taken with a warning, and those that ask for what can't be done are refused by name, with what to
do instead. A flag whose value asks for what is the case anyway is taken without a word.

";

/// Flags of kube-apiserver by what becomes of them, then our own.
fn document() -> String {
    use std::fmt::Write;
    let mut out = HEAD.to_string();
    let carried_out = carried_out();
    let mut table = |title: &str, columns: &str, rows: Vec<(String, String)>| {
        let _ = write!(out, "## {title}\n\n| flag | {columns} |\n|---|---|\n");
        for (name, text) in rows {
            let _ = writeln!(out, "| `--{name}` | {} |", text.replace('|', "\\|"));
        }
        out.push('\n');
    };
    let (upstreams, own): (Vec<_>, Vec<_>) = carried_out
        .into_iter()
        .partition(|(name, _)| ALL.contains(&name.as_str()));
    table("Carried out", "what it does", upstreams);
    let mut not_done: Vec<_> = flags::<ApiServerFlags>().map(|flag| (flag.name, flag.fate)).collect();
    not_done.sort_by_key(|(name, _)| *name);
    let of = |refused: bool| {
        let rows = not_done.iter().filter_map(|(name, fate)| match fate {
            Fate::NoEffect(why) => (!refused).then(|| (name.to_string(), why.to_string())),
            Fate::Refused(advice) => refused.then(|| (name.to_string(), advice.to_string())),
        });
        rows.collect::<Vec<_>>()
    };
    table("Taken, without effect", "why", of(false));
    table("Refused", "what to do", of(true));
    table("Orlop's own", "what it does", own);
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[test]
fn the_document_says_what_becomes_of_each() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api-server-flags.md");
    let expected = document();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == expected,
        "docs/api-server-flags.md is not true: run this test with UPDATE_GOLDEN=1"
    );
}

fn config(line: &str) -> anyhow::Result<Config> {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: ServerFlags,
    }
    let cli = Cli::try_parse_from(line.split_whitespace())?;
    let mut config = Config::new("/nowhere".into());
    cli.flags.apply(&mut config)?;
    Ok(config)
}

#[test]
fn a_manifest_of_kubeadm_is_read() {
    let line = "kube-apiserver --allow-privileged=true --client-ca-file=/p/ca.crt \
        --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true \
        --kubelet-client-certificate=/p/k.crt --kubelet-client-key=/p/k.key \
        --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname --proxy-client-cert-file=/p/f.crt \
        --proxy-client-key-file=/p/f.key --service-account-key-file=/p/sa.pub \
        --service-account-signing-key-file=/p/sa.key --tls-cert-file=/p/apiserver.crt \
        --tls-private-key-file=/p/apiserver.key";
    let config = config(line).unwrap();
    let keys = KeyFiles {
        serving: Some(("/p/apiserver.crt".into(), "/p/apiserver.key".into())),
        client_authority: Some("/p/ca.crt".into()),
        named_serving: vec![],
        front_proxy: Some(("/p/f.crt".into(), "/p/f.key".into())),
        kubelet_client: Some(("/p/k.crt".into(), "/p/k.key".into())),
        kubelet_authority: None,
        token_signing: Some("/p/sa.key".into()),
        token_verifying: vec!["/p/sa.pub".into()],
    };
    assert_eq!(config.keys, keys);
}

#[test]
fn what_can_not_be_done_is_refused_by_name() {
    for (flag, message) in [
        ("--admission-control-config-file=/a", "--admission-control-config-file"),
        ("--tls-min-version=VersionTLS10", "error: "),
        (
            "--tls-cipher-suites=TLS_NONE",
            "--tls-cipher-suites: cipher suite TLS_NONE not supported or doesn't exist",
        ),
        ("--tls-sni-cert-key=/a", "error: "),
        (
            "--service-account-max-token-expiration=1m",
            "the service-account-max-token-expiration must be between 1 hour",
        ),
        ("--insecure-port=8080", "--insecure-port: "),
        (
            "--enable-admission-plugins=Unheard",
            "admission-control plugin \"Unheard\" is unknown",
        ),
        (
            "--service-account-jwks-uri=http://plain",
            "--service-account-jwks-uri: ",
        ),
        ("--runtime-config=apps/v1=false", "--runtime-config: "),
        ("--tls-cert-file=/a", "error: "),
    ] {
        let error = config(&format!("kube-apiserver {flag}"))
            .map(|_| ())
            .expect_err(flag)
            .to_string();
        assert!(error.starts_with(message), "{error}");
    }
    for fine in [
        "--insecure-port=0",
        "--storage-backend=etcd3",
        "--profiling=false",
        "--tls-min-version=VersionTLS12",
        "--service-account-max-token-expiration=0s",
    ] {
        config(&format!("kube-apiserver {fine}")).unwrap();
    }
}

#[test]
fn tls_and_tokens_are_as_they_are_told() {
    let config = config(
        "kube-apiserver --tls-min-version=VersionTLS13 --tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 \
         --tls-sni-cert-key=/a.crt,/a.key --tls-sni-cert-key=/b.crt,/b.key:b.example.com,*.b.example.com \
         --service-account-max-token-expiration=2h --kubelet-certificate-authority=/k.crt",
    )
    .unwrap();
    assert!(config.tls.only_1_3 && !config.tls.has_1_2());
    assert_eq!(config.tls.cipher_suites, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    let named = |file: &str, names: &[&str]| NamedCertificate {
        certificate: format!("/{file}.crt").into(),
        key: format!("/{file}.key").into(),
        names: names.iter().map(|name| name.to_string()).collect(),
    };
    let expected = [named("a", &[]), named("b", &["b.example.com", "*.b.example.com"])];
    assert_eq!(config.keys.named_serving, expected);
    assert_eq!(config.keys.kubelet_authority, Some("/k.crt".into()));
    assert_eq!(config.max_token_expiration, Some(Duration::from_secs(7200)));
}
