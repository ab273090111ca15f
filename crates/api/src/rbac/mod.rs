//! The kinds of the rbac group: roles, bindings. What they mean is decided in the API server's authoriser.

use crate::kind::KindDef;

pub mod bindings;
pub mod roles;

pub const GROUP: &str = "rbac.authorization.k8s.io";

pub const ALL: &[&KindDef] = &[
    &bindings::CLUSTER_ROLE_BINDING,
    &roles::CLUSTER_ROLE,
    &bindings::ROLE_BINDING,
    &roles::ROLE,
];
