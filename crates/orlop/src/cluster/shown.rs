//! Which components are shown as pods, and as whose.

use crate::components::{CONTROLLER_MANAGER, DNS, PROXY, SCHEDULER};

/// A pod of kube-system that stands for a component.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShownComponent {
    /// Name of the container and of the log; that of the pod has the node's after it.
    pub name: &'static str,
    /// What the supervisor knows it as. The API server is in several parts.
    pub components: &'static [&'static str],
    /// Lines that come from these crates are its own, whoever's task logs them.
    pub crates: &'static [&'static str],
    pub labels: &'static [(&'static str, &'static str)],
}

pub(crate) const SHOWN_COUNT: usize = 5;

/// Their order is that of the log files.
pub(crate) static SHOWN: [ShownComponent; SHOWN_COUNT] = [
    ShownComponent {
        name: "kube-apiserver",
        components: &["housekeeping", "serving"],
        crates: &["orlop_apiserver", "orlop_store"],
        labels: &[("component", "kube-apiserver"), ("tier", "control-plane")],
    },
    ShownComponent {
        name: "kube-controller-manager",
        components: &[CONTROLLER_MANAGER],
        crates: &["orlop_controllers"],
        labels: &[("component", "kube-controller-manager"), ("tier", "control-plane")],
    },
    ShownComponent {
        name: "kube-scheduler",
        components: &[SCHEDULER],
        crates: &["orlop_scheduler"],
        labels: &[("component", "kube-scheduler"), ("tier", "control-plane")],
    },
    ShownComponent {
        name: "kube-proxy",
        components: &[PROXY],
        crates: &["orlop_proxy"],
        labels: &[("k8s-app", "kube-proxy")],
    },
    ShownComponent {
        name: "coredns",
        components: &[DNS],
        crates: &["orlop_dns"],
        labels: &[("k8s-app", "kube-dns")],
    },
];

/// Whose a log line is, by the crate that it comes from or else by the component whose task it comes from: requests of
/// components to the API server are served in the components' own tasks.
pub(super) fn owner(target: &str, component: Option<&str>) -> Option<usize> {
    let library = target.split("::").next().unwrap_or_default();
    if library == "orlop_kubelet" {
        return None;
    }
    let by_crate = SHOWN.iter().position(|shown| shown.crates.contains(&library));
    by_crate.or_else(|| {
        let component = component?;
        SHOWN.iter().position(|shown| shown.components.contains(&component))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_their_owners() {
        let cases = [
            ("orlop_scheduler::shell::bind::v2", None, Some("kube-scheduler")),
            ("orlop_apiserver::audit", Some(SCHEDULER), Some("kube-apiserver")),
            ("orlop_store::log", None, Some("kube-apiserver")),
            ("orlop_base::supervisor", Some(SCHEDULER), Some("kube-scheduler")),
            ("orlop_base::supervisor", Some("housekeeping"), Some("kube-apiserver")),
            (
                "orlop_client::reachability",
                Some(CONTROLLER_MANAGER),
                Some("kube-controller-manager"),
            ),
            ("orlop_client::reachability", Some("kubelet"), None),
            ("orlop_kubelet::agent", Some("kubelet"), None),
            ("orlop_base::supervisor", None, None),
            ("orlop_dns::run", Some(DNS), Some("coredns")),
            ("orlop::components", Some(PROXY), Some("kube-proxy")),
        ];
        for (target, component, expected) in cases {
            let found = owner(target, component).map(|n| SHOWN[n].name);
            assert_eq!(found, expected, "{target} {component:?}");
        }
    }
}
