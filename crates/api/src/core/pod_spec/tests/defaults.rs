//! What is filled in.

use super::*;

#[test]
fn defaults_are_those_of_kubernetes() {
    let got = pod(&json!({
        "hostNetwork": true,
        "containers": [{
            "ports": [{"containerPort": 80}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "readinessProbe": {"grpc": {"port": 90}, "periodSeconds": 5},
            "lifecycle": {"preStop": {"httpGet": {"port": "x"}}, "stopSignal": "SIGTERM"},
            "resources": {"limits": {"cpu": "1", "memory": "100n"}},
        }],
        "initContainers": [{"name": "i", "image": "nginx:1.27"}],
        "schedulingGroup": {"podGroupName": "g"},
    }));
    let want = json!({
        "containers": [{
            "name": "c", "image": "nginx", "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
                              "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "readinessProbe": {"grpc": {"port": 90, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 5,
                               "successThreshold": 1, "failureThreshold": 3},
            "lifecycle": {"preStop": {"httpGet": {"port": "x", "path": "/", "scheme": "HTTP"}}},
            "resources": {"limits": {"cpu": "1", "memory": "1m"}, "requests": {"cpu": "1", "memory": "1m"}},
        }],
        "initContainers": [{
            "name": "i", "image": "nginx:1.27", "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "hostNetwork": true, "enableServiceLinks": true, "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
        "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
        "serviceAccount": "default", "serviceAccountName": "default",
    });
    assert_eq!(got["spec"], want);
}

#[test]
fn volumes_have_defaults() {
    for (volume, want) in [
        (json!({}), json!({"emptyDir": {}})),
        (
            json!({"secret": {"secretName": "s"}}),
            json!({"secret": {"secretName": "s", "defaultMode": 420}}),
        ),
        (
            json!({"configMap": {"name": "s"}}),
            json!({"configMap": {"name": "s", "defaultMode": 420}}),
        ),
        (
            json!({"hostPath": {"path": "/x"}}),
            json!({"hostPath": {"path": "/x", "type": ""}}),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            json!({"downwardAPI": {"defaultMode": 420,
                "items": [{"path": "x", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}}),
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"podCertificate": {}}]}}),
            json!({"projected": {"defaultMode": 420,
                "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}, {}]}}),
        ),
        (
            json!({"image": {"reference": "a:1"}}),
            json!({"image": {"reference": "a:1", "pullPolicy": "IfNotPresent"}}),
        ),
        (
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"volumeMode": "Filesystem"}}}}),
        ),
        (
            json!({"iscsi": {"lun": 0}}),
            json!({"iscsi": {"lun": 0, "iscsiInterface": "default"}}),
        ),
        (
            json!({"rbd": {"pool": "p"}}),
            json!({"rbd": {"pool": "p", "user": "admin", "keyring": "/etc/ceph/keyring"}}),
        ),
        (
            json!({"azureDisk": {}}),
            json!({"azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": false, "kind": "Shared"}}),
        ),
        (
            json!({"scaleIO": {}}),
            json!({"scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"}}),
        ),
        (json!({"nfs": {"path": "/"}}), json!({"nfs": {"path": "/"}})),
    ] {
        let mut spec = json!({"volumes": [volume]});
        default(&mut spec);
        assert_eq!(spec["volumes"][0], want, "{volume}");
    }
}

#[test]
fn templates_get_less() {
    let mut spec = json!({
        "hostNetwork": true,
        "containers": [{"name": "c", "ports": [{"containerPort": 1}], "resources": {"limits": {"cpu": "1"}}}],
        "serviceAccount": "robot",
    });
    default(&mut spec);
    assert!(spec.get("enableServiceLinks").is_none());
    assert!(spec.pointer("/containers/0/ports/0/hostPort").is_none());
    assert!(spec.pointer("/containers/0/resources/requests").is_none());
    assert_eq!(spec["serviceAccountName"], "robot");
}

#[test]
fn pod_level_resources_are_completed() {
    for (own, want) in [
        (json!({}), json!({})),
        (json!({"requests": {"cpu": "3"}}), json!({"requests": {"cpu": "3"}})),
        (
            json!({"limits": {"cpu": "3", "memory": "1Gi"}}),
            json!({"limits": {"cpu": "3", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}),
        ),
    ] {
        let pod = pod(&json!({"resources": own, "containers": [{"resources": {"requests": {"cpu": "500m"}}}]}));
        assert_eq!(pod["spec"]["resources"], want, "{own}");
    }
    let hugepages = json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}});
    let pod = pod(&json!({"resources": {"limits": {"cpu": "2"}}, "containers": [{"resources": hugepages}]}));
    let both = json!({"cpu": "2", "hugepages-2Mi": "4Mi"});
    assert_eq!(pod["spec"]["resources"]["limits"], both);
    assert_eq!(
        pod["spec"]["resources"]["requests"],
        json!({"cpu": "1", "hugepages-2Mi": "4Mi"})
    );
}
