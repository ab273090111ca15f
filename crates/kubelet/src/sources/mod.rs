//! The sources of this node's pods: API server, directory, URL. They are merged into one stream of updates.
//!
//! Static pods (of a directory or a URL) need no API server. Where there is one, each is represented by a mirror pod
//! ([`mirror`]), which is recreated when it is deleted. Whether a pod can run here is decided by [`admission`].

pub mod admission;
mod desired;
mod files;
pub mod manifest;
pub mod mirror;
pub mod preemption;
mod url;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::types::core::{Node, Pod};
use orlop_base::clock::Shift;
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, Delta, Selection, path};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::desired::Desired;
use self::files::Folder;
use self::mirror::StaticPods;
use crate::config::Config;
use crate::hosted::HostedPods;

pub use desired::is_mirror;

/// Marks on static pods and their mirrors.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Updates that may wait for the kubelet.
const QUEUE: usize = 256;
/// How often the directory is scanned; all of its files are read every `fileCheckFrequency`.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Api,
    File,
    Url,
    /// This process: see [`crate::hosted`].
    Process,
}

impl Origin {
    pub fn word(self) -> &'static str {
        match self {
            Origin::Api => "api",
            Origin::File => "file",
            Origin::Url => "http",
            Origin::Process => "process",
        }
    }
}

/// An update for the sync loop.
#[derive(Clone, Debug, PartialEq)]
pub enum PodUpdate {
    /// A pod that is new or changed, or was given a deletion timestamp.
    Set(Arc<Pod>),
    /// Its source no longer has it: it is terminated and cleaned up.
    Removed(Arc<Pod>),
    /// Every source has delivered its whole state: pods that run and are in none of them are orphans. Sent once.
    Synced,
}

pub struct Settings {
    pub api: Option<Api>,
    pub node_name: String,
    /// The Node object, the owner of mirror pods.
    pub nodes: watch::Receiver<Arc<Node>>,
    pub config: Arc<Config>,
    pub hosted: HostedPods,
    pub clock: Clock,
    pub shutdown: Shutdown,
}

/// Running sources.
pub struct Sources {
    /// Ends at the shutdown.
    pub updates: mpsc::Receiver<PodUpdate>,
    pub mirrors: Mirrors,
}

/// Finds the mirror pod of a static pod. Cheap to clone.
#[derive(Clone)]
pub struct Mirrors(watch::Receiver<StaticPods>);

impl Mirrors {
    /// The pod in the API that shows the static pod of this uid, if there is one.
    pub fn of(&self, uid: &str) -> Option<Arc<Pod>> {
        let picture = self.0.borrow();
        let hash = |pod: &Pod, name: &str| pod.metadata.annotations.as_ref()?.get(name).cloned();
        let pod = picture
            .static_pods
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid))?;
        let name = (&pod.metadata.namespace, &pod.metadata.name);
        let wanted = hash(pod, CONFIG_HASH);
        let mut mirrors = picture.mirrors.iter();
        let found = mirrors.find(|mirror| (&mirror.metadata.namespace, &mirror.metadata.name) == name)?;
        (hash(found, CONFIG_MIRROR) == wanted).then(|| found.clone())
    }

    /// The static pods that have mirror pods, by uid, with those.
    pub fn all(&self) -> Vec<(String, Arc<Pod>)> {
        let uids: Vec<String> = {
            let picture = self.0.borrow();
            picture
                .static_pods
                .iter()
                .filter_map(|pod| pod.metadata.uid.clone())
                .collect()
        };
        let found = uids.into_iter().filter_map(|uid| Some((uid.clone(), self.of(&uid)?)));
        found.collect()
    }

    /// Waits for mirror pods to change, and returns the static pods whose mirror pod is another one now. `known` is for its
    /// own use between calls. None when there is nothing more to come.
    pub async fn changed(&mut self, known: &mut HashMap<String, String>) -> Option<Vec<String>> {
        self.0.changed().await.ok()?;
        let uids: Vec<String> = {
            let picture = self.0.borrow_and_update();
            picture
                .static_pods
                .iter()
                .filter_map(|pod| pod.metadata.uid.clone())
                .collect()
        };
        let mut now = HashMap::new();
        for uid in uids {
            if let Some(mirror) = self.of(&uid).and_then(|pod| pod.metadata.uid.clone()) {
                now.insert(uid, mirror);
            }
        }
        let news = now.iter().filter(|(uid, mirror)| known.get(*uid) != Some(mirror));
        let news = news.map(|(uid, _)| uid.clone()).collect();
        *known = now;
        Some(news)
    }
}

/// Starts all sources.
pub fn start(settings: Settings) -> Sources {
    let (sender, updates) = mpsc::channel(QUEUE);
    let (picture, pictures) = watch::channel(StaticPods::default());
    orlop_base::spawn(async move {
        let shutdown = settings.shutdown.clone();
        tokio::select! {
            _ = run(settings, sender, picture) => {}
            _ = shutdown.wait() => {}
        }
    });
    Sources {
        updates,
        mirrors: Mirrors(pictures),
    }
}

/// All static pods of an origin.
type Pods = (Origin, Vec<Arc<Pod>>);

async fn run(settings: Settings, sink: mpsc::Sender<PodUpdate>, picture: watch::Sender<StaticPods>) {
    let (pods, mut static_pods) = mpsc::channel::<Pods>(4);
    let mut awaited = Vec::new();
    let config = &settings.config;
    if let Some(folder) = config.static_pod_path.clone().filter(|p| !p.as_os_str().is_empty()) {
        awaited.push(Origin::File);
        let folder = Folder::new(folder, &settings.node_name);
        let every = config.file_check_frequency;
        orlop_base::spawn(look_at_folder(folder, every, settings.clock.clone(), pods.clone()));
    }
    if !config.static_pod_url.is_empty() {
        awaited.push(Origin::Url);
        let (node, clock) = (settings.node_name.clone(), settings.clock.clone());
        orlop_base::spawn(ask_address(settings.config.clone(), node, clock, pods.clone()));
    }
    let (deltas, mut from_api) = mpsc::channel(QUEUE);
    if let Some(api) = &settings.api {
        awaited.push(Origin::Api);
        let selection = Selection::all(path::collection("v1", None, "pods"))
            .with_fields(&format!("spec.nodeName={}", settings.node_name));
        let shutdown = settings.shutdown.clone();
        orlop_base::spawn(orlop_client::watch::<Pod>(
            api.clone(),
            selection,
            deltas.clone(),
            shutdown.clone(),
        ));
        orlop_base::spawn(mirror::run(
            api.clone(),
            picture.subscribe(),
            settings.nodes.clone(),
            shutdown,
        ));
    }
    let mut hosted = settings.hosted.clone();
    let mut desired = Desired::new(awaited);
    desired.set_hosted(hosted.static_pods());
    let mut api_told = false;
    loop {
        let updates = tokio::select! {
            delta = from_api.recv() => {
                let Some(delta) = delta else { return };
                api_told |= matches!(delta, Delta::Reset(_));
                desired.observe(delta)
            }
            pods = static_pods.recv() => {
                let Some((origin, pods)) = pods else { return };
                desired.replace(origin, pods)
            }
            () = hosted.changed() => {
                desired.set_hosted(hosted.static_pods());
                vec![]
            }
            // The kubelet is gone.
            _ = sink.closed() => return,
        };
        // Before the first list from the API server, mirror pods can't be compared.
        if api_told {
            show(&picture, &desired);
        }
        for update in updates {
            if sink.send(update).await.is_err() {
                return;
            }
        }
    }
}

fn show(picture: &watch::Sender<StaticPods>, desired: &Desired) {
    let new = StaticPods {
        static_pods: desired.static_pods().cloned().collect(),
        mirrors: desired.mirrors().cloned().collect(),
    };
    let key = |pods: &[Arc<Pod>]| {
        let mut all: Vec<_> = pods
            .iter()
            .map(|pod| {
                (
                    pod.metadata.uid.clone(),
                    pod.metadata.deletion_timestamp.clone().map(|t| t.0),
                )
            })
            .collect();
        all.sort();
        all
    };
    picture.send_if_modified(|old| {
        let same = key(&old.static_pods) == key(&new.static_pods) && key(&old.mirrors) == key(&new.mirrors);
        *old = new;
        !same
    });
}

async fn look_at_folder(mut folder: Folder, every: Duration, clock: Clock, sink: mpsc::Sender<Pods>) {
    let mut thorough_at = Instant::now().later(every);
    let mut turns = tokio::time::interval(LOOK.min(every));
    loop {
        turns.tick().await;
        let thorough = Instant::now() >= thorough_at;
        if thorough {
            thorough_at = Instant::now().later(every);
        }
        let now: Timestamp = clock.now();
        let looked = crate::blocking::run(move || {
            let pods = folder.look(thorough, now);
            (folder, pods)
        });
        let Ok((same_folder, pods)) = looked.await else {
            return;
        };
        folder = same_folder;
        if let Some(pods) = pods
            && sink.send((Origin::File, pods)).await.is_err()
        {
            return;
        }
    }
}

async fn ask_address(config: Arc<Config>, node: String, clock: Clock, sink: mpsc::Sender<Pods>) {
    let address = &config.static_pod_url;
    let mut last = None;
    let mut failures = 0u32;
    let mut turns = tokio::time::interval(config.http_check_frequency);
    loop {
        turns.tick().await;
        let asked = url::fetch(address, &config.static_pod_url_header).await;
        let place = manifest::ManifestSource {
            origin: Origin::Url,
            name: address,
            node: &node,
        };
        let pods = match asked {
            Ok(bytes) if last.as_ref() == Some(&bytes) => continue,
            Ok(bytes) => {
                let pods = manifest::pods(&bytes, &place, clock.now());
                last = Some(bytes);
                pods
            }
            Err(error) => Err(error),
        };
        match pods {
            Ok(pods) => {
                failures = 0;
                let pods = pods.into_iter().map(Arc::new).collect();
                if sink.send((Origin::Url, pods)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                // Do not repeat the same error every 20 seconds.
                if failures.is_power_of_two() {
                    tracing::error!(url = %address, failures, err = %error, "failed to read static pods from URL");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_mirror_is_noticed_once() {
        let pod = |uid: &str, mark: &str| -> Arc<Pod> {
            let mut pod = Pod::default();
            pod.metadata.name = Some("p".into());
            pod.metadata.uid = Some(uid.into());
            pod.metadata.annotations = Some([(mark.to_string(), "h".to_string())].into());
            Arc::new(pod)
        };
        let (sender, receiver) = watch::channel(StaticPods::default());
        let mut mirrors = Mirrors(receiver);
        let mut known = HashMap::new();
        let mut show = async |mirror: Option<&str>| {
            sender.send_replace(StaticPods {
                static_pods: vec![pod("s", CONFIG_HASH)],
                mirrors: mirror.map(|uid| pod(uid, CONFIG_MIRROR)).into_iter().collect(),
            });
            mirrors.changed(&mut known).await.unwrap().len()
        };
        assert_eq!(show(None).await, 0);
        assert_eq!(show(Some("m1")).await, 1);
        assert_eq!(show(Some("m1")).await, 0);
        assert_eq!(show(Some("m2")).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_alone_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_string_lossy().into_owned();
        let write = |image: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, image: {image}}}]}}"
            );
            std::fs::write(dir.path().join("a.yaml"), text).unwrap();
        };
        write("one");
        let config = crate::config::parse(None, &[("staticPodPath", path.into())]).unwrap();
        let shutdown = Shutdown::default();
        let Sources { mut updates, mirrors } = start(Settings {
            api: None,
            node_name: "n".into(),
            nodes: watch::channel(Arc::default()).1,
            config: Arc::new(config),
            hosted: HostedPods::none(),
            clock: Clock::System,
            shutdown: shutdown.clone(),
        });
        let name = |update: &PodUpdate| match update {
            PodUpdate::Set(pod) => format!("+{}", pod.metadata.name.clone().unwrap()),
            PodUpdate::Removed(pod) => format!("-{}", pod.metadata.name.clone().unwrap()),
            PodUpdate::Synced => "synced".into(),
        };
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(name(&updates.recv().await.unwrap()));
        }
        write("two");
        for _ in 0..2 {
            seen.push(name(&updates.recv().await.unwrap()));
        }
        std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
        seen.push(name(&updates.recv().await.unwrap()));
        assert_eq!(seen, ["+a-n", "synced", "-a-n", "+a-n", "-a-n"]);
        assert!(mirrors.of("any").is_none());
        shutdown.trigger();
        assert_eq!(updates.recv().await, None);
    }
}
