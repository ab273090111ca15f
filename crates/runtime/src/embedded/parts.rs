//! The image store and the pod network, as the runtime of one node uses them.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;

use super::images::{HolderId, ImageStore, Whiteouts};
use super::interfaces::{ImageDefaults, Images, Network, PodName, PreparedImage};
use super::network::PodNetwork;
use crate::cri::messages::{AuthConfig, FilesystemUsage, Image, ImageSpec, PortMapping};
use crate::{Code, Error, Result};

/// The images of the machine for one of its nodes.
pub struct NodeImages {
    pub store: ImageStore,
    /// The node, by a name that stays the same when it is started again: what its containers hold is held in its name.
    pub owner: String,
}

impl NodeImages {
    fn holder(&self, container: &str) -> HolderId {
        HolderId {
            owner: self.owner.clone(),
            container: container.to_string(),
        }
    }
}

#[async_trait]
impl Images for NodeImages {
    async fn list(&self) -> Result<Vec<Image>> {
        Ok(self.store.list().await?)
    }

    async fn status(&self, image: &ImageSpec) -> Result<Option<Image>> {
        Ok(self.store.status(image).await?)
    }

    async fn pull(&self, image: &ImageSpec, auth: Option<&AuthConfig>) -> Result<String> {
        Ok(self.store.pull(image, auth, Arc::new(|_| {})).await?)
    }

    async fn remove(&self, image: &ImageSpec) -> Result<()> {
        Ok(self.store.remove_for(image, &self.owner).await?)
    }

    async fn usage(&self) -> Result<FilesystemUsage> {
        Ok(self.store.fs_usage().await?)
    }

    async fn prepare(&self, image: &str, container: &str) -> Result<PreparedImage> {
        let prepared = self.store.prepare(image, &self.holder(container)).await?;
        let config = prepared.config.config;
        Ok(PreparedImage {
            id: prepared.id.to_string(),
            reference: prepared.image_ref,
            defaults: ImageDefaults {
                entrypoint: config.entrypoint,
                cmd: config.cmd,
                env: config.env,
                user: config.user,
                working_dir: config.working_dir,
                volumes: config.volumes,
                stop_signal: config.stop_signal,
            },
            layers: prepared.layers,
            stackable: prepared.whiteouts == Whiteouts::Overlay,
        })
    }

    async fn release(&self, container: &str) -> Result<()> {
        Ok(self.store.release(&self.holder(container)).await?)
    }

    async fn release_absent(&self, live: &[String]) -> Result<()> {
        Ok(self.store.release_absent(&self.owner, live).await?)
    }
}

#[async_trait]
impl Network for PodNetwork {
    async fn ready(&self) -> Result<()> {
        match self.is_ready().await {
            true => Ok(()),
            false => Err(Error::new(Code::Other, "the node has no pod CIDR yet")),
        }
    }

    async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<()> {
        let ranges = parse_ranges(pod_cidr)?;
        self.set_ranges(ranges).await.map_err(|error| error.into_runtime())
    }

    async fn attach(&self, _: PodName<'_>, sandbox: &str, netns: &Path, ports: &[PortMapping]) -> Result<Vec<IpAddr>> {
        let attached = PodNetwork::attach(self, sandbox, netns, ports).await;
        attached.map_err(|error| error.into_runtime())
    }

    async fn detach(&self, sandbox: &str) -> Result<()> {
        let detached = PodNetwork::detach(self, sandbox).await;
        detached.map_err(|error| error.into_runtime())
    }

    async fn retain(&self, live: &[String]) -> Result<()> {
        let freed = PodNetwork::retain(self, live)
            .await
            .map_err(|error| error.into_runtime())?;
        if freed != Default::default() {
            let (addresses, links) = (freed.addresses, freed.links);
            tracing::info!(addresses, links, "freed network resources of pods that are gone");
        }
        Ok(())
    }
}

/// Comma-separated, as the kubelet hands them on.
fn parse_ranges(pod_cidr: &str) -> Result<Vec<IpNet>> {
    let parse = |text: &str| {
        let text = text.trim();
        text.parse::<IpNet>()
            .map_err(|e| Error::new(Code::Other, format!("invalid pod CIDR {text:?}: {e}")))
    };
    pod_cidr
        .split(',')
        .filter(|text| !text.trim().is_empty())
        .map(parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_cidrs_of_one_and_two_families() {
        let ranges = |text| {
            parse_ranges(text)
                .unwrap()
                .iter()
                .map(IpNet::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(ranges("10.244.0.0/24"), ["10.244.0.0/24"]);
        assert_eq!(ranges("10.244.0.0/24, fd00::/64"), ["10.244.0.0/24", "fd00::/64"]);
        assert!(parse_ranges("10.244.0.0").is_err());
    }
}
