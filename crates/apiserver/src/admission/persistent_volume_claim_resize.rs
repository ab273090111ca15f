//! PersistentVolumeClaimResize: only a bound claim grows, and only if its storage class says that volumes can.
//! Upstream: plugin/pkg/admission/storage/persistentvolume/resize (v1.36).

use orlop_api::resources;
use orlop_api::{Status, Value};

use super::default_classes::storage_class_of;
use super::{Change, Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "PersistentVolumeClaimResize",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let (Some(new), Some(old)) = (new, old) else {
        return Ok(vec![]);
    };
    if !review.is("", "persistentvolumeclaims") || review.operation != Operation::Update {
        return Ok(vec![]);
    }
    let size = |claim: &Value| {
        let mut requests = resources::list(claim.pointer("/spec/resources/requests"));
        requests.remove("storage").unwrap_or_default()
    };
    if size(new) <= size(old) {
        return Ok(vec![]);
    }
    if text(old, &["status", "phase"]) != "Bound" {
        return Err(review.forbidden("Only bound persistent volume claims can be expanded"));
    }
    let class = storage_class_of(new);
    let expandable = !class.is_empty()
        && class == storage_class_of(old)
        && review
            .lookup
            .get("storageclasses.storage.k8s.io", "", class)
            .is_some_and(|c| c["allowVolumeExpansion"] == true);
    if !expandable {
        return Err(review.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ));
    }
    Ok(vec![])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn claims_grow_where_their_class_lets_them() {
        let class = |name: &str, grows: Value| json!({"metadata": {"name": name}, "allowVolumeExpansion": grows});
        let desk = Desk::new()
            .with("storageclasses.storage.k8s.io", class("grows", json!(true)))
            .with("storageclasses.storage.k8s.io", class("stays", json!(false)));
        let claim = |class: &str, phase: &str, size: &str| {
            json!({"metadata": {"name": "c"}, "status": {"phase": phase},
                "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}}})
        };
        let unbound = "persistentvolumeclaims \"c\" is forbidden: Only bound persistent volume claims can be expanded";
        let fixed = "persistentvolumeclaims \"c\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
        let cases = [
            ("grows", "Bound", "2Gi", "ok"),
            ("grows", "Bound", "1Gi", "ok"),
            ("grows", "Bound", "1Mi", "ok"),
            ("grows", "Pending", "2Gi", unbound),
            ("stays", "Pending", "1024Mi", "ok"),
            ("stays", "Bound", "2Gi", fixed),
            ("gone", "Bound", "2Gi", fixed),
            ("", "Bound", "2Gi", fixed),
        ];
        for (class, phase, size, expected) in cases {
            let result = desk.update(
                &PLUGIN,
                "persistentvolumeclaims",
                claim(class, phase, size),
                claim(class, phase, "1Gi"),
            );
            assert_eq!(told(result), expected, "{class} {phase} {size}");
        }
    }
}
