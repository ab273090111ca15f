//! Transactions that are decided in the writer thread, and ranges between two keys.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::model::join_all;
use super::*;
use crate::{Item, View, Write};

fn text(item: &Item<Bytes>) -> String {
    format!("{}={}", item.key, String::from_utf8_lossy(&item.record))
}

fn seen(view: &View<'_, Bytes>, from: &str, before: &str) -> Vec<String> {
    let mut lines = Vec::new();
    view.range(from, before, &mut |item| {
        lines.push(text(&item));
        true
    });
    lines
}

fn write(key: &str, record: Option<&str>) -> Write<Bytes> {
    Write {
        key: key.into(),
        record: record.map(value),
    }
}

#[tokio::test]
async fn a_decision_sees_what_the_one_before_it_decided() {
    let store = memory(Options::default());
    // All in one batch or in several: each has to count what is there and add one.
    let count = || {
        store.decide(
            10,
            Box::new(|view| {
                let there = seen(view, "/a/b/", "/a/b0").len();
                vec![write(&format!("/a/b/{there:03}"), Some("x"))]
            }),
        )
    };
    let revisions = join_all((0..200).map(|_| count()).collect()).await;
    let revisions: Vec<_> = revisions.into_iter().map(Result::unwrap).collect();
    assert_eq!(revisions, (2..202).collect::<Vec<_>>());
    assert_eq!(store.count("/a/b/"), 200);
}

#[tokio::test]
async fn a_decision_that_changes_nothing_takes_no_revision() {
    let store = memory(Options::default());
    put(&store, "/a/b/1", "x").await;
    assert_eq!(store.decide(0, Box::new(|_| vec![])).await.unwrap(), 2);
    let nothing = store.decide(0, Box::new(|_| vec![write("/a/b/none", None)]));
    assert_eq!(nothing.await.unwrap(), 2);
    let too_large = store.decide(33 << 20, Box::new(|_| panic!("not asked")));
    assert!(matches!(too_large.await, Err(CommitError::TooLarge { .. })));
}

#[tokio::test]
async fn a_decision_can_look_back() {
    let store = memory(Options::default());
    put(&store, "/a/b/1", "old").await;
    put(&store, "/a/b/1", "new").await;
    store.compact(2);
    let looked = store.decide(
        0,
        Box::new(|view| {
            let at = |revision| {
                let mut lines = Vec::new();
                let result = view.range_at(revision, "/a/b/", "/a/b0", &mut |item| {
                    lines.push(text(&item));
                    true
                });
                result.map(|()| lines)
            };
            assert_eq!(at(3).unwrap(), ["/a/b/1=new"]);
            assert_eq!(at(2).unwrap(), ["/a/b/1=old"]);
            assert_eq!(at(1), Err(crate::RangeError::Compacted { compacted: 2 }));
            assert_eq!(at(4), Err(crate::RangeError::Future { current: 3 }));
            assert_eq!((view.revision(), view.get("/a/b/2").is_none()), (3, true));
            vec![]
        }),
    );
    looked.await.unwrap();
}

fn key(n: u8) -> String {
    format!("/a/b/{n}")
}

/// What is there when a batch begins, what its transactions before the last one wrote, and a range that the last one reads.
fn scene() -> impl Strategy<Value = (BTreeMap<u8, u8>, Vec<(u8, Option<u8>)>, u8, u8)> {
    (
        prop::collection::btree_map(0..10u8, any::<u8>(), 0..8),
        prop::collection::vec((0..10u8, any::<Option<u8>>()), 0..8),
        0..10u8,
        0..10u8,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The view of a batch that is under way is the view of the state after it, and both ranges agree with a plain map.
    #[test]
    fn views_and_ranges_agree_with_a_map((stored, changes, from, before) in scene()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = memory(Options::default());
            for (n, text) in &stored {
                put(&store, &key(*n), &text.to_string()).await;
            }
            let mut expected = stored.clone();
            let mut under_way = Vec::new();
            for (n, text) in changes {
                match text {
                    Some(text) => expected.insert(n, text),
                    None => expected.remove(&n),
                };
                let writes = vec![write(&key(n), text.map(|t| t.to_string()).as_deref())];
                under_way.push(store.decide(8, Box::new(move |_| writes)));
            }
            let lines: Vec<String> = expected
                .iter()
                .filter(|(n, _)| (from..before).contains(n))
                .map(|(n, text)| format!("{}={text}", key(*n)))
                .collect();
            let want = lines.clone();
            under_way.push(store.decide(0, Box::new(move |view| {
                // A panic here would only close the store; the answer below shows it.
                assert_eq!(seen(view, &key(from), &key(before)), want);
                vec![]
            })));
            for answer in join_all(under_way).await {
                answer.unwrap();
            }
            let (from, before) = (key(from), key(before));
            let query = RangeQuery { from: Some(&from), before: Some(&before), ..RangeQuery::default() };
            let page = store.range(query, &mut |_| true).unwrap();
            assert_eq!(page.items.iter().map(text).collect::<Vec<_>>(), lines);
        });
    }
}
