//! The security context of a container: users and groups, capabilities, profiles, namespaces. The container's own settings
//! take precedence over the pod's.

use std::path::Path;

use orlop_api::types::core::{AppArmorProfile, Capabilities, Container, Pod, SELinuxOptions, SeccompProfile};
use orlop_runtime::cri::messages as cri;

use super::{NodeFacts, SpecError, describe, spec_flag};

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Who the image says its process runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    Id(i64),
    Name(String),
}

impl ImageUser {
    /// An image that says nothing runs as root.
    pub(crate) fn of(image: Option<&cri::Image>) -> ImageUser {
        match image {
            Some(cri::Image { uid: Some(uid), .. }) => ImageUser::Id(uid.value),
            Some(image) if !image.username.is_empty() => ImageUser::Name(image.username.clone()),
            _ => ImageUser::Id(0),
        }
    }
}

/// The container's setting, or the pod's.
fn effective<T>(
    pod: &Pod,
    container: &Container,
    of_container: impl Fn(&orlop_api::types::core::SecurityContext) -> Option<T>,
    of_pod: impl Fn(&orlop_api::types::core::PodSecurityContext) -> Option<T>,
) -> Option<T> {
    let own = container.security_context.as_ref().and_then(of_container);
    own.or_else(|| pod.spec.as_ref()?.security_context.as_ref().and_then(of_pod))
}

/// Everything of a container's security but its namespaces' target.
pub(crate) fn container_security(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    facts: &NodeFacts,
    users: Option<&cri::UserNamespace>,
) -> Result<cri::LinuxContainerSecurityContext, SpecError> {
    check_non_root(pod, container, user)?;
    let sc = container.security_context.as_ref();
    let run_as_user = effective(pod, container, |c| c.run_as_user, |p| p.run_as_user);
    let run_as_group = effective(pod, container, |c| c.run_as_group, |p| p.run_as_group);
    let selinux_options = effective(
        pod,
        container,
        |c| c.se_linux_options.clone(),
        |p| p.se_linux_options.clone(),
    );
    let (image_uid, run_as_username) = match (run_as_user, user) {
        (Some(_), _) => (None, String::new()),
        (None, ImageUser::Id(uid)) => (Some(*uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let (supplemental_groups, policy) = supplemental_groups(pod)?;
    let (apparmor, apparmor_profile) = app_armor(pod, container)?;
    let unmasked = sc.and_then(|sc| sc.proc_mount.as_deref()) == Some("Unmasked");
    let paths = |list: &[&str]| list.iter().map(|p| p.to_string()).collect::<Vec<_>>();
    let (masked_paths, readonly_paths) = match unmasked {
        true => (vec![], vec![]),
        false => (
            [paths(&MASKED_PATHS), facts.masked_paths.clone()].concat(),
            paths(&READONLY_PATHS),
        ),
    };
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: sc.and_then(|sc| sc.capabilities.as_ref()).map(capabilities),
        privileged: sc.and_then(|sc| sc.privileged).unwrap_or(false),
        namespace_options: Some(namespaces(pod, users)?),
        selinux_options: selinux_options.as_ref().map(selinux),
        run_as_user: run_as_user.or(image_uid).map(|value| cri::Int64Value { value }),
        run_as_username,
        run_as_group: run_as_group.map(|value| cri::Int64Value { value }),
        readonly_rootfs: sc.and_then(|sc| sc.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups,
        supplemental_groups_policy: policy as i32,
        apparmor,
        apparmor_profile,
        seccomp: Some(seccomp(pod, container, facts)?),
        no_new_privs: sc.and_then(|sc| sc.allow_privilege_escalation) == Some(false),
        masked_paths,
        readonly_paths,
        ..Default::default()
    })
}

/// `runAsNonRoot` can only be checked for numbers.
fn check_non_root(pod: &Pod, container: &Container, user: &ImageUser) -> Result<(), SpecError> {
    if effective(pod, container, |c| c.run_as_non_root, |p| p.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let place = format!("(pod: {:?}, container: {})", describe(pod), container.name);
    let problem = match (effective(pod, container, |c| c.run_as_user, |p| p.run_as_user), user) {
        (Some(0), _) => format!("container's runAsUser breaks non-root policy {place}"),
        (Some(_), _) => return Ok(()),
        (None, ImageUser::Name(name)) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        ),
        (None, ImageUser::Id(0)) => format!("container has runAsNonRoot and image will run as root {place}"),
        (None, ImageUser::Id(uid)) if !(0..=i64::from(i32::MAX)).contains(uid) => format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be between 0 and \
             {max}, inclusive {place}",
            max = i32::MAX
        ),
        (None, ImageUser::Id(_)) => return Ok(()),
    };
    Err(SpecError(problem))
}

fn capabilities(c: &Capabilities) -> cri::Capability {
    cri::Capability {
        add_capabilities: c.add.clone().unwrap_or_default(),
        drop_capabilities: c.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: vec![],
    }
}

pub(crate) fn selinux(options: &SELinuxOptions) -> cri::SELinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    cri::SELinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

/// The pod's groups: that of its volumes first.
pub(crate) fn supplemental_groups(pod: &Pod) -> Result<(Vec<i64>, cri::SupplementalGroupsPolicy), SpecError> {
    let Some(sc) = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()) else {
        return Ok((vec![], cri::SupplementalGroupsPolicy::Merge));
    };
    let more = sc.supplemental_groups.iter().flatten();
    let groups = sc.fs_group.iter().chain(more).copied().collect();
    let policy = match sc.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => cri::SupplementalGroupsPolicy::Merge,
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict,
        Some(other) => return Err(SpecError(format!("unsupported supplementalGroupsPolicy: {other}"))),
    };
    Ok((groups, policy))
}

pub(crate) fn namespaces(pod: &Pod, users: Option<&cri::UserNamespace>) -> Result<cri::NamespaceOption, SpecError> {
    use cri::NamespaceMode::{Container, Node, Pod as Shared};
    let or_pod = |host: bool| if host { Node } else { Shared };
    let pid = if spec_flag(pod, |s| s.host_pid) {
        Node
    } else if spec_flag(pod, |s| s.share_process_namespace) {
        Shared
    } else {
        Container
    };
    let own_users = pod.spec.as_ref().and_then(|s| s.host_users) == Some(false);
    let userns = match (own_users, users) {
        (false, _) => cri::UserNamespace {
            mode: Node as i32,
            ..Default::default()
        },
        (true, Some(users)) => users.clone(),
        (true, None) => {
            return Err(SpecError::new(
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
            ));
        }
    };
    Ok(cri::NamespaceOption {
        network: or_pod(spec_flag(pod, |s| s.host_network)) as i32,
        pid: pid as i32,
        ipc: or_pod(spec_flag(pod, |s| s.host_ipc)) as i32,
        target_id: String::new(),
        userns_options: Some(userns),
    })
}

fn profile(profile_type: cri::ProfileType) -> cri::SecurityProfile {
    cri::SecurityProfile {
        profile_type: profile_type as i32,
        localhost_ref: String::new(),
    }
}

fn seccomp(pod: &Pod, container: &Container, facts: &NodeFacts) -> Result<cri::SecurityProfile, SpecError> {
    let wanted: Option<SeccompProfile> = effective(
        pod,
        container,
        |c| c.seccomp_profile.clone(),
        |p| p.seccomp_profile.clone(),
    );
    let Some(wanted) = wanted else {
        return Ok(profile(match facts.seccomp_default {
            true => cri::ProfileType::RuntimeDefault,
            false => cri::ProfileType::Unconfined,
        }));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(cri::ProfileType::RuntimeDefault)),
        "Localhost" => match wanted.localhost_profile.filter(|f| !f.is_empty()) {
            Some(file) => Ok(cri::SecurityProfile {
                localhost_ref: below(&facts.root_dir.join("seccomp"), &file),
                ..profile(cri::ProfileType::Localhost)
            }),
            None => Err(SpecError::new(
                "localhostProfile must be set if seccompProfile type is Localhost.",
            )),
        },
        _ => Ok(profile(cri::ProfileType::Unconfined)),
    }
}

/// A path below a directory, whatever `..` it has: validation refuses those, files of static pods are not validated so well.
fn below(dir: &Path, file: &str) -> String {
    let parts = file.split('/').filter(|p| !matches!(*p, "" | "." | ".."));
    parts
        .fold(dir.to_path_buf(), |path, part| path.join(part))
        .to_string_lossy()
        .into_owned()
}

/// The profile, and its name in the form older runtimes read.
fn app_armor(pod: &Pod, container: &Container) -> Result<(Option<cri::SecurityProfile>, String), SpecError> {
    let Some(wanted) = app_armor_wanted(pod, container) else {
        return Ok((None, String::new()));
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok((
            Some(profile(cri::ProfileType::RuntimeDefault)),
            "runtime/default".to_string(),
        )),
        "Unconfined" => Ok((Some(profile(cri::ProfileType::Unconfined)), "unconfined".to_string())),
        "Localhost" => {
            let name = wanted
                .localhost_profile
                .ok_or_else(|| SpecError::new("missing localhost apparmor profile name"))?;
            let old_form = format!("localhost/{name}");
            let found = cri::SecurityProfile {
                localhost_ref: name,
                ..profile(cri::ProfileType::Localhost)
            };
            Ok((Some(found), old_form))
        }
        other => Err(SpecError(format!("unknown apparmor profile type: {other:?}"))),
    }
}

/// The profile of a container: its own field, then the annotation of old, then the pod's field.
pub(crate) fn app_armor_wanted(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container
        .security_context
        .as_ref()
        .and_then(|sc| sc.app_armor_profile.clone());
    let noted = || {
        let key = format!("{APP_ARMOR_ANNOTATION}{}", container.name);
        app_armor_noted(pod.metadata.annotations.as_ref()?.get(&key)?)
    };
    let of_pod = || pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.clone();
    own.or_else(noted).or_else(of_pod)
}

/// Pods from files may still say it by annotation.
fn app_armor_noted(text: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match text {
        "runtime/default" => ("RuntimeDefault", None),
        "unconfined" => ("Unconfined", None),
        _ => ("Localhost", Some(text.strip_prefix("localhost/")?.to_string())),
    };
    Some(AppArmorProfile {
        type_: type_.to_string(),
        localhost_profile,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::{Value, json};

    fn run(
        pod_sc: Value,
        container_sc: Value,
        user: ImageUser,
    ) -> Result<cri::LinuxContainerSecurityContext, SpecError> {
        let pod = testing::pod(json!({"securityContext": pod_sc}));
        let container = testing::container(json!({"securityContext": container_sc}));
        container_security(&pod, &container, &user, &NodeFacts::default(), None)
    }

    const ROOT: ImageUser = ImageUser::Id(0);

    #[test]
    fn images_tell_their_user() {
        let image = |uid: Option<i64>, username: &str| cri::Image {
            uid: uid.map(|value| cri::Int64Value { value }),
            username: username.into(),
            ..Default::default()
        };
        assert_eq!(ImageUser::of(None), ROOT);
        assert_eq!(ImageUser::of(Some(&image(None, ""))), ROOT);
        assert_eq!(ImageUser::of(Some(&image(Some(7), ""))), ImageUser::Id(7));
        assert_eq!(ImageUser::of(Some(&image(Some(7), "x"))), ImageUser::Id(7));
        assert_eq!(ImageUser::of(Some(&image(None, "app"))), ImageUser::Name("app".into()));
    }

    #[test]
    fn users_come_from_the_container_the_pod_or_the_image() {
        let app = ImageUser::Name("app".into());
        for (pod, container, user, uid, name, group) in [
            (json!({}), json!({}), ROOT, Some(0), "", None),
            (json!({}), json!({}), ImageUser::Id(65), Some(65), "", None),
            (json!({}), json!({}), app.clone(), None, "app", None),
            (json!({"runAsUser": 1}), json!({}), app.clone(), Some(1), "", None),
            (
                json!({"runAsUser": 1, "runAsGroup": 3}),
                json!({"runAsUser": 2}),
                app.clone(),
                Some(2),
                "",
                Some(3),
            ),
            (
                json!({"runAsGroup": 3}),
                json!({"runAsGroup": 4}),
                app,
                None,
                "app",
                Some(4),
            ),
        ] {
            let sc = run(pod.clone(), container.clone(), user).unwrap();
            let got = (
                sc.run_as_user.map(|v| v.value),
                sc.run_as_username.as_str(),
                sc.run_as_group.map(|v| v.value),
            );
            assert_eq!(got, (uid, name, group), "{pod} {container}");
        }
    }

    #[test]
    fn non_root_is_checked() {
        const PLACE: &str = "(pod: \"web_default(u-1)\", container: c)";
        let app = ImageUser::Name("app".into());
        let yes = json!({"runAsNonRoot": true});
        for (pod, container, user, expected) in [
            (json!({}), json!({}), ROOT, ""),
            (yes.clone(), json!({"runAsNonRoot": false}), ROOT, ""),
            (yes.clone(), json!({"runAsUser": 5}), ROOT, ""),
            (yes.clone(), json!({}), ImageUser::Id(5), ""),
            (
                yes.clone(),
                json!({}),
                ROOT,
                "container has runAsNonRoot and image will run as root",
            ),
            (
                json!({}),
                yes.clone(),
                ROOT,
                "container has runAsNonRoot and image will run as root",
            ),
            (
                yes.clone(),
                json!({}),
                app,
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
            ),
            (
                yes.clone(),
                json!({"runAsUser": 0}),
                ImageUser::Id(5),
                "container's runAsUser breaks non-root policy",
            ),
            (
                yes,
                json!({}),
                ImageUser::Id(1 << 40),
                "container has runAsNonRoot and image has an invalid user id (1099511627776). (Must be 1-(2147483647)): must be \
                 between 0 and 2147483647, inclusive",
            ),
        ] {
            let got = run(pod.clone(), container.clone(), user).map_err(|e| e.0);
            match expected {
                "" => assert!(got.is_ok(), "{pod} {container}: {got:?}"),
                text => assert_eq!(got.unwrap_err(), format!("{text} {PLACE}"), "{pod} {container}"),
            }
        }
    }

    #[test]
    fn flags_and_capabilities() {
        let sc = run(
            json!({"seLinuxOptions": {"level": "pod"}, "fsGroup": 1, "supplementalGroups": [2]}),
            json!({"privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": true,
                "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "seLinuxOptions": {"user": "u"}}),
            ROOT,
        )
        .unwrap();
        assert!(sc.privileged && sc.readonly_rootfs && !sc.no_new_privs);
        let caps = sc.capabilities.unwrap();
        assert_eq!(
            (caps.add_capabilities, caps.drop_capabilities),
            (vec!["NET_ADMIN".into()], vec!["ALL".into()])
        );
        let selinux = sc.selinux_options.unwrap();
        assert_eq!((selinux.user.as_str(), selinux.level.as_str()), ("u", ""));
        assert_eq!(sc.supplemental_groups, [1, 2]);
        let none = run(json!({}), json!({}), ROOT).unwrap();
        assert!(none.capabilities.is_none() && !none.no_new_privs && !none.privileged && !none.readonly_rootfs);
        assert!(
            run(json!({}), json!({"allowPrivilegeEscalation": false}), ROOT)
                .unwrap()
                .no_new_privs
        );
    }

    #[test]
    fn proc_is_masked_unless_asked_otherwise() {
        let sc = run(json!({}), json!({}), ROOT).unwrap();
        assert_eq!((sc.masked_paths.len(), sc.readonly_paths.len()), (12, 5));
        let sc = run(json!({}), json!({"procMount": "Default"}), ROOT).unwrap();
        assert_eq!((sc.masked_paths.len(), sc.readonly_paths.len()), (12, 5));
        let sc = run(json!({}), json!({"procMount": "Unmasked"}), ROOT).unwrap();
        assert_eq!((sc.masked_paths.len(), sc.readonly_paths.len()), (0, 0));
    }

    #[test]
    fn seccomp_profiles() {
        let runtime = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
        let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "dir/p.json"}});
        let escape = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../../etc/x"}});
        for (pod, container, default, expected) in [
            (json!({}), json!({}), false, (1, "")),
            (json!({}), json!({}), true, (0, "")),
            (runtime.clone(), json!({}), false, (0, "")),
            (runtime.clone(), unconfined.clone(), true, (1, "")),
            (unconfined, local, false, (2, "/var/lib/kubelet/seccomp/dir/p.json")),
            (escape, json!({}), false, (2, "/var/lib/kubelet/seccomp/etc/x")),
        ] {
            let facts = NodeFacts {
                seccomp_default: default,
                ..NodeFacts::default()
            };
            let (p, c) = (
                testing::pod(json!({"securityContext": pod})),
                testing::container(json!({"securityContext": container})),
            );
            let got = seccomp(&p, &c, &facts).unwrap();
            assert_eq!(
                (got.profile_type, got.localhost_ref.as_str()),
                expected,
                "{pod} {container}"
            );
        }
        let empty = json!({"seccompProfile": {"type": "Localhost"}});
        assert_eq!(
            run(empty, json!({}), ROOT).unwrap_err().0,
            "localhostProfile must be set if seccompProfile type is Localhost."
        );
    }

    #[test]
    fn app_armor_profiles() {
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}});
        let unconfined = json!({"appArmorProfile": {"type": "Unconfined"}});
        let runtime = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        for (pod, container, note, expected) in [
            (json!({}), json!({}), None, None),
            (local.clone(), json!({}), None, Some((2, "mine", "localhost/mine"))),
            (local.clone(), unconfined.clone(), None, Some((1, "", "unconfined"))),
            (
                local.clone(),
                json!({}),
                Some("runtime/default"),
                Some((0, "", "runtime/default")),
            ),
            (json!({}), json!({}), Some("localhost/x"), Some((2, "x", "localhost/x"))),
            (json!({}), json!({}), Some("nonsense"), None),
            (runtime, json!({}), Some("unconfined"), Some((1, "", "unconfined"))),
        ] {
            let mut p = testing::pod(json!({"securityContext": pod}));
            p.metadata.annotations = note.map(|n| [(format!("{APP_ARMOR_ANNOTATION}c"), n.to_string())].into());
            let c = testing::container(json!({"securityContext": container}));
            let (got, old) = app_armor(&p, &c).unwrap();
            let got = got
                .as_ref()
                .map(|g| (g.profile_type, g.localhost_ref.as_str(), old.as_str()));
            assert_eq!(got, expected, "{pod} {container} {note:?}");
        }
        let odd = run(json!({"appArmorProfile": {"type": "Odd"}}), json!({}), ROOT);
        assert_eq!(odd.unwrap_err().0, "unknown apparmor profile type: \"Odd\"");
        let nameless = run(json!({"appArmorProfile": {"type": "Localhost"}}), json!({}), ROOT);
        assert_eq!(nameless.unwrap_err().0, "missing localhost apparmor profile name");
    }
}
