//! Volumes and mounts.

use super::*;

/// A snippet for a volume named "v".
fn in_volume(cases: &[(Value, &str)]) {
    for (volume, want) in cases {
        let mut with_name = json!({"name": "v"});
        merge(&mut with_name, volume);
        let got = problems(&pod(&json!({"volumes": [with_name]}))).join("\n");
        assert_eq!(got.replace("spec.volumes[0]", "V"), *want, "{volume}");
    }
}

#[test]
fn volumes_have_names_and_one_source() {
    check(&[
        (
            json!({"volumes": [{"name": "a"}, {"name": "b", "secret": {"secretName": "s"}}]}),
            "",
        ),
        (
            json!({"volumes": [{"emptyDir": {}}]}),
            "spec.volumes[0].name: Required value",
        ),
        (
            json!({"volumes": [{"name": "a"}, {"name": "a"}]}),
            "spec.volumes[1].name: Duplicate value: \"a\"",
        ),
        (
            json!({"volumes": [{"name": "a", "emptyDir": {}, "secret": {"secretName": "x"}, "nfs": {}}]}),
            "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type\n\
             spec.volumes[0].nfs: Forbidden: may not specify more than 1 volume type",
        ),
        (
            json!({"volumes": [{"name": "a", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "p-a"}}]}),
            "spec.volumes[1].persistentVolumeClaim.claimName: Invalid value: \"p-a\": must not reference a PVC that gets created for an ephemeral volume",
        ),
    ]);
}

#[test]
fn each_volume_source_has_its_rules() {
    let iqn = "iqn.2025-01.com.example:disk";
    in_volume(&[
        (json!({"emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}}), ""),
        (
            json!({"emptyDir": {"sizeLimit": "-1"}}),
            "V.emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
        ),
        (json!({"hostPath": {"path": "/x", "type": "Directory"}}), ""),
        (json!({"hostPath": {}}), "V.hostPath.path: Required value"),
        (
            json!({"hostPath": {"path": "/a/../b", "type": "Disk"}}),
            "V.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'\n\
             V.hostPath.type: Unsupported value: \"Disk\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
        ),
        (
            json!({"secret": {"defaultMode": 512, "items": [{"key": "k", "path": "/abs"}, {"path": "..a", "mode": -1}]}}),
            "V.secret.secretName: Required value\n\
             V.secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive\n\
             V.secret.items[0].path: Invalid value: \"/abs\": must be a relative path\n\
             V.secret.items[1].key: Required value\n\
             V.secret.items[1].path: Invalid value: \"..a\": must not start with '..'\n\
             V.secret.items[1].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
        ),
        (
            json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "a/b", "mode": 256}]}}),
            "",
        ),
        (json!({"configMap": {}}), "V.configMap.name: Required value"),
        (
            json!({"persistentVolumeClaim": {}}),
            "V.persistentVolumeClaim.claimName: Required value",
        ),
        (
            json!({"nfs": {"server": "s", "path": "x"}}),
            "V.nfs.path: Invalid value: \"x\": must be an absolute path",
        ),
        (json!({"gitRepo": {"repository": "r", "directory": "."}}), ""),
        (
            json!({"gitRepo": {"directory": "/x"}}),
            "V.gitRepo.repository: Required value\n\
             V.gitRepo.directory: Invalid value: \"/x\": must be a relative path",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "v", "partition": 256}}),
            "V.awsElasticBlockStore.partition: Invalid value: 256: must be between 1 and 255, inclusive",
        ),
        (
            json!({"iscsi": {"targetPortal": "1.2.3.4:3260", "iqn": iqn, "lun": 0}}),
            "",
        ),
        (
            json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 256, "chapAuthSession": true, "initiatorName": "zzz"}}),
            "V.iscsi.iqn: Invalid value: \"iqn.x\": must be valid format\n\
             V.iscsi.initiatorname: Invalid value: \"zzz\": must be valid format starting with iqn, eui, or naa\n\
             V.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive\n\
             V.iscsi.secretRef: Required value",
        ),
        (
            json!({"flocker": {}}),
            "V.flocker: Required value: one of datasetName and datasetUUID is required",
        ),
        (
            json!({"glusterfs": {"endpoints": "e"}}),
            "V.glusterfs.path: Required value",
        ),
        (
            json!({"rbd": {}}),
            "V.rbd.monitors: Required value\nV.rbd.image: Required value",
        ),
        (
            json!({"cinder": {"volumeID": "a", "secretRef": {}}}),
            "V.cinder.secretRef.name: Required value",
        ),
        (json!({"cephfs": {}}), "V.cephfs.monitors: Required value"),
        (json!({"quobyte": {"registry": "a:1,[::1]:2", "volume": "v"}}), ""),
        (
            json!({"quobyte": {"registry": "a", "volume": "v"}}),
            "V.quobyte.registry: Invalid value: \"a\": must be a host:port pair or multiple pairs separated by commas",
        ),
        (
            json!({"fc": {"targetWWNs": ["a"]}}),
            "V.fc.lun: Required value: lun is required if targetWWNs is specified",
        ),
        (json!({"fc": {"wwids": ["a"]}}), ""),
        (
            json!({"flexVolume": {"driver": "d", "options": {"x.kubernetes.io/a": "b"}}}),
            "V.flexVolume.options[x.kubernetes.io/a]: Invalid value: \"x.kubernetes.io/a\": kubernetes.io and k8s.io namespaces are reserved",
        ),
        (
            json!({"azureFile": {"secretName": "s"}}),
            "V.azureFile.shareName: Required value",
        ),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "https://x"}}), ""),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "https://x", "kind": "Managed"}}),
            "V.azureDisk.diskURI: Unsupported value: \"https://x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
        ),
        (
            json!({"vsphereVolume": {}}),
            "V.vsphereVolume.volumePath: Required value",
        ),
        (json!({"csi": {"driver": "Csi.Example.com"}}), ""),
        (
            json!({"csi": {"driver": "", "nodePublishSecretRef": {}}}),
            "V.csi.driver: Required value\nV.csi.nodePublishSecretRef.name: Required value",
        ),
        (
            json!({"image": {"pullPolicy": "Always"}}),
            "V.image.reference: Required value",
        ),
        (json!({"image": {"reference": "a"}}), ""),
        (
            json!({"ephemeral": {}}),
            "V.ephemeral.volumeClaimTemplate: Required value",
        ),
        (
            json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": {}}}}),
            "V.ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set\n\
             V.ephemeral.volumeClaimTemplate.spec.accessModes: Required value: at least 1 access mode is required\n\
             V.ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}, {"path": "y"}]}}),
            "V.downwardAPI.fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"\n\
             V.downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
            "V.downwardAPI.resourceFieldRef.containerName: Required value",
        ),
    ]);
}

#[test]
fn projected_volumes_combine_sources() {
    let sources = |list: Value| json!({"projected": {"sources": list}});
    in_volume(&[
        (
            sources(json!([
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "c", "items": [{"key": "k", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ])),
            "",
        ),
        (
            sources(json!([{"serviceAccountToken": {"path": "", "expirationSeconds": 599}}])),
            "V.projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes\n\
             V.projected.path: Required value",
        ),
        (
            sources(
                json!([{"secret": {"name": "s", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x"}]}}]),
            ),
            "V.projected: Invalid value: \"s\": conflicting duplicate paths",
        ),
        (
            sources(json!([{"secret": {"name": "s"}, "configMap": {}}])),
            "V.projected.sources[0].configMap.name: Required value\n\
             V.projected.sources[0]: Forbidden: may not specify more than 1 volume type per source",
        ),
    ]);
}

#[test]
fn mounts_find_their_volumes() {
    let mounts = |list: Value| {
        json!({"volumes": [{"name": "v"}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}],
                                      "containers": [{"volumeMounts": list}]})
    };
    check(&[
        (
            mounts(json!([{"name": "v", "mountPath": "/a", "subPath": "x"}, {"name": "v", "mountPath": "/b"}])),
            "",
        ),
        (
            mounts(json!([{"name": "w", "mountPath": "/a"}, {"mountPath": "/a"}])),
            "C.volumeMounts[0].name: Not found: \"w\"\n\
             C.volumeMounts[1].name: Required value\n\
             C.volumeMounts[1].name: Not found: \"\"\n\
             C.volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
        ),
        (
            mounts(json!([{"name": "v", "mountPath": "/a", "subPath": "../x", "subPathExpr": "/y"}])),
            "C.volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'\n\
             C.volumeMounts[0].subPathExpr: Invalid value: \"/y\": subPathExpr and subPath are mutually exclusive\n\
             C.volumeMounts.subPathExpr: Invalid value: \"/y\": must be a relative path",
        ),
        (
            mounts(json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}])),
            "C.volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
        ),
        (
            mounts(json!([{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}])),
            "C.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
        (
            mounts(json!([{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled", "readOnly": true}])),
            "",
        ),
        (
            json!({"volumes": [{"name": "v"}], "containers": [{"volumeDevices": [{"name": "v", "devicePath": "/../x"}]}]}),
            "C.volumeDevices[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode\n\
             C.volumeDevices[0].devicePath: Invalid value: \"/../x\": can not contain backsteps ('..')",
        ),
        (
            json!({"volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "c"}}],
                   "containers": [{"volumeDevices": [{"name": "b", "devicePath": "/dev/x"}]}]}),
            "",
        ),
        (
            json!({"volumes": [{"name": "b", "persistentVolumeClaim": {"claimName": "c"}}],
                   "containers": [{"volumeDevices": [{"name": "b", "devicePath": "/x"}],
                                   "volumeMounts": [{"name": "b", "mountPath": "/x"}]}]}),
            "C.volumeMounts[0].name: Invalid value: \"b\": must not already exist in volumeDevices\n\
             C.volumeMounts[0].mountPath: Invalid value: \"/x\": must not already exist as a path in volumeDevices\n\
             C.volumeDevices[0].name: Invalid value: \"b\": must not already exist in volumeMounts\n\
             C.volumeDevices[0].devicePath: Invalid value: \"/x\": must not already exist as a path in volumeMounts",
        ),
        // A volume that is itself wrong counts as missing.
        (
            json!({"volumes": [{"name": "s", "secret": {}}], "containers": [{"volumeMounts": [{"name": "s", "mountPath": "/a"}]}]}),
            "spec.volumes[0].secret.secretName: Required value\nC.volumeMounts[0].name: Not found: \"s\"",
        ),
    ]);
}
