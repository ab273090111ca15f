//! The kinds of the core group.

use crate::kind::KindDef;

pub mod binding;
pub mod component_status;
pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
mod persistent_volume_source;
pub mod pod;
pub mod pod_spec;
pub mod pod_template;
pub mod replication_controller;
pub mod resource_quota;
mod resource_rules;
pub mod secret;
pub mod service;
pub mod service_account;

pub const ALL: &[&KindDef] = &[
    &component_status::DEF,
    &config_map::DEF,
    &endpoints::DEF,
    &event::DEF,
    &limit_range::DEF,
    &namespace::DEF,
    &node::DEF,
    &persistent_volume::DEF,
    &persistent_volume_claim::DEF,
    &resource_quota::DEF,
    &secret::DEF,
    &service::DEF,
    &service_account::DEF,
    &binding::DEF,
    &pod::DEF,
    &pod_template::DEF,
    &replication_controller::DEF,
];
