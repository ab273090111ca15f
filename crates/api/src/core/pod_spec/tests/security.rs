//! Security contexts, operating systems, annotations.

use super::*;

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
