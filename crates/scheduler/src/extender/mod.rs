//! Extenders: helpers behind HTTP that filter, score, preempt or bind beside the plugins.
//!
//! A call has three steps, so that deciding stays apart from waiting: a question is made from the picture of the cluster,
//! `ask` sends it, and what came back is applied. The protocol wants whole pods and nodes, of which the scheduler keeps
//! only what it needs: `ask` fetches them from the API server.
//!
//! Upstream: pkg/scheduler/extender.go (v1.36). Differs from upstream: an extender that answers with node objects must
//! not name a node that it was not asked about; there it would be taken for an empty one.

mod answer;
mod question;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use orlop_base::v;
use orlop_client::{Api, Error, Status, path};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::pod::PodInfo;
use crate::config;
use crate::cycle::Feasible;
use crate::framework::verdict::Rejection;
use crate::model::PodSpec;
use crate::preemption::Candidate;

pub use question::Question;

/// Who rejects, where a plugin would say its name.
pub const NAME: &str = "Extender";
/// An extender gives 0 to 10, plugins 0 to 100.
const SCALE: i64 = 10;
/// Of an answer at most this much is read. Extenders without a cache of nodes send back whole nodes.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Connections that nobody uses are kept this long.
const IDLE: Duration = Duration::from_secs(90);

/// One extender. Clones are cheap and share its connections.
#[derive(Clone)]
pub struct Extender(Arc<Inner>);

struct Inner {
    config: config::Extender,
    api: Api,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// What `ask` gives: none if there was nothing to ask.
pub type Answer = Option<Result<Value, String>>;

impl Extender {
    /// In the order they are asked. `api` is where whole pods and nodes come from.
    pub fn all(configs: &[config::Extender], api: &Api) -> Result<Vec<Extender>, String> {
        configs.iter().map(|config| Extender::new(config, api)).collect()
    }

    fn new(config: &config::Extender, api: &Api) -> Result<Extender, String> {
        let wrong = |why: String| format!("extender {:?}: {why}", config.url_prefix);
        let uri: http::Uri = config
            .url_prefix
            .parse()
            .map_err(|e| wrong(format!("its urlPrefix is no URL: {e}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("its urlPrefix must begin with http:// or https://".to_string()));
        }
        let connector = tls::connector(config, uri.scheme_str() == Some("https")).map_err(wrong)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Extender(Arc::new(Inner {
            config: config.clone(),
            api: api.clone(),
            client,
        })))
    }

    /// Its address, which stands for it in messages.
    pub fn name(&self) -> &str {
        &self.0.config.url_prefix
    }

    /// Whether the pod asks for something that this extender manages; one that manages nothing sees every pod.
    pub fn is_interested(&self, spec: &PodSpec) -> bool {
        let managed = &self.0.config.managed_resources;
        let asks = |name: &str| {
            (spec.containers.iter().chain(&spec.init_containers))
                .any(|c| c.resources.requests.contains_key(name) || c.resources.limits.contains_key(name))
        };
        managed.is_empty() || managed.iter().any(|resource| asks(&resource.name))
    }

    pub fn preempts(&self) -> bool {
        !self.0.config.preempt_verb.is_empty()
    }

    /// Whether it, and not the API server, is to be told about the pod's node.
    pub fn binds(&self, spec: &PodSpec) -> bool {
        !self.0.config.bind_verb.is_empty() && self.is_interested(spec)
    }

    // ---- questions ----

    pub fn filter_question(&self, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Option<Question> {
        Question::about_nodes(&self.0.config.filter_verb, cluster, pod, nodes)
    }

    pub fn prioritize_question(&self, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Option<Question> {
        Question::about_nodes(&self.0.config.prioritize_verb, cluster, pod, nodes)
    }

    pub fn preempt_question(&self, pod: &PodInfo, candidates: &[Candidate]) -> Option<Question> {
        Question::about_victims(&self.0.config.preempt_verb, pod, candidates)
    }

    /// Sends a question and reads the answer, in the time the extender has for it.
    pub async fn ask(&self, question: Option<Question>) -> Answer {
        let question = question?;
        let whole_nodes = !self.0.config.node_cache_capable;
        let body = match question.body(&self.0.api, whole_nodes).await {
            Ok(body) => body,
            Err(error) => return Some(Err(format!("extender {:?}: {error}", self.name()))),
        };
        Some(self.post(&question.verb, &body).await)
    }

    // ---- answers ----

    /// Takes those nodes away that the extender did not name. An error is one of the whole attempt.
    pub fn apply_filter(&self, answer: Answer, cluster: &Cluster, feasible: &mut Feasible) -> Result<(), String> {
        let Some(answer) = answer else { return Ok(()) };
        let read = |value: Value| answer::Filtered::read(&value, self.0.config.node_cache_capable);
        let filtered = answer.and_then(|value| read(value).map_err(|e| self.misread(&e)));
        let kept = filtered.and_then(|filtered| {
            let kept = filtered.kept(cluster, &feasible.nodes, self.name())?;
            Ok((kept, filtered))
        });
        let (kept, filtered) = match kept {
            Ok(done) => done,
            Err(error) if self.0.config.ignorable => {
                tracing::info!(
                    extender = self.name(),
                    err = error,
                    "Skipping extender as it returned error and has ignorable flag set"
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let diagnosis = &mut feasible.diagnosis;
        let rejections: Vec<(NodeId, Rejection)> = filtered.rejections(cluster);
        if !rejections.is_empty() {
            let told: std::collections::HashSet<NodeId> = rejections.iter().map(|(id, _)| *id).collect();
            diagnosis.nodes.retain(|(id, _, _)| !told.contains(id));
            diagnosis
                .nodes
                .extend(rejections.into_iter().map(|(id, r)| (id, NAME, r)));
        }
        if kept.len() != feasible.nodes.len() {
            diagnosis.rejected_by.insert(NAME);
        }
        feasible.nodes = kept;
        Ok(())
    }

    /// Adds what the extender gives to each node. One that fails gives nothing.
    pub fn add_scores(&self, answer: Answer, cluster: &Cluster, nodes: &[NodeId], scores: &mut [i64]) {
        let Some(answer) = answer else { return };
        match answer.and_then(|value| answer::scores(&value).map_err(|e| self.misread(&e))) {
            Ok(given) => {
                let weight = self.0.config.weight.saturating_mul(SCALE);
                for (id, score) in nodes.iter().zip(scores) {
                    let Some(node) = cluster.node(*id) else { continue };
                    if let Some(given) = given.get(&*node.name) {
                        *score = score.saturating_add(given.saturating_mul(weight));
                    }
                }
            }
            Err(error) => v!(
                5,
                extender = self.name(),
                error,
                "Failed to run extender's priority function. No score given by this extender."
            ),
        }
    }

    /// The candidates as the extender would have them: none if it fails and must not.
    pub fn apply_preempt(&self, answer: Answer, cluster: &Cluster, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let Some(answer) = answer else { return candidates };
        let ignorable = self.0.config.ignorable;
        let read = |value: Value| {
            let victims = answer::victims(&value).map_err(|e| self.misread(&e))?;
            answer::candidates(victims, cluster, &candidates, ignorable, self.name())
        };
        match answer.and_then(read) {
            Ok(changed) => changed,
            Err(error) if ignorable => {
                v!(
                    2,
                    extender = self.name(),
                    err = error,
                    "Skipped extender as it returned error and has ignorable flag set"
                );
                candidates
            }
            Err(error) => {
                tracing::warn!(
                    extender = self.name(),
                    err = error,
                    "failed to run extender's preemption"
                );
                vec![]
            }
        }
    }

    /// Has the extender bind the pod; if that fails and the extender may fail, the API server is told instead. A failure
    /// comes as `Error::Invalid` with the extender's words, whatever it is: only the message matters, as the attempt is
    /// over.
    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), Error> {
        let args = json!({
            "PodName": &*pod.key.name, "PodNamespace": &*pod.key.namespace, "PodUID": &*pod.uid, "Node": node,
        });
        let body = serde_json::to_vec(&args).expect("names can be written as JSON");
        let answer = self.post(&self.0.config.bind_verb, &body).await;
        let refused = |value: Value| answer::error(&value).map_or(Ok(()), Err);
        match answer.and_then(refused) {
            Ok(()) => Ok(()),
            Err(error) if self.0.config.ignorable => {
                tracing::info!(
                    extender = self.name(),
                    err = error,
                    "Skipping extender in bind as it returned error and has ignorable flag set"
                );
                self.bind_ourselves(pod, node).await
            }
            Err(message) => Err(Error::Invalid(Box::new(Status {
                message,
                ..Status::default()
            }))),
        }
    }

    async fn bind_ourselves(&self, pod: &PodInfo, node: &str) -> Result<(), Error> {
        let at = path::subresource("v1", Some(&pod.key.namespace), "pods", &pod.key.name, "binding");
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": &*pod.key.namespace, "name": &*pod.key.name, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        self.0.api.create::<IgnoredAny>(&at, &body).await.map(drop)
    }

    // ---- HTTP ----

    async fn post(&self, verb: &str, body: &[u8]) -> Result<Value, String> {
        let url = format!("{}/{verb}", self.name().trim_end_matches('/'));
        let limit = self.0.config.http_timeout;
        match tokio::time::timeout(limit, self.exchange(verb, &url, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("Post {url:?}: no answer within {limit:?}")),
        }
    }

    async fn exchange(&self, verb: &str, url: &str, body: &[u8]) -> Result<Value, String> {
        let failed = |e: &dyn std::error::Error| format!("Post {url:?}: {}", chain(e));
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::copy_from_slice(body)))
            .map_err(|e| failed(&e))?;
        let response = self.0.client.request(request).await.map_err(|e| failed(&e))?;
        let code = response.status().as_u16();
        if code != 200 {
            return Err(format!("failed {verb} with extender at URL {url}, code {code}"));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let bytes = body.collect().await.map_err(|e| failed(&*e))?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|e| format!("the answer of {url} is no JSON: {e}"))
    }

    fn misread(&self, why: &str) -> String {
        format!("extender {:?}: {why}", self.name())
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
