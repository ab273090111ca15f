//! Who the pods of a set are: their names and labels, and the claims that go with them.

use serde_json::{Value, json};

use crate::objects::{Pod, PodTemplate, StatefulSet};
use crate::{pod_template, revisions};

const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The number behind the set's name, if that is how the pod is called.
// Differs from upstream in not taking `web-007` for the seventh: no pod can be given another name.
pub(super) fn ordinal(set_name: &str, pod_name: &str) -> Option<i64> {
    let digits = pod_name.strip_prefix(set_name)?.strip_prefix('-')?;
    let number: i32 = digits.parse().ok()?;
    (number.to_string() == digits && number >= 0).then(|| number.into())
}

pub(super) fn pod_name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.metadata.name)
}

pub(super) fn replicas(set: &StatefulSet) -> i64 {
    set.spec.replicas.unwrap_or(1).max(0)
}

/// The ordinals that the set is to have.
pub(super) fn wanted(set: &StatefulSet) -> std::ops::Range<i64> {
    let start = set.spec.ordinals.start;
    start..start + replicas(set)
}

/// The names of the pod's volumes, and of the claims behind them.
pub(super) fn claim_names(set: &StatefulSet, ordinal: i64) -> impl Iterator<Item = (&str, String)> {
    set.spec.volume_claim_templates.iter().map(move |template| {
        let volume = template["metadata"]["name"].as_str().unwrap_or_default();
        (volume, format!("{volume}-{}-{ordinal}", set.metadata.name))
    })
}

pub(super) fn has_its_label(pod: &Pod) -> bool {
    pod.metadata.label(POD_NAME_LABEL) == Some(&pod.metadata.name)
}

/// A patch that gives a pod its labels back.
pub(super) fn label_patch(pod: &Pod, ordinal: i64) -> Value {
    json!({"metadata": {
        "uid": pod.metadata.uid,
        "labels": {POD_NAME_LABEL: pod.metadata.name, POD_INDEX_LABEL: ordinal.to_string()},
    }})
}

/// Whether the pod has all its claims as volumes.
pub(super) fn has_its_storage(set: &StatefulSet, ordinal: i64, pod: &Pod) -> bool {
    claim_names(set, ordinal).all(|(name, claim)| {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == name);
        let source = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
        source.is_some_and(|source| source.claim_name == claim)
    })
}

/// The pod of this ordinal, made from a revision's template.
pub(super) fn pod(set: &StatefulSet, ordinal: i64, template: Value, revision: &str) -> Value {
    let mut template: PodTemplate = serde_json::from_value(template).unwrap_or_default();
    let name = pod_name(set, ordinal);
    let labels = &mut template.metadata.labels;
    labels.insert(POD_NAME_LABEL.to_string(), name.clone());
    labels.insert(POD_INDEX_LABEL.to_string(), ordinal.to_string());
    labels.insert(revisions::POD_LABEL.to_string(), revision.to_string());
    let mut pod = pod_template::pod(set, &template);
    pod["metadata"]["name"] = name.as_str().into();
    pod["metadata"]["namespace"] = set.metadata.namespace.as_str().into();
    let spec = &mut pod["spec"];
    spec["hostname"] = name.into();
    if !set.spec.service_name.is_empty() {
        spec["subdomain"] = set.spec.service_name.as_str().into();
    }
    let mut volumes: Vec<Value> = claim_names(set, ordinal)
        .map(|(volume, claim)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    // A claim goes before a volume of the same name in the template.
    let taken: Vec<&str> = claim_names(set, ordinal).map(|(volume, _)| volume).collect();
    let own = spec["volumes"].as_array().cloned().unwrap_or_default();
    volumes.extend(own.into_iter().filter(|v| !taken.iter().any(|name| v["name"] == *name)));
    if !volumes.is_empty() {
        spec["volumes"] = volumes.into();
    }
    pod
}

/// The claim of this ordinal, made from the set's template of this number.
pub(super) fn claim(set: &StatefulSet, ordinal: i64, template: usize) -> Value {
    let template = &set.spec.volume_claim_templates[template];
    let from = &template["metadata"];
    let name = format!(
        "{}-{}-{ordinal}",
        from["name"].as_str().unwrap_or_default(),
        set.metadata.name
    );
    let mut metadata = json!({"name": name, "namespace": set.metadata.namespace});
    for field in ["labels", "annotations", "finalizers"] {
        if !from[field].is_null() {
            metadata[field] = from[field].clone();
        }
    }
    for (key, value) in set.spec.selector["matchLabels"].as_object().into_iter().flatten() {
        metadata["labels"][key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {
                "replicas": 3, "ordinals": {"start": 5}, "serviceName": "nginx",
                "selector": {"matchLabels": {"app": "web"}},
                "volumeClaimTemplates": [
                    {"metadata": {"name": "www", "labels": {"own": "1"}}, "spec": {"size": 1}, "status": {"phase": "Pending"}},
                    {"metadata": {"name": "log"}, "spec": {"size": 2}},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_known_by_their_names() {
        for (name, wanted) in [
            ("web-0", Some(0)),
            ("web-12", Some(12)),
            ("web", None),
            ("web-", None),
            ("web-01", None),
            ("web--1", None),
            ("web-+1", None),
            ("web-x", None),
            ("web-a-0", None),
            ("other-0", None),
            ("web-99999999999", None),
        ] {
            assert_eq!(ordinal("web", name), wanted, "{name}");
        }
        assert_eq!(super::wanted(&set()), 5..8);
    }

    #[test]
    fn a_pod_has_its_name_its_labels_and_its_claims() {
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "www", "emptyDir": {}}], "containers": []},
        });
        let pod = pod(&set(), 6, template, "web-abc");
        assert_eq!(pod["metadata"]["name"], "web-6");
        assert_eq!(pod["metadata"]["generateName"], "web-");
        let labels = json!({
            "app": "web", "statefulset.kubernetes.io/pod-name": "web-6", "apps.kubernetes.io/pod-index": "6",
            "controller-revision-hash": "web-abc",
        });
        assert_eq!(pod["metadata"]["labels"], labels);
        assert_eq!(
            (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
            (&json!("web-6"), &json!("nginx"))
        );
        let volumes = json!([
            {"name": "www", "persistentVolumeClaim": {"claimName": "www-web-6"}},
            {"name": "log", "persistentVolumeClaim": {"claimName": "log-web-6"}},
            {"name": "tmp", "emptyDir": {}},
        ]);
        assert_eq!(pod["spec"]["volumes"], volumes);
        let read: Pod = serde_json::from_value(pod).unwrap();
        assert!(has_its_label(&read) && has_its_storage(&set(), 6, &read) && !has_its_storage(&set(), 7, &read));
    }

    #[test]
    fn a_claim_has_the_labels_of_the_set() {
        let wanted = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "www-web-5", "namespace": "ns", "labels": {"app": "web", "own": "1"}},
            "spec": {"size": 1},
        });
        assert_eq!(claim(&set(), 5, 0), wanted);
        assert_eq!(claim(&set(), 5, 1)["metadata"]["labels"], json!({"app": "web"}));
    }
}
