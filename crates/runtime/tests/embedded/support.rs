//! A runtime on a root directory with busybox, and a network that is only the loopback.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use orlop_runtime::cri::messages::*;
use orlop_runtime::embedded::{Embedded, ImageDefaults, Images, Network, Options, PodName, PreparedImage, ShimCommand};
use orlop_runtime::{Code, Error, Result, Runtime};

const BUSYBOX: &str = "/bin/busybox";
const IMAGE: &str = "test.local/busybox";
/// The same, as if overlayfs could not stack its layers.
pub(crate) const COPIED_IMAGE: &str = "test.local/busybox:copied";
/// The same with volumes of its own.
pub(crate) const VOLUME_IMAGE: &str = "test.local/busybox:volumes";
/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct BusyboxImages {
    layers: Vec<PathBuf>,
}

#[async_trait]
impl Images for BusyboxImages {
    async fn list(&self) -> Result<Vec<Image>> {
        Ok(vec![])
    }
    async fn status(&self, _: &ImageSpec) -> Result<Option<Image>> {
        Ok(None)
    }
    async fn pull(&self, image: &ImageSpec, _: Option<&AuthConfig>) -> Result<String> {
        Ok(image.image.clone())
    }
    async fn remove(&self, _: &ImageSpec) -> Result<()> {
        Ok(())
    }
    async fn usage(&self) -> Result<FilesystemUsage> {
        Ok(FilesystemUsage::default())
    }
    async fn prepare(&self, image: &str, _: &str) -> Result<PreparedImage> {
        let (stackable, volumes) = match image {
            IMAGE => (true, vec![]),
            COPIED_IMAGE => (false, vec![]),
            VOLUME_IMAGE => (true, vec!["/etc".to_string(), "/data".to_string()]),
            _ => return Err(Error::new(Code::NotFound, format!("image {image:?}: not found"))),
        };
        Ok(PreparedImage {
            id: "sha256:busybox".to_string(),
            reference: "test.local/busybox@sha256:busybox".to_string(),
            defaults: ImageDefaults {
                cmd: vec!["sh".to_string()],
                env: vec!["PATH=/bin".to_string(), "FROM=image".to_string()],
                volumes,
                ..ImageDefaults::default()
            },
            layers: self.layers.clone(),
            stackable,
        })
    }
    async fn release(&self, _: &str) -> Result<()> {
        Ok(())
    }
    async fn release_absent(&self, _: &[String]) -> Result<()> {
        Ok(())
    }
}

/// The shim brings the loopback up by itself.
pub(crate) struct LoopbackNetwork;

#[async_trait]
impl Network for LoopbackNetwork {
    async fn ready(&self) -> Result<()> {
        Ok(())
    }
    async fn set_pod_cidr(&self, _: &str) -> Result<()> {
        Ok(())
    }
    async fn attach(&self, _: PodName<'_>, _: &str, netns: &Path, _: &[PortMapping]) -> Result<Vec<IpAddr>> {
        assert!(netns.exists(), "{}", netns.display());
        Ok(vec!["10.1.2.3".parse().unwrap()])
    }
    async fn detach(&self, _: &str) -> Result<()> {
        Ok(())
    }
    async fn retain(&self, _: &[String]) -> Result<()> {
        Ok(())
    }
}

/// A node: directories that go with it, and a cgroup for its pods.
pub(crate) struct Node {
    pub dir: tempfile::TempDir,
    pub runtime: Embedded,
    pub cgroup: String,
}

impl Node {
    pub(crate) async fn start() -> Node {
        Node::start_with_cgroups(Path::new("/sys/fs/cgroup")).await
    }

    pub(crate) async fn start_with_cgroups(mounted: &Path) -> Node {
        let dir = tempfile::tempdir().unwrap();
        make_layers(dir.path());
        let name = dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        let runtime = open(dir.path(), mounted).await;
        Node {
            dir,
            runtime,
            cgroup: format!("/orlop-embedded-{name}"),
        }
    }

    pub(crate) async fn open(dir: tempfile::TempDir, cgroup: String) -> Node {
        let runtime = open(dir.path(), Path::new("/sys/fs/cgroup")).await;
        Node { dir, runtime, cgroup }
    }

    /// Another process with the same directories: what the first one started is adopted.
    pub(crate) async fn restart(self) -> Node {
        let Node { dir, runtime, cgroup } = self;
        drop(runtime);
        Node::open(dir, cgroup).await
    }

    pub(crate) fn pod_config(&self, name: &str) -> PodSandboxConfig {
        pod_config(self.dir.path(), &self.cgroup, name)
    }

    pub(crate) async fn run_pod(&self, name: &str) -> Pod<'_> {
        self.run_pod_with(self.pod_config(name)).await
    }

    pub(crate) async fn run_pod_with(&self, config: PodSandboxConfig) -> Pod<'_> {
        let id = self.runtime.run_pod_sandbox(config.clone(), "").await.unwrap();
        Pod { node: self, id, config }
    }

    pub(crate) fn adopt_pod(&self, id: &str, config: PodSandboxConfig) -> Pod<'_> {
        Pod {
            node: self,
            id: id.to_string(),
            config,
        }
    }

    /// Everything ends; the directories of its cgroups are gone with the containers', but for the pods' own.
    pub(crate) async fn clean_up(self) {
        for pod in self
            .runtime
            .list_pod_sandboxes(PodSandboxFilter::default())
            .await
            .unwrap()
        {
            self.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
            self.runtime.remove_pod_sandbox(&pod.id).await.unwrap();
        }
        assert_eq!(
            std::fs::read_dir(self.dir.path().join("runtime/pods")).unwrap().count(),
            0
        );
        remove_cgroups(&self.cgroup);
    }
}

pub(crate) fn test_shim() -> ShimCommand {
    ShimCommand {
        program: env!("CARGO_BIN_EXE_embedded-shim").into(),
        arguments: vec!["shim".to_string()],
    }
}

async fn open(dir: &Path, cgroups: &Path) -> Embedded {
    let options = Options {
        shim: test_shim(),
        cgroups: cgroups.to_path_buf(),
        ..Options::new(dir.join("runtime"))
    };
    let images = BusyboxImages {
        layers: vec![dir.join("layers/low"), dir.join("layers/high")],
    };
    Embedded::open(options, Arc::new(images), Arc::new(LoopbackNetwork))
        .await
        .unwrap()
}

pub(crate) fn make_layers(dir: &Path) {
    let (low, high) = (dir.join("layers/low"), dir.join("layers/high"));
    for path in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
        std::fs::create_dir_all(low.join(path)).unwrap();
    }
    std::fs::create_dir_all(high.join("etc")).unwrap();
    std::fs::copy(BUSYBOX, low.join("bin/busybox")).expect("busybox-static is needed for these tests");
    let applets = [
        "sh", "cat", "echo", "sleep", "id", "ls", "env", "hostname", "grep", "head", "tail", "kill", "ps", "stty",
        "dd", "true", "false", "mkdir", "touch", "nc", "wc", "printf", "mount", "tty", "ip", "mknod", "rm", "test",
        "readlink", "stat", "tr", "cut", "ping",
    ];
    for applet in applets {
        symlink("busybox", low.join("bin").join(applet)).unwrap();
    }
    std::fs::write(low.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    std::fs::write(
        high.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/var/www:/bin/sh\n",
    )
    .unwrap();
    std::fs::write(high.join("etc/group"), "root:x:0:\nweb:x:34:\nssl:x:50:web\n").unwrap();
}

/// A pod of a node with this directory and cgroup.
pub(crate) fn pod_config(dir: &Path, cgroup: &str, name: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_string(),
            uid: format!("uid-{name}"),
            namespace: "default".to_string(),
            attempt: 0,
        }),
        hostname: name.to_string(),
        log_directory: dir.join("logs").join(name).display().to_string(),
        dns_config: Some(DNSConfig {
            servers: vec!["10.0.0.10".to_string()],
            ..DNSConfig::default()
        }),
        labels: BTreeMap::from([("app".to_string(), name.to_string())]),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/{name}", cgroup),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(private_pids()),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

pub(crate) fn private_pids() -> NamespaceOption {
    NamespaceOption {
        pid: NamespaceMode::Container as i32,
        ..NamespaceOption::default()
    }
}

pub(crate) struct Pod<'a> {
    pub node: &'a Node,
    pub id: String,
    pub config: PodSandboxConfig,
}

/// `sh -c` with a script, in a namespace of its own.
pub(crate) fn container(name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.to_string(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: IMAGE.to_string(),
            ..ImageSpec::default()
        }),
        command: ["sh", "-c", script].map(str::to_string).into(),
        log_path: format!("{name}.log"),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                oom_score_adj: 1000,
                ..LinuxContainerResources::default()
            }),
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(private_pids()),
                ..LinuxContainerSecurityContext::default()
            }),
        }),
        ..ContainerConfig::default()
    }
}

pub(crate) fn with_image(mut config: ContainerConfig, image: &str) -> ContainerConfig {
    config.image.get_or_insert_default().image = image.to_string();
    config
}

/// Changes a configuration's security context.
pub(crate) fn secured(
    mut config: ContainerConfig,
    change: impl FnOnce(&mut LinuxContainerSecurityContext),
) -> ContainerConfig {
    let linux = config.linux.get_or_insert_default();
    change(linux.security_context.get_or_insert_default());
    config
}

pub(crate) fn limited(
    mut config: ContainerConfig,
    change: impl FnOnce(&mut LinuxContainerResources),
) -> ContainerConfig {
    let linux = config.linux.get_or_insert_default();
    change(linux.resources.get_or_insert_default());
    config
}

impl Pod<'_> {
    pub(crate) fn runtime(&self) -> &Embedded {
        &self.node.runtime
    }

    pub(crate) async fn create(&self, config: ContainerConfig) -> String {
        self.runtime()
            .create_container(&self.id, config, self.config.clone())
            .await
            .unwrap()
    }

    pub(crate) async fn start(&self, config: ContainerConfig) -> String {
        let id = self.create(config).await;
        self.runtime().start_container(&id).await.unwrap();
        id
    }

    pub(crate) async fn wait(&self, id: &str) -> ContainerStatus {
        wait_exited(self.runtime(), id).await
    }

    /// Runs a container to its end; returns its status and what it wrote to stdout.
    pub(crate) async fn run(&self, config: ContainerConfig) -> (ContainerStatus, String) {
        let name = config.metadata.clone().unwrap().name;
        let id = self.start(config).await;
        let status = self.wait(&id).await;
        (status, self.stdout(&name))
    }

    /// Runs a container that must succeed.
    pub(crate) async fn output(&self, config: ContainerConfig) -> String {
        let name = config.metadata.clone().unwrap().name;
        let (status, output) = self.run(config).await;
        assert_eq!(status.exit_code, 0, "{output}\n{}", self.log(&name));
        output
    }

    pub(crate) fn log(&self, name: &str) -> String {
        let path = Path::new(&self.config.log_directory).join(format!("{name}.log"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The lines of stdout, without what the log puts before them.
    pub(crate) fn stdout(&self, name: &str) -> String {
        let log = self.log(name);
        let lines = log
            .lines()
            .filter_map(|line| line.split_once(" stdout F ").map(|(_, text)| text));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(crate) async fn exec(&self, id: &str, command: &[&str]) -> ExecSyncResponse {
        let command = command.iter().map(|c| c.to_string()).collect();
        self.runtime().exec_sync(id, command, Some(LONG)).await.unwrap()
    }
}

/// Waits by events, not by asking again and again.
pub(crate) async fn wait_exited(runtime: &Embedded, id: &str) -> ContainerStatus {
    let mut events = runtime.events().await.unwrap();
    let exited = async {
        loop {
            let status = runtime.container_status(id).await.unwrap();
            if status.state == ContainerState::Exited as i32 {
                return status;
            }
            events.next().await.unwrap();
        }
    };
    tokio::time::timeout(LONG, exited).await.expect("container did not end")
}

/// Directories of a cgroup and all below it, in every tree.
pub(crate) fn cgroup_dirs(group: &str) -> Vec<PathBuf> {
    let mut dirs = vec![];
    let mut trees = vec![PathBuf::from("/sys/fs/cgroup")];
    trees.extend(std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|e| e.unwrap().path()));
    for tree in trees {
        collect_dirs(&tree.join(group.trim_start_matches('/')), &mut dirs);
    }
    dirs
}

fn collect_dirs(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    into.push(dir.to_path_buf());
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect_dirs(&entry.path(), into);
        }
    }
}

pub(crate) fn remove_cgroups(group: &str) {
    let mut dirs = cgroup_dirs(group);
    dirs.sort_by_key(|dir| std::cmp::Reverse(dir.components().count()));
    for dir in dirs {
        std::fs::remove_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    }
}

/// A file of a container's cgroup.
pub(crate) fn read_cgroup(node: &Node, pod: &str, container: &str, v1: &str, v2: &str) -> String {
    let group = format!("{}/{pod}/{container}", node.cgroup.trim_start_matches('/'));
    let controller = v1.split('.').next().filter(|c| *c != "cgroup").unwrap_or("memory");
    let v1 = Path::new("/sys/fs/cgroup").join(controller).join(&group).join(v1);
    let v2 = Path::new("/sys/fs/cgroup").join(&group).join(v2);
    let path = if v1.exists() { v1 } else { v2 };
    std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim()
        .to_string()
}

/// Waits until a container has written a line.
pub(crate) async fn wait_for_line(pod: &Pod<'_>, name: &str, line: &str) {
    let path = Path::new(&pod.config.log_directory).join(format!("{name}.log"));
    wait_for_file(&path, &format!("stdout F {line}\n")).await;
}

/// Waits until a file has a text in it, woken by the kernel.
pub(crate) async fn wait_for_file(path: &Path, text: &str) {
    let (path, text) = (path.to_path_buf(), text.to_string());
    let waited = tokio::task::spawn_blocking(move || {
        use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
        inotify
            .add_watch(
                path.parent().unwrap(),
                AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO,
            )
            .unwrap();
        while !std::fs::read(&path).is_ok_and(|b| String::from_utf8_lossy(&b).contains(&text)) {
            inotify.read_events().unwrap();
        }
    });
    tokio::time::timeout(LONG, waited)
        .await
        .expect("the text did not come")
        .unwrap();
}

/// The process of a pod's shim, by its command line.
pub(crate) fn shim_pid(pod: &str) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    pids.into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&line).replace('\0', " ");
        text.starts_with(&format!("orlop shim {pod}"))
    })
}
