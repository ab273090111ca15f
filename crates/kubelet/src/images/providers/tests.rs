//! Providers as shell scripts that note how they were called.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::objects::fake::FakeCluster;

struct World {
    dir: tempfile::TempDir,
    cluster: FakeCluster,
    clock: Clock,
}

const CONFIG: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: one
    matchImages: ["*.example.com", "q.io/team"]
    defaultCacheDuration: 10m
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    args: [give, me]
    env: [{name: MOOD, value: good}]
"#;

const TOKENS: &str = r#"    tokenAttributes:
      serviceAccountTokenAudience: registry
      cacheType: ServiceAccount
      requireServiceAccount: true
      requiredServiceAccountAnnotationKeys: [x.io/role]
      optionalServiceAccountAnnotationKeys: [x.io/more]
"#;

impl World {
    fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            cluster: FakeCluster::default(),
            clock: Clock::manual("2026-01-02T03:04:05Z".parse().unwrap()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that notes its request, arguments and variable, and then does this.
    fn program(&self, does: &str) {
        let path = self.path("one");
        let log = self.path("log");
        let text = format!("#!/bin/sh\n(cat; echo \" $* $MOOD\") >> {}\n{does}\n", log.display());
        // Not written over while it may run.
        let part = self.path("part");
        std::fs::write(&part, text).unwrap();
        std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(part, path).unwrap();
    }

    fn answers(&self, response: &Value) {
        self.program(&format!("cat <<'END'\n{response}\nEND"));
    }

    fn open(&self, config: &str) -> Result<Providers, ProviderError> {
        std::fs::write(self.path("config.yaml"), config).unwrap();
        let objects = Objects::new(Some(self.cluster.api()), self.clock.clone());
        Providers::open(&self.path("config.yaml"), self.dir.path(), &objects, &self.clock)
    }

    /// One line for each time it was called.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }
}

fn response(more: Value) -> Value {
    let mut whole = json!({
        "kind": "CredentialProviderResponse", "apiVersion": config::V1, "cacheKeyType": "Registry",
        "auth": {"*.example.com": {"username": "u", "password": "p"}},
    });
    whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    whole
}

fn pod(account: &str) -> Pod {
    orlop_api::types::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "pod-uid"},
        "spec": {"serviceAccountName": account, "containers": []},
    }))
    .unwrap()
}

async fn users(providers: &Providers, repository: &str) -> Vec<String> {
    let found = providers.lookup(repository, &pod("a")).await;
    found
        .into_iter()
        .map(|c| format!("{}:{}", c.auth.username, c.auth.password))
        .collect()
}

#[tokio::test]
async fn a_program_is_asked_and_its_answer_kept() {
    let world = World::new();
    world.answers(&response(json!({})));
    let providers = world.open(CONFIG).unwrap();
    assert_eq!(users(&providers, "other.io/x").await, [""; 0]);
    assert_eq!(users(&providers, "a.b.example.com/x").await, [""; 0]);
    assert!(world.log().is_empty(), "not its images");
    assert_eq!(users(&providers, "a.example.com/x").await, ["u:p"]);
    let request = format!(
        r#"{{"apiVersion":"{}","image":"a.example.com/x","kind":"CredentialProviderRequest"}} give me good"#,
        config::V1
    );
    assert_eq!(world.log(), [request]);
    // By registry, for ten minutes.
    assert_eq!(users(&providers, "a.example.com/y").await, ["u:p"]);
    assert_eq!(world.log().len(), 1);
    assert_eq!(users(&providers, "b.example.com/y").await, ["u:p"]);
    assert_eq!(world.log().len(), 2);
    world.clock.advance(Duration::from_secs(601));
    users(&providers, "a.example.com/y").await;
    assert_eq!(world.log().len(), 3);
}

#[tokio::test]
async fn how_long_and_for_what() {
    // What it answers, what is asked for, and how often it is called.
    let cases = [
        (
            json!({"cacheKeyType": "Image"}),
            ["a.example.com/x", "a.example.com/x", "a.example.com/y"],
            2,
        ),
        (
            json!({"cacheKeyType": "Registry"}),
            ["a.example.com/x", "a.example.com/y", "b.example.com/x"],
            2,
        ),
        (
            json!({"cacheKeyType": "Global"}),
            ["a.example.com/x", "b.example.com/y", "q.io/team/x"],
            1,
        ),
        (
            json!({"cacheDuration": "0s"}),
            ["a.example.com/x", "a.example.com/x", "a.example.com/x"],
            3,
        ),
        (
            json!({"cacheDuration": "1h"}),
            ["a.example.com/x", "a.example.com/x", "a.example.com/x"],
            1,
        ),
    ];
    for (more, repositories, expected) in cases {
        let world = World::new();
        world.answers(&response(more.clone()));
        let providers = world.open(CONFIG).unwrap();
        for repository in repositories {
            users(&providers, repository).await;
        }
        assert_eq!(world.log().len(), expected, "{more}");
    }
}

#[tokio::test]
async fn many_at_once_ask_once() {
    let world = World::new();
    world.answers(&response(json!({"cacheDuration": "0s"})));
    let providers = world.open(CONFIG).unwrap();
    let all = orlop_base::join_all((0..20).map(|_| users(&providers, "a.example.com/x"))).await;
    assert!(all.iter().all(|users| users == &["u:p"]));
    assert_eq!(world.log().len(), 1);
}

#[tokio::test]
async fn answers_that_are_none() {
    let cases = [
        "exit 3".to_string(),
        "echo nonsense".into(),
        format!("echo '{}'", response(json!({"cacheKeyType": "Town"}))),
        format!(
            "echo '{}'",
            response(json!({"apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1"}))
        ),
        format!("echo '{}'", response(json!({"kind": "Other"}))),
        format!("echo '{}'", response(json!({"unknown": 1}))),
        "head -c 2000000 /dev/zero".into(),
    ];
    for does in cases {
        let world = World::new();
        world.program(&does);
        let providers = world.open(CONFIG).unwrap();
        assert_eq!(users(&providers, "a.example.com/x").await, [""; 0], "{does}");
        // It is put right, and asked again.
        world.answers(&response(json!({})));
        assert_eq!(users(&providers, "a.example.com/x").await, ["u:p"], "{does}");
    }
    // It has nothing to say, and says much beside.
    let world = World::new();
    let empty = response(json!({"auth": null}));
    world.program(&format!("head -c 200000 /dev/zero >&2; echo '{empty}'"));
    let providers = world.open(CONFIG).unwrap();
    assert_eq!(users(&providers, "a.example.com/x").await, [""; 0]);
    users(&providers, "a.example.com/x").await;
    assert_eq!(world.log().len(), 1, "that is an answer, too");
}

#[tokio::test]
async fn programs_that_are_missing() {
    let world = World::new();
    let said = |config: &str| {
        world
            .open(config)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert!(said(CONFIG).contains("plugin binary executable"), "{}", said(CONFIG));
    std::fs::write(world.path("one"), "text").unwrap();
    assert!(said(CONFIG).ends_with("is not a program"));
    let objects = Objects::new(None, Clock::System);
    let missing = Providers::open(
        &world.path("config.yaml"),
        &world.path("none"),
        &objects,
        &Clock::System,
    );
    assert!(missing.err().unwrap().to_string().ends_with("did not exist"));
}

#[tokio::test]
async fn service_accounts_ask_for_themselves() {
    let world = World::new();
    let account = "/api/v1/namespaces/n/serviceaccounts/a";
    let token = |token: &str| {
        let status = json!({"token": token, "expirationTimestamp": "2026-01-02T04:04:05Z"});
        json!({"spec": {"audiences": ["registry"], "expirationSeconds": 3600}, "status": status})
    };
    world.cluster.put(&format!("{account}/token"), token("secret"));
    world
        .cluster
        .put(account, json!({"metadata": {"name": "a", "uid": "1"}}));
    world.answers(&response(json!({})));
    let providers = world.open(&format!("{CONFIG}{TOKENS}")).unwrap();
    assert_eq!(users(&providers, "a.example.com/x").await, [""; 0]);
    assert!(providers.lookup("a.example.com/x", &pod("")).await.is_empty());
    assert!(
        world.log().is_empty(),
        "the account does not want it, and a pod without one may not"
    );

    let annotations = json!({"x.io/role": "r", "x.io/else": "e"});
    world.cluster.put(
        account,
        json!({"metadata": {"name": "a", "uid": "1", "annotations": annotations}}),
    );
    let found = providers.lookup("a.example.com/x", &pod("a")).await;
    let Some(Source::ServiceAccount(source)) = &found[0].source else {
        panic!("{found:?}");
    };
    assert_eq!([source.uid.as_str(), &source.namespace, &source.name], ["1", "n", "a"]);
    let request = &world.log()[0];
    assert!(request.contains(r#""serviceAccountToken":"secret""#), "{request}");
    assert!(
        request.contains(r#""serviceAccountAnnotations":{"x.io/role":"r"}"#),
        "{request}"
    );
    providers.lookup("a.example.com/y", &pod("a")).await;
    assert_eq!(world.log().len(), 1, "kept for the account");
    // Another account of that name.
    world.cluster.put(
        account,
        json!({"metadata": {"name": "a", "uid": "2", "annotations": annotations}}),
    );
    providers.lookup("a.example.com/y", &pod("a")).await;
    assert_eq!(world.log().len(), 2);
    // A token is no password unless the answer is kept by it.
    let echo = json!({"auth": {"*.example.com": {"username": "u", "password": "secret"}}});
    world.answers(&response(echo));
    assert_eq!(users(&providers, "b.example.com/x").await, [""; 0]);
    let by_token = format!("{CONFIG}{}", TOKENS.replace("ServiceAccount\n", "Token\n"));
    let providers = world.open(&by_token).unwrap();
    assert_eq!(users(&providers, "b.example.com/x").await, ["u:secret"]);
}
