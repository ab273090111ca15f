//! Watches, by the stream that a client would have.

use proptest::prelude::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::*;
use crate::watch;

struct Client {
    requests: mpsc::Sender<Result<WatchRequest, Status>>,
    answers: mpsc::Receiver<Result<WatchResponse, Status>>,
}

impl Client {
    fn connect(server: &Arc<Server>) -> Client {
        let (requests, receiver) = mpsc::channel(100);
        let answers = watch::serve(server.clone(), ReceiverStream::new(receiver));
        Client { requests, answers }
    }

    async fn ask(&self, union: WatchRequestUnion) {
        let request = WatchRequest {
            request_union: Some(union),
        };
        self.requests.send(Ok(request)).await.unwrap();
    }

    async fn next(&mut self) -> WatchResponse {
        self.answers.recv().await.unwrap().unwrap()
    }

    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.ask(WatchRequestUnion::Create(request)).await;
        self.next().await
    }

    /// So many events, over as many answers as it takes.
    async fn events(&mut self, count: usize) -> Vec<String> {
        let mut shown = Vec::new();
        while shown.len() < count {
            let response = self.next().await;
            assert!(!response.canceled && !response.created, "{response:?}");
            shown.extend(response.events.iter().map(show_event));
        }
        shown
    }
}

fn show_event(event: &Event) -> String {
    let kv = event.kv.as_ref().unwrap();
    let kind = if event.r#type == EventType::Put as i32 {
        '+'
    } else {
        '-'
    };
    let previous = event
        .prev_kv
        .as_ref()
        .map_or(String::new(), |kv| format!(" was {}", show(kv)));
    format!("{kind}{}{previous}", show(kv))
}

fn create(key: &str, range_end: &str, start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: bytes(key),
        range_end: bytes(range_end),
        start_revision,
        ..WatchCreateRequest::default()
    }
}

#[tokio::test]
async fn a_watch_sees_the_past_then_the_present() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    put(&server, "a", "1").await;
    put(&server, "b", "1").await;
    put(&server, "a", "2").await;
    let mut client = Client::connect(&server);
    let created = client.create(create("a", "c", 3)).await;
    assert!(created.created && created.watch_id == 0 && created.header.unwrap().revision == 4);
    assert_eq!(client.events(2).await, ["+b=1@3(3,1)", "+a=2@4(2,2)"]);
    put(&server, "z", "other").await;
    delete(&server, "a", "").await;
    put(&server, "b", "3").await;
    assert_eq!(client.events(2).await, ["-a=@6(0,0)", "+b=3@7(3,2)"]);

    // From now on, one key, with what was before.
    let with_previous = WatchCreateRequest {
        prev_kv: true,
        ..create("b", "", 0)
    };
    assert_eq!(client.create(with_previous).await.watch_id, 1);
    client
        .ask(WatchRequestUnion::Cancel(WatchCancelRequest { watch_id: 0 }))
        .await;
    let canceled = client.next().await;
    assert!(canceled.canceled && canceled.watch_id == 0);
    delete(&server, "a", "\0").await;
    assert_eq!(client.events(1).await, ["-b=@8(0,0) was b=3@7(3,2)"]);
}

#[tokio::test]
async fn filters_leave_out_and_future_watches_wait() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let mut client = Client::connect(&server);
    let filtered = |filter: FilterType| WatchCreateRequest {
        filters: vec![filter as i32],
        ..create("a", "", 0)
    };
    client.create(filtered(FilterType::NoDelete)).await;
    put(&server, "a", "1").await;
    delete(&server, "a", "").await;
    put(&server, "a", "2").await;
    assert_eq!(client.events(2).await, ["+a=1@2(2,1)", "+a=2@4(4,1)"]);
    let mut client = Client::connect(&server);
    client.create(filtered(FilterType::NoPut)).await;
    client.create(create("a", "", 7)).await;
    put(&server, "a", "3").await;
    delete(&server, "a", "").await;
    assert_eq!(client.events(1).await, ["-a=@6(0,0)"]);
    put(&server, "a", "4").await;
    assert_eq!(client.events(1).await, ["+a=4@7(7,1)"]);
}

#[tokio::test]
async fn what_can_not_be_watched() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    for n in 0..5 {
        put(&server, "a", &n.to_string()).await;
    }
    server.compact_at(4).await.unwrap();
    let mut client = Client::connect(&server);
    let numbered = WatchCreateRequest {
        watch_id: 5,
        ..create("a", "", 0)
    };
    assert_eq!(client.create(numbered.clone()).await.watch_id, 5);
    for (request, reason) in [
        (numbered, "mvcc: duplicate watch ID provided on the WatchStream"),
        (create("b", "a", 0), "mvcc: watcher range is empty"),
        (
            create("a", "", -1),
            "etcdserver: mvcc: required revision has been compacted",
        ),
    ] {
        let refused = client.create(request).await;
        assert!(
            refused.canceled && refused.created && refused.watch_id == -1,
            "{refused:?}"
        );
        assert_eq!(refused.cancel_reason, reason);
    }
    let created = client.create(create("a", "", 3)).await;
    let canceled = client.next().await;
    assert_eq!(
        (canceled.canceled, canceled.compact_revision, canceled.watch_id),
        (true, 4, created.watch_id)
    );
    // What was written at the compacted revision itself is there still.
    client.create(create("a", "", 4)).await;
    assert_eq!(client.events(3).await, ["+a=2@4(2,3)", "+a=3@5(2,4)", "+a=4@6(2,5)"]);
}

#[tokio::test]
async fn progress_is_told_after_all_events_up_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let mut client = Client::connect(&server);
    client.create(create("a", "", 0)).await;
    client.create(create("b", "", 0)).await;
    for n in 0..20 {
        put(&server, "a", &n.to_string()).await;
        put(&server, "other", "x").await;
        client.ask(WatchRequestUnion::Progress(Empty {})).await;
        let mut last = 0;
        let progress = loop {
            let response = client.next().await;
            match response.watch_id {
                -1 => break response.header.unwrap().revision,
                _ => last = response.events.last().unwrap().kv.as_ref().unwrap().mod_revision,
            }
        };
        let revision = i64::try_from(server.revision()).unwrap();
        assert!(last < progress && progress == revision, "{last} {progress} {revision}");
    }
}

#[tokio::test]
async fn quiet_watches_are_told_how_far_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let often = Settings {
        progress_notify_interval: Duration::from_millis(100),
        ..settings(dir.path())
    };
    let server = open_with(often).await;
    let mut client = Client::connect(&server);
    client.create(create("a", "", 0)).await;
    let notified = WatchCreateRequest {
        progress_notify: true,
        ..create("b", "", 0)
    };
    client.create(notified).await;
    put(&server, "other", "x").await;
    server.hub.reached(2).await;
    let progress = client.next().await;
    assert_eq!((progress.watch_id, progress.events.len()), (1, 0));
    assert!(progress.header.unwrap().revision <= 2);
}

#[tokio::test]
async fn a_slow_client_gets_all_it_watched_for() {
    const WRITES: usize = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let mut client = Client::connect(&server);
    client.create(create("a", "\0", 0)).await;
    // More than an inbox holds, and nobody reads.
    for batch in 0..WRITES / 100 {
        let ops = (0..100).map(|n| op(Request::Put(put_request(&format!("a{n}"), &batch.to_string()))));
        let request = TxnRequest {
            success: ops.collect(),
            ..TxnRequest::default()
        };
        server.txn(request).await.unwrap();
    }
    server.hub.reached(server.revision()).await;
    let events = client.events(WRITES).await;
    let expected = (0..WRITES / 100).flat_map(|batch| {
        let mut keys: Vec<String> = (0..100).map(|n| format!("a{n}")).collect();
        keys.sort();
        keys.into_iter()
            .map(move |key| format!("+{key}={batch}@{}(2,{})", batch + 2, batch + 1))
    });
    assert!(events.iter().eq(expected.collect::<Vec<_>>().iter()));
    put(&server, "a", "after").await;
    assert_eq!(client.events(1).await.len(), 1);
}

#[tokio::test]
async fn a_stream_ends_with_its_client_and_with_the_member() {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    let mut client = Client::connect(&server);
    client.create(create("a", "", 0)).await;
    let mut other = Client::connect(&server);
    other.create(create("a", "", 0)).await;
    client.ask(WatchRequestUnion::Progress(Empty {})).await;
    client.next().await;
    assert_eq!(server.hub.watchers(), 2);
    drop(client.requests);
    assert!(client.answers.recv().await.is_none());
    assert_eq!(server.hub.watchers(), 1);
    server.stopping.trigger();
    let status = other.answers.recv().await.unwrap().unwrap_err();
    assert_eq!(status.message(), "etcdserver: server stopped");
    assert!(other.answers.recv().await.is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8, u8),
    Both(u8, u8),
    /// Range and start revision, as shares of what there is.
    Watch(u8, u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6u8).prop_map(Step::Put),
        1 => (0..6u8, 0..7u8).prop_map(|(from, to)| Step::Delete(from, to)),
        2 => (0..6u8, 0..6u8).prop_map(|(a, b)| Step::Both(a, b)),
        2 => (0..6u8, 0..7u8, any::<u8>()).prop_map(|(from, to, start)| Step::Watch(from, to, start)),
    ]
}

fn key(n: u8) -> String {
    format!("k{n}")
}

async fn run(steps: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let server = open(dir.path()).await;
    // All that happened: revision, key, event.
    let mut history: Vec<(i64, u8, String)> = Vec::new();
    let mut watching = Vec::new();
    for (n, step) in steps.into_iter().enumerate() {
        let value = n.to_string();
        let ops = match step {
            Step::Put(a) => vec![op(Request::Put(put_request(&key(a), &value)))],
            Step::Both(a, b) if a == b => vec![op(Request::Put(put_request(&key(a), &value)))],
            Step::Both(a, b) => [a, b].map(|n| op(Request::Put(put_request(&key(n), &value)))).to_vec(),
            Step::Delete(from, to) => vec![op(Request::DeleteRange(DeleteRangeRequest {
                key: bytes(&key(from)),
                range_end: bytes(&key(to)),
                prev_kv: true,
            }))],
            Step::Watch(from, to, start) => {
                let now = i64::try_from(server.revision()).unwrap();
                let start = 1 + i64::from(start) * (now + 1) / 256;
                let mut client = Client::connect(&server);
                let created = client.create(create(&key(from), &key(to), start)).await;
                assert_eq!(created.canceled, from >= to);
                watching.push((client, from, to, start));
                continue;
            }
        };
        let before = server.range(&range_request("k", "l")).unwrap().kvs;
        let request = TxnRequest {
            success: ops,
            ..TxnRequest::default()
        };
        let revision = server.txn(request).await.unwrap().header.unwrap().revision;
        let after = server.range(&range_request("k", "l")).unwrap().kvs;
        for n in 0..6u8 {
            let find = |kvs: &[KeyValue]| kvs.iter().find(|kv| kv.key == bytes(&key(n))).cloned();
            match (find(&before), find(&after)) {
                (_, Some(kv))
                    if kv.mod_revision == revision && !history.iter().any(|(r, k, _)| (*r, *k) == (revision, n)) =>
                {
                    history.push((revision, n, format!("+{}", show(&kv))));
                }
                (Some(_), None) => history.push((revision, n, format!("-{}=@{revision}(0,0)", key(n)))),
                _ => {}
            }
        }
    }
    for (mut client, from, to, start) in watching.into_iter().filter(|(_, from, to, _)| from < to) {
        let expected: Vec<String> = history
            .iter()
            .filter(|(revision, n, _)| *revision >= start && (from..to).contains(n))
            .map(|(_, _, event)| event.clone())
            .collect();
        assert_eq!(
            client.events(expected.len()).await,
            expected,
            "from {from} to {to} since {start}"
        );
        client.ask(WatchRequestUnion::Progress(Empty {})).await;
        assert_eq!(client.next().await.watch_id, -1, "and nothing else");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is written and whenever a watch begins, it sees each event of its range once, in order.
    #[test]
    fn watches_agree_with_history(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
