use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::testing::{Fake, FakeReply, ReceivedRequest};

/// A server that keeps one lease, and may be out of reach.
#[derive(Clone, Default)]
struct Server {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    lease: Option<Value>,
    revision: u64,
    down: bool,
}

impl Server {
    fn api(&self) -> Api {
        let server = self.clone();
        Fake::serving(move |seen| server.answer(seen)).api()
    }

    fn answer(&self, seen: &ReceivedRequest) -> FakeReply {
        let mut state = self.state.lock();
        if state.down {
            return FakeReply::Broken;
        }
        let refuse = |code: u16, reason: &str| {
            let body = json!({"reason": reason, "message": reason});
            FakeReply::Whole(code, Bytes::from(body.to_string()))
        };
        let is_get = seen.line.starts_with("GET");
        let body: Value = serde_json::from_str(&seen.body).unwrap_or_default();
        match (&state.lease, seen.line.starts_with("POST")) {
            (None, false) => return refuse(404, "NotFound"),
            (Some(_), true) => return refuse(409, "AlreadyExists"),
            (Some(lease), false) if !is_get && revision(lease) != revision(&body) => {
                return refuse(409, "Conflict");
            }
            _ => {}
        }
        if !is_get {
            state.put(body);
        }
        FakeReply::Whole(200, state.lease.as_ref().unwrap().to_string().into())
    }

    fn spec(&self) -> LeaderElectionRecord {
        let state = self.state.lock();
        LeaderElectionRecord::deserialize(&state.lease.as_ref().unwrap()["spec"]).unwrap()
    }

    fn held_by(&self, holder: &str) {
        let record = LeaderElectionRecord {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(4),
            ..LeaderElectionRecord::default()
        };
        self.state
            .lock()
            .put(json!({"metadata": {"labels": {"a": "b"}}, "spec": record}));
    }
}

fn revision(lease: &Value) -> &Value {
    &lease["metadata"]["resourceVersion"]
}

impl State {
    fn put(&mut self, mut lease: Value) {
        self.revision += 1;
        lease["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.lease = Some(lease);
    }
}

fn config(identity: &str) -> Config {
    Config {
        identity: identity.into(),
        ..Config::new("kube-system", "kube-scheduler")
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_a_second_follows_when_it_is_gone() {
    let server = Server::default();
    let stop_first = Shutdown::default();
    let mut first = elect(server.api(), config("first"), stop_first.clone());
    assert!(first.acquired().await);
    let made = server.spec();
    assert_eq!((made.holder(), made.lease_transitions), ("first", Some(0)));
    assert_eq!(made.lease_duration_seconds, Some(15));

    let mut second = elect(server.api(), config("second"), Shutdown::default());
    tokio::time::advance(Duration::from_secs(60)).await;
    second.state.changed().await.unwrap();
    assert_eq!(second.current(), Leadership::Standby { leader: "first".into() });
    assert_eq!(first.current(), Leadership::Leading);
    assert_eq!(server.spec().acquire_time, made.acquire_time);

    stop_first.trigger();
    first.lost().await;
    first.stopped().await;
    let since = Instant::now();
    assert!(second.acquired().await);
    let waited = since.elapsed().as_secs();
    // 15 s from when the last renewal was seen; both looks may be late by a whole retry with its jitter, 4.4 s.
    assert!((11..=24).contains(&waited), "a lease runs out first: {waited}");
    let taken = server.spec();
    assert_eq!((taken.holder(), taken.lease_transitions), ("second", Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_free_at_once() {
    let server = Server::default();
    let shutdown = Shutdown::default();
    let releasing = Config {
        release_on_shutdown: true,
        ..config("first")
    };
    let mut first = elect(server.api(), releasing, shutdown.clone());
    assert!(first.acquired().await);
    shutdown.trigger();
    first.stopped().await;
    assert_eq!(server.spec().holder(), "");
    let since = Instant::now();
    assert!(
        elect(server.api(), config("second"), Shutdown::default())
            .acquired()
            .await
    );
    assert_eq!(since.elapsed(), Duration::ZERO);
    assert_eq!(server.spec().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_can_not_renew_stops_before_others_start() {
    let server = Server::default();
    let mut leader = elect(server.api(), config("first"), Shutdown::default());
    assert!(leader.acquired().await);
    server.state.lock().down = true;
    let since = Instant::now();
    leader.lost().await;
    let lasted = since.elapsed().as_secs();
    assert!((10..=12).contains(&lasted), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn short_trouble_is_survived() {
    let server = Server::default();
    let leader = elect(server.api(), config("first"), Shutdown::default());
    assert!(elect_acquired(&leader).await);
    for _ in 0..5 {
        server.state.lock().down = true;
        tokio::time::sleep(Duration::from_secs(7)).await;
        server.state.lock().down = false;
        tokio::time::sleep(Duration::from_secs(7)).await;
    }
    assert_eq!(leader.current(), Leadership::Leading);
    // Somebody touched the lease without taking it: the optimistic write fails, the next one does not.
    let mut touched = server.state.lock().lease.clone().unwrap();
    touched["metadata"]["labels"] = json!({"touched": "yes"});
    server.state.lock().put(touched);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(leader.current(), Leadership::Leading);
    let lease = server.state.lock().lease.clone().unwrap();
    assert_eq!(lease["metadata"]["labels"]["touched"], "yes");
}

async fn elect_acquired(election: &Election) -> bool {
    let mut state = election.subscribe();
    state.wait_for(|s| *s == Leadership::Leading).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_stolen_lease_is_lost_at_once() {
    let server = Server::default();
    let mut leader = elect(server.api(), config("first"), Shutdown::default());
    assert!(leader.acquired().await);
    server.held_by("thief");
    let since = Instant::now();
    leader.lost().await;
    assert!(since.elapsed() <= Duration::from_secs(2));
    assert_eq!(server.spec().holder(), "thief");
}

#[tokio::test(start_paused = true)]
async fn of_many_one_leads_and_a_shutdown_ends_waiting() {
    let server = Server::default();
    server.held_by("gone");
    let shutdown = Shutdown::default();
    let elections: Vec<Election> = (0..5)
        .map(|i| elect(server.api(), config(&format!("c{i}")), shutdown.clone()))
        .collect();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let leading = elections.iter().filter(|e| e.current() == Leadership::Leading).count();
    assert_eq!(leading, 1);
    assert_eq!(server.spec().lease_transitions, Some(5));
    let lease = server.state.lock().lease.clone().unwrap();
    assert_eq!(lease["metadata"]["labels"]["a"], "b");
    shutdown.trigger();
    for mut election in elections {
        election.lost().await;
        assert!(!election.acquired().await);
    }
}

#[test]
fn durations_are_checked() {
    let with = |lease: u64, renew: u64, retry: u64| Config {
        lease_duration: Duration::from_secs(lease),
        renew_deadline: Duration::from_secs(renew),
        retry_period: Duration::from_secs(retry),
        ..Config::new("a", "b")
    };
    for (config, good) in [
        (with(15, 10, 2), true),
        (with(10, 10, 2), false),
        (with(15, 10, 9), false),
        (with(15, 10, 0), false),
    ] {
        assert_eq!(config.problem().is_none(), good, "{config:?}");
    }
    assert!(Config::new("a", "b").identity.contains('_'));
}

#[tokio::test(start_paused = true)]
async fn lease_health_fails_without_a_renewal_and_recovers_with_one() {
    let (state, held_until) = (
        watch::channel(Leadership::Standby { leader: String::new() }),
        watch::channel(Instant::now()),
    );
    let health = LeaseHealth {
        state: state.1,
        held_until: held_until.1,
    };
    let lease = Duration::from_secs(15);
    tokio::time::advance(lease).await;
    assert!(health.is_healthy(), "standing by");
    held_until.0.send_replace(Instant::now().later(lease));
    state.0.send_replace(Leadership::Leading);
    assert!(health.is_healthy());
    tokio::time::advance(lease).await;
    assert!(health.is_healthy());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!health.is_healthy(), "leading by a lease that has run out");
    held_until.0.send_replace(Instant::now().later(lease));
    assert!(health.is_healthy());
    state.0.send_replace(Leadership::Lost);
    assert!(!health.is_healthy());
}

#[tokio::test(start_paused = true)]
async fn lease_health_follows_the_election() {
    let server = Server::default();
    let mut election = elect(server.api(), config("a"), Shutdown::default());
    let health = election.lease_health();
    assert!(health.is_healthy(), "not elected yet");
    assert!(election.acquired().await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(health.is_healthy(), "renewed all the time");
    server.state.lock().down = true;
    election.lost().await;
    assert!(!health.is_healthy());
    server.state.lock().down = false;
    let mut next = elect(server.api(), config("b"), Shutdown::default());
    assert!(next.acquired().await && next.lease_health().is_healthy());
}
