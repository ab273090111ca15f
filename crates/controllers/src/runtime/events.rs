//! Events that controllers record about an object. What becomes of them (counts, combined events, a budget for each object)
//! the client's recorder decides.

use std::borrow::Cow;

use orlop_client::{Event, EventType, ObjectReference};

use crate::objects::{Kind, Meta};

/// Controllers whose events have another source than their own name.
/// Upstream: what each passes to `NewRecorder`.
const SOURCES: [(&str, &str); 14] = [
    ("disruption-controller", "controllermanager"),
    ("endpoints-controller", "endpoint-controller"),
    ("endpointslice-controller", "endpoint-slice-controller"),
    (
        "endpointslice-mirroring-controller",
        "endpoint-slice-mirroring-controller",
    ),
    ("ephemeral-volume-controller", "ephemeral_volume"),
    ("horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler"),
    ("node-ipam-controller", "cidrAllocator"),
    ("node-lifecycle-controller", "node-controller"),
    ("persistentvolume-attach-detach-controller", "attachdetach-controller"),
    ("persistentvolume-binder-controller", "persistentvolume-controller"),
    ("persistentvolume-expander-controller", "volume_expand"),
    ("replicationcontroller-controller", "replication-controller"),
    ("resourceclaim-controller", "resource_claim"),
    ("service-lb-controller", "service-controller"),
];

/// Who events of that controller come from (`source.component`).
pub fn event_source(controller: &'static str) -> &'static str {
    let other = SOURCES.iter().find(|(name, _)| *name == controller);
    other.map_or(controller, |(_, event_source)| event_source)
}

/// Records the events of one controller.
#[derive(Clone)]
pub struct Recorder {
    inner: orlop_client::Recorder,
}

impl Recorder {
    /// `inner` queues events of all controllers; from here on they are this one's.
    pub fn for_controller(controller: &'static str, inner: &orlop_client::Recorder) -> Recorder {
        Recorder {
            inner: inner.core_v1_source(event_source(controller), ""),
        }
    }

    /// `reason` in one word for programs, `note` for people.
    pub fn normal<T: Kind>(&self, object: &T, reason: impl Into<Cow<'static, str>>, note: impl Into<String>) {
        self.record(reference(object), EventType::Normal, reason.into(), note.into());
    }

    pub fn warning<T: Kind>(&self, object: &T, reason: impl Into<Cow<'static, str>>, note: impl Into<String>) {
        self.record(reference(object), EventType::Warning, reason.into(), note.into());
    }

    pub fn record(&self, regarding: ObjectReference, kind: EventType, reason: Cow<'static, str>, note: String) {
        let action = reason.clone();
        self.inner.record(Event {
            regarding,
            related: None,
            kind,
            reason,
            action,
            note,
        });
    }
}

pub fn reference<T: Kind>(object: &T) -> ObjectReference {
    reference_of_kind(T::API_VERSION, T::KIND, object.meta())
}

fn reference_of_kind(api_version: &'static str, kind: &'static str, meta: &Meta) -> ObjectReference {
    ObjectReference {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_of_existing_controllers() {
        for (name, event_source) in SOURCES {
            assert!(crate::ALL.iter().any(|def| def.name == name), "{name}");
            assert_eq!(super::event_source(name), event_source);
        }
        assert_eq!(event_source("deployment-controller"), "deployment-controller");
        assert_eq!(event_source("taint-eviction-controller"), "taint-eviction-controller");
    }
}
