//! Pods that this node does not support or allow: they are rejected at admission.

use orlop_api::types::core::{AppArmorProfile, Container, Pod};

use super::resources::{QosClass, may_swap, qos_class, quantities};
use super::{NodeFacts, Notice, containers, is_host_network, security, spec_flag};
use crate::pod::resize::needs_restart;

/// Why a pod cannot run here, by what its security settings ask for; the pod's status shows reason and message.
pub fn refusal(pod: &Pod, facts: &NodeFacts) -> Option<Notice> {
    forbidden_sysctl(pod, &facts.unsafe_sysctls).or_else(|| app_armor(pod, facts))
}

/// Why a pod that has `now` can never be what it wants to be, however much room there is.
pub fn never_resized(pod: &Pod, now: &Pod, facts: &NodeFacts) -> Option<String> {
    for (_, container) in containers(pod) {
        let mut all = containers(now);
        let Some((_, before)) = all.find(|(_, before)| before.name == container.name) else {
            continue;
        };
        let request =
            |c: &Container, name: &str| quantities(c.resources.as_ref().and_then(|r| r.requests.as_ref())).remove(name);
        let swaps = |pod: &Pod, c: &Container| may_swap(pod, c, facts);
        if request(&container, "memory") != request(&before, "memory")
            && !needs_restart(&before, "memory")
            && (swaps(pod, &container) || swaps(now, &before))
        {
            return Some("In-place resize of containers with swap is not supported.".to_string());
        }
        if facts.static_cpus
            && qos_class(pod) == QosClass::Guaranteed
            && request(&container, "cpu") != request(&before, "cpu")
        {
            let text = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
            return Some(text.to_string());
        }
    }
    None
}

/// Kernel settings that concern one pod only, and harm no other.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

fn forbidden_sysctl(pod: &Pod, unsafe_allowed: &[String]) -> Option<Notice> {
    let sysctls = pod.spec.as_ref()?.security_context.as_ref()?.sysctls.as_ref()?;
    let problem = sysctls.iter().find_map(|s| {
        let name = dotted(&s.name);
        let allowed = unsafe_allowed.iter().map(|a| dotted(a));
        let mut patterns = SAFE_SYSCTLS.iter().map(|s| s.to_string()).chain(allowed);
        let pattern = patterns.find(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *pattern == name,
        });
        let shared = match pattern.as_deref().map(|p| namespace_of(p.trim_end_matches('*'))) {
            None => return Some(format!("{name:?} not allowlisted")),
            Some("IPC") if spec_flag(pod, |s| s.host_ipc) => "IPC",
            Some("Net") if is_host_network(pod) => "Net",
            Some(_) => return None,
        };
        Some(format!("{name:?} not allowed with host {shared} enabled"))
    })?;
    Some(Notice {
        reason: "SysctlForbidden",
        message: format!("forbidden sysctl: {problem}"),
    })
}

/// Which of the kernel's namespaces keeps a setting (or all that begin so) apart.
fn namespace_of(name: &str) -> &'static str {
    if name.starts_with("net.") {
        "Net"
    } else if ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."]
        .iter()
        .any(|p| name.starts_with(p))
    {
        "IPC"
    } else {
        ""
    }
}

/// A setting's name with dots between its parts. Where slashes separate, dots are part of names (of network cards, say).
pub(crate) fn dotted(name: &str) -> String {
    match name.find(['.', '/']).map(|i| name.as_bytes()[i]) {
        Some(b'/') => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_string(),
    }
}

fn app_armor(pod: &Pod, facts: &NodeFacts) -> Option<Notice> {
    let wanted: Vec<AppArmorProfile> = containers(pod)
        .filter_map(|(_, c)| security::app_armor_wanted(pod, &c))
        .collect();
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.as_ref()?.app_armor_profile.as_ref());
    let confines = |p: &AppArmorProfile| p.type_ != "Unconfined";
    if !wanted.iter().chain(of_pod).any(confines) {
        return None;
    }
    let nameless = |p: &AppArmorProfile| {
        p.type_ == "Localhost" && p.localhost_profile.as_deref().unwrap_or_default().trim().is_empty()
    };
    let problem = match facts.app_armor {
        false => "AppArmor is not enabled on the host",
        true if wanted.iter().any(nameless) => "invalid empty AppArmor profile name",
        true => return None,
    };
    Some(Notice {
        reason: "AppArmor",
        message: format!("Cannot enforce AppArmor: {problem}"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::{Value, json};

    fn sysctl(name: &str) -> Value {
        json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}})
    }

    #[test]
    fn sysctls() {
        let facts = NodeFacts {
            unsafe_sysctls: ["kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/eth0.1/*"]
                .map(String::from)
                .into(),
            ..NodeFacts::default()
        };
        for (name, more, expected) in [
            ("net.ipv4.tcp_syncookies", json!({}), ""),
            ("net/ipv4/tcp_syncookies", json!({}), ""),
            ("kernel.msgmax", json!({}), ""),
            ("net.core.somaxconn", json!({}), ""),
            ("net/ipv4/conf/eth0.1/forwarding", json!({}), ""),
            (
                "net.core.somaxconn2",
                json!({}),
                "\"net.core.somaxconn2\" not allowlisted",
            ),
            ("vm.swappiness", json!({}), "\"vm.swappiness\" not allowlisted"),
            (
                "net.ipv4.tcp_syncookies",
                json!({"hostNetwork": true}),
                "\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled",
            ),
            ("net.ipv4.tcp_syncookies", json!({"hostIPC": true}), ""),
            (
                "kernel.msgmax",
                json!({"hostIPC": true}),
                "\"kernel.msgmax\" not allowed with host IPC enabled",
            ),
        ] {
            let mut spec = sysctl(name);
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            let got = refusal(&testing::pod(spec), &facts);
            let expected = (!expected.is_empty()).then(|| Notice {
                reason: "SysctlForbidden",
                message: format!("forbidden sysctl: {expected}"),
            });
            assert_eq!(got, expected, "{name} {more}");
        }
    }

    #[test]
    fn resizes_that_can_never_be() {
        let asking = |cpu: &str, memory: &str, limits: bool, policy: &str| {
            let amounts = json!({"cpu": cpu, "memory": memory});
            let limits = if limits { amounts.clone() } else { json!({}) };
            testing::pod(
                json!({"containers": [{"name": "c", "resources": {"requests": amounts, "limits": limits},
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}),
            )
        };
        let pinned = NodeFacts {
            static_cpus: true,
            ..NodeFacts::default()
        };
        let mut swapping = NodeFacts {
            memory_capacity: 1 << 30,
            ..NodeFacts::default()
        };
        swapping.cgroups.version = crate::spec::CgroupVersion::V2;
        (swapping.swap.controller, swapping.swap.limited) = (true, true);
        let swap = Some("In-place resize of containers with swap is not supported.".to_string());
        let cpus = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"".to_string();
        let stays = "NotRequired";
        for (facts, new, old, want) in [
            (
                &pinned,
                asking("2", "1Mi", true, stays),
                asking("1", "1Mi", true, stays),
                Some(cpus),
            ),
            (
                &pinned,
                asking("1", "2Mi", true, stays),
                asking("1", "1Mi", true, stays),
                None,
            ),
            (
                &pinned,
                asking("2", "1Mi", false, stays),
                asking("1", "1Mi", false, stays),
                None,
            ),
            (
                &swapping,
                asking("1", "2Mi", false, stays),
                asking("1", "1Mi", false, stays),
                swap,
            ),
            (
                &swapping,
                asking("2", "1Mi", false, stays),
                asking("1", "1Mi", false, stays),
                None,
            ),
            (
                &swapping,
                asking("1", "2Mi", false, "RestartContainer"),
                asking("1", "1Mi", false, "RestartContainer"),
                None,
            ),
        ] {
            assert_eq!(never_resized(&new, &old, facts), want, "{new:?}");
        }
    }

    #[test]
    fn names_with_slashes() {
        for (name, expected) in [
            ("a.b.c", "a.b.c"),
            ("a/b/c", "a.b.c"),
            ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x"),
            ("net.ipv4.conf.eth0/1.x", "net.ipv4.conf.eth0/1.x"),
            ("a", "a"),
        ] {
            assert_eq!(dotted(name), expected);
        }
    }

    #[test]
    fn app_armor_needs_the_kernel() {
        let local = json!({"type": "Localhost", "localhostProfile": "x"});
        let pod = |profile: Value| testing::pod(json!({"securityContext": {"appArmorProfile": profile}}));
        let without = NodeFacts::default();
        let with = NodeFacts {
            app_armor: true,
            ..NodeFacts::default()
        };
        let message = |pod: &Pod, facts| refusal(pod, facts).map(|n| n.message);
        assert_eq!(message(&testing::pod(json!({})), &without), None);
        assert_eq!(message(&pod(json!({"type": "Unconfined"})), &without), None);
        assert_eq!(
            message(&pod(local.clone()), &without).unwrap(),
            "Cannot enforce AppArmor: AppArmor is not enabled on the host"
        );
        assert_eq!(message(&pod(local), &with), None);
        let nameless =
            json!({"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "Localhost"}}}]});
        assert_eq!(
            message(&testing::pod(nameless), &with).unwrap(),
            "Cannot enforce AppArmor: invalid empty AppArmor profile name"
        );
    }
}
