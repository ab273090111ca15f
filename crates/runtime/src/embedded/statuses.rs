//! What containers are and how they fare, as the CRI tells it.

use std::sync::Arc;

use super::Embedded;
use super::plan::signals;
use super::store::{Container, Stage, matches};
use crate::Result;
use crate::cri::messages::{
    Container as ListedContainer, ContainerFilter, ContainerResources, ContainerStatus, ContainerUser, ImageSpec,
};

impl Embedded {
    pub(super) fn status_of(&self, id: &str) -> Result<ContainerStatus> {
        let container = self.container(id)?;
        let record = container.record.lock().clone();
        let config = record.config.unwrap_or_default();
        let stage = container.stage();
        let mut status = ContainerStatus {
            id: container.id.clone(),
            metadata: config.metadata,
            state: stage.state() as i32,
            created_at: record.created_at,
            image: Some(ImageSpec {
                image: record.image_name,
                ..ImageSpec::default()
            }),
            image_ref: record.image_ref,
            image_id: record.image_id,
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: record.log_path,
            resources: Some(ContainerResources {
                linux: record.resources,
            }),
            user: Some(ContainerUser { linux: record.user }),
            stop_signal: signals::from_number(record.stop_signal) as i32,
            ..ContainerStatus::default()
        };
        match stage {
            Stage::Created | Stage::Starting => {}
            Stage::Running { started_at, .. } => status.started_at = started_at,
            Stage::Exited(exited) => {
                status.reason = match (exited.reason.as_str(), exited.code) {
                    ("", 0) => "Completed".to_string(),
                    ("", _) => "Error".to_string(),
                    (reason, _) => reason.to_string(),
                };
                status.started_at = exited.started_at;
                status.finished_at = exited.finished_at;
                status.exit_code = exited.code;
                status.message = exited.message;
            }
        }
        Ok(status)
    }

    pub(super) fn list(&self, filter: &ContainerFilter) -> Vec<ListedContainer> {
        let containers: Vec<Arc<Container>> = match filter.id.as_str() {
            "" => self.inner.store.lock().containers.values().cloned().collect(),
            id => self.inner.store.lock().container(id).into_iter().collect(),
        };
        let of_sandbox = |container: &Arc<Container>| container.sandbox.id.starts_with(&filter.pod_sandbox_id);
        let render = |container: Arc<Container>| {
            let record = container.record.lock().clone();
            let config = record.config.unwrap_or_default();
            ListedContainer {
                id: container.id.clone(),
                pod_sandbox_id: container.sandbox.id.clone(),
                metadata: config.metadata,
                image: config.image,
                image_ref: record.image_id.clone(),
                image_id: record.image_id,
                state: container.stage().state() as i32,
                created_at: record.created_at,
                labels: config.labels,
                annotations: config.annotations,
            }
        };
        let wanted = |container: &ListedContainer| {
            let in_state = filter.state.as_ref().is_none_or(|state| state.state == container.state);
            in_state && matches(&container.labels, &filter.label_selector)
        };
        containers
            .into_iter()
            .filter(of_sandbox)
            .map(render)
            .filter(wanted)
            .collect()
    }
}
