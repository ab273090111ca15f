//! A container, put together from its configuration, its image and its pod.

use std::path::{Path, PathBuf};

use crate::cri::messages::{
    ContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, NamespaceMode, PodSandboxConfig,
    ProfileType, SecurityProfile,
};
use crate::embedded::apparmor::is_loaded;
use crate::embedded::cgroups::{CgroupSpec, Hierarchies, container_path, container_writes};
use crate::embedded::interfaces::PreparedImage;
use crate::embedded::seccomp;
use crate::embedded::spec::{ContainerSpec, PidMode, ProcessSpec, RootSpec};

use super::devices::Devices;
use super::mounts::{ImageLayers, PodFiles};
use super::users::{ContainerIdentity, UserFiles};
use super::{PlanError, Result, capabilities, mounts, process, sandbox, users};

/// Everything that a container's spec follows from; what had to be read is read.
pub(crate) struct Inputs<'a> {
    pub id: &'a str,
    pub pod_dir: &'a Path,
    /// The container's.
    pub dir: &'a Path,
    pub config: &'a ContainerConfig,
    pub sandbox: &'a PodSandboxConfig,
    pub hostname: &'a str,
    pub image: &'a PreparedImage,
    /// Directories to stack, lowest first.
    pub layers: Vec<PathBuf>,
    pub user_files: &'a UserFiles,
    pub image_volumes: &'a ImageLayers,
    pub devices: Devices,
    pub filter: Vec<u64>,
    pub apparmor: Option<String>,
    pub hierarchies: &'a Hierarchies,
    pub limits_swap: bool,
    /// The root is a copy of the layers, not a stack of them.
    pub copied: bool,
}

pub(crate) fn security_context(config: &ContainerConfig) -> LinuxContainerSecurityContext {
    config
        .linux
        .clone()
        .unwrap_or_default()
        .security_context
        .unwrap_or_default()
}

pub(crate) fn resources(config: &ContainerConfig) -> LinuxContainerResources {
    config.linux.clone().unwrap_or_default().resources.unwrap_or_default()
}

/// The container, and as whom it runs.
pub(crate) fn plan(inputs: Inputs<'_>) -> Result<(ContainerSpec, ContainerIdentity)> {
    let context = security_context(inputs.config);
    check_sandbox(&context, inputs.sandbox)?;
    let defaults = &inputs.image.defaults;
    let identity = users::plan(&context, &defaults.user, inputs.user_files)?;
    let resources = resources(inputs.config);
    let volumes = mounts::plan_volumes(&defaults.volumes, inputs.dir, context.readonly_rootfs);
    let mounts = mounts::plan(
        inputs.config,
        &pod_files(&context, &inputs),
        inputs.image_volumes,
        volumes,
    )?;
    let spec = ContainerSpec {
        id: inputs.id.to_string(),
        dir: inputs.dir.to_path_buf(),
        process: ProcessSpec {
            args: process::args(inputs.config, defaults)?,
            env: process::env(inputs.config, defaults, inputs.hostname, &identity.home),
            cwd: process::cwd(inputs.config, defaults),
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups.clone(),
            capabilities: capabilities::plan(context.capabilities.as_ref(), context.privileged),
            no_new_privileges: context.no_new_privs,
            filter: inputs.filter,
            apparmor: inputs.apparmor,
            oom_score_adj: inputs
                .config
                .linux
                .as_ref()
                .and_then(|l| l.resources.as_ref())
                .map(oom_score_adj),
            tty: inputs.config.tty,
        },
        root: RootSpec {
            layers: inputs.layers,
            upper: inputs.dir.join("upper"),
            work: inputs.dir.join("work"),
            mount_point: inputs.dir.join("root"),
            copied: inputs.copied,
            read_only: context.readonly_rootfs,
        },
        mounts,
        devices: inputs.devices.nodes,
        masked_paths: paths(&context, &context.masked_paths),
        read_only_paths: paths(&context, &context.readonly_paths),
        cgroup: CgroupSpec {
            hierarchies: inputs.hierarchies.clone(),
            path: cgroup_path(inputs.sandbox, inputs.id),
            writes: container_writes(inputs.hierarchies.version, &resources, inputs.limits_swap),
            devices: inputs.devices.rules,
        },
        cgroup_namespace: inputs.hierarchies.version == crate::embedded::cgroups::Version::V2 && !context.privileged,
        pid: pid_mode(&context, inputs.sandbox)?,
        log: log_path(inputs.config, inputs.sandbox),
        stdin: inputs.config.stdin,
        stdin_once: inputs.config.stdin_once,
    };
    Ok((spec, identity))
}

fn check_sandbox(context: &LinuxContainerSecurityContext, sandbox: &PodSandboxConfig) -> Result<()> {
    let of_pod = sandbox
        .linux
        .clone()
        .unwrap_or_default()
        .security_context
        .unwrap_or_default();
    if context.privileged && !of_pod.privileged {
        return Err(PlanError("no privileged container allowed in sandbox".to_string()));
    }
    let users = |options: Option<crate::cri::messages::NamespaceOption>| {
        sandbox::user_namespace(options.unwrap_or_default().userns_options.as_ref())
    };
    match users(of_pod.namespace_options)? == users(context.namespace_options.clone())? {
        true => Ok(()),
        false => Err(PlanError(
            "user namespace config for sandbox is different from container".to_string(),
        )),
    }
}

fn oom_score_adj(resources: &LinuxContainerResources) -> i32 {
    resources.oom_score_adj.clamp(-1000, 1000) as i32
}

fn pod_files(context: &LinuxContainerSecurityContext, inputs: &Inputs<'_>) -> PodFiles {
    let options = sandbox::namespace_options(inputs.sandbox);
    PodFiles {
        dir: inputs.pod_dir.to_path_buf(),
        host_ipc: options.ipc == NamespaceMode::Node as i32,
        user_namespace: options
            .userns_options
            .is_some_and(|o| o.mode == NamespaceMode::Pod as i32),
        privileged: context.privileged,
        read_only_root: context.readonly_rootfs,
    }
}

/// Privileged containers see everything.
fn paths(context: &LinuxContainerSecurityContext, paths: &[String]) -> Vec<PathBuf> {
    match context.privileged {
        true => vec![],
        false => paths.iter().map(PathBuf::from).collect(),
    }
}

pub(crate) fn cgroup_path(sandbox: &PodSandboxConfig, id: &str) -> String {
    let parent = sandbox.linux.as_ref().map_or("", |linux| linux.cgroup_parent.as_str());
    match parent {
        "" => container_path("/orlop", id),
        parent => container_path(parent, id),
    }
}

fn pid_mode(context: &LinuxContainerSecurityContext, sandbox: &PodSandboxConfig) -> Result<PidMode> {
    let options = context.namespace_options.clone().unwrap_or_default();
    match NamespaceMode::try_from(options.pid) {
        Ok(NamespaceMode::Container) => Ok(PidMode::Container),
        Ok(NamespaceMode::Node) => Ok(PidMode::Node),
        Ok(NamespaceMode::Target) => Ok(PidMode::Target(options.target_id)),
        // The pod's, if it has one.
        Ok(NamespaceMode::Pod) => match sandbox::namespace_options(sandbox).pid == NamespaceMode::Pod as i32 {
            true => Ok(PidMode::Pod),
            false => Ok(PidMode::Container),
        },
        Err(_) => Err(PlanError(format!("unsupported PID namespace mode {}", options.pid))),
    }
}

pub(crate) fn log_path(config: &ContainerConfig, sandbox: &PodSandboxConfig) -> Option<PathBuf> {
    let both = !config.log_path.is_empty() && !sandbox.log_directory.is_empty();
    both.then(|| Path::new(&sandbox.log_directory).join(&config.log_path))
}

/// Where a filter of system calls comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilterSource {
    None,
    Default,
    File(PathBuf),
}

pub(crate) fn filter_source(context: &LinuxContainerSecurityContext) -> Result<FilterSource> {
    if context.privileged {
        return Ok(FilterSource::None);
    }
    let profile = match &context.seccomp {
        Some(profile) => profile.clone(),
        None => old_profile(&context.seccomp_profile_path),
    };
    match ProfileType::try_from(profile.profile_type) {
        Ok(ProfileType::Unconfined) => Ok(FilterSource::None),
        Ok(ProfileType::RuntimeDefault) => Ok(FilterSource::Default),
        Ok(ProfileType::Localhost) => {
            let path = profile.localhost_ref.trim_start_matches("localhost/");
            Ok(FilterSource::File(PathBuf::from(path)))
        }
        Err(_) => Err(PlanError(format!(
            "unknown seccomp profile type {}",
            profile.profile_type
        ))),
    }
}

/// What kubelets before 1.19 sent.
fn old_profile(text: &str) -> SecurityProfile {
    let profile_type = match text {
        "" | "unconfined" => ProfileType::Unconfined,
        "runtime/default" | "docker/default" => ProfileType::RuntimeDefault,
        _ => ProfileType::Localhost,
    };
    SecurityProfile {
        profile_type: profile_type as i32,
        localhost_ref: text.to_string(),
    }
}

/// The filter of a profile. Blocking where it is read from a file.
pub(crate) fn filter(source: &FilterSource, capabilities: u64) -> Result<Vec<u64>> {
    let profile = match source {
        FilterSource::None => return Ok(vec![]),
        FilterSource::Default => seccomp::default_profile(capabilities),
        FilterSource::File(path) => {
            let json = std::fs::read(path)
                .map_err(|e| PlanError(format!("cannot load seccomp profile {:?}: {e}", path.display())))?;
            seccomp::parse(&json).map_err(|e| PlanError(e.to_string()))?
        }
    };
    seccomp::compile(&profile).map_err(|e| PlanError(e.to_string()))
}

/// The AppArmor profile that is asked for; the default one if none is. `loaded`: those that the kernel has, `None` where it has
/// no AppArmor. `default`: ours.
pub(crate) fn apparmor(
    context: &LinuxContainerSecurityContext,
    loaded: Option<&str>,
    default: &str,
) -> Result<Option<String>> {
    /// Default profiles of others: what this node's other runtimes use is right for us too.
    const DEFAULTS: [&str; 2] = ["cri-containerd.apparmor.d", "docker-default"];
    if context.privileged {
        return Ok(None);
    }
    let profile = match &context.apparmor {
        Some(profile) => profile.clone(),
        // Differs from seccomp: without a wish there is a profile.
        None if context.apparmor_profile.is_empty() => old_profile("runtime/default"),
        None => old_profile(&context.apparmor_profile),
    };
    let has = |name: &str| loaded.is_some_and(|loaded| is_loaded(loaded, name));
    match (ProfileType::try_from(profile.profile_type), loaded) {
        (Ok(ProfileType::Localhost), None) => Err(PlanError("AppArmor is not supported on this node".to_string())),
        (Ok(ProfileType::Localhost), Some(_)) => {
            let name = profile.localhost_ref.trim_start_matches("localhost/");
            match has(name) {
                true => Ok(Some(name.to_string())),
                false => Err(PlanError(format!("apparmor profile not found {name}"))),
            }
        }
        (Ok(ProfileType::RuntimeDefault), _) => {
            let known = [default].into_iter().chain(DEFAULTS);
            Ok(known.into_iter().find(|name| has(name)).map(str::to_string))
        }
        (Ok(ProfileType::Unconfined), _) => Ok(None),
        (Err(_), _) => Err(PlanError(format!(
            "unknown AppArmor profile type {}",
            profile.profile_type
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_by_profile() {
        let with = |profile_type: ProfileType, localhost_ref: &str| LinuxContainerSecurityContext {
            seccomp: Some(SecurityProfile {
                profile_type: profile_type as i32,
                localhost_ref: localhost_ref.to_string(),
            }),
            ..LinuxContainerSecurityContext::default()
        };
        let source = |context: &LinuxContainerSecurityContext| filter_source(context).unwrap();
        assert_eq!(source(&LinuxContainerSecurityContext::default()), FilterSource::None);
        assert_eq!(source(&with(ProfileType::RuntimeDefault, "")), FilterSource::Default);
        assert_eq!(source(&with(ProfileType::Unconfined, "")), FilterSource::None);
        assert_eq!(
            source(&with(ProfileType::Localhost, "/p.json")),
            FilterSource::File("/p.json".into())
        );
        let mut privileged = with(ProfileType::RuntimeDefault, "");
        privileged.privileged = true;
        assert_eq!(source(&privileged), FilterSource::None);
        assert!(filter(&FilterSource::File("/no/such".into()), 0).is_err());
    }

    #[test]
    fn apparmor_where_the_kernel_has_it() {
        let with = |profile_type: ProfileType, localhost_ref: &str| LinuxContainerSecurityContext {
            apparmor: Some(SecurityProfile {
                profile_type: profile_type as i32,
                localhost_ref: localhost_ref.to_string(),
            }),
            ..LinuxContainerSecurityContext::default()
        };
        let loaded = Some("docker-default (enforce)\nmine (complain)\n");
        let planned = |context: &LinuxContainerSecurityContext, loaded: Option<&str>| apparmor(context, loaded, "own");
        let default = with(ProfileType::RuntimeDefault, "");
        assert_eq!(planned(&default, loaded), Ok(Some("docker-default".to_string())));
        assert_eq!(
            planned(&default, Some("docker-default (enforce)\nown (enforce)\n")),
            Ok(Some("own".to_string()))
        );
        assert_eq!(planned(&default, None), Ok(None));
        // Without a wish it is the default, too, but for privileged containers.
        let mut nothing = LinuxContainerSecurityContext::default();
        assert_eq!(planned(&nothing, loaded), Ok(Some("docker-default".to_string())));
        nothing.privileged = true;
        assert_eq!(planned(&nothing, loaded), Ok(None));
        assert_eq!(
            planned(&with(ProfileType::Localhost, "localhost/mine"), loaded),
            Ok(Some("mine".to_string()))
        );
        assert!(planned(&with(ProfileType::Localhost, "other"), loaded).is_err());
        assert!(planned(&with(ProfileType::Localhost, "mine"), None).is_err());
        assert_eq!(planned(&with(ProfileType::Unconfined, ""), loaded), Ok(None));
    }
}
