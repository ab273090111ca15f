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
    owns: true,
};

pub const EPHEMERAL_CONTAINERS: Endpoint = Endpoint {
    subresource: "ephemeralcontainers",
    prepare: |_, new, old| pod::prepare_ephemeral(new, old),
    validate: |_, new, old, p| pod::validate_ephemeral_containers_update(new, old, p),
    generation: true,
    owns: true,
};

impl Registry {
    /// Logs, exec and the like are served by the pod's node. Says plainly what is missing on the way there.
    pub fn reach_pod(&self, ctx: &Context<'_>) -> Result<Outcome, Status> {
        let (namespace, name) = (&ctx.info.namespace, &ctx.info.name);
        let pod =
            ObjectLookup::get(self, "pods", namespace, name).ok_or_else(|| Status::not_found("", "pods", name))?;
        check_container(&pod, ctx)?;
        match pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or("") {
            "" => Err(Status::bad_request(format!("pod {name} does not have a host assigned"))),
            // Kubernetes names the missing node so.
            node if ObjectLookup::get(self, "nodes", "", node).is_none() => Err(Status::not_found("", "pods", node)),
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

/// The container a request is about: the one it names, or the only one there is.
fn check_container(pod: &Value, ctx: &Context<'_>) -> Result<(), Status> {
    if matches!(ctx.info.subresource.as_str(), "portforward" | "proxy") {
        return Ok(());
    }
    let name = &ctx.info.name;
    let names = |list: &str| -> Vec<&str> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|c| c["name"].as_str()).collect()
    };
    let (own, init, ephemeral) = (
        names("containers"),
        names("initContainers"),
        names("ephemeralContainers"),
    );
    let asked = ctx.info.query.get("container").unwrap_or("");
    let annotated = pod
        .pointer("/metadata/annotations/kubectl.kubernetes.io~1default-container")
        .and_then(Value::as_str)
        .filter(|wanted| own.contains(wanted));
    if asked.is_empty() {
        if own.len() == 1 || annotated.is_some() {
            return Ok(());
        }
        let mut choices = format!("choose one of: [{}]", own.join(" "));
        if !init.is_empty() {
            choices.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
        }
        if !ephemeral.is_empty() {
            choices.push_str(&format!(
                " or one of the ephemeral containers: [{}]",
                ephemeral.join(" ")
            ));
        }
        return Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, {choices}"
        )));
    }
    if [own, init, ephemeral].iter().any(|list| list.contains(&asked)) {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "container {asked} is not valid for pod {name}"
    )))
}
