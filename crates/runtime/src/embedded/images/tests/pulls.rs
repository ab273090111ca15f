use super::images::{self, files};
use super::registry::{Access, Fault};
use super::*;

async fn fixture(repository: &str) -> (tempfile::TempDir, TestRegistry, TestImage, ImageStore) {
    let dir = tempfile::tempdir().unwrap();
    let registry = TestRegistry::start().await;
    let image = TestImage::small("one");
    registry.push(repository, "v1", &image);
    let store = open(dir.path()).await;
    (dir, registry, image, store)
}

fn read(prepared: &PreparedImage, layer: usize, file: &str) -> String {
    std::fs::read_to_string(prepared.layers[layer].join(file)).unwrap()
}

#[tokio::test]
async fn pull_prepare_remove() {
    let (dir, registry, image, store) = fixture("a/b").await;
    let name = registry.name("a/b:v1");
    assert_eq!(store.status(&spec(&name)).await.unwrap(), None);
    let id = store.pull(&spec(&name), None, silent()).await.unwrap();
    assert_eq!(id, image.id().to_string());
    assert_clean(dir.path());

    let status = store.status(&spec(&name)).await.unwrap().unwrap();
    assert_eq!(status.repo_tags, std::slice::from_ref(&name));
    assert_eq!(
        status.repo_digests,
        [format!("{}@{}", registry.name("a/b"), image.digest())]
    );
    assert_eq!(status.uid.unwrap().value, 1000);
    let blobs: usize = image.blobs().iter().map(Vec::len).sum();
    assert_eq!(status.size, (blobs + image.manifest.len()) as u64);
    assert_eq!(
        store.status(&spec(&id)).await.unwrap(),
        store.status(&spec(&name)).await.unwrap()
    );
    assert_eq!(store.list().await.unwrap().len(), 1);

    let prepared = store.prepare(&id, &holder("c1")).await.unwrap();
    assert_eq!(read(&prepared, 0, "hello"), "one");
    assert_eq!(read(&prepared, 1, "etc/top"), "one");
    assert_eq!(prepared.config.config.cmd, ["/hello"]);
    assert_eq!(prepared.image_ref, status.repo_digests[0]);
    let usage = store.fs_usage().await.unwrap();
    assert!(usage.used_bytes.unwrap().value > 0 && usage.inodes_used.unwrap().value > 6);

    // What a container holds stays.
    store.remove(&spec(&name)).await.unwrap();
    store.remove(&spec(&name)).await.unwrap();
    assert_eq!(store.list().await.unwrap(), []);
    assert_eq!(read(&prepared, 0, "hello"), "one");
    assert!(store.prepare(&id, &holder("c2")).await.is_err());
    store.release(&holder("c1")).await.unwrap();
    store.release(&holder("c1")).await.unwrap();
    assert_eq!(names(&dir.path().join("layers")), Vec::<String>::new());
    assert_eq!(names(&dir.path().join("blobs/sha256")), Vec::<String>::new());
    assert_clean(dir.path());
}

#[tokio::test]
async fn a_second_pull_downloads_nothing() {
    let (_dir, registry, image, store) = fixture("a").await;
    let name = registry.name("a:v1");
    store.pull(&spec(&name), None, silent()).await.unwrap();
    let before = registry.count("GET");
    store.pull(&spec(&name), None, silent()).await.unwrap();
    assert_eq!(registry.count("GET"), before);
    // By digest, from the same and from another store.
    let by_digest = format!("{}@{}", registry.name("a"), image.digest());
    store.pull(&spec(&by_digest), None, silent()).await.unwrap();
    assert_eq!(registry.count("GET"), before);
    let other = tempfile::tempdir().unwrap();
    let other = open(other.path()).await;
    assert_eq!(
        other.pull(&spec(&by_digest), None, silent()).await.unwrap(),
        image.id().to_string()
    );
    assert_eq!(other.list().await.unwrap()[0].repo_tags, Vec::<String>::new());
    // Layers in common are not downloaded again.
    let mut more = image.layers.clone();
    let third = files(&[("third", b"3")]);
    more.push(third.clone());
    let config: serde_json::Value = serde_json::from_slice(&image.config).unwrap();
    let mut diff_ids: Vec<Digest> = serde_json::from_value(config["rootfs"]["diff_ids"].clone()).unwrap();
    diff_ids.push(Digest::of(&third));
    let larger = TestImage::with_layers(more, &diff_ids);
    registry.push("a", "v2", &larger);
    store.pull(&spec(&registry.name("a:v2")), None, silent()).await.unwrap();
    // Manifest, configuration, one layer.
    assert_eq!(registry.count("GET"), before + 2 + 3 + 2);
}

#[tokio::test]
async fn indexes_lead_to_this_platform() {
    let (_dir, registry, image, store) = fixture("a").await;
    registry.push_index("a", "multi", &image);
    let name = registry.name("a:multi");
    assert_eq!(
        store.pull(&spec(&name), None, silent()).await.unwrap(),
        image.id().to_string()
    );
    let status = store.status(&spec(&name)).await.unwrap().unwrap();
    assert_eq!(
        status.repo_digests,
        [format!("{}@{}", registry.name("a"), Digest::of(&image.index()))]
    );
    // Servers without HEAD, and with media types of their own.
    let other = tempfile::tempdir().unwrap();
    let other = open(other.path()).await;
    registry.refuse_head();
    registry.put("a", "odd", "application/octet-stream", &image.manifest);
    assert_eq!(
        other
            .pull(&spec(&registry.name("a:odd")), None, silent())
            .await
            .unwrap(),
        image.id().to_string()
    );
}

#[tokio::test]
async fn a_moved_tag_is_followed() {
    let (_dir, registry, first, store) = fixture("a").await;
    let name = registry.name("a:v1");
    store.pull(&spec(&name), None, silent()).await.unwrap();
    let second = TestImage::small("two");
    registry.push("a", "v1", &second);
    store.pull(&spec(&name), None, silent()).await.unwrap();
    assert_eq!(
        store.status(&spec(&name)).await.unwrap().unwrap().id,
        second.id().to_string()
    );
    // The first one is still known by its digest.
    let old = store.status(&spec(first.id().as_str())).await.unwrap().unwrap();
    assert!(old.repo_tags.is_empty() && old.repo_digests.len() == 1);
    assert_eq!(store.prune(Prune::Untagged).await.unwrap(), [first.id().to_string()]);
    store.prepare(&name, &holder("c")).await.unwrap();
    assert_eq!(store.prune(Prune::Unused).await.unwrap(), Vec::<String>::new());
    store.release_absent("other node", &[]).await.unwrap();
    store.release_absent("node", &["c".to_string()]).await.unwrap();
    assert_eq!(store.prune(Prune::Unused).await.unwrap(), Vec::<String>::new());
    store.release_absent("node", &[]).await.unwrap();
    assert_eq!(store.prune(Prune::Unused).await.unwrap(), [second.id().to_string()]);
}

/// A kubelet that collects garbage knows only of its own containers.
#[tokio::test]
async fn an_image_stays_while_another_node_uses_it() {
    let (_dir, registry, _, store) = fixture("a").await;
    let name = registry.name("a:v1");
    store.pull(&spec(&name), None, silent()).await.unwrap();
    store.prepare(&name, &holder("c")).await.unwrap();
    store.remove_for(&spec(&name), "other node").await.unwrap();
    assert!(store.status(&spec(&name)).await.unwrap().is_some());
    store.release(&holder("c")).await.unwrap();
    store.remove_for(&spec(&name), "other node").await.unwrap();
    assert!(store.status(&spec(&name)).await.unwrap().is_none());
    store.remove_for(&spec(&name), "other node").await.unwrap();
}

async fn error_of(store: &ImageStore, image: &str) -> crate::Error {
    store.pull(&spec(image), None, silent()).await.unwrap_err().into()
}

#[tokio::test]
async fn errors_in_words_that_users_know() {
    let (dir, registry, image, store) = fixture("a").await;
    let name = registry.name("a:v1");
    let layer = Digest::of(&image.layers[0]);
    let manifests = format!("/v2/a/manifests/{}", image.digest());
    for (what, fault, code, want) in [
        (
            "HEAD",
            Fault::Status(403),
            crate::Code::Other,
            "pull access denied, repository does not exist or may require authorization: 403 Forbidden",
        ),
        ("HEAD", Fault::Status(401), crate::Code::Other, "401 Unauthorized"),
        ("HEAD", Fault::Status(404), crate::Code::NotFound, "not found"),
        (
            "HEAD",
            Fault::Redirect("http://127.0.0.1:1/".into()),
            crate::Code::Other,
            "Connection refused",
        ),
        (
            "HEAD",
            Fault::Redirect("gopher://x".into()),
            crate::Code::Other,
            "invalid redirect to \"gopher://x\"",
        ),
        (
            manifests.as_str(),
            Fault::Body(b"garbage".to_vec()),
            crate::Code::Other,
            "unexpected commit digest",
        ),
        (
            manifests.as_str(),
            Fault::Body(vec![b' '; 5 << 20]),
            crate::Code::Other,
            "manifest from ",
        ),
        (layer.as_str(), Fault::Body(vec![b'x'; 5]), crate::Code::Other, ""),
        (
            layer.as_str(),
            Fault::Body(vec![b'x'; 1 << 20]),
            crate::Code::Other,
            "unexpected size of",
        ),
        (
            layer.as_str(),
            Fault::Body(vec![b'x'; image.layers[0].len()]),
            crate::Code::Other,
            "unexpected commit digest",
        ),
        (layer.as_str(), Fault::Status(404), crate::Code::Other, "not found"),
    ] {
        registry.fail(what, [fault.clone()]);
        // Too little is taken for a connection that broke, and the rest is asked for.
        if want.is_empty() {
            registry.fail(what, [Fault::Body(vec![b'x'; 5]), Fault::Body(vec![b'x'; 5])]);
            let error = error_of(&store, &name).await;
            assert!(error.message.contains("connection closed after 5 of"), "{error}");
            continue;
        }
        let error = error_of(&store, &name).await;
        assert!(
            error
                .message
                .starts_with(&format!("failed to pull and unpack image \"{name}\": ")),
            "{error}"
        );
        assert!(error.message.contains(want), "{fault:?}: {error}");
        assert_eq!(error.code, code, "{fault:?}: {error}");
        assert_eq!(store.list().await.unwrap(), []);
        assert_clean(dir.path());
    }
    let missing = registry.name("a:other");
    assert_eq!(
        error_of(&store, &missing).await.message,
        format!(
            "failed to pull and unpack image \"{missing}\": failed to resolve reference \"{missing}\": {missing}: not found"
        )
    );
    // After all of that it just works.
    store.pull(&spec(&name), None, silent()).await.unwrap();
}

#[tokio::test]
async fn faults_that_pass() {
    let (dir, registry, image, store) = fixture("a").await;
    let name = registry.name("a:v1");
    let large: Vec<u8> = (0..1_500_000u32).map(|n| (n % 251) as u8).collect();
    let archive = files(&[("large", &large)]);
    let image_of = |archive: &Vec<u8>| TestImage::with_layers(vec![archive.clone()], &[Digest::of(archive)]);
    let large_image = image_of(&archive);
    registry.push("a", "large", &large_image);
    registry.fail("HEAD", [Fault::Status(500), Fault::StatusWith(429, "retry-after", "0")]);
    let layer = Digest::of(&image.layers[0]);
    registry.fail(layer.as_str(), [Fault::Status(503), Fault::CutAfter(10)]);
    store.pull(&spec(&name), None, silent()).await.unwrap();

    let digest = Digest::of(&archive);
    registry.fail(
        digest.as_str(),
        [Fault::CutAfter(1000), Fault::CutAfter(1_200_000), Fault::CutAfter(0)],
    );
    let seen: Arc<parking_lot::Mutex<Vec<PullEvent>>> = Arc::default();
    let sink = seen.clone();
    let progress: Progress = Arc::new(move |event| sink.lock().push(event));
    store
        .pull(&spec(&registry.name("a:large")), None, progress)
        .await
        .unwrap();
    let ranges: Vec<String> = registry
        .headers_of(digest.as_str())
        .iter()
        .map(|h| h.get("range").map_or("", |v| v.to_str().unwrap()).to_string())
        .collect();
    assert_eq!(ranges, ["", "bytes=1000-", "bytes=1201000-", "bytes=1201000-"]);
    let total = archive.len() as u64;
    let seen = seen.lock();
    assert_eq!(
        seen.first(),
        Some(&PullEvent::Resolved {
            layers: vec![(digest.clone(), total)]
        })
    );
    assert!(seen.contains(&PullEvent::Downloading {
        layer: digest.clone(),
        done: total,
        total
    }));
    assert_eq!(seen.last(), Some(&PullEvent::Ready { layer: digest }));
    assert_clean(dir.path());
}

#[tokio::test]
async fn faults_that_stay() {
    let (dir, registry, image, store) = fixture("a").await;
    let name = registry.name("a:v1");
    registry.fail(
        "HEAD",
        std::iter::repeat_n(Fault::StatusWith(429, "retry-after", "3600"), 3),
    );
    let error = error_of(&store, &name).await;
    assert!(error.message.contains("429 Too Many Requests"), "{error}");
    registry.fail("HEAD", std::iter::repeat_n(Fault::Status(500), 3));
    let error = error_of(&store, &name).await;
    assert!(
        error.message.contains("unexpected status from HEAD request to http://"),
        "{error}"
    );
    assert!(error.message.ends_with("500 Internal Server Error"), "{error}");
    let layer = Digest::of(&image.layers[0]);
    registry.fail(layer.as_str(), std::iter::repeat_n(Fault::CutAfter(1), 3));
    let error = error_of(&store, &name).await;
    assert!(error.message.contains("connection closed after"), "{error}");
    // A registry that redirects to itself.
    registry.fail(
        "HEAD",
        std::iter::repeat_n(Fault::Redirect("/v2/a/manifests/v1".into()), 20),
    );
    let error = error_of(&store, &name).await;
    assert!(error.message.contains("stopped after 10 redirects"), "{error}");
    assert_clean(dir.path());
}

#[tokio::test]
async fn servers_that_hang() {
    let (dir, registry, image, _) = fixture("a").await;
    let name = registry.name("a:v1");
    let brief = Duration::from_millis(30);
    let timeouts = Timeouts {
        response: brief,
        idle: brief,
        attempts: 2,
        ..quick()
    };
    let store = ImageStore::open(dir.path(), Options { timeouts, ..options() })
        .await
        .unwrap();
    registry.fail("HEAD", [Fault::Hang, Fault::Hang]);
    let error = error_of(&store, &name).await;
    assert!(error.message.contains("i/o timeout"), "{error}");
    assert_eq!(error.code, crate::Code::DeadlineExceeded);
    let layer = Digest::of(&image.layers[0]);
    registry.fail(layer.as_str(), [Fault::HangAfter(3), Fault::HangAfter(3)]);
    let error = error_of(&store, &name).await;
    assert!(error.message.contains("i/o timeout"), "{error}");
    // Resumed after a silence.
    registry.fail(layer.as_str(), [Fault::HangAfter(3)]);
    store.pull(&spec(&name), None, silent()).await.unwrap();
    assert_clean(dir.path());
}

#[tokio::test]
async fn credentials() {
    let (_dir, registry, _, _) = fixture("a").await;
    let name = registry.name("a:v1");
    let basic = AuthConfig {
        username: "user".to_string(),
        password: "secret".to_string(),
        ..AuthConfig::default()
    };
    let identity = AuthConfig {
        identity_token: "identity+1".to_string(),
        ..AuthConfig::default()
    };
    let registry_token = AuthConfig {
        registry_token: "given".to_string(),
        ..AuthConfig::default()
    };
    for (access, auth) in [
        (Access::Basic, &basic),
        (Access::Token, &basic),
        (Access::Identity, &identity),
        (Access::RegistryToken, &registry_token),
    ] {
        registry.set_access(access.clone());
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await;
        let error = error_of(&store, &name).await;
        assert!(error.message.contains("401 Unauthorized"), "{access:?}: {error}");
        let wrong = AuthConfig {
            username: "user".to_string(),
            password: "wrong".to_string(),
            ..AuthConfig::default()
        };
        assert!(store.pull(&spec(&name), Some(&wrong), silent()).await.is_err());
        store.pull(&spec(&name), Some(auth), silent()).await.unwrap();
    }
    registry.set_access(Access::Token);
    registry.fail("/token", [Fault::Status(401)]);
    let dir = tempfile::tempdir().unwrap();
    let error = error_of(&open(dir.path()).await, &name).await;
    assert!(
        error
            .message
            .contains("failed to authorize: failed to fetch token: unexpected status from GET request"),
        "{error}"
    );
}

#[tokio::test]
async fn secrets_stay_with_their_registry() {
    let (_dir, registry, image, store) = fixture("a").await;
    let elsewhere = TestRegistry::start().await;
    elsewhere.put_blobs(&image);
    registry.set_access(Access::Basic);
    let layer = Digest::of(&image.layers[0]);
    let to = format!("http://{}/v2/x/blobs/{layer}", elsewhere.address);
    // The first answer is a challenge to the request without credentials.
    registry.fail(layer.as_str(), [Fault::Redirect(to)]);
    let auth = AuthConfig {
        username: "user".to_string(),
        password: "secret".to_string(),
        ..AuthConfig::default()
    };
    store
        .pull(&spec(&registry.name("a:v1")), Some(&auth), silent())
        .await
        .unwrap();
    let there = elsewhere.headers_of("blobs");
    assert_eq!(there.len(), 1);
    assert!(!there[0].contains_key("authorization"));
}

#[tokio::test]
async fn mirrors_are_asked_first() {
    let (dir, mirror, image, _) = fixture("hub/library/hello").await;
    let broken = TestRegistry::start().await;
    broken.fail("HEAD", std::iter::repeat_n(Fault::Status(404), 100));
    let yaml = format!(
        "mirrors: {{ r.example: {{ endpoint: ['http://{}', 'http://{}'], rewrite: {{ '^(.*)$': 'hub/$1' }} }} }}",
        broken.address, mirror.address
    );
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
    let id = store
        .pull(&spec("r.example/library/hello:v1"), None, silent())
        .await
        .unwrap();
    assert_eq!(id, image.id().to_string());
    assert!(
        mirror.log().iter().all(|line| line.ends_with("?ns=r.example")),
        "{:?}",
        mirror.log()
    );
    assert_eq!(broken.count("HEAD"), 1);
    let status = store
        .status(&spec("r.example/library/hello:v1"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        status.repo_digests,
        [format!("r.example/library/hello@{}", image.digest())]
    );
}

#[tokio::test]
async fn too_many_layers_are_refused_before_any_is_downloaded() {
    let (dir, registry, _, store) = fixture("a").await;
    let layer = images::gzip(&files(&[("a", b"")]));
    let diff_id = Digest::of(&files(&[("a", b"")]));
    let image = TestImage::with_layers(vec![layer.clone(); 10_000], &vec![diff_id; 10_000]);
    registry.push("a", "deep", &image);
    let error = error_of(&store, &registry.name("a:deep")).await;
    assert!(
        error
            .message
            .contains("too many layers: the image has 10000, at most 127 are supported"),
        "{error}"
    );
    assert_eq!(registry.count("blobs"), 0);
    assert_clean(dir.path());
}

#[tokio::test]
async fn images_that_lie_about_their_layers() {
    let (dir, registry, _, store) = fixture("a").await;
    let archive = files(&[("a", b"")]);
    let wrong = TestImage::with_layers(vec![images::gzip(&archive)], &[Digest::of(b"something else")]);
    registry.push("a", "wrong", &wrong);
    let error = error_of(&store, &registry.name("a:wrong")).await;
    assert!(error.message.contains("failed to extract layer"), "{error}");
    assert!(
        error.message.contains("wrong diff id calculated on extraction"),
        "{error}"
    );
    let fewer = TestImage::with_layers(vec![images::gzip(&archive)], &[]);
    registry.push("a", "fewer", &fewer);
    let error = error_of(&store, &registry.name("a:fewer")).await;
    assert!(
        error.message.contains("mismatched image rootfs and manifest layers"),
        "{error}"
    );
    assert_eq!(names(&dir.path().join("layers")), Vec::<String>::new());
    assert_clean(dir.path());
}

#[tokio::test]
async fn pulls_of_the_same_download_once() {
    let (dir, registry, image, store) = fixture("a").await;
    let name = registry.name("a:v1");
    let pulls = (0..5).map(|_| async { store.pull(&spec(&name), None, silent()).await });
    for id in futures::future::join_all(pulls).await {
        assert_eq!(id.unwrap(), image.id().to_string());
    }
    for layer in &image.layers {
        assert_eq!(registry.count(Digest::of(layer).as_str()), 1);
    }
    assert_clean(dir.path());
}

#[tokio::test]
async fn images_of_our_own_registry_are_never_asked_for() {
    let (_dir, _, _, store) = fixture("a").await;
    let error = error_of(&store, "orlop.local/other").await;
    assert_eq!(error.code, crate::Code::NotFound);
    assert!(error.message.contains("orlop.local/other:latest"), "{error}");
}
