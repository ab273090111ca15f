//! The desired pods of this node, merged from all sources.

use std::collections::HashMap;
use std::sync::Arc;

use orlop_api::types::core::Pod;
use orlop_client::Delta;

use super::{CONFIG_MIRROR, Origin, PodUpdate};

/// Identity of a pod, whatever its name.
pub(super) type Uid = String;

#[derive(Default)]
pub(super) struct Desired {
    pods: HashMap<Uid, (Origin, Arc<Pod>)>,
    /// Mirror pods, by uid.
    mirrors: HashMap<Uid, Arc<Pod>>,
    /// Static pods that others run: they have mirror pods, and nothing else is done about them here.
    hosted: Vec<Arc<Pod>>,
    awaited: Vec<Origin>,
    is_synced: bool,
}

impl Desired {
    /// Sources that have to be ready before an unknown pod counts as an orphan.
    pub(super) fn new(awaited: Vec<Origin>) -> Desired {
        Desired {
            awaited,
            ..Desired::default()
        }
    }

    pub(super) fn mirrors(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.mirrors.values()
    }

    pub(super) fn set_hosted(&mut self, pods: Vec<Arc<Pod>>) {
        self.hosted = pods;
    }

    /// A name that a manifest uses is not left to a hosted pod: somebody wants that pod.
    pub(super) fn static_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let own = || {
            let all = self.pods.values().filter(|(origin, _)| *origin != Origin::Api);
            all.map(|(_, pod)| pod)
        };
        let full_name = |pod: &Pod| (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        let is_free = move |pod: &&Arc<Pod>| !own().any(|other| full_name(other) == full_name(pod));
        own().chain(self.hosted.iter().filter(is_free))
    }

    /// A change from the API server.
    pub(super) fn observe(&mut self, delta: Delta<Pod>) -> Vec<PodUpdate> {
        let mut updates = match delta {
            Delta::Reset(pods) => {
                let (mirrors, pods): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(is_mirror);
                self.mirrors = mirrors.into_iter().map(|pod| (uid_of(&pod), lean(pod))).collect();
                return self.replace(Origin::Api, pods.into_iter().map(lean).collect());
            }
            Delta::Applied(pod) if is_mirror(&pod) => {
                self.mirrors.insert(uid_of(&pod), lean(pod));
                vec![]
            }
            Delta::Applied(pod) => self.set(Origin::Api, lean(pod)).into_iter().collect(),
            Delta::Deleted(pod) if is_mirror(&pod) => {
                self.mirrors.remove(&uid_of(&pod));
                vec![]
            }
            Delta::Deleted(pod) => self.remove(Origin::Api, &uid_of(&pod)).into_iter().collect(),
            Delta::Bookmark(_) => vec![],
        };
        updates.extend(self.synced());
        updates
    }

    /// All that a source has.
    pub(super) fn replace(&mut self, origin: Origin, pods: Vec<Arc<Pod>>) -> Vec<PodUpdate> {
        let wanted: Vec<Uid> = pods.iter().map(|pod| uid_of(pod)).collect();
        let gone: Vec<Uid> = self
            .pods
            .iter()
            .filter(|(uid, (theirs, _))| *theirs == origin && !wanted.contains(uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        let mut updates: Vec<PodUpdate> = gone.iter().filter_map(|uid| self.remove(origin, uid)).collect();
        updates.extend(pods.into_iter().filter_map(|pod| self.set(origin, pod)));
        self.awaited.retain(|awaited| *awaited != origin);
        updates.extend(self.synced());
        updates
    }

    fn synced(&mut self) -> Option<PodUpdate> {
        let now = self.awaited.is_empty() && !std::mem::replace(&mut self.is_synced, self.awaited.is_empty());
        now.then_some(PodUpdate::Synced)
    }

    fn set(&mut self, origin: Origin, pod: Arc<Pod>) -> Option<PodUpdate> {
        let uid = uid_of(&pod);
        if self.pods.get(&uid).is_some_and(|(_, known)| **known == *pod) {
            return None;
        }
        self.pods.insert(uid, (origin, pod.clone()));
        Some(PodUpdate::Set(pod))
    }

    fn remove(&mut self, origin: Origin, uid: &str) -> Option<PodUpdate> {
        match self.pods.get(uid) {
            Some((theirs, _)) if *theirs == origin => {}
            _ => return None,
        }
        let (_, pod) = self.pods.remove(uid)?;
        Some(PodUpdate::Removed(pod))
    }
}

pub fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|a| a.contains_key(CONFIG_MIRROR))
}

fn uid_of(pod: &Pod) -> Uid {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Without managedFields: unused here, and every copy of a pod would carry them.
fn lean(mut pod: Pod) -> Arc<Pod> {
    pod.metadata.managed_fields = None;
    Arc::new(pod)
}

#[cfg(test)]
mod tests {
    use orlop_api::types::meta::ObjectMeta;

    use super::*;

    fn pod(uid: &str, version: &str) -> Pod {
        Pod {
            metadata: ObjectMeta {
                uid: Some(uid.into()),
                name: Some(uid.into()),
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        }
    }

    fn mirror(uid: &str) -> Pod {
        let mut pod = pod(uid, "1");
        pod.metadata.annotations = Some([(CONFIG_MIRROR.to_string(), "h".to_string())].into());
        pod
    }

    fn shown(updates: Vec<PodUpdate>) -> String {
        let mut words: Vec<String> = updates
            .into_iter()
            .map(|update| match update {
                PodUpdate::Set(pod) => format!("+{}", uid_of(&pod)),
                PodUpdate::Removed(pod) => format!("-{}", uid_of(&pod)),
                PodUpdate::Synced => "synced".into(),
            })
            .collect();
        words.sort();
        words.join(" ")
    }

    #[test]
    fn sources_are_put_together() {
        let mut desired = Desired::new(vec![Origin::Api, Origin::File]);
        let files = |pods: &[&str]| pods.iter().map(|uid| Arc::new(pod(uid, "1"))).collect();
        // Static pods start though the API server has not been reached yet; nothing is unwanted before it has.
        assert_eq!(shown(desired.replace(Origin::File, files(&["s1"]))), "+s1");
        let reset = Delta::Reset(vec![pod("a", "1"), pod("b", "1"), mirror("m1")]);
        assert_eq!(shown(desired.observe(reset)), "+a +b synced");
        assert_eq!(shown(desired.observe(Delta::Applied(pod("a", "1")))), "");
        assert_eq!(shown(desired.observe(Delta::Applied(pod("a", "2")))), "+a");
        assert_eq!(
            shown(desired.observe(Delta::Reset(vec![pod("b", "1"), pod("c", "1")]))),
            "+c -a"
        );
        assert_eq!(desired.mirrors().count(), 0);
        assert_eq!(shown(desired.observe(Delta::Applied(mirror("m2")))), "");
        assert_eq!(shown(desired.observe(Delta::Deleted(pod("c", "2")))), "-c");
        // A source takes nothing from another.
        assert_eq!(shown(desired.observe(Delta::Deleted(pod("s1", "2")))), "");
        assert_eq!(shown(desired.replace(Origin::File, files(&["s2"]))), "+s2 -s1");
        assert_eq!((desired.mirrors().count(), desired.static_pods().count()), (1, 1));
        desired.set_hosted(files(&["s2", "h"]));
        assert_eq!(desired.static_pods().count(), 2, "one name is taken");
        assert_eq!(shown(desired.observe(Delta::Deleted(mirror("m2")))), "");
        assert_eq!(shown(desired.observe(Delta::Bookmark(7))), "");
    }
}
