//! The kubelets of simulated nodes, as the API server of the same process sees them: what nodes and pods use, logs.
//!
//! They have no ports and no certificates: a connection is a pipe, and a thousand of them cost next to nothing. Commands and
//! forwarded ports are refused, since nothing runs that could take them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use orlop_api::metrics::Usage;
use orlop_api::types::core::Pod;
use orlop_base::Clock;
use orlop_base::clock::rfc3339;
use orlop_client::{Api, Error, path};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};

use super::Options;
use super::behaviour::{Fault, LOG, annotation};
use super::nodes::NodeCache;
use super::pods::{PodNow, Question};
use crate::pod::policy;
use crate::server::{HttpResponse, PROMETHEUS, Query, answer, container_of_log, json_answer, segments, text};
use crate::stats::metrics;
use crate::stats::summary::{ContainerStats, Cpu, Memory, NodeStats, PodRef, PodStats, Summary};

/// Bytes on their way in either direction.
const PIPE_BYTES: usize = 16 << 10;
/// What a node uses besides its pods.
const OWN_USAGE: Usage = Usage {
    cpu_nano_cores: 100_000_000,
    memory_bytes: 512 << 20,
};

/// Cheap to clone.
#[derive(Clone)]
pub struct Kubelets {
    shared: Arc<Shared>,
}

struct Shared {
    api: Api,
    options: Options,
    clock: Clock,
    started: Timestamp,
    seen: NodeCache,
    pods: mpsc::Sender<Question>,
}

impl Kubelets {
    pub(super) fn new(
        api: Api,
        options: Options,
        clock: Clock,
        seen: NodeCache,
        pods: mpsc::Sender<Question>,
    ) -> Kubelets {
        Kubelets {
            shared: Arc::new(Shared {
                api,
                options,
                started: clock.now(),
                clock,
                seen,
                pods,
            }),
        }
    }

    /// A connection to the kubelet of that node, if it is one of these. Who has it may do everything.
    pub fn dial(&self, node: &str) -> Option<DuplexStream> {
        let node = self.shared.options.nodes.number(node)?;
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(shared.answer(node, &request).await) }
            });
            let builder = auto::Builder::new(TokioExecutor::new()).http1_only();
            if let Err(error) = builder.serve_connection(TokioIo::new(theirs), service).await {
                tracing::debug!(err = %error, "lost a connection to a simulated node");
            }
        });
        Some(ours)
    }
}

impl Shared {
    async fn answer<B>(&self, node: usize, request: &Request<B>) -> HttpResponse {
        let name = self.options.nodes.name(node);
        if self.seen.fault(node) == Some(Fault::Silent) {
            return text(503, format!("{name} is set not to respond (orlop.io/fault)"));
        }
        let parts = segments(request.uri().path());
        let words: Vec<&str> = parts.iter().map(String::as_str).collect();
        let query = Query::parse(request.uri().query().unwrap_or_default());
        match words.as_slice() {
            // Without a colon: kubectl takes a text that has one for an empty status.
            ["exec" | "attach" | "portForward" | "run", ..] => text(
                501,
                format!("{name} is a simulated node, and its containers run nothing that could answer"),
            ),
            _ if *request.method() != Method::GET => text(405, "405: Method Not Allowed"),
            ["healthz" | "livez" | "readyz", ..] => text(200, "ok"),
            ["stats"] | ["stats", "summary"] => json_answer(&self.summary(node).await),
            ["metrics", "resource"] => answer(200, PROMETHEUS, metrics::resource(&self.summary(node).await)),
            ["containerLogs", namespace, pod, container] => self.log(name, namespace, pod, container, &query).await,
            _ => text(404, "404 page not found"),
        }
    }

    async fn summary(&self, node: usize) -> Summary {
        let (sender, receiver) = oneshot::channel();
        // Without an answer the fleet is about to stop, and nothing runs any more.
        let pods = match self.pods.send(Question { node, answer: sender }).await {
            Ok(()) => receiver.await.unwrap_or_default(),
            Err(_) => vec![],
        };
        summary(self.options.nodes.name(node), self.started, pods, self.clock.now())
    }

    async fn log(&self, node: &str, namespace: &str, pod: &str, container: &str, query: &Query) -> HttpResponse {
        let found: Pod = match self.api.get(&path::object("v1", Some(namespace), "pods", pod)).await {
            Ok(found) => found,
            Err(Error::NotFound(_)) => return text(404, format!("pod {pod:?} does not exist")),
            Err(error) => return text(500, error.to_string()),
        };
        let here = found.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        if !here || policy::container_named(&found, container).is_none() {
            return text(404, format!("container {container:?} not found in pod {pod:?}"));
        }
        if let Err(error) = container_of_log(&found, container, query.flag("previous")) {
            return text(400, error.to_string());
        }
        let annotations = found.metadata.annotations.unwrap_or_default();
        let written = annotation(&annotations, LOG, container).unwrap_or_default();
        text(200, tail(written, query))
    }
}

/// The last of the lines, as many and as long as asked for.
fn tail(log: &str, query: &Query) -> String {
    let number = |name: &str| query.first(name).and_then(|text| text.parse::<usize>().ok());
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(number("tailLines").unwrap_or(usize::MAX));
    let mut text: String = lines[from..].iter().flat_map(|line| [line, "\n"]).collect();
    if let Some(limit) = number("limitBytes") {
        text.truncate(
            (0..=limit.min(text.len()))
                .rev()
                .find(|n| text.is_char_boundary(*n))
                .unwrap_or(0),
        );
    }
    text
}

fn summary(node: &str, started: Timestamp, pods: Vec<PodNow>, now: Timestamp) -> Summary {
    let pods: Vec<PodStats> = pods.into_iter().map(|pod| of_pod(pod, now)).collect();
    let mut total = OWN_USAGE;
    for pod in &pods {
        total.cpu_nano_cores += pod.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores).unwrap_or(0);
        total.memory_bytes += pod.memory.as_ref().and_then(|m| m.working_set_bytes).unwrap_or(0);
    }
    let node = NodeStats {
        node_name: node.to_string(),
        start_time: rfc3339(started),
        cpu: Some(cpu(total, started, now)),
        memory: Some(memory(total, now)),
        ..NodeStats::default()
    };
    Summary { node, pods }
}

fn of_pod(pod: PodNow, now: Timestamp) -> PodStats {
    let mut total = Usage::default();
    let container = |(((name, image), since), usage): ((&(String, String), Timestamp), &Usage)| {
        total.cpu_nano_cores += usage.cpu_nano_cores;
        total.memory_bytes += usage.memory_bytes;
        ContainerStats {
            name: name.clone(),
            start_time: rfc3339(since),
            cpu: Some(cpu(*usage, since, now)),
            memory: Some(memory(*usage, now)),
            image: image.clone(),
            started_seconds: since.as_second() as f64,
            ..ContainerStats::default()
        }
    };
    let shape = &pod.shape;
    // Sidecars run on while containers start again.
    let sidecars = shape.sidecars().map(|c| (c, pod.started));
    let running = sidecars.chain(shape.containers.iter().map(|c| (c, pod.since)));
    let containers = running.zip(&shape.usage).map(container).collect();
    PodStats {
        pod_ref: PodRef {
            name: pod.name.to_string(),
            namespace: pod.namespace.to_string(),
            uid: pod.uid.to_string(),
        },
        start_time: rfc3339(pod.started),
        containers,
        cpu: Some(cpu(total, pod.since, now)),
        memory: Some(memory(total, now)),
        ..PodStats::default()
    }
}

fn cpu(usage: Usage, since: Timestamp, now: Timestamp) -> Cpu {
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let used = u128::from(usage.cpu_nano_cores) * passed.as_millis() / 1000;
    Cpu {
        time: rfc3339(now),
        usage_nano_cores: Some(usage.cpu_nano_cores),
        usage_core_nano_seconds: u64::try_from(used).ok(),
        ..Cpu::default()
    }
}

fn memory(usage: Usage, now: Timestamp) -> Memory {
    let bytes = Some(usage.memory_bytes);
    Memory {
        time: rfc3339(now),
        usage_bytes: bytes,
        working_set_bytes: bytes,
        rss_bytes: bytes,
        ..Memory::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::life::InitContainer;
    use super::super::pods::Shape;
    use super::*;

    #[test]
    fn the_end_of_a_log() {
        let of = |query: &str| tail("one\ntwo\nthrée", &Query::parse(query));
        assert_eq!(of(""), "one\ntwo\nthrée\n");
        assert_eq!(of("tailLines=1"), "thrée\n");
        assert_eq!(of("tailLines=0"), "");
        assert_eq!(of("tailLines=9&limitBytes=5"), "one\nt");
        assert_eq!(of("tailLines=1&limitBytes=4"), "thr", "never half a character");
        assert_eq!(tail("", &Query::default()), "");
    }

    #[test]
    fn a_node_uses_what_its_pods_use_and_a_little_more() {
        let usage = |cpu_nano_cores, memory_bytes| Usage {
            cpu_nano_cores,
            memory_bytes,
        };
        let named = |name: &str| (name.to_string(), "image".to_string());
        let at = |second| Timestamp::from_second(second).unwrap();
        let (since, now) = (at(0), at(10));
        let pod = PodNow {
            uid: "u".into(),
            namespace: "d".into(),
            name: "p".into(),
            shape: Arc::new(Shape {
                init_containers: vec![InitContainer {
                    container: named("side"),
                    sidecar: true,
                }],
                containers: vec![named("a"), named("b")],
                usage: vec![usage(0, 2), usage(500, 7), usage(1_000, 1)],
                ..Shape::default()
            }),
            started: at(-5),
            since,
        };
        let found = summary("n", since, vec![pod], now);
        let pod = &found.pods[0];
        let cpu = pod.cpu.as_ref().unwrap();
        assert_eq!(
            (cpu.usage_nano_cores, cpu.usage_core_nano_seconds),
            (Some(1_500), Some(15_000))
        );
        assert_eq!(pod.containers[2].memory.as_ref().unwrap().working_set_bytes, Some(1));
        let started = |n: usize| (pod.containers[n].name.as_str(), pod.containers[n].started_seconds);
        assert_eq!((started(0), started(1)), (("side", -5.0), ("a", 0.0)));
        let node = (found.node.cpu.unwrap(), found.node.memory.unwrap());
        assert_eq!(node.0.usage_nano_cores, Some(OWN_USAGE.cpu_nano_cores + 1_500));
        assert_eq!(node.1.working_set_bytes, Some(OWN_USAGE.memory_bytes + 10));
    }
}
