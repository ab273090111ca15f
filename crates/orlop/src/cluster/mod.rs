//! What people and tools know of a cluster that kubeadm made, around components that are one process here: the components
//! as pods in kube-system with their logs, their configuration in ConfigMaps, and the role of the node that they run on.

mod config_maps;
mod control_plane_node;
mod log_files;
pub(crate) mod logs;
mod manifests;
mod pods;
pub(crate) mod scheduler_config;
mod shown;

pub(crate) use config_maps::{create_if_absent, publish_kubelet_config};
pub(crate) use control_plane_node::{ControlPlaneNode, mark};
pub(crate) use manifests::CommandLines;
pub(crate) use pods::ComponentPods;
pub(crate) use scheduler_config::{ChosenConfig, SchedulerConfigSource, parse as parse_scheduler_config};
