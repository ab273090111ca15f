//! The entries of `metadata.managedFields`: one per manager, operation, version and subresource.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::set::{self, Set};

/// More updaters than this and the oldest are merged into one.
const MAX_UPDATERS: usize = 10;
const MERGED_UPDATERS: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    /// RFC 3339, UTC, whole seconds: sorts as text.
    pub time: Option<String>,
    pub fields: Set,
}

impl Entry {
    /// Whether both are the same manager's at the same work. An applier stays the same when it changes the version.
    pub(super) fn same_owner(&self, other: &Entry) -> bool {
        self.owner() == other.owner()
    }

    fn owner(&self) -> (Operation, &str, &str, &str) {
        let version = match self.operation {
            Operation::Apply => "",
            Operation::Update => &self.api_version,
        };
        (self.operation, &self.manager, &self.subresource, version)
    }

    /// How the manager is called in a conflict: `"kubectl" with subresource "scale" using apps/v1`.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }

    /// The order in which conflicting managers are listed.
    pub(super) fn conflict_order(&self, other: &Entry) -> Ordering {
        self.manager
            .cmp(&other.manager)
            .then(self.operation.cmp(&other.operation))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }

    fn stored_order(&self, other: &Entry) -> Ordering {
        self.operation
            .cmp(&other.operation)
            .then_with(|| self.time.cmp(&other.time))
            .then_with(|| self.manager.cmp(&other.manager))
            .then_with(|| self.api_version.cmp(&other.api_version))
            .then_with(|| self.subresource.cmp(&other.subresource))
    }

    fn encode(self) -> Value {
        let mut map = Map::new();
        map.insert("apiVersion".into(), self.api_version.into());
        map.insert("fieldsType".into(), "FieldsV1".into());
        map.insert("fieldsV1".into(), Value::Object(self.fields));
        if !self.manager.is_empty() {
            map.insert("manager".into(), self.manager.into());
        }
        map.insert("operation".into(), self.operation.name().into());
        if !self.subresource.is_empty() {
            map.insert("subresource".into(), self.subresource.into());
        }
        if let Some(time) = self.time {
            map.insert("time".into(), time.into());
        }
        Value::Object(map)
    }

    fn decode(value: Value, trust: Trust) -> Option<Entry> {
        let Value::Object(mut map) = value else { return None };
        let mut text = |name: &str| match map.remove(name) {
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(s)) => Some(s),
            Some(_) => None,
        };
        let operation = match text("operation")?.as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        let api_version = text("apiVersion").filter(|v| !v.is_empty())?;
        if text("fieldsType")? != "FieldsV1" {
            return None;
        }
        let (manager, subresource) = (text("manager")?, text("subresource")?);
        let time = Some(text("time")?).filter(|t| !t.is_empty());
        let mut fields = match (map.remove("fieldsV1").unwrap_or_default(), trust) {
            (Value::Null, _) => Set::new(),
            (Value::Object(fields), Trust::Ours) => fields,
            (sent, _) => set::canonical(&sent)?,
        };
        fields.remove(".");
        Some(Entry {
            manager,
            operation,
            api_version,
            subresource,
            time,
            fields,
        })
    }
}

/// Where entries come from: written by us before, or sent by a user and not to be relied on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Trust {
    Ours,
    Sent,
}

/// The entries of a list; None if one of them is not well-formed. Of two entries of one owner the last counts.
pub(super) fn decode(list: Vec<Value>, trust: Trust) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::with_capacity(list.len() + 1);
    for value in list {
        entries.push(Entry::decode(value, trust)?);
    }
    if trust == Trust::Sent {
        let mut owners = HashSet::with_capacity(entries.len());
        let mut is_last: Vec<bool> = entries.iter().rev().map(|entry| owners.insert(entry.owner())).collect();
        drop(owners);
        entries.retain(|_| is_last.pop().unwrap_or(true));
    }
    Some(entries)
}

/// The list as it is stored: appliers first, each group oldest first.
pub(super) fn encode(mut entries: Vec<Entry>) -> Value {
    entries.sort_by(Entry::stored_order);
    entries.into_iter().map(Entry::encode).collect()
}

/// Merges the oldest updaters into one (of each version) until there are not too many.
pub(super) fn cap_updaters(entries: &mut Vec<Entry>) {
    let updaters = |entries: &[Entry]| entries.iter().filter(|e| e.operation == Operation::Update).count();
    let mut surplus = updaters(entries).saturating_sub(MAX_UPDATERS);
    if surplus == 0 {
        return;
    }
    entries.sort_by(Entry::stored_order);
    // The oldest of a version stays as it is until there is another to merge it with.
    let mut oldest: Vec<Entry> = vec![];
    let mut by_version: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<Entry> = vec![];
    for entry in std::mem::take(entries) {
        if surplus == 0 || entry.operation == Operation::Apply {
            kept.push(entry);
            continue;
        }
        match by_version.get(&entry.api_version) {
            None => {
                by_version.insert(entry.api_version.clone(), oldest.len());
                oldest.push(entry);
            }
            Some(at) => {
                let bucket = &mut oldest[*at];
                bucket.manager = MERGED_UPDATERS.into();
                bucket.subresource.clear();
                bucket.time = entry.time;
                set::union(&mut bucket.fields, entry.fields);
                surplus -= 1;
            }
        }
    }
    let owned: HashMap<_, usize> = kept.iter().enumerate().rev().map(|(i, e)| (e.owner(), i)).collect();
    let places: Vec<Option<usize>> = oldest
        .iter()
        .map(|bucket| owned.get(&bucket.owner()).copied())
        .collect();
    drop(owned);
    for (bucket, place) in oldest.into_iter().zip(places) {
        match place {
            Some(at) => set::union(&mut kept[at].fields, bucket.fields),
            None => kept.push(bucket),
        }
    }
    *entries = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(manager: &str, operation: &str, version: &str, time: &str, field: &str) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {field: {}},
        })
    }

    fn decoded(list: Vec<Value>) -> Vec<Entry> {
        decode(list, Trust::Sent).unwrap()
    }

    #[test]
    fn entries_are_sorted_by_operation_time_manager_version() {
        let list = vec![
            entry("b", "Update", "v1", "2026-01-01T00:00:02Z", "f:a"),
            entry("a", "Update", "v1", "2026-01-01T00:00:02Z", "f:a"),
            entry("z", "Update", "v1", "2026-01-01T00:00:01Z", "f:a"),
            entry("z", "Apply", "v1", "2026-01-01T00:00:09Z", "f:a"),
            entry("a", "Update", "v0", "2026-01-01T00:00:02Z", "f:a"),
        ];
        let sorted = encode(decoded(list));
        let order: Vec<String> = sorted
            .as_array()
            .unwrap()
            .iter()
            .map(|e| format!("{} {} {}", e["operation"], e["manager"], e["apiVersion"]).replace('"', ""))
            .collect();
        assert_eq!(
            order,
            ["Apply z v1", "Update z v1", "Update a v0", "Update a v1", "Update b v1"]
        );
    }

    #[test]
    fn malformed_entries_are_refused() {
        let good = entry("a", "Update", "v1", "2026-01-01T00:00:00Z", "f:a");
        assert!(decode(vec![good.clone()], Trust::Sent).is_some());
        for (field, value) in [
            ("operation", json!("Replace")),
            ("apiVersion", json!("")),
            ("fieldsType", json!("FieldsV2")),
            ("fieldsType", json!(null)),
            ("fieldsV1", json!({"nonsense": {}})),
            ("manager", json!(1)),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(decode(vec![bad.clone()], Trust::Sent).is_none(), "{bad}");
        }
        let twice = vec![good.clone(), entry("a", "Update", "v1", "2026-01-01T00:00:05Z", "f:b")];
        let entries = decoded(twice);
        assert_eq!(entries.len(), 1);
        assert!(entries[0].fields.contains_key("f:b"));
    }

    #[test]
    fn the_oldest_updaters_are_merged() {
        let mut list = vec![entry("applier", "Apply", "v1", "2020-01-01T00:00:00Z", "f:x")];
        for i in 0..12 {
            let version = if i == 1 { "v2" } else { "v1" };
            let time = format!("2026-01-01T00:00:{i:02}Z");
            list.push(entry(&format!("m{i:02}"), "Update", version, &time, &format!("f:{i}")));
        }
        let mut entries = decoded(list);
        cap_updaters(&mut entries);
        let stored = encode(entries);
        let names: Vec<&str> = stored
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["manager"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "applier",
                "m01",
                "ancient-changes",
                "m04",
                "m05",
                "m06",
                "m07",
                "m08",
                "m09",
                "m10",
                "m11"
            ]
        );
        assert_eq!(stored[2]["fieldsV1"], json!({"f:0": {}, "f:2": {}, "f:3": {}}));
        assert_eq!(stored[2]["time"], "2026-01-01T00:00:03Z");
    }

    #[test]
    fn managers_are_described_as_in_conflicts() {
        let mut e = decoded(vec![entry("kubectl", "Update", "apps/v1", "", "f:a")]).remove(0);
        assert_eq!(e.describe(), "\"kubectl\" using apps/v1");
        e.subresource = "scale".into();
        assert_eq!(e.describe(), "\"kubectl\" with subresource \"scale\" using apps/v1");
        e.operation = Operation::Apply;
        assert_eq!(e.describe(), "\"kubectl\" with subresource \"scale\"");
    }
}
