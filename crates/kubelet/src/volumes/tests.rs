//! Whole pods on temporary directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_base::clock::{Shift, rfc3339};
use serde_json::{Value, json};

use super::*;
use crate::objects::fake::FakeCluster;

struct Node {
    temp: tempfile::TempDir,
    cluster: FakeCluster,
    clock: Clock,
    volumes: Volumes,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = mount_table::unmount_below(&self.root());
    }
}

impl Node {
    fn new(may_mount: bool) -> Node {
        let temp = tempfile::tempdir().unwrap();
        let cluster = FakeCluster::default();
        let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
        let volumes = Node::volumes(&temp, &cluster, &clock, may_mount);
        Node {
            temp,
            cluster,
            clock,
            volumes,
        }
    }

    fn volumes(temp: &tempfile::TempDir, cluster: &FakeCluster, clock: &Clock, may_mount: bool) -> Volumes {
        let objects = Objects::new(Some(cluster.api()), clock.clone());
        let options = Options {
            may_mount,
            ..Options::new(temp.path(), objects, clock.clone())
        };
        Volumes::new(options).unwrap()
    }

    /// As after a kill: all that was in memory is gone.
    fn restart(&mut self) {
        let may_mount = self.volumes.shared.may_mount;
        self.volumes = Node::volumes(&self.temp, &self.cluster, &self.clock, may_mount);
    }

    fn root(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap()
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join("pods/u/volumes").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|e| format!("{path}: {e}"))
    }

    async fn set_up(&self, pod: &Pod) -> String {
        self.volumes
            .set_up(pod)
            .await
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    }
}

/// A pod with these volumes, all mounted at `/name`.
fn pod(volumes: Value, extra: Value) -> Pod {
    let names = volumes.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap());
    let mounts: Vec<Value> = names
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    let mut spec = json!({"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    orlop_api::types::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "x"}},
        "spec": spec,
    }))
    .unwrap()
}

/// With mounts where the tests are run by root, and always without.
fn nodes() -> Vec<Node> {
    let is_root = nix::unistd::geteuid().is_root();
    [false, true]
        .into_iter()
        .filter(|may| is_root || !may)
        .map(Node::new)
        .collect()
}

const CONFIG: &str = "/api/v1/namespaces/n/configmaps/config";
const SECRET: &str = "/api/v1/namespaces/n/secrets/secret";
const TOKEN: &str = "/api/v1/namespaces/n/serviceaccounts/robot/token";

fn put_token(node: &Node, token: &str) {
    let expires = rfc3339(node.clock.now().later(Duration::from_secs(3600)));
    let status = json!({"token": token, "expirationTimestamp": expires});
    node.cluster.put(
        TOKEN,
        json!({"spec": {"audiences": [], "expirationSeconds": 3600}, "status": status}),
    );
}

fn files_pod() -> Pod {
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "config", "items": [{"key": "k", "path": "sub/key", "mode": 0o400}]}},
        {"secret": {"name": "none", "optional": true}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]);
    let volumes = json!([
        {"name": "config", "configMap": {"name": "config", "defaultMode": 0o600}},
        {"name": "secret", "secret": {"secretName": "secret"}},
        {"name": "all", "projected": {"defaultMode": 0o644, "sources": sources}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
        ]}},
    ]);
    pod(volumes, json!({"serviceAccountName": "robot"}))
}

#[tokio::test]
async fn files_come_follow_and_go() {
    for mut node in nodes() {
        let mut pod = files_pod();
        let allocatable = json!({"cpu": "2"});
        node.volumes
            .set_allocatable(orlop_api::types::from_value(allocatable).unwrap());
        let failed = node.set_up(&pod).await;
        for text in [
            "MountVolume.SetUp failed for volume \"config\" : configmap \"config\" not found",
            "MountVolume.SetUp failed for volume \"secret\" : secret \"secret\" not found",
            "MountVolume.SetUp failed for volume \"all\" : [failed to fetch token: ",
        ] {
            assert!(failed.contains(text), "{failed}");
        }
        assert!(!failed.contains("down"), "{failed}");

        node.cluster
            .put(CONFIG, json!({"data": {"k": "1"}, "binaryData": {"b": "AAE="}}));
        node.cluster.put(SECRET, json!({"data": {"s": "czE="}}));
        put_token(&node, "t1");
        node.clock.advance(Duration::from_secs(2));
        assert_eq!(node.set_up(&pod).await, "");
        assert_eq!(node.read("kubernetes.io~configmap/config/k"), "1");
        assert_eq!(node.read("kubernetes.io~configmap/config/b"), "\0\x01");
        assert_eq!(node.read("kubernetes.io~secret/secret/s"), "s1");
        assert_eq!(node.read("kubernetes.io~projected/all/token"), "t1");
        assert_eq!(node.read("kubernetes.io~projected/all/sub/key"), "1");
        assert_eq!(node.read("kubernetes.io~projected/all/name"), "p");
        assert_eq!(node.read("kubernetes.io~downward-api/down/labels"), "app=\"x\"");
        assert_eq!(node.read("kubernetes.io~downward-api/down/cpu"), "2");
        let mode = |path: &str| fs::metadata(node.at(path)).unwrap().mode() & 0o7777;
        assert_eq!(mode("kubernetes.io~configmap/config/k"), 0o600);
        assert_eq!(mode("kubernetes.io~projected/all/sub/key"), 0o400);
        assert_eq!(mode("kubernetes.io~projected/all/token"), 0o644);
        let mounted = mount_table::mounts_below(&node.root()).unwrap().len();
        assert_eq!(mounted, if node.volumes.shared.may_mount { 3 } else { 0 });

        // A new version of everything; a kubelet that was killed meanwhile.
        node.cluster.put(CONFIG, json!({"data": {"k": "2"}}));
        node.cluster.put(SECRET, json!({"data": {"s": "czI=", "new": ""}}));
        pod.metadata.labels = Some([("app".to_string(), "y".to_string())].into());
        node.clock.advance(Duration::from_secs(60));
        assert_eq!(node.volumes.refresh(&pod).await, []);
        assert_eq!(node.read("kubernetes.io~configmap/config/k"), "2");
        assert!(!node.at("kubernetes.io~configmap/config/b").exists());
        assert_eq!(node.read("kubernetes.io~secret/secret/s"), "s2");
        assert_eq!(node.read("kubernetes.io~secret/secret/new"), "");
        assert_eq!(node.read("kubernetes.io~downward-api/down/labels"), "app=\"y\"");
        assert_eq!(node.read("kubernetes.io~projected/all/token"), "t1");
        put_token(&node, "t2");
        node.clock.advance(Duration::from_secs(2900));
        node.volumes.refresh(&pod).await;
        assert_eq!(node.read("kubernetes.io~projected/all/token"), "t2");

        node.restart();
        node.cluster.put(CONFIG, json!({"data": {"k": "3"}}));
        assert_eq!(node.set_up(&pod).await, "");
        assert_eq!(node.read("kubernetes.io~configmap/config/k"), "3");
        assert_eq!(mount_table::mounts_below(&node.root()).unwrap().len(), mounted);

        // What goes away stays in the volume, and the kubelet says so.
        node.cluster.remove(CONFIG);
        node.clock.advance(Duration::from_secs(60));
        let failures = node.volumes.refresh(&pod).await;
        let failed: Vec<&str> = failures.iter().map(|f| f.volume.as_str()).collect();
        assert_eq!(failed, ["config", "all"]);
        assert_eq!(node.read("kubernetes.io~configmap/config/k"), "3");

        node.restart();
        assert_eq!(node.volumes.known_pods().await, ["u"]);
        node.volumes.tear_down("u").await.unwrap();
        node.volumes.tear_down("u").await.unwrap();
        assert!(node.volumes.known_pods().await.is_empty());
        assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());
    }
}

#[tokio::test]
async fn the_group_and_the_user_get_what_is_theirs() {
    let Some(node) = nodes().into_iter().find(|n| n.volumes.shared.may_mount) else {
        return;
    };
    node.cluster.put(CONFIG, json!({"data": {"k": "1"}}));
    node.cluster.put(SECRET, json!({"data": {"s": "czE="}}));
    put_token(&node, "t1");
    let mut pod = files_pod();
    let context = json!({"fsGroup": 4711, "runAsUser": 1234});
    pod.spec.as_mut().unwrap().security_context = Some(orlop_api::types::from_value(context).unwrap());
    assert_eq!(node.set_up(&pod).await, "");
    let shown = |path: &str| {
        let metadata = fs::metadata(node.at(path)).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(shown("kubernetes.io~configmap/config/k"), (0, 4711, 0o640));
    assert_eq!(shown("kubernetes.io~secret/secret/s"), (0, 4711, 0o644));
    assert_eq!(shown("kubernetes.io~secret/secret"), (0, 4711, 0o3777));
    assert_eq!(shown("kubernetes.io~projected/all/token"), (1234, 4711, 0o640));
    assert_eq!(shown("kubernetes.io~projected/all/sub"), (0, 4711, 0o2755));
}

#[tokio::test]
async fn directories_of_the_pod_and_of_the_node() {
    for mut node in nodes() {
        let may_mount = node.volumes.shared.may_mount;
        let host = node.root().join("host");
        let mut list = vec![
            json!({"name": "disk", "emptyDir": {}}),
            json!({"name": "host", "hostPath": {"path": host, "type": "DirectoryOrCreate"}}),
            json!({"name": "claim", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}),
            json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        ];
        if may_mount {
            list.push(json!({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}));
        }
        let pod = pod(json!(list), json!({}));
        let local = node.root().join("local");
        fs::create_dir(&local).unwrap();
        fs::write(local.join("precious"), "1").unwrap();
        let claim = |uid: &str, volume: &str, owner: Value| {
            json!({"metadata": {"uid": uid, "ownerReferences": owner}, "spec": {"volumeName": volume},
                   "status": {"phase": "Bound"}})
        };
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]);
        let claims = "/api/v1/namespaces/n/persistentvolumeclaims";
        node.cluster
            .put(&format!("{claims}/data"), claim("1", "pv-1", json!([])));
        node.cluster
            .put(&format!("{claims}/p-scratch"), claim("2", "pv-2", owner));
        let volume = |uid: &str, name: &str, source: Value| {
            let mut spec = json!({"claimRef": {"uid": uid}});
            spec.as_object_mut()
                .unwrap()
                .extend(source.as_object().unwrap().clone());
            json!({"metadata": {"name": name}, "spec": spec})
        };
        let missing = node.root().join("missing");
        node.cluster.put(
            "/api/v1/persistentvolumes/pv-1",
            volume("1", "pv-1", json!({"hostPath": {"path": host}})),
        );
        node.cluster.put(
            "/api/v1/persistentvolumes/pv-2",
            volume("2", "pv-2", json!({"local": {"path": missing}})),
        );
        let expected = format!(
            "MountVolume.NewMounter initialization failed for volume \"pv-2\" : path {missing:?} does not exist"
        );
        assert_eq!(node.set_up(&pod).await, expected);
        node.cluster.put(
            "/api/v1/persistentvolumes/pv-2",
            volume("2", "pv-2", json!({"local": {"path": local}})),
        );
        assert_eq!(node.set_up(&pod).await, "");
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let mounts = node
            .volumes
            .mounts(&pod, &container, &[], &BTreeMap::new())
            .await
            .unwrap();
        let shown: Vec<String> = mounts
            .iter()
            .map(|m| {
                format!(
                    "{} {}{}",
                    m.container_path,
                    m.host_path,
                    if m.readonly { " ro" } else { "" }
                )
            })
            .collect();
        let pods = node.root().join("pods/u/volumes");
        let scratch = if may_mount {
            pods.join("kubernetes.io~local-volume/pv-2")
        } else {
            local.clone()
        };
        let mut expected = vec![
            format!("/disk {}", pods.join("kubernetes.io~empty-dir/disk").display()),
            format!("/host {}", host.display()),
            format!("/claim {} ro", host.display()),
            format!("/scratch {}", scratch.display()),
        ];
        if may_mount {
            expected.push(format!(
                "/memory {}",
                pods.join("kubernetes.io~empty-dir/memory").display()
            ));
        }
        assert_eq!(shown, expected);
        assert!(scratch.join("precious").exists());

        fs::write(node.at("kubernetes.io~empty-dir/disk/f"), vec![1; 100_000]).unwrap();
        let uses = node.volumes.used("u").await;
        let disk = uses.iter().find(|u| u.volume == "disk").unwrap();
        assert!(disk.used_bytes >= 100_000 && disk.plugin == "kubernetes.io~empty-dir");
        assert_eq!(uses.iter().any(|u| u.volume == "scratch"), may_mount);

        node.restart();
        assert_eq!(node.set_up(&pod).await, "");
        assert!(node.at("kubernetes.io~empty-dir/disk/f").exists());
        // A container mounted something where its mounts reach the node.
        if may_mount {
            let inner = node.at("kubernetes.io~empty-dir/disk/inner");
            fs::create_dir(&inner).unwrap();
            mount_table::bind(&local, &inner, false).unwrap();
        }
        node.volumes.tear_down("u").await.unwrap();
        assert!(!node.root().join("pods/u").exists());
        assert!(local.join("precious").exists() && host.exists());
        assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());
    }
}

#[tokio::test]
async fn sub_paths() {
    for mut node in nodes() {
        let may_mount = node.volumes.shared.may_mount;
        node.cluster.put(CONFIG, json!({"data": {"k": "1"}}));
        let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "config", "configMap": {"name": "config"}}]);
        let mut pod = pod(volumes, json!({}));
        let mounts = json!([
            {"name": "disk", "mountPath": "/a", "subPath": "x/y"},
            {"name": "config", "mountPath": "/k", "subPath": "k"},
            {"name": "disk", "mountPath": "/e", "subPathExpr": "$(NAME)"},
        ]);
        let container = json!({"name": "c", "volumeMounts": mounts});
        pod.spec.as_mut().unwrap().containers[0] = orlop_api::types::from_value(container).unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let env = [KeyValue {
            key: "NAME".into(),
            value: "named".into(),
        }];
        let missing = node
            .volumes
            .mounts(&pod, &container, &env, &BTreeMap::new())
            .await
            .unwrap_err();
        assert_eq!(
            missing.to_string(),
            "cannot find volume \"disk\" to mount into container \"c\""
        );
        assert_eq!(node.set_up(&pod).await, "");
        let mounts = node
            .volumes
            .mounts(&pod, &container, &env, &BTreeMap::new())
            .await
            .unwrap();
        assert!(mounts[1].readonly && !mounts[0].readonly);
        let of = |index: usize| Path::new(&mounts[index].host_path).to_path_buf();
        fs::write(of(0).join("file"), "1").unwrap();
        assert_eq!(node.read("kubernetes.io~empty-dir/disk/x/y/file"), "1");
        assert!(node.at("kubernetes.io~empty-dir/disk/named").is_dir());
        assert_eq!(fs::read_to_string(of(1)).unwrap(), "1");
        if may_mount {
            assert_eq!(of(0), node.root().join("pods/u/volume-subpaths/disk/c/0"));
            // What is mounted stays; a container that starts later has the new one.
            node.cluster.put(CONFIG, json!({"data": {"k": "2"}}));
            node.clock.advance(Duration::from_secs(60));
            node.volumes.refresh(&pod).await;
            assert_eq!(fs::read_to_string(of(1)).unwrap(), "1");
            node.restart();
            assert_eq!(node.set_up(&pod).await, "");
            node.volumes
                .mounts(&pod, &container, &env, &BTreeMap::new())
                .await
                .unwrap();
            assert_eq!(fs::read_to_string(of(1)).unwrap(), "2");
        }
        // The pod makes a way out.
        let named = node.at("kubernetes.io~empty-dir/disk/named");
        fs::remove_dir(&named).unwrap();
        symlink("/etc", &named).unwrap();
        let refused = node
            .volumes
            .mounts(&pod, &container, &env, &BTreeMap::new())
            .await
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "failed to prepare subPath for volumeMount \"disk\" of container \"c\""
        );
        node.volumes.tear_down("u").await.unwrap();
        assert!(Path::new("/etc/passwd").exists());
        assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());
    }
}

#[tokio::test]
async fn what_fails_says_why() {
    let node = Node::new(false);
    node.volumes.set_image_trouble(Some("no images today".into()));
    let failed = |name: &str, reason: &str| format!("MountVolume.SetUp failed for volume {name:?} : {reason}");
    let unsupported = |kind: &str| {
        failed(
            "v",
            &format!("volumes of type {kind} are not supported by this node: use a CSI driver for them"),
        )
    };
    let waiting = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process \
                   volumes=[v]: error processing PVC n/x: failed to fetch PVC from API server: \
                   persistentvolumeclaims \"x\" not found";
    let memory = "memory storage requested, but this kubelet is not allowed to mount";
    let cases = [
        (json!({"nfs": {"server": "s", "path": "/"}}), unsupported("nfs")),
        (
            json!({"iscsi": {"targetPortal": "p", "iqn": "i", "lun": 0}}),
            unsupported("iscsi"),
        ),
        (json!({"fc": {"lun": 1}}), unsupported("fc")),
        (json!({"image": {"reference": "x"}}), failed("v", "no images today")),
        (
            json!({"persistentVolumeClaim": {"claimName": "x"}}),
            waiting.to_string(),
        ),
        (
            json!({"hostPath": {"path": "/none", "type": "File"}}),
            failed("v", "hostPath type check failed: /none is not a file"),
        ),
        (json!({"emptyDir": {"medium": "Memory"}}), failed("v", memory)),
        (
            json!({"emptyDir": {"medium": "Cheese"}}),
            failed("v", "unknown storage medium \"Cheese\""),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            failed("v", "invalid path: must not contain '..': ../x"),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.x"}}]}}),
            failed("v", "unsupported fieldPath: spec.x"),
        ),
        (json!({"configMap": {"name": "x", "optional": true}}), String::new()),
        (json!({}), String::new()),
    ];
    for (mut source, expected) in cases {
        source["name"] = json!("v");
        assert_eq!(
            node.set_up(&pod(json!([source.clone()]), json!({}))).await,
            expected,
            "{source}"
        );
    }
    for name in ["..", "a/b", "../../x", ""] {
        let hostile = pod(json!([{"name": name, "emptyDir": {}}]), json!({}));
        assert!(
            node.set_up(&hostile).await.contains("is not a valid directory name"),
            "{name}"
        );
    }
    let mut hostile = pod(json!([{"name": "v", "emptyDir": {}}]), json!({}));
    hostile.metadata.uid = Some("../../x".into());
    assert!(node.set_up(&hostile).await.contains("is not a valid directory name"));
    node.volumes.tear_down("../..").await.unwrap();
    assert!(node.root().join("pods").exists());

    // A volume that nobody mounts is nobody's business.
    let mut unused = pod(json!([{"name": "v", "configMap": {"name": "x"}}]), json!({}));
    unused.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert_eq!(node.set_up(&unused).await, "");
}

#[tokio::test]
async fn a_disk_of_the_node_as_a_directory() {
    let mut node = Node::new(true);
    let disk = testing::LoopDevice::new(&node.root());
    let claim = json!({"metadata": {"uid": "1"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    node.cluster
        .put("/api/v1/namespaces/n/persistentvolumeclaims/disk", claim);
    let spec = json!({"claimRef": {"uid": "1"}, "mountOptions": ["noatime"], "local": {"path": disk.path}});
    let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
    node.cluster.put("/api/v1/persistentvolumes/pv", volume);
    let with_disk = |uid: &str, read_only: bool| {
        let claim = json!({"claimName": "disk", "readOnly": read_only});
        let mut pod = pod(json!([{"name": "v", "persistentVolumeClaim": claim}]), json!({}));
        pod.metadata.uid = Some(uid.to_string());
        pod
    };
    let global = node.root().join("plugins/kubernetes.io/local-volume/mounts/pv");
    let device = disk.path.display();
    assert_eq!(
        node.set_up(&with_disk("u", true)).await,
        format!(
            "MountVolume.MountDevice failed for volume \"pv\" : local: failed to mount device {device} at {} (fstype: \
             ext4), error cannot mount unformatted disk {device} as we are manipulating it in read-only mode",
            global.display()
        )
    );
    assert!(!global.exists());
    assert_eq!(node.set_up(&with_disk("u", false)).await, "");
    let own = node.at("kubernetes.io~local-volume/pv");
    fs::write(own.join("file"), "precious").unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(global.to_str().unwrap()))
        .unwrap();
    assert!(line.contains("noatime") && line.contains("ext4"), "{line}");

    // Another pod, after the kubelet was killed; the disk stays as long as one of them has it.
    node.restart();
    assert_eq!(node.set_up(&with_disk("u2", false)).await, "");
    node.volumes.tear_down("u").await.unwrap();
    let other = node.root().join("pods/u2/volumes/kubernetes.io~local-volume/pv/file");
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    node.volumes.tear_down("u2").await.unwrap();
    assert!(!global.exists() && !node.root().join("pods/u2").exists());
    assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());

    // What is on it is never formatted away.
    assert_eq!(node.set_up(&with_disk("u", true)).await, "");
    assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "precious");
    node.volumes.tear_down("u").await.unwrap();
}

#[tokio::test]
async fn a_block_device_of_the_node() {
    let mut node = Node::new(true);
    let disk = testing::LoopDevice::new(&node.root());
    let claim = json!({"metadata": {"uid": "1"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    node.cluster
        .put("/api/v1/namespaces/n/persistentvolumeclaims/disk", claim);
    let put = |path: &Path, mode: &str| {
        let spec = json!({"claimRef": {"uid": "1"}, "volumeMode": mode, "local": {"path": path}});
        let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
        node.cluster.put("/api/v1/persistentvolumes/pv", volume);
    };
    let mut with_device = pod(
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "disk", "readOnly": true}}]),
        json!({}),
    );
    let container = &mut with_device.spec.as_mut().unwrap().containers[0];
    container.volume_mounts = None;
    container.volume_devices = Some(vec![
        orlop_api::types::from_value(json!({"name": "v", "devicePath": "/dev/x"})).unwrap(),
    ]);
    let container = container.clone();

    put(&disk.path, "Filesystem");
    let said = node.set_up(&with_device).await;
    assert!(
        said.ends_with("volume v has volumeMode Filesystem, but is specified in volumeDevices"),
        "{said}"
    );
    put(&node.root(), "Block");
    let said = node.set_up(&with_device).await;
    let expected = format!(
        "MapVolume.MapBlockVolume failed for volume \"pv\" : {} is not a block device",
        node.root().display()
    );
    assert_eq!(said, expected);
    // By another name, as most disks are called.
    symlink(&disk.path, node.root().join("by-id")).unwrap();
    put(&node.root().join("by-id"), "Block");
    assert_eq!(node.set_up(&with_device).await, "");
    let given = node.volumes.devices(&with_device, &container).unwrap();
    let link = node.root().join("pods/u/volumeDevices/kubernetes.io~local-volume/pv");
    assert_eq!(
        [given[0].host_path.as_str(), &given[0].permissions],
        [link.to_str().unwrap(), "r"]
    );
    assert_eq!(fs::read_link(&link).unwrap(), disk.path);
    let held = node
        .root()
        .join("plugins/kubernetes.io~local-volume/volumeDevices/pv/u");
    assert_eq!(testing::loops_on(&held), 1);
    assert!(
        node.volumes
            .mounts(&with_device, &container, &[], &BTreeMap::new())
            .await
            .unwrap()
            .is_empty()
    );

    node.restart();
    assert_eq!(node.set_up(&with_device).await, "");
    assert_eq!(testing::loops_on(&held), 1);
    node.restart();
    node.volumes.tear_down("u").await.unwrap();
    node.volumes.tear_down("u").await.unwrap();
    assert_eq!(testing::loops_on(&held), 0);
    assert!(!held.parent().unwrap().exists() && !link.exists() && !node.root().join("pods/u").exists());
    assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());
    assert!(disk.path.exists());
}
