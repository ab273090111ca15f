//! A pod's sandbox.

use std::path::Path;

use crate::cri::messages::{NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace};
use crate::embedded::spec::{IdRange, SandboxSpec, UserNamespaceSpec};

use super::{PlanError, Result};

const SHM_BYTES: u64 = 64 << 20;

pub(crate) fn namespace_options(config: &PodSandboxConfig) -> NamespaceOption {
    let linux = config.linux.clone().unwrap_or_default();
    linux
        .security_context
        .unwrap_or_default()
        .namespace_options
        .unwrap_or_default()
}

/// The pod's cgroup, made by the kubelet; containers' are below it.
pub(crate) fn cgroup_parent(config: &PodSandboxConfig) -> String {
    config.linux.clone().unwrap_or_default().cgroup_parent
}

/// Host-network pods have the node's host name too.
pub(crate) fn plan(id: &str, dir: &Path, config: &PodSandboxConfig) -> Result<SandboxSpec> {
    let options = namespace_options(config);
    let network = options.network != NamespaceMode::Node as i32;
    let ipc = options.ipc != NamespaceMode::Node as i32;
    let user = user_namespace(options.userns_options.as_ref())?;
    Ok(SandboxSpec {
        id: id.to_string(),
        dir: dir.to_path_buf(),
        network,
        ipc,
        hostname: network.then(|| config.hostname.clone()),
        shared_pid: options.pid == NamespaceMode::Pod as i32,
        sysctls: sysctls(config, network, user.is_some())?,
        user,
        shm_bytes: ipc.then_some(SHM_BYTES),
        cgroup: None,
    })
}

pub(crate) fn user_namespace(options: Option<&UserNamespace>) -> Result<Option<UserNamespaceSpec>> {
    let Some(options) = options else { return Ok(None) };
    match NamespaceMode::try_from(options.mode) {
        Ok(NamespaceMode::Node) => Ok(None),
        Ok(NamespaceMode::Pod) => {
            let ranges = |list: &[crate::cri::messages::IDMapping]| {
                let range = |m: &crate::cri::messages::IDMapping| IdRange {
                    inside: m.container_id,
                    outside: m.host_id,
                    count: m.length,
                };
                match list.is_empty() {
                    true => Err(PlanError("user namespace without mappings".to_string())),
                    false => Ok(list.iter().map(range).collect()),
                }
            };
            Ok(Some(UserNamespaceSpec {
                users: ranges(&options.uids)?,
                groups: ranges(&options.gids)?,
            }))
        }
        _ => Err(PlanError(format!("unsupported user namespace mode {}", options.mode))),
    }
}

/// What the pod asks for, and, unless it does, what containerd lets every pod do: open low ports and ping.
fn sysctls(config: &PodSandboxConfig, network: bool, mapped_users: bool) -> Result<Vec<(String, String)>> {
    let mut sysctls = config.linux.clone().unwrap_or_default().sysctls;
    if network {
        let set = |name: &str, value: &str, all: &mut std::collections::BTreeMap<String, String>| {
            all.entry(name.to_string()).or_insert(value.to_string());
        };
        set("net.ipv4.ip_unprivileged_port_start", "0", &mut sysctls);
        if !mapped_users {
            set("net.ipv4.ping_group_range", "0 2147483647", &mut sysctls);
        }
    }
    sysctls
        .into_iter()
        .map(|(name, value)| Ok((sysctl_file(&name)?, value)))
        .collect()
}

/// The file of a parameter below `/proc/sys`. With slashes in it, dots are part of names, as in `sysctl`.
fn sysctl_file(name: &str) -> Result<String> {
    let file = match name.contains('/') {
        true => name.to_string(),
        false => name.replace('.', "/"),
    };
    match file
        .split('/')
        .all(|part| !part.is_empty() && part != "." && part != "..")
    {
        true => Ok(file),
        false => Err(PlanError(format!("invalid sysctl {name:?}"))),
    }
}

/// `/etc/resolv.conf` by a DNS configuration.
pub(crate) fn resolv_conf(config: &crate::cri::messages::DNSConfig) -> String {
    let mut text = String::new();
    if !config.searches.is_empty() {
        text.push_str(&format!("search {}\n", config.searches.join(" ")));
    }
    for server in &config.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !config.options.is_empty() {
        text.push_str(&format!("options {}\n", config.options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::{DNSConfig, IDMapping, LinuxPodSandboxConfig, LinuxSandboxSecurityContext};

    fn config(options: NamespaceOption) -> PodSandboxConfig {
        PodSandboxConfig {
            hostname: "web".to_string(),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                    ..LinuxSandboxSecurityContext::default()
                }),
                sysctls: [("kernel.shm_rmid_forced".to_string(), "1".to_string())].into(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    #[test]
    fn namespaces_by_mode() {
        let own = plan("s", Path::new("/d"), &config(NamespaceOption::default())).unwrap();
        assert!(own.network && own.ipc && own.shared_pid);
        assert_eq!((own.hostname.as_deref(), own.shm_bytes), (Some("web"), Some(SHM_BYTES)));
        let files: Vec<&str> = own.sysctls.iter().map(|(file, _)| file.as_str()).collect();
        assert_eq!(
            files,
            [
                "kernel/shm_rmid_forced",
                "net/ipv4/ip_unprivileged_port_start",
                "net/ipv4/ping_group_range"
            ]
        );
        let node = NamespaceMode::Node as i32;
        let hosts = plan(
            "s",
            Path::new("/d"),
            &config(NamespaceOption {
                network: node,
                pid: node,
                ipc: node,
                ..NamespaceOption::default()
            }),
        )
        .unwrap();
        assert!(!hosts.network && !hosts.ipc && !hosts.shared_pid);
        assert_eq!((hosts.hostname, hosts.shm_bytes, hosts.sysctls.len()), (None, None, 1));
    }

    #[test]
    fn user_namespaces_need_mappings() {
        let mapping = IDMapping {
            host_id: 65_536,
            container_id: 0,
            length: 65_536,
        };
        let options = UserNamespace {
            mode: NamespaceMode::Pod as i32,
            uids: vec![mapping.clone()],
            gids: vec![mapping],
        };
        assert_eq!(
            user_namespace(Some(&options)).unwrap().unwrap().root(),
            (65_536, 65_536)
        );
        let without = UserNamespace {
            uids: vec![],
            ..options.clone()
        };
        assert!(user_namespace(Some(&without)).is_err());
        let node = UserNamespace {
            mode: NamespaceMode::Node as i32,
            ..options
        };
        assert_eq!(user_namespace(Some(&node)), Ok(None));
    }

    #[test]
    fn sysctls_stay_below_proc_sys() {
        assert_eq!(sysctl_file("net.ipv4.conf.all").unwrap(), "net/ipv4/conf/all");
        assert_eq!(sysctl_file("net/ipv4/conf/eth0.1/x").unwrap(), "net/ipv4/conf/eth0.1/x");
        assert!(sysctl_file("net/../../etc").is_err());
        assert!(sysctl_file("").is_err());
    }

    #[test]
    fn resolver_configuration() {
        let dns = DNSConfig {
            servers: vec!["10.0.0.10".to_string(), "1.1.1.1".to_string()],
            searches: vec!["a.local".to_string(), "b".to_string()],
            options: vec!["ndots:5".to_string()],
        };
        assert_eq!(
            resolv_conf(&dns),
            "search a.local b\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n"
        );
        assert_eq!(resolv_conf(&DNSConfig::default()), "");
    }
}
