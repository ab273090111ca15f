use std::path::Path;

use super::*;
use crate::error::chain;

const V1: &str = "client.authentication.k8s.io/v1";

/// A plugin that is a shell script, its own argument after that of the shell.
fn script(folder: &Path, body: &str) -> ExecPlugin {
    let file = folder.join("plugin.sh");
    std::fs::write(&file, body).unwrap();
    ExecPlugin {
        field: "users[u].user.exec".to_string(),
        api_version: V1,
        command: "/bin/sh".into(),
        args: vec![file.display().to_string(), "a b".to_string()],
        env: vec![("EXTRA".to_string(), "e".to_string())],
        install_hint: "install it with\n  get plugin".to_string(),
        interactive_mode: InteractiveMode::Never,
        cluster: None,
    }
}

fn printing(status: &str) -> String {
    format!("echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{V1}\",\"status\":{status}}}'")
}

async fn error(plugin: ExecPlugin) -> String {
    let error = ExecCredentials::start(plugin, Clock::System).await.err().unwrap();
    chain(&error)
}

fn token(current: &Current) -> &str {
    current.authorization.as_ref().unwrap().to_str().unwrap()
}

#[tokio::test]
async fn a_plugin_is_told_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let body = format!(
        "printf '%s|%s|%s' \"$1\" \"$EXTRA\" \"$KUBERNETES_EXEC_INFO\" > {}/seen\n{}",
        folder.path().display(),
        printing(r#"{"token":"t"}"#)
    );
    let mut plugin = script(folder.path(), &body);
    plugin.cluster = Some(json!({"server": "https://s"}));
    let credentials = ExecCredentials::start(plugin, Clock::System).await.unwrap();
    assert_eq!(token(&credentials.current(None).await.unwrap()), "Bearer t");
    let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
    let (given, info) = seen.rsplit_once('|').unwrap();
    assert_eq!(given, "a b|e");
    let info: Value = serde_json::from_str(info).unwrap();
    let expected = json!({
        "kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": false, "cluster": {"server": "https://s"}},
    });
    assert_eq!(info, expected);
}

#[tokio::test]
async fn a_plugin_runs_again_when_its_answer_has_expired() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let body = format!(
        "echo x >> {0}; n=$(wc -l < {0}); echo '{{\"apiVersion\":\"{V1}\",\"status\":{{\"expirationTimestamp\":\"2026-01-01T01:00:00Z\",\"token\":\"t'$n'\"}}}}'",
        count.display()
    );
    let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    let credentials = ExecCredentials::start(script(folder.path(), &body), clock.clone())
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(token(&credentials.current(None).await.unwrap()), "Bearer t1");
    }
    clock.advance(Duration::from_secs(3600));
    assert_eq!(token(&credentials.current(None).await.unwrap()), "Bearer t2");
}

#[tokio::test]
async fn a_plugin_runs_again_after_a_refusal_but_not_for_each() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let body = format!(
        "echo x >> {0}; n=$(wc -l < {0}); echo '{{\"apiVersion\":\"{V1}\",\"status\":{{\"token\":\"t'$n'\"}}}}'",
        count.display()
    );
    let credentials = ExecCredentials::start(script(folder.path(), &body), Clock::System)
        .await
        .unwrap();
    // Just now it said so: the server means somebody else.
    assert_eq!(token(&credentials.current(Some(0)).await.unwrap()), "Bearer t1");
    credentials.current.lock().await.at = Instant::now().checked_sub(AFTER_REFUSAL_MIN).unwrap();
    let second = credentials.current(Some(0)).await.unwrap();
    assert_eq!((token(&second), second.generation), ("Bearer t2", 1));
    // Others were refused with the first token, too: there is a newer one already.
    credentials.current.lock().await.at = Instant::now().checked_sub(AFTER_REFUSAL_MIN).unwrap();
    assert_eq!(token(&credentials.current(Some(0)).await.unwrap()), "Bearer t2");
}

#[tokio::test]
async fn a_plugin_may_print_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let body = printing(r#"{"clientCertificateData":"C","clientKeyData":"K"}"#);
    let credentials = ExecCredentials::start(script(folder.path(), &body), Clock::System)
        .await
        .unwrap();
    let current = credentials.current(None).await.unwrap();
    assert!(current.authorization.is_none());
    let identity = current.identity.unwrap();
    assert_eq!((&identity.certificate[..], &identity.key[..]), (&b"C"[..], &b"K"[..]));
}

#[tokio::test]
async fn what_is_wrong_with_a_plugin_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let of = |text: &str| format!("credential plugin users[u].user.exec: \"/bin/sh\" {text}");
    let cases = [
        (
            "echo not logged in >&2; exit 3".to_string(),
            of("failed: exit status: 3: not logged in\ninstall it with\n  get plugin"),
        ),
        (
            printing("{}"),
            of("printed neither a token nor a client certificate with its key"),
        ),
        (
            printing(r#"{"token":"t","clientKeyData":"K"}"#),
            of("printed neither a token nor a client certificate with its key"),
        ),
        (
            format!("echo '{{\"apiVersion\":\"{V1}beta1\"}}'"),
            of(&format!(
                "printed apiVersion \"{V1}beta1\"; the kubeconfig expects {V1:?}"
            )),
        ),
        (
            printing(r#"{"token":"a\nb"}"#).replace("echo", "printf %s"),
            of("printed a token with characters that a header can't have"),
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(error(script(folder.path(), &body)).await, expected);
    }
    let unreadable = error(script(folder.path(), "echo token")).await;
    assert!(
        unreadable.starts_with(&of("printed no ExecCredential in JSON: ")),
        "{unreadable}"
    );
    let expiry = error(script(
        folder.path(),
        &printing(r#"{"token":"t","expirationTimestamp":"soon"}"#),
    ))
    .await;
    assert!(
        expiry.starts_with(&of("printed expirationTimestamp \"soon\", which is no time: ")),
        "{expiry}"
    );
    let mut absent = script(folder.path(), "");
    absent.command = folder.path().join("absent");
    let absent = error(absent).await;
    assert!(
        absent.contains("failed to start") && absent.contains("\ninstall it with\n  get plugin: No such file"),
        "{absent}"
    );
}

#[test]
fn a_plugin_may_need_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut plugin = script(folder.path(), "");
    for (mode, is_terminal, expected) in [
        (InteractiveMode::Never, true, Some(false)),
        (InteractiveMode::IfAvailable, false, Some(false)),
        (InteractiveMode::IfAvailable, true, Some(true)),
        (InteractiveMode::Always, true, Some(true)),
        (InteractiveMode::Always, false, None),
    ] {
        plugin.interactive_mode = mode;
        assert_eq!(
            plugin.is_interactive(is_terminal).ok(),
            expected,
            "{mode:?} {is_terminal}"
        );
    }
}
