//! Amounts of resources: what a node has, what a pod asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use orlop_api::quantity::Quantity;

use crate::model::{ContainerStatus, Pod, PodSpec, PodStatus, ResourceList};

/// Counted for a container that asks for no cpu, where "nothing" would make spreading blind.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// The same for memory: 200 MiB.
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Cpu in thousandths, all else in units. Scalars (extended and huge-page resources) are sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub scalars: Vec<(Arc<str>, i64)>,
}

impl Resources {
    pub fn scalar(&self, name: &str) -> i64 {
        match self.scalars.binary_search_by(|(n, _)| (**n).cmp(name)) {
            Ok(i) => self.scalars[i].1,
            Err(_) => 0,
        }
    }

    /// By the resource's name in the API.
    pub fn amount(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            _ => self.scalar(name),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0 && self.memory == 0 && self.ephemeral_storage == 0 && self.scalars.is_empty()
    }

    pub fn add(&mut self, other: &Resources) {
        self.change(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.change(other, i64::saturating_sub);
    }

    fn change(&mut self, other: &Resources, by: fn(i64, i64) -> i64) {
        self.milli_cpu = by(self.milli_cpu, other.milli_cpu);
        self.memory = by(self.memory, other.memory);
        self.ephemeral_storage = by(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            match self.scalars.binary_search_by(|(n, _)| n.cmp(name)) {
                Ok(i) => self.scalars[i].1 = by(self.scalars[i].1, *amount),
                Err(i) => self.scalars.insert(i, (name.clone(), by(0, *amount))),
            }
        }
    }

    /// Whether some amount is at the end of what can be counted, so that subtracting would not give back what was before.
    pub fn is_saturated(&self) -> bool {
        let basic = [self.milli_cpu, self.memory, self.ephemeral_storage];
        basic.into_iter().any(saturated) || self.scalars.iter().any(|(_, amount)| saturated(*amount))
    }

    fn from_quantities(list: &Quantities) -> Resources {
        let mut found = Resources::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => found.milli_cpu = quantity.milli_value(),
                "memory" => found.memory = quantity.value(),
                "ephemeral-storage" => found.ephemeral_storage = quantity.value(),
                // Maps are sorted, so the scalars are.
                _ if is_scalar(name) => found.scalars.push((name.as_str().into(), quantity.value())),
                _ => {}
            }
        }
        found
    }

    /// What a node offers. An amount that cannot be read counts as none.
    pub fn of_node(list: &ResourceList) -> Resources {
        Resources::from_quantities(&parse(list))
    }
}

pub fn saturated(amount: i64) -> bool {
    amount == i64::MAX || amount == i64::MIN
}

/// How many pods a node takes.
pub fn allowed_pods(allocatable: &ResourceList) -> i64 {
    parse(allocatable).get("pods").map_or(0, Quantity::value)
}

/// Extended, huge-page, attachable-volume and prefixed native resources.
pub fn is_scalar(name: &str) -> bool {
    is_extended(name) || name.starts_with("hugepages-") || name.starts_with("attachable-volumes-") || is_native(name)
}

/// Named by others: has a domain, and not kubernetes.io's.
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !is_native(name) && !name.starts_with("requests.")
}

fn is_native(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// Resources that a pod as a whole may ask for.
fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

type Quantities = BTreeMap<String, Quantity>;

fn parse(list: &ResourceList) -> Quantities {
    list.iter()
        .filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text).ok()?)))
        .collect()
}

fn add(to: &mut Quantities, from: &Quantities) {
    for (name, quantity) in from {
        to.entry(name.clone()).or_default().add(quantity);
    }
}

fn raise(to: &mut Quantities, from: &Quantities) {
    for (name, quantity) in from {
        let slot = to.entry(name.clone()).or_insert_with(|| quantity.clone());
        if *quantity > *slot {
            *slot = quantity.clone();
        }
    }
}

/// What a pod asks for, as the filters and the scores count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub exact: Resources,
    /// With defaults for containers that ask for none: what "least allocated" goes by.
    pub nonzero_milli_cpu: i64,
    pub nonzero_memory: i64,
}

/// How the request of each container is found, and what is added.
struct Rules<'a> {
    status: Option<&'a PodStatus>,
    pod_level: bool,
    default_cpu: bool,
    default_memory: bool,
}

impl Requests {
    /// Of a pod that is yet to be placed: its spec alone counts.
    pub fn of_spec(spec: &PodSpec) -> Requests {
        Requests::compute(spec, None)
    }

    /// Of a pod on a node: while it is resized, the larger of what it has and what it wants.
    pub fn of_pod(pod: &Pod) -> Requests {
        Requests::compute(&pod.spec, Some(&pod.status))
    }

    /// Upstream: PodInfo.CalculateResource in pkg/scheduler/framework (v1.36).
    fn compute(spec: &PodSpec, status: Option<&PodStatus>) -> Requests {
        let mut rules = Rules {
            status,
            pod_level: true,
            default_cpu: false,
            default_memory: false,
        };
        let exact = total(spec, &rules);
        let whole = spec.resources.requests.keys().any(|n| is_pod_level(n));
        rules.default_cpu = !whole || !exact.contains_key("cpu");
        rules.default_memory = !whole || !exact.contains_key("memory");
        let nonzero = total(spec, &rules);
        Requests {
            exact: Resources::from_quantities(&exact),
            nonzero_milli_cpu: nonzero.get("cpu").map_or(0, Quantity::milli_value),
            nonzero_memory: nonzero.get("memory").map_or(0, Quantity::value),
        }
    }
}

/// What NodeResourcesFit's scores count for an incoming pod: its containers (never the pod-level figure), with defaults.
pub fn scoring_requests(spec: &PodSpec) -> Resources {
    let rules = Rules {
        status: None,
        pod_level: false,
        default_cpu: true,
        default_memory: true,
    };
    Resources::from_quantities(&total(spec, &rules))
}

/// Upstream: PodRequests in component-helpers/resource (v1.36).
fn total(spec: &PodSpec, rules: &Rules) -> Quantities {
    let mut sum = containers(spec, rules);
    if rules.pod_level {
        let wanted = parse(&spec.resources.requests);
        let effective = rules.status.filter(|s| *s != &PodStatus::default()).and_then(|s| {
            (!s.resources.requests.is_empty()).then(|| {
                effective(
                    &wanted,
                    &parse(&s.resources.requests),
                    &parse(&s.allocated_resources),
                    s,
                )
            })
        });
        for (name, quantity) in &wanted {
            if is_pod_level(name) {
                let held = effective.as_ref().and_then(|e| e.get(name));
                sum.insert(name.clone(), held.unwrap_or(quantity).clone());
            }
        }
    }
    add(&mut sum, &parse(&spec.overhead));
    sum
}

/// Containers side by side; init containers one after the other, beside the sidecars started before them.
fn containers(spec: &PodSpec, rules: &Rules) -> Quantities {
    let mut sum = Quantities::new();
    for c in &spec.containers {
        let status = rules.status.map(|s| (s, &s.container_statuses));
        add(&mut sum, &one(&c.name, &c.resources.requests, status, rules));
    }
    let mut sidecars = Quantities::new();
    let mut peak = Quantities::new();
    for c in &spec.init_containers {
        let is_sidecar = c.restart_policy.as_deref() == Some("Always");
        let status = rules
            .status
            .filter(|_| is_sidecar)
            .map(|s| (s, &s.init_container_statuses));
        let own = one(&c.name, &c.resources.requests, status, rules);
        if is_sidecar {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut beside = sidecars.clone();
            add(&mut beside, &own);
            raise(&mut peak, &beside);
        }
    }
    raise(&mut sum, &peak);
    sum
}

fn one(
    name: &str,
    spec: &ResourceList,
    statuses: Option<(&PodStatus, &Vec<ContainerStatus>)>,
    rules: &Rules,
) -> Quantities {
    let mut wanted = parse(spec);
    if let Some((status, containers)) = statuses
        && let Some(container) = containers.iter().find(|c| c.name == name)
        && let Some(actual) = &container.resources
    {
        wanted = effective(
            &wanted,
            &parse(&actual.requests),
            &parse(&container.allocated_resources),
            status,
        );
    }
    let defaults = [
        (
            rules.default_cpu,
            "cpu",
            Quantity::from_milli(DEFAULT_MILLI_CPU, orlop_api::quantity::Format::DecimalSI),
        ),
        (
            rules.default_memory,
            "memory",
            Quantity::from_i64(DEFAULT_MEMORY, orlop_api::quantity::Format::DecimalSI),
        ),
    ];
    for (apply, name, quantity) in defaults {
        if apply && !wanted.contains_key(name) {
            wanted.insert(name.to_string(), quantity);
        }
    }
    wanted
}

/// While a resize is under way a pod holds the most of what it had, has and wants; one that can't be granted counts as
/// what it has.
fn effective(spec: &Quantities, actual: &Quantities, allocated: &Quantities, status: &PodStatus) -> Quantities {
    let infeasible = status
        .conditions
        .iter()
        .find(|c| c.kind == "PodResizePending")
        .is_some_and(|c| c.reason == "Infeasible");
    let mut most = actual.clone();
    raise(&mut most, allocated);
    if !infeasible {
        raise(&mut most, spec);
    }
    most
}
