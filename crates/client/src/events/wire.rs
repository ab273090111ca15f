//! Events as the two APIs have them, and the requests that write them.

use orlop_base::clock::{rfc3339, rfc3339_micro};
use serde::Serialize;
use serde::de::IgnoredAny;

use super::{EventApi, EventType, ObjectReference, Report};
use crate::api::Api;
use crate::error::{Error, Result};
use crate::path;

/// A repetition changes the event that is there. If it is not (any more), the event is written whole.
pub(super) async fn write_once(api: &Api, report: &Report) -> Result<()> {
    let namespace = Some(report.namespace());
    let group = report.group();
    if report.count > 1 {
        let path = path::object(group, namespace, "events", &report.name);
        let written = match &report.source.api {
            EventApi::CoreV1 { .. } => {
                api.patch_strategic::<IgnoredAny>(&path, &CountPatch::from(report))
                    .await
            }
            EventApi::EventsV1 { .. } => {
                let patch = SeriesPatch { series: report.into() };
                api.patch_strategic::<IgnoredAny>(&path, &patch).await
            }
        };
        match written {
            Err(Error::NotFound(_)) => {}
            written => return written.map(|_| ()),
        }
    }
    let path = path::collection(group, namespace, "events");
    let written = match &report.source.api {
        EventApi::CoreV1 { host } => {
            let event = CoreV1Event::of(report, host);
            api.create::<IgnoredAny>(&path, &event).await
        }
        EventApi::EventsV1 { instance, .. } => {
            let event = EventsV1Event::of(report, instance);
            api.create::<IgnoredAny>(&path, &event).await
        }
    };
    written.map(|_| ())
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

impl<'a> From<&'a Report> for Metadata<'a> {
    fn from(report: &'a Report) -> Metadata<'a> {
        Metadata {
            name: &report.name,
            namespace: report.namespace(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CountPatch<'a> {
    count: u32,
    last_timestamp: String,
    /// That of combined events is the newest.
    message: &'a str,
}

impl<'a> From<&'a Report> for CountPatch<'a> {
    fn from(report: &'a Report) -> CountPatch<'a> {
        CountPatch {
            count: report.count,
            last_timestamp: rfc3339(report.last),
            message: &report.event.note,
        }
    }
}

#[derive(Serialize)]
struct EventSource<'a> {
    component: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    host: &'a str,
}

/// `core/v1`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CoreV1Event<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    involved_object: &'a ObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    related: Option<&'a ObjectReference>,
    reason: &'a str,
    message: &'a str,
    source: EventSource<'a>,
    first_timestamp: String,
    last_timestamp: String,
    count: u32,
    r#type: EventType,
    reporting_component: &'a str,
    reporting_instance: &'a str,
}

impl<'a> CoreV1Event<'a> {
    fn of(report: &'a Report, host: &'a str) -> CoreV1Event<'a> {
        let (event, component) = (&report.event, report.source.controller.as_str());
        CoreV1Event {
            api_version: "v1",
            kind: "Event",
            metadata: report.into(),
            involved_object: &event.regarding,
            related: event.related.as_ref(),
            reason: &event.reason,
            message: &event.note,
            source: EventSource { component, host },
            first_timestamp: rfc3339(report.first),
            last_timestamp: rfc3339(report.last),
            count: report.count,
            r#type: event.kind,
            reporting_component: component,
            reporting_instance: host,
        }
    }
}

#[derive(Serialize)]
struct SeriesPatch {
    series: SeriesObject,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SeriesObject {
    count: u32,
    last_observed_time: String,
}

impl From<&Report> for SeriesObject {
    fn from(report: &Report) -> SeriesObject {
        SeriesObject {
            count: report.count,
            last_observed_time: rfc3339_micro(report.last),
        }
    }
}

/// `events.k8s.io/v1`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventsV1Event<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    event_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<SeriesObject>,
    reporting_controller: &'a str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: &'a ObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    related: Option<&'a ObjectReference>,
    note: &'a str,
    r#type: EventType,
}

impl<'a> EventsV1Event<'a> {
    fn of(report: &'a Report, instance: &'a str) -> EventsV1Event<'a> {
        let event = &report.event;
        EventsV1Event {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: report.into(),
            event_time: rfc3339_micro(report.first),
            series: (report.count > 1).then(|| report.into()),
            reporting_controller: &report.source.controller,
            reporting_instance: instance,
            action: &event.action,
            reason: &event.reason,
            regarding: &event.regarding,
            related: event.related.as_ref(),
            note: &event.note,
            r#type: event.kind,
        }
    }
}
