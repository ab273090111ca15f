//! What the scheduler logs of its decisions, at kube-scheduler's verbosities and in its words.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use orlop_base::verbosity;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Metadata, Subscriber, span};

use super::World;

/// Remembers this crate's lines up to a verbosity.
struct Log {
    verbosity: u8,
    lines: Mutex<Vec<Line>>,
}

type Line = BTreeMap<&'static str, String>;

struct Fields(Line);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_string());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        target.starts_with("orlop_scheduler") && verbosity::of_target(target).unwrap_or(0) <= self.verbosity
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
        let mut fields = Fields(Line::new());
        event.record(&mut fields);
        self.lines.lock().push(fields.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Log {
    fn at(verbosity: u8) -> (Arc<Log>, (DefaultGuard, Dispatch)) {
        let new = || Log {
            verbosity,
            lines: Mutex::default(),
        };
        let log = Arc::new(new());
        let guard = tracing::subscriber::set_default(log.clone());
        // With one subscriber alone, a thread without it that comes to a line first decides that nobody wants it.
        (log, (guard, Dispatch::new(new())))
    }

    fn lines(&self, message: &str) -> Vec<Line> {
        let all = self.lines.lock();
        all.iter().filter(|line| line["message"] == message).cloned().collect()
    }

    fn messages(&self) -> Vec<String> {
        self.lines.lock().iter().map(|line| line["message"].clone()).collect()
    }
}

/// Two nodes, a pod that fits and one that does not.
async fn decide() -> World {
    let world = World::with_nodes(&["a", "b"]);
    let _scheduler = world.schedule();
    world.server.add_pod("small", "1");
    world.until_bound("small").await;
    world.server.add_pod("large", "9");
    world
        .until("it is told why", || !world.server.conditions("large").is_empty())
        .await;
    world
}

#[tokio::test(start_paused = true)]
async fn nothing_is_logged_unless_asked_for() {
    let (log, _guard) = Log::at(0);
    decide().await;
    assert_eq!(log.messages(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn decisions_are_logged_at_verbosity_2() {
    let (log, _guard) = Log::at(2);
    let world = decide().await;
    let bound = log.lines("Successfully bound pod to node");
    assert_eq!(bound.len(), 1, "{:?}", log.messages());
    let node = world.server.node_of("small").unwrap();
    let expected = [
        ("evaluatedNodes", "2"),
        ("feasibleNodes", "2"),
        ("message", "Successfully bound pod to node"),
        ("node", node.as_str()),
        ("pod", "default/small"),
    ];
    assert_eq!(bound[0], expected.map(|(k, v)| (k, v.to_string())).into());
    let unfit = log.lines("Unable to schedule pod; no fit; waiting");
    assert_eq!((unfit.len(), unfit[0]["pod"].as_str()), (1, "default/large"));
    // The same as in the pod's condition and event.
    assert_eq!(
        format!("Unschedulable: {}", unfit[0]["err"]),
        world.server.conditions("large")[0]
    );
    assert_eq!(log.messages().len(), 2, "{:?}", log.messages());
}

#[tokio::test(start_paused = true)]
async fn without_nodes_too() {
    let (log, _guard) = Log::at(2);
    let world = World::new();
    let _scheduler = world.schedule();
    world.server.add_pod("p", "1");
    let message = "Unable to schedule pod; no nodes are registered to the cluster; waiting";
    world.until("it is logged", || !log.lines(message).is_empty()).await;
    assert_eq!(log.lines(message)[0]["pod"], "default/p");
}

#[tokio::test(start_paused = true)]
async fn each_verbosity_adds_to_the_one_before() {
    let mut before: Vec<String> = vec![];
    for (verbosity, more) in [
        (3, "Attempting to schedule pod"),
        (5, "Status after running PostFilter plugins for pod"),
        (10, "Plugin scored node for pod"),
    ] {
        let (log, _guard) = Log::at(verbosity);
        decide().await;
        let messages = log.messages();
        assert!(messages.iter().any(|m| m == more), "-v {verbosity}: {messages:?}");
        assert!(!before.iter().any(|m| m == more), "before -v {verbosity}: {before:?}");
        before = messages;
    }
}

#[tokio::test(start_paused = true)]
async fn scores_are_logged_at_verbosity_10() {
    let (log, _guard) = Log::at(10);
    let world = World::with_nodes(&["a", "b"]);
    let _scheduler = world.schedule();
    // On the larger node more is left.
    world.server.add_node("c", "16");
    world.server.add_pod("p", "2");
    world.until_bound("p").await;
    let mut totals: BTreeMap<String, i64> = BTreeMap::new();
    for line in log.lines("Plugin scored node for pod") {
        assert_eq!(line["pod"], "default/p");
        assert!(!line["plugin"].is_empty());
        *totals.entry(line["node"].clone()).or_default() += line["score"].parse::<i64>().unwrap();
    }
    let finals: BTreeMap<String, i64> = (log.lines("Calculated node's final score for pod").iter())
        .map(|line| (line["node"].clone(), line["score"].parse().unwrap()))
        .collect();
    assert_eq!(totals, finals);
    assert_eq!(finals.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    let plugins: Vec<String> = (log.lines("Plugin scored node for pod").iter())
        .filter(|line| line["node"] == "c")
        .map(|line| line["plugin"].clone())
        .collect();
    assert!(plugins.contains(&"NodeResourcesFit".to_string()), "{plugins:?}");
    // It went where the log says that it should.
    let best = finals.iter().max_by_key(|(_, score)| **score).unwrap().0;
    assert_eq!(world.server.node_of("p").as_ref(), Some(best), "{finals:?}");
}
