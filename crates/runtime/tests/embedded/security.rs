//! What a container may do and what it sees.

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

fn profile(profile_type: ProfileType) -> SecurityProfile {
    SecurityProfile {
        profile_type: profile_type as i32,
        localhost_ref: String::new(),
    }
}

#[tokio::test]
async fn capabilities_are_containerds() {
    let node = Node::start().await;
    let pod = node.run_pod("caps").await;
    let show = "grep -E 'Cap(Prm|Eff|Bnd|Amb|Inh)' /proc/self/status";
    assert_eq!(
        pod.output(container("default", show)).await,
        "CapInh:\t0000000000000000\nCapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000000"
    );
    let dropped = secured(container("dropped", show), |c| {
        c.capabilities = Some(Capability {
            drop_capabilities: vec!["ALL".to_string()],
            add_capabilities: vec!["NET_BIND_SERVICE".to_string()],
            ..Capability::default()
        });
    });
    assert!(
        pod.output(dropped)
            .await
            .contains("CapEff:\t0000000000000400\nCapBnd:\t0000000000000400")
    );
    // Not root: nothing but the bound.
    let user = secured(container("user", show), |c| {
        c.run_as_user = Some(Int64Value { value: 1000 })
    });
    assert!(
        pod.output(user)
            .await
            .contains("CapEff:\t0000000000000000\nCapBnd:\t00000000a80425fb")
    );
    let ambient = secured(container("ambient", show), |c| {
        c.run_as_user = Some(Int64Value { value: 1000 });
        c.capabilities = Some(Capability {
            add_ambient_capabilities: vec!["NET_ADMIN".to_string()],
            ..Capability::default()
        });
    });
    assert!(pod.output(ambient).await.contains("CapAmb:\t0000000000001000"));
    node.clean_up().await;
}

#[tokio::test]
async fn users_are_the_images() {
    let node = Node::start().await;
    let pod = node.run_pod("users").await;
    let run = async |name: &str, change: &dyn Fn(&mut LinuxContainerSecurityContext)| {
        let config = secured(container(name, "id -u; id -g; id -G; echo $HOME; umask"), change);
        let output = pod.output(config).await;
        output.lines().map(str::to_string).collect::<Vec<_>>().join(" | ")
    };
    assert_eq!(run("root", &|_| {}).await, "0 | 0 | 0 | /root | 0022");
    assert_eq!(
        run("name", &|c| c.run_as_username = "web".to_string()).await,
        "33 | 34 | 34 50 | /var/www | 0022"
    );
    let number = |c: &mut LinuxContainerSecurityContext| {
        c.run_as_user = Some(Int64Value { value: 1000 });
        c.run_as_group = Some(Int64Value { value: 2000 });
        c.supplemental_groups = vec![7, 8];
    };
    assert_eq!(run("number", &number).await, "1000 | 2000 | 2000 7 8 | / | 0022");
    let config = secured(container("status", "true"), |c| c.run_as_username = "web".to_string());
    let id = pod.start(config).await;
    let user = node
        .runtime
        .container_status(&id)
        .await
        .unwrap()
        .user
        .unwrap()
        .linux
        .unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (33, 34, vec![34, 50]));
    let unknown = secured(container("unknown", "true"), |c| {
        c.run_as_username = "nobody".to_string()
    });
    let error = node
        .runtime
        .create_container(&pod.id, unknown, pod.config.clone())
        .await
        .unwrap_err();
    assert!(error.message.contains("unable to find user nobody"), "{error}");
    node.clean_up().await;
}

#[tokio::test]
async fn proc_and_sys_are_masked() {
    let node = Node::start().await;
    let pod = node.run_pod("masked").await;
    let texts = |list: &[&str]| list.iter().map(|t| t.to_string()).collect::<Vec<_>>();
    let script = "wc -c < /proc/keys; ls /proc/acpi /sys/firmware 2>/dev/null | wc -l; \
                  echo 1 > /proc/sys/kernel/panic || echo ro-sys; \
                  echo b > /proc/sysrq-trigger || echo ro-sysrq; \
                  mkdir /sys/fs/cgroup/x 2>/dev/null || mkdir /sys/fs/cgroup/memory/x || echo ro-cgroup; \
                  touch /sys/x || echo ro-sysfs";
    let config = secured(container("c", script), |c| {
        c.masked_paths = texts(&["/proc/keys", "/proc/acpi", "/sys/firmware", "/proc/not-there"]);
        c.readonly_paths = texts(&["/proc/sys", "/proc/sysrq-trigger", "/proc/not-there"]);
    });
    let output = pod.output(config).await;
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "0");
    assert_eq!(lines[2..], ["ro-sys", "ro-sysrq", "ro-cgroup", "ro-sysfs"], "{output}");
    node.clean_up().await;
}

#[tokio::test]
async fn a_read_only_root() {
    let node = Node::start().await;
    let pod = node.run_pod("readonly").await;
    let script = "touch /x || echo read-only; touch /dev/shm/x && echo shm; touch /etc/hostname || echo hostname";
    let config = secured(container("c", script), |c| c.readonly_rootfs = true);
    let output = pod
        .output(container("rw", "touch /x && touch /dev/shm/y && echo writable"))
        .await;
    assert_eq!(output, "writable");
    let (_, output) = pod.run(config).await;
    assert_eq!(output, "read-only\nshm\nhostname");
    node.clean_up().await;
}

#[tokio::test]
async fn the_default_seccomp_profile() {
    let node = Node::start().await;
    let pod = node.run_pod("seccomp").await;
    let script = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; mount -t tmpfs x /tmp 2>&1 | head -1; echo ok";
    let with = |name: &str, profile_type: ProfileType, no_new_privs: bool| {
        secured(container(name, script), |c| {
            c.seccomp = Some(profile(profile_type));
            c.no_new_privs = no_new_privs;
        })
    };
    let output = pod.output(with("default", ProfileType::RuntimeDefault, false)).await;
    assert!(output.starts_with("NoNewPrivs:\t0\nSeccomp:\t2"), "{output}");
    let output = pod.output(with("nnp", ProfileType::RuntimeDefault, true)).await;
    assert!(output.starts_with("NoNewPrivs:\t1\nSeccomp:\t2"), "{output}");
    let output = pod.output(with("none", ProfileType::Unconfined, false)).await;
    assert!(output.starts_with("NoNewPrivs:\t0\nSeccomp:\t0"), "{output}");

    let path = node.dir.path().join("profile.json");
    let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":95}]}"#;
    std::fs::write(&path, json).unwrap();
    let local = secured(container("local", "mkdir /x 2>&1"), |c| {
        c.seccomp = Some(SecurityProfile {
            profile_type: ProfileType::Localhost as i32,
            localhost_ref: path.display().to_string(),
        });
    });
    let (status, output) = pod.run(local).await;
    assert_eq!(status.exit_code, 1);
    assert!(output.contains("Operation not supported"), "{output}");
    node.clean_up().await;
}

#[tokio::test]
async fn devices_are_few() {
    let node = Node::start().await;
    let pod = node.run_pod("devices").await;
    let script =
        "ls /dev; mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem 2>&1; head -c 4 /dev/zero | wc -c; echo x > /dev/null";
    let output = pod.output(container("c", script)).await;
    let names: Vec<&str> = output.lines().take(15).collect();
    assert_eq!(
        names,
        [
            "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
            "urandom", "zero"
        ],
        "{output}"
    );
    assert!(output.contains("Operation not permitted"), "{output}");
    let config = ContainerConfig {
        devices: vec![Device {
            container_path: "/dev/mine".to_string(),
            host_path: "/dev/null".to_string(),
            permissions: "rw".to_string(),
        }],
        ..container("own", "echo x > /dev/mine && test -c /dev/mine && echo ok")
    };
    assert_eq!(pod.output(config).await, "ok");
    node.clean_up().await;
}

#[tokio::test]
async fn privileged_containers() {
    let node = Node::start().await;
    let mut config = node.pod_config("privileged");
    let privileged = |c: &mut LinuxContainerSecurityContext| c.privileged = true;
    let plain = node.run_pod("plain").await;
    let refused =
        node.runtime
            .create_container(&plain.id, secured(container("c", ""), privileged), plain.config.clone());
    assert_eq!(
        refused.await.unwrap_err().message,
        "no privileged container allowed in sandbox"
    );
    config
        .linux
        .as_mut()
        .unwrap()
        .security_context
        .as_mut()
        .unwrap()
        .privileged = true;
    let pod = node.run_pod_with(config).await;
    let script = "mkdir /m && mount -t tmpfs x /m && echo mounted; touch /proc/sys/x 2>/dev/null; \
                  ls /dev | wc -l; grep -c . /proc/mounts";
    let output = pod.output(secured(container("c", script), privileged)).await;
    assert!(output.starts_with("mounted"), "{output}");
    node.clean_up().await;
}

#[tokio::test]
async fn sysctls_of_the_pod() {
    let node = Node::start().await;
    let mut config = node.pod_config("sysctls");
    let linux = config.linux.as_mut().unwrap();
    linux.sysctls = [
        ("kernel.shm_rmid_forced".to_string(), "1".to_string()),
        ("net.ipv4.ip_local_port_range".to_string(), "2000 3000".to_string()),
    ]
    .into();
    let host = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let pod = node.run_pod_with(config).await;
    let script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                  tr '\\t' ' ' < /proc/sys/net/ipv4/ip_local_port_range";
    assert_eq!(pod.output(container("c", script)).await, "1\n0\n2000 3000");
    assert_eq!(
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap(),
        host
    );
    let mut bad = node.pod_config("bad");
    bad.linux.as_mut().unwrap().sysctls = [("net.no.such".to_string(), "1".to_string())].into();
    let error = node.runtime.run_pod_sandbox(bad, "").await.unwrap_err();
    assert!(error.message.contains("set sysctl net/no/such"), "{error}");
    node.clean_up().await;
}

#[tokio::test]
async fn descriptors_do_not_lead_out() {
    let node = Node::start().await;
    let pod = node.run_pod("descriptors").await;
    for number in 3..40 {
        let config = ContainerConfig {
            working_dir: format!("/proc/self/fd/{number}"),
            ..container(
                &format!("c{number}"),
                "ls /proc/self/cwd/..; cat /proc/self/mountinfo | wc -l",
            )
        };
        let id = pod.create(config).await;
        // The path is made in the container's root where it can be, which is not where a descriptor leads.
        if node.runtime.start_container(&id).await.is_ok() {
            pod.wait(&id).await;
            let listed = pod.log(&format!("c{number}"));
            assert!(
                !listed.contains("containers") && !listed.contains("shim.sock"),
                "{listed}"
            );
        }
    }
    let id = pod.start(container("running", "ls -l /proc/self/fd; sleep 100")).await;
    let request = |number: u32| {
        let script = format!("cd /proc/1/fd/{number} 2>/dev/null && pwd -P; true");
        ["sh", "-c", &script].map(str::to_string).to_vec()
    };
    for number in 3..20 {
        let result = node.runtime.exec_sync(&id, request(number), Some(LONG)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&result.stdout), "", "descriptor {number}");
    }
    node.clean_up().await;
}

#[tokio::test]
async fn the_shims_own_file_cannot_be_written_to() {
    let node = Node::start().await;
    let pod = node.run_pod("sealed").await;
    let exe = format!("/proc/{}/exe", shim_pid(&pod.id).unwrap());
    // While it runs it is busy as well; what counts is the mount that it was started from.
    let flags = nix::sys::statvfs::statvfs(exe.as_str()).unwrap().flags();
    assert!(flags.contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    assert!(std::fs::OpenOptions::new().write(true).open(&exe).is_err());
    // A container that runs it gets nothing but an error of its own.
    let config = ContainerConfig {
        command: vec!["/proc/self/exe".to_string(), "shim".to_string()],
        ..container("c", "")
    };
    let id = pod.create(config).await;
    if node.runtime.start_container(&id).await.is_ok() {
        assert_ne!(pod.wait(&id).await.exit_code, 0);
    }
    node.clean_up().await;
}
