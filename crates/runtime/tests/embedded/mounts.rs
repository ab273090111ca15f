//! Volumes.

use std::path::Path;

use orlop_runtime::Runtime;
use orlop_runtime::cri::messages::*;

use crate::support::*;

fn mount(source: &Path, target: &str) -> Mount {
    Mount {
        host_path: source.display().to_string(),
        container_path: target.to_string(),
        ..Mount::default()
    }
}

#[tokio::test]
async fn volumes_and_files() {
    let node = Node::start().await;
    let pod = node.run_pod("volumes").await;
    let dir = node.dir.path().join("volume");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("given"), "text").unwrap();
    let file = node.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let config = ContainerConfig {
        mounts: vec![
            mount(&dir, "/data/deep/er"),
            Mount {
                readonly: true,
                ..mount(&dir, "/ro")
            },
            mount(&file, "/dev/termination-log"),
            mount(&node.dir.path().join("not-there-yet"), "/made"),
        ],
        ..container(
            "c",
            "cat /data/deep/er/given; echo; echo new > /data/deep/er/new; touch /ro/x || echo ro; \
             echo done > /dev/termination-log; touch /made/x && echo made",
        )
    };
    assert_eq!(pod.output(config).await, "text\nro\nmade");
    assert_eq!(std::fs::read_to_string(dir.join("new")).unwrap(), "new\n");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "done\n");
    assert!(node.dir.path().join("not-there-yet/x").exists());
    node.clean_up().await;
}

#[tokio::test]
async fn the_pods_containers_share_dev_shm() {
    let node = Node::start().await;
    let pod = node.run_pod("shm").await;
    pod.output(container("one", "echo shared > /dev/shm/file")).await;
    assert_eq!(
        pod.output(container("two", "cat /dev/shm/file; grep -c ' /dev/shm ' /proc/mounts"))
            .await,
        "shared\n1"
    );
    let other = node.run_pod("other").await;
    assert_eq!(other.output(container("c", "ls /dev/shm | wc -l")).await, "0");
    node.clean_up().await;
}

#[tokio::test]
async fn nothing_is_mounted_on_the_node() {
    let node = Node::start().await;
    let before = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let pod = node.run_pod("mounts").await;
    pod.start(container("c", "sleep 100")).await;
    let during = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let path = node.dir.path().display().to_string();
    assert!(!during.contains(&path), "{during}");
    assert_eq!(before.matches(&path).count(), 0);
    node.clean_up().await;
}

#[tokio::test]
async fn mounts_of_the_node_appear_if_asked_for() {
    let node = Node::start().await;
    let pod = node.run_pod("propagation").await;
    let dir = node.dir.path().join("shared");
    std::fs::create_dir_all(&dir).unwrap();
    // A shared mount to play on, whatever the node's root is.
    let shared = support_mount(&dir);
    for (name, propagation, expected) in [
        ("private", MountPropagation::Private, "0"),
        ("slave", MountPropagation::HostToContainer, "1"),
    ] {
        let config = ContainerConfig {
            mounts: vec![Mount {
                propagation: propagation as i32,
                ..mount(&dir, "/shared")
            }],
            ..container(name, "echo ready; sleep 100")
        };
        let id = pod.start(config).await;
        let below = dir.join(name);
        std::fs::create_dir(&below).unwrap();
        let inner = support_mount(&below);
        let seen = pod
            .exec(&id, &["sh", "-c", &format!("grep -c ' /shared/{name} ' /proc/mounts")])
            .await;
        assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), expected, "{name}");
        drop(inner);
    }
    drop(shared);
    node.clean_up().await;
}

#[tokio::test]
async fn read_only_reaches_what_is_mounted_below() {
    let node = Node::start().await;
    let pod = node.run_pod("rro").await;
    let dir = node.dir.path().join("tree");
    std::fs::create_dir_all(dir.join("below")).unwrap();
    let inner = support_mount(&dir.join("below"));
    for (recursive, expected) in [(false, "0"), (true, "1")] {
        let name = format!("c-{recursive}");
        let config = ContainerConfig {
            mounts: vec![Mount {
                readonly: true,
                recursive_read_only: recursive,
                ..mount(&dir, "/tree")
            }],
            ..container(
                &name,
                "touch /tree/x 2>/dev/null && exit 9; touch /tree/below/x; echo $?",
            )
        };
        assert_eq!(pod.output(config).await, expected);
    }
    let handlers = node.runtime.status().await.unwrap().runtime_handlers;
    assert!(handlers[0].features.clone().unwrap().recursive_read_only_mounts);
    drop(inner);
    node.clean_up().await;
}

#[tokio::test]
async fn mounts_of_a_container_appear_on_the_node_if_asked_for() {
    let node = Node::start().await;
    let mut config = node.pod_config("outward");
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.privileged = true;
    let pod = node.run_pod_with(config).await;
    let dir = node.dir.path().join("outward");
    std::fs::create_dir_all(&dir).unwrap();
    let with = |name: &str| ContainerConfig {
        mounts: vec![Mount {
            propagation: MountPropagation::Bidirectional as i32,
            ..mount(&dir, "/outward")
        }],
        ..secured(
            container(
                name,
                "mkdir /outward/m && mount -t tmpfs x /outward/m && echo mounted; sleep 100",
            ),
            |c| c.privileged = true,
        )
    };
    let shared = support_mount(&dir);
    let id = pod.start(with("c")).await;
    wait_for_line(&pod, "c", "mounted").await;
    let path = format!(" {} ", dir.join("m").display());
    assert!(std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&path));
    node.runtime
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    nix::mount::umount2(&dir.join("m"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    drop(shared);
    // Not on a mount that is not shared.
    let private = support_mount(&dir);
    nix::mount::mount(
        None::<&str>,
        &dir,
        None::<&str>,
        nix::mount::MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .unwrap();
    let error = node
        .runtime
        .create_container(&pod.id, with("no"), pod.config.clone())
        .await
        .unwrap_err();
    assert!(error.message.contains("is not a shared mount"), "{error}");
    drop(private);
    node.clean_up().await;
}

#[tokio::test]
async fn images_as_volumes() {
    let node = Node::start().await;
    let pod = node.run_pod("images").await;
    let image = |target: &str, sub_path: &str| Mount {
        image: Some(ImageSpec {
            image: VOLUME_IMAGE.to_string(),
            ..ImageSpec::default()
        }),
        image_sub_path: sub_path.to_string(),
        container_path: target.to_string(),
        readonly: true,
        ..Mount::default()
    };
    let config = ContainerConfig {
        mounts: vec![image("/image", ""), image("/part", "etc")],
        ..container(
            "c",
            "grep -c web /image/etc/passwd; ls /part; touch /image/x || touch /part/x || echo ro",
        )
    };
    assert_eq!(pod.output(config).await, "1\ngroup\npasswd\nro");
    let config = ContainerConfig {
        mounts: vec![image("/part", "no/such")],
        ..container("missing", "true")
    };
    let id = pod.create(config).await;
    let error = node.runtime.start_container(&id).await.unwrap_err();
    assert!(error.message.contains("find no/such in the image"), "{error}");
    node.clean_up().await;
}

#[tokio::test]
async fn layers_that_cannot_be_stacked_are_copied() {
    let node = Node::start().await;
    let pod = node.run_pod("copied").await;
    let script = "grep -c web /etc/passwd; touch /x && echo writable; grep -c overlay /proc/mounts";
    let (_, output) = pod.run(with_image(container("c", script), COPIED_IMAGE)).await;
    assert_eq!(output, "1\nwritable\n0");
    node.clean_up().await;
}

#[tokio::test]
async fn volumes_of_an_image_are_writable() {
    let node = Node::start().await;
    let pod = node.run_pod("declared").await;
    let script = "grep -c web /etc/passwd; touch /data/x && touch /etc/y && echo writable; touch /z || echo read-only";
    let config = secured(with_image(container("c", script), VOLUME_IMAGE), |c| {
        c.readonly_rootfs = true
    });
    let (_, output) = pod.run(config).await;
    assert_eq!(output, "1\nwritable\nread-only");
    node.clean_up().await;
}

/// A tmpfs with shared propagation, unmounted with the value.
struct SharedMount(std::path::PathBuf);

fn support_mount(path: &Path) -> SharedMount {
    use nix::mount::{MsFlags, mount};
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    mount(None::<&str>, path, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    SharedMount(path.to_path_buf())
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}
