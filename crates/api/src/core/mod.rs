//! The kinds of the core group.

use crate::kind::KindDef;

pub mod component_status;
pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod namespace;
pub mod pod_spec;
pub mod pod_template;
pub mod replication_controller;
pub mod secret;
pub mod service;
pub mod service_account;

pub const ALL: &[&KindDef] = &[
    &component_status::DEF,
    &config_map::DEF,
    &endpoints::DEF,
    &event::DEF,
    &namespace::DEF,
    &secret::DEF,
    &service::DEF,
    &service_account::DEF,
    &replication_controller::DEF,
];
