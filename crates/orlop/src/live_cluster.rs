//! A cluster of any kubeconfig as `orlop explain` and `orlop simulate` read it: one snapshot, nothing written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::future::{BoxFuture, join_all};
use orlop_client::{Api, Error, ListQuery, path, transport};
use orlop_explain::{Snapshot, Unreadable};
use orlop_scheduler::config::Config;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::scheduler_config;
use crate::kubeconfig;

/// Objects in a page: few requests for a large cluster, and none of more than some tens of megabytes.
const PAGE: u32 = 5000;
/// A page of a large cluster may take a slow server a while.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(crate) struct ConnectArgs {
    /// Kubeconfig of the cluster, Orlop's or any other [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// KubeSchedulerConfiguration that decides [default: that of the cluster if it is Orlop's, else Kubernetes' defaults]
    #[arg(long, value_name = "FILE")]
    pub(crate) scheduler_config: Option<PathBuf>,
}

pub(crate) struct LiveCluster {
    pub api: Api,
    /// Of the kubeconfig's context.
    pub namespace: String,
}

impl LiveCluster {
    pub(crate) async fn connect(args: &ConnectArgs) -> anyhow::Result<LiveCluster> {
        let path = match &args.kubeconfig {
            Some(path) => path.clone(),
            None => {
                let target = kubeconfig::Target::find().filter(|target| target.path.exists());
                let Some(target) = target else {
                    bail!(
                        "found no kubeconfig: give one with --kubeconfig FILE or KUBECONFIG, or start a cluster with `orlop up`"
                    )
                };
                target.path
            }
        };
        let namespace = namespace_of(&path);
        let client = transport::from_kubeconfig(Some(&path), None, "orlop-explain").await?;
        Ok(LiveCluster {
            api: Api::new(client, "orlop").with_timeout(TIMEOUT),
            namespace,
        })
    }

    /// The scheduler configuration to decide by, and where it comes from.
    pub(crate) async fn scheduler_config(&self, args: &ConnectArgs) -> anyhow::Result<Config> {
        if let Some(path) = &args.scheduler_config {
            return read_config(path);
        }
        let at = path::object(
            "v1",
            Some(scheduler_config::NAMESPACE),
            "configmaps",
            scheduler_config::CONFIG_MAP,
        );
        let Ok(map) = self.api.get::<Value>(&at).await else {
            return Ok(Config::default());
        };
        let text = map["data"][scheduler_config::CONFIG_KEY].as_str().unwrap_or_default();
        Ok(scheduler_config::parse(text).map_or_else(|_| Config::default(), |(config, _)| config))
    }

    /// Everything that the scheduler looks at, as far as it may be read.
    pub(crate) async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        let live = "status.phase!=Succeeded,status.phase!=Failed";
        let (storage, apps, policy) = ("storage.k8s.io/v1", "apps/v1", "policy/v1");
        let api = &self.api;
        let all: Vec<BoxFuture<'_, anyhow::Result<Option<Unreadable>>>> = vec![
            Box::pin(fill(api, "v1", "pods", live, &mut snapshot.pods)),
            Box::pin(fill(api, "v1", "nodes", "", &mut snapshot.nodes)),
            Box::pin(fill(api, "v1", "namespaces", "", &mut snapshot.namespaces)),
            Box::pin(fill(api, "v1", "services", "", &mut snapshot.services)),
            Box::pin(fill(
                api,
                "v1",
                "replicationcontrollers",
                "",
                &mut snapshot.replication_controllers,
            )),
            Box::pin(fill(api, apps, "replicasets", "", &mut snapshot.replica_sets)),
            Box::pin(fill(api, apps, "statefulsets", "", &mut snapshot.stateful_sets)),
            Box::pin(fill(api, policy, "poddisruptionbudgets", "", &mut snapshot.budgets)),
            Box::pin(fill(api, "v1", "persistentvolumes", "", &mut snapshot.volumes)),
            Box::pin(fill(api, "v1", "persistentvolumeclaims", "", &mut snapshot.claims)),
            Box::pin(fill(api, storage, "storageclasses", "", &mut snapshot.storage_classes)),
            Box::pin(fill(api, storage, "csinodes", "", &mut snapshot.csi_nodes)),
            Box::pin(fill(api, storage, "csidrivers", "", &mut snapshot.csi_drivers)),
            Box::pin(fill(api, storage, "csistoragecapacities", "", &mut snapshot.capacities)),
            Box::pin(fill(api, storage, "volumeattachments", "", &mut snapshot.attachments)),
        ];
        let outcomes = join_all(all).await;
        let mut unreadable = vec![];
        for outcome in outcomes {
            unreadable.extend(outcome?);
        }
        snapshot.unreadable = unreadable;
        Ok(snapshot)
    }

    /// Objects of one namespace; none if they may not be read.
    pub(crate) async fn objects(&self, api_version: &str, resource: &str, namespace: &str, fields: &str) -> Vec<Value> {
        let query = ListQuery {
            field_selector: fields.to_string(),
            limit: Some(PAGE),
            ..ListQuery::default()
        };
        let at = path::collection(api_version, Some(namespace), resource);
        self.api
            .list::<Value>(&at, &query)
            .await
            .map_or_else(|_| vec![], |list| list.items)
    }
}

async fn fill<T: DeserializeOwned>(
    api: &Api,
    api_version: &str,
    resource: &str,
    fields: &str,
    into: &mut Vec<T>,
) -> anyhow::Result<Option<Unreadable>> {
    let query = ListQuery {
        field_selector: fields.to_string(),
        limit: Some(PAGE),
        ..ListQuery::default()
    };
    match api.list(&path::collection(api_version, None, resource), &query).await {
        Ok(list) => {
            *into = list.items;
            Ok(None)
        }
        // A server need not have every kind.
        Err(Error::NotFound(_)) => Ok(None),
        Err(error @ Error::Forbidden(_)) if error.status().is_some_and(|status| status.code == 403) => {
            Ok(Some(Unreadable {
                resource: resource.to_string(),
                message: error.to_string(),
            }))
        }
        Err(error) => Err(error).with_context(|| format!("failed to list {resource}")),
    }
}

pub(crate) fn read_config(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    let (config, _) = scheduler_config::parse(&text).map_err(|problems| {
        anyhow::anyhow!(
            "{} is no valid scheduler configuration:\n{}",
            path.display(),
            problems.join("\n")
        )
    })?;
    Ok(config)
}

/// The namespace of the current context.
fn namespace_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let config: Value = serde_saphyr::from_str(&text).unwrap_or_default();
    let contexts = config["contexts"].as_array().into_iter().flatten();
    let current = contexts
        .into_iter()
        .find(|context| context["name"] == config["current-context"]);
    let namespace = current.and_then(|context| context["context"]["namespace"].as_str());
    namespace
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
        .to_string()
}
