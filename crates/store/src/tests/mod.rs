//! Tests of the store as a whole; those of the files on disk are beside the embedded log.

mod concurrency;
mod decide;
mod durability;
mod model;
mod script;
mod semantics;
mod transform;

use std::sync::Arc;

use bytes::Bytes;

use crate::log::MemoryLog;
use crate::{Action, CommitError, Event, Expect, Op, Options, Page, RangeQuery, Revision, Store};

pub(crate) type TestStore = Store<Bytes>;

pub(crate) fn memory(options: Options) -> TestStore {
    Store::open(Box::new(MemoryLog::default()), options).unwrap()
}

pub(crate) fn value(text: &str) -> Arc<Bytes> {
    Arc::new(Bytes::copy_from_slice(text.as_bytes()))
}

/// Puts whatever is there.
pub(crate) async fn put(store: &TestStore, key: &str, text: &str) -> Revision {
    store
        .commit(Op::new(key, Expect::Any, Action::Put(value(text))))
        .await
        .unwrap()
}

pub(crate) async fn delete(store: &TestStore, key: &str) -> Revision {
    store.commit(Op::new(key, Expect::Any, Action::Delete)).await.unwrap()
}

/// `key=value@mod(created)` of each item.
pub(crate) fn show(page: &Page<Bytes>) -> Vec<String> {
    let line = |item: &crate::Item<Bytes>| {
        let text = String::from_utf8_lossy(&item.record).into_owned();
        format!("{}={text}@{}({})", item.key, item.mod_revision, item.create_revision)
    };
    page.items.iter().map(line).collect()
}

pub(crate) fn list(store: &TestStore, prefix: &str, at: Option<Revision>) -> Vec<String> {
    show(
        &store
            .range(
                RangeQuery {
                    prefix,
                    at,
                    ..RangeQuery::default()
                },
                &mut |_| true,
            )
            .unwrap(),
    )
}

/// `+key=value@revision` or `-key@revision`, then what was there before.
pub(crate) fn show_event(event: &Event<Bytes>) -> String {
    let text = |item: &crate::Item<Bytes>| String::from_utf8_lossy(&item.record).into_owned();
    let previous = event
        .previous
        .as_ref()
        .map_or(String::new(), |item| format!(" was {}", text(item)));
    match &event.item {
        Some(item) => format!("+{}={}@{}{previous}", event.key, text(item), event.revision),
        None => format!("-{}@{}{previous}", event.key, event.revision),
    }
}

pub(crate) fn show_events(events: &[Arc<Event<Bytes>>]) -> Vec<String> {
    events.iter().map(|event| show_event(event)).collect()
}

/// The key and the revision of what a conflict was with.
pub(crate) fn conflict(result: Result<Revision, CommitError<Bytes>>) -> (String, Option<Revision>) {
    match result {
        Err(CommitError::Conflict { key, current }) => (key.to_string(), current.map(|item| item.mod_revision)),
        other => panic!("expected a conflict, got {other:?}"),
    }
}
