//! The embedded runtime of a node of this machine, put together: images, the pod network with its policies, containers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use ipnet::IpNet;
use orlop_base::Shutdown;
use orlop_client::Api;
use orlop_netlink::Namespace;
use orlop_proxy::policy::{self, AttachedPods, PolicyError};
use orlop_runtime::cri::messages::PortMapping;
use orlop_runtime::embedded::images::{ImageStore, Options as ImageOptions, Registries};
use orlop_runtime::embedded::network::{Options as NetworkOptions, PodNetwork, Transport, nodes_prefix};
use orlop_runtime::embedded::{Embedded, Network, NodeImages, Options, PodName};
use orlop_runtime::{Error, Runtime};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::data_dir;
use crate::nodes::ranges::PodRanges;

/// What makes names of links, tables and held images a node's own: two clusters on one machine do not share any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EmbeddedNode {
    /// The data directory, by its whole path.
    pub data_dir: PathBuf,
    pub name: String,
    /// The ranges of all pods of the cluster.
    pub pod_ranges: Vec<IpNet>,
    /// How pods of other nodes are reached.
    pub pod_network: PodTransport,
    /// For a worker node: where it keeps its pods, and the network namespace that it is in.
    pub worker: Option<WorkerPaths>,
}

/// `--pod-network`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PodTransport {
    /// Plain routes
    #[default]
    Routes,
    /// Inside UDP packets between the nodes
    Vxlan,
}

/// What a worker node has to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct WorkerPaths {
    pub directory: PathBuf,
    pub network_namespace: PathBuf,
}

impl EmbeddedNode {
    /// The node of this machine itself.
    pub(crate) fn new(
        data_dir: &Path,
        name: &str,
        cluster_ranges: &PodRanges,
        pod_network: PodTransport,
    ) -> EmbeddedNode {
        EmbeddedNode {
            data_dir: data_dir::absolute(data_dir),
            name: name.to_string(),
            pod_ranges: cluster_ranges.iter().collect(),
            pod_network,
            worker: None,
        }
    }

    fn directory(&self) -> &Path {
        self.worker.as_ref().map_or(&self.data_dir, |paths| &paths.directory)
    }

    fn network_namespace(&self) -> Option<PathBuf> {
        self.worker.as_ref().map(|paths| paths.network_namespace.clone())
    }

    /// Opens the runtime: containers of an earlier process go on.
    pub(crate) async fn open(&self, parts: EmbeddedParts) -> anyhow::Result<Arc<dyn Runtime>> {
        let store = open_images(&self.data_dir).await?;
        load_archives(&store, &self.data_dir).await;
        let network = self.open_network()?;
        parts.network.send_replace(Some(network.clone()));
        let network = PolicedNetwork {
            network,
            attached: parts.attached,
            pods: Mutex::default(),
        };
        let images = NodeImages {
            store,
            owner: self.name.clone(),
        };
        let options = Options {
            apparmor_profile: self.apparmor_profile(),
            ..Options::new(self.directory().join(data_dir::PODS))
        };
        let opened = Embedded::open(options, Arc::new(images), Arc::new(network)).await;
        let runtime = opened.map_err(|e| anyhow::anyhow!("failed to open the embedded container runtime: {e}"))?;
        Ok(Arc::new(runtime))
    }

    fn open_network(&self) -> anyhow::Result<PodNetwork> {
        let namespace = self.network_namespace();
        if let Some(path) = &namespace {
            // After a reboot it is gone, and what is to be removed is in a new one.
            Namespace::ensure(path).with_context(|| format!("failed to open {}", path.display()))?;
        }
        Ok(PodNetwork::open(NetworkOptions {
            state_dir: self.directory().join(data_dir::NETWORK),
            cluster: self.cluster(),
            node: self.name.clone(),
            cluster_ranges: self.pod_ranges.clone(),
            mtu: None,
            transport: self.transport(),
            namespace,
        })?)
    }

    fn transport(&self) -> Transport {
        match self.pod_network {
            PodTransport::Routes => Transport::Routes,
            PodTransport::Vxlan => Transport::vxlan(&self.cluster()),
        }
    }

    fn cluster(&self) -> String {
        self.data_dir.display().to_string()
    }

    /// Enforces network policies until the shutdown.
    pub(crate) async fn enforce_policies(
        &self,
        api: Api,
        attached: AttachedPods,
        shutdown: Shutdown,
    ) -> Result<(), PolicyError> {
        policy::run(policy::Options {
            api,
            node_name: self.name.clone(),
            table: self.policy_table(),
            namespace: self.network_namespace(),
            attached,
            shutdown,
        })
        .await
    }

    /// The default AppArmor profile of containers of all the cluster's nodes.
    pub(crate) fn apparmor_profile(&self) -> String {
        format!("{}-default", nodes_prefix(&self.cluster()))
    }

    fn policy_table(&self) -> String {
        orlop_runtime::embedded::network::policy_table(&self.cluster(), &self.name)
    }

    /// Takes every link, address, rule and table away.
    pub(crate) async fn remove_network(&self) -> anyhow::Result<()> {
        self.open_network()?.remove_all().await?;
        policy::clean_up(&self.policy_table(), self.network_namespace().as_deref())?;
        Ok(())
    }
}

/// What a node's other components have to do with its runtime.
#[derive(Clone, Default)]
pub(crate) struct EmbeddedParts {
    /// Hears of pods before they start.
    pub attached: Option<AttachedPods>,
    /// The pod network, as soon as it is open.
    pub network: Arc<watch::Sender<Option<PodNetwork>>>,
}

/// The images of a data directory, which its nodes share.
pub(crate) async fn open_images(dir: &Path) -> anyhow::Result<ImageStore> {
    let file = dir.join(data_dir::REGISTRIES);
    let registries = match file.exists() {
        true => Registries::load(&file)?,
        false => Registries::default(),
    };
    let options = ImageOptions {
        registries,
        ..ImageOptions::default()
    };
    let root = dir.join(data_dir::IMAGE_STORE);
    let opened = ImageStore::open(&root, options).await;
    opened.with_context(|| format!("failed to open the images in {}", root.display()))
}

/// Loads the archives that somebody put into the data directory, for machines without a registry.
async fn load_archives(store: &ImageStore, data_dir: &Path) {
    let dir = data_dir.join(data_dir::IMAGES);
    if !dir.is_dir() {
        return;
    }
    match store.load_directory(&dir).await {
        Ok(images) => {
            for tag in images.iter().flat_map(|image| &image.tags) {
                tracing::info!(image = %tag, "loaded image");
            }
        }
        Err(error) => tracing::warn!(path = %dir.display(), err = %error, "failed to load images"),
    }
}

/// A pod that policies are enforced for.
struct AttachedPod {
    namespace: String,
    name: String,
    addresses: Vec<IpAddr>,
}

/// The pod network, with whom policies isolate from the first packet on.
struct PolicedNetwork {
    network: PodNetwork,
    attached: Option<AttachedPods>,
    /// Whose sandbox is whose, of those that this process has attached.
    pods: Mutex<HashMap<String, AttachedPod>>,
}

#[async_trait]
impl Network for PolicedNetwork {
    async fn ready(&self) -> Result<(), Error> {
        self.network.ready().await
    }

    async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<(), Error> {
        self.network.set_pod_cidr(pod_cidr).await
    }

    async fn attach(
        &self,
        pod: PodName<'_>,
        sandbox: &str,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, Error> {
        let addresses = Network::attach(&self.network, pod, sandbox, netns, ports).await?;
        if let Some(attached) = &self.attached {
            let known = AttachedPod {
                namespace: pod.namespace.to_string(),
                name: pod.name.to_string(),
                addresses: addresses.clone(),
            };
            self.pods.lock().insert(sandbox.to_string(), known);
            if !attached.attach(pod.namespace, pod.name, &addresses).await {
                let (namespace, name) = (pod.namespace, pod.name);
                tracing::warn!(namespace, pod = name, "network policies of a pod are not in effect yet");
            }
        }
        Ok(addresses)
    }

    async fn detach(&self, sandbox: &str) -> Result<(), Error> {
        Network::detach(&self.network, sandbox).await?;
        let pod = self.pods.lock().remove(sandbox);
        if let (Some(attached), Some(pod)) = (&self.attached, pod) {
            attached.detach(&pod.namespace, &pod.name, &pod.addresses);
        }
        Ok(())
    }

    async fn retain(&self, live: &[String]) -> Result<(), Error> {
        Network::retain(&self.network, live).await
    }
}
