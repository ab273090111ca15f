use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop_base::clock::Shift;
use orlop_base::{Clock, Shutdown};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::*;
use crate::error::Status;
use crate::events::{Event as ClusterEvent, EventType, ObjectReference, Recorder};
use crate::informer::{Selection, watch};
use crate::leader;
use crate::testing::{Fake, FakeReply};

fn broken(text: &str) -> Error {
    Error::transport(std::io::Error::other(text.to_string()))
}

fn said(news: Option<ReachabilityChange>) -> String {
    match news {
        None => String::new(),
        Some(ReachabilityChange::Unreachable(why)) => format!("away: {}", why.rsplit(": ").next().unwrap()),
        Some(ReachabilityChange::ReachableAfter(after)) => format!("back after {} s", after.as_secs()),
    }
}

#[test]
fn an_outage_is_said_when_it_begins_changes_and_ends() {
    let (start, refused) = (Instant::now(), Error::Forbidden(Box::default()));
    let at = |seconds: u64| start.later(Duration::from_secs(seconds));
    // begun and ended at which second, how, and what is said of it
    let steps: [(u64, u64, Option<Error>, &str); 14] = [
        (0, 0, None, ""),
        (
            0,
            30,
            Some(Error::Unavailable(UnavailableReason::Timeout(Duration::from_secs(30)))),
            "away: request timed out",
        ),
        (29, 31, None, "back after 1 s"),
        // Another was answered meanwhile.
        (30, 32, Some(broken("reset")), ""),
        (32, 33, Some(broken("reset")), "away: reset"),
        (32, 33, Some(broken("closed")), ""),
        (33, 34, Some(broken("reset")), ""),
        (34, 44, Some(broken("refused")), "away: refused"),
        (45, 60, Some(broken("reset")), ""),
        (60, 80, Some(broken("refused")), ""),
        (
            80,
            90,
            Some(Error::Unavailable(UnavailableReason::Timeout(Duration::from_secs(5)))),
            "away: request timed out",
        ),
        (
            90,
            100,
            Some(Error::Unavailable(UnavailableReason::Timeout(Duration::from_secs(30)))),
            "",
        ),
        // It answers, if only to refuse.
        (100, 101, Some(refused), "back after 68 s"),
        (101, 102, None, ""),
    ];
    let mut state = OutageState::default();
    for (n, (began, ended, error, expected)) in steps.into_iter().enumerate() {
        let news = state.observe(at(began), at(ended), error.as_ref());
        assert_eq!(said(news), expected, "step {n}");
    }
}

#[test]
fn a_server_that_dies_is_one_reason() {
    let (mut state, start) = (OutageState::default(), Instant::now());
    for (seconds, text, expected) in [
        (0, "connection closed before message completed", true),
        (20, "tcp connect error: Connection refused (os error 111)", false),
        (40, "Connection reset by peer (os error 104)", false),
        (60, "invalid peer certificate: UnknownIssuer", true),
        (80, "invalid peer certificate: UnknownIssuer", false),
    ] {
        let now = start.later(Duration::from_secs(seconds));
        let news = state.observe(now, now, Some(&broken(text)));
        assert_eq!(
            news,
            expected.then(|| ReachabilityChange::Unreachable(text.to_string())),
            "{text}"
        );
    }
}

#[test]
fn the_reasons_of_an_outage_are_bounded() {
    let (mut state, start) = (OutageState::default(), Instant::now());
    let lines = (0..1000).filter(|n| {
        let now = start.later(Duration::from_secs(20 * n));
        state.observe(now, now, Some(&broken(&n.to_string()))).is_some()
    });
    assert_eq!(lines.count(), REASONS_MAX);
}

#[test]
fn the_same_failure_is_news_once() {
    let status = |message: &str| {
        Error::Forbidden(Box::new(Status {
            message: message.into(),
            ..Status::default()
        }))
    };
    let mut failures = Failures::default();
    assert!(failures.is_news(&status("a")));
    assert!(!failures.is_news(&status("a")));
    assert!(!failures.is_news(&broken("reset")), "Api says that");
    assert!(!failures.is_news(&status("a")), "an outage between changes nothing");
    assert!(failures.is_news(&status("b")) && failures.is_news(&status("a")));
    failures.succeeded();
    assert!(failures.is_news(&status("a")));
}

/// Remembers lines that are shown without asking for more.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    /// Other tests of the process have subscribers of their own: each line is asked about anew.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        self.0.lock().push(text);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn event(name: &str) -> ClusterEvent {
    ClusterEvent {
        regarding: ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "default".into(),
            name: name.into(),
            ..ObjectReference::default()
        },
        related: None,
        kind: EventType::Normal,
        reason: "Tested".into(),
        action: "Testing".into(),
        note: String::new(),
    }
}

/// Informers, an election and a recorder of one component, ten minutes without an API server: a line when it goes, one when
/// it is back.
#[tokio::test(start_paused = true)]
async fn a_component_says_once_that_the_server_is_away() {
    let log = Arc::new(Log::default());
    let _guard = tracing::subscriber::set_default(log.clone());
    // With one subscriber alone, a thread without it that comes to a line first decides that nobody wants it.
    let _second = tracing::Dispatch::new(Log::default());
    let is_back = Arc::new(AtomicBool::new(false));
    let fake = Fake::serving({
        let is_back = is_back.clone();
        move |seen| match is_back.load(Ordering::Relaxed) {
            false => FakeReply::Broken,
            true if seen.line.contains("watch=true") => FakeReply::Never,
            true => FakeReply::Whole(200, "{}".into()),
        }
    });
    let (api, shutdown) = (fake.api(), Shutdown::default());
    let mut sinks = vec![];
    for path in ["/api/v1/pods", "/api/v1/nodes", "/api/v1/services"] {
        let (sender, receiver) = mpsc::channel::<crate::informer::Delta<serde_json::Value>>(16);
        sinks.push(receiver);
        tokio::spawn(watch(
            api.clone(),
            Selection::all(path.to_string()),
            sender,
            shutdown.clone(),
        ));
    }
    let config = leader::Config::new("kube-system", "test");
    let _election = leader::elect(api.clone(), config, shutdown.clone());
    let (recorder, _) = Recorder::start(api.clone(), "test", Clock::System, shutdown.clone());
    for n in 0..20 {
        recorder.record(event(&n.to_string()));
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lines = std::mem::take(&mut *log.0.lock());
    let away = |line: &&String| line.contains("failed to reach the API server; retrying");
    assert_eq!(lines.iter().filter(away).count(), 1, "{lines:#?}");
    let rest: Vec<&String> = lines.iter().filter(|line| !away(line)).collect();
    assert!(
        matches!(rest.as_slice(), [only] if only.contains("attempting to acquire leader lease")),
        "{rest:#?}"
    );
    assert!(fake.requests().len() > 100, "all of them went on trying");
    is_back.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lines = log.0.lock().clone();
    let back = lines
        .iter()
        .filter(|line| line.contains("reached the API server again"));
    assert_eq!(back.count(), 1, "{lines:#?}");
    shutdown.trigger();
}
