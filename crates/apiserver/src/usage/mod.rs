//! What nodes and pods use right now: the resource metrics API (`metrics.k8s.io`), for `kubectl top` and autoscalers.
//!
//! Nothing happens until somebody asks. Then the kubelets of the nodes concerned are asked for their
//! `/stats/summary`, many at once, and what they say is `kept` for a few seconds. `summary` reads an answer, `view` makes the
//! objects (both pure). A node that does not answer in time is left out, with its pods.
//!
//! Differs from metrics-server, which scrapes all nodes every 15 s and takes the difference: a kubelet's figure for CPU is
//! a rate already, so that one answer is enough and a new pod need not wait for two.

mod kept;
mod summary;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use orlop_api::{KindDef, Status, Value, metrics};
use orlop_base::clock::Shift;
use serde_json::json;
use tokio::time::Instant;

use crate::chain::Server;
use crate::connect::AskError;
use crate::kinds;
use crate::object::Object;
use crate::registry::list::{Filter, ListOptions};
use crate::request::RequestInfo;

pub(crate) use kept::Kept;
use summary::{NodeUsage, SummaryError};
use view::{NodeSeen, PodSeen};

/// Asked of a kubelet. It says no more than we need.
const TARGET: &str = "/stats/summary?only_cpu_and_memory=true";
/// Of one answer: several hundred pods of several containers.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// A kubelet that has nothing to compare with yet measures for a second or two before it answers.
const NODE_WAIT: Duration = Duration::from_secs(8);
/// All nodes together: a cluster full of dead nodes gets the answer of those that live.
const WHOLE_WAIT: Duration = Duration::from_secs(30);
/// Nodes asked at the same time.
const AT_ONCE: usize = 128;

pub(crate) fn serves(kind: &KindDef) -> bool {
    kind.group == metrics::GROUP
}

/// The nodes to ask, each with the pods (`namespace/name`) that its answer should have.
type Questions = BTreeMap<String, Vec<String>>;
type Answers = BTreeMap<String, Arc<NodeUsage>>;

/// Why the usage of a node is not known.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Kubelet(#[from] AskError),
    #[error(transparent)]
    Summary(#[from] SummaryError),
}

impl Server {
    /// A get or list of NodeMetrics or PodMetrics.
    pub(crate) async fn measured(&self, kind: &'static KindDef, info: &RequestInfo) -> Result<Value, Status> {
        let items = match kind.kind {
            "NodeMetrics" => self.measured_nodes(kind, info).await?,
            _ => self.measured_pods(kind, info).await?,
        };
        if info.verb == "list" {
            let name = format!("{}List", kind.kind);
            return Ok(json!({"kind": name, "apiVersion": kind.api_version(), "metadata": {}, "items": items}));
        }
        let (resource, name) = match kind.namespaced {
            true => ("podmetrics", format!("{}/{}", info.namespace, info.name)),
            false => ("nodemetrics", info.name.clone()),
        };
        let mut object = items
            .into_iter()
            .next()
            .ok_or_else(|| Status::not_found(kind.group, resource, &name))?;
        object["kind"] = kind.kind.into();
        object["apiVersion"] = kind.api_version().into();
        Ok(object)
    }

    async fn measured_nodes(&self, kind: &KindDef, info: &RequestInfo) -> Result<Vec<Value>, Status> {
        let records = self.measurable(kind, info)?;
        let nodes: Vec<NodeSeen> = records.iter().filter_map(|record| record.read()).collect();
        let questions = nodes
            .iter()
            .filter(|node| node.is_heard_of())
            .map(|node| (node.metadata.name.clone(), vec![]));
        let answers = self.ask_nodes(questions.collect()).await;
        let now = self.registry.now();
        let of = |node: &NodeSeen| view::node(node, answers.get(&node.metadata.name)?, now);
        Ok(nodes.iter().filter_map(of).collect())
    }

    async fn measured_pods(&self, kind: &KindDef, info: &RequestInfo) -> Result<Vec<Value>, Status> {
        let records = self.measurable(kind, info)?;
        let mut pods: Vec<PodSeen> = records.iter().filter_map(|record| record.read()).collect();
        pods.retain(PodSeen::is_running);
        let mut questions = Questions::new();
        for pod in &pods {
            let wanted = questions.entry(pod.spec.node_name.clone()).or_default();
            wanted.push(pod.key());
        }
        let answers = self.ask_nodes(questions).await;
        let now = self.registry.now();
        let of = |pod: &PodSeen| view::pod(pod, answers.get(&pod.spec.node_name)?, now);
        Ok(pods.iter().filter_map(of).collect())
    }

    /// The nodes or pods that a request is about, in the order of their names.
    fn measurable(&self, kind: &KindDef, info: &RequestInfo) -> Result<Vec<Arc<Object>>, Status> {
        let stored = kinds::of_stored(kind.plural).expect("nodes and pods are stored");
        if info.verb == "get" {
            let item = self
                .registry
                .store
                .get(&kinds::key(stored, &info.namespace, &info.name));
            let item = item.ok_or_else(|| Status::not_found("", kind.plural, &info.name))?;
            return Ok(vec![item.record]);
        }
        let text = |name: &str| info.query.get(name).unwrap_or("");
        let options = ListOptions {
            namespace: info.namespace.clone(),
            // By all that nodes and pods can be selected by.
            filter: Filter::parse(stored, text("labelSelector"), text("fieldSelector"))?,
            // Measurements have no revisions, and no pages.
            limit: 0,
            start_after: None,
            at: None,
            resource_version: String::new(),
        };
        let page = self.registry.page(stored, &options)?;
        Ok(page.items.into_iter().map(|item| item.record).collect())
    }

    async fn ask_nodes(&self, questions: Questions) -> Answers {
        let deadline = Instant::now().later(WHOLE_WAIT);
        let asked = futures::stream::iter(questions).map(|(node, pods)| async move {
            let usage = self.usage.of(&node, &pods, || self.ask_node(&node)).await;
            Some((node, usage?))
        });
        let mut asked = std::pin::pin!(asked.buffer_unordered(AT_ONCE));
        let mut answers = Answers::new();
        while let Ok(Some(answer)) = tokio::time::timeout_at(deadline, asked.next()).await {
            answers.extend(answer);
        }
        answers
    }

    async fn ask_node(&self, node: &str) -> Option<NodeUsage> {
        let asked = self.ask_kubelet(node, TARGET, ANSWER_BYTES_MAX);
        let usage = match tokio::time::timeout(NODE_WAIT, asked).await {
            Err(_) => Err(UsageError::Timeout),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(bytes)) => summary::read(&bytes).map_err(UsageError::from),
        };
        match usage {
            Ok(usage) => Some(usage),
            Err(why) => {
                tracing::debug!(node, err = %why, "failed to read node usage");
                None
            }
        }
    }
}
