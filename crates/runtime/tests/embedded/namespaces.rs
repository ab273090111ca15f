//! Namespaces that pods share or have of their own.

use std::os::unix::fs::MetadataExt;

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;
use tokio::io::AsyncReadExt;

use crate::support::*;

fn with_options(mut config: PodSandboxConfig, options: NamespaceOption) -> PodSandboxConfig {
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options = Some(options);
    config
}

#[tokio::test]
async fn containers_of_a_pod_share_network_ipc_and_name() {
    let node = Node::start().await;
    let pod = node.run_pod("share").await;
    let show = "for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done";
    // The first goes on running: the kernel gives the numbers of namespaces that are gone to new ones.
    pod.start(container("one", &format!("{show}; echo shown; sleep 1000")))
        .await;
    wait_for_line(&pod, "one", "shown").await;
    let (one, two) = (pod.stdout("one"), pod.output(container("two", show)).await);
    let (one, two): (Vec<&str>, Vec<&str>) = (one.lines().collect(), two.lines().collect());
    assert_eq!(one[..3], two[..3]);
    assert_ne!(one[4], two[4]);
    for (at, name) in ["net", "ipc", "uts", "pid", "mnt"].iter().enumerate() {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_ne!(own.to_string_lossy(), one[at], "{name}");
    }
    let up = pod
        .output(container("lo", "ip addr show lo | grep -c 'inet 127.0.0.1'"))
        .await;
    assert_eq!(up, "1");
    node.clean_up().await;
}

#[tokio::test]
async fn the_nodes_namespaces_if_asked_for() {
    let node = Node::start().await;
    let host = NamespaceMode::Node as i32;
    let options = NamespaceOption {
        network: host,
        pid: host,
        ipc: host,
        ..NamespaceOption::default()
    };
    let pod = node
        .run_pod_with(with_options(node.pod_config("host"), options.clone()))
        .await;
    let show = "for n in net ipc uts pid; do readlink /proc/self/ns/$n; done";
    let config = secured(container("c", show), |c| c.namespace_options = Some(options));
    let output = pod.output(config).await;
    for (line, name) in output.lines().zip(["net", "ipc", "uts", "pid"]) {
        assert_eq!(
            line,
            std::fs::read_link(format!("/proc/self/ns/{name}"))
                .unwrap()
                .to_string_lossy()
        );
    }
    node.clean_up().await;
}

#[tokio::test]
async fn processes_of_a_pod_see_each_other() {
    let node = Node::start().await;
    let shared = NamespaceOption {
        pid: NamespaceMode::Pod as i32,
        ..NamespaceOption::default()
    };
    let pod = node
        .run_pod_with(with_options(node.pod_config("pids"), shared.clone()))
        .await;
    let in_pod = |config: ContainerConfig| secured(config, |c| c.namespace_options = Some(shared.clone()));
    // What a container leaves behind ends with it.
    let id = pod.start(in_pod(container("one", "sleep 1234 & sleep 4321"))).await;
    let script = "while ! ps | grep -q 'sleep [4]321'; do sleep 0.01; done; tr '\\0' ' ' < /proc/1/cmdline; echo; \
                  ls /proc/1/root/ 2>&1 | head -1; grep Cap /proc/1/status | cut -f2";
    let output = pod.output(in_pod(container("two", script))).await;
    assert!(output.starts_with("/pause"), "{output}");
    assert!(output.contains("Permission denied"), "{output}");
    assert_eq!(
        output.lines().filter(|l| *l == "0000000000000000").count(),
        5,
        "{output}"
    );
    node.runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    let left = "while ps | grep -q 'sleep [1]234'; do sleep 0.01; done; echo none";
    assert_eq!(pod.output(in_pod(container("three", left))).await, "none");
    node.clean_up().await;
}

#[tokio::test]
async fn a_container_looks_at_another() {
    let node = Node::start().await;
    let pod = node.run_pod("target").await;
    let id = pod.start(container("app", "sleep 5678")).await;
    let debug = secured(
        container("debug", "ps | grep -c 'sleep [5]678'; tr '\\0' ' ' < /proc/1/cmdline"),
        |c| {
            c.namespace_options = Some(NamespaceOption {
                pid: NamespaceMode::Target as i32,
                target_id: id.clone(),
                ..NamespaceOption::default()
            });
        },
    );
    let id = pod.start(debug).await;
    pod.wait(&id).await;
    let log = pod.log("debug");
    assert!(log.contains("sh -c sleep 5678") || log.contains("sleep 5678"), "{log}");
    node.clean_up().await;
}

#[tokio::test]
async fn a_user_namespace_of_its_own() {
    let node = Node::start().await;
    let mapping = IDMapping {
        host_id: 200_000,
        container_id: 0,
        length: 65_536,
    };
    let options = NamespaceOption {
        pid: NamespaceMode::Container as i32,
        userns_options: Some(UserNamespace {
            mode: NamespaceMode::Pod as i32,
            uids: vec![mapping.clone()],
            gids: vec![mapping.clone()],
        }),
        ..NamespaceOption::default()
    };
    let pod = node
        .run_pod_with(with_options(node.pod_config("userns"), options.clone()))
        .await;
    let in_pod = |config: ContainerConfig| secured(config, |c| c.namespace_options = Some(options.clone()));
    let volume = node.dir.path().join("volume");
    std::fs::create_dir_all(&volume).unwrap();
    let script = "tr -s ' ' < /proc/self/uid_map; id -u; stat -c %u /bin/busybox; touch /made /dev/shm/x; stat -c %u /made; \
                  touch /volume/file; stat -c %u /volume/file; hostname; cat /etc/hostname; \
                  grep CapEff /proc/self/status; echo ok; sleep 100";
    let config = ContainerConfig {
        mounts: vec![Mount {
            host_path: volume.display().to_string(),
            container_path: "/volume".to_string(),
            uid_mappings: vec![mapping.clone()],
            gid_mappings: vec![mapping],
            ..Mount::default()
        }],
        ..in_pod(container("c", script))
    };
    let id = pod.start(config).await;
    wait_for_line(&pod, "c", "ok").await;
    assert_eq!(
        pod.stdout("c"),
        " 0 200000 65536\n0\n0\n0\n0\nuserns\nuserns\nCapEff:\t00000000a80425fb\nok",
        "{}",
        pod.log("c")
    );
    // On the node it is nobody in particular, and the volume's owner is as it was.
    let made = node
        .dir
        .path()
        .join("runtime/pods")
        .join(&pod.id)
        .join("containers")
        .join(&id)
        .join("upper/made");
    assert_eq!(std::fs::metadata(made).unwrap().uid(), 200_000);
    assert_eq!(std::fs::metadata(volume.join("file")).unwrap().uid(), 0);
    let inside = pod
        .exec(
            &id,
            &[
                "sh",
                "-c",
                "id -u; cat /proc/self/uid_map | wc -l; touch /exec && echo made",
            ],
        )
        .await;
    assert_eq!(
        String::from_utf8_lossy(&inside.stdout),
        "0\n1\nmade\n",
        "{}",
        String::from_utf8_lossy(&inside.stderr)
    );
    let request = ExecRequest {
        container_id: id.clone(),
        cmd: ["sh", "-c", "stat -c %u $(tty)"].map(str::to_string).to_vec(),
        tty: true,
        stdout: true,
        ..ExecRequest::default()
    };
    let mut session = node.runtime.exec(request).await.unwrap();
    let mut output = String::new();
    session
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .await
        .unwrap();
    assert_eq!(output, "0\r\n");
    // A terminal, too.
    let config = ContainerConfig {
        tty: true,
        ..in_pod(container("tty", "tty; stat -c %u $(tty)"))
    };
    assert_eq!(pod.output(config).await, "/dev/pts/0\n0");
    node.clean_up().await;
}
