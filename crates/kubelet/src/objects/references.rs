//! Which pods refer to which config maps and secrets.

use std::collections::{BTreeSet, HashMap};

use orlop_api::types::core::{EnvFromSource, EnvVar, Pod, PodSpec, Volume};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    ConfigMap,
    Secret,
}

/// Kind, namespace, name.
pub(super) type Key = (Kind, String, String);

#[derive(Default)]
pub(super) struct References {
    state: Mutex<ReferenceState>,
}

#[derive(Default)]
struct ReferenceState {
    pods: HashMap<String, BTreeSet<Key>>,
    counts: HashMap<Key, usize>,
}

impl References {
    /// What the pod refers to; nothing if the pod is known.
    pub(super) fn add(&self, pod: &Pod) -> BTreeSet<Key> {
        let mut state = self.state.lock();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if state.pods.contains_key(uid) {
            return BTreeSet::new();
        }
        let keys = references(pod);
        for key in &keys {
            *state.counts.entry(key.clone()).or_default() += 1;
        }
        state.pods.insert(uid.to_string(), keys.clone());
        keys
    }

    /// What nobody refers to any more.
    pub(super) fn remove(&self, uid: &str) -> Vec<Key> {
        let mut state = self.state.lock();
        let keys = state.pods.remove(uid).unwrap_or_default();
        let mut last = Vec::new();
        for key in keys {
            let count = state.counts.get_mut(&key).expect("every reference is counted");
            *count -= 1;
            if *count == 0 {
                state.counts.remove(&key);
                last.push(key);
            }
        }
        last
    }
}

fn references(pod: &Pod) -> BTreeSet<Key> {
    let mut names = BTreeSet::new();
    if let Some(spec) = &pod.spec {
        of_volumes(spec.volumes.as_deref().unwrap_or_default(), &mut names);
        of_containers(spec, &mut names);
        for secret in spec.image_pull_secrets.iter().flatten() {
            names.insert((Kind::Secret, secret.name.clone()));
        }
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let keyed = names.into_iter().filter(|(_, name)| !name.is_empty());
    keyed.map(|(kind, name)| (kind, namespace.to_string(), name)).collect()
}

fn of_volumes(volumes: &[Volume], names: &mut BTreeSet<(Kind, String)>) {
    for volume in volumes {
        if let Some(source) = &volume.config_map {
            names.insert((Kind::ConfigMap, source.name.clone()));
        }
        if let Some(name) = volume.secret.as_ref().and_then(|s| s.secret_name.clone()) {
            names.insert((Kind::Secret, name));
        }
        if let Some(secret) = volume.csi.as_ref().and_then(|s| s.node_publish_secret_ref.as_ref()) {
            names.insert((Kind::Secret, secret.name.clone()));
        }
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        for source in sources {
            if let Some(source) = &source.config_map {
                names.insert((Kind::ConfigMap, source.name.clone()));
            }
            if let Some(source) = &source.secret {
                names.insert((Kind::Secret, source.name.clone()));
            }
        }
    }
}

fn of_containers(spec: &PodSpec, names: &mut BTreeSet<(Kind, String)>) {
    let init = spec.init_containers.iter().flatten();
    for container in init.chain(&spec.containers) {
        of_env(
            container.env.iter().flatten(),
            container.env_from.iter().flatten(),
            names,
        );
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        of_env(
            container.env.iter().flatten(),
            container.env_from.iter().flatten(),
            names,
        );
    }
}

fn of_env<'a>(
    env: impl Iterator<Item = &'a EnvVar>,
    env_from: impl Iterator<Item = &'a EnvFromSource>,
    names: &mut BTreeSet<(Kind, String)>,
) {
    for source in env.filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(source) = &source.config_map_key_ref {
            names.insert((Kind::ConfigMap, source.name.clone()));
        }
        if let Some(source) = &source.secret_key_ref {
            names.insert((Kind::Secret, source.name.clone()));
        }
    }
    for source in env_from {
        if let Some(source) = &source.config_map_ref {
            names.insert((Kind::ConfigMap, source.name.clone()));
        }
        if let Some(source) = &source.secret_ref {
            names.insert((Kind::Secret, source.name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_place_that_names_one_is_found() {
        let container = |n: u32| {
            json!({
                "name": "c",
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": format!("env{n}"), "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": format!("env{n}"), "key": "k"}}},
                ],
                "envFrom": [
                    {"configMapRef": {"name": format!("from{n}")}},
                    {"secretRef": {"name": format!("from{n}")}},
                ],
            })
        };
        let pod: Pod = orlop_api::types::from_value(json!({
            "metadata": {"namespace": "a", "uid": "p"},
            "spec": {
                "initContainers": [container(1)], "containers": [container(2)], "ephemeralContainers": [container(3)],
                "imagePullSecrets": [{"name": "pull"}, {}],
                "volumes": [
                    {"name": "1", "configMap": {"name": "plain"}},
                    {"name": "2", "secret": {"secretName": "plain"}},
                    {"name": "3", "projected": {"sources": [
                        {"configMap": {"name": "part"}}, {"secret": {"name": "part"}},
                    ]}},
                    {"name": "4", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                ],
            },
        }))
        .unwrap();
        let all = References::default();
        let found: Vec<String> = all
            .add(&pod)
            .iter()
            .map(|(kind, _, name)| format!("{kind:?} {name}"))
            .collect();
        let of = |kind: &str, names: &str| names.split(' ').map(|n| format!("{kind} {n}")).collect::<Vec<_>>();
        let expected = [
            of("ConfigMap", "env1 env2 env3 from1 from2 from3 part plain"),
            of("Secret", "csi env1 env2 env3 from1 from2 from3 part plain pull"),
        ];
        assert_eq!(found, expected.concat());

        let mut second = pod.clone();
        second.metadata.uid = Some("q".into());
        assert_eq!(all.add(&second).len(), 18);
        assert!(all.add(&second).is_empty());
        assert!(all.remove("p").is_empty());
        assert_eq!(all.remove("q").len(), 18);
        assert!(all.state.lock().counts.is_empty());
    }
}
