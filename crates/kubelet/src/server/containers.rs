//! Containers by pod name: which one a request refers to, and its log.
// Upstream: pkg/kubelet/kubelet_pods.go validateContainerLogStatus, GetKubeletContainerLogs (v1.36)

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use orlop_api::types::core::{ContainerStatus, Pod};
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages as cri;
use tokio::sync::mpsc;

use super::query::Query;
use super::{BoxError, HttpResponse, Refused, Server, text};
use crate::hosted::{HostedLogSource, HostedPod};
use crate::logs::{self, Source, Streams};
use crate::pod::observed::{CONTAINER_NAME, POD_UID};
use crate::pod::policy;

/// Blocks of a log that may wait for a reader.
const BLOCKS: usize = 4;

impl Server {
    /// The pod of that name; with a uid in the path, only if it is that one.
    pub(super) fn find_pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Arc<Pod>, Refused> {
        let pod = self.pods.pod(namespace, name);
        if self.is_hosted(namespace, name) {
            // Without a colon: kubectl would take `text: text` for a document and show nothing of it.
            let why = "is a component of the process that runs this node and has no container of its own";
            return Err(Refused::new(400, format!("pod {name:?} {why}")));
        }
        let pod = pod.filter(|pod| uid.is_none_or(|uid| policy::uid(pod) == uid));
        pod.ok_or_else(|| Refused::new(404, "pod does not exist"))
    }

    /// A part of this process, and no pod with containers.
    pub(super) fn is_hosted(&self, namespace: &str, name: &str) -> bool {
        self.pods.pod(namespace, name).is_none() && self.hosted.find(namespace, name).is_some()
    }

    /// The running container of that name.
    pub(super) async fn running_container(&self, pod: &Pod, name: &str) -> Result<String, Refused> {
        let filter = cri::ContainerFilter {
            state: Some(cri::ContainerStateValue {
                state: cri::ContainerState::Running as i32,
            }),
            label_selector: labels(&[(POD_UID, policy::uid(pod)), (CONTAINER_NAME, name)]),
            ..cri::ContainerFilter::default()
        };
        let found = self.runtime.list_containers(filter).await;
        let found = found.map_err(|e| Refused::new(500, e.to_string()))?;
        // Not all runtimes are exact about filters.
        let wanted = |c: &&cri::Container| {
            c.state == cri::ContainerState::Running as i32
                && c.labels.get(CONTAINER_NAME).map(String::as_str) == Some(name)
                && c.labels.get(POD_UID).map(String::as_str) == Some(policy::uid(pod))
        };
        let newest = found.iter().filter(wanted).max_by_key(|c| c.created_at);
        newest
            .map(|c| c.id.clone())
            .ok_or_else(|| Refused::new(500, format!("container not found ({name:?})")))
    }

    /// The pod's sandbox that is up.
    pub(super) async fn ready_sandbox(&self, pod: &Pod) -> Result<String, Refused> {
        let filter = cri::PodSandboxFilter {
            label_selector: labels(&[(POD_UID, policy::uid(pod))]),
            ..cri::PodSandboxFilter::default()
        };
        let found = self.runtime.list_pod_sandboxes(filter).await;
        let found = found.map_err(|e| Refused::new(500, e.to_string()))?;
        let ready = |s: &&cri::PodSandbox| {
            s.state == cri::PodSandboxState::Ready as i32
                && s.labels.get(POD_UID).map(String::as_str) == Some(policy::uid(pod))
        };
        let newest = found.iter().filter(ready).max_by_key(|s| s.created_at);
        newest.map(|s| s.id.clone()).ok_or_else(|| {
            let name = format!("{}_{}", policy::name(pod), policy::namespace(pod));
            Refused::new(500, format!("failed to find sandbox for pod {name:?}"))
        })
    }

    /// Pods with a running container, by the runtime's list.
    pub(super) async fn running_pods(&self) -> HttpResponse {
        let containers = match self.runtime.list_containers(cri::ContainerFilter::default()).await {
            Ok(containers) => containers,
            Err(error) => return text(500, error.to_string()),
        };
        let running: Vec<&str> = containers
            .iter()
            .filter(|c| c.state == cri::ContainerState::Running as i32)
            .filter_map(|c| c.labels.get(POD_UID).map(String::as_str))
            .collect();
        let pods = self.pods.pods().into_iter();
        let pods = pods.filter(|pod| running.contains(&policy::uid(pod))).collect();
        self.show_pods(pods)
    }

    pub(super) async fn container_logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        query: &Query,
    ) -> HttpResponse {
        let now = self.clock.now();
        let (wanted, previous) = match log_query(query, now) {
            Ok(read) => read,
            Err(error) => return text(422, error.to_string()),
        };
        let Some(found) = self.pods.pod(namespace, pod) else {
            return match self.hosted.find(namespace, pod) {
                Some(hosted) => self.hosted_log(&hosted, container, wanted, previous).await,
                None => text(404, format!("pod {pod:?} does not exist")),
            };
        };
        if policy::container_named(&found, container).is_none()
            && !policy::ephemeral_containers(&found).iter().any(|c| c.name == container)
        {
            return text(404, format!("container {container:?} not found in pod {pod:?}"));
        }
        let id = match container_of_log(&found, container, previous) {
            Ok(id) => id,
            Err(error) => return text(400, error.to_string()),
        };
        let status = match self.runtime.container_status(&id).await {
            Ok(status) => status,
            Err(error) => return text(400, format!("unable to retrieve container logs for {id}: {error}")),
        };
        if status.log_path.is_empty() {
            return text(400, format!("container {container:?} in pod {pod:?} has no log"));
        }
        let source = RunningContainer {
            runtime: self.runtime.clone(),
            id,
        };
        stream_log(status.log_path.into(), wanted, source).await
    }

    async fn hosted_log(
        &self,
        hosted: &HostedPod,
        container: &str,
        query: logs::Query,
        previous: bool,
    ) -> HttpResponse {
        let (namespace, name) = (policy::namespace(&hosted.pod), policy::name(&hosted.pod));
        if policy::container_named(&hosted.pod, container).is_none() {
            return text(404, format!("container {container:?} not found in pod {name:?}"));
        }
        if !previous {
            let source = HostedLogSource {
                pods: self.hosted.clone(),
                namespace: namespace.to_string(),
                name: name.to_string(),
            };
            return stream_log(hosted.log.clone(), query, source).await;
        }
        match tokio::fs::try_exists(&hosted.previous_log).await {
            Ok(true) => stream_log(hosted.previous_log.clone(), query, EndedLog).await,
            _ => {
                let named = format!("container {container:?} in pod {name:?}");
                text(400, LogError::NoPrevious(named).to_string())
            }
        }
    }
}

async fn stream_log(path: PathBuf, query: logs::Query, source: impl Source + 'static) -> HttpResponse {
    // What can't be opened is better said than shown as an empty log.
    if let Err(error) = tokio::fs::metadata(&path).await {
        return text(
            400,
            format!("failed to open log file {:?}: {error}", path.display().to_string()),
        );
    }
    let (sender, receiver) = mpsc::channel::<Bytes>(BLOCKS);
    tokio::spawn(async move {
        if let Err(error) = logs::read(path.clone(), query, &source, sender).await {
            tracing::warn!(path = %path.display(), err = %error, "failed to read container log");
        }
    });
    let frames = futures::stream::unfold(receiver, async |mut receiver| {
        let block = receiver.recv().await?;
        Some((Ok::<_, BoxError>(Frame::data(block)), receiver))
    });
    let mut response = Response::new(StreamBody::new(frames.boxed()).boxed_unsync());
    let plain = http::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

/// A log that nobody writes to any more.
struct EndedLog;

#[async_trait]
impl Source for EndedLog {
    async fn is_running(&self) -> bool {
        false
    }
}

struct RunningContainer {
    runtime: Arc<dyn Runtime>,
    id: String,
}

#[async_trait]
impl Source for RunningContainer {
    async fn is_running(&self) -> bool {
        match self.runtime.container_status(&self.id).await {
            Ok(status) => matches!(
                cri::ContainerState::try_from(status.state),
                Ok(cri::ContainerState::Running | cri::ContainerState::Created)
            ),
            Err(error) if error.is_not_found() => false,
            // The runtime is away for a moment: its containers go on, and so may the log.
            Err(_) => true,
        }
    }
}

fn labels(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

/// What is wrong with a request for logs: the body of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum LogQueryError {
    #[error(r#"{{"message": "Invalid request."}}"#)]
    Invalid,
    #[error(r#"{{"message": "Unable to decode query."}}"#)]
    Undecodable,
}

/// Why a container has no log to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogError {
    #[error("{0} is not available")]
    NotAvailable(String),
    #[error("previous terminated {0} not found")]
    NoPrevious(String),
    #[error("{0} is terminated")]
    Terminated(String),
    #[error("{container} is waiting to start: {reason}")]
    Waiting { container: String, reason: String },
    #[error("{0} is waiting to start - no logs yet")]
    NotStarted(String),
}

/// What is asked for, and whether of the container before.
fn log_query(query: &Query, now: Timestamp) -> Result<(logs::Query, bool), LogQueryError> {
    let number = |name: &str| -> Result<Option<i64>, LogQueryError> {
        match query.first(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| LogQueryError::Undecodable),
        }
    };
    let tail = match query.first("tail") {
        Some("all") => None,
        Some(_) => number("tail")?,
        None => number("tailLines")?,
    };
    let limit = number("limitBytes")?;
    let seconds = number("sinceSeconds")?;
    let time = match query.first("sinceTime").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(text.parse::<Timestamp>().map_err(|_| LogQueryError::Undecodable)?),
    };
    let streams = match query.first("stream") {
        None | Some("" | "All") => Streams::All,
        Some("Stdout") => Streams::Stdout,
        Some("Stderr") => Streams::Stderr,
        Some(_) => return Err(LogQueryError::Invalid),
    };
    let invalid = tail.is_some_and(|n| n < 0)
        || limit.is_some_and(|n| n < 1)
        || seconds.is_some_and(|n| n < 1)
        || (seconds.is_some() && time.is_some())
        || (tail.is_some() && streams != Streams::All);
    if invalid {
        return Err(LogQueryError::Invalid);
    }
    let since = match (seconds, time) {
        (Some(seconds), _) => {
            let back = Duration::from_secs(seconds.unsigned_abs());
            Some(now.checked_sub(back).unwrap_or(Timestamp::MIN))
        }
        (None, time) => time,
    };
    let wanted = logs::Query {
        follow: query.flag("follow"),
        since,
        tail_lines: tail.map(i64::unsigned_abs),
        timestamps: query.flag("timestamps"),
        limit_bytes: limit.map(i64::unsigned_abs),
        streams,
    };
    Ok((wanted, query.flag("previous")))
}

/// The id of the container whose log is requested.
pub(crate) fn container_of_log(pod: &Pod, container: &str, previous: bool) -> Result<String, LogError> {
    let named = format!("container {container:?} in pod {:?}", policy::name(pod));
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|s| {
        let lists = [
            &s.container_statuses,
            &s.init_container_statuses,
            &s.ephemeral_container_statuses,
        ];
        lists.into_iter().flatten().flatten()
    });
    let status: &ContainerStatus = all
        .into_iter()
        .find(|s| s.name == container)
        .ok_or_else(|| LogError::NotAvailable(named.clone()))?;
    let ended = |state: &Option<orlop_api::types::core::ContainerState>| {
        let id = state.as_ref()?.terminated.as_ref()?.container_id.clone()?;
        Some(id).filter(|id| !id.is_empty())
    };
    let before = ended(&status.last_state);
    let id = if previous {
        before.ok_or(LogError::NoPrevious(named))?
    } else {
        let state = status.state.clone().unwrap_or_default();
        match (&state.running, &state.terminated, &state.waiting) {
            (Some(_), ..) => status.container_id.clone().unwrap_or_default(),
            (_, Some(_), _) => ended(&status.state).or(before).ok_or(LogError::Terminated(named))?,
            _ if before.is_some() => before.unwrap_or_default(),
            (.., Some(waiting)) => {
                let reason = match waiting.reason.as_deref().unwrap_or_default() {
                    "ErrImagePull" => "image can't be pulled",
                    "ImagePullBackOff" => "trying and failing to pull image",
                    reason => reason,
                };
                return Err(LogError::Waiting {
                    container: named,
                    reason: reason.to_string(),
                });
            }
            _ => return Err(LogError::NotStarted(named)),
        }
    };
    // `containerd://id`
    Ok(id.rsplit_once("//").map_or(id.clone(), |(_, bare)| bare.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn log_queries() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let read = |text: &str| log_query(&Query::parse(text), now);
        let (query, previous) =
            read("follow=true&tailLines=5&timestamps=1&limitBytes=9&sinceSeconds=60&previous=true").unwrap();
        let expected = logs::Query {
            follow: true,
            since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            tail_lines: Some(5),
            timestamps: true,
            limit_bytes: Some(9),
            streams: Streams::All,
        };
        assert_eq!((query, previous), (expected, true));
        assert_eq!(read("tail=all&stream=Stderr").unwrap().0.streams, Streams::Stderr);
        assert_eq!(
            read("sinceTime=2026-01-01T00:00:00Z")
                .unwrap()
                .0
                .since
                .unwrap()
                .as_second(),
            1767225600
        );
        for wrong in [
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "stream=x",
            "stream=Stdout&tailLines=1",
            "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z",
        ] {
            assert_eq!(read(wrong).unwrap_err(), LogQueryError::Invalid, "{wrong}");
        }
        for wrong in ["tailLines=x", "sinceTime=yesterday"] {
            assert_eq!(read(wrong).unwrap_err(), LogQueryError::Undecodable, "{wrong}");
        }
        let bodies = [LogQueryError::Invalid, LogQueryError::Undecodable].map(|error| error.to_string());
        assert_eq!(
            bodies,
            [
                r#"{"message": "Invalid request."}"#,
                r#"{"message": "Unable to decode query."}"#
            ]
        );
        assert!(read("sinceSeconds=9223372036854775807").unwrap().0.since.is_some());
    }

    #[test]
    fn which_container_a_log_is_of() {
        let pod = |status: Value| -> Pod {
            orlop_api::types::from_value(json!({"metadata": {"name": "p"}, "status": {"containerStatuses": [status]}}))
                .unwrap()
        };
        let status = |state: Value, last: Value| {
            json!({"name": "c", "containerID": "containerd://now", "state": state, "lastState": last,
                   "image": "i", "imageID": "i", "ready": true, "restartCount": 0})
        };
        let running = json!({"running": {}});
        let ended = |id: &str| json!({"terminated": {"containerID": format!("containerd://{id}"), "exitCode": 1}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let cases = [
            (status(running.clone(), json!({})), false, Ok("now")),
            (status(running.clone(), ended("old")), true, Ok("old")),
            (
                status(running, json!({})),
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (status(ended("now"), json!({})), false, Ok("now")),
            (status(waiting("CrashLoopBackOff"), ended("old")), false, Ok("old")),
            (
                status(waiting("ImagePullBackOff"), json!({})),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
            ),
            (
                status(waiting("ContainerCreating"), json!({})),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
        ];
        for (status, previous, expected) in cases {
            let found = container_of_log(&pod(status), "c", previous).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
        let other = container_of_log(&Pod::default(), "c", false);
        assert_eq!(
            other.unwrap_err().to_string(),
            "container \"c\" in pod \"\" is not available"
        );
    }
}
