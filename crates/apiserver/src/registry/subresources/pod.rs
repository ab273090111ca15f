//! pods/resize, pods/ephemeralcontainers, and the way to a pod's node.

use orlop_api::core::pod;
use orlop_api::{KindDef, Status, Value};

use crate::lookup::ObjectLookup;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Outcome, Registry};

pub const RESIZE: Endpoint = Endpoint {
    subresource: "resize",
    prepare: |_, new, old| pod::prepare_resize(new, old),
    validate: |_, new, old, p| pod::validate_resize(new, old, p),
    generation: true,
};

pub const EPHEMERAL_CONTAINERS: Endpoint = Endpoint {
    subresource: "ephemeralcontainers",
    prepare: |_, new, old| pod::prepare_ephemeral(new, old),
    validate: |_, new, old, p| pod::validate_ephemeral_containers_update(new, old, p),
    generation: true,
};

impl Registry {
    /// Logs, exec and the like are served by the pod's node. Says plainly what is missing on the way there.
    pub fn reach_pod(&self, ctx: &Context<'_>) -> Result<Outcome, Status> {
        let (namespace, name) = (&ctx.info.namespace, &ctx.info.name);
        let pod =
            ObjectLookup::get(self, "pods", namespace, name).ok_or_else(|| Status::not_found("", "pods", name))?;
        match pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("") {
            "" => Err(Status::bad_request(format!("pod {name} does not have a host assigned"))),
            node => Err(Status::unavailable(format!(
                "no agent of node {node} is connected to this API server"
            ))),
        }
    }

    pub fn unreachable_backend(&self, kind: &KindDef, ctx: &Context<'_>) -> Status {
        let name = &ctx.info.name;
        match ObjectLookup::get(self, kind.plural, &ctx.info.namespace, name) {
            None => Status::not_found("", kind.plural, name),
            Some(_) => Status::unavailable(format!("no endpoints available for {} {name:?}", kind.singular)),
        }
    }
}
