//! Leases. Time is the runtime's, which stands still unless all tasks wait; the store's thread has its own.

use super::*;

async fn put_with(server: &Arc<Server>, key: &str, lease: i64) -> Result<(), Error> {
    let request = PutRequest {
        lease,
        ..put_request(key, "v")
    };
    server.put(request).await.map(drop)
}

async fn keys_of(server: &Server, id: i64) -> Option<Vec<String>> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let response = server.lease_time_to_live(&request).await;
    let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
    (response.ttl >= 0).then(|| response.keys.iter().map(text).collect())
}

#[tokio::test]
async fn a_revoked_lease_takes_its_keys_along() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let (id, ttl) = server.leases.grant(0, 60).await.unwrap();
    assert_eq!(ttl, 60);
    assert_eq!(server.leases.grant(id, 60).await.unwrap_err(), Error::LeaseExists);
    for key in ["a", "b", "c", "d"] {
        put_with(&server, key, id).await.unwrap();
    }
    // One written without it and one deleted are not its any more, nor is one that has another lease.
    let (other, _) = server.leases.grant(0, 60).await.unwrap();
    put(&server, "b", "free").await;
    delete(&server, "c", "").await;
    put_with(&server, "d", other).await.unwrap();
    assert_eq!(keys_of(&server, id).await.unwrap(), ["a"]);
    assert_eq!(keys_of(&server, other).await.unwrap(), ["d"]);

    let before = server.revision();
    server.lease_revoke(id).await.unwrap();
    assert_eq!(server.revision(), before + 1);
    assert_eq!(list(&server, "a", "c", 0).unwrap().len(), 1);
    assert_eq!(server.lease_revoke(id).await.unwrap_err(), Error::LeaseNotFound);
    assert_eq!(put_with(&server, "a", id).await.unwrap_err(), Error::LeaseNotFound);
    assert_eq!((keys_of(&server, id).await, server.lease_keep_alive(id).ttl), (None, 0));
    assert_eq!(server.lease_leases().leases, [LeaseStatus { id: other }]);
}

#[tokio::test]
async fn all_keys_go_in_one_revision_even_those_written_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let (id, _) = server.leases.grant(0, 60).await.unwrap();
    let writers: Vec<_> = (0..20)
        .map(|n| {
            let server = server.clone();
            tokio::spawn(async move { put_with(&server, &format!("k{n}"), id).await })
        })
        .collect();
    tokio::task::yield_now().await;
    server.lease_revoke(id).await.unwrap();
    for writer in writers {
        let written = writer.await.unwrap();
        assert!(matches!(written, Ok(()) | Err(Error::LeaseNotFound)), "{written:?}");
    }
    assert_eq!(list(&server, "k", "l", 0).unwrap(), [""; 0]);
}

#[tokio::test]
async fn leases_and_their_keys_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let (id, _) = server.leases.grant(-5, 60).await.unwrap();
    put_with(&server, "a", id).await.unwrap();
    server.close().await;
    drop(server);
    let server = open(dir.path()).await;
    assert_eq!(keys_of(&server, -5).await.unwrap(), ["a"]);
    assert_eq!(server.leases.standing(-5, false).unwrap().granted, 60);
    server.lease_revoke(-5).await.unwrap();
    assert_eq!(list(&server, "a", "", 0).unwrap().len(), 0);
}

#[tokio::test]
async fn leases_end_unless_they_are_kept_alive() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let (short, ttl) = server.leases.grant(1, 1).await.unwrap();
    assert_eq!(ttl, 2, "no shorter than an election");
    server.leases.grant(2, 1000).await.unwrap();
    put_with(&server, "short", short).await.unwrap();
    put_with(&server, "long", 2).await.unwrap();
    let revision = server.revision();
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(server.lease_keep_alive(short).ttl, 2);
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(server.leases.standing(short, false).unwrap().remaining, 0);
    assert_eq!(server.revision(), revision, "it has been kept alive");
    tokio::time::advance(Duration::from_millis(600)).await;
    tokio::time::resume();
    server.hub.reached(revision + 1).await;
    assert_eq!(list(&server, "a", "\0", 0).unwrap(), ["long=v@3(3,1)"]);
    assert_eq!(
        server.leases.grant(9, 9_000_000_001).await.unwrap_err(),
        Error::LeaseTtlTooLarge
    );
}
