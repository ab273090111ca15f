//! Mirror pods: static pods as the API server shows them.
// Upstream: pkg/kubelet/pod/mirror_client.go, tryReconcileMirrorPods (v1.36)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{Node, Pod};
use orlop_api::types::meta::OwnerReference;
use orlop_base::clock::Shift;
use orlop_base::{Shutdown, v};
use orlop_client::api::{DeleteOptions, Preconditions};
use orlop_client::{Api, Error, Failures, path};
use serde::de::IgnoredAny;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{CONFIG_HASH, CONFIG_MIRROR};

/// Retry period of a mirror pod that could not be created or deleted.
const AGAIN: Duration = Duration::from_secs(10);
/// How long a mirror pod stays away that somebody deleted. `kubectl delete` waits until there is none of that name: it would
/// miss one that is back at once, and wait for ever.
const DELETED_FOR: Duration = Duration::from_secs(1);

/// What there is: static pods, and the pods in the API that mirror some.
#[derive(Clone, Default)]
pub struct StaticPods {
    pub static_pods: Vec<Arc<Pod>>,
    pub mirrors: Vec<Arc<Pod>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Create(Box<Pod>),
    Delete {
        namespace: String,
        name: String,
        uid: String,
        /// Somebody asked for it, and the static pod is there still.
        is_asked_for: bool,
    },
}

impl Step {
    fn full_name(&self) -> (String, String) {
        match self {
            Step::Create(pod) => {
                let metadata = &pod.metadata;
                let word = |text: &Option<String>| text.clone().unwrap_or_default();
                (word(&metadata.namespace), word(&metadata.name))
            }
            Step::Delete { namespace, name, .. } => (namespace.clone(), name.clone()),
        }
    }
}

/// Plans creations and deletions so that exactly the static pods have mirror pods.
pub fn plan(picture: &StaticPods, node: &Node) -> Vec<Step> {
    let full_name = |pod: &Pod| (pod.metadata.namespace.clone(), pod.metadata.name.clone());
    let mut wanted: HashMap<_, &Arc<Pod>> = picture.static_pods.iter().map(|pod| (full_name(pod), pod)).collect();
    let mut steps = Vec::new();
    for mirror in &picture.mirrors {
        let pod = wanted.remove(&full_name(mirror));
        let is_true = pod.is_some_and(|pod| annotation(mirror, CONFIG_MIRROR) == annotation(pod, CONFIG_HASH));
        if is_true && mirror.metadata.deletion_timestamp.is_none() {
            continue;
        }
        // A new one is created once this one is observed to be gone.
        steps.push(Step::Delete {
            namespace: mirror.metadata.namespace.clone().unwrap_or_default(),
            name: mirror.metadata.name.clone().unwrap_or_default(),
            uid: mirror.metadata.uid.clone().unwrap_or_default(),
            is_asked_for: is_true,
        });
    }
    // Without a Node object there is no owner to name.
    if node.metadata.uid.is_some() {
        steps.extend(
            wanted
                .into_values()
                .map(|pod| Step::Create(Box::new(mirror_of(pod, node)))),
        );
    }
    steps
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a String> {
    pod.metadata.annotations.as_ref()?.get(name)
}

fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    let hash = annotation(pod, CONFIG_HASH).cloned().unwrap_or_default();
    let metadata = &mut mirror.metadata;
    metadata
        .annotations
        .get_or_insert_default()
        .insert(CONFIG_MIRROR.into(), hash);
    metadata.uid = None;
    metadata.resource_version = None;
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror.status = None;
    mirror
}

/// Reconciles mirror pods until the shutdown.
pub async fn run(
    api: Api,
    mut pictures: watch::Receiver<StaticPods>,
    mut nodes: watch::Receiver<Arc<Node>>,
    shutdown: Shutdown,
) {
    let keep = async {
        let mut failures = Failures::default();
        // Mirror pods that were deleted a moment ago, and until when they stay away.
        let mut away: HashMap<(String, String), Instant> = HashMap::new();
        loop {
            away.retain(|_, until| *until > Instant::now());
            let node = nodes.borrow_and_update().clone();
            let picture = pictures.borrow_and_update().clone();
            let mut failed = false;
            for step in plan(&picture, &node) {
                let name = step.full_name();
                match step {
                    Step::Create(_) if away.contains_key(&name) => continue,
                    Step::Delete { is_asked_for: true, .. } => {
                        away.insert(name, Instant::now().later(DELETED_FOR));
                    }
                    _ => {}
                }
                if let Err(error) = apply(&api, &step).await {
                    failed = true;
                    if failures.is_news(&error) {
                        tracing::error!(err = error.chain(), "failed to sync mirror pod");
                    }
                }
            }
            if !failed {
                failures.succeeded();
            }
            let pause = match failed {
                true => AGAIN,
                // Nothing to do until something changes; but resync, lest a change was lost.
                false => AGAIN.saturating_mul(6),
            };
            let pause = Instant::now().later(pause);
            let pause = away.values().copied().fold(pause, Instant::min);
            tokio::select! {
                changed = pictures.changed() => if changed.is_err() { return },
                _ = uid_changed(&mut nodes, node.metadata.uid.as_deref()) => {}
                _ = tokio::time::sleep_until(pause) => {}
            }
        }
    };
    tokio::select! {
        _ = keep => {}
        _ = shutdown.wait() => {}
    }
}

/// Node objects change with every heartbeat; only their identity counts here.
async fn uid_changed(nodes: &mut watch::Receiver<Arc<Node>>, known: Option<&str>) {
    if nodes
        .wait_for(|node| node.metadata.uid.as_deref() != known)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

async fn apply(api: &Api, step: &Step) -> Result<(), Error> {
    let done = match step {
        Step::Create(pod) => {
            let at = path::collection("v1", pod.metadata.namespace.as_deref(), "pods");
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            v!(4, pod = name, "creating mirror pod");
            api.create::<IgnoredAny>(&at, pod).await.map(|_| ())
        }
        Step::Delete {
            namespace,
            name,
            uid,
            is_asked_for,
        } => {
            let reason = match is_asked_for {
                true => "it was deleted, and will be created again",
                false => "its static pod is gone or has changed",
            };
            v!(2, pod = format!("{namespace}/{name}"), reason, "deleting mirror pod");
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    ..Preconditions::default()
                }),
                ..DeleteOptions::default()
            };
            api.delete(&path::object("v1", Some(namespace), "pods", name), &options)
                .await
        }
    };
    match done {
        // Done already, or the watch will deliver the current object.
        Err(Error::NotFound(_) | Error::Conflict(_)) if matches!(step, Step::Delete { .. }) => Ok(()),
        Err(Error::AlreadyExists(_)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str, mark: (&str, &str)) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("default".into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.annotations = Some([(mark.0.to_string(), mark.1.to_string())].into());
        Arc::new(pod)
    }

    fn node(uid: Option<&str>) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some("n".into());
        node.metadata.uid = uid.map(str::to_string);
        node
    }

    fn shown(picture: &StaticPods, node: &Node) -> String {
        let mut words: Vec<String> = plan(picture, node)
            .into_iter()
            .map(|step| match step {
                Step::Create(pod) => format!("+{}", pod.metadata.name.unwrap()),
                Step::Delete {
                    name,
                    uid,
                    is_asked_for,
                    ..
                } => format!("-{name}/{uid}{}", if is_asked_for { "!" } else { "" }),
            })
            .collect();
        words.sort();
        words.join(" ")
    }

    #[test]
    fn every_static_pod_has_its_mirror() {
        let a = pod("a", "ha", (CONFIG_HASH, "ha"));
        let b = pod("b", "hb", (CONFIG_HASH, "hb"));
        let mirror = |name: &str, hash: &str| pod(name, &format!("m{name}"), (CONFIG_MIRROR, hash));
        let mut ending = Pod::clone(&mirror("a", "ha"));
        ending.metadata.deletion_timestamp =
            Some(orlop_api::types::meta::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        let cases = [
            (vec![&a, &b], vec![], "+a +b"),
            (vec![&a, &b], vec![mirror("a", "ha"), mirror("b", "old")], "-b/mb"),
            (vec![&a], vec![mirror("a", "ha"), mirror("gone", "x")], "-gone/mgone"),
            (vec![&a], vec![Arc::new(ending)], "-a/ma!"),
            (vec![&a], vec![mirror("a", "ha")], ""),
        ];
        for (pods, mirrors, expected) in cases {
            let picture = StaticPods {
                static_pods: pods.into_iter().cloned().collect(),
                mirrors,
            };
            assert_eq!(shown(&picture, &node(Some("u"))), expected);
        }
        let picture = StaticPods {
            static_pods: vec![a.clone()],
            mirrors: vec![mirror("x", "x")],
        };
        assert_eq!(shown(&picture, &node(None)), "-x/mx");
        let made = mirror_of(&a, &node(Some("u")));
        let owner = &made.metadata.owner_references.unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
            ("Node", "u", Some(true))
        );
        assert_eq!(made.metadata.annotations.unwrap()[CONFIG_MIRROR], "ha");
        assert_eq!(made.metadata.uid, None);
    }
}
