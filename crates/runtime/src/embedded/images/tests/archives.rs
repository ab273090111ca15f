use std::process::Command;

use super::images::{archive, entry, files, gzip, link, zstd};
use std::fs::File;
use std::io::{self, Write};

use super::*;
use crate::embedded::images::tar::Kind;

/// A sink that tests can look into.
#[derive(Clone, Default)]
struct Sink(Arc<parking_lot::Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn save(store: &ImageStore, images: &[&str]) -> Result<Vec<u8>> {
    let sink = Sink::default();
    let images: Vec<String> = images.iter().map(|i| i.to_string()).collect();
    store.save(&images, sink.clone()).await?;
    Ok(sink.0.lock().clone())
}

async fn load(store: &ImageStore, bytes: Vec<u8>) -> Result<Vec<LoadedImage>> {
    store.load(io::Cursor::new(bytes)).await
}

/// As Docker before 25 saves: layers as plain archives, equal ones as links.
fn docker_save(tags: &[&str]) -> (Vec<u8>, Digest) {
    let (first, second) = (files(&[("a", b"1")]), files(&[("b", b"2")]));
    let diff_ids = [Digest::of(&first), Digest::of(&second), Digest::of(&first)];
    let image = TestImage::with_layers(vec![], &diff_ids);
    let manifest = serde_json::json!([{
        "Config": "config.json",
        "RepoTags": tags,
        "Layers": ["1/layer.tar", "2/layer.tar", "3/layer.tar"],
    }]);
    let bytes = archive(&[
        (entry("1/", Kind::Directory), b""),
        (entry("1/layer.tar", Kind::Regular), &first),
        (entry("./2/layer.tar", Kind::Regular), &second),
        (link("3/layer.tar", Kind::Symlink, "../1/layer.tar"), b""),
        (entry("config.json", Kind::Regular), &image.config),
        (entry("manifest.json", Kind::Regular), manifest.to_string().as_bytes()),
    ]);
    (bytes, image.id())
}

#[tokio::test]
async fn what_docker_saves_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (bytes, id) = docker_save(&["hello:v1", "r.io/x/hello:v2"]);
    for bytes in [bytes.clone(), gzip(&bytes), zstd(&bytes)] {
        let loaded = load(&store, bytes).await.unwrap();
        let tags = vec!["docker.io/library/hello:v1".to_string(), "r.io/x/hello:v2".to_string()];
        assert_eq!(
            loaded,
            [LoadedImage {
                id: id.to_string(),
                tags
            }]
        );
    }
    let prepared = store.prepare("hello:v1", &holder("c")).await.unwrap();
    assert_eq!(prepared.layers.len(), 3);
    assert_eq!(std::fs::read_to_string(prepared.layers[1].join("b")).unwrap(), "2");
    assert_eq!(prepared.image_ref, id.to_string());
    assert_clean(dir.path());
}

#[tokio::test]
async fn what_is_saved_can_be_loaded_again() {
    let registry = TestRegistry::start().await;
    let image = TestImage::small("one");
    registry.push_index("a", "v1", &image);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let name = registry.name("a:v1");
    store.pull(&spec(&name), None, silent()).await.unwrap();
    let (docker, docker_id) = docker_save(&["hello:v1", "hello:v2"]);
    load(&store, docker).await.unwrap();

    let bytes = save(&store, &[&name, "hello:v1"]).await.unwrap();
    let other_dir = tempfile::tempdir().unwrap();
    let other = open(other_dir.path()).await;
    let mut loaded = load(&other, bytes).await.unwrap();
    loaded.sort_by_key(|l| l.tags.clone());
    let ids = [image.id().to_string(), docker_id.to_string()];
    assert_eq!(
        loaded.iter().map(|l| &l.id).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>()
    );
    assert_eq!(loaded[1].tags, ["docker.io/library/hello:v1"]);
    let status = other.status(&spec(&name)).await.unwrap().unwrap();
    assert_eq!(
        status.repo_digests,
        [format!("{}@{}", registry.name("a"), image.digest())]
    );
    // By id with all its tags.
    let bytes = save(&store, &[docker_id.as_str()]).await.unwrap();
    assert_eq!(load(&other, bytes).await.unwrap()[0].tags.len(), 2);
    assert!(matches!(save(&store, &["nothing"]).await, Err(ImageError::NotFound(_))));
    assert_clean(dir.path());
    assert_clean(other_dir.path());
}

/// The archive is read by another program too, where there is one.
#[tokio::test]
async fn others_can_read_what_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let (bytes, _) = docker_save(&["hello:v1"]);
    load(&store, bytes).await.unwrap();
    let saved = dir.path().join("saved.tar");
    store
        .save(&["hello:v1".to_string()], File::create(&saved).unwrap())
        .await
        .unwrap();
    let listed = Command::new("tar").arg("tf").arg(&saved).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(
        listed.lines().take(3).collect::<Vec<_>>(),
        ["oci-layout", "index.json", "manifest.json"]
    );
    assert_eq!(listed.lines().count(), 3 + 2 + 2);
}

#[tokio::test]
async fn archives_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let manifest = |text: &str| files(&[("manifest.json", text.as_bytes())]);
    let loop_of_links = archive(&[
        (link("manifest.json", Kind::Symlink, "b"), b""),
        (link("b", Kind::Symlink, "manifest.json"), b""),
    ]);
    let (mut cut, _) = docker_save(&["a:b"]);
    cut.truncate(2000);
    for (bytes, want) in [
        (b"garbage".to_vec(), "invalid image archive"),
        (vec![], "neither index.json nor manifest.json"),
        (gzip(b"garbage"), "invalid image archive"),
        (gzip(&files(&[]))[..20].to_vec(), "invalid image archive"),
        (files(&[("x", b"")]), "neither index.json nor manifest.json"),
        (cut, "unexpected end of file"),
        (manifest("[]"), "neither index.json nor manifest.json"),
        (manifest("{}"), "manifest.json: "),
        (
            manifest(r#"[{"Config":"../../etc/passwd","Layers":[]}]"#),
            "../../etc/passwd is missing",
        ),
        (loop_of_links, "neither index.json nor manifest.json"),
        (
            files(&[("index.json", br#"{"schemaVersion":2,"manifests":[]}"#)]),
            "there is no image in it",
        ),
    ] {
        let error = load(&store, bytes).await.unwrap_err().chain();
        assert!(error.contains(want), "{error} / {want}");
        assert_clean(dir.path());
    }
    let (bytes, _) = docker_save(&["Not a tag"]);
    assert!(
        load(&store, bytes)
            .await
            .unwrap_err()
            .chain()
            .contains("invalid reference format")
    );
    assert_eq!(store.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_directory_of_archives_is_loaded_once() {
    let dir = tempfile::tempdir().unwrap();
    let archives = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.load_directory(&archives.path().join("none")).await.unwrap(), []);
    let (bytes, id) = docker_save(&["hello:v1"]);
    std::fs::write(archives.path().join("hello.tar.gz"), gzip(&bytes)).unwrap();
    std::fs::write(archives.path().join("broken.tar"), "garbage").unwrap();
    std::fs::write(archives.path().join("notes.txt"), "not looked at").unwrap();
    let loaded = store.load_directory(archives.path()).await.unwrap();
    assert_eq!(
        loaded.iter().map(|l| l.id.clone()).collect::<Vec<_>>(),
        [id.to_string()]
    );
    assert_eq!(store.load_directory(archives.path()).await.unwrap(), []);
    // Removed, it comes back with the next start.
    store.remove(&spec("hello:v1")).await.unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.load_directory(archives.path()).await.unwrap().len(), 1);
    assert_eq!(store.load_directory(archives.path()).await.unwrap().len(), 0);
    // Replaced, it is loaded again.
    let (bytes, _) = docker_save(&["hello:v2"]);
    std::fs::write(archives.path().join("hello.tar.gz"), gzip(&bytes)).unwrap();
    assert_eq!(
        store.load_directory(archives.path()).await.unwrap()[0].tags,
        ["docker.io/library/hello:v2"]
    );
}
