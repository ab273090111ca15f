//! The CRI PodSandboxConfig of a pod.

use std::collections::{BTreeMap, HashSet};

use orlop_api::types::core::{Container, Pod};
use orlop_runtime::cri::messages as cri;

use super::{
    NodeFacts, Notice, SpecError, admit, containers, dns, hostname, is_host_network, labels, name, namespace,
    pod_log_dir, resources, security, uid,
};

/// The sandbox of a pod; `users` are the ids it gets for its own where `hostUsers` is false.
pub fn sandbox_config(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    users: Option<&cri::UserNamespace>,
) -> Result<cri::PodSandboxConfig, SpecError> {
    // On the node's network the pod has the node's name.
    let hostname = match is_host_network(pod) {
        true => String::new(),
        false => hostname::kernel_hostname(pod, facts)?,
    };
    Ok(cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name(pod).to_string(),
            uid: uid(pod).to_string(),
            namespace: namespace(pod).to_string(),
            attempt,
        }),
        hostname,
        log_directory: pod_log_dir(pod, facts).to_string_lossy().into_owned(),
        dns_config: Some(dns::pod_dns(pod, facts)?.0),
        port_mappings: port_mappings(pod),
        labels: labels::sandbox_labels(pod),
        annotations: labels::sandbox_annotations(pod),
        linux: Some(linux(pod, facts, users)?),
    })
}

/// Warnings to record when the sandbox is created.
pub fn sandbox_notices(pod: &Pod, facts: &NodeFacts) -> Vec<Notice> {
    dns::pod_dns(pod, facts).map(|(_, notices)| notices).unwrap_or_default()
}

fn linux(
    pod: &Pod,
    facts: &NodeFacts,
    users: Option<&cri::UserNamespace>,
) -> Result<cri::LinuxPodSandboxConfig, SpecError> {
    let sc = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let sysctls = sc.and_then(|sc| sc.sysctls.as_deref()).unwrap_or_default();
    let sysctls: BTreeMap<_, _> = sysctls
        .iter()
        .map(|s| (admit::dotted(&s.name), s.value.clone()))
        .collect();
    let (groups, groups_policy) = security::supplemental_groups(pod)?;
    Ok(cri::LinuxPodSandboxConfig {
        cgroup_parent: resources::pod_cgroup_parent(pod, &facts.cgroups),
        security_context: Some(cri::LinuxSandboxSecurityContext {
            namespace_options: Some(security::namespaces(pod, users)?),
            selinux_options: sc.and_then(|sc| sc.se_linux_options.as_ref()).map(security::selinux),
            run_as_user: sc.and_then(|sc| sc.run_as_user).map(|value| cri::Int64Value { value }),
            run_as_group: sc.and_then(|sc| sc.run_as_group).map(|value| cri::Int64Value { value }),
            supplemental_groups: groups,
            supplemental_groups_policy: groups_policy as i32,
            privileged: containers(pod).any(|(_, c)| is_privileged(&c)),
            // The sandbox's own process needs no more than this, whatever the containers ask for.
            seccomp: Some(cri::SecurityProfile::default()),
            ..Default::default()
        }),
        sysctls,
        overhead: Some(resources::overhead(pod, facts)),
        resources: Some(resources::sandbox_resources(pod, facts)),
    })
}

fn is_privileged(container: &Container) -> bool {
    let sc = container.security_context.as_ref();
    sc.and_then(|sc| sc.privileged).unwrap_or(false)
}

/// The regular containers' ports; a port given twice in a container counts once.
fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    let mut out = vec![];
    for container in pod.spec.iter().flat_map(|s| &s.containers) {
        let mut seen = HashSet::new();
        for port in container.ports.iter().flatten() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let mapping = cri::PortMapping {
                protocol: match protocol {
                    "UDP" => cri::Protocol::Udp,
                    "SCTP" => cri::Protocol::Sctp,
                    _ => cri::Protocol::Tcp,
                } as i32,
                container_port: port.container_port,
                host_port: port.host_port.unwrap_or(0),
                host_ip: port.host_ip.clone().unwrap_or_default(),
            };
            let key = match port.name.as_deref().filter(|n| !n.is_empty()) {
                Some(name) => name.to_string(),
                None => format!(
                    "{protocol} {} {} {}",
                    mapping.host_ip, mapping.container_port, mapping.host_port
                ),
            };
            if seen.insert(key) {
                out.push(mapping);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::json;

    fn facts() -> NodeFacts {
        NodeFacts {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn a_plain_pod() {
        let pod = testing::pod(json!({}));
        let config = sandbox_config(&pod, &facts(), 2, None).unwrap();
        let identity = [
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "u-1"),
        ];
        let expected = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: "web".into(),
                uid: "u-1".into(),
                namespace: "default".into(),
                attempt: 2,
            }),
            hostname: "web".into(),
            log_directory: "/var/log/pods/default_web_u-1".into(),
            dns_config: Some(cri::DNSConfig {
                servers: vec!["10.96.0.10".into()],
                searches: ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"]
                    .map(String::from)
                    .into(),
                options: vec!["ndots:5".into()],
            }),
            port_mappings: vec![],
            labels: identity.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            annotations: BTreeMap::new(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: "/kubepods/besteffort/podu-1".into(),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(cri::NamespaceOption {
                        pid: cri::NamespaceMode::Container as i32,
                        userns_options: Some(cri::UserNamespace {
                            mode: cri::NamespaceMode::Node as i32,
                            ..Default::default()
                        }),
                        ..Default::default()
                    }),
                    seccomp: Some(cri::SecurityProfile {
                        profile_type: cri::ProfileType::RuntimeDefault as i32,
                        localhost_ref: String::new(),
                    }),
                    ..Default::default()
                }),
                sysctls: BTreeMap::new(),
                overhead: Some(cri::LinuxContainerResources::default()),
                resources: Some(cri::LinuxContainerResources {
                    cpu_shares: 2,
                    cpu_period: 100_000,
                    ..Default::default()
                }),
            }),
        };
        assert_eq!(config, expected);
        assert_eq!(sandbox_notices(&pod, &facts()), []);
    }

    #[test]
    fn a_pod_with_everything() {
        let pod = testing::pod(json!({
            "hostNetwork": true, "hostPID": true, "hostIPC": true, "dnsPolicy": "Default",
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000, 5000],
                "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0:c1,c2", "type": "t"},
                "sysctls": [{"name": "net/core/somaxconn", "value": "128"}],
            },
            "overhead": {"cpu": "250m", "memory": "64Mi"},
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "128Mi"}}},
                {"name": "b", "securityContext": {"privileged": true}},
            ],
        }));
        let config = sandbox_config(&pod, &facts(), 0, None).unwrap();
        assert_eq!(config.hostname, "");
        let linux = config.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/burstable/podu-1");
        assert_eq!(
            linux.sysctls,
            BTreeMap::from([("net.core.somaxconn".into(), "128".into())])
        );
        let sc = linux.security_context.unwrap();
        assert_eq!(sc.run_as_user.unwrap().value, 1000);
        assert_eq!(sc.run_as_group.unwrap().value, 2000);
        assert_eq!(sc.supplemental_groups, [3000, 4000, 5000]);
        assert_eq!(
            sc.supplemental_groups_policy,
            cri::SupplementalGroupsPolicy::Strict as i32
        );
        assert_eq!(sc.selinux_options.unwrap().level, "s0:c1,c2");
        assert!(sc.privileged);
        let namespaces = sc.namespace_options.unwrap();
        let node = cri::NamespaceMode::Node as i32;
        assert_eq!((namespaces.network, namespaces.pid, namespaces.ipc), (node, node, node));
        let overhead = linux.overhead.unwrap();
        assert_eq!(
            (overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes),
            (256, 25_000, 64 << 20)
        );
        let own = linux.resources.unwrap();
        assert_eq!(
            (own.cpu_shares, own.cpu_quota, own.memory_limit_in_bytes),
            (102, 100_000, 128 << 20)
        );
    }

    #[test]
    fn a_pod_with_users_of_its_own() {
        let pod = testing::pod(json!({"hostUsers": false, "shareProcessNamespace": true}));
        assert_eq!(
            sandbox_config(&pod, &facts(), 0, None).unwrap_err().0,
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        let ids = vec![cri::IDMapping {
            host_id: 65536,
            container_id: 0,
            length: 65536,
        }];
        let users = cri::UserNamespace {
            mode: cri::NamespaceMode::Pod as i32,
            uids: ids.clone(),
            gids: ids,
        };
        let config = sandbox_config(&pod, &facts(), 0, Some(&users)).unwrap();
        let namespaces = config
            .linux
            .unwrap()
            .security_context
            .unwrap()
            .namespace_options
            .unwrap();
        assert_eq!(namespaces.userns_options, Some(users));
        assert_eq!(namespaces.pid, cri::NamespaceMode::Pod as i32);
    }

    #[test]
    fn ports() {
        let pod = testing::pod(json!({"containers": [
            {"name": "a", "ports": [
                {"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"},
                {"containerPort": 53, "protocol": "UDP"},
                {"containerPort": 53, "protocol": "UDP"},
                {"containerPort": 53, "protocol": "TCP"},
                {"containerPort": 9, "protocol": "SCTP", "name": "s"},
                {"containerPort": 10, "name": "s"},
            ]},
            {"name": "b", "ports": [{"containerPort": 53, "protocol": "UDP"}]},
        ], "initContainers": [{"name": "i", "ports": [{"containerPort": 1}]}]}));
        let shown: Vec<_> = port_mappings(&pod)
            .iter()
            .map(|p| format!("{}/{} {}:{}", p.protocol, p.container_port, p.host_ip, p.host_port))
            .collect();
        assert_eq!(
            shown,
            ["0/80 127.0.0.1:8080", "1/53 :0", "0/53 :0", "2/9 :0", "1/53 :0"]
        );
    }

    #[test]
    fn unknown_policies_and_names_are_errors() {
        let policy = testing::pod(json!({"securityContext": {"supplementalGroupsPolicy": "Odd"}}));
        assert_eq!(
            sandbox_config(&policy, &facts(), 0, None).unwrap_err().0,
            "unsupported supplementalGroupsPolicy: Odd"
        );
        let hostname = testing::pod(json!({"hostname": "?"}));
        assert!(sandbox_config(&hostname, &facts(), 0, None).is_err());
    }
}
