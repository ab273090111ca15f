//! Whatever moment it ends at, the store is whole.

use std::future::Future;
use std::task::Poll;

use super::images::files;
use super::*;

/// Polls a future so often, then drops it. `None` if it was dropped before it ended.
async fn for_a_while<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut count = 0;
    std::future::poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            count += 1;
            match count > polls {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        }
    })
    .await
}

/// Everything that is listed is there, and nothing else is once all work has ended.
async fn check_whole(dir: &Path, store: &ImageStore) {
    let index = store.inner.read_index().await.unwrap();
    for record in index.images.values() {
        assert!(store.inner.is_complete(record).await.unwrap());
    }
    for layer in names(&dir.join("layers")) {
        let info: LayerInfo = read_json(&dir.join("layers").join(&layer).join("layer.json"))
            .unwrap()
            .unwrap();
        assert!(info.chain_id.hex().starts_with(&layer));
    }
    let blobs = dir.join("blobs/sha256");
    if blobs.exists() {
        for blob in names(&blobs) {
            let content = std::fs::read(blobs.join(&blob)).unwrap();
            assert_eq!(Digest::of(&content).hex(), blob);
        }
    }
}

#[tokio::test]
async fn a_pull_that_is_dropped_at_any_point() {
    let registry = TestRegistry::start().await;
    let archives: Vec<Vec<u8>> = (0..4).map(|n| files(&[(&format!("file-{n}"), &[n; 70_000])])).collect();
    let image = TestImage::new(&archives);
    registry.push_index("a", "v1", &image);
    let name = registry.name("a:v1");
    let dir = tempfile::tempdir().unwrap();
    let mut finished = 0;
    for polls in 0..200 {
        let store = open(dir.path()).await;
        let pulled = for_a_while(polls, store.pull(&spec(&name), None, silent())).await;
        check_whole(dir.path(), &store).await;
        let listed = store.status(&spec(&name)).await.unwrap();
        if let Some(id) = pulled {
            assert_eq!(id.unwrap(), image.id().to_string());
            assert!(listed.is_some());
            finished += 1;
            store.remove(&spec(&name)).await.unwrap();
        }
        if finished > 3 {
            break;
        }
    }
    assert!(finished > 0);
    // What was interrupted last may still be on its way out; then nothing is left but what is listed.
    let store = open(dir.path()).await;
    store.remove(&spec(&name)).await.unwrap();
    loop {
        store.prune(Prune::Unused).await.unwrap();
        if names(&dir.path().join("work")).is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    store.prune(Prune::Unused).await.unwrap();
    assert_eq!(names(&dir.path().join("layers")), Vec::<String>::new());
    assert_eq!(names(&dir.path().join("blobs/sha256")), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_killed_process_left_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).await);
    let work = dir.path().join("work/4194305-0");
    std::fs::create_dir_all(work.join("layer-x/fs/etc")).unwrap();
    std::fs::write(work.join("lease"), "{").unwrap();
    std::fs::create_dir(dir.path().join("work/4194305-1")).unwrap();
    std::fs::write(dir.path().join("holders/x.new"), "{").unwrap();
    std::fs::write(dir.path().join("index.new"), "{").unwrap();
    let store = open(dir.path()).await;
    assert_clean(dir.path());
    // Somebody else's work under way is left alone.
    let other = open(dir.path()).await;
    let under_way = other.inner.layout.begin_work().unwrap();
    open(dir.path()).await;
    assert!(under_way.path("lease").exists());
    store.prune(Prune::Unused).await.unwrap();
}

#[tokio::test]
async fn leased_content_is_not_swept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let layout = &store.inner.layout;
    let work = layout.begin_work().unwrap();
    let digest = Digest::of(b"content");
    let needs = content::Needs {
        blobs: [digest.clone()].into(),
        layers: Default::default(),
    };
    work.rely_on(&needs).unwrap();
    work.write_blob(&digest, b"content").unwrap();
    store.prune(Prune::Unused).await.unwrap();
    assert!(layout.has_blob(&digest));
    drop(work);
    store.prune(Prune::Unused).await.unwrap();
    assert!(!layout.has_blob(&digest));
}

#[tokio::test]
async fn a_damaged_index_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).await);
    std::fs::write(dir.path().join("index.json"), "{ not json").unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.list().await.unwrap(), []);
    assert!(dir.path().join("index.damaged").exists());
    std::fs::write(
        dir.path().join("format.json"),
        r#"{"version":99,"whiteouts":"overlay"}"#,
    )
    .unwrap();
    let error = ImageStore::open(dir.path(), options()).await.err().unwrap().chain();
    assert!(error.contains("image store has version 99, expected 1"), "{error}");
}

#[tokio::test]
async fn two_processes_share_a_store() {
    let registry = TestRegistry::start().await;
    let (one, two) = (TestImage::small("one"), TestImage::small("two"));
    registry.push("a", "one", &one);
    registry.push("a", "two", &two);
    let dir = tempfile::tempdir().unwrap();
    // Two stores share nothing but the directory, as two processes do.
    let (first, second) = (open(dir.path()).await, open(dir.path()).await);
    let (name_one, name_two) = (registry.name("a:one"), registry.name("a:two"));
    for _ in 0..5 {
        let (spec_one, spec_two) = (spec(&name_one), spec(&name_two));
        let (a, b, c) = futures::join!(
            first.pull(&spec_one, None, silent()),
            second.pull(&spec_one, None, silent()),
            second.pull(&spec_two, None, silent()),
        );
        assert_eq!((a.unwrap(), b.unwrap()), (one.id().to_string(), one.id().to_string()));
        c.unwrap();
        assert_eq!(first.list().await.unwrap(), second.list().await.unwrap());
        let (removed, pulled) = futures::join!(first.remove(&spec_one), second.pull(&spec_two, None, silent()));
        removed.unwrap();
        pulled.unwrap();
        check_whole(dir.path(), &first).await;
        second.prepare(&name_two, &holder("c")).await.unwrap();
        first.remove(&spec_two).await.unwrap();
        second.release(&holder("c")).await.unwrap();
    }
    assert_eq!(names(&dir.path().join("layers")), Vec::<String>::new());
}

const KILLED_STORE: &str = "ORLOP_TEST_KILLED_STORE";
const KILLED_IMAGE: &str = "ORLOP_TEST_KILLED_IMAGE";

/// Pulls and removes until it is killed: what the next test starts, in a process of its own.
#[tokio::test]
async fn killed_process() {
    let (Ok(dir), Ok(image)) = (std::env::var(KILLED_STORE), std::env::var(KILLED_IMAGE)) else {
        return;
    };
    let store = open(Path::new(&dir)).await;
    while store.pull(&spec(&image), None, silent()).await.is_ok() {
        store.prepare(&image, &holder("c")).await.unwrap();
        store.remove(&spec(&image)).await.unwrap();
        store.release(&holder("c")).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_is_killed_at_any_point() {
    let registry = TestRegistry::start().await;
    let archives: Vec<Vec<u8>> = (0..3).map(|n| files(&[(&format!("file-{n}"), &[n; 50_000])])).collect();
    let image = TestImage::new(&archives);
    registry.push("a", "v1", &image);
    let name = registry.name("a:v1");
    let dir = tempfile::tempdir().unwrap();
    let mut random = orlop_base::Random::seeded(17);
    for _ in 0..15 {
        let before = registry.log().len();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::images::tests::crashes::killed_process"])
            .env(KILLED_STORE, dir.path())
            .env(KILLED_IMAGE, &name)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // After so many requests, and a little later.
        let after = before + 1 + random.below(20) as usize;
        while registry.log().len() < after {
            assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
            tokio::task::yield_now().await;
        }
        for _ in 0..random.below(2000) {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let store = open(dir.path()).await;
        assert_clean(dir.path());
        check_whole(dir.path(), &store).await;
    }
    let store = open(dir.path()).await;
    store.pull(&spec(&name), None, silent()).await.unwrap();
    store.remove(&spec(&name)).await.unwrap();
    store.release_absent("node", &[]).await.unwrap();
    store.prune(Prune::Unused).await.unwrap();
    assert_eq!(names(&dir.path().join("layers")), Vec::<String>::new());
    assert_eq!(names(&dir.path().join("blobs/sha256")), Vec::<String>::new());
    assert_eq!(names(&dir.path().join("holders")), Vec::<String>::new());
}
