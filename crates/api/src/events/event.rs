//! Events as events.k8s.io words them. They are stored, selected and shown as core events; only the words differ, and what
//! is demanded of a new one is stricter.
//!
//! Upstream: pkg/apis/events/v1/conversion.go, pkg/apis/core/validation/events.go (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::event as core_event;
use crate::field::{Cursor, Problems};
use crate::kind::{KindDef, SelectableField};
use crate::{fill, meta};

pub(super) const DEF: KindDef = KindDef {
    group: "events.k8s.io",
    schema: "events/v1.Event",
    fields: &[
        SelectableField::at("reason"),
        SelectableField::at("regarding.kind"),
        SelectableField::at("regarding.namespace"),
        SelectableField::at("regarding.name"),
        SelectableField::at("regarding.uid"),
        SelectableField::at("regarding.apiVersion"),
        SelectableField::at("regarding.resourceVersion"),
        SelectableField::at("regarding.fieldPath"),
        SelectableField::at("reportingController"),
        SelectableField::at("type"),
    ],
    cells,
    name_rule: KindDef::BASE.name_rule,
    validate,
    validate_update,
    stored_as: "events",
    to_stored,
    from_stored,
    ..core_event::DEF
};

/// Here, and in core.
const WORDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

/// What core writes even if it is empty and this group does not.
const ALWAYS_IN_CORE: [&str; 2] = ["reportingComponent", "reportingInstance"];

fn to_stored(event: &mut Value) {
    rename(event, WORDS.iter().copied());
    set_version(event, "v1");
    for field in ALWAYS_IN_CORE {
        fill::absent(event, field, "");
    }
    // A count of 0 is left out of a core series, and written here.
    if let Some(series) = event.get_mut("series").and_then(Value::as_object_mut)
        && series.get("count").is_some_and(|c| *c == 0)
    {
        series.remove("count");
    }
}

fn from_stored(event: &mut Value) {
    if let Some(map) = event.as_object_mut() {
        map.retain(|key, value| !(ALWAYS_IN_CORE.contains(&key.as_str()) && value == ""));
    }
    rename(event, WORDS.iter().map(|(here, core)| (*core, *here)));
    set_version(event, "events.k8s.io/v1");
    if let Some(series) = event.get_mut("series").filter(|s| s.is_object()) {
        fill::absent(series, "count", 0);
    }
}

fn rename(event: &mut Value, words: impl Iterator<Item = (&'static str, &'static str)>) {
    let Some(map) = event.as_object_mut() else { return };
    for (from, to) in words {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_string(), value);
        }
    }
}

fn set_version(event: &mut Value, version: &str) {
    if event.get("apiVersion").is_some() {
        event["apiVersion"] = version.into();
    }
}

fn stored(event: &Cursor<'_>) -> Value {
    let mut event = event.value().cloned().unwrap_or(Value::Null);
    to_stored(&mut event);
    event
}

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let mut event = event.clone();
    to_stored(&mut event);
    core_event::cells(&event, now)
}

/// Problems stand at the core form's fields, as upstream reports them.
fn validate(event: &Cursor<'_>, p: &mut Problems) {
    let event = stored(event);
    let event = Cursor::root(&event);
    core_event::validate_basics(&event, "reportingController", p);
    // An update may find what an old client wrote: these are rules for new events. Only existing ones have a version.
    if !event.at("metadata").at("resourceVersion").is_empty() {
        return;
    }
    validate_series(&event, p);
    if !event.at("eventTime").exists() {
        p.required(&event.at("eventTime"), "");
    }
    let kind = event.at("type");
    if !matches!(kind.str(), "Normal" | "Warning") {
        p.invalid_value(kind.path(), &json!(""), format!("has invalid value: {}", kind.str()));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !event.at(field).is_empty() {
            p.invalid_value(event.at(field).path(), &json!(""), "needs to be unset");
        }
    }
}

fn validate_series(event: &Cursor<'_>, p: &mut Problems) {
    let series = event.at("series");
    if !series.exists() {
        return;
    }
    if series.at("count").as_i64().unwrap_or(0) < 2 {
        p.invalid_value(series.at("count").path(), &json!(""), "should be at least 2");
    }
    if !series.at("lastObservedTime").exists() {
        p.required(&series.at("lastObservedTime"), "");
    }
}

/// Only the series goes on.
fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (stored(new), stored(old));
    let (new, old) = (Cursor::root(&new), Cursor::root(&old));
    if new.at("series").value() != old.at("series").value() {
        validate_series(&new, p);
    }
    for field in [
        "involvedObject",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "eventTime",
        "related",
    ] {
        let (new, old) = (new.at(field), old.at(field));
        if !(new.is_empty() && old.is_empty()) {
            p.immutable(&new, &old);
        }
    }
    for field in ["reason", "message", "type", "action", "reportingInstance"] {
        meta::immutable_text(&new.at(field), &old.at(field), p);
    }
    meta::immutable_text(&reporting_controller(&new), &reporting_controller(&old), p);
}

/// The reporting controller under the name it has in messages.
fn reporting_controller<'a>(event: &Cursor<'a>) -> Cursor<'a> {
    Cursor::new(
        event.at("reportingComponent").value(),
        event.path().field("reportingController"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{refuses, refuses_update, row};

    fn base() -> Value {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A", "note": "n",
            "reportingController": "x.io/c", "reportingInstance": "i", "regarding": {"kind": "Pod", "name": "p"},
            "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null})
    }

    #[test]
    fn there_and_back() {
        let mut event = base();
        event["series"] = json!({"count": 0, "lastObservedTime": null});
        let given = event.clone();
        to_stored(&mut event);
        assert_eq!(
            event,
            json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
                "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A",
                "message": "n", "reportingComponent": "x.io/c", "reportingInstance": "i",
                "involvedObject": {"kind": "Pod", "name": "p"}, "source": {}, "firstTimestamp": null,
                "lastTimestamp": null, "series": {"lastObservedTime": null}})
        );
        from_stored(&mut event);
        assert_eq!(event, given);

        let mut plain = json!({"reportingComponent": "", "reportingInstance": "", "count": 3, "message": "m"});
        from_stored(&mut plain);
        assert_eq!(plain, json!({"deprecatedCount": 3, "note": "m"}));
        to_stored(&mut plain);
        assert_eq!(
            plain,
            json!({"reportingComponent": "", "reportingInstance": "", "count": 3, "message": "m"})
        );
    }

    #[test]
    fn new_events() {
        refuses(
            &DEF,
            &base(),
            &[
                (
                    json!({"type": "Odd"}),
                    "type: Invalid value: \"\": has invalid value: Odd",
                ),
                (json!({"eventTime": null}), "eventTime: Required value"),
                (
                    json!({"deprecatedFirstTimestamp": "2026-01-01T00:00:00Z"}),
                    "firstTimestamp: Invalid value: \"\": needs to be unset",
                ),
                (
                    json!({"deprecatedLastTimestamp": "2026-01-01T00:00:00Z"}),
                    "lastTimestamp: Invalid value: \"\": needs to be unset",
                ),
                (
                    json!({"deprecatedCount": 1}),
                    "count: Invalid value: \"\": needs to be unset",
                ),
                (
                    json!({"deprecatedSource": {"host": "h"}}),
                    "source: Invalid value: \"\": needs to be unset",
                ),
                (
                    json!({"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}),
                    "series.count: Invalid value: \"\": should be at least 2",
                ),
                (
                    json!({"series": {"count": 2}}),
                    "series.lastObservedTime: Required value",
                ),
                (
                    json!({"reportingController": "-"}),
                    "reportingController: Invalid value: \"-\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                ),
            ],
        );
    }

    #[test]
    fn updates_change_only_the_series() {
        let mut old = base();
        old["metadata"]["resourceVersion"] = json!("1");
        old["deprecatedCount"] = json!(2);
        refuses_update(
            &DEF,
            &old,
            &[
                (
                    json!({"note": "other"}),
                    "message: Invalid value: \"other\": field is immutable",
                ),
                (
                    json!({"reason": "S"}),
                    "reason: Invalid value: \"S\": field is immutable",
                ),
                (
                    json!({"reportingController": "d"}),
                    "reportingController: Invalid value: \"d\": field is immutable",
                ),
                (
                    json!({"deprecatedCount": 3}),
                    "count: Invalid value: 3: field is immutable",
                ),
                (
                    json!({"regarding": {"name": "q"}}),
                    "involvedObject: Invalid value: {\"kind\":\"Pod\",\"name\":\"q\"}: field is immutable",
                ),
                (
                    json!({"series": {"count": 0, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}),
                    "series.count: Invalid value: \"\": should be at least 2",
                ),
            ],
        );
        assert_eq!(row(&DEF, &old), "10m|Normal|R|pod/p||x.io/c, i|n|10m|2|e");
    }

    proptest::proptest! {
        #[test]
        fn storing_loses_nothing(note in "[a-z]{0,3}", count in 0i32..3, series in proptest::option::of(0i32..3), c in "[a-z]{0,2}") {
            let mut event = json!({"note": note, "deprecatedCount": count, "reportingController": c, "regarding": {"name": c}});
            if let Some(count) = series {
                event["series"] = json!({"count": count});
            }
            let read = |def: &KindDef, value| crate::kind_check::read(def, value);
            let here = read(&DEF, event);
            let mut event = here.clone();
            to_stored(&mut event);
            assert_eq!(read(&core_event::DEF, event.clone()), event, "the stored form is a core event as it would be written");
            from_stored(&mut event);
            assert_eq!(event, here);
        }
    }
}
