//! Scale: how many pods a workload wants and has, and nothing else of it. Never stored: each is read off its workload.

use serde_json::{Map, Value, json};

use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, copy_member};
use crate::printing::age;
use crate::workload;

pub const API_VERSION: &str = "autoscaling/v1";
pub const KIND: &str = "Scale";
pub const SCHEMA: &str = "autoscaling/v1.Scale";

/// How a Scale is shown in a table.
pub const TABLE: KindDef = KindDef {
    kind: KIND,
    columns: &[Column::integer("Desired"), Column::integer("Available"), Column::AGE],
    cells: |scale, now| {
        let number = |pointer: &str| scale.pointer(pointer).and_then(Value::as_i64).unwrap_or(0).into();
        vec![number("/spec/replicas"), number("/status/replicas"), age(scale, now)]
    },
    ..KindDef::BASE
};

/// The Scale of a Deployment, ReplicaSet, StatefulSet or ReplicationController.
pub fn scale_of(kind: &KindDef, object: &Value) -> Value {
    let mut metadata = Map::new();
    for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.pointer("/metadata").and_then(|m| m.get(name)) {
            metadata.insert(name.into(), value.clone());
        }
    }
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let (wanted, there) = (number("/spec/replicas"), number("/status/replicas"));
    let selector = selector_of(kind, object.pointer("/spec/selector"));
    let mut scale = json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {}, "status": {"replicas": there},
    });
    if wanted != 0 {
        scale["spec"]["replicas"] = wanted.into();
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// The selector as text; the core group's only scalable kind selects by a plain map of labels.
fn selector_of(kind: &KindDef, selector: Option<&Value>) -> String {
    if kind.group.is_empty() {
        let labels = selector.map(|labels| json!({"matchLabels": labels}));
        return workload::selector_text(labels.as_ref()).unwrap_or_default();
    }
    workload::selector_text(selector).unwrap_or_default()
}

/// Puts what a written Scale says into its workload: the count, and the resourceVersion it was read at (none: any).
/// A problem leaves the workload as it is. That a uid in the Scale is the workload's is for the caller to see to.
pub fn apply_scale(object: &mut Value, scale: &Value, p: &mut Problems) {
    let replicas = Cursor::root(scale).at("spec").at("replicas");
    let before = p.count();
    p.non_negative(&replicas);
    if p.count() > before {
        return;
    }
    fill::member(object, "spec")["replicas"] = workload::count(&replicas).into();
    let none = json!({});
    let metadata = scale.get("metadata").unwrap_or(&none);
    copy_member(fill::member(object, "metadata"), metadata, "resourceVersion");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::found;
    use crate::{apps, core};

    #[test]
    fn a_scale_is_read_and_written() {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "x", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}]}},
            "status": {"replicas": 2},
        });
        let mut scale = scale_of(&apps::deployment::DEF, &object);
        let wanted = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {"name": "web", "namespace": "x", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=web,tier in (a,b)"},
        });
        assert_eq!(scale, wanted);

        scale["spec"] = json!({});
        scale["metadata"]["resourceVersion"] = json!("8");
        assert!(found(|p| apply_scale(&mut object, &scale, p)).is_empty());
        assert_eq!(
            (&object["spec"]["replicas"], &object["metadata"]["resourceVersion"]),
            (&json!(0), &json!("8"))
        );
        assert_eq!(scale_of(&apps::deployment::DEF, &object)["spec"], json!({}));

        scale["spec"] = json!({"replicas": -1});
        let problem = "spec.replicas: Invalid value: -1: must be greater than or equal to 0";
        assert_eq!(found(|p| apply_scale(&mut object, &scale, p)), [problem]);
        assert_eq!(object["spec"]["replicas"], 0);
    }

    #[test]
    fn replication_controllers_select_by_a_map() {
        let object = json!({"spec": {"replicas": 1, "selector": {"b": "2", "a": "1"}}});
        let scale = scale_of(&core::replication_controller::DEF, &object);
        assert_eq!(scale["status"], json!({"replicas": 0, "selector": "a=1,b=2"}));
        let bare = scale_of(&core::replication_controller::DEF, &json!({}));
        assert_eq!((&bare["spec"], &bare["status"]), (&json!({}), &json!({"replicas": 0})));
    }
}
