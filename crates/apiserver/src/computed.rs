//! Kinds that are made up when they are asked for (`Verbs::ReadOnly`): nothing of them is stored.

use orlop_api::core::component_status::component;
use orlop_api::{KindDef, Status, Value};
use orlop_base::supervisor::{ComponentState, Record};
use serde_json::json;

use crate::chain::Server;

/// The components that upstream asks about, and the ports that it asks.
const PROBED: [(&str, u16); 2] = [("controller-manager", 10257), ("scheduler", 10259)];

/// All there are now: those that run in this process, which alone it can vouch for.
fn all(server: &Server, kind: &KindDef) -> Vec<Value> {
    if kind.kind != "ComponentStatus" {
        return vec![];
    }
    let components = &server.health.components;
    let found = PROBED
        .iter()
        .filter_map(|(name, port)| Some((*name, *port, components.get(name)?)));
    let mut all: Vec<Value> = found.map(|(name, port, record)| status(name, port, &record)).collect();
    let store = &server.registry.store;
    all.push(match store.health() {
        Ok(()) => component("etcd-0", Ok("ok")),
        Err(failure) => component("etcd-0", Err(&failure.error)),
    });
    all
}

/// As upstream's probe of the component's port would put it.
fn status(name: &str, port: u16, record: &Record) -> Value {
    match record.state {
        ComponentState::Running => component(name, Ok("ok")),
        ComponentState::Stopped => {
            let at = format!("127.0.0.1:{port}");
            let refused = format!("Get \"https://{at}/healthz\": dial tcp {at}: connect: connection refused");
            component(name, Err(&refused))
        }
        ComponentState::BackOff => component(
            name,
            Err(&format!("back-off restarting failed component: {}", record.error)),
        ),
        ComponentState::Stalled => component(name, Err("HTTP probe failed: context deadline exceeded")),
    }
}

pub fn get(server: &Server, kind: &KindDef, name: &str) -> Result<Value, Status> {
    let found = all(server, kind)
        .into_iter()
        .find(|object| object["metadata"]["name"] == name);
    // Upstream: component statuses are the one resource whose absence is told in the singular.
    let resource = if kind.kind == "ComponentStatus" {
        kind.singular
    } else {
        kind.plural
    };
    found.ok_or_else(|| Status::not_found(kind.group, resource, name))
}

pub fn list(server: &Server, kind: &KindDef) -> Value {
    let mut items = all(server, kind);
    for object in &mut items {
        let members = object.as_object_mut().expect("made as an object");
        members.remove("kind");
        members.remove("apiVersion");
    }
    json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": {}, "items": items})
}
