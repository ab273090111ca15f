//! DefaultStorageClass and DefaultIngressClass: what names no class gets the default one, if there is one.

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const STORAGE: Plugin = Plugin {
    name: "DefaultStorageClass",
    mutate: Some(storage),
    validate: None,
};
pub(super) const INGRESS: Plugin = Plugin {
    name: "DefaultIngressClass",
    mutate: Some(ingress),
    validate: None,
};

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object["metadata"]["annotations"].get(key).and_then(Value::as_str)
}

/// The name of a claim's storage class: the annotation from before there was a field for it, else the field.
pub(super) fn storage_class_of(claim: &Value) -> &str {
    annotation(claim, BETA_CLASS).unwrap_or_else(|| text(claim, &["spec", "storageClassName"]))
}

/// Of several defaults the newest counts, then the first by name.
fn default_class(review: &Review<'_>, resource: &str, annotations: &[&str]) -> Option<String> {
    let classes = review.lookup.list(resource, None);
    let newest_first = |c: &&std::sync::Arc<Value>| {
        let name = text(c, &["metadata", "name"]).to_string();
        let created = text(c, &["metadata", "creationTimestamp"]).to_string();
        (std::cmp::Reverse(created), name)
    };
    classes
        .iter()
        .filter(|c| annotations.iter().any(|key| annotation(c, key) == Some("true")))
        .min_by_key(newest_first)
        .map(|c| text(c, &["metadata", "name"]).to_string())
}

fn storage(review: &Review<'_>, claim: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "persistentvolumeclaims") || review.operation != Operation::Create {
        return Ok(());
    }
    if claim["spec"].get("storageClassName").is_some() || annotation(claim, BETA_CLASS).is_some() {
        return Ok(());
    }
    let annotations = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ];
    if let Some(name) = default_class(review, "storageclasses.storage.k8s.io", &annotations) {
        claim["spec"]["storageClassName"] = name.into();
    }
    Ok(())
}

fn ingress(review: &Review<'_>, ingress: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("networking.k8s.io", "ingresses") || review.operation != Operation::Create {
        return Ok(());
    }
    let old_annotation = annotation(ingress, "kubernetes.io/ingress.class").is_some();
    if ingress["spec"].get("ingressClassName").is_some() || old_annotation {
        return Ok(());
    }
    let annotations = ["ingressclass.kubernetes.io/is-default-class"];
    if let Some(name) = default_class(review, "ingressclasses.networking.k8s.io", &annotations) {
        ingress["spec"]["ingressClassName"] = name.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Desk;
    use super::*;

    fn class(name: &str, created: &str, annotation: &str) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {annotation: "true"}}})
    }

    const NEW: &str = "2026-02-01T00:00:00Z";
    const OLD: &str = "2026-01-01T00:00:00Z";

    #[test]
    fn claims_get_the_newest_default() {
        const CLASSES: &str = "storageclasses.storage.k8s.io";
        const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
        let claim = json!({"metadata": {"name": "c"}, "spec": {}});
        let class_of = |desk: &Desk, claim: &Value| {
            let claim = desk.create(&STORAGE, "persistentvolumeclaims", claim.clone()).unwrap();
            claim["spec"].get("storageClassName").cloned()
        };
        let desk = Desk::new().with(CLASSES, class("none", NEW, "other"));
        assert_eq!(class_of(&desk, &claim), None);
        let desk = desk
            .with(CLASSES, class("a-old", OLD, DEFAULT))
            .with(
                CLASSES,
                class("c-new", NEW, "storageclass.beta.kubernetes.io/is-default-class"),
            )
            .with(CLASSES, class("b-new", NEW, DEFAULT));
        assert_eq!(class_of(&desk, &claim), Some(json!("b-new")));
        let cases = [
            (
                json!({"metadata": {"name": "c"}, "spec": {"storageClassName": ""}}),
                Some(json!("")),
            ),
            (
                json!({"metadata": {"name": "c", "annotations": {BETA_CLASS: "x"}}, "spec": {}}),
                None,
            ),
        ];
        for (claim, expected) in cases {
            assert_eq!(class_of(&desk, &claim), expected);
        }
        let updated = desk.update(&STORAGE, "persistentvolumeclaims", claim.clone(), claim.clone());
        assert_eq!(updated.unwrap(), claim);
    }

    #[test]
    fn ingresses_get_the_newest_default() {
        const DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
        let desk = Desk::new()
            .with("ingressclasses.networking.k8s.io", class("a", OLD, DEFAULT))
            .with("ingressclasses.networking.k8s.io", class("b", NEW, DEFAULT));
        let cases = [
            (json!({"metadata": {"name": "i"}, "spec": {}}), Some(json!("b"))),
            (
                json!({"metadata": {"name": "i"}, "spec": {"ingressClassName": "a"}}),
                Some(json!("a")),
            ),
            (
                json!({"metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "x"}}, "spec": {}}),
                None,
            ),
        ];
        for (ingress, expected) in cases {
            let ingress = desk.create(&INGRESS, "ingresses.networking.k8s.io", ingress).unwrap();
            assert_eq!(ingress["spec"].get("ingressClassName").cloned(), expected);
        }
    }

    #[test]
    fn the_annotation_outranks_the_field() {
        let claim =
            |annotations: Value| json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": "f"}});
        assert_eq!(storage_class_of(&claim(json!({}))), "f");
        assert_eq!(storage_class_of(&claim(json!({BETA_CLASS: "a"}))), "a");
        assert_eq!(storage_class_of(&json!({"spec": {}})), "");
    }
}
