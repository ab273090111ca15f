//! What the runtime needs of images and of the pod network, and no more.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::Result;
use crate::cri::messages::{AuthConfig, FilesystemUsage, Image, ImageSpec, PortMapping};

/// What containers of an image start with unless the pod says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub env: Vec<String>,
    pub user: String,
    pub working_dir: String,
    pub volumes: Vec<String>,
    pub stop_signal: String,
}

/// An image whose files are ready to be a container's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedImage {
    /// `sha256:…`
    pub id: String,
    /// As container statuses have it: a digest of the repository, or the id.
    pub reference: String,
    pub defaults: ImageDefaults,
    /// Directories to stack, lowest first.
    pub layers: Vec<PathBuf>,
    /// Overlayfs can stack them; otherwise they are copied, and what a layer deletes is marked by `.wh.` files.
    pub stackable: bool,
}

/// The images of the machine.
#[async_trait]
pub trait Images: Send + Sync + 'static {
    async fn list(&self) -> Result<Vec<Image>>;
    async fn status(&self, image: &ImageSpec) -> Result<Option<Image>>;
    /// Returns the image's id.
    async fn pull(&self, image: &ImageSpec, auth: Option<&AuthConfig>) -> Result<String>;
    async fn remove(&self, image: &ImageSpec) -> Result<()>;
    async fn usage(&self) -> Result<FilesystemUsage>;
    /// The container holds the image's files from now on, whether this process lives or not.
    async fn prepare(&self, image: &str, container: &str) -> Result<PreparedImage>;
    /// The container is gone. Doing it again is fine.
    async fn release(&self, container: &str) -> Result<()>;
    /// Releases what containers held that are gone: for the start.
    async fn release_absent(&self, live: &[String]) -> Result<()>;
}

/// Whose sandbox it is.
#[derive(Clone, Copy, Debug)]
pub struct PodName<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The pod network of the node.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// `Err`: why pods can't be attached.
    async fn ready(&self) -> Result<()>;
    /// The node's ranges, comma-separated, as the kubelet learned them.
    async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<()>;
    /// Gives a sandbox its link, addresses, routes and host ports. Doing it again is fine.
    async fn attach(&self, pod: PodName<'_>, sandbox: &str, netns: &Path, ports: &[PortMapping])
    -> Result<Vec<IpAddr>>;
    /// Takes back what a sandbox has. Doing it again is fine, and so is a namespace that is gone.
    async fn detach(&self, sandbox: &str) -> Result<()>;
    /// Frees what belongs to no sandbox of these: for the start.
    async fn retain(&self, live: &[String]) -> Result<()>;
}

/// Labels and annotations.
pub(crate) type Map = BTreeMap<String, String>;
