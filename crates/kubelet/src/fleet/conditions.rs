//! The conditions that nodes and pods have four each of, and when they turned.
//!
//! The time goes with the write in which a condition turns and with no other: writes are strategic merge patches, and what
//! they leave out stays. So nobody needs to remember times, only how the conditions stand at the API server, which the
//! watch and the answers to our own writes tell.

use jiff::Timestamp;
use orlop_base::clock::rfc3339;
use serde::Deserialize;
use serde_json::{Value, json};

/// Whether each of the four holds, in the order in which they are written; `None`: absent or unknown.
pub(super) type Standing = [Option<bool>; 4];

/// How the conditions stand at the API server, and since which revision that is known (0: not yet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub revision: u64,
    pub standing: Standing,
}

impl Told {
    /// Accepts only what is not older than what is known: a watch event may precede our own last write.
    pub(super) fn learn(&mut self, news: Told) {
        if news.revision >= self.revision {
            *self = news;
        }
    }
}

/// What is read of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ReportedCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

pub(super) fn standing(kinds: [&str; 4], seen: &[ReportedCondition]) -> Standing {
    kinds.map(|kind| match seen.iter().find(|c| c.kind == kind)?.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    })
}

/// A condition as it is written; `before`: how it stands so far. Reason and message are always in it, since what is left
/// out stays.
pub(super) fn condition(
    kind: &str,
    holds: bool,
    before: Option<bool>,
    reason: Option<&str>,
    message: Option<&str>,
    now: Timestamp,
) -> Value {
    let status = if holds { "True" } else { "False" };
    let mut condition = json!({"type": kind, "status": status, "reason": reason, "message": message});
    if before != Some(holds) {
        condition["lastTransitionTime"] = rfc3339(now).into();
    }
    condition
}

/// What is read of an object that was written.
#[derive(Deserialize)]
pub(super) struct Stored {
    metadata: StoredMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredMeta {
    resource_version: String,
}

impl Stored {
    /// How its conditions stand, now that this was written of them.
    pub(super) fn told(&self, standing: Standing) -> Told {
        Told {
            revision: revision(&self.metadata.resource_version),
            standing,
        }
    }
}

pub(super) fn revision(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_goes_with_the_turn() {
        let now = Timestamp::UNIX_EPOCH;
        let turned =
            |holds, before| !condition("Ready", holds, before, None, None, now)["lastTransitionTime"].is_null();
        assert!(!turned(true, Some(true)) && !turned(false, Some(false)));
        assert!(turned(true, Some(false)) && turned(false, Some(true)));
        assert!(turned(true, None) && turned(false, None), "unknown is another status");
    }

    #[test]
    fn old_news_are_none() {
        let news = |revision, holds| Told {
            revision,
            standing: [Some(holds); 4],
        };
        let mut told = Told::default();
        told.learn(news(5, true));
        told.learn(news(4, false));
        assert_eq!(told, news(5, true));
        told.learn(news(6, false));
        assert_eq!(told, news(6, false));
    }
}
