//! Nobody hands out more rights than they hold: roles and bindings are checked against the writer's own rules. (In
//! Kubernetes this lives in the storage of the RBAC kinds; to users it is the same.)

use orlop_api::{Status, Value};

use super::{Change, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "RBACEscalation",
    mutate: None,
    validate: Some(validate),
};

fn validate(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(new) = new.filter(|_| review.kind.group == "rbac.authorization.k8s.io") else {
        return Ok(vec![]);
    };
    let (resource, namespace) = (review.kind.plural, &review.namespace);
    review
        .authorizer
        .check_escalation(review.user, resource, namespace, new, old, review.lookup)?;
    Ok(vec![])
}
