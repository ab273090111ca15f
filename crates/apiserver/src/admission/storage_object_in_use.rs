//! StorageObjectInUseProtection: volumes, claims and the classes of their attributes are not gone while in use.
//! Upstream: plugin/pkg/admission/storage/storageobjectinuseprotection (v1.36).

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};
use crate::lookup::items;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "StorageObjectInUseProtection",
    mutate: Some(mutate),
    validate: None,
};

const FINALIZERS: &[(&str, &str, &str)] = &[
    ("", "persistentvolumes", "kubernetes.io/pv-protection"),
    ("", "persistentvolumeclaims", "kubernetes.io/pvc-protection"),
    (
        "storage.k8s.io",
        "volumeattributesclasses",
        "kubernetes.io/vac-protection",
    ),
];

fn mutate(review: &Review<'_>, object: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    let row = FINALIZERS.iter().find(|(group, plural, _)| review.is(group, plural));
    let Some((_, _, finalizer)) = row.filter(|_| review.operation == Operation::Create) else {
        return Ok(());
    };
    let mut finalizers = items(object, &["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push((*finalizer).into());
        object["metadata"]["finalizers"] = finalizers.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::Desk;
    use super::*;

    #[test]
    fn finalizers_are_added_once() {
        let desk = Desk::new();
        for (resource, finalizer) in [
            ("persistentvolumes", "kubernetes.io/pv-protection"),
            ("persistentvolumeclaims", "kubernetes.io/pvc-protection"),
            ("volumeattributesclasses.storage.k8s.io", "kubernetes.io/vac-protection"),
        ] {
            for (given, expected) in [
                (json!([]), json!([finalizer])),
                (json!(["a/b"]), json!(["a/b", finalizer])),
                (json!([finalizer, "a/b"]), json!([finalizer, "a/b"])),
            ] {
                let object = json!({"metadata": {"name": "x", "finalizers": given}});
                let created = desk.create(&PLUGIN, resource, object.clone()).unwrap();
                assert_eq!(created["metadata"]["finalizers"], expected);
                let updated = desk.update(&PLUGIN, resource, object.clone(), object.clone()).unwrap();
                assert_eq!(updated, object);
            }
        }
        let other = json!({"metadata": {"name": "x"}});
        assert_eq!(desk.create(&PLUGIN, "configmaps", other.clone()).unwrap(), other);
    }
}
