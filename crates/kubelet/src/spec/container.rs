//! The CRI ContainerConfig of a container.

use std::path::Path;

use orlop_api::types::core::{Container, Pod};
use orlop_runtime::cri::messages as cri;

use super::security::{self, ImageUser};
use super::{ContainerKind, NodeFacts, SpecError, expand_all, is_host_network, labels, log_path, resources, uid};

const HOSTS: &str = "/etc/hosts";

/// A container to be made, and what others have found out for it.
#[derive(Clone, Debug)]
pub struct ContainerInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub kind: ContainerKind,
    /// How often it was started before.
    pub attempt: u32,
    /// What the image puller returned.
    pub image_ref: &'a str,
    /// What the runtime says about the image: whom it runs as.
    pub image: Option<&'a cri::Image>,
    pub env: Vec<cri::KeyValue>,
    /// The volumes' mounts; the hosts file and the termination log are added here.
    pub mounts: Vec<cri::Mount>,
    pub devices: Vec<cri::Device>,
    pub facts: &'a NodeFacts,
    pub pod_ips: &'a [String],
    /// The file for the container's last words (see [`super::files::termination_log`]).
    pub termination_log: Option<&'a Path>,
    /// The id of the container whose processes an ephemeral one is to see.
    pub target: Option<&'a str>,
    /// The pod's own user ids, where `hostUsers` is false.
    pub users: Option<&'a cri::UserNamespace>,
}

impl<'a> ContainerInput<'a> {
    /// A container with nothing found out for it but its image.
    pub fn new(
        pod: &'a Pod,
        container: &'a Container,
        kind: ContainerKind,
        image_ref: &'a str,
        facts: &'a NodeFacts,
    ) -> ContainerInput<'a> {
        ContainerInput {
            pod,
            container,
            kind,
            attempt: 0,
            image_ref,
            image: None,
            env: vec![],
            mounts: vec![],
            devices: vec![],
            facts,
            pod_ips: &[],
            termination_log: None,
            target: None,
            users: None,
        }
    }
}

/// A container's message. An error waits as CreateContainerConfigError.
pub fn container_config(input: &ContainerInput<'_>) -> Result<cri::ContainerConfig, SpecError> {
    let ContainerInput {
        pod, container, facts, ..
    } = *input;
    let user = ImageUser::of(input.image);
    let mut security = security::container_security(pod, container, &user, facts, input.users)?;
    aim_at_target(&mut security, input);
    let flag = |flag: Option<bool>| flag.unwrap_or(false);
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: container.name.clone(),
            attempt: input.attempt,
        }),
        image: Some(cri::ImageSpec {
            image: input.image_ref.to_string(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expand_all(container.command.as_deref(), &input.env),
        args: expand_all(container.args.as_deref(), &input.env),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: input.env.clone(),
        mounts: mounts(input),
        devices: input.devices.clone(),
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, input.attempt),
        log_path: log_path(&container.name, input.attempt),
        stdin: flag(container.stdin),
        stdin_once: flag(container.stdin_once),
        tty: flag(container.tty),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources::linux_resources(pod, container, facts)),
            security_context: Some(security),
        }),
        cdi_devices: vec![],
        stop_signal: stop_signal(container),
    })
}

/// An ephemeral container joins its target's processes, unless all of the pod's are shared anyway.
fn aim_at_target(security: &mut cri::LinuxContainerSecurityContext, input: &ContainerInput<'_>) {
    let (Some(target), Some(namespaces)) = (input.target, security.namespace_options.as_mut()) else {
        return;
    };
    if namespaces.pid == cri::NamespaceMode::Container as i32 {
        namespaces.pid = cri::NamespaceMode::Target as i32;
        namespaces.target_id = target.to_string();
    }
}

fn mounts(input: &ContainerInput<'_>) -> Vec<cri::Mount> {
    let ContainerInput {
        pod, container, facts, ..
    } = *input;
    let relabel = facts.selinux;
    let mut out = input.mounts.clone();
    let own_hosts = container.volume_mounts.iter().flatten().any(|m| m.mount_path == HOSTS);
    // Without an address there is nothing to write into it yet.
    if !own_hosts && (is_host_network(pod) || !input.pod_ips.is_empty()) {
        out.push(cri::Mount {
            container_path: HOSTS.to_string(),
            host_path: facts.hosts_path(uid(pod)).to_string_lossy().into_owned(),
            selinux_relabel: relabel,
            ..Default::default()
        });
    }
    let message_path = container.termination_message_path.as_deref().filter(|p| !p.is_empty());
    if let (Some(file), Some(path)) = (input.termination_log, message_path) {
        out.push(cri::Mount {
            container_path: absolute(path),
            host_path: file.to_string_lossy().into_owned(),
            selinux_relabel: relabel,
            ..Default::default()
        });
    }
    if let Some(users) = input.users {
        for mount in &mut out {
            mount.uid_mappings = users.uids.clone();
            mount.gid_mappings = users.gids.clone();
        }
    }
    out
}

fn absolute(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_string(),
        false => format!("/{path}"),
    }
}

/// Signals by their number in the CRI, which is not the kernel's.
#[rustfmt::skip]
const SIGNALS: [&str; 36] = [
    "", "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO",
    "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS",
    "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH",
    "SIGXCPU", "SIGXFSZ", "SIGRTMIN",
];

/// The signal to end a container with; zero for the image's.
fn stop_signal(container: &Container) -> i32 {
    let Some(name) = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()) else {
        return cri::Signal::RuntimeDefault as i32;
    };
    let real_time = |prefix: &str, most: i32| {
        let n = name.strip_prefix(prefix)?.parse::<i32>().ok()?;
        (1..=most).contains(&n).then_some(n)
    };
    if let Some(n) = real_time("SIGRTMIN+", 15) {
        return cri::Signal::Sigrtmin as i32 + n;
    }
    if let Some(n) = real_time("SIGRTMAX-", 14) {
        return cri::Signal::Sigrtmax as i32 - n;
    }
    match name {
        "SIGRTMAX" => cri::Signal::Sigrtmax as i32,
        _ => SIGNALS.iter().position(|s| *s == name).unwrap_or(0) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::{Value, json};

    fn kv(key: &str, value: &str) -> cri::KeyValue {
        cri::KeyValue {
            key: key.into(),
            value: value.into(),
        }
    }

    #[test]
    fn a_container_with_most_things() {
        let pod = testing::pod(json!({"terminationGracePeriodSeconds": 30}));
        let container = testing::container(json!({
            "image": "busybox:1", "command": ["sh", "-c"], "args": ["echo $(A) $$(A) $(B)"], "workingDir": "/w",
            "stdin": true, "stdinOnce": true, "tty": true,
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "resources": {"limits": {"cpu": "1", "memory": "64Mi"}},
            "lifecycle": {"stopSignal": "SIGUSR1"},
        }));
        let facts = NodeFacts {
            memory_capacity: 1 << 30,
            ..NodeFacts::default()
        };
        let volume = cri::Mount {
            container_path: "/data".into(),
            host_path: "/host".into(),
            ..Default::default()
        };
        let ips = ["10.0.0.2".to_string()];
        let log = Path::new("/var/lib/kubelet/pods/u-1/containers/c/0badcafe");
        let input = ContainerInput {
            attempt: 3,
            env: vec![kv("A", "a")],
            mounts: vec![volume.clone()],
            pod_ips: &ips,
            termination_log: Some(log),
            ..ContainerInput::new(&pod, &container, ContainerKind::Regular, "sha256:1234", &facts)
        };
        let config = container_config(&input).unwrap();
        assert_eq!(config.metadata.as_ref().unwrap().attempt, 3);
        let image = config.image.as_ref().unwrap();
        assert_eq!(
            (image.image.as_str(), image.user_specified_image.as_str()),
            ("sha256:1234", "busybox:1")
        );
        assert_eq!(config.command, ["sh", "-c"]);
        assert_eq!(config.args, ["echo a $(A) $(B)"]);
        assert_eq!(
            (config.working_dir.as_str(), config.log_path.as_str()),
            ("/w", "c/3.log")
        );
        assert!(config.stdin && config.stdin_once && config.tty);
        assert_eq!(config.stop_signal, cri::Signal::Sigusr1 as i32);
        assert_eq!(config.envs, [kv("A", "a")]);
        let mounts: Vec<_> = config
            .mounts
            .iter()
            .map(|m| (m.container_path.as_str(), m.host_path.as_str()))
            .collect();
        assert_eq!(
            mounts,
            [
                ("/data", "/host"),
                ("/etc/hosts", "/var/lib/kubelet/pods/u-1/etc-hosts"),
                (
                    "/dev/termination-log",
                    "/var/lib/kubelet/pods/u-1/containers/c/0badcafe"
                ),
            ]
        );
        assert_eq!(config.labels["io.kubernetes.container.name"], "c");
        let notes: Vec<_> = config.annotations.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            notes[1..],
            [
                "io.kubernetes.container.restartCount=3",
                "io.kubernetes.container.terminationMessagePath=/dev/termination-log",
                "io.kubernetes.container.terminationMessagePolicy=File",
                "io.kubernetes.pod.terminationGracePeriod=30",
            ]
        );
        assert!(notes[0].starts_with("io.kubernetes.container.hash="));
        let resources = config.linux.unwrap().resources.unwrap();
        assert_eq!(
            resources,
            cri::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota: 100_000,
                cpu_shares: 1024,
                memory_limit_in_bytes: 64 << 20,
                oom_score_adj: 1000,
                ..Default::default()
            }
        );
    }

    #[derive(Default)]
    struct Given<'a> {
        ips: &'a [String],
        log: Option<&'a Path>,
        target: Option<&'a str>,
        users: Option<&'a cri::UserNamespace>,
    }

    fn with(pod: Value, container: Value, given: Given<'_>) -> cri::ContainerConfig {
        let (pod, container, facts) = (testing::pod(pod), testing::container(container), NodeFacts::default());
        let input = ContainerInput {
            pod_ips: given.ips,
            termination_log: given.log,
            target: given.target,
            users: given.users,
            ..ContainerInput::new(&pod, &container, ContainerKind::Regular, "ref", &facts)
        };
        container_config(&input).unwrap()
    }

    #[test]
    fn the_hosts_file_is_mounted_where_it_can_be() {
        let ips = ["10.0.0.2".to_string()];
        let own = json!({"volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]});
        let mounts = |pod, container, ips| {
            let given = Given {
                ips,
                ..Given::default()
            };
            with(pod, container, given).mounts.len()
        };
        assert_eq!(mounts(json!({}), json!({}), &[]), 0);
        assert_eq!(mounts(json!({"hostNetwork": true}), json!({}), &[]), 1);
        assert_eq!(mounts(json!({}), json!({}), &ips), 1);
        assert_eq!(mounts(json!({}), own, &ips), 0);
    }

    #[test]
    fn the_termination_log_needs_a_path() {
        let mounts = |container| {
            let given = Given {
                log: Some(Path::new("/log")),
                ..Given::default()
            };
            with(json!({}), container, given).mounts
        };
        assert_eq!(mounts(json!({})), []);
        assert_eq!(mounts(json!({"terminationMessagePath": ""})), []);
        assert_eq!(
            mounts(json!({"terminationMessagePath": "tmp/log"}))[0].container_path,
            "/tmp/log"
        );
    }

    #[test]
    fn ephemeral_containers_join_their_target() {
        let pid = |pod: Value, target| {
            let given = Given {
                target,
                ..Given::default()
            };
            let config = with(pod, json!({}), given);
            let namespaces = config
                .linux
                .unwrap()
                .security_context
                .unwrap()
                .namespace_options
                .unwrap();
            (namespaces.pid, namespaces.target_id)
        };
        assert_eq!(
            pid(json!({}), None),
            (cri::NamespaceMode::Container as i32, String::new())
        );
        assert_eq!(
            pid(json!({}), Some("id")),
            (cri::NamespaceMode::Target as i32, "id".into())
        );
        let shared = json!({"shareProcessNamespace": true});
        assert_eq!(pid(shared, Some("id")), (cri::NamespaceMode::Pod as i32, String::new()));
    }

    #[test]
    fn users_are_mapped_in_mounts_too() {
        let ids = vec![cri::IDMapping {
            host_id: 65536,
            container_id: 0,
            length: 65536,
        }];
        let users = cri::UserNamespace {
            mode: cri::NamespaceMode::Pod as i32,
            uids: ids.clone(),
            gids: ids.clone(),
        };
        let given = Given {
            users: Some(&users),
            ..Given::default()
        };
        let config = with(json!({"hostUsers": false, "hostNetwork": true}), json!({}), given);
        assert_eq!(config.mounts[0].uid_mappings, ids);
        let security = config.linux.unwrap().security_context.unwrap();
        assert_eq!(security.namespace_options.unwrap().userns_options.unwrap().uids, ids);
    }

    #[test]
    fn signals() {
        for (name, expected) in [
            ("SIGTERM", cri::Signal::Sigterm),
            ("SIGABRT", cri::Signal::Sigabrt),
            ("SIGXFSZ", cri::Signal::Sigxfsz),
            ("SIGRTMIN", cri::Signal::Sigrtmin),
            ("SIGRTMIN+1", cri::Signal::Sigrtminplus1),
            ("SIGRTMIN+15", cri::Signal::Sigrtminplus15),
            ("SIGRTMIN+16", cri::Signal::RuntimeDefault),
            ("SIGRTMAX-14", cri::Signal::Sigrtmaxminus14),
            ("SIGRTMAX-1", cri::Signal::Sigrtmaxminus1),
            ("SIGRTMAX", cri::Signal::Sigrtmax),
            ("nonsense", cri::Signal::RuntimeDefault),
            ("", cri::Signal::RuntimeDefault),
        ] {
            let container = testing::container(json!({"lifecycle": {"stopSignal": name}}));
            assert_eq!(stop_signal(&container), expected as i32, "{name}");
        }
        assert_eq!(stop_signal(&testing::container(json!({}))), 0);
    }

    #[test]
    fn a_container_that_may_not_run_is_an_error() {
        let pod = testing::pod(json!({"securityContext": {"runAsNonRoot": true}}));
        let (container, facts) = (testing::container(json!({})), NodeFacts::default());
        let input = ContainerInput::new(&pod, &container, ContainerKind::Regular, "ref", &facts);
        assert_eq!(
            container_config(&input).unwrap_err().to_string(),
            "container has runAsNonRoot and image will run as root (pod: \"web_default(u-1)\", container: c)"
        );
    }
}
