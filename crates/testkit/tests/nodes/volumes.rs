//! Volumes of every kind as containers see them: `orlop up` with real containers. One cluster for all,
//! since starting one takes longer than the rest.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use orlop_testkit::{Leftovers, NodeRuntime, Server, TestRuntime, eventually};
use serde_json::{Value, json};

/// The order matters: the cluster ends before its runtime does.
struct Cluster {
    server: Server,
    runtime: NodeRuntime,
}

/// What runs until it is told to end, and then ends at once.
const WAITS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

impl Cluster {
    fn start() -> Cluster {
        let runtime = NodeRuntime::start(TestRuntime::of_suite());
        let server = runtime.launch(json!({"syncFrequency": "1s"})).start();
        let cluster = Cluster { server, runtime };
        eventually("the node is ready and pods may be made", || {
            let ready = "kubectl get node real -o 'jsonpath={.status.conditions[?(@.type==\"Ready\")].status}'";
            let account = cluster.server.sh("kubectl get sa default -o name");
            (cluster.server.sh(ready).stdout.trim() == "True" && account.code == Some(0)).then_some(())
        });
        cluster
    }

    /// A folder of the node.
    fn host(&self, name: &str) -> PathBuf {
        self.runtime.home().path().join(name)
    }

    fn apply(&self, object: &Value) {
        self.server.run_with("kubectl apply -f -", &object.to_string());
    }

    /// A pod of one busybox container with these volumes.
    fn pod(&self, name: &str, script: &str, volumes: Value, mounts: Value, more: Value) {
        let container = json!({"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script], "volumeMounts": mounts,
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
        let mut spec = json!({"terminationGracePeriodSeconds": 1, "volumes": volumes});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec["containers"] = json!([container]);
        let meta = json!({"name": name, "labels": {"app": "first"}});
        self.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}));
    }

    fn until_running(&self, name: &str) {
        eventually(&format!("pod {name} runs"), || {
            (self.server.get(&format!("pod {name}"))["status"]["phase"] == "Running").then_some(())
        });
    }

    fn exec(&self, name: &str, script: &str) -> String {
        self.server.run(&format!("kubectl exec {name} -- sh -c '{script}'"))
    }

    /// Until an event of this pod says this.
    fn until_said(&self, name: &str, words: &str) {
        let line = format!("kubectl get events --field-selector involvedObject.name={name} -o json");
        eventually(&format!("pod {name}: {words}"), || {
            let events: Value = serde_json::from_str(&self.server.run(&line)).unwrap();
            let all = events["items"].as_array().unwrap().iter();
            let mut notes = all.filter_map(|event| event["message"].as_str());
            notes.any(|note| note.contains(words)).then_some(())
        });
    }

    /// A volume of this source, and a claim for it.
    fn claim(&self, name: &str, mode: &str, source: (&str, Value)) {
        let node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["real"]});
        let mut spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
            "storageClassName": "", "claimRef": {"namespace": "default", "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}}});
        spec[source.0] = source.1;
        self.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}));
        let spec = json!({"accessModes": ["ReadWriteOnce"], "volumeMode": mode, "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Mi"}}});
        let meta = json!({"name": name});
        self.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}));
    }
}

#[test]
fn volumes_as_containers_see_them() {
    let cluster = Cluster::start();
    start_all(&cluster);
    own_directories(&cluster);
    files_from_the_cluster(&cluster);
    files_that_follow(&cluster);
    directories_of_the_node(&cluster);
    what_can_not_be(&cluster);
    nothing_is_left(&cluster);
}

/// All pods at once: they come up beside each other.
fn start_all(cluster: &Cluster) {
    let server = &cluster.server;
    server.run("kubectl create configmap words --from-literal=one=1 --from-literal=two=2");
    server.run("kubectl create secret generic hidden --from-literal=key=secret-value");
    for name in ["plain", "local"] {
        fs::create_dir(cluster.host(name)).unwrap();
    }
    cluster.claim(
        "plain",
        "Filesystem",
        ("hostPath", json!({"path": cluster.host("plain")})),
    );
    cluster.claim("local", "Filesystem", ("local", json!({"path": cluster.host("local")})));

    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "words", "configMap": {"name": "words", "defaultMode": 0o440}},
        {"name": "hidden", "secret": {"secretName": "hidden", "items": [{"key": "key", "path": "deep/down", "mode": 0o400}]}},
        {"name": "mixed", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}},
            {"configMap": {"name": "words", "items": [{"key": "one", "path": "uno"}]}},
        ]}},
        {"name": "info", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
        ]}},
    ]);
    let mounts = json!([
        {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "words", "mountPath": "/words"}, {"name": "hidden", "mountPath": "/hidden"},
        {"name": "mixed", "mountPath": "/mixed"}, {"name": "info", "mountPath": "/info"},
        {"name": "disk", "mountPath": "/sub", "subPath": "sub/dir"},
        {"name": "disk", "mountPath": "/named", "subPathExpr": "for-$(POD)"},
        {"name": "disk", "mountPath": "/fixed", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        {"name": "words", "mountPath": "/one-word", "subPath": "one"},
    ]);
    let user = json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}});
    cluster.pod("own", WAITS, volumes, mounts, user);

    let host = |name: &str, kind: &str| json!({"path": cluster.host(name), "type": kind});
    let volumes = json!([
        {"name": "made", "hostPath": host("made", "DirectoryOrCreate")},
        {"name": "file", "hostPath": host("file", "FileOrCreate")},
        {"name": "late", "hostPath": host("late", "Directory")},
        {"name": "plain", "persistentVolumeClaim": {"claimName": "plain"}},
        {"name": "local", "persistentVolumeClaim": {"claimName": "local"}},
    ]);
    let mounts = json!([
        {"name": "made", "mountPath": "/made"}, {"name": "file", "mountPath": "/file"},
        {"name": "late", "mountPath": "/late"}, {"name": "plain", "mountPath": "/plain"},
        {"name": "local", "mountPath": "/local"},
    ]);
    cluster.pod("host", WAITS, volumes, mounts, json!({}));

    let small = json!([{"name": "small", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mounts = json!([{"name": "small", "mountPath": "/small"}]);
    let greedy = format!("head -c 3000000 /dev/zero > /small/much; {WAITS}");
    cluster.pod("greedy", &greedy, small.clone(), mounts, json!({}));
    let mounts = json!([{"name": "small", "mountPath": "/m", "readOnly": true, "recursiveReadOnly": "Enabled"}]);
    cluster.pod("locked", WAITS, small.clone(), mounts, json!({}));
    cluster.pod("alien", WAITS, json!([]), json!([]), json!({"hostUsers": false}));
}

fn own_directories(cluster: &Cluster) {
    cluster.until_running("own");
    let script = "stat -c \"%g %a\" /disk; grep \" /memory \" /proc/mounts; echo in > /sub/x; echo by > /named/y; \
                  echo top > /disk/z; cat /disk/sub/dir/x /disk/for-own/y /fixed/z; touch /fixed/no 2>&1; \
                  head -c 2000000 /dev/zero > /memory/much 2>/dev/null || echo full; rm /memory/much; stat -c \"%g\" /disk/z";
    let said = cluster.exec("own", &format!("{script}; true"));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "2000 2777", "{said}");
    assert!(lines[1].contains("tmpfs") && lines[1].contains("size=1024k"), "{said}");
    assert_eq!(lines[2..5], ["in", "by", "top"], "{said}");
    assert!(lines[5].contains("Read-only file system"), "{said}");
    assert_eq!(lines[6..], ["full", "2000"], "{said}");
}

fn files_from_the_cluster(cluster: &Cluster) {
    let script = "cat /words/one /words/two; echo; stat -L -c \"%g %a\" /words/one; cat /hidden/deep/down; echo; \
                  stat -L -c \"%g %a\" /hidden/deep/down; grep -c \"^tmpfs /hidden \" /proc/mounts; cat /mixed/uno; echo; \
                  cat /info/labels; echo; cat /info/cpu; echo; cat /one-word; echo; touch /words/no 2>&1 | head -c 6";
    let said = cluster.exec("own", script);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..4], ["12", "2000 440", "secret-value", "2000 440"], "{said}");
    assert_eq!(lines[4..7], ["1", "1", "app=\"first\""], "{said}");
    assert!(lines[7].parse::<u32>().is_ok_and(|cpus| cpus > 0), "{said}");
    assert_eq!(lines[8..], ["1", "touch:"], "{said}");
    let token = cluster.exec("own", "cat /mixed/token");
    let claims = token.split('.').nth(1).expect("a token of three parts");
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    assert_eq!(claims["aud"], json!(["vault"]), "{claims}");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "own");
    let life = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(life, 600);
}

/// A change arrives as a whole: all files are in one folder that is swapped by its link.
fn files_that_follow(cluster: &Cluster) {
    let before = cluster.exec("own", "readlink /words/..data");
    let patch = json!({"data": {"one": "eins", "two": null, "three": "drei"}}).to_string();
    cluster
        .server
        .run(&format!("kubectl patch configmap words --type merge -p '{patch}'"));
    cluster.server.run("kubectl label pod own app=second --overwrite");
    // Looked at from within the folder, so that no swap comes between two looks.
    let said = eventually("new words", || {
        let said = cluster.exec(
            "own",
            "cd -P /words/..data; basename \"$PWD\"; echo $(ls) $(cat one three); cat /one-word",
        );
        said.contains("eins").then_some(said)
    });
    let lines: Vec<&str> = said.lines().collect();
    assert_ne!(lines[0], before.trim());
    assert_eq!(lines[1], "one three einsdrei", "{said}");
    assert_eq!(lines[2], "1", "a subPath stays as it was: {said}");
    eventually("the links follow the folder", || {
        (cluster.exec("own", "echo $(ls /words)").trim() == "one three").then_some(())
    });
    eventually("new labels, and new words beside the token", || {
        let said = cluster.exec("own", "cat /info/labels /mixed/uno");
        (said == "app=\"second\"eins").then_some(())
    });
}

fn directories_of_the_node(cluster: &Cluster) {
    let late = cluster.host("late");
    cluster.until_said(
        "host",
        &format!("hostPath type check failed: {} is not a directory", late.display()),
    );
    fs::create_dir(late).unwrap();
    cluster.until_running("host");
    cluster.exec(
        "host",
        "for d in made late plain local; do echo $d > /$d/x; done; echo file > /file",
    );
    for name in ["made", "late", "plain", "local"] {
        let text = fs::read_to_string(cluster.host(name).join("x")).unwrap();
        assert_eq!(text.trim(), name);
    }
    assert_eq!(fs::read_to_string(cluster.host("file")).unwrap(), "file\n");
}

fn what_can_not_be(cluster: &Cluster) {
    match cluster.runtime.kind() {
        TestRuntime::Embedded => what_the_embedded_runtime_can(cluster),
        TestRuntime::Containerd => {
            cluster.until_said(
                "locked",
                "requested recursive read-only mode, but it is not supported by the runtime",
            );
            cluster.until_said(
                "alien",
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
            );
        }
    }
    let evicted = eventually("the greedy pod is evicted", || {
        let pod = cluster.server.get("pod greedy");
        (pod["status"]["reason"] == "Evicted").then_some(pod)
    });
    let message = evicted["status"]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "Usage of EmptyDir volume \"small\" exceeds the limit \"1Mi\". "
    );
}

fn what_the_embedded_runtime_can(cluster: &Cluster) {
    cluster.until_running("locked");
    let said = cluster.exec("locked", "touch /m/x 2>&1; true");
    assert!(said.contains("Read-only file system"), "{said}");
    let pod = cluster.server.get("pod locked");
    let mount = &pod["status"]["containerStatuses"][0]["volumeMounts"][0];
    assert_eq!(mount["recursiveReadOnly"], "Enabled", "{mount}");
    cluster.until_running("alien");
    let said = cluster.exec("alien", "cat /proc/self/uid_map; id -u");
    let words: Vec<&str> = said.split_whitespace().collect();
    // Root in the pod, and nobody on the node.
    assert_eq!((words[0], words[2], words[3]), ("0", "65536", "0"), "{said}");
    assert_ne!(words[1], "0", "{said}");
}

fn nothing_is_left(cluster: &Cluster) {
    cluster.server.run("kubectl delete pods --all --wait=false");
    eventually("all pods are gone", || {
        cluster.server.run("kubectl get pods -o name").is_empty().then_some(())
    });
    eventually("nothing is left of the pods", || {
        (cluster.runtime.leftovers() == Leftovers::default()).then_some(())
    });
    let root = cluster.server.data_dir().join("kubelet");
    eventually("nothing is mounted, and no folders are left", || {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let folders = fs::read_dir(root.join("pods")).unwrap().count();
        (!mounts.contains(root.to_str().unwrap()) && folders == 0).then_some(())
    });
    // What was the node's stays the node's.
    assert!(cluster.host("local").join("x").exists());
}
