//! Events about pods and their containers.

use std::borrow::Cow;
use std::sync::Arc;

use orlop_api::types::core::Pod;
use orlop_client::events::{Event, EventType, ObjectReference, Recorder};

/// Where events go: to the API server's recorder, or, where there is no API server, to the log. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    sink: Arc<dyn Fn(Event) + Send + Sync>,
}

impl From<Recorder> for Events {
    fn from(recorder: Recorder) -> Events {
        Events::to(move |event| recorder.record(event))
    }
}

impl Events {
    pub fn to(sink: impl Fn(Event) + Send + Sync + 'static) -> Events {
        Events { sink: Arc::new(sink) }
    }

    /// For a kubelet without an API server.
    pub fn to_log() -> Events {
        Events::to(|event| {
            let Event {
                regarding,
                reason,
                note,
                ..
            } = event;
            tracing::info!(
                object = format!("{}/{}", regarding.namespace, regarding.name),
                reason = %reason,
                note = %note,
                "event occurred"
            );
        })
    }

    pub fn record(&self, regarding: ObjectReference, kind: EventType, reason: &'static str, note: impl Into<String>) {
        (self.sink)(Event {
            regarding,
            related: None,
            kind,
            reason: Cow::Borrowed(reason),
            // The kubelet's events carry no action of their own, and an empty one is not valid.
            action: Cow::Borrowed(reason),
            note: note.into(),
        });
    }

    /// About the pod as a whole.
    pub fn pod(&self, pod: &Pod, kind: EventType, reason: &'static str, note: impl Into<String>) {
        self.record(pod_reference(pod), kind, reason, note);
    }

    /// About one container of the pod, whichever list of the spec it is in.
    pub fn container(&self, pod: &Pod, name: &str, kind: EventType, reason: &'static str, note: impl Into<String>) {
        self.record(container_reference(pod, name), kind, reason, note);
    }
}

pub fn pod_reference(pod: &Pod) -> ObjectReference {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    ObjectReference {
        api_version: Cow::Borrowed("v1"),
        kind: Cow::Borrowed("Pod"),
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        uid: text(&pod.metadata.uid),
        resource_version: text(&pod.metadata.resource_version),
        field_path: String::new(),
    }
}

/// The pod, with the place of the container in it.
pub fn container_reference(pod: &Pod, name: &str) -> ObjectReference {
    let list = match &pod.spec {
        Some(spec) if spec.containers.iter().any(|c| c.name == name) => "containers",
        Some(spec) if spec.init_containers.iter().flatten().any(|c| c.name == name) => "initContainers",
        Some(spec) if spec.ephemeral_containers.iter().flatten().any(|c| c.name == name) => "ephemeralContainers",
        _ => "",
    };
    let field_path = match list {
        "" => format!("implicitly required container {name}"),
        list => format!("spec.{list}{{{name}}}"),
    };
    ObjectReference {
        field_path,
        ..pod_reference(pod)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use parking_lot::Mutex;

    /// What was said, as `Warning Unhealthy spec.containers{c}: …`.
    #[derive(Clone, Default)]
    pub(crate) struct Said(Arc<Mutex<Vec<String>>>);

    impl Said {
        pub(crate) fn events(&self) -> Events {
            let said = self.clone();
            Events::to(move |event| {
                let place = match event.regarding.field_path.as_str() {
                    "" => event.regarding.name,
                    path => path.to_string(),
                };
                let line = format!("{:?} {} {place}: {}", event.kind, event.reason, event.note);
                said.0.lock().push(line);
            })
        }

        pub(crate) fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_found_in_every_list() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "a"}],
                "initContainers": [{"name": "b"}], "ephemeralContainers": [{"name": "c"}]}}"#,
        )
        .unwrap();
        for (name, want) in [
            ("a", "spec.containers{a}"),
            ("b", "spec.initContainers{b}"),
            ("c", "spec.ephemeralContainers{c}"),
            ("d", "implicitly required container d"),
        ] {
            assert_eq!(container_reference(&pod, name).field_path, want);
        }
        assert_eq!(pod_reference(&pod).uid, "u");
    }
}
