//! Whether the API server is reachable, logged once for each change by whichever request of a component notices first.
//! Everyone else logs nothing: a component has dozens of informers, leases and writers, and they all fail at the same time.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{Error, UnavailableReason, chain};

/// How requests fail whose server has gone, by when it went: one reason among others, said once.
const GONE: &[&str] = &[
    "Connection refused",
    "Connection reset",
    "Connection aborted",
    "Broken pipe",
    "connection closed",
    "connection error",
    "operation was canceled",
];
/// While it goes it may fail in still other ways. What fails otherwise later is news.
const SETTLED: Duration = Duration::from_secs(10);
/// Reasons of one outage that are remembered, so that they are said once.
const REASONS_MAX: usize = 8;

/// Shared by all requests of a component.
#[derive(Clone)]
pub(crate) struct Reachability(Arc<Shared>);

struct Shared {
    component: String,
    state: Mutex<OutageState>,
}

#[derive(Default)]
struct OutageState {
    /// When a request was last answered, by whatever.
    answered: Option<Instant>,
    outage: Option<Outage>,
}

struct Outage {
    since: Instant,
    last_line: Instant,
    reasons: Vec<String>,
}

/// What is logged.
#[derive(Debug, PartialEq)]
enum ReachabilityChange {
    Unreachable(String),
    ReachableAfter(Duration),
}

impl Reachability {
    pub(crate) fn new(component: &str) -> Reachability {
        Reachability(Arc::new(Shared {
            component: component.to_string(),
            state: Mutex::default(),
        }))
    }

    /// Observes the result of a request that began at `began`.
    pub(crate) fn observe<T>(&self, began: Instant, result: &Result<T, Error>) {
        let change = self
            .0
            .state
            .lock()
            .observe(began, Instant::now(), result.as_ref().err());
        let component = &self.0.component;
        match change {
            None => {}
            Some(ReachabilityChange::Unreachable(err)) => {
                tracing::warn!(component, err, "failed to reach the API server; retrying")
            }
            Some(ReachabilityChange::ReachableAfter(after)) => {
                tracing::info!(component, ?after, "reached the API server again")
            }
        }
    }
}

impl OutageState {
    fn observe(&mut self, began: Instant, now: Instant, error: Option<&Error>) -> Option<ReachabilityChange> {
        let Some(error) = error.filter(|e| e.is_away()) else {
            self.answered = Some(now);
            let outage = self.outage.take()?;
            return Some(ReachabilityChange::ReachableAfter(now.duration_since(outage.since)));
        };
        // Others were answered meanwhile: it is this request that has a problem.
        if self.answered.is_some_and(|at| at > began) {
            return None;
        }
        let (reason, kind) = reason(error);
        let outage = self.outage.get_or_insert_with(|| Outage {
            since: now,
            last_line: now,
            reasons: vec![],
        });
        if outage.reasons.len() == REASONS_MAX || outage.reasons.contains(&kind) {
            return None;
        }
        let is_first = outage.reasons.is_empty();
        if !is_first && now.duration_since(outage.last_line) < SETTLED {
            return None;
        }
        outage.last_line = now;
        outage.reasons.push(kind);
        Some(ReachabilityChange::Unreachable(reason))
    }
}

/// What to say, and what counts as the same.
fn reason(error: &Error) -> (String, String) {
    let text = match error {
        // Limits differ from request to request.
        Error::Unavailable(UnavailableReason::Timeout(_)) => "request timed out".to_string(),
        Error::Unavailable(UnavailableReason::Transport(source)) => chain(&**source),
        error => error.chain(),
    };
    let kind = match GONE.iter().any(|part| text.contains(part)) {
        true => "gone".to_string(),
        false => text.clone(),
    };
    (text, kind)
}

/// Failures of something that is retried: each is logged once, until it is another one or until a try succeeds. That the
/// API server is unreachable is `Api`'s to log.
#[derive(Debug, Default)]
pub struct Failures {
    last: Option<String>,
}

impl Failures {
    /// Whether to log this failure: it is neither the last one again nor that the server is unreachable.
    pub fn is_news(&mut self, error: &Error) -> bool {
        if error.is_away() {
            return false;
        }
        let text = error.chain();
        let is_news = self.last.as_ref() != Some(&text);
        self.last = Some(text);
        is_news
    }

    /// A try succeeded: the next failure is logged whatever it is.
    pub fn succeeded(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests;
