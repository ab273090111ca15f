//! Extenders: helpers behind HTTP that filter, score, preempt or bind beside the plugins.
//!
//! A call has three steps, so that deciding stays apart from waiting: a request is made from the cluster state,
//! `send` sends it, and what came back is applied. The protocol wants whole pods and nodes, of which the scheduler keeps
//! only what it needs: `send` fetches them from the API server.
//!
//! Upstream: pkg/scheduler/extender.go (v1.36). Differs from upstream: an extender that answers with node objects must
//! not name a node that was not in the request; there it would be taken for an empty one.

mod request;
mod response;
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

pub use request::ExtenderRequest;

/// Who rejects, where a plugin would say its name.
pub const NAME: &str = "Extender";
/// An extender gives 0 to 10, plugins 0 to 100.
const SCALE: i64 = 10;
/// Of a response at most this much is read. Extenders without a cache of nodes send back whole nodes.
const RESPONSE_BYTES_MAX: usize = 256 << 20;
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

/// Why an extender can't be used, or was of no help. The texts follow upstream's.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("extender {extender:?}: {reason}")]
    InvalidConfig { extender: String, reason: String },
    /// It was not reached in time, or refused.
    #[error("{0}")]
    Request(String),
    /// It answered with an error, or with something that can't be used.
    #[error("{0}")]
    Response(String),
}

/// What `send` gives: none if there was nothing to ask.
pub type ExtenderResponse = Option<Result<Value, ExtenderError>>;

impl Extender {
    /// In the order they are asked. `api` is where whole pods and nodes come from.
    pub fn all(configs: &[config::Extender], api: &Api) -> Result<Vec<Extender>, ExtenderError> {
        configs.iter().map(|config| Extender::new(config, api)).collect()
    }

    fn new(config: &config::Extender, api: &Api) -> Result<Extender, ExtenderError> {
        let invalid = |reason: String| ExtenderError::InvalidConfig {
            extender: config.url_prefix.clone(),
            reason,
        };
        let uri: http::Uri = config
            .url_prefix
            .parse()
            .map_err(|e| invalid(format!("urlPrefix is not a valid URL: {e}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(invalid("urlPrefix must begin with http:// or https://".to_string()));
        }
        let connector = tls::connector(config, uri.scheme_str() == Some("https"));
        let connector = connector.map_err(|error| invalid(error.to_string()))?;
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
        self.0.config.is_interested(spec)
    }

    pub fn preempts(&self) -> bool {
        !self.0.config.preempt_verb.is_empty()
    }

    /// Whether it, and not the API server, binds the pod.
    pub fn binds(&self, spec: &PodSpec) -> bool {
        !self.0.config.bind_verb.is_empty() && self.is_interested(spec)
    }

    // ---- questions ----

    pub fn filter_request(&self, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Option<ExtenderRequest> {
        ExtenderRequest::for_nodes(&self.0.config.filter_verb, cluster, pod, nodes)
    }

    pub fn prioritize_request(&self, cluster: &Cluster, pod: &PodInfo, nodes: &[NodeId]) -> Option<ExtenderRequest> {
        ExtenderRequest::for_nodes(&self.0.config.prioritize_verb, cluster, pod, nodes)
    }

    pub fn preempt_request(&self, pod: &PodInfo, candidates: &[Candidate]) -> Option<ExtenderRequest> {
        ExtenderRequest::for_victims(&self.0.config.preempt_verb, pod, candidates)
    }

    /// Sends a request and reads the response, in the time the extender has for it.
    pub async fn send(&self, request: Option<ExtenderRequest>) -> ExtenderResponse {
        let request = request?;
        let whole_nodes = !self.0.config.node_cache_capable;
        let body = match request.body(&self.0.api, whole_nodes).await {
            Ok(body) => body,
            Err(error) => {
                let message = format!("extender {:?}: {error}", self.name());
                return Some(Err(ExtenderError::Request(message)));
            }
        };
        Some(self.post(&request.verb, &body).await)
    }

    // ---- answers ----

    /// Takes those nodes away that the extender did not name. An error is one of the whole attempt.
    pub fn apply_filter(
        &self,
        response: ExtenderResponse,
        cluster: &Cluster,
        feasible: &mut Feasible,
    ) -> Result<(), ExtenderError> {
        let Some(response) = response else { return Ok(()) };
        let read = |value: Value| response::FilterResponse::read(&value, self.0.config.node_cache_capable);
        let filtered = response.and_then(|value| read(value).map_err(|e| self.invalid_response(&e)));
        let kept = filtered.and_then(|filtered| {
            let kept = filtered.kept(cluster, &feasible.nodes, self.name());
            Ok((kept.map_err(|e| ExtenderError::Response(e.to_string()))?, filtered))
        });
        let (kept, filtered) = match kept {
            Ok(done) => done,
            Err(error) if self.0.config.ignorable => {
                tracing::info!(
                    extender = self.name(),
                    err = %error,
                    "skipping extender: it returned an error and is ignorable"
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
    pub fn add_scores(&self, response: ExtenderResponse, cluster: &Cluster, nodes: &[NodeId], scores: &mut [i64]) {
        let Some(response) = response else { return };
        match response.and_then(|value| response::scores(&value).map_err(|e| self.invalid_response(&e))) {
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
                %error,
                "Failed to run extender's priority function. No score given by this extender."
            ),
        }
    }

    /// The candidates as the extender would have them: none if it fails and must not.
    pub fn apply_preempt(
        &self,
        response: ExtenderResponse,
        cluster: &Cluster,
        candidates: Vec<Candidate>,
    ) -> Vec<Candidate> {
        let Some(response) = response else { return candidates };
        let ignorable = self.0.config.ignorable;
        let read = |value: Value| {
            let victims = response::victims(&value).map_err(|e| self.invalid_response(&e))?;
            let changed = response::candidates(victims, cluster, &candidates, ignorable, self.name());
            changed.map_err(|e| ExtenderError::Response(e.to_string()))
        };
        match response.and_then(read) {
            Ok(changed) => changed,
            Err(error) if ignorable => {
                v!(
                    2,
                    extender = self.name(),
                    err = %error,
                    "skipping extender in preemption: it returned an error and is ignorable"
                );
                candidates
            }
            Err(error) => {
                tracing::warn!(
                    extender = self.name(),
                    err = %error,
                    "failed to run extender's preemption"
                );
                vec![]
            }
        }
    }

    /// Has the extender bind the pod; if that fails and the extender may fail, the API server binds it instead. A failure
    /// comes as `Error::Invalid` with the extender's words, whatever it is: only the message matters, as the attempt is
    /// over.
    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), Error> {
        let args = json!({
            "PodName": &*pod.key.name, "PodNamespace": &*pod.key.namespace, "PodUID": &*pod.uid, "Node": node,
        });
        let body = serde_json::to_vec(&args).expect("names can be written as JSON");
        let response = self.post(&self.0.config.bind_verb, &body).await;
        let refused =
            |value: Value| response::error(&value).map_or(Ok(()), |error| Err(ExtenderError::Response(error)));
        match response.and_then(refused) {
            Ok(()) => Ok(()),
            Err(error) if self.0.config.ignorable => {
                tracing::info!(
                    extender = self.name(),
                    err = %error,
                    "skipping extender in bind: it returned an error and is ignorable"
                );
                self.bind_through_api(pod, node).await
            }
            Err(error) => Err(Error::Invalid(Box::new(Status {
                message: error.to_string(),
                ..Status::default()
            }))),
        }
    }

    async fn bind_through_api(&self, pod: &PodInfo, node: &str) -> Result<(), Error> {
        let at = path::subresource("v1", Some(&pod.key.namespace), "pods", &pod.key.name, "binding");
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": &*pod.key.namespace, "name": &*pod.key.name, "uid": &*pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        self.0.api.create::<IgnoredAny>(&at, &body).await.map(drop)
    }

    // ---- HTTP ----

    async fn post(&self, verb: &str, body: &[u8]) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.name().trim_end_matches('/'));
        let limit = self.0.config.http_timeout;
        match tokio::time::timeout(limit, self.exchange(verb, &url, body)).await {
            Ok(response) => response,
            Err(_) => Err(ExtenderError::Request(format!(
                "Post {url:?}: no response within {limit:?}"
            ))),
        }
    }

    async fn exchange(&self, verb: &str, url: &str, body: &[u8]) -> Result<Value, ExtenderError> {
        let failed = |e: &dyn std::error::Error| ExtenderError::Request(format!("Post {url:?}: {}", chain(e)));
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::copy_from_slice(body)))
            .map_err(|e| failed(&e))?;
        let response = self.0.client.request(request).await.map_err(|e| failed(&e))?;
        let code = response.status().as_u16();
        if code != 200 {
            let message = format!("failed {verb} with extender at URL {url}, code {code}");
            return Err(ExtenderError::Request(message));
        }
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX);
        let bytes = body.collect().await.map_err(|e| failed(&*e))?.to_bytes();
        let invalid = |e| ExtenderError::Response(format!("the response of {url} is not valid JSON: {e}"));
        serde_json::from_slice(&bytes).map_err(invalid)
    }

    fn invalid_response(&self, why: &response::ResponseError) -> ExtenderError {
        ExtenderError::Response(format!("extender {:?}: {why}", self.name()))
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
