//! The pods of a Job as they are made.

use serde_json::{Value, json};

use super::plan::NewPod;
use super::view::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX};
use crate::objects::Job;
use crate::pod_template;

const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// The server adds five characters to make 63, the most that a host name can have.
const PREFIX_MAX: usize = 58;

/// What all pods of the Job have in common.
pub(super) fn base(job: &Job) -> Value {
    let mut pod = pod_template::pod(job, &job.spec.template);
    let mut finalizers = job.spec.template.metadata.finalizers.clone();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.to_string());
    }
    pod["metadata"]["finalizers"] = json!(finalizers);
    if job.is_indexed() {
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                add_index_variable(container);
            }
        }
    }
    pod
}

/// One pod: a copy of the base with what makes it different.
pub(super) fn pod(job: &Job, base: &Value, new: &NewPod) -> Value {
    let mut pod = base.clone();
    let name = &job.metadata.name;
    if let Some(index) = new.index {
        let metadata = &mut pod["metadata"];
        metadata["generateName"] = json!(prefix(name, index));
        metadata["annotations"][INDEX] = json!(index.to_string());
        metadata["labels"][INDEX] = json!(index.to_string());
        pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
    }
    if let Some((counted, ignored)) = new.failures {
        let annotations = &mut pod["metadata"]["annotations"];
        annotations[FAILURES] = json!(counted.to_string());
        if ignored > 0 {
            annotations[IGNORED_FAILURES] = json!(ignored.to_string());
        }
    }
    pod
}

fn prefix(job: &str, index: i64) -> String {
    let end = format!("-{index}-");
    let room = PREFIX_MAX.saturating_sub(end.len()).min(job.len());
    format!("{}{end}", &job[..room])
}

fn add_index_variable(container: &mut Value) {
    let Some(container) = container.as_object_mut() else {
        return;
    };
    let variables = container.entry("env").or_insert_with(|| json!([]));
    if variables.is_null() {
        *variables = json!([]);
    }
    let Some(variables) = variables.as_array_mut() else {
        return;
    };
    if variables.iter().all(|variable| variable["name"] != INDEX_VARIABLE) {
        let path = format!("metadata.labels['{INDEX}']");
        variables.push(json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_an_indexed_job() {
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": "sum", "uid": "u"},
            "spec": {"completionMode": "Indexed", "template": {
                "metadata": {"labels": {"a": "b"}, "finalizers": ["x"]},
                "spec": {"initContainers": [{"name": "i", "env": [{"name": INDEX_VARIABLE, "value": "7"}]}],
                         "containers": [{"name": "c", "env": [{"name": "A", "value": "b"}]}, {"name": "d"}]}}},
        }))
        .unwrap();
        let new = NewPod {
            index: Some(12),
            failures: Some((2, 1)),
        };
        let variable = json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {
            "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}});
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "sum", "uid": "u", "controller": true,
                           "blockOwnerDeletion": true});
        assert_eq!(
            pod(&job, &base(&job), &new),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"generateName": "sum-12-", "ownerReferences": [owner], "finalizers": ["x", FINALIZER],
                             "labels": {"a": "b", INDEX: "12"},
                             "annotations": {INDEX: "12", FAILURES: "2", IGNORED_FAILURES: "1"}},
                "spec": {"hostname": "sum-12",
                         "initContainers": [{"name": "i", "env": [{"name": INDEX_VARIABLE, "value": "7"}]}],
                         "containers": [{"name": "c", "env": [{"name": "A", "value": "b"}, variable]},
                                        {"name": "d", "env": [variable]}]},
            })
        );
    }

    #[test]
    fn long_names_make_room_for_the_index() {
        assert_eq!(prefix("a", 3), "a-3-");
        let long = prefix(&"x".repeat(63), 1234);
        assert_eq!((long.len(), long.ends_with("x-1234-")), (58, true));
    }
}
