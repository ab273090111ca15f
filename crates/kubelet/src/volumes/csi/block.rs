//! Volumes of drivers that are devices.
//!
//! ```text
//! plugins/kubernetes.io/csi/volumeDevices/staging/<volume>          where it is staged
//! plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<uid>    the driver puts the device here
//! plugins/kubernetes.io/csi/volumeDevices/<volume>/data             what to take down
//! plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<uid>        the device, held open
//! ```
// Upstream: pkg/volume/csi/csi_block.go (v1.36)

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use orlop_api::types::core::Pod;

use super::super::act::Ready;
use super::super::block::{self, Mapping};
use super::super::blocking;
use super::super::error::MountError;
use super::super::host_path::make_directories;
use super::super::mount_table::{remove_tree, unmount_below};
use super::super::ownership::Ownership;
use super::super::paths::{self, Paths, Plugin};
use super::super::plan::Problem;
use super::disk::{self, VolumeData};
use super::messages::{NodePublishVolume, NodeStageVolume, NodeUnpublishVolume, NodeUnstageVolume};
use super::publish::{Map, Publisher, at, csi_error, shown};
use super::target::Target;

/// The places of one volume and one pod.
#[derive(Clone)]
pub(super) struct Places {
    pub staging: PathBuf,
    /// For all pods.
    published: PathBuf,
    /// For this one.
    pub target: PathBuf,
    volume: PathBuf,
    pub mapping: Mapping,
}

impl Places {
    pub(super) fn of(paths: &Paths, pod_directory: &Path, name: &str) -> Places {
        let all = devices(paths);
        let pod_uid = pod_directory.file_name().unwrap_or_default();
        let published = all.join("publish").join(name);
        Places {
            staging: all.join("staging").join(name),
            target: published.join(pod_uid),
            published,
            volume: all.join(name),
            mapping: Mapping {
                link: paths::device(pod_directory, Plugin::Csi, name),
                shared: all.join(name).join("dev"),
                pod_uid: pod_uid.to_string_lossy().into_owned(),
            },
        }
    }

    fn data(&self) -> PathBuf {
        self.volume.join("data")
    }
}

fn devices(paths: &Paths) -> PathBuf {
    paths.root.join("plugins/kubernetes.io/csi/volumeDevices")
}

/// What drivers were asked for, by volume; those that no pod has are left out.
pub(super) fn of_all(paths: &Paths) -> Vec<VolumeData> {
    let entries = fs::read_dir(devices(paths)).into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| disk::load(&entry.path().join("data")).ok().flatten());
    all.collect()
}

impl Publisher<'_> {
    /// Publishes the device. Idempotent. The caller holds the volume's lock.
    pub(crate) async fn publish_block(
        &self,
        target: &Target,
        pod: &Pod,
        pod_directory: &Path,
        context: Map,
    ) -> Result<Ready, Problem> {
        // Reserved names of directories beside those of volumes.
        if matches!(target.name.as_str(), "staging" | "publish") {
            return Err(Problem::invalid(format!("volume name {:?} is reserved", target.name)));
        }
        let places = Places::of(self.paths, pod_directory, &target.name);
        let client = self.drivers.client(&target.driver);
        let client = client.map_err(|e| csi_error("blockMapper.SetUpDevice failed to get CSI client", e))?;
        let capabilities = client.capabilities().await?;
        let data = self.volume_data(target);
        let (made, driver) = (places.clone(), self.driver_object(&target.driver).await?);
        blocking(move || {
            disk::save(&made.data(), &data)?;
            make_directories(&made.published, 0o750)?;
            make_directories(&made.staging, 0o750)?;
            made.mapping.announce(&made.target)
        })
        .await?;
        let ownership = Ownership::default();
        if capabilities.stages {
            let request = NodeStageVolume {
                volume_id: target.handle.clone(),
                publish_context: context.clone(),
                staging_target_path: shown(&places.staging),
                volume_capability: Some(target.capability(capabilities, None)),
                secrets: self.secrets(&target.stage_secret, "NodeStageSecretRef").await?,
                volume_context: target.attributes.clone(),
            };
            client
                .stage(request)
                .await
                .map_err(at("MapVolume.SetUpDevice failed"))?;
        }
        let request = self
            .publish_request(target, pod, driver.as_ref(), capabilities, &ownership)
            .await?;
        let request = NodePublishVolume {
            publish_context: context,
            staging_target_path: match capabilities.stages {
                true => shown(&places.staging),
                false => String::new(),
            },
            target_path: shown(&places.target),
            ..request
        };
        client
            .publish(request)
            .await
            .map_err(at("MapVolume.MapPodDevice failed"))?;
        let (mapping, device) = (places.mapping.clone(), places.target.clone());
        let mapped = blocking(move || mapping.make(&device)).await;
        mapped.map_err(at("MapVolume.MapBlockVolume failed"))?;
        self.grow_mounted(target, pod, pod_directory)
            .await
            .map_err(at("MapVolume.MarkVolumeAsMounted failed while expanding volume"))?;
        Ok(Ready {
            grows: !target.read_only,
            ..Ready::device(places.mapping.link, &target.name, target.read_only)
        })
    }

    /// Takes down all devices of drivers that a pod has.
    pub(crate) async fn unpublish_blocks(&self, pod_directory: &Path) -> Result<(), MountError> {
        let at = pod_directory.to_path_buf();
        for name in blocking(move || block::names(&at, Plugin::Csi)).await {
            let places = Places::of(self.paths, pod_directory, &name);
            let from = places.data();
            let Some(data) = blocking(move || disk::load(&from)).await? else {
                // Somebody else has taken down the rest.
                blocking(move || places.mapping.forget()).await?;
                continue;
            };
            let turn = self.drivers.turn(&data.driver_name, &data.volume_handle);
            let _turn = turn.lock().await;
            let mapping = places.mapping.clone();
            blocking(move || mapping.release()).await?;
            let client = self.drivers.client(&data.driver_name);
            let client = client.map_err(|e| csi_error("blockMapper.UnmapPodDevice failed to get CSI client", e))?;
            let request = NodeUnpublishVolume {
                volume_id: data.volume_handle.clone(),
                target_path: shown(&places.target),
            };
            let unpublished = client.unpublish(request).await;
            unpublished.map_err(|e| csi_error("blockMapper.unpublishVolumeForBlock failed", e))?;
            let own = places.clone();
            let is_last = blocking(move || -> Result<bool, MountError> {
                unmount_below(&own.target)?;
                let _ = fs::remove_file(&own.target);
                match fs::remove_dir(&own.published) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Ok(false),
                    _ => Ok(true),
                }
            })
            .await?;
            if is_last {
                self.drivers.forget(&data.driver_name, &data.volume_handle);
                if client.capabilities().await?.stages {
                    let request = NodeUnstageVolume {
                        volume_id: data.volume_handle.clone(),
                        staging_target_path: shown(&places.staging),
                    };
                    let unstaged = client.unstage(request).await;
                    unstaged.map_err(|e| csi_error("blockMapper.unstageVolumeForBlock failed", e))?;
                }
                let own = places.clone();
                blocking(move || remove_tree(&own.staging).and_then(|()| remove_tree(&own.volume))).await?;
            }
            blocking(move || places.mapping.forget()).await?;
        }
        Ok(())
    }
}
