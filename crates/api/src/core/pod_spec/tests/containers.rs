//! Containers, init containers, ephemeral containers, and what they ask for.

use super::*;

#[test]
fn containers_are_named_and_have_images() {
    check(&[
        (json!({"containers": [{"image": null}]}), "C.image: Required value"),
        (json!({"containers": [{"name": ""}]}), "C.name: Required value"),
        (
            json!({"containers": [{"name": "C"}]}),
            "C.name: Invalid value: \"C\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
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
