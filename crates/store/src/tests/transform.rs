//! Records that the log holds in another form: sealed with one key, opened with some.

use std::path::Path;

use super::*;
use crate::log::{EmbeddedLog, EmbeddedOptions};
use crate::{OpenError, TransformError, Transformer};

/// Writes `KEY:text` in capitals, and reads what the keys it knows have written. Keys are digits; the first writes.
struct Keys(&'static str);

impl Transformer for Keys {
    fn seal(&self, key: &str, plain: &Bytes) -> Result<Option<Bytes>, TransformError> {
        if key.ends_with("/refused") {
            return Err(TransformError("no key for this".to_string()));
        }
        let text = String::from_utf8_lossy(plain).to_ascii_uppercase();
        Ok(Some(format!("{}:{text}", &self.0[..1]).into()))
    }

    fn open(&self, _: &str, sealed: &Bytes) -> Result<Option<Bytes>, TransformError> {
        let sealed = String::from_utf8_lossy(sealed).into_owned();
        match sealed.split_once(':') {
            Some((key, text)) if self.0.contains(key) => Ok(Some(text.to_ascii_lowercase().into())),
            _ => Err(TransformError(format!("unknown key of {sealed}"))),
        }
    }
}

fn open(dir: &Path, keys: &'static str) -> Result<TestStore, OpenError> {
    let log = EmbeddedLog::open(
        dir,
        EmbeddedOptions {
            snapshot_bytes: 2000,
            ..Default::default()
        },
    )?;
    let options = Options {
        transformer: Some(Arc::new(Keys(keys))),
        ..Options::default()
    };
    Store::open(Box::new(log), options)
}

fn holds(dir: &Path, text: &str) -> bool {
    let files = std::fs::read_dir(dir).unwrap();
    let mut contents = files.map(|entry| std::fs::read(entry.unwrap().path()).unwrap_or_default());
    contents.any(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

#[tokio::test]
async fn keys_are_rotated_and_old_ones_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, c) = ("/registry/pods/ns/a", "/registry/pods/ns/b", "/registry/pods/ns/c");
    let store = open(dir.path(), "1").unwrap();
    for key in [a, b, c] {
        put(&store, key, "plain").await;
    }
    assert!(holds(dir.path(), "1:PLAIN") && !holds(dir.path(), "plain"));
    drop(store);

    let store = open(dir.path(), "21").unwrap();
    let before = list(&store, "/", None);
    put(&store, a, "plain").await;
    delete(&store, b).await;
    assert_eq!(store.compacted(), 0);
    drop(store);
    let Err(OpenError::Record { key, reason }) = open(dir.path(), "2").map(drop) else {
        panic!("c is still under the old key")
    };
    assert_eq!((key.as_str(), reason.0.as_str()), (c, "unknown key of 1:PLAIN"));

    let store = open(dir.path(), "21").unwrap();
    put(&store, c, "plain").await;
    let after = list(&store, "/", None);
    drop(store);
    let store = open(dir.path(), "2").unwrap();
    assert_eq!(list(&store, "/", None), after);
    assert_eq!((before.len(), after.len()), (3, 2));
    // History begins where nothing is under the old key any more.
    assert_eq!(store.compacted(), 7);
    drop(store);
    assert!(open(dir.path(), "3").is_err());
}

#[tokio::test]
async fn snapshots_are_sealed_and_what_cannot_be_sealed_is_refused_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), "1").unwrap();
    let text = "plain ".repeat(100);
    for round in 0..30 {
        put(&store, &format!("/registry/pods/ns/p{}", round % 3), &text).await;
    }
    let refused = store
        .commit(Op::new(
            "/registry/pods/ns/refused",
            Expect::Any,
            Action::Put(value("x")),
        ))
        .await;
    assert!(matches!(refused, Err(CommitError::Unavailable(why)) if why == "no key for this"));
    let before = list(&store, "/", None);
    store.close().await;
    assert!(!holds(dir.path(), "plain"));
    let store = open(dir.path(), "1").unwrap();
    assert_eq!(list(&store, "/", None), before);
}
