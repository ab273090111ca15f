//! When pods were created and when the API showed them bound.
//!
//! One watch of the bound pods of all namespaces serves a whole workload. The name of a pod (`p<set>-<number>`) says
//! which entry it is, so an event costs a look at two strings and one store.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use orlop_base::clock::monotonic;
use serde::Deserialize;

use crate::bench::client::Http2;

/// Only pods with a node: half of the events, and nothing is lost, as a pod joins the selection by being bound.
const BOUND_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName!%3D";

/// The pods of one operation. Moments are nanoseconds since the run began; 0 means not yet.
pub(super) struct PodSet {
    created: Vec<AtomicU64>,
    bound: Vec<AtomicU64>,
    bound_count: AtomicUsize,
}

impl PodSet {
    fn new(count: usize) -> PodSet {
        let zeros = || (0..count).map(|_| AtomicU64::new(0)).collect();
        PodSet {
            created: zeros(),
            bound: zeros(),
            bound_count: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bound.len()
    }

    pub(super) fn bound_count(&self) -> usize {
        self.bound_count.load(Ordering::Relaxed)
    }

    pub(super) fn first_pending(&self) -> Option<usize> {
        self.bound.iter().position(|at| at.load(Ordering::Relaxed) == 0)
    }

    /// Created and bound of each pod that is bound.
    pub(super) fn moments(&self) -> Vec<(Duration, Duration)> {
        let pairs = self.created.iter().zip(&self.bound);
        let loaded = pairs.map(|(c, b)| (c.load(Ordering::Relaxed), b.load(Ordering::Relaxed)));
        loaded
            .filter(|(_, bound)| *bound > 0)
            .map(|(c, b)| (Duration::from_nanos(c), Duration::from_nanos(b)))
            .collect()
    }
}

pub(super) struct Bindings {
    began: Instant,
    /// Namespaces of this run begin so.
    prefix: String,
    /// Only grows. No code that can panic runs under the lock.
    sets: RwLock<Vec<Arc<PodSet>>>,
}

#[derive(Default, Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: Pod<'a>,
}

#[derive(Default, Deserialize)]
struct Pod<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(default)]
    name: &'a str,
    #[serde(default)]
    namespace: &'a str,
    #[serde(default)]
    resource_version: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(default)]
    node_name: &'a str,
}

#[derive(Deserialize)]
struct PodList<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    items: Vec<Pod<'a>>,
}

impl Bindings {
    pub(super) fn new(run: &str) -> Bindings {
        Bindings {
            began: monotonic(),
            prefix: format!("{run}-"),
            sets: Default::default(),
        }
    }

    /// Since the run began, never zero.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed().max(Duration::from_nanos(1))
    }

    /// A set of pods to come, and the number that goes into their names.
    pub(super) fn add(&self, count: usize) -> (usize, Arc<PodSet>) {
        let set = Arc::new(PodSet::new(count));
        let mut sets = self.sets.write().expect("nothing panics under the lock");
        sets.push(set.clone());
        (sets.len() - 1, set)
    }

    pub(super) fn pod_name(set: usize, index: usize) -> String {
        format!("p{set}-{index}")
    }

    pub(super) fn created(&self, set: &PodSet, index: usize) {
        set.created[index].store(self.now().as_nanos() as u64, Ordering::Relaxed);
    }

    fn observe_pod(&self, pod: &Pod) {
        if pod.spec.node_name.is_empty() || !pod.metadata.namespace.starts_with(&self.prefix) {
            return;
        }
        let Some((set, index)) = parse_name(pod.metadata.name) else {
            return;
        };
        let sets = self.sets.read().expect("nothing panics under the lock");
        let Some(set) = sets.get(set) else { return };
        let Some(bound) = set.bound.get(index) else { return };
        let now = self.now().as_nanos() as u64;
        if bound
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            set.bound_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One line of a watch. False when the watch must begin anew.
    fn observe_event(&self, line: &[u8]) -> anyhow::Result<bool> {
        if line.is_empty() {
            return Ok(true);
        }
        let event: Event = serde_json::from_slice(line).context("failed to decode a watch event")?;
        match event.kind {
            "ERROR" => return Ok(false),
            "DELETED" | "BOOKMARK" => {}
            _ => self.observe_pod(&event.object),
        }
        Ok(true)
    }

    /// Notes all pods bound by now; the revision to watch from.
    pub(super) async fn list(&self, connection: &Http2) -> anyhow::Result<String> {
        let (code, body) = connection.call(Method::GET, BOUND_PODS, Bytes::new()).await?;
        if code != 200 {
            bail!("failed to list pods: {code}: {}", String::from_utf8_lossy(&body));
        }
        let list: PodList = serde_json::from_slice(&body).context("failed to decode the list of pods")?;
        list.items.iter().for_each(|pod| self.observe_pod(pod));
        Ok(list.metadata.resource_version.to_string())
    }

    /// Watches from a revision on, and again from a new list whenever the server ends the watch. Ends with an error only.
    pub(super) async fn follow(&self, connection: Http2, mut revision: String) -> anyhow::Result<()> {
        loop {
            let path = format!("{BOUND_PODS}&watch=true&timeoutSeconds=3600&resourceVersion={revision}");
            let (code, mut body) = connection.send(Method::GET, &path, Bytes::new()).await?;
            if code != 200 && code != 410 {
                bail!("the watch of pods was refused: {code}");
            }
            let mut lines = Lines::default();
            let mut goes_on = code == 200;
            while goes_on {
                let Some(frame) = body.frame().await else { break };
                let frame = frame.context("the watch of pods broke")?;
                let Some(data) = frame.data_ref() else { continue };
                lines.feed(data, |line| {
                    goes_on &= self.observe_event(line)?;
                    Ok(())
                })?;
            }
            revision = self.list(&connection).await?;
        }
    }
}

/// Bytes as they come, out again as lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn feed(&mut self, mut data: &[u8], mut line: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        while let Some(end) = data.iter().position(|b| *b == b'\n') {
            let (head, tail) = (&data[..end], &data[end + 1..]);
            if self.rest.is_empty() {
                line(head)?;
            } else {
                self.rest.extend_from_slice(head);
                line(&self.rest)?;
                self.rest.clear();
            }
            data = tail;
        }
        self.rest.extend_from_slice(data);
        Ok(())
    }
}

/// `p3-17` is pod 17 of set 3.
fn parse_name(name: &str) -> Option<(usize, usize)> {
    let (set, index) = name.strip_prefix('p')?.split_once('-')?;
    Some((set.parse().ok()?, index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_counts_once_when_it_has_a_node() {
        let bindings = Bindings::new("ob1");
        let (number, set) = bindings.add(2);
        assert_eq!(Bindings::pod_name(number, 1), "p0-1");
        bindings.created(&set, 1);
        let event = |kind: &str, namespace: &str, name: &str, node: &str| {
            let line = format!(
                r#"{{"type":"{kind}","object":{{"kind":"Pod","metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{"a":"b\n"}}}},"spec":{{"nodeName":"{node}","containers":[{{"name":"x"}}]}}}}}}"#
            );
            bindings.observe_event(line.as_bytes()).unwrap();
            set.bound_count()
        };
        assert_eq!(event("ADDED", "ob1-measured", "p0-1", ""), 0);
        assert_eq!(event("ADDED", "other", "p0-1", "n"), 0);
        assert_eq!(event("DELETED", "ob1-measured", "p0-1", "n"), 0);
        for stray in ["p0-2", "p9-0", "q0-0", "p0", "p-1"] {
            assert_eq!(event("ADDED", "ob1-measured", stray, "n"), 0, "{stray}");
        }
        assert_eq!(event("MODIFIED", "ob1-measured", "p0-1", "n"), 1);
        assert_eq!(event("MODIFIED", "ob1-measured", "p0-1", "n"), 1);
        assert_eq!(set.first_pending(), Some(0));
        let moments = set.moments();
        assert!(moments.len() == 1 && moments[0].0 <= moments[0].1, "{moments:?}");
        let error = br#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410}}"#;
        assert!(!bindings.observe_event(error).unwrap());
        assert!(bindings.observe_event(b"{").is_err());
    }

    #[test]
    fn lines_come_whole_however_the_bytes_do() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..text.len() {
            let (mut lines, mut seen) = (Lines::default(), vec![]);
            for piece in text.chunks(size) {
                let keep = |line: &[u8]| {
                    seen.push(String::from_utf8_lossy(line).to_string());
                    Ok(())
                };
                lines.feed(piece, keep).unwrap();
            }
            assert_eq!(seen, ["one", "", "two"], "{size}");
            assert_eq!(lines.rest, b"three");
        }
    }
}
