//! Keys, transactions, compaction.

use super::*;

#[tokio::test]
async fn keys_have_versions_and_lives() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    assert_eq!(put(&server, "a", "1").await, 2);
    assert_eq!(put(&server, "a", "2").await, 3);
    assert_eq!(put(&server, "b", "1").await, 4);
    assert_eq!(list(&server, "a", "c", 0).unwrap(), ["a=2@3(2,2)", "b=1@4(4,1)"]);
    assert_eq!(list(&server, "a", "", 2).unwrap(), ["a=1@2(2,1)"]);
    assert_eq!(delete(&server, "a", "\0").await, 2);
    assert_eq!(delete(&server, "a", "\0").await, 0);
    assert_eq!(server.revision(), 5);
    put(&server, "a", "3").await;
    assert_eq!(list(&server, "a", "", 0).unwrap(), ["a=3@6(6,1)"], "a new life");
    assert_eq!(list(&server, "a", "", 4).unwrap(), ["a=2@3(2,2)"]);

    server.close().await;
    drop(server);
    let server = open(dir.path()).await;
    put(&server, "a", "4").await;
    assert_eq!(list(&server, "a", "", 0).unwrap(), ["a=4@7(6,2)"]);
}

#[tokio::test]
async fn keys_may_be_any_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    for key in [&b"\xff\xfe"[..], b"\x00", b"\x80", b"z"] {
        let request = PutRequest {
            key: Bytes::from_static(key),
            ..PutRequest::default()
        };
        server.put(request).await.unwrap();
    }
    let keys = |key: &'static [u8], end: &'static [u8]| {
        let request = RangeRequest {
            key: Bytes::from_static(key),
            range_end: Bytes::from_static(end),
            ..RangeRequest::default()
        };
        let response = server.range(&request).unwrap();
        response.kvs.iter().map(|kv| kv.key.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(keys(b"\0", b"\0"), [&b"\x00"[..], b"z", b"\x80", b"\xff\xfe"]);
    assert_eq!(keys(b"{", b"\xff"), [b"\x80"]);
    assert_eq!(keys(b"z", b"a"), [b""; 0]);
}

#[tokio::test]
async fn previous_pairs_and_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let (lease, _) = server.leases.grant(7, 100).await.unwrap();
    let with_lease = PutRequest {
        lease,
        ..put_request("k", "v")
    };
    server.put(with_lease.clone()).await.unwrap();
    let keep_value = PutRequest {
        ignore_value: true,
        prev_kv: true,
        ..put_request("k", "")
    };
    let previous = server.put(keep_value.clone()).await.unwrap().prev_kv.unwrap();
    assert_eq!((previous.lease, show(&previous).as_str()), (7, "k=v@2(2,1)"));
    let now = server.range(&range_request("k", "")).unwrap().kvs.remove(0);
    assert_eq!((now.lease, show(&now).as_str()), (0, "k=v@3(2,2)"));

    server.put(with_lease.clone()).await.unwrap();
    let keep_lease = PutRequest {
        ignore_lease: true,
        ..put_request("k", "w")
    };
    server.put(keep_lease.clone()).await.unwrap();
    let now = server.range(&range_request("k", "")).unwrap().kvs.remove(0);
    assert_eq!((now.lease, show(&now).as_str()), (7, "k=w@5(2,4)"));

    for request in [keep_value, keep_lease] {
        let nobody = PutRequest {
            key: bytes("nobody"),
            ..request
        };
        assert_eq!(server.put(nobody).await.unwrap_err(), Error::KeyNotFound);
    }
    let unknown = PutRequest { lease: 8, ..with_lease };
    assert_eq!(server.put(unknown).await.unwrap_err(), Error::LeaseNotFound);
    let request = DeleteRangeRequest {
        key: bytes("k"),
        prev_kv: true,
        ..DeleteRangeRequest::default()
    };
    let deleted = server.delete_range(request).await.unwrap();
    assert_eq!(deleted.prev_kvs.iter().map(show).collect::<Vec<_>>(), ["k=w@5(2,4)"]);
    assert_eq!(server.revision(), 6, "what was refused took no revision");
}

fn compare(key: &str, result: CompareResult, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        result: result as i32,
        target: target as i32,
        key: bytes(key),
        target_union: Some(union),
        range_end: Bytes::new(),
    }
}

#[tokio::test]
async fn comparisons() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use CompareTarget::{Create, Lease, Mod, Value, Version};
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    put(&server, "k", "m").await;
    put(&server, "k", "m").await;
    put(&server, "l", "n").await;
    let value = |text: &str| TargetUnion::Value(bytes(text));
    let table = [
        (compare("k", Equal, Value, value("m")), true),
        (compare("k", Greater, Value, value("l")), true),
        (compare("k", Less, Value, value("m")), false),
        (compare("k", NotEqual, Value, value("m")), false),
        (compare("k", Equal, Version, TargetUnion::Version(2)), true),
        (compare("k", Equal, Create, TargetUnion::CreateRevision(2)), true),
        (compare("k", Equal, Mod, TargetUnion::ModRevision(3)), true),
        (compare("k", Less, Mod, TargetUnion::ModRevision(3)), false),
        (compare("k", Equal, Lease, TargetUnion::Lease(0)), true),
        // A key that is not there is one of revision and version 0, and has no value at all.
        (compare("none", Equal, Mod, TargetUnion::ModRevision(0)), true),
        (compare("none", Equal, Version, TargetUnion::Version(0)), true),
        (compare("none", NotEqual, Value, value("x")), false),
        // Of a value of another kind than the target, nothing is taken.
        (compare("none", Equal, Mod, TargetUnion::Version(9)), true),
        (compare("k", Equal, Mod, TargetUnion::Version(3)), false),
        // All keys of a range.
        (
            Compare {
                range_end: bytes("z"),
                ..compare("k", Greater, Mod, TargetUnion::ModRevision(2))
            },
            true,
        ),
        (
            Compare {
                range_end: bytes("z"),
                ..compare("k", Equal, Mod, TargetUnion::ModRevision(3))
            },
            false,
        ),
    ];
    for (compare, expected) in table {
        let request = TxnRequest {
            compare: vec![compare.clone()],
            ..TxnRequest::default()
        };
        assert_eq!(server.txn(request).await.unwrap().succeeded, expected, "{compare:?}");
    }
    assert_eq!(server.revision(), 4);
}

#[tokio::test]
async fn a_transaction_sees_its_own_writes_and_takes_one_revision() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    put(&server, "a", "1").await;
    let inner = TxnRequest {
        // Seen before the transaction, as all comparisons.
        compare: vec![compare(
            "b",
            CompareResult::Equal,
            CompareTarget::Version,
            TargetUnion::Version(0),
        )],
        success: vec![op(Request::Put(put_request("c", "inner")))],
        failure: vec![op(Request::Put(put_request("c", "wrong")))],
    };
    let request = TxnRequest {
        compare: vec![],
        success: vec![
            op(Request::Range(range_request("a", "\0"))),
            op(Request::Put(put_request("b", "2"))),
            op(Request::Txn(inner)),
            op(Request::Range(range_request("a", "\0"))),
            op(Request::DeleteRange(DeleteRangeRequest {
                key: bytes("a"),
                ..DeleteRangeRequest::default()
            })),
            op(Request::Range(range_request("a", "\0"))),
            op(Request::Range(RangeRequest {
                revision: 2,
                ..range_request("a", "\0")
            })),
        ],
        failure: vec![],
    };
    let response = server.txn(request).await.unwrap();
    assert_eq!((response.succeeded, response.header.unwrap().revision), (true, 3));
    let ranges: Vec<Vec<String>> = response
        .responses
        .iter()
        .filter_map(|response| match &response.response {
            Some(Response::Range(range)) => Some(range.kvs.iter().map(show).collect()),
            _ => None,
        })
        .collect();
    assert_eq!(ranges[0], ["a=1@2(2,1)"]);
    assert_eq!(ranges[1], ["a=1@2(2,1)", "b=2@3(3,1)", "c=inner@3(3,1)"]);
    assert_eq!(ranges[2], ["b=2@3(3,1)", "c=inner@3(3,1)"]);
    assert_eq!(ranges[3], ["a=1@2(2,1)"]);
    assert_eq!(list(&server, "a", "\0", 0).unwrap(), ranges[2]);
}

#[tokio::test]
async fn a_transaction_that_can_not_be_done_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let put_first = op(Request::Put(put_request("a", "1")));
    let bad_lease = op(Request::Put(PutRequest {
        lease: 99,
        ..put_request("b", "1")
    }));
    let future = op(Request::Range(RangeRequest {
        revision: 99,
        ..range_request("a", "")
    }));
    for (bad, error) in [(bad_lease, Error::LeaseNotFound), (future, Error::FutureRevision)] {
        let request = TxnRequest {
            success: vec![put_first.clone(), bad],
            ..TxnRequest::default()
        };
        assert_eq!(server.txn(request).await.unwrap_err(), error);
    }
    assert_eq!((server.revision(), list(&server, "a", "", 0).unwrap().len()), (1, 0));
}

#[tokio::test]
async fn counters_that_many_increment_by_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    put(&server, "n", "0").await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while done < 25 {
                    let now = server.range(&range_request("n", "")).unwrap().kvs.remove(0);
                    let value: u64 = std::str::from_utf8(&now.value).unwrap().parse().unwrap();
                    let same = TargetUnion::ModRevision(now.mod_revision);
                    let request = TxnRequest {
                        compare: vec![compare("n", CompareResult::Equal, CompareTarget::Mod, same)],
                        success: vec![op(Request::Put(put_request("n", &(value + 1).to_string())))],
                        failure: vec![],
                    };
                    done += u64::from(server.txn(request).await.unwrap().succeeded);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(list(&server, "n", "", 0).unwrap(), ["n=200@202(2,201)"]);
}

#[tokio::test]
async fn compaction_refuses_the_past_and_stays_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    for n in 0..5 {
        put(&server, "k", &n.to_string()).await;
    }
    let compact = |revision| CompactionRequest {
        revision,
        physical: true,
    };
    server.compact(&compact(4)).await.unwrap();
    assert_eq!(list(&server, "k", "", 4).unwrap(), ["k=2@4(2,3)"]);
    for (revision, error) in [(3, Error::Compacted), (7, Error::FutureRevision)] {
        assert_eq!(list(&server, "k", "", revision).unwrap_err(), error);
    }
    assert_eq!(server.compact(&compact(4)).await.unwrap_err(), Error::Compacted);
    assert_eq!(server.compact(&compact(9)).await.unwrap_err(), Error::FutureRevision);
    let status = tonic::Status::from(Error::Compacted);
    assert_eq!(
        (status.code(), status.message()),
        (
            tonic::Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted"
        )
    );
    server.close().await;
    drop(server);
    let server = open(dir.path()).await;
    assert_eq!(list(&server, "k", "", 3).unwrap_err(), Error::Compacted);
    assert_eq!(list(&server, "k", "", 5).unwrap(), ["k=3@5(2,4)"]);
}

#[tokio::test]
async fn the_quota_raises_an_alarm_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        quota_bytes: Some(5000),
        ..settings(dir.path())
    };
    let server = open_with(settings.clone()).await;
    put(&server, "k", &"x".repeat(6000)).await;
    assert_eq!(server.put(put_request("l", "1")).await.unwrap_err(), Error::NoSpace);
    server.close().await;
    drop(server);
    let server = open_with(settings).await;
    assert_eq!(delete(&server, "k", "").await, 1, "room can be made");
    assert_eq!(server.put(put_request("l", "1")).await.unwrap_err(), Error::NoSpace);
    let compact = CompactionRequest {
        revision: 3,
        physical: true,
    };
    server.compact(&compact).await.unwrap();
    let disarm = AlarmRequest {
        action: AlarmAction::Deactivate as i32,
        member_id: 0,
        alarm: AlarmType::NoSpace as i32,
    };
    assert_eq!(server.alarm(&disarm).await.unwrap().alarms.len(), 1);
    put(&server, "l", "1").await;
    assert_eq!(server.alarm(&AlarmRequest::default()).await.unwrap().alarms, []);
    let large = server.put(put_request("l", &"x".repeat(2 << 20))).await;
    assert_eq!(large.unwrap_err(), Error::TooLarge);
}

#[tokio::test]
async fn the_member_is_the_same_after_a_restart_with_other_flags() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).await;
    let (status, hash) = (
        first.status(),
        first.hash_kv(&HashKvRequest { revision: 0 }).unwrap().hash,
    );
    assert_eq!(
        (status.leader, status.version.as_str()),
        (first.member_id(), crate::VERSION)
    );
    first.close().await;
    drop(first);
    let moved = Settings {
        cluster_token: "other".into(),
        ..settings(dir.path())
    };
    let second = open_with(moved).await;
    assert_eq!(second.member_id(), status.leader);
    assert_eq!(second.hash_kv(&HashKvRequest { revision: 0 }).unwrap().hash, hash);
}
