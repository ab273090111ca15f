//! What extenders are asked: names at first, whole objects once they are sent.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use orlop_client::{Api, Error, ListQuery, path};
use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::pod::{PodInfo, PodKey};
use crate::preemption::Candidate;

/// Up to this many nodes are fetched one by one; beyond, all nodes are listed.
const SINGLE_NODES_MAX: usize = 16;
/// Requests for objects at the same time.
const FETCHES: usize = 16;

/// Why a request can't be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("pod {0} is gone")]
    Gone(PodKey),
    /// The API server did not give an object that the extender wants whole.
    #[error("{path}: {}", .error.chain())]
    Api { path: String, error: Error },
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// A request that is yet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtenderRequest {
    pub(super) verb: String,
    pod: PodRef,
    subject: Subject,
}

/// A pod by name; the uid tells it from a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodRef {
    key: PodKey,
    uid: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Nodes(Vec<Arc<str>>),
    Victims(Vec<(Arc<str>, Vec<PodRef>, usize)>),
}

impl PodRef {
    fn new(pod: &PodInfo) -> PodRef {
        PodRef {
            key: pod.key.clone(),
            uid: pod.uid.clone(),
        }
    }
}

impl ExtenderRequest {
    pub(super) fn for_nodes(verb: &str, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Option<ExtenderRequest> {
        if verb.is_empty() {
            return None;
        }
        let names = nodes.iter().filter_map(|id| cluster.node(*id)).map(|n| n.name.clone());
        Some(ExtenderRequest {
            verb: verb.to_string(),
            pod: PodRef::new(pod),
            subject: Subject::Nodes(names.collect()),
        })
    }

    pub(super) fn for_victims(verb: &str, pod: &PodInfo, candidates: &[Candidate]) -> Option<ExtenderRequest> {
        if verb.is_empty() || candidates.is_empty() {
            return None;
        }
        let victims = |c: &Candidate| c.victims.iter().map(|p| PodRef::new(p)).collect();
        Some(ExtenderRequest {
            verb: verb.to_string(),
            pod: PodRef::new(pod),
            subject: Subject::Victims(
                candidates
                    .iter()
                    .map(|c| (c.name.clone(), victims(c), c.violations))
                    .collect(),
            ),
        })
    }

    /// The request. `whole` for extenders that keep no nodes of their own: they get objects instead of names.
    pub(super) async fn body(&self, api: &Api, whole: bool) -> Result<Vec<u8>, RequestError> {
        let Some(pod) = fetch_pod(api, &self.pod).await? else {
            return Err(RequestError::Gone(self.pod.key.clone()));
        };
        let args = match &self.subject {
            Subject::Nodes(names) if whole => {
                let items = fetch_nodes(api, names).await?;
                json!({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": null})
            }
            Subject::Nodes(names) => {
                let names: Vec<&str> = names.iter().map(|n| &**n).collect();
                json!({"Pod": pod, "Nodes": null, "NodeNames": names})
            }
            Subject::Victims(victims) if whole => {
                let victims = whole_victims(api, victims).await?;
                json!({"Pod": pod, "NodeNameToVictims": victims, "NodeNameToMetaVictims": null})
            }
            Subject::Victims(victims) => {
                let meta = |(node, pods, violations): &(Arc<str>, Vec<PodRef>, usize)| {
                    let pods: Vec<Value> = pods.iter().map(|p| json!({"UID": &*p.uid})).collect();
                    (node.to_string(), json!({"Pods": pods, "NumPDBViolations": violations}))
                };
                let victims: Map<String, Value> = victims.iter().map(meta).collect();
                json!({"Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": victims})
            }
        };
        Ok(serde_json::to_vec(&args)?)
    }
}

/// None if it is gone, or another one has its name.
async fn fetch_pod(api: &Api, pod: &PodRef) -> Result<Option<Value>, RequestError> {
    let at = path::object("v1", Some(&pod.key.namespace), "pods", &pod.key.name);
    let found = fetch(api, &at).await?;
    Ok(found.filter(|found| found["metadata"]["uid"].as_str() == Some(&pod.uid)))
}

async fn fetch(api: &Api, at: &str) -> Result<Option<Value>, RequestError> {
    match api.get::<Value>(at).await {
        Ok(object) => Ok(Some(object)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(RequestError::Api {
            path: at.to_string(),
            error,
        }),
    }
}

/// In the order of the names; those that are gone are left out.
async fn fetch_nodes(api: &Api, names: &[Arc<str>]) -> Result<Vec<Value>, RequestError> {
    if names.len() <= SINGLE_NODES_MAX {
        let each: Vec<String> = names
            .iter()
            .map(|name| path::object("v1", None, "nodes", name))
            .collect();
        let fetched = futures::stream::iter(each).map(|at| {
            let api = api.clone();
            async move { fetch(&api, &at).await }
        });
        let found: Vec<Option<Value>> = fetched.buffered(FETCHES).try_collect().await?;
        return Ok(found.into_iter().flatten().collect());
    }
    let at = path::collection("v1", None, "nodes");
    let list = api.list::<Value>(&at, &ListQuery::default()).await;
    let list = list.map_err(|error| RequestError::Api { path: at, error })?;
    let name = |node: &Value| node["metadata"]["name"].as_str().map(str::to_string);
    let mut nodes: HashMap<String, Value> = list.items.into_iter().filter_map(|n| Some((name(&n)?, n))).collect();
    Ok(names.iter().filter_map(|name| nodes.remove(&**name)).collect())
}

async fn whole_victims(
    api: &Api,
    victims: &[(Arc<str>, Vec<PodRef>, usize)],
) -> Result<Map<String, Value>, RequestError> {
    let mut by_node = Map::new();
    for (node, pods, violations) in victims {
        let fetched = futures::stream::iter(pods.clone()).map(|pod| {
            let api = api.clone();
            async move { fetch_pod(&api, &pod).await }
        });
        let found: Vec<Option<Value>> = fetched.buffered(FETCHES).try_collect().await?;
        let pods: Vec<Value> = found.into_iter().flatten().collect();
        by_node.insert(node.to_string(), json!({"Pods": pods, "NumPDBViolations": violations}));
    }
    Ok(by_node)
}
