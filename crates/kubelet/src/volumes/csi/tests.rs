//! Drivers on real sockets, whole pods.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use orlop_api::types::core::Pod;
use orlop_base::{Clock, Shutdown};
use serde_json::{Value, json};

use super::super::testing::{LoopDevice, loops_on};
use super::super::{Options, Volumes, mount_table};
use super::fake::FakeDriver;
use super::hashed;
use crate::events::testing::Said;
use crate::objects::Objects;
use crate::objects::fake::FakeCluster;
use crate::testing::until;

const DRIVER: &str = "tape.example.com";
const CLAIM: &str = "/api/v1/namespaces/n/persistentvolumeclaims/data";

struct Node {
    temp: tempfile::TempDir,
    cluster: FakeCluster,
    volumes: Volumes,
    driver: FakeDriver,
    said: Said,
    shutdown: Shutdown,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.trigger();
        let _ = mount_table::unmount_below(&self.root());
    }
}

impl Node {
    fn new() -> Node {
        let temp = tempfile::tempdir().unwrap();
        let cluster = FakeCluster::default();
        cluster.put("/api/v1/nodes/n1", json!({"metadata": {"name": "n1", "uid": "nu"}}));
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "nu"}]);
        let csi_node = json!({"metadata": {"name": "n1", "ownerReferences": owner}, "spec": {"drivers": []}});
        cluster.put("/apis/storage.k8s.io/v1/csinodes/n1", csi_node);
        let driver = FakeDriver::new(&temp.path().join("data"));
        fs::write(driver.data.join("file"), "on tape").unwrap();
        let said = Said::default();
        let volumes = Node::volumes(&temp, &cluster, &said);
        Node {
            temp,
            cluster,
            volumes,
            driver,
            said,
            shutdown: Shutdown::default(),
        }
    }

    fn volumes(temp: &tempfile::TempDir, cluster: &FakeCluster, said: &Said) -> Volumes {
        let objects = Objects::new(Some(cluster.api()), Clock::System);
        let options = Options {
            node_name: "n1".into(),
            events: said.events(),
            ..Options::new(temp.path(), objects, Clock::System)
        };
        Volumes::new(options).unwrap()
    }

    fn root(&self) -> PathBuf {
        self.temp.path().canonicalize().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.root().join("plugins_registry/tape-reg.sock")
    }

    /// Watches for plugins until the driver is known, and knows it.
    async fn until_registered(&self) {
        let volumes = self.volumes.clone();
        let watch = volumes.watch_plugins(self.shutdown.clone());
        let is_known = || self.volumes.shared.drivers.client(DRIVER).is_ok() && self.driver.registered().is_some();
        let known = until("the driver is registered", is_known, true);
        tokio::select! {
            () = watch => panic!("it watches until the shutdown"),
            () = known => {}
        }
    }

    async fn set_up(&self, pod: &Pod) -> String {
        self.volumes
            .set_up(pod)
            .await
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    }

    fn put_driver(&self, spec: Value) {
        self.cluster.put(
            &format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER}"),
            json!({"metadata": {}, "spec": spec}),
        );
    }

    fn put_claim(&self) {
        self.put_claim_of("Filesystem");
    }

    fn put_claim_of(&self, mode: &str) {
        let claim = json!({"metadata": {"uid": "1"}, "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}});
        self.cluster.put(CLAIM, claim);
        let csi = json!({"driver": DRIVER, "volumeHandle": "h1", "fsType": "ext4", "volumeAttributes": {"reel": "9"}});
        let spec = json!({"claimRef": {"uid": "1"}, "accessModes": ["ReadWriteOnce"], "csi": csi, "volumeMode": mode});
        self.cluster.put(
            "/api/v1/persistentvolumes/pv-1",
            json!({"metadata": {"name": "pv-1"}, "spec": spec}),
        );
    }
}

fn pod(uid: &str, source: Value) -> Pod {
    let mut volume = source;
    volume["name"] = json!("v");
    orlop_api::types::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {
            "serviceAccountName": "robot",
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [volume],
        },
    }))
    .unwrap()
}

fn claimed(uid: &str) -> Pod {
    pod(uid, json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

fn with_device(uid: &str) -> Pod {
    let mut pod = claimed(uid);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts = None;
    container.volume_devices = Some(vec![
        orlop_api::types::from_value(json!({"name": "v", "devicePath": "/dev/x"})).unwrap(),
    ]);
    pod
}

#[tokio::test]
async fn staged_once_published_for_each_pod_and_taken_down_after_the_last() {
    let mut node = Node::new();
    node.put_claim();
    let missing = format!("driver name {DRIVER} not found in the list of registered CSI drivers");
    node.put_driver(json!({"attachRequired": false, "podInfoOnMount": true}));
    assert_eq!(
        node.set_up(&claimed("u1")).await,
        format!(
            "MountVolume.MountDevice failed for volume \"pv-1\" : kubernetes.io/csi: attacher.MountDevice failed to \
             create newCsiDriverClient: {missing}"
        )
    );
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    assert_eq!(node.set_up(&claimed("u1")).await, "");
    assert_eq!(node.set_up(&claimed("u1")).await, "");
    assert_eq!(node.driver.calls(), ["stage", "publish"]);
    let request = node.driver.published();
    let staging = node.root().join(format!(
        "plugins/kubernetes.io/csi/{DRIVER}/{}/globalmount",
        hashed(&["h1"])
    ));
    assert_eq!(request.staging_target_path, staging.display().to_string());
    let target = node.root().join("pods/u1/volumes/kubernetes.io~csi/pv-1/mount");
    assert_eq!(request.target_path, target.display().to_string());
    assert_eq!(request.volume_context["reel"], "9");
    assert_eq!(request.volume_context["csi.storage.k8s.io/pod.name"], "p");
    assert_eq!(request.volume_context["csi.storage.k8s.io/ephemeral"], "false");
    let data: Value = serde_json::from_slice(&fs::read(target.with_file_name("vol_data.json")).unwrap()).unwrap();
    assert_eq!(
        (&data["specVolID"], &data["volumeHandle"]),
        (&json!("pv-1"), &json!("h1"))
    );
    if nix::unistd::geteuid().is_root() {
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "on tape");
    }

    // A kubelet that was killed asks again, which changes nothing.
    node.volumes = Node::volumes(&node.temp, &node.cluster, &node.said);
    node.until_registered().await;
    assert_eq!(node.set_up(&claimed("u1")).await, "");
    assert_eq!(node.set_up(&claimed("u2")).await, "");
    assert_eq!(
        node.volumes.volumes_in_use().await,
        [format!("kubernetes.io/csi/{DRIVER}^h1")]
    );
    node.driver.calls();

    node.volumes.tear_down("u1").await.unwrap();
    assert_eq!(node.driver.calls(), ["unpublish"]);
    node.driver.fail("unstage");
    let failed = node.volumes.tear_down("u2").await.unwrap_err().to_string();
    assert!(
        failed.ends_with("rpc error: code = Internal desc = out of tape"),
        "{failed}"
    );
    assert!(node.driver.data.join("file").exists());
    node.driver.fail("");
    server.abort();
}

#[tokio::test]
async fn a_device_for_each_pod() {
    let mut node = Node::new();
    let disk = LoopDevice::new(&node.root());
    std::os::unix::fs::symlink(&disk.path, node.driver.data.join("device")).unwrap();
    node.put_claim_of("Block");
    node.put_driver(json!({"attachRequired": false}));
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    let said = node.set_up(&claimed("u1")).await;
    assert!(
        said.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{said}"
    );
    let one = with_device("u1");
    assert_eq!(node.set_up(&one).await, "");
    assert_eq!(node.driver.calls(), ["stage", "publish"]);
    let devices = node.root().join("plugins/kubernetes.io/csi/volumeDevices");
    let request = node.driver.published();
    let target = devices.join("publish/pv-1/u1");
    assert_eq!(request.target_path, target.display().to_string());
    assert_eq!(
        request.staging_target_path,
        devices.join("staging/pv-1").display().to_string()
    );
    assert!(request.volume_capability.unwrap().mount.is_none());
    let given = node
        .volumes
        .devices(&one, &one.spec.as_ref().unwrap().containers[0])
        .unwrap();
    let link = node.root().join("pods/u1/volumeDevices/kubernetes.io~csi/pv-1");
    assert_eq!(given[0].host_path, link.display().to_string());
    assert_eq!(fs::read_link(&link).unwrap(), target);
    let held = devices.join("pv-1/dev/u1");
    assert!(fs::metadata(&held).unwrap().rdev() == fs::metadata(&disk.path).unwrap().rdev());
    assert_eq!(loops_on(&held), 1);

    // A kubelet that was killed asks again; another pod has it, too.
    node.volumes = Node::volumes(&node.temp, &node.cluster, &node.said);
    node.until_registered().await;
    assert_eq!(node.set_up(&one).await, "");
    assert_eq!(loops_on(&held), 1);
    assert_eq!(node.set_up(&with_device("u2")).await, "");
    assert_eq!(
        node.volumes.volumes_in_use().await,
        [format!("kubernetes.io/csi/{DRIVER}^h1")]
    );
    node.driver.calls();
    node.volumes.tear_down("u1").await.unwrap();
    assert_eq!(node.driver.calls(), ["unpublish"]);
    assert_eq!(loops_on(&held), 0);
    node.driver.fail("unpublish");
    assert!(node.volumes.tear_down("u2").await.is_err());
    node.driver.fail("");
    node.driver.calls();
    node.volumes.tear_down("u2").await.unwrap();
    assert_eq!(node.driver.calls(), ["unpublish", "unstage"]);
    assert!(node.volumes.volumes_in_use().await.is_empty());
    assert_eq!(fs::read_dir(devices.join("publish")).unwrap().count(), 0);
    assert!(!devices.join("pv-1").exists() && !node.root().join("pods/u2").exists());
    assert!(mount_table::mounts_below(&devices).unwrap().is_empty());
    server.abort();
}

#[tokio::test]
async fn an_unstage_that_failed_is_made_up_for() {
    let node = Node::new();
    node.put_claim();
    node.put_driver(json!({"attachRequired": false}));
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    assert_eq!(node.set_up(&claimed("u1")).await, "");
    node.driver.fail("unpublish");
    node.volumes.tear_down("u1").await.unwrap_err();
    assert!(node.root().join("pods/u1").exists());
    node.driver.fail("unstage");
    node.volumes.tear_down("u1").await.unwrap_err();
    node.driver.fail("");
    node.driver.calls();
    node.volumes.tear_down("u1").await.unwrap();
    assert_eq!(node.driver.calls(), ["unpublish", "unstage"]);
    assert!(!node.root().join("pods/u1").exists());
    assert!(mount_table::mounts_below(&node.root()).unwrap().is_empty());
    let staged = node.root().join(format!("plugins/kubernetes.io/csi/{DRIVER}"));
    assert_eq!(fs::read_dir(staged).unwrap().count(), 0);
    server.abort();
}

#[tokio::test]
async fn inline_volumes_and_volumes_that_must_be_attached() {
    let node = Node::new();
    node.put_claim();
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    let inline = pod("u1", json!({"csi": {"driver": DRIVER, "volumeAttributes": {"a": "b"}}}));
    assert_eq!(
        node.set_up(&inline).await,
        format!(
            "MountVolume.SetUp failed for volume \"v\" : kubernetes.io/csi: mounter.SetupAt failed to check volume \
             lifecycle mode: volume mode \"Ephemeral\" not supported by driver {DRIVER} (no CSIDriver object)"
        )
    );
    let id = format!("csi-{}", hashed(&["h1", DRIVER, "n1"]));
    let failed = node.set_up(&claimed("u2")).await;
    assert!(
        failed.contains(&format!("volumeattachments.storage.k8s.io \"{id}\" not found")),
        "{failed}"
    );
    let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{id}");
    let spec = json!({"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}});
    node.cluster.put(
        &path,
        json!({"metadata": {}, "spec": spec, "status": {"attached": false}}),
    );
    let failed = node.set_up(&claimed("u2")).await;
    assert_eq!(
        failed,
        format!(
            "MountVolume.WaitForAttach failed for volume \"pv-1\" : volume h1 is not attached for volume attachment {id}"
        )
    );
    let status = json!({"attached": true, "attachmentMetadata": {"device": "/dev/st0"}});
    node.cluster
        .put(&path, json!({"metadata": {}, "spec": spec, "status": status}));
    assert_eq!(node.set_up(&claimed("u2")).await, "");
    assert_eq!(node.driver.published().publish_context["device"], "/dev/st0");

    let token = json!({"token": "t", "expirationTimestamp": "2100-01-01T00:00:00Z"});
    node.cluster.put(
        "/api/v1/namespaces/n/serviceaccounts/robot/token",
        json!({"spec": {"audiences": [], "expirationSeconds": 3600}, "status": token}),
    );
    node.put_driver(json!({
        "volumeLifecycleModes": ["Ephemeral"], "requiresRepublish": true, "podInfoOnMount": true,
        "tokenRequests": [{"audience": "vault"}],
    }));
    assert_eq!(node.set_up(&inline).await, "");
    let request = node.driver.published();
    assert_eq!(request.volume_id, format!("csi-{}", hashed(&["u1", "v"])));
    assert_eq!(request.staging_target_path, "");
    assert_eq!(request.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    let tokens: Value =
        serde_json::from_str(&request.volume_context["csi.storage.k8s.io/serviceAccount.tokens"]).unwrap();
    assert_eq!(tokens, json!({"vault": token}));
    node.driver.calls();
    assert_eq!(node.volumes.refresh(&inline).await, []);
    assert_eq!(node.volumes.refresh(&claimed("u2")).await, []);
    assert_eq!(
        node.driver.calls(),
        ["publish"],
        "only drivers that want it are asked again"
    );
    node.volumes.tear_down("u1").await.unwrap();
    assert_eq!(node.driver.calls(), ["unpublish"]);
    server.abort();
}

#[tokio::test]
async fn the_cluster_knows_which_drivers_there_are() {
    let node = Node::new();
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    assert!(node.driver.registered().unwrap().plugin_registered);
    let requests = node.cluster.requests();
    let (_, replaced) = requests.iter().find(|(line, _)| line.starts_with("PUT")).unwrap();
    let entry = json!({"name": DRIVER, "nodeID": "node-7", "allocatable": {"count": 3}});
    assert_eq!(replaced["spec"]["drivers"], json!([entry]));
    let (_, patch) = requests
        .iter()
        .find(|(line, _)| line.starts_with("PATCH /api/v1/nodes/n1"))
        .unwrap();
    let annotation = &patch["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"];
    assert_eq!(annotation, &json!(format!("{{\"{DRIVER}\":\"node-7\"}}")));

    // The socket goes, and with it the driver; rubbish beside it harms nobody.
    server.abort();
    fs::write(node.socket().with_file_name("file.sock"), "").unwrap();
    fs::remove_file(node.socket()).unwrap();
    let registry = node.volumes.registry();
    let mut known = super::registration::registered(&node.socket(), DRIVER);
    registry.look(&mut known).await;
    assert!(known.is_empty() && node.volumes.shared.drivers.client(DRIVER).is_err());
    let requests = node.cluster.requests();
    let (_, replaced) = requests.iter().rfind(|(line, _)| line.starts_with("PUT")).unwrap();
    assert_eq!(replaced["spec"]["drivers"], json!([]));
}

/// A claim of 1Gi, whose volume is larger, with more in its status; and what it will be said to be when that is patched.
fn put_growing(node: &Node, mode: &str, volume: &str, status: Value) {
    let csi = json!({"driver": DRIVER, "volumeHandle": "h1", "fsType": "ext4"});
    let claim_ref = json!({"uid": "1", "namespace": "n", "name": "data"});
    let spec = json!({
        "claimRef": claim_ref, "accessModes": ["ReadWriteOnce"], "csi": csi, "volumeMode": mode,
        "capacity": {"storage": volume},
    });
    node.cluster.put(
        "/api/v1/persistentvolumes/pv-1",
        json!({"metadata": {"name": "pv-1"}, "spec": spec}),
    );
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "n", "uid": "1", "resourceVersion": "7"},
        "spec": {"volumeName": "pv-1", "resources": {"requests": {"storage": volume}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    });
    claim["status"]
        .as_object_mut()
        .unwrap()
        .extend(status.as_object().unwrap().clone());
    node.cluster.put(CLAIM, claim.clone());
    claim["metadata"]["resourceVersion"] = json!("8");
    node.cluster.put(&format!("{CLAIM}/status"), claim);
}

fn pending() -> Value {
    json!({"allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}})
}

/// What was written to the claim's status since, and forgotten.
fn patches(node: &Node, since: &mut usize) -> Vec<Value> {
    let requests = node.cluster.requests();
    let new = requests[*since..]
        .iter()
        .filter(|(line, _)| line.starts_with("PATCH") && line.ends_with("data/status"));
    let bodies = new.map(|(_, body)| body.clone()).collect();
    *since = requests.len();
    bodies
}

#[tokio::test]
async fn a_volume_grows_when_a_pod_gets_it() {
    let node = Node::new();
    put_growing(&node, "Filesystem", "2Gi", pending());
    node.put_driver(json!({"attachRequired": false}));
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    let failed = "MountVolume.Setup failed while expanding volume for volume \"pv-1\" : ";
    let mut since = 0;
    assert_eq!(
        node.set_up(&claimed("u1")).await,
        format!("{failed}NodeExpand is not supported by the CSI driver {DRIVER}")
    );
    let written = patches(&node, &mut since);
    assert_eq!(
        written[0]["status"]["allocatedResourceStatuses"]["storage"],
        "NodeResizeInProgress"
    );
    assert_eq!(written[1]["status"]["conditions"][0]["type"], "NodeResizeError");

    node.driver.set_expands();
    node.driver.calls();
    assert_eq!(node.set_up(&claimed("u1")).await, "");
    assert_eq!(node.driver.calls(), ["stage", "publish", "expand"]);
    let (request, published) = (node.driver.expanded(), node.driver.published());
    assert_eq!(request.volume_id, "h1");
    assert_eq!(
        (request.volume_path, request.staging_target_path),
        (published.target_path, published.staging_target_path)
    );
    assert_eq!(request.capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(request.volume_capability, published.volume_capability);
    let finished = patches(&node, &mut since).pop().unwrap();
    assert_eq!(finished["metadata"]["resourceVersion"], "8");
    assert_eq!(
        finished["status"],
        json!({"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null})
    );
    let note = "FileSystemResizeSuccessful p: MountVolume.NodeExpandVolume succeeded for volume \"pv-1\" ";
    assert_eq!(
        node.said.take(),
        [
            format!("Normal {note}"),
            format!("Normal {}", note.replacen("p:", "data:", 1))
        ]
    );

    // A pod that only reads is told; it has the volume as it is.
    let reads = json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": true}});
    assert_eq!(node.set_up(&pod("u2", reads)).await, "");
    let note = "MountVolume.NodeExpandVolume failed for volume \"pv-1\" requested read-only file system";
    assert_eq!(node.said.take()[0], format!("Warning FileSystemResizeFailed p: {note}"));
    server.abort();
}

#[tokio::test]
async fn a_volume_grows_under_a_running_pod() {
    let node = Node::new();
    put_growing(&node, "Filesystem", "1Gi", json!({}));
    node.put_driver(json!({"attachRequired": false}));
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    node.driver.set_expands();
    let pod = claimed("u1");
    assert_eq!(node.set_up(&pod).await, "");
    let ready = node.volumes.state(&pod).ready.lock()["v"].clone();
    let look = || async { node.volumes.publisher().grow_in_use(&pod, &ready).await };
    look().await;
    assert_eq!(node.driver.calls(), ["stage", "publish"]);

    put_growing(&node, "Filesystem", "2Gi", pending());
    node.driver.fail("expand");
    look().await;
    // Not again at once.
    look().await;
    assert_eq!(node.driver.calls(), ["expand"]);
    let note = "NodeExpandVolume.NodeExpandVolume failed for volume \"pv-1\" : Expander.NodeExpand failed to expand the \
                volume : rpc error: code = Internal desc = out of tape";
    assert_eq!(node.said.take(), [format!("Warning VolumeResizeFailed p: {note}")]);

    node.driver.fail("");
    let told = async {
        loop {
            node.volumes.refresh(&pod).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Some(first) = node.said.take().first() {
                return first.clone();
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(10), told).await.unwrap();
    assert!(told.starts_with("Normal FileSystemResizeSuccessful p"), "{told}");
    assert_eq!(node.driver.calls(), ["expand"]);
    let mut since = 0;
    let last = patches(&node, &mut since).pop().unwrap();
    assert_eq!(last["status"]["capacity"]["storage"], "2Gi");
    // The claim of the test does not change, but the node knows.
    look().await;
    assert!(node.driver.calls().is_empty());

    put_growing(
        &node,
        "Filesystem",
        "3Gi",
        json!({"allocatedResources": {"storage": "3Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}),
    );
    node.driver.fail_with("expand", tonic::Code::FailedPrecondition);
    look().await;
    look().await;
    assert_eq!(
        node.driver.calls(),
        ["expand"],
        "a driver that can't do it in use is not asked again"
    );
    assert!(node.said.take().is_empty());
    node.driver.fail("");

    node.volumes.tear_down("u1").await.unwrap();
    look().await;
    assert_eq!(
        node.driver.calls(),
        ["unpublish", "unstage"],
        "what no pod has stays as it is"
    );
    server.abort();
}

#[tokio::test]
async fn a_device_grows() {
    let node = Node::new();
    let disk = LoopDevice::new(&node.root());
    std::os::unix::fs::symlink(&disk.path, node.driver.data.join("device")).unwrap();
    put_growing(&node, "Block", "2Gi", pending());
    node.put_driver(json!({"attachRequired": false}));
    let server = node.driver.serve(&node.socket());
    node.until_registered().await;
    node.driver.set_expands();
    node.driver.fail_with("expand", tonic::Code::OutOfRange);
    let pod = with_device("u1");
    let said = node.set_up(&pod).await;
    let failed = "MapVolume.MarkVolumeAsMounted failed while expanding volume for volume \"pv-1\" : ";
    assert!(said.starts_with(failed), "{said}");
    let infeasible = patches(&node, &mut 0).pop().unwrap();
    assert_eq!(
        infeasible["status"]["allocatedResourceStatuses"]["storage"],
        "NodeResizeInfeasible"
    );

    node.driver.fail("");
    assert_eq!(node.set_up(&pod).await, "");
    let (request, published) = (node.driver.expanded(), node.driver.published());
    assert_eq!(request.volume_path, published.target_path);
    assert_eq!(request.staging_target_path, published.staging_target_path);
    assert!(request.volume_capability.unwrap().block.is_some());
    node.driver.calls();

    put_growing(
        &node,
        "Block",
        "3Gi",
        json!({"allocatedResources": {"storage": "3Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
    );
    let ready = node.volumes.state(&pod).ready.lock()["v"].clone();
    node.volumes.publisher().grow_in_use(&pod, &ready).await;
    assert_eq!(node.driver.calls(), ["expand"]);
    assert_eq!(node.driver.expanded().capacity_range.unwrap().required_bytes, 3 << 30);
    node.volumes.tear_down("u1").await.unwrap();
    server.abort();
}
