//! Rules of the pod spec, each with something it accepts and something it refuses: small pods made by merging a snippet
//! into a minimal one.

use std::time::Instant;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::field::Problem;

/// JSON merge, but a list of objects is merged into the list there, element by element.
fn merge(into: &mut Value, snippet: &Value) {
    match (into, snippet) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                if v.is_null() {
                    a.remove(k);
                } else {
                    merge(a.entry(k.clone()).or_insert(Value::Null), v);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for (i, v) in b.iter().enumerate() {
                match a.get_mut(i) {
                    Some(there) => merge(there, v),
                    None => a.push(v.clone()),
                }
            }
        }
        (a, b) => *a = b.clone(),
    }
}

fn pod(spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "nginx"}], "serviceAccountName": "default"},
    });
    merge(&mut pod["spec"], spec);
    default_pod_only(&mut pod);
    default(&mut pod["spec"]);
    pod
}

fn problems(pod: &Value) -> Vec<String> {
    let mut p = Problems::default();
    let root = Cursor::root(pod);
    validate_in_pod(&root.at("spec"), &root.at("metadata"), &mut p);
    p.0.iter().map(Problem::to_string).collect()
}

/// Each snippet with the problems wanted, one to a line; none: it is fine.
fn check(cases: &[(Value, &str)]) {
    for (spec, want) in cases {
        let got = problems(&pod(spec)).join("\n");
        let got = got
            .replace("spec.containers[0]", "C")
            .replace("spec.initContainers[0]", "I");
        assert_eq!(got, *want, "{spec}");
    }
}

/// A snippet for the one container there is.
fn in_container(cases: &[(Value, &str)]) {
    let cases: Vec<(Value, &str)> = cases
        .iter()
        .map(|(c, want)| (json!({"containers": [c]}), *want))
        .collect();
    check(&cases);
}

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

#[test]
fn the_minimal_pod_is_fine_and_the_empty_one_is_not() {
    check(&[(json!({}), "")]);
    let mut p = Problems::default();
    validate(&Cursor::root(&json!({})), &mut p);
    let got: Vec<String> = p.0.iter().map(Problem::to_string).collect();
    assert_eq!(
        got,
        [
            "terminationGracePeriodSeconds: Required value",
            "containers: Required value",
            "restartPolicy: Required value",
            "dnsPolicy: Required value",
        ]
    );
}

#[test]
fn containers_are_named_and_have_images() {
    let long = "a".repeat(64);
    check(&[
        (json!({"containers": [{"image": null}]}), "C.image: Required value"),
        (json!({"containers": [{"name": ""}]}), "C.name: Required value"),
        (
            json!({"containers": [{"name": long}]}),
            &format!("C.name: Invalid value: \"{long}\": must be no more than 63 bytes"),
        ),
        (
            json!({"containers": [{}, {"name": "c", "image": "x"}]}),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (
            json!({"initContainers": [{"name": "c", "image": "x"}]}),
            "I.name: Duplicate value: \"c\"",
        ),
        (
            json!({"ephemeralContainers": [{"name": "c", "image": "x", "targetContainerName": "z"}]}),
            "spec.ephemeralContainers[0].name: Duplicate value: \"c\"\n\
             spec.ephemeralContainers[0].targetContainerName: Not found: \"z\"",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": " x", "ports": [{"containerPort": 1}]}]}),
            "spec.ephemeralContainers[0].image: Invalid value: \" x\": must not have leading or trailing whitespace\n\
             spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "x", "targetContainerName": "c"}]}),
            "",
        ),
    ]);
    in_container(&[
        (
            json!({"imagePullPolicy": "Sometimes"}),
            "C.imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({"terminationMessagePolicy": "x"}),
            "C.terminationMessagePolicy: Unsupported value: \"x\": supported values: \"File\", \"FallbackToLogsOnError\"",
        ),
    ]);
}

#[test]
fn ports_are_in_range_and_do_not_clash() {
    in_container(&[
        (
            json!({"ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81, "name": "x"}]}),
            "",
        ),
        (
            json!({"ports": [{"name": "a"}]}),
            "C.ports[0].containerPort: Required value",
        ),
        (
            json!({"ports": [{"containerPort": 65536, "hostPort": -1}]}),
            "C.ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive\n\
             C.ports[0].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive",
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}),
            "C.ports[1].name: Duplicate value: \"a\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "-a"}]}),
            "C.ports[0].name: Invalid value: \"-a\": must not begin or end with a hyphen",
        ),
        (
            json!({"ports": [{"containerPort": 1, "protocol": "QUIC"}]}),
            "C.ports[0].protocol: Unsupported value: \"QUIC\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
            "C.ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9, "protocol": "UDP"}]}),
            "",
        ),
    ]);
    check(&[(
        json!({"hostNetwork": true, "containers": [{"ports": [{"containerPort": 1, "hostPort": 2}]}]}),
        "C.ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true",
    )]);
}

#[test]
fn env_has_names_and_one_source() {
    let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    in_container(&[
        (json!({"env": [{"name": "A b", "value": "x"}]}), ""),
        (json!({"env": [{"value": "x"}]}), "C.env[0].name: Required value"),
        (
            json!({"env": [{"name": "A=b"}]}),
            "C.env[0].name: Invalid value: \"A=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
        ),
        (
            from(json!({})),
            "C.env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            "C.env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            from(json!({"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "s", "key": ""}})),
            "C.env[0].valueFrom.configMapKeyRef.key: Required value\n\
             C.env[0].valueFrom: Invalid value: \"\": may not have more than one field specified at a time",
        ),
        (from(json!({"fieldRef": {"fieldPath": "metadata.labels['a/b']"}})), ""),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels"}})),
            "C.env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "spec.foo"}})),
            "C.env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.foo\": error converting fieldPath: field label not supported: spec.foo",
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.name['x']"}})),
            "C.env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name['x']\": error converting fieldPath: field label does not support subscript: metadata.name['x']",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}})),
            "",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "requests.hugepages-2Mi", "divisor": "1Mi"}})),
            "",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
            "C.env[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
        ),
        (
            json!({"envFrom": [{}]}),
            "C.envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
        ),
        (
            json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "a"}}, {"secretRef": {"name": "s"}}]}),
            "",
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "a"}, "secretRef": {"name": ""}}]}),
            "C.envFrom[0].secretRef.name: Required value\n\
             C.envFrom: Invalid value: \"\": may not have more than one field specified at a time",
        ),
        (
            from(json!({"fileKeyRef": {"key": "K", "volumeName": "v", "path": "../x"}})),
            "C.env[0].valueFrom.fileKeyRef.path: Invalid value: \"../x\": must not contain '..'\n\
             C.env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\"",
        ),
    ]);
    let file =
        json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "K", "volumeName": "v", "path": "x"}}}]});
    check(&[
        (json!({"volumes": [{"name": "v"}], "containers": [file]}), ""),
        (
            json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}], "containers": [file]}),
            "C.env[0].valueFrom.fileKeyRef.volumeName: Invalid value: \"v\": referenced volume must be of type emptyDir",
        ),
    ]);
}

#[test]
fn probes_and_hooks_have_one_handler() {
    in_container(&[
        (
            json!({"livenessProbe": {"exec": {"command": ["a"]}}, "startupProbe": {"tcpSocket": {"port": 80}}}),
            "",
        ),
        (
            json!({"livenessProbe": {}}),
            "C.livenessProbe: Required value: must specify a handler type",
        ),
        (
            json!({"livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 80}}}),
            "C.livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({"livenessProbe": {"exec": {}, "successThreshold": 2, "periodSeconds": -1}}),
            "C.livenessProbe.exec.command: Required value\n\
             C.livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0\n\
             C.livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            json!({"readinessProbe": {"httpGet": {"port": "web"}, "successThreshold": 2}}),
            "",
        ),
        (
            json!({"readinessProbe": {"grpc": {"port": 0}, "terminationGracePeriodSeconds": 3}}),
            "C.readinessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive\n\
             C.readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set for readinessProbes",
        ),
        (
            json!({"startupProbe": {"httpGet": {"port": 80, "scheme": "FTP", "httpHeaders": [{"name": "a b"}]}}}),
            "C.startupProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"\n\
             C.startupProbe.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}, "postStart": {"exec": {"command": ["a"]}}}}),
            "",
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            "C.lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ),
    ]);
    let probe = json!({"exec": {"command": ["a"]}});
    check(&[
        (
            json!({"initContainers": [{"name": "i", "image": "x", "livenessProbe": probe}]}),
            "I.livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            json!({"initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always", "livenessProbe": probe}]}),
            "",
        ),
    ]);
}

#[test]
fn restart_and_resize_policies() {
    in_container(&[
        (json!({"restartPolicy": "Never"}), ""),
        (
            json!({"restartPolicy": "Maybe"}),
            "C.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"Never\", \"OnFailure\"",
        ),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}),
            "C.restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop"}]}),
            "C.restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \"RestartAllContainers\"\n\
             C.restartPolicyRules[0].exitCodes: Required value: must be specified",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
            "",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                                    {"resourceName": "cpu", "restartPolicy": "No"}]}),
            "C.resizePolicy[1]: Duplicate value: \"cpu\"\n\
             C.resizePolicy: Unsupported value: \"No\": supported values: \"NotRequired\", \"RestartContainer\"",
        ),
    ]);
    let resize = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    check(&[
        (
            json!({"initContainers": [{"name": "i", "image": "x", "resizePolicy": resize}]}),
            "I.resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers",
        ),
        (
            json!({"restartPolicy": "Never", "containers": [{"resizePolicy": resize}]}),
            "C.resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` is 'Never'",
        ),
        (
            json!({"restartPolicy": "Sometimes", "dnsPolicy": "x"}),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"\n\
             spec.dnsPolicy: Unsupported value: \"x\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
        ),
    ]);
}

#[test]
fn requests_stay_within_limits() {
    let resources = |r: Value| json!({"resources": r});
    in_container(&[
        (
            resources(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "example.com/gpu": "1"}})),
            "",
        ),
        (
            resources(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
            "C.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            resources(json!({"requests": {"memory": "-1"}})),
            "C.resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            resources(json!({"requests": {"example.com/gpu": "1"}})),
            "C.resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            resources(json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}})),
            "C.resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2",
        ),
        (
            resources(json!({"limits": {"example.com/gpu": "1500m"}})),
            "C.resources.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer\n\
             C.resources.requests[example.com/gpu]: Invalid value: \"1500m\": must be an integer",
        ),
        (
            resources(json!({"requests": {"bananas": "1"}})),
            "C.resources.requests[bananas]: Invalid value: \"bananas\": must be a standard resource type or fully qualified\n\
             C.resources.requests[bananas]: Invalid value: \"bananas\": must be a standard resource for containers",
        ),
        (
            resources(json!({"requests": {"pods": "1"}})),
            "C.resources.requests[pods]: Invalid value: \"pods\": must be a standard resource for containers",
        ),
        (
            resources(json!({"limits": {"hugepages-2Mi": "3Mi"}})),
            "C.resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi\n\
             C.resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi\n\
             C.resources: Forbidden: HugePages require cpu or memory",
        ),
        (resources(json!({"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}})), ""),
        (
            resources(json!({"claims": [{"name": "x"}]})),
            "C.resources.claims[0]: Not found: \"x\": must be one of the names in pod.spec.resourceClaims which is empty",
        ),
    ]);
    let claims = json!([{"name": "x", "resourceClaimName": "rc"}, {"name": "y", "resourceClaimTemplateName": "t"}]);
    let used = |list: Value| json!({"resourceClaims": claims, "containers": [{"resources": {"claims": list}}]});
    check(&[
        (
            used(json!([{"name": "x"}, {"name": "y", "request": "a"}, {"name": "y", "request": "b"}])),
            "",
        ),
        (
            used(json!([{"name": "x"}, {"name": "x"}])),
            "C.resources.claims[1]: Duplicate value: \"x\"",
        ),
        (
            used(json!([{"name": "y", "request": "a"}, {"name": "y"}, {"name": "z"}])),
            "C.resources.claims[1]: Duplicate value: \"y\"\n\
             C.resources.claims[2]: Not found: \"z\": must be one of the names in pod.spec.resourceClaims: x, y",
        ),
        (
            json!({"overhead": {"cpu": "-1"}}),
            "spec.overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            json!({"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimName": "B"}]}),
            "spec.resourceClaims[0]: Invalid value: {\"name\":\"a\"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`\n\
             spec.resourceClaims[1].name: Duplicate value: \"a\"\n\
             spec.resourceClaims[1].resourceClaimName: Invalid value: \"B\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
    ]);
}

#[test]
fn pod_level_resources_cover_the_containers() {
    let one = json!([{"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]);
    check(&[
        (
            json!({"containers": one, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}),
            "",
        ),
        (
            json!({"containers": one, "resources": {"requests": {"cpu": "500m"}}}),
            "spec.resources.requests[cpu]: Invalid value: \"500m\": must be greater than or equal to aggregate container requests of 1",
        ),
        (
            json!({"containers": one, "resources": {"limits": {"cpu": "1"}}}),
            "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less than or equal to pod limits of 1",
        ),
        (
            json!({"resources": {"requests": {"ephemeral-storage": "1"}}}),
            "spec.resources.requests[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
        ),
        (
            json!({"os": {"name": "windows"}, "resources": {"requests": {"cpu": "1"}}}),
            "spec.resources: Forbidden: may not be set for a windows pod",
        ),
    ]);
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

#[test]
fn security_contexts() {
    let pod = |c: Value| json!({"securityContext": c});
    check(&[
        (
            pod(
                json!({"runAsUser": 0, "fsGroup": 1, "supplementalGroups": [1], "fsGroupChangePolicy": "Always",
                       "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
                       "seccompProfile": {"type": "RuntimeDefault"}, "supplementalGroupsPolicy": "Strict",
                       "seLinuxChangePolicy": "Recursive", "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}}),
            ),
            "",
        ),
        (
            pod(json!({"runAsUser": -1, "supplementalGroups": [2147483648i64], "fsGroupChangePolicy": "x"})),
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive\n\
             spec.securityContext.supplementalGroups[0]: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive\n\
             spec.securityContext.fsGroupChangePolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnRootMismatch\"",
        ),
        (
            pod(json!({"sysctls": [{"name": "a.b"}, {"name": "a.b"}, {"name": ""}]})),
            "spec.securityContext.sysctls[1].name: Duplicate value: \"a.b\"\n\
             spec.securityContext.sysctls[2].name: Required value",
        ),
        (
            json!({"hostNetwork": true, "hostIPC": true,
                   "securityContext": {"sysctls": [{"name": "net/ipv4/x"}, {"name": "kernel.shmmax"}]}}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"net/ipv4/x\": may not be specified when 'hostNetwork' is true\n\
             spec.securityContext.sysctls[1].name: Invalid value: \"kernel.shmmax\": may not be specified when 'hostIPC' is true",
        ),
        (
            pod(json!({"seccompProfile": {"type": "Localhost"}, "appArmorProfile": {}})),
            "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost\n\
             spec.securityContext.appArmorProfile.type: Required value: type is required when appArmorProfile is set",
        ),
        (
            pod(json!({"seLinuxChangePolicy": "MountOption"})),
            "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\"",
        ),
        (
            json!({"hostPID": true, "shareProcessNamespace": true}),
            "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
        ),
        (
            json!({"hostUsers": false, "hostNetwork": true, "hostPID": true}),
            "spec.hostNetwork: Forbidden: when `hostUsers` is false\nspec.HostPID: Forbidden: when `hostUsers` is false",
        ),
        (
            json!({"hostUsers": false, "containers": [{"securityContext": {"procMount": "Unmasked"}}]}),
            "",
        ),
    ]);
    let context = |c: Value| json!({"securityContext": c});
    in_container(&[
        (
            context(json!({"privileged": true, "runAsUser": 5, "capabilities": {"add": ["NET_ADMIN"]}})),
            "",
        ),
        (
            context(json!({"privileged": true, "allowPrivilegeEscalation": false})),
            "C.securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ),
        (
            context(json!({"procMount": "Unmasked"})),
            "C.securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
        ),
        (
            context(json!({"windowsOptions": {"runAsUserName": "a\\b\\c"}})),
            "C.securityContext.windowsOptions.runAsUserName: Invalid value: \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash",
        ),
        (
            context(json!({"windowsOptions": {"runAsUserName": "NT AUTHORITY\\SYSTEM"}})),
            "",
        ),
    ]);
}

#[test]
fn operating_systems_rule_things_out() {
    check(&[
        (json!({"os": {"name": "linux"}}), ""),
        (
            json!({"os": {"name": "windows"}, "securityContext": {"windowsOptions": {"runAsUserName": "a"}}}),
            "",
        ),
        (
            json!({"os": {"name": "plan9"}}),
            "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
        ),
        (
            json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}}),
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
        ),
        (
            json!({"os": {"name": "windows"}, "hostPID": true, "securityContext": {"runAsUser": 1},
                   "containers": [{"securityContext": {"privileged": false}}]}),
            "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod\n\
             spec.hostPID: Forbidden: cannot be set for a windows pod\n\
             C.securityContext.privileged: Forbidden: cannot be set for a windows pod",
        ),
        (
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
            "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
        ),
    ]);
}

#[test]
fn affinity_terms_are_checked() {
    let node = |v: Value| json!({"affinity": {"nodeAffinity": v}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let expression = |e: Value| node(json!({required: {"nodeSelectorTerms": [{"matchExpressions": [e]}]}}));
    let prefix = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let at = |rest: &str| format!("{prefix}{rest}");
    check(&[
        (expression(json!({"key": "a", "operator": "In", "values": ["b"]})), ""),
        (expression(json!({"key": "a", "operator": "Gt", "values": ["5"]})), ""),
        (
            expression(json!({"key": "a", "operator": "Gt", "values": ["5", "6"]})),
            &at("[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"),
        ),
        (
            expression(json!({"key": "a", "operator": "Exists", "values": ["5"]})),
            &at("[0].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        ),
        (
            expression(json!({"key": "a", "operator": "Like"})),
            &at("[0].matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"),
        ),
        (
            node(json!({required: {"nodeSelectorTerms": []}})),
            &at(": Required value: must have at least one node selector term"),
        ),
        (
            node(json!({required: {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a", "b"]}]}]}})),
            &[
                at("[0].matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector"),
                at("[0].matchFields[0].key: Invalid value: \"metadata.uid\": not a valid field selector key"),
            ].join("\n"),
        ),
        (
            node(json!({preferred: [{"weight": 101, "preference": {}}, {"weight": 1, "preference": {"matchExpressions": [
                {"key": "a", "operator": "In", "values": ["not a label"]}]}}]})),
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100",
        ),
    ]);
    let term = |t: Value| json!({"affinity": {"podAntiAffinity": {required: [t]}}});
    let prefix = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let at = |rest: &str| format!("{prefix}{rest}");
    let selector = json!({"matchLabels": {"a": "b"}});
    check(&[
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "namespaces": ["x"]})),
            "",
        ),
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["k"]})),
            "",
        ),
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "namespaces": ["X_"]})),
            &at(
                ".namespace: Invalid value: \"X_\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            ),
        ),
        (
            term(json!({"topologyKey": "zone", "matchLabelKeys": ["k"]})),
            &at(".matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ),
        (
            term(
                json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["k"], "mismatchLabelKeys": ["k"]}),
            ),
            &at(".matchLabelKeys[0]: Invalid value: \"k\": exists in both matchLabelKeys and mismatchLabelKeys"),
        ),
        (
            term(json!({"topologyKey": "zone", "matchLabelKeys": ["a"],
                        "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}})),
            &at("[0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector"),
        ),
    ]);
    let got = problems(&pod(&term(json!({"labelSelector": selector}))));
    assert!(
        got[0].ends_with(".topologyKey: Required value: can not be empty"),
        "{got:?}"
    );
}

#[test]
fn tolerations_spreading_and_gates() {
    let toleration = |t: Value| json!({"tolerations": [t]});
    let spread = |c: Value| json!({"topologySpreadConstraints": c});
    check(&[
        (toleration(json!({"operator": "Exists"})), ""),
        (
            toleration(json!({"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5})),
            "",
        ),
        (
            toleration(json!({"value": "b"})),
            "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ),
        (
            toleration(json!({"key": "a", "operator": "Exists", "value": "b"})),
            "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
        ),
        (
            toleration(json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5})),
            "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
        ),
        (
            toleration(json!({"key": "a", "operator": "Like", "effect": "Never"})),
            "spec.tolerations[0].operator: Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\"\n\
             spec.tolerations[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (
            toleration(json!({"key": "a", "operator": "Lt", "value": "1"})),
            "spec.tolerations[0].operator: Unsupported value: \"Lt\": supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\"",
        ),
        (
            spread(json!([{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}])),
            "",
        ),
        (
            spread(json!([{"maxSkew": 0, "whenUnsatisfiable": "Try", "nodeTaintsPolicy": "x"}])),
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero\n\
             spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty\n\
             spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Try\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"\n\
             spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: \"x\": supported values: \"Honor\", \"Ignore\"",
        ),
        (
            spread(
                json!([{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1},
                          {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]),
            ),
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, ScheduleAnyway}\"\n\
             spec.topologySpreadConstraints[0].minDomains: Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ),
        (
            json!({"schedulingGates": [{"name": "a.b/c"}], "readinessGates": [{"conditionType": "x/y"}]}),
            "",
        ),
        (
            json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}),
            "spec.schedulingGates[1]: Duplicate value: \"a\"",
        ),
    ]);
}

#[test]
fn network_settings() {
    check(&[
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": [".", "_a.b_c.d."]}}),
            "",
        ),
        (
            json!({"dnsPolicy": "None"}),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}),
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "x", "01.1.1.1", "::ffff:1.2.3.4"], "options": [{}]}}),
            "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"x\",\"01.1.1.1\",\"::ffff:1.2.3.4\"]: must not have more than 3 nameservers\n\
             spec.dnsConfig.nameservers[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)\n\
             spec.dnsConfig.nameservers[2]: Invalid value: \"01.1.1.1\": must not have leading 0s\n\
             spec.dnsConfig.nameservers[3]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address\n\
             spec.dnsConfig.options[0]: Required value: must not be empty",
        ),
        (json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a.b"]}]}), ""),
        (
            json!({"hostnameOverride": "a.b", "setHostnameAsFQDN": true, "hostNetwork": true}),
            "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true\n\
             spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
        ),
        (
            json!({"activeDeadlineSeconds": 0, "preemptionPolicy": "x"}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive\n\
             spec.preemptionPolicy: Unsupported value: \"x\": supported values: \"PreemptLowerPriority\", \"Never\"",
        ),
        (
            json!({"hostname": "a", "subdomain": "b", "nodeName": "n.x", "priorityClassName": "system-node-critical"}),
            "",
        ),
        (
            json!({"hostname": "a.b"}),
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
        ),
    ]);
}

#[test]
fn annotations_with_a_meaning() {
    for (annotations, spec, want) in [
        (
            json!({"kubernetes.io/config.mirror": "x"}),
            json!({"nodeName": "n"}),
            "",
        ),
        (
            json!({"kubernetes.io/config.mirror": "x"}),
            json!({}),
            "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set",
        ),
        (
            json!({"controller.kubernetes.io/pod-deletion-cost": "-5"}),
            json!({}),
            "",
        ),
        (
            json!({"controller.kubernetes.io/pod-deletion-cost": "+5"}),
            json!({}),
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+5\": must be a 32bit integer",
        ),
        (
            json!({"container.apparmor.security.beta.kubernetes.io/x": "odd"}),
            json!({}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: \"x\": container not found\n\
             metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid value: \"odd\": invalid AppArmor profile name: \"odd\"",
        ),
        (
            json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}),
            json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}),
            "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match",
        ),
        (
            json!({"container.apparmor.security.beta.kubernetes.io/c": "localhost/a"}),
            json!({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "b"}}}),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Forbidden: apparmor profile in annotation and field must match",
        ),
    ] {
        let mut pod = pod(&spec);
        pod["metadata"]["annotations"] = annotations;
        let root = Cursor::root(&pod);
        let (at, spec) = (root.at("metadata").at("annotations"), root.at("spec"));
        let mut p = Problems::default();
        validate_annotations(&at, &spec, &mut p);
        validate_annotations_match(&at, &spec, &mut p);
        let got: Vec<String> = p.0.iter().map(Problem::to_string).collect();
        assert_eq!(got.join("\n"), want, "{}", pod["metadata"]);
    }
}

/// A pod that uses a bit of everything.
pub(crate) fn rich() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "tier": "front"},
                     "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}},
        "spec": {
            "serviceAccountName": "web",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "initContainers": [
                {"name": "migrate", "image": "shop/web:1.2", "command": ["migrate"], "env": [{"name": "A", "value": "b"}]},
                {"name": "proxy", "image": "envoy:1", "restartPolicy": "Always", "ports": [{"containerPort": 15001}],
                 "readinessProbe": {"tcpSocket": {"port": 15001}}, "resources": {"requests": {"cpu": "50m"}}},
            ],
            "containers": [{
                "name": "web", "image": "registry.example.com/shop/web:1.2", "args": ["--port=8080", "--verbose"],
                "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
                "env": [
                    {"name": "DB", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "MODE", "value": "production"},
                ],
                "envFrom": [{"configMapRef": {"name": "web"}}],
                "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "initialDelaySeconds": 5},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false,
                                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web", "readOnly": true},
                                 {"name": "cache", "mountPath": "/cache"}, {"name": "data", "mountPath": "/data"},
                                 {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
            "volumes": [
                {"name": "config", "configMap": {"name": "web", "items": [{"key": "a", "path": "a.yaml"}]}},
                {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}},
            ],
            "securityContext": {"fsGroup": 2000, "sysctls": [{"name": "net.core.somaxconn", "value": "1024"}]},
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]}]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": {
                    "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}}]},
            },
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "dedicated", "value": "web", "effect": "NoSchedule"}],
            "terminationGracePeriodSeconds": 45,
            "priorityClassName": "high",
            "imagePullSecrets": [{"name": "registry"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db.local"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        },
    })
}

#[test]
fn the_rich_pod_is_fine() {
    let mut pod = rich();
    default_pod_only(&mut pod);
    default(&mut pod["spec"]);
    assert_eq!(problems(&pod), Vec::<String>::new());
}

/// Places in a value, as JSON pointers.
fn pointers(value: &Value, prefix: &str, out: &mut Vec<String>) {
    out.push(prefix.to_string());
    match value {
        Value::Object(map) => {
            for (k, v) in map {
                pointers(v, &format!("{prefix}/{}", k.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(list) => {
            for (i, v) in list.iter().enumerate() {
                pointers(v, &format!("{prefix}/{i}"), out);
            }
        }
        _ => {}
    }
}

/// What may be put in place of something: also of the wrong type, which a decoder would have refused.
fn odd_values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!("")),
        Just(json!("ä/../'[\\")),
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(i64::MAX)),
        Just(json!(1.5)),
        Just(json!(true)),
        Just(json!({})),
        Just(json!([])),
        Just(json!([{}, {}])),
        Just(json!({"requests": {"hugepages-": "1", "hugepages-0": "1", "a/b/c": "x"}})),
        "[a-zA-Z0-9/.:@'\\[\\]-]{0,12}".prop_map(Value::from),
    ]
}

/// The rich pod with some places overwritten.
pub(crate) fn mutated() -> impl Strategy<Value = Value> {
    let mut places = vec![];
    pointers(&rich()["spec"], "/spec", &mut places);
    pointers(&rich()["metadata"], "/metadata", &mut places);
    proptest::collection::vec((proptest::sample::select(places), odd_values()), 0..6).prop_map(|changes| {
        let mut pod = rich();
        for (place, value) in changes {
            if let Some(there) = pod.pointer_mut(&place) {
                *there = value;
            }
        }
        pod
    })
}

proptest! {
    #[test]
    fn defaults_are_idempotent(pod in mutated()) {
        let mut once = pod;
        default_pod_only(&mut once);
        if let Some(spec) = once.get_mut("spec") {
            default(spec);
        }
        let mut twice = once.clone();
        default_pod_only(&mut twice);
        if let Some(spec) = twice.get_mut("spec") {
            default(spec);
        }
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn validation_never_panics(pod in mutated(), filled in any::<bool>()) {
        let mut pod = pod;
        if filled {
            default_pod_only(&mut pod);
            if let Some(spec) = pod.get_mut("spec") {
                default(spec);
            }
        }
        problems(&pod);
    }
}

/// Not a benchmark: it only catches a rule that became absurdly slow. Debug builds are some ten times slower than
/// release builds, where default and validate of this pod take some ten microseconds.
#[test]
fn a_pod_is_judged_quickly() {
    let pod = rich();
    let start = Instant::now();
    let rounds = 200;
    for _ in 0..rounds {
        let mut pod = pod.clone();
        default_pod_only(&mut pod);
        default(&mut pod["spec"]);
        assert!(problems(&pod).is_empty());
    }
    let each = start.elapsed() / rounds;
    assert!(each.as_millis() < 20, "{each:?}");
}
