//! Which slices a service is to have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::hints::{self, HintMode, ZONE, ZoneShares};
use super::pack::{Draft, pack};
use crate::backends;
use crate::objects::endpoint_slice::{
    Endpoint, EndpointConditions, EndpointPort, HEADLESS, MANAGED_BY, SERVICE_NAME, TargetRef,
};
use crate::objects::{EndpointSlice, Labels, Meta, Node, Pod, Service};
use crate::ownership::controller_reference;
use crate::pod_template::generate_name;

pub(super) const CONTROLLER: &str = "endpointslice-controller.k8s.io";

pub(super) struct ServiceSnapshot<'a> {
    pub service: &'a Service,
    /// Those that can receive something.
    pub pods: &'a [Arc<Pod>],
    pub node: &'a dyn Fn(&str) -> Option<Arc<Node>>,
    /// Those of the service that this controller manages and nobody is deleting.
    pub slices: &'a [Arc<EndpointSlice>],
    pub zones: Option<&'a ZoneShares>,
    /// The service's endpoints have been spread over the zones.
    pub was_spread: bool,
    /// Endpoints in one slice.
    pub max: usize,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    /// Whether the endpoints are now spread over the zones.
    pub is_spread: bool,
    /// Events to record about that.
    pub remarks: Vec<Remark>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

pub(super) fn plan(seen: &ServiceSnapshot<'_>) -> Plan {
    let mut plan = Plan::default();
    let families = families(seen.service);
    let of_no_family = |slice: &&Arc<EndpointSlice>| !families.contains(&slice.address_type.as_str());
    plan.delete.extend(seen.slices.iter().filter(of_no_family).cloned());
    for family in families {
        plan_family(seen, family, &mut plan);
    }
    if seen.service.metadata.is_deleted() {
        // The garbage collector is about to remove what there is.
        plan.create.clear();
    }
    plan
}

fn families(service: &Service) -> Vec<&'static str> {
    let known = ["IPv4", "IPv6"];
    let named = known
        .iter()
        .filter(|family| service.spec.ip_families.iter().any(|f| f == *family));
    let named: Vec<&'static str> = named.copied().collect();
    if !named.is_empty() {
        return named;
    }
    // Made by a server that knows of no families yet.
    match orlop_api::ip::family(&service.spec.cluster_ip) {
        Some(family) => vec![family],
        None => known.to_vec(),
    }
}

fn plan_family(seen: &ServiceSnapshot<'_>, family: &'static str, plan: &mut Plan) {
    let mut by_ports: BTreeMap<Vec<EndpointPort>, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in seen.slices.iter().filter(|slice| slice.address_type == family) {
        match is_owned(slice, seen.service) {
            true => by_ports.entry(sorted(&slice.ports)).or_default().push(slice.clone()),
            // Of a service that had this name before.
            false => plan.delete.push(slice.clone()),
        }
    }
    let (mut drafts, mut spare) = (vec![], vec![]);
    for (ports, endpoints) in wanted(seen, family) {
        let existing = by_ports.remove(&ports).unwrap_or_default();
        let (packed, emptied) = pack(&ports, endpoints, existing, seen.max);
        drafts.extend(packed);
        spare.extend(emptied);
    }
    spare.extend(by_ports.into_values().flatten());
    if drafts.is_empty() {
        // That there are no endpoints is known only if some slice says so.
        drafts.push(Draft::default());
    }
    // A slice that is empty already is the best to start from.
    spare.sort_by_key(|slice| slice.ports.is_empty() && slice.endpoints.is_empty());
    for draft in drafts.iter_mut().filter(|draft| draft.from.is_none()) {
        draft.from = spare.pop();
    }
    plan.delete.append(&mut spare);
    hint(seen, family, &mut drafts, plan);
    for draft in drafts {
        render(seen.service, family, draft, plan);
    }
}

/// The endpoints, by the ports that they listen at.
fn wanted(seen: &ServiceSnapshot<'_>, family: &str) -> BTreeMap<Vec<EndpointPort>, Vec<Endpoint>> {
    let mut wanted: BTreeMap<Vec<EndpointPort>, Vec<Endpoint>> = BTreeMap::new();
    for pod in seen.pods {
        let node = (seen.node)(&pod.spec.node_name);
        if node.is_none() && !seen.service.spec.publish_not_ready_addresses {
            continue;
        }
        let endpoint = endpoint(seen.service, pod, node.as_deref(), family);
        if !endpoint.addresses.is_empty() {
            wanted.entry(ports(seen.service, pod)).or_default().push(endpoint);
        }
    }
    wanted
}

fn endpoint(service: &Service, pod: &Pod, node: Option<&Node>, family: &str) -> Endpoint {
    let (serving, terminating) = (pod.is_ready(), pod.metadata.is_deleted());
    let ready = service.spec.publish_not_ready_addresses || (serving && !terminating);
    let zone = node
        .and_then(|node| node.metadata.label(ZONE))
        .filter(|zone| !zone.is_empty());
    Endpoint {
        addresses: backends::addresses(pod, family),
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        hostname: backends::hostname(pod, service).map(str::to_string),
        target_ref: Some(TargetRef {
            kind: "Pod".to_string(),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..TargetRef::default()
        }),
        node_name: Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty()),
        zone: zone.map(str::to_string),
        ..Endpoint::default()
    }
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let port = |port| {
        let target = backends::target_port(pod, port)?;
        Some(EndpointPort {
            name: Some(port.name.clone()),
            protocol: Some(backends::or_tcp(&port.protocol).to_string()),
            port: Some(target),
            app_protocol: port.app_protocol.clone(),
        })
    };
    sorted(&service.spec.ports.iter().filter_map(port).collect::<Vec<_>>())
}

fn sorted(ports: &[EndpointPort]) -> Vec<EndpointPort> {
    let mut ports = ports.to_vec();
    ports.sort();
    ports
}

fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    let is_service = |owner: &&crate::objects::OwnerReference| owner.kind == "Service" && owner.api_version == "v1";
    let mut owners = slice.metadata.owner_references.iter().filter(is_service);
    owners.any(|owner| owner.uid == service.metadata.uid)
}

fn hint(seen: &ServiceSnapshot<'_>, family: &str, drafts: &mut [Draft], plan: &mut Plan) {
    let mut remark = |is_warning, reason, what: &str| {
        plan.remarks.push(Remark {
            is_warning,
            reason,
            message: format!("{what}, addressType: {family}"),
        });
    };
    let (enabled, disabled) = ("TopologyAwareHintsEnabled", "TopologyAwareHintsDisabled");
    let wish = HintMode::from_service(seen.service);
    if wish != HintMode::Auto && seen.was_spread {
        remark(true, disabled, "Topology Aware Hints has been disabled");
    }
    match wish {
        HintMode::Anywhere => hints::clear(drafts),
        HintMode::SameZone => hints::keep_close(drafts, false),
        HintMode::SameNode => hints::keep_close(drafts, true),
        HintMode::Auto => match hints::spread(drafts, seen.zones) {
            Ok(()) => {
                if !seen.was_spread {
                    remark(false, enabled, "Topology Aware Hints has been enabled");
                }
                plan.is_spread = true;
            }
            Err(why) => {
                hints::clear(drafts);
                remark(true, disabled, &why.to_string());
            }
        },
    }
}

/// Makes of a draft what is to be written, if anything.
fn render(service: &Service, family: &str, draft: Draft, plan: &mut Plan) {
    let labels = labels(service);
    let Some(from) = draft.from else {
        plan.create.push(EndpointSlice {
            metadata: Meta {
                generate_name: generate_name(&service.metadata.name),
                namespace: service.metadata.namespace.clone(),
                labels,
                owner_references: vec![controller_reference(service)],
                ..Meta::default()
            },
            address_type: family.to_string(),
            endpoints: draft.endpoints,
            ports: draft.ports,
        });
        return;
    };
    let same_ports = sorted(&from.ports) == draft.ports;
    if same_ports && from.endpoints == draft.endpoints && from.metadata.labels == labels {
        return;
    }
    let mut slice = EndpointSlice::clone(&from);
    slice.metadata.labels = labels;
    slice.endpoints = draft.endpoints;
    if !same_ports {
        slice.ports = draft.ports;
    }
    plan.update.push(slice);
}

/// The service's own, and those by which slices are found.
fn labels(service: &Service) -> Labels {
    let mut labels = service.metadata.labels.clone();
    labels.remove(HEADLESS);
    if service.is_headless() {
        labels.insert(HEADLESS.to_string(), String::new());
    }
    labels.insert(SERVICE_NAME.to_string(), service.metadata.name.clone());
    labels.insert(MANAGED_BY.to_string(), CONTROLLER.to_string());
    labels
}
