//! The table of kinds. To add one, see docs/how-to/add-a-kind.md.

use crate::kind::KindDef;
use crate::{
    admissionregistration, apiextensions, apiregistration, apps, authentication, authorization, autoscaling, batch,
    certificates, coordination, core, discovery, events, flowcontrol, metrics, networking, node, policy, rbac,
    resource, scheduling, storage,
};

/// Every built-in kind, by group, in the order in which discovery lists the groups. Of a group's versions the preferred
/// one comes first.
pub const ALL: &[&[&KindDef]] = &[
    core::ALL,
    apiregistration::ALL,
    apps::ALL,
    events::ALL,
    authentication::ALL,
    authorization::ALL,
    autoscaling::ALL,
    batch::ALL,
    certificates::ALL,
    networking::ALL,
    policy::ALL,
    rbac::ALL,
    storage::ALL,
    apiextensions::ALL,
    admissionregistration::ALL,
    scheduling::ALL,
    coordination::ALL,
    node::ALL,
    discovery::ALL,
    resource::ALL,
    flowcontrol::ALL,
    metrics::ALL,
];

/// All kinds, flat.
pub fn all() -> impl Iterator<Item = &'static KindDef> {
    ALL.iter().copied().flatten().copied()
}
