//! What a pod's spec says about its containers: which type they are, whether they restart, their identity.

use orlop_api::types::core::{Container, ContainerRestartRule, Pod, PodSpec};

/// The three lists of containers in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Init,
    Regular,
    Ephemeral,
}

impl Kind {
    /// As metrics name it.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Init => "init_container",
            Kind::Regular => "container",
            Kind::Ephemeral => "ephemeral_container",
        }
    }
}

/// Whether any of its volumes is a claim, ephemeral ones included.
pub fn has_claims(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .into_iter()
        .any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
}

/// A container of a pod by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerRef {
    pub kind: Kind,
    pub index: usize,
}

pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().expect("a pod that reached a worker has a spec")
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

pub fn regular_containers(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

/// Ephemeral containers in the shape of the others.
pub fn ephemeral_containers(pod: &Pod) -> Vec<Container> {
    let list = spec(pod).ephemeral_containers.as_deref().unwrap_or_default();
    list.iter().map(crate::spec::as_container).collect()
}

/// The container at a place; `None` if the spec has lost it.
pub fn container_at(pod: &Pod, place: ContainerRef) -> Option<Container> {
    match place.kind {
        Kind::Init => init_containers(pod).get(place.index).cloned(),
        Kind::Regular => regular_containers(pod).get(place.index).cloned(),
        Kind::Ephemeral => ephemeral_containers(pod).get(place.index).cloned(),
    }
}

/// Init and regular containers by name.
pub fn container_named<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let all = init_containers(pod).iter().chain(regular_containers(pod));
    all.into_iter().find(|c| c.name == name)
}

pub fn place_of(pod: &Pod, name: &str) -> Option<ContainerRef> {
    let find = |list: &[Container]| list.iter().position(|c| c.name == name);
    let ephemeral = spec(pod).ephemeral_containers.as_deref().unwrap_or_default();
    None.or_else(|| {
        find(regular_containers(pod)).map(|index| ContainerRef {
            kind: Kind::Regular,
            index,
        })
    })
    .or_else(|| {
        find(init_containers(pod)).map(|index| ContainerRef {
            kind: Kind::Init,
            index,
        })
    })
    .or_else(|| {
        let index = ephemeral.iter().position(|c| c.name == name)?;
        Some(ContainerRef {
            kind: Kind::Ephemeral,
            index,
        })
    })
}

/// An init container that goes on running beside the regular ones.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

pub fn has_sidecars(pod: &Pod) -> bool {
    init_containers(pod).iter().any(is_sidecar)
}

/// Whether a container that is killed for a reason of ours (a failed probe, an unknown state) starts again. Rules on exit
/// codes have no say: there is no exit code yet.
pub fn restarts_when_killed(pod: &Pod, container: &Container) -> bool {
    match container.restart_policy.as_deref() {
        Some(policy) => policy != "Never",
        None => restarts_on_failure(pod),
    }
}

pub fn restarts_on_failure(pod: &Pod) -> bool {
    spec(pod).restart_policy.as_deref() != Some("Never")
}

/// Whether the pod is to run for ever: its containers start again however they end.
pub fn always_restarts(pod: &Pod) -> bool {
    !matches!(spec(pod).restart_policy.as_deref(), Some("Never" | "OnFailure"))
}

/// Whether a container that ended with this exit code starts again: its own rules, then its own policy, then the pod's.
pub fn restarts_after_exit(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    let own = container.restart_policy.as_deref();
    if own.is_some() && matching_rule(container, exit_code).is_some_and(|rule| is_restart(&rule.action)) {
        return true;
    }
    match own.or(spec(pod).restart_policy.as_deref()) {
        Some("OnFailure") => exit_code != 0,
        Some("Never") => false,
        _ => true,
    }
}

fn is_restart(action: &str) -> bool {
    action == "Restart" || action == RESTART_ALL
}

const RESTART_ALL: &str = "RestartAllContainers";

/// The first rule that is about this exit code.
fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|on| {
            let listed = on.values.as_deref().unwrap_or_default().contains(&exit_code);
            match on.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// Whether this exit makes all containers of the pod start over.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether any exit could make all containers start over.
pub fn could_restart_all(pod: &Pod) -> bool {
    let all = init_containers(pod).iter().chain(regular_containers(pod));
    all.into_iter().any(|c| {
        c.restart_policy_rules
            .as_deref()
            .unwrap_or_default()
            .iter()
            .any(|r| r.action == RESTART_ALL)
    })
}

pub fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// How texts name a pod: `name_namespace(uid)`.
pub fn described(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// A pod that comes from a file or URL on this node.
pub fn is_static(pod: &Pod) -> bool {
    let source = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}

/// Whether a phase is one that is never left.
pub fn is_terminal(phase: &str) -> bool {
    phase == "Succeeded" || phase == "Failed"
}

/// What a container is known by in the runtime: a container whose fingerprint differs from its spec's starts over.
pub fn fingerprint(container: &Container) -> String {
    format!("{:x}", crate::spec::labels::container_hash(container))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::pod;

    #[test]
    fn rules_come_before_the_containers_policy_before_the_pods() {
        let cases: &[(&str, i32, bool)] = &[
            ("restartPolicy=Always", 0, true),
            ("restartPolicy=OnFailure", 0, false),
            ("restartPolicy=OnFailure", 1, true),
            ("restartPolicy=Never", 1, false),
            ("restartPolicy=Never a.restartPolicy=OnFailure", 1, true),
            ("restartPolicy=Never a.restartPolicy=OnFailure", 0, false),
            ("restartPolicy=Always a.restartPolicy=Never", 1, false),
            (
                "restartPolicy=Never a.restartPolicy=Never a.rule=In:42:Restart",
                42,
                true,
            ),
            (
                "restartPolicy=Never a.restartPolicy=Never a.rule=In:42:Restart",
                1,
                false,
            ),
            (
                "restartPolicy=Never a.restartPolicy=Never a.rule=NotIn:42:Restart",
                1,
                true,
            ),
            (
                "restartPolicy=Never a.restartPolicy=Never a.rule=NotIn:42:Restart",
                42,
                false,
            ),
            (
                "restartPolicy=Never a.restartPolicy=Never a.rule=In:42:RestartAllContainers",
                42,
                true,
            ),
        ];
        for (text, exit_code, expected) in cases {
            let pod = pod(&format!("{text} containers=a"));
            let container = &regular_containers(&pod)[0];
            assert_eq!(
                restarts_after_exit(&pod, container, *exit_code),
                *expected,
                "{text} {exit_code}"
            );
        }
    }

    #[test]
    fn names_in_texts() {
        let pod = pod("init=i containers=a ephemeral=e");
        assert_eq!(described(&pod), "p_ns(uid)");
        let (a, b) = (
            Container {
                image: Some("x".into()),
                ..Default::default()
            },
            Container::default(),
        );
        assert_ne!(fingerprint(&a), fingerprint(&b));
    }
}
