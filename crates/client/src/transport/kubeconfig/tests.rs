use super::*;
use crate::error::chain;
use crate::transport::tls::PemData;

/// A kubeconfig with these lines in its cluster and its user.
fn file(cluster: &str, user: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Config
preferences: {{}}
current-context: c
contexts:
- {{name: other, context: {{cluster: none, user: none}}}}
- {{name: c, context: {{cluster: k, user: u, namespace: n}}}}
clusters:
- name: k
  cluster: {{{cluster}}}
users:
- name: u
  user: {{{user}}}
"#
    )
}

fn read(cluster: &str, user: &str) -> Result<ClusterConfig, String> {
    parse(&file(cluster, user), Path::new("/etc/k"), None).map_err(|e| chain(&e))
}

fn with_user(user: &str) -> Result<ClusterConfig, String> {
    read("server: 'https://s:1'", user)
}

fn shown(source: &Option<PemSource>) -> String {
    match source {
        None => "none".to_string(),
        Some(PemSource { field, data }) => match data {
            PemData::Inline(pem) => format!("{field} = {}", String::from_utf8_lossy(pem)),
            PemData::File(path) => format!("{field} in {}", path.display()),
        },
    }
}

#[test]
fn servers_have_a_scheme_or_get_one() {
    for (cluster, expected) in [
        ("server: 'https://a:6443'", "https://a:6443/"),
        ("server: 'http://[fd00::1]:80/k8s/x'", "http://[fd00::1]:80/k8s/x"),
        ("server: a:8080", "http://a:8080/"),
        ("server: a, insecure-skip-tls-verify: true", "https://a/"),
        ("server: a, certificate-authority: ca", "https://a/"),
    ] {
        assert_eq!(read(cluster, "").unwrap().server.to_string(), expected);
    }
    let master: Uri = "https://m".parse().unwrap();
    let config = parse(&file("", ""), Path::new(""), Some(&master)).unwrap();
    assert_eq!(config.server, master);
}

#[test]
fn tls_comes_from_data_or_files() {
    let config = read(
        "server: s, certificate-authority: pki/ca.crt, tls-server-name: n.example",
        "client-certificate: /abs/c.crt, client-key: c.key",
    );
    let tls = config.unwrap().tls;
    assert_eq!(
        shown(&tls.authority),
        "clusters[k].cluster.certificate-authority in /etc/k/pki/ca.crt"
    );
    let identity = tls.identity.as_ref().unwrap();
    assert_eq!(
        shown(&Some(identity.certificate.clone())),
        "users[u].user.client-certificate in /abs/c.crt"
    );
    assert_eq!(
        shown(&Some(identity.key.clone())),
        "users[u].user.client-key in /etc/k/c.key"
    );
    assert_eq!(tls.server_name.as_ref().unwrap().to_str(), "n.example");
    assert!(!tls.skip_verify && tls.has_files());
    let config = read(
        "server: s, certificate-authority: x, certificate-authority-data: Q0E=, insecure-skip-tls-verify: true",
        "client-certificate-data: Q0VSVA==, client-key-data: S0VZ, client-key: x",
    );
    let tls = config.unwrap().tls;
    assert_eq!(
        shown(&tls.authority),
        "clusters[k].cluster.certificate-authority-data = CA"
    );
    let identity = tls.identity.as_ref().unwrap();
    assert_eq!(
        shown(&Some(identity.key.clone())),
        "users[u].user.client-key-data = KEY"
    );
    assert!(tls.skip_verify && !tls.has_files());
    assert_eq!(shown(&read("server: s", "").unwrap().tls.authority), "none");
}

#[test]
fn credentials_of_each_kind() {
    let header = |user: &str| match with_user(user).unwrap().credentials {
        CredentialSource::Header(header) => header.to_str().unwrap().to_string(),
        CredentialSource::None => "none".to_string(),
        CredentialSource::TokenFile(_) => "file".to_string(),
        CredentialSource::Exec(_) => "exec".to_string(),
    };
    assert_eq!(header(""), "none");
    assert_eq!(header("token: t"), "Bearer t");
    assert_eq!(header("token: '007'"), "Bearer 007");
    assert_eq!(header("username: a, password: b"), "Basic YTpi");
    assert_eq!(header("username: a"), "Basic YTo=");
    // As client-go: the file is meant, and the token stands in for it.
    assert_eq!(header("token: t, tokenFile: absent"), "file");
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: aws}";
    assert_eq!(header(exec), "exec");
    assert_eq!(header(&format!("token: t, {exec}")), "Bearer t");
}

fn plugin(cluster: &str, exec: &str) -> ExecPlugin {
    match read(cluster, &format!("exec: {{{exec}}}")).unwrap().credentials {
        CredentialSource::Exec(plugin) => *plugin,
        _ => panic!("a plugin is expected"),
    }
}

#[test]
fn plugins_have_all_their_fields() {
    let found = plugin(
        "server: 'https://s:1'",
        "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: ./bin/p, args: [a, b],
         env: [{name: N, value: v}, {name: E}], installHint: get it",
    );
    assert_eq!(found.api_version, "client.authentication.k8s.io/v1");
    assert_eq!(found.field, "users[u].user.exec");
    assert_eq!(found.command, Path::new("/etc/k/./bin/p"));
    assert_eq!(found.args, ["a", "b"]);
    let env = [("N".to_string(), "v".to_string()), ("E".to_string(), String::new())];
    assert_eq!(found.env, env);
    assert_eq!(found.install_hint, "get it");
    assert_eq!(found.interactive_mode, InteractiveMode::Never);
    assert_eq!(found.cluster, None);
    // Without a folder it is looked for in PATH; v1beta1 has a mode by default.
    let found = plugin(
        "server: s, certificate-authority-data: Q0E=, tls-server-name: n, disable-compression: true,
         extensions: [{name: x}, {name: client.authentication.k8s.io/exec, extension: {audience: a}}]",
        "apiVersion: client.authentication.k8s.io/v1beta1, command: p, env: null, provideClusterInfo: true",
    );
    assert_eq!(found.command, Path::new("p"));
    assert_eq!(found.interactive_mode, InteractiveMode::IfAvailable);
    let expected = json!({
        "server": "s", "tls-server-name": "n", "certificate-authority-data": "Q0E=", "disable-compression": true,
        "config": {"audience": "a"},
    });
    assert_eq!(found.cluster, Some(expected));
}

#[test]
fn impersonation_becomes_headers() {
    let config = with_user("as: jo, as-uid: '7', as-groups: [a, b], as-user-extra: {'x.io/Ü%': [p, q]}").unwrap();
    let headers: Vec<String> = config
        .impersonate
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    let extra = "impersonate-extra-x.io%2f%c3%9c%25";
    let expected = [
        "impersonate-user: jo".to_string(),
        "impersonate-uid: 7".to_string(),
        "impersonate-group: a".to_string(),
        "impersonate-group: b".to_string(),
        format!("{extra}: p"),
        format!("{extra}: q"),
    ];
    assert_eq!(headers, expected);
}

#[test]
fn errors_name_the_field_and_say_what_to_do() {
    let exec = "users[u].user.exec";
    let v1 = "apiVersion: client.authentication.k8s.io/v1";
    let cases = [
        ("", "", "clusters[k].cluster.server is not set"),
        (
            "server: 'ftp://a'",
            "",
            "clusters[k].cluster.server: invalid value \"ftp://a\": expected http://HOST[:PORT] or https://HOST[:PORT]",
        ),
        (
            "server: s, proxy-url: 'http://p'",
            "",
            "clusters[k].cluster.proxy-url is not supported; remove it and use an address that can be reached directly",
        ),
        (
            "server: s, tls-server-name: 'a b'",
            "",
            "clusters[k].cluster.tls-server-name: invalid value \"a b\": expected a DNS name or an IP address",
        ),
        (
            "server: s, certificate-authority-data: '?'",
            "",
            "clusters[k].cluster.certificate-authority-data is not valid base64: Invalid symbol 63, offset 0.",
        ),
        (
            "server: s",
            "client-certificate: c",
            "users[u].user.client-key is not set; client-certificate needs its key",
        ),
        (
            "server: s",
            "client-key-data: S0VZ",
            "users[u].user.client-certificate is not set; client-key needs its certificate",
        ),
        (
            "server: s",
            "username: a, token: t",
            "users[u].user.username: invalid value \"a\": a user has either a username or a token",
        ),
        (
            "server: s",
            "tokenFile: absent",
            "users[u].user.tokenFile: failed to read /etc/k/absent: No such file or directory (os error 2)",
        ),
        (
            "server: s",
            "auth-provider: {name: oidc}",
            "users[u].user.auth-provider is not supported; use a credential plugin (exec)",
        ),
        (
            "server: s",
            "as-groups: [g]",
            "users[u].user.as is not set; as-uid, as-groups and as-user-extra need the user to impersonate",
        ),
        (
            "server: s",
            r#"as: "a\nb""#,
            "users[u].user.as: invalid value \"a\\nb\": it has characters that a header can't have",
        ),
        ("server: s", "exec: {}", &format!("{exec}.apiVersion is not set")),
        (
            "server: s",
            "exec: {apiVersion: v2, command: p}",
            &format!("{exec}.apiVersion: invalid value \"v2\": expected client.authentication.k8s.io/v1 or v1beta1"),
        ),
        (
            "server: s",
            &format!("exec: {{{v1}, command: p}}"),
            &format!("{exec}.interactiveMode is not set; v1 needs Never, IfAvailable or Always"),
        ),
        (
            "server: s",
            &format!("exec: {{{v1}, command: p, interactiveMode: Often}}"),
            &format!("{exec}.interactiveMode: invalid value \"Often\": expected Never, IfAvailable or Always"),
        ),
        (
            "server: s",
            &format!("exec: {{{v1}, interactiveMode: Never}}"),
            &format!("{exec}.command is not set"),
        ),
        (
            "server: s, certificate-authority: absent",
            &format!("exec: {{{v1}, command: p, interactiveMode: Never, provideClusterInfo: true}}"),
            "clusters[k].cluster.certificate-authority: failed to read /etc/k/absent: No such file or directory (os error 2)",
        ),
    ];
    for (cluster, user, expected) in cases {
        assert_eq!(read(cluster, user).err().as_deref(), Some(expected));
    }
}

#[test]
fn errors_of_the_file_itself() {
    let error = |text: &str| chain(&parse(text, Path::new(""), None).err().unwrap());
    let no_context = "current-context is not set; choose one with `kubectl config use-context NAME`";
    for text in ["", "{}", "\u{feff}kind: Config", "current-context: ''\nclusters: null"] {
        assert_eq!(error(text), no_context, "{text:?}");
    }
    for (text, expected) in [
        ("kind: Pod", "kind: invalid value \"Pod\": a kubeconfig has kind Config"),
        ("current-context: c", "current-context: there is no context named \"c\""),
        (
            "{current-context: c, contexts: [{name: c}]}",
            "contexts[c].context.cluster is not set",
        ),
        (
            "{current-context: c, contexts: [{name: c, context: {cluster: k}}]}",
            "contexts[c].context.cluster: there is no cluster named \"k\"",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
    // Nothing of what may be a secret is quoted.
    let broken = error("users:\n- name: u\n  user: {token: [s3cret]}\n");
    assert!(
        broken.starts_with("failed to parse the file: ") && !broken.contains("s3cret"),
        "{broken}"
    );
    // Users that are not there are anonymous, as with client-go.
    let text = "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, cluster: {server: s}}]}";
    let config = parse(text, Path::new(""), None).unwrap();
    assert!(matches!(config.credentials, CredentialSource::None));
}
