//! A service account named `default` in each namespace.

use orlop_client::Error;
use serde_json::json;

use crate::objects::{Namespace, ServiceAccount};
use crate::ownership::is_terminating;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "serviceaccount-controller",
    account: "service-account-controller",
    on_by_default: true,
    start,
};

const DEFAULT: &str = "default";

struct Controller {
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
}

/// Keys are namespaces.
fn start(setup: &Setup) {
    let queue = setup.queue("serviceaccount");
    let (namespaces, accounts) = (setup.cache::<Namespace>(), setup.cache::<ServiceAccount>());
    let wake = queue.clone();
    namespaces.on_change(move |_, new| {
        if let Some(namespace) = new {
            wake.add(Key::from_object(&**namespace));
        }
    });
    let wake = queue.clone();
    accounts.on_change(move |old, new| {
        if let (Some(gone), None) = (old, new) {
            wake.add(Key::new("", &*gone.metadata.namespace));
        }
    });
    setup.run(
        queue,
        setup.settings.concurrent_syncs,
        Controller { namespaces, accounts },
    );
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let wanted = self.namespaces.at(key).is_some_and(|namespace| namespace.is_active());
        if !wanted || self.accounts.get(&key.name, DEFAULT).is_some() {
            return Ok(Next::Done);
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                             "metadata": {"name": DEFAULT, "namespace": key.name}});
        match writer.create::<ServiceAccount>(&key.name, &account).await {
            Ok(_) | Err(Error::AlreadyExists(_) | Error::NotFound(_)) => Ok(Next::Done),
            Err(Error::Forbidden(status)) if is_terminating(&status) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn each_live_namespace_has_one() {
        let cluster = Cluster::new();
        for name in ["a", "b"] {
            cluster.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        cluster.edit_status::<Namespace>("", "b", |b| b["status"]["phase"] = json!("Terminating"));
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        let names = || -> Vec<String> {
            let accounts = cluster.list::<ServiceAccount>("").into_iter();
            accounts
                .map(|a| format!("{}/{}", a.metadata.namespace, a.metadata.name))
                .collect()
        };
        assert_eq!(names(), ["a/default"]);
        cluster.delete::<ServiceAccount>("a", DEFAULT);
        cluster.wait_until_idle().await;
        assert_eq!(names(), ["a/default"]);
        assert_eq!(cluster.writes().len(), 2);
    }
}
