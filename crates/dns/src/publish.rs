//! Keeps the Service and this node's endpoint slices in place, and takes the slices away at the end.

use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_client::{Api, DeleteOptions, Error, Failures, path};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::resources::{Resources, has};

/// Looked at again after this long even if nothing is heard of a change.
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// For taking the slices away.
const DELETE_TIMEOUT: Duration = Duration::from_secs(3);

/// `changed`: someone changed one of the objects.
pub(crate) async fn keep(api: Api, resources: Resources, changed: Arc<Notify>, shutdown: Shutdown) {
    let (mut retry, mut ours_before, mut failures) = (RETRY, true, Failures::default());
    loop {
        let wait = tokio::select! {
            ensured = ensure(&api, &resources) => match ensured {
                Ok(ours) => {
                    if ours_before && !ours {
                        tracing::info!("leaving service kube-dns alone: it has a selector");
                    }
                    (retry, ours_before) = (RETRY, ours);
                    failures.succeeded();
                    RESYNC
                }
                Err(error) => {
                    if failures.is_news(&error) {
                        tracing::warn!(err = error.chain(), "failed to write service kube-dns and its endpoint slices; retrying");
                    }
                    let wait = retry;
                    retry = retry.saturating_mul(2).min(RETRY_MAX);
                    wait
                }
            },
            _ = shutdown.wait() => break,
        };
        tokio::select! {
            _ = tokio::time::sleep(wait) => {}
            _ = changed.notified(), if wait == RESYNC => {}
            _ = shutdown.wait() => break,
        }
    }
    let deleting = async {
        for slice in &resources.slices {
            let removed = api.delete(&object_path(slice), &DeleteOptions::default()).await;
            if let Err(error) = removed {
                tracing::debug!(err = error.chain(), "failed to delete endpoint slice");
            }
        }
    };
    let _ = tokio::time::timeout(DELETE_TIMEOUT, deleting).await;
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or("")
}

fn collection(object: &Value) -> (&'static str, &'static str) {
    match object["kind"].as_str() {
        Some("Service") => ("v1", "services"),
        _ => ("discovery.k8s.io/v1", "endpointslices"),
    }
}

fn object_path(object: &Value) -> String {
    let (version, resource) = collection(object);
    path::object(version, Some(text(object, "namespace")), resource, text(object, "name"))
}

async fn read(api: &Api, object: &Value) -> Result<Option<Value>, Error> {
    match api.get::<Value>(&object_path(object)).await {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// False if they are not ours to keep: someone runs a DNS server in pods, and theirs is the service then.
async fn ensure(api: &Api, resources: &Resources) -> Result<bool, Error> {
    let found = read(api, &resources.service).await?;
    let selector = found
        .as_ref()
        .and_then(|service| service["spec"]["selector"].as_object());
    if selector.is_some_and(|selector| !selector.is_empty()) {
        return Ok(false);
    }
    apply(api, &resources.service, found).await?;
    for slice in &resources.slices {
        let found = read(api, slice).await?;
        apply(api, slice, found).await?;
    }
    Ok(true)
}

async fn apply(api: &Api, wanted: &Value, found: Option<Value>) -> Result<(), Error> {
    let Some(found) = found else {
        let (version, resource) = collection(wanted);
        let collection = path::collection(version, Some(text(wanted, "namespace")), resource);
        return match api.create::<IgnoredAny>(&collection, wanted).await {
            // Another node was quicker.
            Err(Error::AlreadyExists(_)) => Ok(()),
            created => created.map(|_| ()),
        };
    };
    let mut wanted = wanted.clone();
    keep_cluster_ip(&mut wanted, &found);
    if has(&found, &wanted) {
        return Ok(());
    }
    let patched = api.patch_merge::<IgnoredAny>(&object_path(&wanted), &wanted).await;
    patched.map(|_| ())
}

/// A service keeps its address: another one than ours is what pods have to use.
fn keep_cluster_ip(wanted: &mut Value, found: &Value) {
    let (ours, theirs) = (&wanted["spec"]["clusterIP"], &found["spec"]["clusterIP"]);
    if !ours.is_null() && ours != theirs {
        tracing::warn!(%theirs, %ours, "keeping another cluster IP of service kube-dns; pods configured with ours get no answer");
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            wanted["spec"].as_object_mut().map(|spec| spec.remove(field));
        }
    }
    if wanted["spec"] == json!(null) {
        wanted.as_object_mut().map(|object| object.remove("spec"));
    }
}
