//! What objects count for in resource quotas: pure, for admission, which holds the limits, and for the controller that
//! counts anew.

mod scopes;
mod usage;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use scopes::{covers, is_terminating};
pub use usage::{concerns, in_quota, is_counted, is_overdue, missing_requirements};

use crate::KindDef;
use crate::quantity::Quantity;
use crate::resources::{self, ResourceList};

/// A count that has begun: nothing yet of anything that the quota limits.
pub fn begin(quota: &Value) -> ResourceList {
    let hard = resources::list(quota.pointer("/spec/hard"));
    hard.into_keys().map(|name| (name, Quantity::ZERO)).collect()
}

/// The kinds whose objects have to be looked at.
pub fn kinds_to_count(used: &ResourceList) -> Vec<&'static KindDef> {
    let counted = crate::kinds::all().filter(|kind| kind.stored_as.is_empty() && is_counted(kind));
    counted
        .filter(|kind| used.keys().any(|name| concerns(name, kind)))
        .collect()
}

pub fn count_one(used: &mut ResourceList, quota: &Value, kind: &KindDef, object: &Value, now: Timestamp) {
    for (name, quantity) in in_quota(quota, kind, object, now) {
        if concerns(&name, kind)
            && let Some(sum) = used.get_mut(&name)
        {
            sum.add(&quantity);
        }
    }
}

/// The status of a quota whose use was counted.
pub fn status(quota: &Value, used: &ResourceList) -> Value {
    let hard = resources::list(quota.pointer("/spec/hard"));
    json!({"hard": resources::to_value(&hard), "used": resources::to_value(used)})
}

/// The string at a path of member names, empty where there is none.
fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or("")
}

/// The items of a list at a path of member names; none where there is no list.
fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |at, name| at.get(name))
}
