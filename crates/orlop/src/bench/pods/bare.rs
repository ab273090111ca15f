//! The calls that a node agent makes of a container runtime to start a pod, and nothing else: what the agent and the API
//! add is what is beyond them.

use std::path::{Path, PathBuf};

use anyhow::bail;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::cri::messages::*;

use super::COMMAND;

pub(super) struct BareRuntime {
    runtime: CriRuntime,
    image: String,
    /// What containers have mounted, and their logs.
    files: PathBuf,
}

impl BareRuntime {
    pub(super) async fn connect(endpoint: &str, image: &str, files: PathBuf) -> anyhow::Result<BareRuntime> {
        let runtime = CriRuntime::connect(endpoint)?;
        let spec = ImageSpec {
            image: image.to_string(),
            ..ImageSpec::default()
        };
        if runtime.image_status(&spec).await?.is_none() {
            bail!("the runtime has no image {image}: pull or import it first, or name another one with --image");
        }
        std::fs::create_dir_all(files.join("token"))?;
        for name in ["hosts", "termination-log"] {
            std::fs::write(files.join(name), "")?;
        }
        Ok(BareRuntime {
            runtime,
            image: image.to_string(),
            files,
        })
    }

    /// The id of the sandbox.
    pub(super) async fn start(&self, name: &str) -> anyhow::Result<String> {
        let (config, container) = pod(name, &self.image, &self.files);
        std::fs::create_dir_all(&config.log_directory)?;
        let sandbox = self.runtime.run_pod_sandbox(config.clone(), "").await?;
        let id = self.runtime.create_container(&sandbox, container, config).await?;
        self.runtime.start_container(&id).await?;
        Ok(sandbox)
    }

    pub(super) async fn remove(&self, sandbox: &str) -> anyhow::Result<()> {
        self.runtime.stop_pod_sandbox(sandbox).await?;
        Ok(self.runtime.remove_pod_sandbox(sandbox).await?)
    }
}

/// What a pod is to the runtime: logs, name servers and mounts as the agent asks for them. The files are the same for all
/// pods.
fn pod(name: &str, image: &str, files: &Path) -> (PodSandboxConfig, ContainerConfig) {
    let host = |file: &str| files.join(file).display().to_string();
    let mount = |path: &str, file: &str, readonly| Mount {
        container_path: path.to_string(),
        host_path: host(file),
        readonly,
        ..Mount::default()
    };
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_string(),
            uid: format!("{name}-{}", std::process::id()),
            namespace: "orlop-bench".into(),
            attempt: 0,
        }),
        hostname: name.to_string(),
        log_directory: host(name),
        dns_config: Some(DNSConfig {
            servers: vec!["10.96.0.10".into()],
            searches: vec!["default.svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        }),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                // The runtime's default: its filter takes time to make.
                seccomp: Some(SecurityProfile::default()),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    };
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".into(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image.to_string(),
            ..ImageSpec::default()
        }),
        command: COMMAND.map(str::to_string).to_vec(),
        log_path: "main.log".into(),
        mounts: vec![
            mount("/var/run/secrets/kubernetes.io/serviceaccount", "token", true),
            mount("/etc/hosts", "hosts", false),
            mount("/dev/termination-log", "termination-log", false),
        ],
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_shares: 2,
                oom_score_adj: 1000,
                ..LinuxContainerResources::default()
            }),
            ..LinuxContainerConfig::default()
        }),
        ..ContainerConfig::default()
    };
    (sandbox, container)
}
