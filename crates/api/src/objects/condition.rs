//! Conditions: what a controller says of an object's state, one of each type.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Condition {
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.r#type == kind)
}

pub fn holds(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(Condition::is_true)
}

/// As `metav1.Time` is written: what is compared must be what is stored.
pub fn whole_seconds(t: Timestamp) -> Timestamp {
    Timestamp::from_second(t.as_second()).expect("seconds of a timestamp are one")
}

/// Puts the condition in the place of the one of its type. Its transition time is `now` if the status changes, else that
/// of the old one. False if nothing changes.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition, now: Timestamp) -> bool {
    let old = conditions.iter_mut().find(|c| c.r#type == new.r#type);
    new.last_transition_time = match &old {
        Some(old) if old.status == new.status => old.last_transition_time,
        _ => Some(whole_seconds(now)),
    };
    match old {
        Some(old) if *old == new => return false,
        Some(old) => *old = new,
        None => conditions.push(new),
    }
    true
}
