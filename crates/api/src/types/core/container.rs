//! Containers, their probes and hooks.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{EnvFromSource, EnvVar, SecurityContext};
use crate::types::json::object;
use crate::types::meta::{IntOrString, Quantity};

object! {
    pub struct Container {
        args: Option<Vec<String>> = "args",
        command: Option<Vec<String>> = "command",
        env: Option<Vec<EnvVar>> = "env",
        env_from: Option<Vec<EnvFromSource>> = "envFrom",
        image: Option<String> = "image",
        image_pull_policy: Option<String> = "imagePullPolicy",
        lifecycle: Option<Lifecycle> = "lifecycle",
        liveness_probe: Option<Probe> = "livenessProbe",
        name: String = "name",
        ports: Option<Vec<ContainerPort>> = "ports",
        readiness_probe: Option<Probe> = "readinessProbe",
        resize_policy: Option<Vec<ContainerResizePolicy>> = "resizePolicy",
        resources: Option<ResourceRequirements> = "resources",
        restart_policy: Option<String> = "restartPolicy",
        restart_policy_rules: Option<Vec<ContainerRestartRule>> = "restartPolicyRules",
        security_context: Option<SecurityContext> = "securityContext",
        startup_probe: Option<Probe> = "startupProbe",
        stdin: Option<bool> = "stdin",
        stdin_once: Option<bool> = "stdinOnce",
        termination_message_path: Option<String> = "terminationMessagePath",
        termination_message_policy: Option<String> = "terminationMessagePolicy",
        tty: Option<bool> = "tty",
        volume_devices: Option<Vec<VolumeDevice>> = "volumeDevices",
        volume_mounts: Option<Vec<VolumeMount>> = "volumeMounts",
        working_dir: Option<String> = "workingDir",
    }
}

object! {
    pub struct EphemeralContainer {
        args: Option<Vec<String>> = "args",
        command: Option<Vec<String>> = "command",
        env: Option<Vec<EnvVar>> = "env",
        env_from: Option<Vec<EnvFromSource>> = "envFrom",
        image: Option<String> = "image",
        image_pull_policy: Option<String> = "imagePullPolicy",
        lifecycle: Option<Lifecycle> = "lifecycle",
        liveness_probe: Option<Probe> = "livenessProbe",
        name: String = "name",
        ports: Option<Vec<ContainerPort>> = "ports",
        readiness_probe: Option<Probe> = "readinessProbe",
        resize_policy: Option<Vec<ContainerResizePolicy>> = "resizePolicy",
        resources: Option<ResourceRequirements> = "resources",
        restart_policy: Option<String> = "restartPolicy",
        restart_policy_rules: Option<Vec<ContainerRestartRule>> = "restartPolicyRules",
        security_context: Option<SecurityContext> = "securityContext",
        startup_probe: Option<Probe> = "startupProbe",
        stdin: Option<bool> = "stdin",
        stdin_once: Option<bool> = "stdinOnce",
        target_container_name: Option<String> = "targetContainerName",
        termination_message_path: Option<String> = "terminationMessagePath",
        termination_message_policy: Option<String> = "terminationMessagePolicy",
        tty: Option<bool> = "tty",
        volume_devices: Option<Vec<VolumeDevice>> = "volumeDevices",
        volume_mounts: Option<Vec<VolumeMount>> = "volumeMounts",
        working_dir: Option<String> = "workingDir",
    }
}

object! {
    pub struct ResourceRequirements {
        claims: Option<Vec<Value>> = "claims",
        limits: Option<BTreeMap<String, Quantity>> = "limits",
        requests: Option<BTreeMap<String, Quantity>> = "requests",
    }
}

object! {
    pub struct Lifecycle {
        post_start: Option<LifecycleHandler> = "postStart",
        pre_stop: Option<LifecycleHandler> = "preStop",
        stop_signal: Option<String> = "stopSignal",
    }
}

object! {
    pub struct Probe {
        exec: Option<ExecAction> = "exec",
        failure_threshold: Option<i32> = "failureThreshold",
        grpc: Option<GRPCAction> = "grpc",
        http_get: Option<HTTPGetAction> = "httpGet",
        initial_delay_seconds: Option<i32> = "initialDelaySeconds",
        period_seconds: Option<i32> = "periodSeconds",
        success_threshold: Option<i32> = "successThreshold",
        tcp_socket: Option<TCPSocketAction> = "tcpSocket",
        termination_grace_period_seconds: Option<i64> = "terminationGracePeriodSeconds",
        timeout_seconds: Option<i32> = "timeoutSeconds",
    }
}

object! {
    pub struct ContainerPort {
        container_port: i32 = "containerPort",
        host_ip: Option<String> = "hostIP",
        host_port: Option<i32> = "hostPort",
        name: Option<String> = "name",
        protocol: Option<String> = "protocol",
    }
}

object! {
    pub struct ContainerResizePolicy {
        resource_name: String = "resourceName",
        restart_policy: String = "restartPolicy",
    }
}

object! {
    pub struct ContainerRestartRule {
        action: String = "action",
        exit_codes: Option<ContainerRestartRuleOnExitCodes> = "exitCodes",
    }
}

object! {
    pub struct VolumeDevice {
        device_path: String = "devicePath",
        name: String = "name",
    }
}

object! {
    pub struct VolumeMount {
        mount_path: String = "mountPath",
        mount_propagation: Option<String> = "mountPropagation",
        name: String = "name",
        read_only: Option<bool> = "readOnly",
        recursive_read_only: Option<String> = "recursiveReadOnly",
        sub_path: Option<String> = "subPath",
        sub_path_expr: Option<String> = "subPathExpr",
    }
}

object! {
    pub struct LifecycleHandler {
        exec: Option<ExecAction> = "exec",
        http_get: Option<HTTPGetAction> = "httpGet",
        sleep: Option<SleepAction> = "sleep",
        tcp_socket: Option<TCPSocketAction> = "tcpSocket",
    }
}

object! {
    pub struct ExecAction {
        command: Option<Vec<String>> = "command",
    }
}

object! {
    pub struct GRPCAction {
        port: i32 = "port",
        service: Option<String> = "service",
    }
}

object! {
    pub struct HTTPGetAction {
        host: Option<String> = "host",
        http_headers: Option<Vec<HTTPHeader>> = "httpHeaders",
        path: Option<String> = "path",
        port: IntOrString = "port",
        scheme: Option<String> = "scheme",
    }
}

object! {
    pub struct TCPSocketAction {
        host: Option<String> = "host",
        port: IntOrString = "port",
    }
}

object! {
    pub struct ContainerRestartRuleOnExitCodes {
        operator: String = "operator",
        values: Option<Vec<i32>> = "values",
    }
}

object! {
    pub struct SleepAction {
        seconds: i64 = "seconds",
    }
}

object! {
    pub struct HTTPHeader {
        name: String = "name",
        value: String = "value",
    }
}
