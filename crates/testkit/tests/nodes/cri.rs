//! The runtime's calls against a real containerd, without any agent in between.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::cri::messages::*;
use orlop_runtime::{Code, Event, Runtime};
use orlop_streaming::{Exit, Session, TerminalSize};
use orlop_testkit::{Containerd, Leftovers, PATIENCE, eventually};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// A pod of one container, as the agent would ask for it.
struct Pod {
    config: PodSandboxConfig,
    container: ContainerConfig,
}

fn pod(name: &str, script: &str, logs: &Path) -> Pod {
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_string(),
            uid: format!("uid-{name}"),
            namespace: "default".to_string(),
            attempt: 0,
        }),
        hostname: name.to_string(),
        log_directory: logs.display().to_string(),
        linux: Some(LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".to_string(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: "busybox".to_string(),
            ..Default::default()
        }),
        command: ["sh", "-c", script].map(String::from).to_vec(),
        log_path: "main.log".to_string(),
        linux: Some(LinuxContainerConfig::default()),
        ..Default::default()
    };
    Pod { config, container }
}

async fn sandbox(runtime: &CriRuntime, pod: &Pod) -> String {
    runtime.run_pod_sandbox(pod.config.clone(), "").await.unwrap()
}

/// The sandbox and the started container.
async fn start(runtime: &CriRuntime, pod: &Pod) -> (String, String) {
    let sandbox = sandbox(runtime, pod).await;
    let container = runtime
        .create_container(&sandbox, pod.container.clone(), pod.config.clone())
        .await
        .unwrap();
    runtime.start_container(&container).await.unwrap();
    (sandbox, container)
}

async fn remove(runtime: &CriRuntime, sandbox: &str) {
    runtime.stop_pod_sandbox(sandbox).await.unwrap();
    runtime.remove_pod_sandbox(sandbox).await.unwrap();
}

/// Waits for an event of this container.
async fn heard(events: &mut BoxStream<'static, Event>, container: &str) {
    let found = async {
        while let Some(event) = events.next().await {
            if event.container == container {
                return;
            }
        }
        panic!("the events ended");
    };
    tokio::time::timeout(PATIENCE, found).await.expect("an event");
}

/// Waits for events of this container until it has ended: each event but the last one's cause may be its start.
async fn ended(runtime: &CriRuntime, events: &mut BoxStream<'static, Event>, container: &str) -> ContainerStatus {
    loop {
        heard(events, container).await;
        let status = runtime.container_status(container).await.unwrap();
        if status.state() == ContainerState::Exited {
            return status;
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_from_start_to_end() {
    let containerd = Containerd::start();
    let runtime = CriRuntime::connect(&containerd.endpoint()).unwrap();
    let version = runtime.version().await.unwrap();
    assert_eq!(
        (version.runtime_name.as_str(), version.runtime_api_version.as_str()),
        ("containerd", "v1")
    );
    network_becomes_ready(&containerd, &runtime).await;
    let mut events = runtime.events().await.unwrap();

    let logs = tempfile::tempdir().unwrap();
    let script = "echo hello; echo oops >&2; trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let (sandbox, container) = start(&runtime, &pod("a", script, logs.path())).await;
    heard(&mut events, &container).await;
    let status = runtime.pod_sandbox_status(&sandbox).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::Ready);
    let prefix = containerd.pod_range().replace("0/24", "");
    assert!(status.network.unwrap().ip.starts_with(&prefix));
    let status = runtime.container_status(&container).await.unwrap();
    assert_eq!(status.state(), ContainerState::Running);
    assert_eq!(status.log_path, logs.path().join("main.log").display().to_string());
    let text = eventually("two lines of log", || {
        let text = std::fs::read_to_string(&status.log_path).unwrap();
        (text.lines().count() == 2).then_some(text)
    });
    assert!(
        text.contains(" stdout F hello\n") && text.contains(" stderr F oops\n"),
        "{text}"
    );

    commands(&runtime, &container).await;
    usage(&runtime, &sandbox, &container).await;
    lists(&runtime, &sandbox, &container).await;

    runtime
        .stop_container(&container, Duration::from_secs(30))
        .await
        .unwrap();
    let status = ended(&runtime, &mut events, &container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
    runtime
        .stop_container(&container, Duration::from_secs(30))
        .await
        .unwrap();
    runtime.remove_container(&container).await.unwrap();
    runtime.remove_container(&container).await.unwrap();
    runtime.stop_pod_sandbox(&sandbox).await.unwrap();
    heard(&mut events, &sandbox).await;
    assert_eq!(
        runtime.pod_sandbox_status(&sandbox).await.unwrap().state(),
        PodSandboxState::NotReady
    );
    runtime.remove_pod_sandbox(&sandbox).await.unwrap();
    remove(&runtime, &sandbox).await;
    assert!(runtime.container_status(&container).await.unwrap_err().is_not_found());
    assert_eq!(containerd.leftovers(), Leftovers::default());
}

async fn network_becomes_ready(containerd: &Containerd, runtime: &CriRuntime) {
    let network = || async {
        let conditions = runtime.status().await.unwrap().status.unwrap().conditions;
        conditions.into_iter().find(|c| c.r#type == "NetworkReady").unwrap()
    };
    let before = network().await;
    assert!(!before.status && before.message.contains("cni"), "{before:?}");
    containerd.write_network();
    let ready = async {
        while !network().await.status {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ready)
        .await
        .expect("the network gets ready");
}

async fn commands(runtime: &CriRuntime, container: &str) {
    let run = |line: &str, timeout| runtime.exec_sync(container, words(line), timeout);
    let answer = run("ls /nowhere", None).await.unwrap();
    assert_eq!((answer.exit_code, answer.stdout.len()), (1, 0));
    assert_eq!(
        String::from_utf8_lossy(&answer.stderr),
        "ls: /nowhere: No such file or directory\n"
    );
    let answer = run("hostname", Some(Duration::from_secs(20))).await.unwrap();
    assert_eq!((answer.exit_code, answer.stdout.as_slice()), (0, b"a\n".as_slice()));
    let late = run("sleep 1000", Some(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded);
    assert_eq!(late.message, r#"command timed out: "sleep 1000" timed out after 1s"#);
    let missing = run("no-such-command", None).await.unwrap_err();
    assert!(
        missing
            .message
            .contains(r#"exec: "no-such-command": executable file not found in $PATH"#),
        "{missing}"
    );
}

async fn usage(runtime: &CriRuntime, sandbox: &str, container: &str) {
    let stats = runtime.container_stats(container).await.unwrap();
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    let filter = ContainerStatsFilter {
        pod_sandbox_id: sandbox.to_string(),
        ..Default::default()
    };
    assert_eq!(runtime.list_container_stats(filter).await.unwrap().len(), 1);
    let resources = LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    runtime.update_container_resources(container, resources).await.unwrap();
    runtime.reopen_container_log(container).await.unwrap();
    assert!(!runtime.image_fs_info().await.unwrap().image_filesystems.is_empty());
}

async fn lists(runtime: &CriRuntime, sandbox: &str, container: &str) {
    let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await.unwrap();
    assert_eq!(sandboxes.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), [sandbox]);
    let filter = ContainerFilter {
        pod_sandbox_id: sandbox.to_string(),
        ..Default::default()
    };
    let containers = runtime.list_containers(filter).await.unwrap();
    assert_eq!(
        containers.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(),
        [container]
    );
    let images = runtime.list_images().await.unwrap();
    let tags: Vec<&str> = images.iter().flat_map(|i| &i.repo_tags).map(String::as_str).collect();
    assert!(tags.contains(&"docker.io/library/busybox:latest") && tags.contains(&"docker.io/library/busybox:1.36"));
    let none = ImageSpec {
        image: "nobody/nothing".to_string(),
        ..Default::default()
    };
    assert_eq!(runtime.image_status(&none).await.unwrap(), None);
    runtime.remove_image(&none).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_said_in_the_runtimes_words() {
    let containerd = Containerd::with_network();
    let runtime = CriRuntime::connect(&containerd.endpoint()).unwrap();
    assert_eq!(runtime.cgroup_driver().await.unwrap(), Some(CgroupDriver::Cgroupfs));
    let folders = runtime.network_folders().await.unwrap();
    assert_eq!(folders.configuration, Some(containerd.cni_directory()));
    assert!(
        folders.plugins.iter().any(|folder| folder.join("bridge").exists()),
        "{folders:?}"
    );
    let mut events = runtime.events().await.unwrap();
    let logs = tempfile::tempdir().unwrap();

    let mut broken = pod("a", "", logs.path());
    broken.container.command = words("/no/such/file");
    let sandbox = sandbox(&runtime, &broken).await;
    let create = |config: ContainerConfig| runtime.create_container(&sandbox, config, broken.config.clone());
    let container = create(broken.container.clone()).await.unwrap();
    let error = runtime.start_container(&container).await.unwrap_err();
    assert_eq!(error.code, Code::Other);
    assert!(
        error
            .message
            .contains(r#"exec: "/no/such/file": stat /no/such/file: no such file or directory"#),
        "{error}"
    );
    let status = runtime.container_status(&container).await.unwrap();
    assert_eq!(
        (status.state(), status.reason.as_str()),
        (ContainerState::Exited, "StartError")
    );

    let absent = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "absent".to_string(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: "nobody/nothing".to_string(),
            ..Default::default()
        }),
        ..broken.container.clone()
    };
    assert!(create(absent).await.unwrap_err().is_not_found());
    let invalid = ImageSpec {
        image: "NOT a name".to_string(),
        ..Default::default()
    };
    let error = runtime
        .pull_image(invalid, None, broken.config.clone())
        .await
        .unwrap_err();
    assert!(error.message.contains("invalid reference format"), "{error}");

    let mut greedy = broken.container.clone();
    greedy.metadata = Some(ContainerMetadata {
        name: "greedy".to_string(),
        attempt: 0,
    });
    // The runtime begins to look for that only when the container runs: one killed at once it would miss.
    greedy.command = ["sh", "-c", "sleep 1; exec dd if=/dev/zero of=/dev/null bs=200M count=1"]
        .map(String::from)
        .to_vec();
    greedy.linux.get_or_insert_default().resources = Some(LinuxContainerResources {
        memory_limit_in_bytes: 16 << 20,
        ..Default::default()
    });
    let container = create(greedy).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    let killed = async {
        // Two pieces of news, in either order: it has ended, and why.
        while runtime.container_status(&container).await.unwrap().reason != "OOMKilled" {
            // The runtime may know the cause only after it has told of the end.
            drop(tokio::time::timeout(Duration::from_millis(200), heard(&mut events, &container)).await);
        }
    };
    tokio::time::timeout(PATIENCE, killed).await.expect("news of the cause");

    assert!(runtime.pod_sandbox_status("nobody").await.unwrap_err().is_not_found());
    runtime.stop_container("nobody", Duration::ZERO).await.unwrap();
    remove(&runtime, &sandbox).await;
    assert_eq!(containerd.leftovers(), Leftovers::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_is_killed_and_comes_back() {
    let mut containerd = Containerd::with_network();
    let runtime = CriRuntime::connect(&containerd.endpoint()).unwrap();
    let mut events = runtime.events().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_, stays) = start(&runtime, &pod("stays", "exec sleep 1000", &folder.path().join("a"))).await;
    let mut leaves = pod(
        "leaves",
        "until [ -e /f/go ]; do sleep 0.02; done; touch /f/gone; exit 7",
        &folder.path().join("b"),
    );
    let host_path = folder.path().display().to_string();
    leaves.container.mounts = vec![Mount {
        container_path: "/f".to_string(),
        host_path,
        ..Default::default()
    }];
    let (leaves_sandbox, leaves) = start(&runtime, &leaves).await;

    containerd.kill();
    let ends = async { while events.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, ends)
        .await
        .expect("the events end with the connection");
    let error = runtime.container_status(&stays).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    assert_eq!(runtime.events().await.err().map(|e| e.code), Some(Code::Unavailable));
    std::fs::write(folder.path().join("go"), "").unwrap();
    eventually("the container ends by itself", || {
        folder.path().join("gone").exists().then_some(())
    });

    containerd.restart();
    let mut events = runtime.events().await.unwrap();
    assert_eq!(
        runtime.container_status(&stays).await.unwrap().state(),
        ContainerState::Running
    );
    let status = loop {
        let status = runtime.container_status(&leaves).await.unwrap();
        if status.state() == ContainerState::Exited {
            break status;
        }
        heard(&mut events, &leaves).await;
    };
    assert_eq!(status.exit_code, 7);
    assert_eq!(
        runtime
            .exec_sync(&stays, words("echo still"), None)
            .await
            .unwrap()
            .stdout,
        b"still\n"
    );
    runtime.stop_container(&stays, Duration::ZERO).await.unwrap();
    let status = ended(&runtime, &mut events, &stays).await;
    assert_eq!(status.exit_code, 137);
    let sandboxes = runtime.list_pod_sandboxes(PodSandboxFilter::default()).await.unwrap();
    assert_eq!(sandboxes.len(), 2);
    assert!(sandboxes.iter().any(|s| s.id == leaves_sandbox));
    for sandbox in sandboxes {
        remove(&runtime, &sandbox.id).await;
    }
    assert_eq!(containerd.leftovers(), Leftovers::default());
}

/// Everything a session writes, and how it ends.
async fn carried(session: Session) -> (String, String, Exit) {
    async fn all(stream: Option<Box<dyn AsyncRead + Send + Unpin>>) -> String {
        let mut bytes = vec![];
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).await.unwrap();
        }
        String::from_utf8(bytes).unwrap()
    }
    tokio::join!(all(session.stdout), all(session.stderr), session.exit)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_ports_carry_data() {
    let containerd = Containerd::with_network();
    let runtime = CriRuntime::connect(&containerd.endpoint()).unwrap();
    let logs = tempfile::tempdir().unwrap();
    let mut talker = pod(
        "a",
        "(while :; do nc -l -p 80 -e cat; done) & while read line; do echo got $line; done; exit 4",
        logs.path(),
    );
    talker.container.stdin = true;
    talker.container.stdin_once = true;
    // Free a moment ago; the pod's port 80 is to be reached there as well.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    talker.config.port_mappings = vec![PortMapping {
        protocol: Protocol::Tcp.into(),
        container_port: 80,
        host_port: free.into(),
        host_ip: String::new(),
    }];
    let (sandbox, container) = start(&runtime, &talker).await;
    let request = |line: &str| ExecRequest {
        container_id: container.clone(),
        cmd: ["sh", "-c", line].map(String::from).to_vec(),
        stdout: true,
        stderr: true,
        ..Default::default()
    };

    let session = runtime.exec(request("echo out; echo err >&2; exit 42")).await.unwrap();
    assert_eq!(
        carried(session).await,
        ("out\n".to_string(), "err\n".to_string(), Exit::Code(42))
    );

    let mut session = runtime
        .exec(ExecRequest {
            stdin: true,
            ..request("wc -c; md5sum /dev/null")
        })
        .await
        .unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let sent = async {
        stdin.write_all(&vec![7; 3_000_000]).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let ((), (stdout, _, exit)) = tokio::join!(sent, carried(session));
    assert_eq!((stdout.lines().next(), exit), (Some("3000000"), Exit::Code(0)));

    // The size has a stream of its own, so that it may come later than what is typed.
    let sized = "read x; until stty size 2>/dev/null | grep '23 91'; do sleep 0.02; done; exit $x";
    let mut session = runtime
        .exec(ExecRequest {
            tty: true,
            stdin: true,
            ..request(sized)
        })
        .await
        .unwrap();
    session.stdin.as_mut().unwrap().write_all(b"5\n").await.unwrap();
    session
        .resize
        .as_ref()
        .unwrap()
        .send(TerminalSize { width: 91, height: 23 })
        .await
        .unwrap();
    let ended = tokio::time::timeout(PATIENCE, carried(session)).await;
    assert_eq!(
        ended.expect("the new size arrives"),
        ("5\r\n23 91\r\n".to_string(), String::new(), Exit::Code(5))
    );

    echoes(runtime.port_forward(&sandbox, 80).await.unwrap()).await;
    let (address, localhost) = (address(&runtime, &sandbox).await, "127.0.0.1".to_string());
    for (host, port) in [(address, 80), (localhost, free)] {
        echoes(connected(&host, port).await).await;
    }

    let attach = AttachRequest {
        container_id: container.clone(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    let mut session = runtime.attach(attach).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    stdin.shutdown().await.unwrap();
    let (stdout, _, _) = carried(session).await;
    assert_eq!(stdout, "got hello\n");

    let gone = runtime
        .exec(ExecRequest {
            container_id: "nobody".to_string(),
            ..request("true")
        })
        .await;
    assert!(gone.err().unwrap().is_not_found());
    remove(&runtime, &sandbox).await;
    assert_eq!(containerd.leftovers(), Leftovers::default());
}

async fn address(runtime: &CriRuntime, sandbox: &str) -> String {
    runtime.pod_sandbox_status(sandbox).await.unwrap().network.unwrap().ip
}

/// Connects once somebody listens there.
async fn connected(host: &str, port: u16) -> TcpStream {
    let connecting = async {
        loop {
            if let Ok(stream) = TcpStream::connect((host, port)).await {
                return stream;
            }
            tokio::task::yield_now().await;
        }
    };
    let connected = tokio::time::timeout(PATIENCE, connecting).await;
    connected.unwrap_or_else(|_| panic!("nobody listens on {host}:{port}"))
}

async fn echoes(stream: impl AsyncRead + AsyncWrite) {
    let bytes: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
    let (mut from, mut to) = tokio::io::split(stream);
    let mut back = vec![0; bytes.len()];
    let (sent, read) = tokio::join!(to.write_all(&bytes), from.read_exact(&mut back));
    sent.unwrap();
    assert_eq!(read.unwrap(), bytes.len());
    assert!(back == bytes, "the bytes come back as they were");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_fails_leaves_nothing_behind() {
    let mut containerd = Containerd::with_network();
    let runtime = CriRuntime::connect(&containerd.endpoint()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (sandbox, container) = start(&runtime, &pod("a", "exec sleep 1000", folder.path())).await;
    let there = containerd.leftovers();
    assert_eq!((there.sandboxes, there.containers, there.network_namespaces), (1, 1, 1));
    assert!(
        there.mounts > 0 && there.cgroups > 0 && there.network_rules > 0,
        "{there:?}"
    );
    let traces = || {
        let script = "cat /proc/self/mountinfo; iptables --wait -t nat -S; find /sys/fs/cgroup -type d; ps -ef";
        let output = std::process::Command::new("bash")
            .args(["-c", script])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        [&sandbox, &container].iter().any(|id| text.contains(id.as_str()))
    };
    assert!(traces());
    // Not even the daemon is there to help.
    containerd.kill();
    drop(containerd);
    assert!(!traces());
}
