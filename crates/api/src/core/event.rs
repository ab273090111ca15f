//! Events, in the form in which they are stored. events.k8s.io serves the same objects in its own words: see
//! `crate::events`.
//!
//! Upstream: pkg/registry/core/event/strategy.go, pkg/apis/core/validation/events.go (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef, SelectableField};
use crate::meta::{self, invalid_text};
use crate::{names, printing};

pub const DEF: KindDef = KindDef {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    schema: "core/v1.Event",
    fields: &[
        SelectableField::at("involvedObject.kind"),
        SelectableField::at("involvedObject.namespace"),
        SelectableField::at("involvedObject.name"),
        SelectableField::at("involvedObject.uid"),
        SelectableField::at("involvedObject.apiVersion"),
        SelectableField::at("involvedObject.resourceVersion"),
        SelectableField::at("involvedObject.fieldPath"),
        SelectableField::at("reason"),
        SelectableField::at("reportingComponent"),
        SelectableField {
            name: "source",
            read: Some(source),
        },
        SelectableField::at("type"),
    ],
    columns: COLUMNS,
    cells,
    // Old clients name events as they like.
    name_rule: names::path_segment,
    prepare_create: |_| {},
    prepare_update: |_, _| {},
    validate: |event, p| validate_basics(event, "reportingComponent", p),
    create_on_update: true,
    ..KindDef::BASE
};

/// The name comes last here, and only when asked for: a table of these has no NAME of its own.
pub(crate) const COLUMNS: &[Column] = &[
    Column::string("Last Seen"),
    Column::string("Type"),
    Column::string("Reason"),
    Column::string("Object"),
    Column::wide("Subobject"),
    Column::wide("Source"),
    Column::string("Message"),
    Column::wide("First Seen"),
    Column::wide("Count"),
    Column::wide("Name"),
];

fn source(event: &Value) -> String {
    match printing::text(event, "/source/component") {
        "" => printing::text(event, "/reportingComponent").to_string(),
        component => component.to_string(),
    }
}

const MAX_WORD: usize = 128;
const MAX_MESSAGE: usize = 1024;

/// What holds for events in either form. `reporting` is the reporting controller's field name in messages.
pub(crate) fn validate_basics(event: &Cursor<'_>, reporting: &'static str, p: &mut Problems) {
    let namespace = event.at("metadata").at("namespace").str();
    let involved = event.at("involvedObject").at("namespace");
    // Without an eventTime it is an old client's, of which less is demanded.
    if !event.at("eventTime").exists() {
        let fits = match involved.str() {
            "" => matches!(namespace, "" | "default"),
            other => other == namespace,
        };
        if !fits {
            invalid_text(&involved, "does not match event.namespace", p);
        }
        return;
    }
    if involved.is_empty() && !matches!(namespace, "default" | "kube-system") {
        invalid_text(&involved, "does not match event.namespace", p);
    }
    let controller = Cursor::new(event.at("reportingComponent").value(), event.path().field(reporting));
    if controller.is_empty() {
        p.required(&controller, "");
    }
    meta::validate_label_key(controller.str(), controller.path(), p);
    for field in ["reportingInstance", "action", "reason"] {
        let word = event.at(field);
        if word.is_empty() {
            p.required(&word, "");
        }
        at_most(&word, MAX_WORD, p);
    }
    at_most(&event.at("message"), MAX_MESSAGE, p);
}

fn at_most(c: &Cursor<'_>, max: usize, p: &mut Problems) {
    if c.len() > max {
        p.invalid_value(c.path(), &json!(""), format!("can have at most {max} characters"));
    }
}

pub(crate) fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let time = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
    let text = |pointer: &str| printing::text(event, pointer);
    let first = printing::since(time("/firstTimestamp").or(time("/eventTime")), now);
    let mut last = match time("/lastTimestamp") {
        None => first.clone(),
        some => printing::since(some, now),
    };
    // An event that is part of no series and was not counted happened once.
    let mut count = printing::int(event, "/count").max(1);
    if event.get("series").is_some_and(Value::is_object) {
        last = printing::since(time("/series/lastObservedTime"), now);
        count = printing::int(event, "/series/count");
    }
    let mut object = text("/involvedObject/kind").to_lowercase();
    if !text("/involvedObject/name").is_empty() {
        object = format!("{object}/{}", text("/involvedObject/name"));
    }
    let first_of = |a: &'static str, b: &'static str| if text(a).is_empty() { text(b) } else { text(a) };
    let mut source = first_of("/source/component", "/reportingComponent").to_string();
    let instance = first_of("/source/host", "/reportingInstance");
    if !instance.is_empty() {
        source = format!("{source}, {instance}");
    }
    vec![
        last.into(),
        text("/type").into(),
        text("/reason").into(),
        object.into(),
        text("/involvedObject/fieldPath").into(),
        source.into(),
        text("/message").trim().into(),
        first.into(),
        count.into(),
        text("/metadata/name").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{create_problems, refuses, row};

    #[test]
    fn old_events_must_be_in_the_namespace_of_their_object() {
        let wrong =
            |ns: &str| format!("involvedObject.namespace: Invalid value: {ns:?}: does not match event.namespace");
        for (namespace, involved, wanted) in [
            ("a", "a", String::new()),
            ("default", "", String::new()),
            ("a", "", wrong("")),
            ("a", "b", wrong("b")),
        ] {
            let event = json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": involved}, "eventTime": null});
            assert_eq!(create_problems(&DEF, event).join(""), wanted, "{namespace} {involved}");
        }
    }

    #[test]
    fn new_events_say_who_reports() {
        let base = json!({"metadata": {"namespace": "kube-system"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingComponent": "x.io/y", "reportingInstance": "i", "action": "a", "reason": "r"});
        let long = "x".repeat(129);
        refuses(
            &DEF,
            &base,
            &[
                (
                    json!({"metadata": {"namespace": "a"}}),
                    "involvedObject.namespace: Invalid value: \"\": does not match event.namespace",
                ),
                (json!({"reportingInstance": ""}), "reportingInstance: Required value"),
                (json!({"action": ""}), "action: Required value"),
                (json!({"reason": ""}), "reason: Required value"),
                (
                    json!({"reportingInstance": long}),
                    "reportingInstance: Invalid value: \"\": can have at most 128 characters",
                ),
                (
                    json!({"action": long}),
                    "action: Invalid value: \"\": can have at most 128 characters",
                ),
                (
                    json!({"reason": long}),
                    "reason: Invalid value: \"\": can have at most 128 characters",
                ),
                (
                    json!({"message": "x".repeat(1025)}),
                    "message: Invalid value: \"\": can have at most 1024 characters",
                ),
            ],
        );
        let mut nobody = base.clone();
        nobody["reportingComponent"] = json!("");
        let found = create_problems(&DEF, nobody);
        assert_eq!(found[0], "reportingComponent: Required value");
        assert!(found[1].starts_with("reportingComponent: Invalid value: \"\": name part must be non-empty"));
    }

    #[test]
    fn rows() {
        let event = json!({
            "metadata": {"name": "p.1"}, "type": "Normal", "reason": "Pulled", "message": " done\n", "count": 3,
            "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"},
            "source": {"component": "kubelet", "host": "n1"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:09:00Z", "eventTime": null});
        assert_eq!(
            row(&DEF, &event),
            "60s|Normal|Pulled|pod/p|spec|kubelet, n1|done|10m|3|p.1"
        );
        let new = json!({
            "eventTime": "2026-01-01T00:05:00.000000Z", "reportingComponent": "c", "involvedObject": {"kind": "Node"},
            "firstTimestamp": null, "lastTimestamp": null});
        assert_eq!(row(&DEF, &new), "5m|||node||c||5m|1|");
        let series = json!({"eventTime": "2026-01-01T00:05:00.000000Z", "series": {"count": 7, "lastObservedTime": "2026-01-01T00:09:30.000000Z"}});
        assert_eq!(row(&DEF, &series), "30s|||||||5m|7|");
        assert_eq!(source(&new), "c");
        assert_eq!(source(&event), "kubelet");
    }
}
