//! Admission: what is decided about a write by looking at other objects and at who writes.
//!
//! `ALL` lists the plugins in Kubernetes' order. First every plugin may change the object (`mutate`), then, with the object
//! as it will be stored, every plugin may refuse it (`validate`). Validation may also ask for other objects to change in
//! the same transaction (`Change`): that is how quota use stays exact.

mod certificates;
mod default_classes;
mod default_toleration_seconds;
mod limit_ranger;
mod namespace_lifecycle;
mod priority;
mod rbac_escalation;
pub mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use;
mod taint_nodes_by_condition;

use jiff::Timestamp;
use orlop_api::{KindDef, Status, Value};
use orlop_store::Revision;

use crate::authn::UserInfo;
use crate::authz::Authorizer;
use crate::config::Config;
use crate::lookup::ObjectLookup;
use crate::registry::Warnings;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// The write under review.
pub struct Review<'r> {
    pub operation: Operation,
    pub kind: &'static KindDef,
    pub subresource: &'r str,
    /// "" for cluster-scoped kinds.
    pub namespace: String,
    /// "" while a name is still to be generated.
    pub name: String,
    pub user: &'r UserInfo,
    pub dry_run: bool,
    pub now: Timestamp,
    pub lookup: &'r (dyn ObjectLookup + Sync),
    pub config: &'r Config,
    pub authorizer: &'r Authorizer,
    pub warnings: &'r Warnings,
}

impl Review<'_> {
    /// Whether this is about the resource itself ("pods"), not one of its subresources, in the given group.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural && self.subresource.is_empty()
    }

    pub fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(self.kind.group, self.kind.plural, &self.name, why)
    }
}

/// Another object that must change together with the one under review, if it is still at `revision`.
pub struct Change {
    pub kind: &'static KindDef,
    pub namespace: String,
    pub name: String,
    pub revision: Revision,
    pub value: Value,
}

/// (review, the object, the object as it is stored now)
pub type Mutate = fn(&Review<'_>, &mut Value, Option<&Value>) -> Result<(), Status>;
/// (review, the object (none on delete), the object as it is stored now)
pub type Validate = fn(&Review<'_>, Option<&Value>, Option<&Value>) -> Result<Vec<Change>, Status>;

pub struct Plugin {
    /// Kubernetes' name of it.
    pub name: &'static str,
    pub mutate: Option<Mutate>,
    pub validate: Option<Validate>,
}

/// In the order in which Kubernetes runs them.
pub const ALL: &[&Plugin] = &[
    &namespace_lifecycle::PLUGIN,
    &limit_ranger::PLUGIN,
    &service_account::PLUGIN,
    &taint_nodes_by_condition::PLUGIN,
    &priority::PLUGIN,
    &default_toleration_seconds::PLUGIN,
    &default_classes::STORAGE,
    &storage_object_in_use::PLUGIN,
    &runtime_class::PLUGIN,
    &certificates::APPROVAL,
    &certificates::SIGNING,
    &certificates::SUBJECT,
    &default_classes::INGRESS,
    &rbac_escalation::PLUGIN,
    &resource_quota::PLUGIN,
];

pub fn mutate(review: &Review<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    for plugin in ALL {
        if let Some(mutate) = plugin.mutate {
            mutate(review, object, old)?;
        }
    }
    Ok(())
}

pub fn validate(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let mut changes = vec![];
    for plugin in ALL {
        if let Some(validate) = plugin.validate {
            changes.extend(validate(review, object, old)?);
        }
    }
    Ok(changes)
}
