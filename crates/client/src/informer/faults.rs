//! A cluster that changes while its server breaks watches at any byte, ends them, forgets its history and refuses
//! requests: whatever happens, the consumer ends up with what is there, and sees every object's changes in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_base::{Random, Shutdown};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::error::BoxError;
use crate::testing::{Fake, FakeReply, ReceivedRequest};

#[derive(Clone, Debug, Deserialize)]
struct Thing {
    metadata: PartialMeta,
}

/// name → revision
type State = BTreeMap<String, u64>;

struct Cluster {
    state: State,
    /// revision, event, name
    history: Vec<(u64, &'static str, String)>,
    revision: u64,
    /// Events up to here are forgotten.
    compacted: u64,
    random: Random,
    /// Requests to go until the server behaves.
    faults: usize,
    streams_lists: bool,
    /// Kept open: the last watch goes on.
    open: Option<mpsc::Sender<Result<Bytes, BoxError>>>,
}

impl Cluster {
    fn change(&mut self) {
        for _ in 0..self.random.below(6) {
            self.revision += 1;
            let name = format!("t{}", self.random.below(5));
            let exists = self.state.contains_key(&name);
            let event = match (exists, self.random.below(3)) {
                (false, _) => "ADDED",
                (true, 0) => "DELETED",
                (true, _) => "MODIFIED",
            };
            match event {
                "DELETED" => self.state.remove(&name),
                _ => self.state.insert(name.clone(), self.revision),
            };
            self.history.push((self.revision, event, name));
        }
        if self.random.below(4) == 0 {
            self.compacted = self.revision - self.random.below(3).min(self.revision);
        }
    }

    fn answer(&mut self, seen: &ReceivedRequest) -> FakeReply {
        self.change();
        self.faults = self.faults.saturating_sub(1);
        let faulty = self.faults > 0;
        if faulty {
            match self.random.below(8) {
                0 => return FakeReply::Broken,
                1 => return FakeReply::Whole(503, Bytes::new()),
                2 => return FakeReply::Whole(429, Bytes::new()),
                _ => {}
            }
        }
        let parameter = |name: &str| {
            let query = seen.line.split_once('?').map_or("", |(_, query)| query);
            query.split('&').find_map(|p| p.strip_prefix(name)?.strip_prefix('='))
        };
        if parameter("watch").is_none() {
            return self.page(parameter("continue"));
        }
        let lines = match (parameter("sendInitialEvents"), parameter("resourceVersion")) {
            (Some(_), _) if !self.streams_lists => return FakeReply::Whole(422, Bytes::new()),
            (Some(_), _) => self.whole_state(),
            (None, Some(revision)) => match self.events_after(revision.parse().unwrap()) {
                Some(lines) => lines,
                None => return FakeReply::Whole(200, Bytes::from(line("ERROR", json!({"code": 410})))),
            },
            (None, None) => panic!("a watch from nowhere: {}", seen.line),
        };
        self.stream(lines, faulty)
    }

    /// One object a page, so that a token can expire on the way.
    fn page(&mut self, token: Option<&str>) -> FakeReply {
        let (at, after) = match token.and_then(|token| token.split_once('.')) {
            Some((at, after)) => (at.parse().unwrap(), Some(after.to_string())),
            None => (self.revision, None),
        };
        if at < self.revision {
            return FakeReply::Whole(410, Bytes::new());
        }
        let next = self
            .state
            .iter()
            .find(|(name, _)| after.as_ref().is_none_or(|a| *name > a));
        let items: Vec<Value> = next
            .map(|(name, revision)| object(name, *revision))
            .into_iter()
            .collect();
        let more = next.filter(|(name, _)| self.state.keys().next_back() != Some(name));
        let token = more.map_or(String::new(), |(name, _)| format!("{at}.{name}"));
        let list = json!({"metadata": {"resourceVersion": at.to_string(), "continue": token}, "items": items});
        FakeReply::Whole(200, list.to_string().into())
    }

    fn whole_state(&mut self) -> String {
        let mut lines: String = self.state.iter().map(|(n, r)| line("ADDED", object(n, *r))).collect();
        // Changes while the state is being sent.
        let before = self.revision;
        self.change();
        lines += &self
            .history
            .iter()
            .filter(|(r, ..)| *r > before)
            .map(event_line)
            .collect::<String>();
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": self.revision.to_string(), "annotations": annotations});
        lines + &line("BOOKMARK", json!({"metadata": metadata}))
    }

    fn events_after(&mut self, revision: u64) -> Option<String> {
        let known = revision >= self.compacted;
        let events = self.history.iter().filter(|(r, ..)| *r > revision);
        known.then(|| events.map(event_line).collect())
    }

    fn stream(&mut self, mut lines: String, faulty: bool) -> FakeReply {
        let (sender, receiver) = mpsc::channel(3);
        if !faulty {
            let metadata = json!({"resourceVersion": self.revision.to_string()});
            lines += &line("BOOKMARK", json!({"metadata": metadata}));
        }
        let mut bytes = Bytes::from(lines);
        if faulty && !bytes.is_empty() {
            bytes.truncate(self.random.below(bytes.len() as u64 + 1) as usize);
        }
        let first = bytes.split_to(self.random.below(bytes.len() as u64 + 1) as usize);
        sender.try_send(Ok(first)).unwrap();
        sender.try_send(Ok(bytes)).unwrap();
        match (faulty, self.random.below(2)) {
            (true, 0) => sender.try_send(Err("reset".into())).unwrap(),
            (true, _) => {}
            (false, _) => self.open = Some(sender),
        }
        FakeReply::Stream(receiver)
    }
}

fn object(name: &str, revision: u64) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": revision.to_string()}})
}

fn line(event: &str, object: Value) -> String {
    format!("{}\n", json!({"type": event, "object": object}))
}

fn event_line((revision, event, name): &(u64, &'static str, String)) -> String {
    line(event, object(name, *revision))
}

/// Takes deltas until the cluster and what was made of them are known to be at the same revision.
async fn consume(cluster: Arc<Mutex<Cluster>>, mut deltas: mpsc::Receiver<Delta<Thing>>) -> (State, State) {
    let mut known: Option<State> = None;
    let entry = |thing: Thing| {
        (
            thing.metadata.name,
            thing.metadata.resource_version.parse::<u64>().unwrap(),
        )
    };
    loop {
        match deltas.recv().await.unwrap() {
            Delta::Reset(items) => known = Some(items.into_iter().map(entry).collect()),
            Delta::Applied(thing) => {
                let (name, revision) = entry(thing);
                let before = known.as_mut().expect("a state first").insert(name, revision);
                assert!(
                    before.is_none_or(|before| before < revision),
                    "changes come in order, once"
                );
            }
            Delta::Deleted(thing) => {
                let gone = known.as_mut().expect("a state first").remove(&thing.metadata.name);
                assert!(gone.is_some(), "only what was there is deleted");
            }
            Delta::Bookmark(revision) => {
                let cluster = cluster.lock();
                if cluster.open.is_some() && revision == cluster.revision {
                    return (known.unwrap(), cluster.state.clone());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_whatever_happens(seed: u64, faults in 0usize..30, streams_lists: bool, queue in 1usize..4) {
        let cluster = Arc::new(Mutex::new(Cluster {
            state: State::new(),
            history: vec![],
            revision: 1,
            compacted: 0,
            random: Random::seeded(seed),
            faults,
            streams_lists,
            open: None,
        }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (known, actual) = runtime.block_on(async {
            let server = cluster.clone();
            let fake = Fake::serving(move |seen| server.lock().answer(seen));
            let (sender, deltas) = mpsc::channel(queue);
            tokio::spawn(watch(fake.api(), Selection::all("/things"), sender, Shutdown::default()));
            consume(cluster.clone(), deltas).await
        });
        prop_assert_eq!(known, actual);
    }
}
