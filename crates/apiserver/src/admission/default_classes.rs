//! DefaultStorageClass and DefaultIngressClass: what names no class gets the default one, if there is one.

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};

pub const STORAGE: Plugin = Plugin {
    name: "DefaultStorageClass",
    mutate: Some(storage),
    validate: None,
};
pub const INGRESS: Plugin = Plugin {
    name: "DefaultIngressClass",
    mutate: Some(ingress),
    validate: None,
};

/// Of several defaults the newest counts, then the first by name.
fn default_class(review: &Review<'_>, resource: &str, annotation: &str) -> Vec<String> {
    let pointer = format!("/metadata/annotations/{}", annotation.replace('/', "~1"));
    let classes = review.lookup.list(resource, None);
    let mut defaults: Vec<_> = classes
        .iter()
        .filter(|c| c.pointer(&pointer).and_then(Value::as_str) == Some("true"))
        .collect();
    let text = |c: &Value, name: &str| c["metadata"][name].as_str().unwrap_or("").to_string();
    defaults.sort_by_key(|c| (std::cmp::Reverse(text(c, "creationTimestamp")), text(c, "name")));
    defaults.into_iter().map(|c| text(c, "name")).collect()
}

fn storage(review: &Review<'_>, claim: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "persistentvolumeclaims") || review.operation != Operation::Create {
        return Ok(());
    }
    let old_annotation = claim
        .pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class")
        .is_some();
    if claim["spec"].get("storageClassName").is_some() || old_annotation {
        return Ok(());
    }
    let defaults = default_class(
        review,
        "storageclasses.storage.k8s.io",
        "storageclass.kubernetes.io/is-default-class",
    );
    if let Some(name) = defaults.into_iter().next() {
        claim["spec"]["storageClassName"] = name.into();
    }
    Ok(())
}

fn ingress(review: &Review<'_>, ingress: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("networking.k8s.io", "ingresses") || review.operation != Operation::Create {
        return Ok(());
    }
    let old_annotation = ingress
        .pointer("/metadata/annotations/kubernetes.io~1ingress.class")
        .is_some();
    if ingress["spec"].get("ingressClassName").is_some() || old_annotation {
        return Ok(());
    }
    let defaults = default_class(
        review,
        "ingressclasses.networking.k8s.io",
        "ingressclass.kubernetes.io/is-default-class",
    );
    if let Some(name) = defaults.into_iter().next() {
        ingress["spec"]["ingressClassName"] = name.into();
    }
    Ok(())
}
