//! The checks of the baseline standard: known ways out of a container are closed.

use std::collections::BTreeSet;

use orlop_api::Value;

use super::checks::{Pod, Violation, named, plural, quoted, uses};
use crate::lookup::{items, text};

fn annotations<'a>(pod: &Pod<'a>) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    let annotations = pod.metadata.get("annotations").and_then(Value::as_object);
    let pairs = annotations.into_iter().flatten();
    pairs.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or("")))
}

pub(super) fn app_armor_profile(pod: &Pod<'_>) -> Option<Violation> {
    let mut bad_types = BTreeSet::new();
    let setters = pod.setters("/appArmorProfile").bad(|profile| {
        let kind = text(profile, &["type"]);
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            bad_types.insert(kind.to_string());
        }
        bad
    });
    let bad_annotations: Vec<String> = annotations(pod)
        .filter(|(key, value)| {
            let fine = matches!(*value, "" | "runtime/default") || value.starts_with("localhost/");
            key.starts_with("container.apparmor.security.beta.kubernetes.io/") && !fine
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let mut told = vec![];
    if !setters.is_empty() {
        told.push(setters);
    }
    if !bad_annotations.is_empty() {
        told.push(plural("annotation", bad_annotations.len()));
    }
    if told.is_empty() {
        return None;
    }
    let values: Vec<String> = bad_types.into_iter().chain(bad_annotations).collect();
    Some(Violation {
        reason: match values.len() {
            1 => "forbidden AppArmor profile",
            _ => "forbidden AppArmor profiles",
        },
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            told.join(" and "),
            quoted(&values)
        ),
    })
}

const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub(super) fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let mut added = BTreeSet::new();
    let bad = pod.containers_where(|c| adds_beyond(c, CAPABILITIES, &mut added));
    (!bad.is_empty()).then(|| Violation {
        reason: "non-default capabilities",
        detail: format!(
            "{} must not include {} in securityContext.capabilities.add",
            named("container", &bad),
            quoted(&added)
        ),
    })
}

/// Whether the container adds capabilities that are not allowed; these are collected.
pub(super) fn adds_beyond(container: &Value, allowed: &[&str], added: &mut BTreeSet<String>) -> bool {
    let beyond: Vec<String> = items(container, &["securityContext", "capabilities", "add"])
        .iter()
        .filter_map(Value::as_str)
        .filter(|capability| !allowed.contains(capability))
        .map(str::to_string)
        .collect();
    let any = !beyond.is_empty();
    added.extend(beyond);
    any
}

pub(super) fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|name| pod.spec[**name] == true)
        .map(|name| format!("{name}=true"))
        .collect();
    (!shared.is_empty()).then(|| Violation {
        reason: "host namespaces",
        detail: shared.join(", "),
    })
}

pub(super) fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let bad: Vec<&str> = items(pod.spec, &["volumes"])
        .iter()
        .filter(|v| v.get("hostPath").is_some())
        .map(|v| text(v, &["name"]))
        .collect();
    (!bad.is_empty()).then(|| Violation {
        reason: "hostPath volumes",
        detail: named("volume", &bad),
    })
}

pub(super) fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let bad = pod.containers_where(|container| {
        let own: Vec<String> = items(container, &["ports"])
            .iter()
            .filter_map(|p| p["hostPort"].as_i64().filter(|n| *n != 0))
            .map(|n| n.to_string())
            .collect();
        let any = !own.is_empty();
        ports.extend(own);
        any
    });
    (!bad.is_empty()).then(|| Violation {
        reason: "hostPort",
        detail: format!(
            "{} {} {} {}",
            named("container", &bad),
            uses(bad.len()),
            plural("hostPort", ports.len()),
            ports.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

const HANDLERS: &[&[&str]] = &[
    &["livenessProbe"],
    &["readinessProbe"],
    &["startupProbe"],
    &["lifecycle", "postStart"],
    &["lifecycle", "preStop"],
];

pub(super) fn host_probes_and_lifecycle(pod: &Pod<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let bad: BTreeSet<&str> = pod
        .containers_where(|container| {
            let own: Vec<String> = HANDLERS
                .iter()
                .flat_map(|path| {
                    ["httpGet", "tcpSocket"].map(|way| text(container, &[path, &[way, "host"][..]].concat()))
                })
                .filter(|host| !host.is_empty())
                .map(str::to_string)
                .collect();
            let any = !own.is_empty();
            hosts.extend(own);
            any
        })
        .into_iter()
        .collect();
    (!bad.is_empty()).then(|| Violation {
        reason: "probe or lifecycle host",
        detail: format!(
            "{} {} {} {} {}",
            plural("container", bad.len()),
            quoted(&bad),
            uses(bad.len()),
            plural("probe or lifecycle host", hosts.len()),
            quoted(&hosts)
        ),
    })
}

pub(super) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.containers_where(|c| c.pointer("/securityContext/privileged") == Some(&Value::Bool(true)));
    (!bad.is_empty()).then(|| Violation {
        reason: "privileged",
        detail: format!(
            "{} must not set securityContext.privileged=true",
            named("container", &bad)
        ),
    })
}

pub(super) fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let bad = pod.containers_where(|container| {
        let kind = container.pointer("/securityContext/procMount").and_then(Value::as_str);
        let unmasked = kind.filter(|k| *k != "Default");
        kinds.extend(unmasked.map(str::to_string));
        unmasked.is_some()
    });
    (!bad.is_empty()).then(|| Violation {
        reason: "procMount",
        detail: format!(
            "{} must not set securityContext.procMount to {}",
            named("container", &bad),
            quoted(&kinds)
        ),
    })
}

pub(super) fn se_linux_1_0(pod: &Pod<'_>) -> Option<Violation> {
    se_linux(pod, &["", "container_t", "container_init_t", "container_kvm_t"])
}

pub(super) fn se_linux_1_31(pod: &Pod<'_>) -> Option<Violation> {
    let types = [
        "",
        "container_t",
        "container_init_t",
        "container_kvm_t",
        "container_engine_t",
    ];
    se_linux(pod, &types)
}

fn se_linux(pod: &Pod<'_>, types: &[&str]) -> Option<Violation> {
    let (mut bad_types, mut user, mut role) = (BTreeSet::new(), false, false);
    let setters = pod.setters("/seLinuxOptions").bad(|options| {
        let kind = text(options, &["type"]);
        let bad_type = !types.contains(&kind);
        if bad_type {
            bad_types.insert(kind.to_string());
        }
        let (own_user, own_role) = (
            !text(options, &["user"]).is_empty(),
            !text(options, &["role"]).is_empty(),
        );
        user |= own_user;
        role |= own_role;
        bad_type || own_user || own_role
    });
    if setters.is_empty() {
        return None;
    }
    let mut told = vec![];
    if !bad_types.is_empty() {
        told.push(format!("{} {}", plural("type", bad_types.len()), quoted(&bad_types)));
    }
    if user {
        told.push("user may not be set".to_string());
    }
    if role {
        told.push("role may not be set".to_string());
    }
    Some(Violation {
        reason: "seLinuxOptions",
        detail: format!(
            "{setters} set forbidden securityContext.seLinuxOptions: {}",
            told.join("; ")
        ),
    })
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Before 1.19 there were annotations only.
pub(super) fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    let keys: Vec<String> = pod
        .containers()
        .map(|c| format!("{SECCOMP_CONTAINER}{}", text(c, &["name"])))
        .chain([SECCOMP_POD.to_string()])
        .collect();
    let bad: BTreeSet<String> = annotations(pod)
        .filter(|(key, value)| {
            let fine = matches!(*value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
            keys.iter().any(|k| k == key) && !fine
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    (!bad.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "forbidden {} {}",
            plural("annotation", bad.len()),
            bad.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn seccomp_profile(pod: &Pod<'_>) -> Option<Violation> {
    let mut bad_types = BTreeSet::new();
    let setters = pod.setters("/seccompProfile").bad(|profile| {
        let kind = text(profile, &["type"]);
        let bad = !is_seccomp_type(kind);
        if bad {
            bad_types.insert(kind.to_string());
        }
        bad
    });
    (!setters.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "{setters} must not set securityContext.seccompProfile.type to {}",
            quoted(&bad_types)
        ),
    })
}

pub(super) fn is_seccomp_type(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

/// Sysctls that stay within a pod, and the version in which each was found to.
const SYSCTLS: &[(u32, &str)] = &[
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

pub(super) fn sysctls(pod: &Pod<'_>, version: u32) -> Option<Violation> {
    let safe = |name: &str| SYSCTLS.iter().any(|(since, n)| *since <= version && *n == name);
    let bad: Vec<&str> = items(pod.spec, &["securityContext", "sysctls"])
        .iter()
        .map(|s| text(s, &["name"]))
        .filter(|name| !safe(name))
        .collect();
    (!bad.is_empty()).then(|| Violation {
        reason: "forbidden sysctls",
        detail: bad.join(", "),
    })
}

pub(super) fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let setters = pod.setters("/windowsOptions/hostProcess").bad(|v| *v == true);
    (!setters.is_empty()).then(|| Violation {
        reason: "hostProcess",
        detail: format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"),
    })
}
