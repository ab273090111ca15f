//! NamespaceLifecycle: nothing is created in a namespace that is not there or is going away, and the namespaces that a
//! cluster can't be without stay.
//! Upstream: apiserver/pkg/admission/plugin/namespace/lifecycle (v1.36).

use orlop_api::status::Cause;
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "NamespaceLifecycle",
    mutate: Some(mutate),
    validate: Some(validate),
};

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

/// Before any other plugin looks up things in a namespace that may not be there.
fn mutate(review: &Review<'_>, _: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    check_namespace(review)
}

/// Asked again right before the write: the namespace may have been marked for deletion in between.
fn validate(review: &Review<'_>, _: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let deletes = review.operation == Operation::Delete && review.is("", "namespaces");
    if deletes && IMMORTAL.contains(&review.name.as_str()) {
        return Err(review.forbidden("this namespace may not be deleted"));
    }
    check_namespace(review)?;
    Ok(vec![])
}

fn check_namespace(review: &Review<'_>) -> Result<(), Status> {
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
    if text(&namespace, &["status", "phase"]) != "Terminating" {
        return Ok(());
    }
    let name = &review.namespace;
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let mut status = review.forbidden(why);
    status.details.get_or_insert_default().causes.push(Cause {
        reason: "NamespaceTerminating".into(),
        message: format!("namespace {name} is being terminated"),
        field: "metadata.namespace".into(),
    });
    Err(status)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn content_needs_a_living_namespace() {
        let desk = Desk::new().with(
            "namespaces",
            json!({"metadata": {"name": "dying"}, "status": {"phase": "Terminating"}}),
        );
        let object = |namespace: &str| json!({"metadata": {"name": "x", "namespace": namespace}});
        let dying = "configmaps \"x\" is forbidden: unable to create new content in namespace dying because it is being terminated";
        for (namespace, expected) in [
            ("ns", "ok"),
            ("gone", "namespaces \"gone\" not found"),
            ("dying", dying),
        ] {
            let created = desk.create(&PLUGIN, "configmaps", object(namespace));
            assert_eq!(told(created), expected);
            let updated = desk.update(&PLUGIN, "configmaps", object(namespace), object(namespace));
            assert_eq!(told(updated), "ok");
            assert_eq!(told(desk.delete(&PLUGIN, "configmaps", object(namespace))), "ok");
        }
        let refused = desk.create(&PLUGIN, "configmaps", object("dying")).unwrap_err();
        let cause = &refused.details.unwrap().causes[0];
        assert_eq!(
            (cause.reason.as_str(), cause.message.as_str(), cause.field.as_str()),
            (
                "NamespaceTerminating",
                "namespace dying is being terminated",
                "metadata.namespace"
            )
        );
        let evicted = desk.create(&PLUGIN, "pods/eviction", object("dying"));
        assert_eq!(told(evicted), dying.replace("configmaps", "pods"));
        assert_eq!(
            told(desk.create(&PLUGIN, "nodes", json!({"metadata": {"name": "x"}}))),
            "ok"
        );
    }

    #[test]
    fn some_namespaces_stay() {
        for (name, stays) in [
            ("default", true),
            ("kube-system", true),
            ("kube-public", true),
            ("kube-node-lease", false),
            ("ns", false),
        ] {
            let expected = match stays {
                true => format!("namespaces {name:?} is forbidden: this namespace may not be deleted"),
                false => "ok".to_string(),
            };
            let deleted = Desk::new().delete(&PLUGIN, "namespaces", json!({"metadata": {"name": name}}));
            assert_eq!(told(deleted), expected);
            let map = json!({"metadata": {"name": name, "namespace": "ns"}});
            assert_eq!(told(Desk::new().delete(&PLUGIN, "configmaps", map)), "ok");
        }
    }
}
