//! The manifests of component pods: what kubeadm's static pods say, as far as it is true here.

use std::net::SocketAddr;
use std::path::PathBuf;

use orlop_apiserver::Config as ServerConfig;
use orlop_apiserver::discovery::GIT_VERSION;
use serde_json::{Value, json};

use super::shown::ShownComponent;

/// There is no such image: the component is a part of the process, and this says which program that is.
const IMAGE: &str = "orlop.local/orlop";

/// What the components were started with, in the words of Kubernetes' flags. Each line is one that `orlop` takes under
/// that name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandLines {
    pub apiserver: Vec<String>,
    pub controller_manager: Vec<String>,
    pub scheduler: Vec<String>,
    pub proxy: Vec<String>,
}

impl CommandLines {
    pub(crate) fn set_apiserver(&mut self, config: &ServerConfig) {
        let (first, last) = config.node_ports;
        let ranges: Vec<String> = config.service_cidrs.iter().map(ToString::to_string).collect();
        self.apiserver = vec![
            format!("--bind-address={}", config.bind),
            format!("--secure-port={}", config.port),
            format!("--data-dir={}", config.data_dir.display()),
            format!("--service-cluster-ip-range={}", ranges.join(",")),
            format!("--service-node-port-range={first}-{last}"),
            format!("--service-account-issuer={}", config.issuer),
        ];
        if let Some(file) = &config.audit_log {
            self.apiserver.push(format!("--audit-log-path={}", file.display()));
        }
    }

    pub(crate) fn set_scheduler(&mut self, port: u16, config: Option<&PathBuf>) {
        self.scheduler = local_port(port);
        if let Some(file) = config {
            self.scheduler.push(format!("--config={}", file.display()));
        }
    }

    pub(crate) fn set_controller_manager(&mut self, port: u16, controllers: &[String]) {
        self.controller_manager = local_port(port);
        self.controller_manager.extend([
            format!("--controllers={}", controllers.join(",")),
            "--leader-elect=false".to_string(),
            "--use-service-account-credentials=true".to_string(),
        ]);
    }

    pub(crate) fn set_proxy(
        &mut self,
        node: &str,
        pod_range: &str,
        metrics: Option<SocketAddr>,
        healthz: Option<SocketAddr>,
    ) {
        self.proxy = vec![
            format!("--hostname-override={node}"),
            format!("--cluster-cidr={pod_range}"),
            "--follow-config-map".to_string(),
        ];
        let addresses = [("metrics", metrics), ("healthz", healthz)];
        let given = addresses
            .into_iter()
            .filter_map(|(name, address)| Some((name, address?)));
        self.proxy
            .extend(given.map(|(name, address)| format!("--{name}-bind-address={address}")));
    }

    fn command(&self, shown: &ShownComponent) -> Vec<String> {
        let flags = match shown.name {
            "kube-apiserver" => &self.apiserver,
            "kube-controller-manager" => &self.controller_manager,
            "kube-scheduler" => &self.scheduler,
            "kube-proxy" => &self.proxy,
            // It has no command of its own.
            _ => return vec!["orlop".into(), "up".into()],
        };
        std::iter::once(shown.name.to_string())
            .chain(flags.iter().cloned())
            .collect()
    }
}

/// As images are tagged: `v1.36.4`.
fn kubernetes_version() -> &'static str {
    GIT_VERSION.split('+').next().unwrap_or(GIT_VERSION)
}

fn local_port(port: u16) -> Vec<String> {
    vec!["--bind-address=127.0.0.1".to_string(), format!("--secure-port={port}")]
}

/// Nothing is requested: what the components use is the process's, and the node's allocatable resources are for pods. Nor
/// are there probes, which nobody would run: the supervisor knows how its components are.
pub(super) fn manifest(shown: &ShownComponent, lines: &CommandLines) -> Value {
    let labels: serde_json::Map<String, Value> = shown.labels.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": shown.name, "namespace": "kube-system", "labels": labels},
        "spec": {
            "hostNetwork": true,
            "dnsPolicy": "ClusterFirst",
            "priorityClassName": "system-node-critical",
            "priority": 2_000_001_000,
            "containers": [{
                "name": shown.name,
                "image": format!("{IMAGE}:{}", kubernetes_version()),
                "imagePullPolicy": "IfNotPresent",
                "command": lines.command(shown),
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::shown::SHOWN;
    use super::*;

    fn lines() -> CommandLines {
        let mut lines = CommandLines::default();
        let mut config = ServerConfig::new("/var/lib/orlop".into());
        config.audit_log = Some("/tmp/audit".into());
        lines.set_apiserver(&config);
        lines.set_scheduler(10259, Some(&"/etc/scheduler.yaml".into()));
        lines.set_controller_manager(10257, &["*".into(), "-cronjob-controller".into()]);
        let address: SocketAddr = "127.0.0.1:10249".parse().unwrap();
        lines.set_proxy("n1", "10.244.0.0/24", Some(address), None);
        lines
    }

    #[test]
    fn command_lines_are_ones_that_the_binary_takes() {
        for shown in &SHOWN {
            let command = lines().command(shown);
            let words: Vec<std::ffi::OsString> = command.iter().map(Into::into).collect();
            if let Err(error) = crate::commands::check_line(&words) {
                panic!("{command:?}: {error}");
            }
        }
    }

    #[test]
    fn manifests_are_static_pods() {
        for shown in &SHOWN {
            let pod = orlop_kubelet::hosted::static_pod(&manifest(shown, &lines()), "n1", jiff::Timestamp::UNIX_EPOCH);
            let pod = orlop_api::types::to_value(&pod.unwrap());
            assert_eq!(pod["metadata"]["name"], format!("{}-n1", shown.name));
            assert_eq!(
                pod["spec"]["containers"][0]["resources"],
                json!({}),
                "they request nothing"
            );
        }
    }
}
