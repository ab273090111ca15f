//! Security settings of pods and containers.

use serde_json::Value;

use crate::types::json::object;

object! {
    pub struct PodSecurityContext {
        app_armor_profile: Option<AppArmorProfile> = "appArmorProfile",
        fs_group: Option<i64> = "fsGroup",
        fs_group_change_policy: Option<String> = "fsGroupChangePolicy",
        run_as_group: Option<i64> = "runAsGroup",
        run_as_non_root: Option<bool> = "runAsNonRoot",
        run_as_user: Option<i64> = "runAsUser",
        se_linux_change_policy: Option<String> = "seLinuxChangePolicy",
        se_linux_options: Option<SELinuxOptions> = "seLinuxOptions",
        seccomp_profile: Option<SeccompProfile> = "seccompProfile",
        supplemental_groups: Option<Vec<i64>> = "supplementalGroups",
        supplemental_groups_policy: Option<String> = "supplementalGroupsPolicy",
        sysctls: Option<Vec<Sysctl>> = "sysctls",
        windows_options: Option<Value> = "windowsOptions",
    }
}

object! {
    pub struct SecurityContext {
        allow_privilege_escalation: Option<bool> = "allowPrivilegeEscalation",
        app_armor_profile: Option<AppArmorProfile> = "appArmorProfile",
        capabilities: Option<Capabilities> = "capabilities",
        privileged: Option<bool> = "privileged",
        proc_mount: Option<String> = "procMount",
        read_only_root_filesystem: Option<bool> = "readOnlyRootFilesystem",
        run_as_group: Option<i64> = "runAsGroup",
        run_as_non_root: Option<bool> = "runAsNonRoot",
        run_as_user: Option<i64> = "runAsUser",
        se_linux_options: Option<SELinuxOptions> = "seLinuxOptions",
        seccomp_profile: Option<SeccompProfile> = "seccompProfile",
        windows_options: Option<Value> = "windowsOptions",
    }
}

object! {
    pub struct AppArmorProfile {
        localhost_profile: Option<String> = "localhostProfile",
        type_: String = "type",
    }
}

object! {
    pub struct SELinuxOptions {
        level: Option<String> = "level",
        role: Option<String> = "role",
        type_: Option<String> = "type",
        user: Option<String> = "user",
    }
}

object! {
    pub struct SeccompProfile {
        localhost_profile: Option<String> = "localhostProfile",
        type_: String = "type",
    }
}

object! {
    pub struct Sysctl {
        name: String = "name",
        value: String = "value",
    }
}

object! {
    pub struct Capabilities {
        add: Option<Vec<String>> = "add",
        drop: Option<Vec<String>> = "drop",
    }
}
