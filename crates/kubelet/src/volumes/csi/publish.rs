//! Staging and publishing volumes, and taking them down again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_api::types::authentication::TokenRequestSpec;
use orlop_api::types::core::Pod;
use orlop_api::types::storage::{CSIDriver, CSIDriverSpec, VolumeAttachment};
use orlop_base::Clock;
use orlop_base::clock::rfc3339;
use serde_json::json;

use super::super::act::Ready;
use super::super::blocking;
use super::super::error::MountError;
use super::super::mount_table::{remove_tree, unmount_below};
use super::super::ownership::Ownership;
use super::super::paths::{self, Paths, Plugin};
use super::super::plan::{Problem, ProblemKind};
use super::client::{Capabilities, Client};
use super::disk::{self, Published, VolumeData};
use super::messages::{NodePublishVolume, NodeStageVolume, NodeUnpublishVolume, NodeUnstageVolume};
use super::target::{Target, pod_info};
use super::{Drivers, block, hashed};
use crate::events::Events;
use crate::objects::{ObjectError, Objects};

/// What volumes of drivers are worked on with.
pub(crate) struct Publisher<'a> {
    pub drivers: &'a Drivers,
    pub objects: &'a Objects,
    pub paths: &'a Paths,
    pub node_name: &'a str,
    pub events: &'a Events,
    pub clock: &'a Clock,
}

pub(super) type Map = BTreeMap<String, String>;

impl Publisher<'_> {
    /// Asks the driver for the volume. May be done again at any time.
    pub(crate) async fn publish(
        &self,
        target: &Target,
        pod: &Pod,
        pod_directory: &Path,
        ownership: &Ownership,
    ) -> Result<Ready, Problem> {
        if !paths::is_file_name(&target.name) || !paths::is_file_name(&target.driver) {
            let message = format!(
                "volume name {:?} or driver name {:?} is not a valid directory name",
                target.name, target.driver
            );
            return Err(Problem::invalid(message));
        }
        let turn = self.drivers.turn(&target.driver, &target.handle);
        let _turn = turn.lock().await;
        let driver = self.driver_object(&target.driver).await.map_err(Problem::from)?;
        let driver = driver.as_ref();
        let context = match target.is_inline {
            true => Map::new(),
            false => self
                .publish_context(target, driver)
                .await
                .map_err(at("MountVolume.WaitForAttach failed"))?,
        };
        if target.is_block {
            return self.publish_block(target, pod, pod_directory, context).await;
        }
        let staged = self
            .stage(target, &context, ownership)
            .await
            .map_err(at("MountVolume.MountDevice failed"))?;

        let client = self.drivers.client(&target.driver);
        let client = client.map_err(|e| csi_error("mounter.SetUpAt failed to get CSI client", e))?;
        target
            .check_lifecycle(driver)
            .map_err(|e| csi_error("mounter.SetupAt failed to check volume lifecycle mode", e))?;
        let capabilities = client
            .capabilities()
            .await
            .map_err(|e| csi_error("mounter.SetUpAt failed to get capabilities", e))?;
        let directory = paths::volume(pod_directory, Plugin::Csi, &target.name);
        let request = self
            .publish_request(target, pod, driver, capabilities, ownership)
            .await?;
        let request = NodePublishVolume {
            publish_context: context,
            staging_target_path: staged.as_deref().map(shown).unwrap_or_default(),
            target_path: shown(&disk::mount_point(&directory)),
            ..request
        };
        self.save(directory.clone(), target).await?;
        client.publish(request).await?;
        self.give_to_group(target, driver, capabilities, &directory, ownership)
            .await?;
        self.grow_mounted(target, pod, pod_directory)
            .await
            .map_err(at("MountVolume.Setup failed while expanding volume"))?;
        Ok(Ready {
            host_path: disk::mount_point(&directory),
            read_only: target.read_only,
            managed: !target.read_only,
            directory_name: target.name.clone(),
            is_published_again: driver.is_some_and(|d| d.requires_republish == Some(true)),
            is_device: false,
            grows: !target.is_inline && !target.read_only,
        })
    }

    pub(super) async fn publish_request(
        &self,
        target: &Target,
        pod: &Pod,
        driver: Option<&CSIDriverSpec>,
        capabilities: Capabilities,
        ownership: &Ownership,
    ) -> Result<NodePublishVolume, Problem> {
        let mut secrets = self.secrets(&target.publish_secret, "NodePublishSecretRef").await?;
        let mut attributes = target.attributes.clone();
        if driver.is_some_and(|d| d.pod_info_on_mount == Some(true)) {
            attributes.extend(pod_info(pod, target.is_inline));
        }
        let tokens = self.tokens(pod, driver).await?;
        match driver.and_then(|d| d.service_account_token_in_secrets) {
            Some(true) => secrets.extend(tokens),
            _ => attributes.extend(tokens),
        }
        Ok(NodePublishVolume {
            volume_id: target.handle.clone(),
            volume_capability: Some(target.capability(capabilities, ownership.group)),
            readonly: target.read_only,
            secrets,
            volume_context: attributes,
            ..NodePublishVolume::default()
        })
    }

    /// Where the volume is staged, if the driver does such a thing.
    async fn stage(
        &self,
        target: &Target,
        context: &Map,
        ownership: &Ownership,
    ) -> Result<Option<PathBuf>, MountError> {
        if target.is_inline {
            return Ok(None);
        }
        let client = self.drivers.client(&target.driver);
        let client = client.map_err(|e| csi_error("attacher.MountDevice failed to create newCsiDriverClient", e))?;
        let capabilities = client.capabilities().await?;
        if !capabilities.stages {
            return Ok(None);
        }
        let secrets = self.secrets(&target.stage_secret, "NodeStageSecretRef").await?;
        let staging = disk::staging(self.paths, &target.driver, &target.handle);
        let data = VolumeData {
            volume_handle: target.handle.clone(),
            driver_name: target.driver.clone(),
            ..VolumeData::default()
        };
        let at = staging.clone();
        blocking(move || {
            super::super::host_path::make_directories(&at, 0o750)?;
            disk::save(at.parent().expect("staged below its own directory"), &data)
        })
        .await?;
        let request = NodeStageVolume {
            volume_id: target.handle.clone(),
            publish_context: context.clone(),
            staging_target_path: shown(&staging),
            volume_capability: Some(target.capability(capabilities, ownership.group)),
            secrets,
            volume_context: target.attributes.clone(),
        };
        client.stage(request).await?;
        Ok(Some(staging))
    }

    /// Before the driver is asked, so that whatever it does is taken down some day.
    async fn save(&self, directory: PathBuf, target: &Target) -> Result<(), MountError> {
        let data = self.volume_data(target);
        blocking(move || disk::save(&directory, &data)).await
    }

    pub(super) fn volume_data(&self, target: &Target) -> VolumeData {
        VolumeData {
            name: target.name.clone(),
            volume_handle: target.handle.clone(),
            driver_name: target.driver.clone(),
            node_name: self.node_name.to_string(),
            attachment_id: self.attachment(target),
            volume_lifecycle_mode: target.lifecycle_mode().to_string(),
        }
    }

    async fn give_to_group(
        &self,
        target: &Target,
        driver: Option<&CSIDriverSpec>,
        capabilities: Capabilities,
        directory: &Path,
        ownership: &Ownership,
    ) -> Result<(), Problem> {
        if capabilities.sets_group || !target.takes_group(driver) {
            return Ok(());
        }
        let (ownership, at) = (*ownership, disk::mount_point(directory));
        let given = blocking(move || ownership.apply(&at, false)).await;
        given.map_err(|e| MountError::during(format!("applyFSGroup failed for vol {}", target.handle), e).into())
    }

    /// Takes down all volumes of drivers that a pod has.
    pub(crate) async fn unpublish_all(&self, pod_directory: &Path) -> Result<(), MountError> {
        self.unpublish_blocks(pod_directory).await?;
        let at = pod_directory.to_path_buf();
        for published in blocking(move || disk::of_pod(&at)).await? {
            let data = &published.data;
            let turn = self.drivers.turn(&data.driver_name, &data.volume_handle);
            let _turn = turn.lock().await;
            let client = self.drivers.client(&data.driver_name);
            let client = client.map_err(|e| csi_error("Unmounter.TearDownAt failed to get CSI client", e))?;
            let request = NodeUnpublishVolume {
                volume_id: data.volume_handle.clone(),
                target_path: shown(&published.mount_point()),
            };
            let unpublished = client.unpublish(request).await;
            unpublished.map_err(|e| csi_error("Unmounter.TearDownAt failed", e))?;
            let directory = published.directory.clone();
            blocking(move || unmount_below(&directory)).await?;
            self.unstage_if_last(&client, &published).await?;
            // Last, as it marks that there is something to tear down.
            let directory = published.directory.clone();
            blocking(move || remove_tree(&directory)).await?;
        }
        Ok(())
    }

    async fn unstage_if_last(&self, client: &Client, gone: &Published) -> Result<(), MountError> {
        let (driver, handle) = (gone.data.driver_name.clone(), gone.data.volume_handle.clone());
        let staging = disk::staging(self.paths, &driver, &handle);
        let (paths, at, own) = (self.paths.clone(), staging.clone(), gone.directory.clone());
        let is_left = blocking(move || -> Result<(bool, bool), MountError> {
            let is_staged = disk::load(at.parent().expect("staged below its own directory"))?.is_some();
            let all = disk::of_all(&paths)?;
            let mut others = all.iter().filter(|p| p.directory != own);
            let is_used = others.any(|p| p.data.driver_name == driver && p.data.volume_handle == handle);
            Ok((is_staged, is_used))
        });
        let (is_staged, is_used) = is_left.await?;
        if is_used {
            return Ok(());
        }
        self.drivers.forget(&gone.data.driver_name, &gone.data.volume_handle);
        if !is_staged {
            return Ok(());
        }
        let request = NodeUnstageVolume {
            volume_id: gone.data.volume_handle.clone(),
            staging_target_path: shown(&staging),
        };
        let unstaged = client.unstage(request).await;
        unstaged.map_err(|e| csi_error("attacher.UnmountDevice failed", e))?;
        blocking(move || remove_tree(staging.parent().expect("staged below its own directory"))).await
    }

    /// The names of volumes in use in the node's status.
    pub(crate) async fn in_use(&self) -> Vec<String> {
        let paths = self.paths.clone();
        let all = blocking(move || {
            let mounted = disk::of_all(&paths).unwrap_or_default().into_iter();
            mounted.map(|p| p.data).chain(block::of_all(&paths)).collect::<Vec<_>>()
        });
        let all = all.await.into_iter();
        let persistent = all.filter(|data| data.volume_lifecycle_mode != "Ephemeral");
        let name = |data: VolumeData| format!("kubernetes.io/csi/{}^{}", data.driver_name, data.volume_handle);
        let mut names: Vec<String> = persistent.map(name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(super) async fn driver_object(&self, name: &str) -> Result<Option<CSIDriverSpec>, MountError> {
        let found = self
            .objects
            .fetch::<CSIDriver>("storage.k8s.io/v1", None, "csidrivers", "csidriver", name);
        match found.await {
            Ok(found) => Ok(Some(found.spec)),
            Err(ObjectError::NotFound(_)) => Ok(None),
            Err(error) => Err(csi_error(format!("failed to get CSIDriver {name:?}"), error)),
        }
    }

    fn attachment(&self, target: &Target) -> String {
        format!("csi-{}", hashed(&[&target.handle, &target.driver, self.node_name]))
    }

    /// What the controller's half of the driver has to say, once it has attached the volume to the node.
    async fn publish_context(&self, target: &Target, driver: Option<&CSIDriverSpec>) -> Result<Map, MountError> {
        if driver.is_some_and(|d| d.attach_required == Some(false)) {
            return Ok(Map::new());
        }
        let (handle, id) = (&target.handle, self.attachment(target));
        let resource = "volumeattachments";
        let said = "volumeattachments.storage.k8s.io";
        let found = self
            .objects
            .fetch::<VolumeAttachment>("storage.k8s.io/v1", None, resource, said, &id)
            .await;
        let found = found
            .map_err(|e| MountError::during(format!("volume {handle} has GET error for volume attachment {id}"), e))?;
        match found.status {
            Some(status) if status.attached => Ok(status.attachment_metadata.unwrap_or_default()),
            _ => Err(MountError::Invalid(format!(
                "volume {handle} is not attached for volume attachment {id}"
            ))),
        }
    }

    pub(super) async fn secrets(&self, reference: &Option<(String, String)>, what: &str) -> Result<Map, MountError> {
        let Some((namespace, name)) = reference else {
            return Ok(Map::new());
        };
        let found = self.objects.secret(namespace, name).await;
        let found: Arc<_> =
            found.map_err(|e| MountError::during(format!("fetching {what} {namespace}/{name} failed"), e))?;
        let texts = found
            .data
            .iter()
            .flatten()
            .map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into()));
        Ok(texts.collect())
    }

    async fn tokens(&self, pod: &Pod, driver: Option<&CSIDriverSpec>) -> Result<Map, MountError> {
        let requests = driver.and_then(|d| d.token_requests.as_deref()).unwrap_or_default();
        if requests.is_empty() {
            return Ok(Map::new());
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let account = pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.as_deref())
            .unwrap_or("default");
        let mut tokens = serde_json::Map::new();
        for request in requests {
            let audience = Some(request.audience.clone()).filter(|audience| !audience.is_empty());
            let spec = TokenRequestSpec {
                audiences: Some(audience.into_iter().collect()),
                expiration_seconds: request.expiration_seconds.or(Some(3600)),
                bound_object_ref: None,
            };
            let token = self.objects.service_account_token(namespace, account, &spec, pod).await;
            let token = token?;
            let status = json!({"token": token.token, "expirationTimestamp": rfc3339(token.expires)});
            tokens.insert(request.audience.clone(), status);
        }
        let key = "csi.storage.k8s.io/serviceAccount.tokens".to_string();
        Ok(Map::from([(key, serde_json::Value::Object(tokens).to_string())]))
    }
}

pub(super) fn csi_error(step: impl std::fmt::Display, source: impl Into<MountError>) -> MountError {
    MountError::during(format!("kubernetes.io/csi: {step}"), source)
}

pub(super) fn at<E: Into<MountError>>(step: &'static str) -> impl Fn(E) -> Problem {
    move |reason| Problem {
        kind: ProblemKind::Step(step),
        ..Problem::from(reason)
    }
}

pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
