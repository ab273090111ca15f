//! Which servers share the etcd: each keeps a record with a time to live, and any of them writes all that are there into
//! the endpoints of the service `kubernetes`.
// Upstream: pkg/controlplane/reconcilers/lease.go (v1.36)

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use orlop_api::{Status, Value};
use orlop_store::{Action, Expect, Op, RangeQuery};
use serde_json::json;

use super::codec::MASTER_LEASES;
use crate::chain::Server;
use crate::internal::Internal;
use crate::kinds;
use crate::object::Object;
use crate::registry::Registry;
use crate::start::advertised;

/// How often the record is written again. It lives for fifteen seconds.
// Upstream: the interval of pkg/controlplane/controller/kubernetesservice
const RENEW_EVERY: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a server that stops tries to take its record back.
const LEAVE: Duration = Duration::from_secs(3);

/// Keeps the record, and the endpoints right, until the server stops.
pub(crate) async fn run(server: Arc<Server>) {
    let registry = &server.registry;
    let Some(own) = advertised(&registry.config) else {
        return;
    };
    let internal = Internal::new(registry.clone());
    let mut watcher = None;
    loop {
        if server.health.is_stopping() {
            return;
        }
        let pause = match join(registry, &internal, own).await {
            Ok(()) => RENEW_EVERY,
            Err(status) => {
                tracing::warn!(err = %status, "failed to renew the record of this server");
                RETRY_AFTER
            }
        };
        let renew_at = tokio::time::sleep(pause);
        tokio::pin!(renew_at);
        loop {
            let changes = match &mut watcher {
                Some(watcher) => watcher,
                None => watcher.insert(
                    registry
                        .store
                        .watch(MASTER_LEASES, registry.store.revision())
                        .expect("a watch from now on is always possible"),
                ),
            };
            let changed = tokio::select! {
                changed = changes.next() => changed,
                () = &mut renew_at => break,
                () = server.shutdown.wait() => return,
            };
            match changed {
                Err(_) => watcher = None,
                // Renewals are no news.
                Ok(events) if events.iter().all(|e| e.item.is_some() && e.previous.is_some()) => continue,
                Ok(_) => {}
            }
            if server.health.is_stopping() {
                return;
            }
            if let Err(status) = reconcile(registry, &internal).await {
                tracing::warn!(err = %status, "failed to write the endpoints of the API servers");
                break;
            }
        }
    }
}

/// Writes the record of this server, and the endpoints.
pub(crate) async fn join(registry: &Registry, internal: &Internal, own: IpAddr) -> Result<(), Status> {
    let kind = kinds::of_stored("endpoints").expect("a built-in kind");
    let record = json!({
        "metadata": {"name": own.to_string(), "uid": ""},
        "subsets": [{"addresses": [{"ip": own.to_string()}]}],
    });
    let record = Arc::new(Object::encode(&record, kind));
    write(registry, own, Action::Put(record)).await?;
    reconcile(registry, internal).await
}

/// Takes the record back: nobody shall come any more.
pub(crate) async fn leave(server: &Server) {
    let registry = &server.registry;
    let Some(own) = advertised(&registry.config).filter(|_| registry.store.is_shared()) else {
        return;
    };
    let internal = Internal::new(registry.clone());
    let leaving = async {
        write(registry, own, Action::Delete).await?;
        reconcile(registry, &internal).await
    };
    match tokio::time::timeout(LEAVE, leaving).await {
        Ok(Ok(())) => {}
        Ok(Err(status)) => tracing::warn!(err = %status, "failed to remove the record of this server"),
        Err(_) => tracing::warn!("failed to remove the record of this server in time"),
    }
}

async fn write(registry: &Registry, own: IpAddr, action: Action<Object>) -> Result<(), Status> {
    let op = Op::new(format!("{MASTER_LEASES}{own}"), Expect::Any, action);
    let written = registry.store.commit(op).await;
    written.map(drop).map_err(|e| Status::unavailable(e.to_string()))
}

async fn reconcile(registry: &Registry, internal: &Internal) -> Result<(), Status> {
    let query = RangeQuery {
        prefix: MASTER_LEASES,
        ..RangeQuery::default()
    };
    let page = registry.store.range(query, &mut |_| true);
    let page = page.expect("a range at the current revision does not fail");
    let name = |key: &str| key.rsplit('/').next().and_then(|name| name.parse().ok());
    let servers: BTreeSet<IpAddr> = page.items.iter().filter_map(|item| name(&item.key)).collect();
    write_endpoints(registry, internal, &servers).await
}

/// Writes who serves, unless that is what is there.
pub(crate) async fn write_endpoints(
    registry: &Registry,
    internal: &Internal,
    servers: &BTreeSet<IpAddr>,
) -> Result<(), Status> {
    let port = registry.config.port;
    for (resource, object, members) in endpoints(servers, port) {
        let kind = kinds::of_stored(resource).expect("a built-in kind");
        let stored = registry.store.get(&kinds::key(kind, "default", "kubernetes"));
        let stored = stored.map(|item| item.record.value());
        if !stored.is_some_and(|stored| members.iter().all(|m| says(&stored[*m], &object[*m]))) {
            internal.ensure_members(kind, object, members).await?;
        }
    }
    Ok(())
}

/// Whether a value has all that another one has; defaults come on top.
fn says(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(value), Value::Object(wanted)) => {
            let has = |(name, wanted)| value.get(name).is_some_and(|value| says(value, wanted));
            wanted.iter().all(has)
        }
        (Value::Array(value), Value::Array(wanted)) => {
            value.len() == wanted.len() && value.iter().zip(wanted).all(|(value, wanted)| says(value, wanted))
        }
        _ => value == wanted,
    }
}

/// Endpoints and the slice of the service `kubernetes`, with the members that are ours. Servers of one family: that of
/// the first one.
fn endpoints(servers: &BTreeSet<IpAddr>, port: u16) -> [(&'static str, Value, &'static [&'static str]); 2] {
    let is_v4 = servers.first().is_none_or(IpAddr::is_ipv4);
    let ips: Vec<String> = servers
        .iter()
        .filter(|ip| ip.is_ipv4() == is_v4)
        .map(IpAddr::to_string)
        .collect();
    let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    let ready: Vec<Value> = ips
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let subsets = match addresses.is_empty() {
        true => json!([]),
        false => json!([{"addresses": addresses, "ports": ports}]),
    };
    let labels = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
    let object = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "subsets": subsets,
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": if is_v4 { "IPv4" } else { "IPv6" },
        "endpoints": ready,
        "ports": ports,
    });
    [
        ("endpoints", object, &["subsets"]),
        ("endpointslices.discovery.k8s.io", slice, &["endpoints", "ports"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_the_servers_that_are_there() {
        let servers = ["10.0.0.2", "10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let [(_, endpoints, _), (_, slice, members)] = endpoints(&servers.into(), 6443);
        assert_eq!(
            endpoints["subsets"],
            json!([{
                "addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
                "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
            }])
        );
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
        let mut stored = slice.clone();
        stored["endpoints"][0]["conditions"]["serving"] = true.into();
        assert!(members.iter().all(|m| says(&stored[*m], &slice[*m])));
        stored["endpoints"].as_array_mut().unwrap().pop();
        assert!(!says(&stored["endpoints"], &slice["endpoints"]));
        assert_eq!(super::endpoints(&BTreeSet::new(), 1)[0].1["subsets"], json!([]));
    }
}
