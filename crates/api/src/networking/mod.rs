//! The kinds of the networking group.

use crate::kind::KindDef;

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

pub const GROUP: &str = "networking.k8s.io";

pub const ALL: &[&KindDef] = &[
    &ingress_class::DEF,
    &ingress::DEF,
    &ip_address::DEF,
    &network_policy::DEF,
    &service_cidr::DEF,
];
