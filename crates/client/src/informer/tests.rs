use orlop_base::Shutdown;
use tokio::sync::mpsc::{Receiver, Sender};

use super::*;
use crate::error::BoxError;
use crate::testing::{Fake, FakeReply};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Thing {
    metadata: ThingMeta,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct ThingMeta {
    name: String,
}

type Frames = Sender<Result<Bytes, BoxError>>;

struct Bench {
    fake: Fake,
    deltas: Receiver<Delta<Thing>>,
    shutdown: Shutdown,
    asked: usize,
}

impl Bench {
    fn start(fake: &Fake, queue: usize) -> Bench {
        let (sender, deltas) = mpsc::channel(queue);
        let shutdown = Shutdown::default();
        let selection = Selection::all("/things").with_fields("a!=b").with_labels("c");
        tokio::spawn(watch(fake.api(), selection, sender, shutdown.clone()));
        Bench {
            fake: fake.clone(),
            deltas,
            shutdown,
            asked: 0,
        }
    }

    /// The next delta, as `=a,b` `+a` `-a` `@7`.
    async fn next(&mut self) -> String {
        match self.deltas.recv().await.expect("the informer does not end") {
            Delta::Reset(items) => {
                let names: Vec<String> = items.into_iter().map(|item| item.metadata.name).collect();
                format!("={}", names.join(","))
            }
            Delta::Applied(item) => format!("+{}", item.metadata.name),
            Delta::Deleted(item) => format!("-{}", item.metadata.name),
            Delta::Bookmark(revision) => format!("@{revision}"),
        }
    }

    async fn expect(&mut self, deltas: &str) {
        for expected in deltas.split_whitespace() {
            assert_eq!(self.next().await, expected, "of {deltas}");
        }
    }

    /// The next request, without what is in every one.
    async fn request(&mut self) -> String {
        self.asked += 1;
        let line = self.fake.asked(self.asked).await.line;
        let (path, query) = line.split_once('?').unwrap();
        let usual = ["allowWatchBookmarks=true", "fieldSelector=a%21%3Db", "labelSelector=c"];
        let rest: Vec<&str> = query.split('&').filter(|p| !usual.contains(p)).collect();
        let rest: Vec<&str> = rest.into_iter().filter(|p| !p.starts_with("timeoutSeconds=")).collect();
        format!("{path}?{}", rest.join("&"))
    }
}

/// Lines in short: `+a@5` added, `~a@6` modified, `-a@7` deleted, `@8` bookmark, `!9` end of the initial state, `410`.
fn lines(short: &str) -> Bytes {
    let line = |word: &str| {
        let (mark, rest) = word.split_at(1);
        let (name, revision) = rest.split_once('@').unwrap_or(("", rest));
        let kind = match mark {
            "+" => "ADDED",
            "~" => "MODIFIED",
            "-" => "DELETED",
            "@" | "!" => "BOOKMARK",
            _ => {
                let code: u16 = word.parse().unwrap();
                return format!("{{\"type\":\"ERROR\",\"object\":{{\"kind\":\"Status\",\"code\":{code}}}}}\n");
            }
        };
        let mut meta = serde_json::json!({"resourceVersion": revision});
        if !name.is_empty() {
            meta["name"] = name.into();
        }
        if mark == "!" {
            meta["annotations"] = serde_json::json!({"k8s.io/initial-events-end": "true"});
        }
        format!("{{\"type\":{kind:?},\"object\":{{\"metadata\":{meta}}}}}\n")
    };
    short.split_whitespace().map(line).collect::<String>().into()
}

async fn send(frames: &Frames, short: &str) {
    frames.send(Ok(lines(short))).await.unwrap();
}

const STREAMING: &str = "GET /things?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

#[tokio::test(start_paused = true)]
async fn a_streaming_list_then_changes_in_order() {
    let fake = Fake::new();
    let stream = fake.stream();
    let mut bench = Bench::start(&fake, 100);
    assert_eq!(bench.request().await, STREAMING);
    send(&stream, "+a@3 +b@4").await;
    send(&stream, "!6 +c@7 ~a@8").await;
    bench.expect("=a,b @6 +c +a").await;
    // A line in two frames.
    let mut bytes = lines("-a@9 @10");
    let first = bytes.split_to(20);
    stream.send(Ok(first)).await.unwrap();
    stream.send(Ok(bytes)).await.unwrap();
    bench.expect("-a @10").await;
    bench.shutdown.trigger();
    assert_eq!(bench.deltas.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn changes_amid_the_initial_state_come_after_it() {
    let fake = Fake::new();
    let stream = fake.stream();
    let mut bench = Bench::start(&fake, 100);
    send(&stream, "+a@3 +b@4 ~a@5 -b@6 +b@7 @7 !8").await;
    bench.expect("=a,b +a -b +b @7 @8").await;
}

#[tokio::test(start_paused = true)]
async fn broken_and_ended_watches_go_on_where_they_were() {
    let fake = Fake::new();
    let streams: Vec<Frames> = (0..5).map(|_| fake.stream()).collect();
    let mut bench = Bench::start(&fake, 100);
    let mut streams = streams.into_iter();
    let mut stream = streams.next().unwrap();
    // Before the state is whole, there is nothing to go on from.
    assert_eq!(bench.request().await, STREAMING);
    send(&stream, "+a@3").await;
    stream.send(Err("reset".into())).await.unwrap();
    stream = streams.next().unwrap();
    assert_eq!(bench.request().await, STREAMING);
    send(&stream, "+b@4 !5").await;
    bench.expect("=b @5").await;
    drop(stream);
    // WatchEnd at once after the bookmark: from the bookmark's revision.
    stream = streams.next().unwrap();
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=5");
    send(&stream, "+c@6 -c@9").await;
    // The half of a line that still came is as if it never did.
    stream.send(Ok(lines("+d@10").slice(..15))).await.unwrap();
    stream.send(Err("reset".into())).await.unwrap();
    bench.expect("+c -c").await;
    stream = streams.next().unwrap();
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=9");
    send(&stream, "+d@10 @12").await;
    bench.expect("+d @12").await;
    // Silence: the connection is dead.
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=12");
    drop(stream);
}

#[tokio::test(start_paused = true)]
async fn a_history_that_is_gone_means_the_whole_state_again() {
    let fake = Fake::new();
    let (one, two) = (fake.stream(), fake.stream());
    fake.answer(410, r#"{"reason":"Expired","message":"too old"}"#);
    let three = fake.stream();
    let mut bench = Bench::start(&fake, 100);
    send(&one, "+a@3 !4 410").await;
    bench.expect("=a @4").await;
    assert_eq!(bench.request().await, STREAMING);
    let started = Instant::now();
    assert_eq!(bench.request().await, STREAMING);
    assert_eq!(started.elapsed(), Duration::ZERO, "the first time at once");
    send(&two, "+b@8 !9").await;
    bench.expect("=b @9").await;
    drop(two);
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=9");
    assert_eq!(bench.request().await, STREAMING);
    assert!(started.elapsed() >= Duration::from_millis(800), "then after a while");
    send(&three, "!12").await;
    bench.expect("= @12").await;
}

#[tokio::test(start_paused = true)]
async fn servers_without_streaming_lists_are_listed_in_pages() {
    let fake = Fake::new();
    fake.answer(422, r#"{"reason":"Invalid","message":"sendInitialEvents: Forbidden"}"#);
    let item = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    let page = |items: &str, meta: &str| format!(r#"{{"metadata":{{"resourceVersion":"7"{meta}}},"items":[{items}]}}"#);
    fake.answer(200, &page(&format!("{},{{}}", item("a")), r#","continue":"t""#));
    fake.answer(200, &page(&item("b"), ""));
    let stream = fake.stream();
    let mut bench = Bench::start(&fake, 100);
    bench.expect("=a,b @7").await;
    assert_eq!(bench.request().await, STREAMING);
    assert_eq!(bench.request().await, "GET /things?limit=500");
    assert_eq!(bench.request().await, "GET /things?limit=500&continue=t");
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=7");
    send(&stream, "-a@8 410").await;
    bench.expect("-a").await;
    assert_eq!(bench.request().await, "GET /things?limit=500");
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_ever_more_slowly() {
    let fake = Fake::serving(|_| FakeReply::Broken);
    let mut bench = Bench::start(&fake, 1);
    let started = Instant::now();
    for _ in 0..8 {
        assert_eq!(bench.request().await, STREAMING);
    }
    let took = started.elapsed().as_millis();
    let least: u128 = 800 + 1600 + 3200 + 6400 + 12800 + 25600 + 30000;
    assert!((least..=2 * least).contains(&took), "{took}");
    // What ends as soon as it begins is a failure, too.
    let fake = Fake::serving(|_| FakeReply::Whole(200, Bytes::from_static(b"\n")));
    let mut bench = Bench::start(&fake, 1);
    let started = Instant::now();
    bench.request().await;
    bench.request().await;
    assert!(started.elapsed() >= Duration::from_millis(800));
    // And a server that asks for patience gets it.
    let fake = Fake::serving(|_| {
        FakeReply::Whole(
            429,
            Bytes::from_static(br#"{"message":"m","details":{"retryAfterSeconds":77}}"#),
        )
    });
    let mut bench = Bench::start(&fake, 1);
    let started = Instant::now();
    bench.request().await;
    bench.request().await;
    assert_eq!(started.elapsed().as_secs(), 77);
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_loses_nothing() {
    let fake = Fake::new();
    let stream = fake.stream();
    let mut bench = Bench::start(&fake, 1);
    send(&stream, "!1").await;
    for i in 2..500 {
        send(&stream, &format!("+t{i}@{i}")).await;
    }
    bench.expect("= @1").await;
    for i in 2..500 {
        if i % 100 == 0 {
            tokio::time::advance(Duration::from_secs(200)).await;
        }
        assert_eq!(bench.next().await, format!("+t{i}"));
    }
    assert_eq!(bench.fake.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn objects_of_another_shape_are_left_out() {
    let fake = Fake::new();
    let stream = fake.stream();
    let mut bench = Bench::start(&fake, 10);
    send(&stream, "!1").await;
    let bad = r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"5"}}}"#;
    stream.send(Ok(format!("{bad}\n").into())).await.unwrap();
    stream.send(Err("reset".into())).await.unwrap();
    bench.expect("= @1").await;
    bench.request().await;
    assert_eq!(bench.request().await, "GET /things?watch=true&resourceVersion=5");
}

#[tokio::test(start_paused = true)]
async fn an_informer_without_a_consumer_ends() {
    let fake = Fake::new();
    let stream = fake.stream();
    let (sender, deltas) = mpsc::channel::<Delta<Thing>>(1);
    let task = tokio::spawn(watch(
        fake.api(),
        Selection::all("/things"),
        sender,
        Shutdown::default(),
    ));
    fake.asked(1).await;
    drop(deltas);
    task.await.unwrap();
    drop(stream);
}
