//! A config map `kube-root-ca.crt` in each namespace: what pods trust the API server by.

use orlop_client::Error;

use crate::objects::config_map::ROOT_CA;
use crate::objects::{ConfigMap, Labels, Meta, Namespace, with_type_meta};
use crate::ownership::is_terminating;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "root-ca-certificate-publisher-controller",
    account: "root-ca-cert-publisher",
    on_by_default: true,
    start,
};

const DESCRIPTION: &str = "kubernetes.io/description";
const WHAT_FOR: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
    such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of \
    Kubernetes clusters.";

struct Controller {
    namespaces: Cache<Namespace>,
    maps: Cache<ConfigMap>,
    /// In PEM.
    root_ca: String,
}

/// Keys are namespaces. Without a root certificate there is nothing to publish.
fn start(setup: &Setup) {
    let Some(root_ca) = setup.settings.root_ca.clone() else {
        return;
    };
    let queue = setup.queue("root_ca_cert_publisher");
    let (namespaces, maps) = (setup.cache::<Namespace>(), setup.cache::<ConfigMap>());
    let wake = queue.clone();
    namespaces.on_change(move |_, new| {
        if let Some(namespace) = new {
            wake.add(Key::from_object(&**namespace));
        }
    });
    let wake = queue.clone();
    maps.on_change(move |old, new| {
        if let Some(map) = new.or(old).filter(|map| map.metadata.name == ROOT_CA) {
            wake.add(Key::new("", &*map.metadata.namespace));
        }
    });
    let controller = Controller {
        namespaces,
        maps,
        root_ca,
    };
    setup.run(queue, setup.settings.concurrent_syncs, controller);
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        if !self.namespaces.at(key).is_some_and(|namespace| namespace.is_active()) {
            return Ok(Next::Done);
        }
        let existing = self.maps.get(&key.name, ROOT_CA);
        let Some(wanted) = plan(&key.name, existing.as_deref(), &self.root_ca) else {
            return Ok(Next::Done);
        };
        let written = match existing {
            None => writer.create::<ConfigMap>(&key.name, &with_type_meta(&wanted)).await,
            Some(_) => {
                writer
                    .replace::<ConfigMap>(&wanted.metadata, &with_type_meta(&wanted))
                    .await
            }
        };
        match written {
            Ok(_) | Err(Error::NotFound(_) | Error::AlreadyExists(_)) => Ok(Next::Done),
            Err(Error::Forbidden(status)) if is_terminating(&status) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// What to write, if anything. Whoever described the map in other words may.
fn plan(namespace: &str, existing: Option<&ConfigMap>, root_ca: &str) -> Option<ConfigMap> {
    let data: Labels = [("ca.crt".to_string(), root_ca.to_string())].into();
    let described = |map: &ConfigMap| {
        map.metadata
            .annotation(DESCRIPTION)
            .is_some_and(|text| !text.is_empty())
    };
    if existing.is_some_and(|map| map.data == data && described(map)) {
        return None;
    }
    let mut map = existing.cloned().unwrap_or_else(|| ConfigMap {
        metadata: Meta {
            name: ROOT_CA.to_string(),
            namespace: namespace.to_string(),
            ..Meta::default()
        },
        ..ConfigMap::default()
    });
    map.data = data;
    map.metadata
        .annotations
        .insert(DESCRIPTION.to_string(), WHAT_FOR.to_string());
    Some(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::Settings;
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn each_live_namespace_has_the_certificate() {
        let cluster = Cluster::new();
        for name in ["a", "b"] {
            cluster.put(
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
                               "status": {"phase": "Active"}}),
            );
        }
        cluster.put(json!({"apiVersion": "v1", "kind": "ConfigMap",
                           "metadata": {"name": ROOT_CA, "namespace": "b", "annotations": {DESCRIPTION: "mine"}},
                           "data": {"ca.crt": "PEM"}}));
        let settings = Settings {
            root_ca: Some("PEM".to_string()),
            ..Settings::default()
        };
        cluster.run_with(&[&DEF], settings);
        cluster.wait_until_idle().await;
        assert_eq!(cluster.writes().len(), 1, "what is right stays: {:?}", cluster.writes());
        assert_eq!(
            cluster.value::<ConfigMap>("a", ROOT_CA).unwrap()["data"],
            json!({"ca.crt": "PEM"})
        );
        cluster.edit::<ConfigMap>("b", ROOT_CA, |map| map["data"]["more"] = json!("x"));
        cluster.wait_until_idle().await;
        assert_eq!(
            cluster.value::<ConfigMap>("b", ROOT_CA).unwrap()["data"],
            json!({"ca.crt": "PEM"})
        );
        cluster.delete::<ConfigMap>("a", ROOT_CA);
        cluster.wait_until_idle().await;
        assert!(cluster.get::<ConfigMap>("a", ROOT_CA).is_some());
    }
}
