//! NamespaceLifecycle: nothing is created in a namespace that is not there or is going away, and the namespaces that a
//! cluster can't be without stay.

use orlop_api::status::Cause;
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "NamespaceLifecycle",
    mutate: Some(mutate),
    validate: Some(validate),
};

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

/// Before any other plugin looks up things in a namespace that may not be there.
fn mutate(review: &Review<'_>, _: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if review.namespace.is_empty() || review.kind.plural == "namespaces" || review.operation != Operation::Create {
        return Ok(());
    }
    // Asking about access in a namespace is harmless, whether it is there or not.
    if review.kind.group == "authorization.k8s.io" {
        return Ok(());
    }
    let Some(namespace) = review.lookup.get("namespaces", "", &review.namespace) else {
        return Err(Status::not_found("", "namespaces", &review.namespace));
    };
    if namespace.pointer("/status/phase").and_then(Value::as_str) == Some("Terminating") {
        let name = &review.namespace;
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let mut status = review.forbidden(why);
        status.details.get_or_insert_default().causes.push(Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {name} is being terminated"),
            field: "metadata.namespace".into(),
        });
        return Err(status);
    }
    Ok(())
}

fn validate(review: &Review<'_>, _: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let deletes = review.operation == Operation::Delete && review.is("", "namespaces");
    if deletes && IMMORTAL.contains(&review.name.as_str()) {
        return Err(review.forbidden("this namespace may not be deleted"));
    }
    Ok(vec![])
}
