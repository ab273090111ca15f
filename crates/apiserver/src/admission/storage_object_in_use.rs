//! StorageObjectInUseProtection: volumes and claims are not gone while something uses them.

use orlop_api::{Status, Value};

use super::{Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "StorageObjectInUseProtection",
    mutate: Some(mutate),
    validate: None,
};

fn mutate(review: &Review<'_>, object: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    let finalizer = match review.kind.plural {
        "persistentvolumes" if review.is("", "persistentvolumes") => "kubernetes.io/pv-protection",
        "persistentvolumeclaims" if review.is("", "persistentvolumeclaims") => "kubernetes.io/pvc-protection",
        _ => return Ok(()),
    };
    if review.operation != Operation::Create {
        return Ok(());
    }
    let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push(finalizer.into());
        object["metadata"]["finalizers"] = finalizers.into();
    }
    Ok(())
}
