use orlop_base::clock::Shift;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Fake, FakeReply, ReceivedRequest};

pub(super) fn about(pod: &str) -> Event {
    Event {
        regarding: ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "web".into(),
            name: pod.into(),
            uid: "u".into(),
            ..ObjectReference::default()
        },
        related: None,
        kind: EventType::Warning,
        reason: "FailedScheduling".into(),
        action: "Scheduling".into(),
        note: "no room".into(),
    }
}

pub(super) fn start_of_time() -> Timestamp {
    "2026-01-02T03:04:05.678901Z".parse().unwrap()
}

pub(super) fn seconds(n: i64) -> Timestamp {
    start_of_time().later_by_seconds(n)
}

fn shown(report: Option<Report>) -> String {
    match report {
        None => "-".into(),
        Some(report) => match report.count {
            1 => format!("{} new", report.name),
            count => format!("{} ×{count}", report.name),
        },
    }
}

#[test]
fn repetitions_become_series() {
    let (mut keeper, mut names) = (SeriesKeeper::default(), EventNames::default());
    let source = Arc::new(Source::events_v1("s", false));
    let mut observe = |event: Event, at| shown(keeper.observe(source.clone(), event, seconds(at), &mut names));
    let base = start_of_time().as_nanosecond();
    let (first, second) = (format!("a.{base:x}"), format!("b.{:x}", base + 1));
    assert_eq!(observe(about("a"), 0), format!("{first} new"));
    assert_eq!(
        observe(about("b"), 0),
        format!("{second} new"),
        "names differ though time stands still"
    );
    let reworded = Event {
        note: "other words".into(),
        ..about("a")
    };
    assert_eq!(
        observe(reworded, 300),
        format!("{first} ×2"),
        "the note does not matter"
    );
    assert_eq!(observe(about("a"), 301), "-");
    let other = Event {
        reason: "Other".into(),
        ..about("a")
    };
    assert!(observe(other, 302).ends_with("new"));
    // Six minutes after the first b, another b is news; the series of a goes on.
    assert!(observe(about("b"), 361).ends_with("new"));
    assert_eq!(observe(about("a"), 362), "-");

    assert_eq!(keeper.sweep(seconds(700), false).len(), 0);
    let running = keeper.sweep(seconds(700), true);
    assert_eq!(running.len(), 1);
    assert_eq!(shown(running.into_iter().next()), format!("{first} ×4"));
    let over = keeper.sweep(seconds(723), false);
    assert_eq!(shown(over.into_iter().next()), format!("{first} ×4"));
    assert!(keeper.sweep(seconds(723), true).is_empty());
}

#[test]
fn names_that_can_not_be_names_are_replaced() {
    assert_eq!(EventNames::default().next("not:a:name", seconds(0)).len(), 36);
}

#[test]
fn notes_tell_events_apart_where_they_matter() {
    for (notes_matter, expected) in [(false, "×2"), (true, "new")] {
        let (mut keeper, mut names) = (SeriesKeeper::default(), EventNames::default());
        let source = Arc::new(Source::events_v1("s", notes_matter));
        keeper.observe(source.clone(), about("a"), seconds(0), &mut names);
        let other = Event {
            note: "another".into(),
            ..about("a")
        };
        assert!(shown(keeper.observe(source, other, seconds(1), &mut names)).ends_with(expected));
    }
}

#[test]
fn memory_is_bounded() {
    let (mut keeper, mut names) = (SeriesKeeper::default(), EventNames::default());
    let source = Arc::new(Source::events_v1("s", false));
    let mut observe = |pod: &str, at| shown(keeper.observe(source.clone(), about(pod), seconds(at), &mut names));
    for i in 0..70_000 {
        observe(&format!("p{i}"), 0);
    }
    // The oldest are forgotten, the newest are not.
    assert!(observe("p0", 1).ends_with("new"));
    assert!(observe("p69999", 1).ends_with("×2"));
}

#[test]
fn long_notes_are_cut() {
    for (note, expected) in [
        ("x".repeat(1024), "x".repeat(1024)),
        ("x".repeat(1025), "x".repeat(1020) + " ..."),
        ("ä".repeat(600), "ä".repeat(510) + " ..."),
    ] {
        let mut note = note;
        cut(&mut note, NOTE_MAX);
        assert_eq!(note, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_written_as_the_new_api_has_them() {
    let fake = Fake::serving(|_| FakeReply::Whole(201, "{}".into()));
    let clock = Clock::manual(start_of_time());
    let shutdown = Shutdown::default();
    let (recorder, task) = Recorder::start(fake.api(), "default-scheduler", clock.clone(), shutdown.clone());
    recorder.record(about("a"));
    let seen = fake.asked(1).await;
    assert_eq!(seen.line, "POST /apis/events.k8s.io/v1/namespaces/web/events");
    let body: Value = serde_json::from_str(&seen.body).unwrap();
    let instance = body["reportingInstance"].as_str().unwrap();
    assert!(instance.starts_with("default-scheduler-"));
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("a.{:x}", start_of_time().as_nanosecond()), "namespace": "web"},
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "reportingController": "default-scheduler", "reportingInstance": instance,
        "action": "Scheduling", "reason": "FailedScheduling",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "web", "name": "a", "uid": "u"},
        "note": "no room", "type": "Warning",
    });
    assert_eq!(body, expected);

    clock.advance(Duration::from_secs(5));
    recorder.record(about("a"));
    recorder.reporting_as("other").record(Event {
        regarding: ObjectReference {
            kind: "Node".into(),
            name: "n".into(),
            ..ObjectReference::default()
        },
        ..about("")
    });
    let name = body["metadata"]["name"].as_str().unwrap();
    let seen = fake.asked(2).await;
    assert_eq!(
        seen.line,
        format!("PATCH /apis/events.k8s.io/v1/namespaces/web/events/{name}")
    );
    assert_eq!(seen.content_type, "application/strategic-merge-patch+json");
    let patch = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:10.678901Z"}});
    assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), patch);
    assert_eq!(
        fake.asked(3).await.line,
        "POST /apis/events.k8s.io/v1/namespaces/default/events"
    );
    shutdown.trigger();
    task.await.unwrap();
}

fn report(source: &Arc<Source>, count: u32) -> Report {
    Report {
        source: source.clone(),
        event: about("a"),
        name: "a.1".into(),
        first: start_of_time(),
        last: start_of_time(),
        count,
    }
}

#[tokio::test(start_paused = true)]
async fn counted_events_are_written_as_the_core_api_has_them() {
    let fake = Fake::serving(|_| FakeReply::Whole(201, "{}".into()));
    let clock = Clock::manual(start_of_time());
    let shutdown = Shutdown::default();
    let (recorder, task) = Recorder::start(fake.api(), "kubelet", clock.clone(), shutdown.clone());
    let recorder = recorder.core_v1_source("kubelet", "node-1");
    let unhealthy = |note: &str, version: &str| Event {
        regarding: ObjectReference {
            resource_version: version.into(),
            field_path: "spec.containers{c}".into(),
            ..about("a").regarding
        },
        reason: "Unhealthy".into(),
        note: note.into(),
        ..about("a")
    };
    recorder.record(unhealthy("Liveness probe failed: x", "7"));
    let seen = fake.asked(1).await;
    assert_eq!(seen.line, "POST /api/v1/namespaces/web/events");
    let name = format!("a.{:x}", start_of_time().as_nanosecond());
    let expected = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "web"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "web", "name": "a", "uid": "u",
            "resourceVersion": "7", "fieldPath": "spec.containers{c}"},
        "reason": "Unhealthy", "message": "Liveness probe failed: x", "type": "Warning",
        "source": {"component": "kubelet", "host": "node-1"},
        "reportingComponent": "kubelet", "reportingInstance": "node-1",
        "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z", "count": 1,
    });
    assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), expected);

    clock.advance(Duration::from_secs(5));
    // Another failure is another event; the same one counts, whatever version of the pod it is about.
    recorder.record(unhealthy("Readiness probe failed: x", "8"));
    assert_eq!(fake.asked(2).await.line, "POST /api/v1/namespaces/web/events");
    recorder.record(unhealthy("Liveness probe failed: x", "9"));
    let seen = fake.asked(3).await;
    assert_eq!(seen.line, format!("PATCH /api/v1/namespaces/web/events/{name}"));
    assert_eq!(seen.content_type, "application/strategic-merge-patch+json");
    let patch = json!({"count": 2, "lastTimestamp": "2026-01-02T03:04:10Z", "message": "Liveness probe failed: x"});
    assert_eq!(serde_json::from_str::<Value>(&seen.body).unwrap(), patch);
    recorder.core_v1_source("job-controller", "").record(about("b"));
    let body: Value = serde_json::from_str(&fake.asked(4).await.body).unwrap();
    assert_eq!(body["source"], json!({"component": "job-controller"}));
    assert_eq!(body["reportingInstance"], "");
    shutdown.trigger();
    task.await.unwrap();
}

#[test]
fn an_event_is_written_by_one_request_at_a_time_and_the_newest_count_last() {
    let source = Arc::new(Source::core_v1("s", ""));
    let mut outbox = Outbox::default();
    let named = |name: &str, count| Report {
        name: name.into(),
        ..report(&source, count)
    };
    outbox.extend([named("a", 1), named("a", 2), named("b", 1), named("a", 3)]);
    let taken = |outbox: &mut Outbox| outbox.next().map(|r| format!("{} ×{}", r.name, r.count));
    assert_eq!(taken(&mut outbox).as_deref(), Some("a ×1"));
    assert_eq!(taken(&mut outbox).as_deref(), Some("b ×1"));
    assert_eq!(taken(&mut outbox), None, "the others are about a");
    outbox.extend([named("a", 5)]);
    assert_eq!(taken(&mut outbox), None);
    outbox.extend([named("a", 4)]);
    assert_eq!(taken(&mut outbox), None);
    outbox.finish("b");
    assert_eq!(taken(&mut outbox), None);
    outbox.finish("a");
    assert_eq!(taken(&mut outbox).as_deref(), Some("a ×5"));
    outbox.finish("a");
    assert!(outbox.is_empty());
    assert_eq!(taken(&mut outbox), None);
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_tried_again_and_the_rest_is_not() {
    let answers = |answers: &'static [(u16, &'static str)]| {
        let mut answers = answers.iter();
        Fake::serving(move |_: &ReceivedRequest| match answers.next() {
            None => FakeReply::Whole(201, "{}".into()),
            Some((0, _)) => FakeReply::Broken,
            Some((code, reason)) => FakeReply::Whole(*code, format!(r#"{{"reason":{reason:?}}}"#).into()),
        })
    };
    // answers, is it a repetition, methods asked with
    let cases: [(&'static [(u16, &'static str)], bool, &str); 9] = [
        (&[], false, "POST"),
        (&[(0, ""), (503, "x"), (429, "x")], false, "POST POST POST POST"),
        (&[(422, "Invalid")], false, "POST"),
        (&[(404, "NotFound")], false, "POST"),
        (&[(409, "AlreadyExists")], false, "POST"),
        (&[], true, "PATCH"),
        (&[(404, "NotFound")], true, "PATCH POST"),
        (&[(404, "NotFound"), (409, "AlreadyExists")], true, "PATCH POST PATCH"),
        // The namespace is gone.
        (&[(404, "NotFound"), (404, "NotFound")], true, "PATCH POST"),
    ];
    let sources = [Source::events_v1("s", false), Source::core_v1("s", "h")].map(Arc::new);
    let cases = sources.iter().flat_map(|source| cases.map(|case| (source, case)));
    for (source, (given, is_repetition, expected)) in cases {
        let fake = answers(given);
        write(
            fake.api(),
            report(source, 1 + u32::from(is_repetition)),
            Random::seeded(1),
        )
        .await;
        let methods: Vec<String> = fake
            .requests()
            .iter()
            .map(|seen| seen.line.split(' ').next().unwrap().to_string())
            .collect();
        assert_eq!(methods.join(" "), expected, "{given:?}");
    }
    let fake = Fake::serving(|_| FakeReply::Broken);
    write(fake.api(), report(&sources[0], 1), Random::seeded(1)).await;
    assert_eq!(fake.requests().len(), TRIES as usize);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts_and_the_end_is_not_put_off() {
    let fake = Fake::serving(|_| FakeReply::Never);
    let shutdown = Shutdown::default();
    let (recorder, task) = Recorder::start(fake.api(), "s", Clock::System, shutdown.clone());
    for i in 0..QUEUE + 7 {
        recorder.record(about(&format!("p{i}")));
    }
    assert_eq!(recorder.dropped(), 7);
    fake.asked(IN_FLIGHT).await;
    assert_eq!(fake.requests().len(), IN_FLIGHT);
    let stopping = Instant::now();
    shutdown.trigger();
    task.await.unwrap();
    assert_eq!(stopping.elapsed(), DRAIN);
}

#[tokio::test(start_paused = true)]
async fn events_recorded_before_the_end_are_written() {
    let fake = Fake::serving(|_| FakeReply::Whole(201, "{}".into()));
    let shutdown = Shutdown::default();
    let (recorder, task) = Recorder::start(fake.api(), "s", Clock::System, shutdown.clone());
    for i in 0..100 {
        recorder.record(about(&format!("p{i}")));
    }
    shutdown.trigger();
    task.await.unwrap();
    assert_eq!(fake.requests().len(), 100);
}
