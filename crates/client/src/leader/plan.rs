//! Who leads: decided from the lease as it is, when it was last seen to change, and the time. Pure.
//!
//! Times in the lease are for people. Whether a lease has run out is told by our own clock alone: it must not have
//! changed for its whole duration since we first saw it as it is. So clocks of different machines need not agree.
//! Upstream: client-go tools/leaderelection.

use jiff::Timestamp;
use orlop_base::clock::{Shift, rfc3339_micro};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// The spec of a `coordination.k8s.io/v1` Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElectionRecord {
    /// None or empty: nobody.
    pub holder_identity: Option<String>,
    pub lease_duration_seconds: Option<i32>,
    pub acquire_time: Option<String>,
    pub renew_time: Option<String>,
    pub lease_transitions: Option<i32>,
}

impl LeaderElectionRecord {
    pub fn holder(&self) -> &str {
        self.holder_identity.as_deref().unwrap_or("")
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.lease_duration_seconds.unwrap_or(0).max(0) as u64)
    }
}

/// A lease as we last saw it change.
#[derive(Clone, Debug)]
pub struct ObservedRecord {
    pub record: LeaderElectionRecord,
    pub since: Instant,
}

impl ObservedRecord {
    /// What is known after having read `record`.
    pub fn after_reading(before: Option<ObservedRecord>, record: LeaderElectionRecord, now: Instant) -> ObservedRecord {
        match before {
            Some(before) if before.record == record => before,
            _ => ObservedRecord { record, since: now },
        }
    }

    pub fn is_valid(&self, now: Instant) -> bool {
        self.since.later(self.record.duration()) > now
    }
}

/// Who wants to lead, and for how long at a time.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub identity: &'a str,
    pub lease_duration: Duration,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// There is no lease: make one.
    Create(LeaderElectionRecord),
    /// It is ours, or free, or its holder is gone: write this. Another's write in between must make it fail.
    Update(LeaderElectionRecord),
    /// Somebody else leads.
    Wait { holder: String },
}

/// `lease` is none if there is no lease.
pub fn plan(lease: Option<&ObservedRecord>, me: &Candidate<'_>, local_now: Instant, now: Timestamp) -> LeaseStep {
    let time = Some(rfc3339_micro(now));
    let mut record = LeaderElectionRecord {
        holder_identity: Some(me.identity.to_string()),
        lease_duration_seconds: Some(me.lease_duration.as_secs() as i32),
        acquire_time: time.clone(),
        renew_time: time,
        lease_transitions: Some(0),
    };
    let Some(observed) = lease else {
        return LeaseStep::Create(record);
    };
    let (holder, transitions) = (observed.record.holder(), observed.record.lease_transitions.unwrap_or(0));
    if holder == me.identity {
        record.acquire_time = observed.record.acquire_time.clone();
        record.lease_transitions = Some(transitions);
        return LeaseStep::Update(record);
    }
    if !holder.is_empty() && observed.is_valid(local_now) {
        return LeaseStep::Wait {
            holder: holder.to_string(),
        };
    }
    record.lease_transitions = Some(transitions.saturating_add(1));
    LeaseStep::Update(record)
}

/// The lease as its holder leaves it: anybody may take it at once.
pub fn released(held: &LeaderElectionRecord, now: Timestamp) -> LeaderElectionRecord {
    let time = Some(rfc3339_micro(now));
    LeaderElectionRecord {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: time.clone(),
        renew_time: time,
        lease_transitions: held.lease_transitions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, seconds: i32, transitions: i32) -> LeaderElectionRecord {
        LeaderElectionRecord {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some("then".into()),
            renew_time: Some("later".into()),
            lease_transitions: Some(transitions),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_what() {
        let start = Instant::now();
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        // the lease, seconds since it last changed, what to do: verb, acquire time, transitions
        let cases = [
            (None, 0, "create 2026-01-02T03:04:05.000000Z 0"),
            (Some(record("me", 15, 3)), 1, "update then 3"),
            (Some(record("me", 15, 3)), 99, "update then 3"),
            (Some(record("you", 15, 3)), 0, "wait for you"),
            (Some(record("you", 15, 3)), 14, "wait for you"),
            (Some(record("you", 15, 3)), 15, "update 2026-01-02T03:04:05.000000Z 4"),
            (Some(record("you", 40, 3)), 39, "wait for you"),
            (Some(record("", 15, 3)), 0, "update 2026-01-02T03:04:05.000000Z 4"),
            (
                Some(LeaderElectionRecord::default()),
                0,
                "update 2026-01-02T03:04:05.000000Z 1",
            ),
        ];
        for (lease, elapsed, expected) in cases {
            let observed = lease.clone().map(|record| ObservedRecord { record, since: start });
            let me = Candidate {
                identity: "me",
                lease_duration: Duration::from_secs(15),
            };
            let step = plan(observed.as_ref(), &me, start + Duration::from_secs(elapsed), now);
            let (verb, record) = match &step {
                LeaseStep::Create(record) => ("create", record),
                LeaseStep::Update(record) => ("update", record),
                LeaseStep::Wait { holder } => {
                    assert_eq!(format!("wait for {holder}"), expected, "{lease:?}");
                    continue;
                }
            };
            let acquired = record.acquire_time.as_deref().unwrap();
            let shown = format!("{verb} {acquired} {}", record.lease_transitions.unwrap());
            assert_eq!(shown, expected, "{lease:?} after {elapsed} s");
            assert_eq!(record.renew_time.as_deref(), Some("2026-01-02T03:04:05.000000Z"));
            assert_eq!((record.holder(), record.lease_duration_seconds), ("me", Some(15)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_change_starts_the_lease_anew() {
        let start = Instant::now();
        let seen = ObservedRecord::after_reading(None, record("you", 15, 1), start);
        let later = start + Duration::from_secs(10);
        let seen = ObservedRecord::after_reading(Some(seen), record("you", 15, 1), later);
        assert_eq!(seen.since, start);
        let renewed = LeaderElectionRecord {
            renew_time: Some("now".into()),
            ..record("you", 15, 1)
        };
        let seen = ObservedRecord::after_reading(Some(seen), renewed, later);
        assert_eq!(seen.since, later);
    }
}
