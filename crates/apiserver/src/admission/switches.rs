//! Which plugins run, and what they are told: `--enable-admission-plugins`, `--disable-admission-plugins` and the flags of
//! single plugins.

use orlop_api::Value;

use super::{ALL, Plugin, PodSecurityConfiguration, resource_quota};

/// Plugins that are on by default upstream and are no rows of [`ALL`]: webhooks and policies act elsewhere, the rest on what
/// is always so here.
const ELSEWHERE: &[&str] = &[
    "ClusterTrustBundleAttest",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
];

/// Those that are off by default upstream and not here at all, each with what to do instead.
const ABSENT: &[(&str, &str)] = &[
    ("AlwaysAdmit", "it does nothing"),
    ("AlwaysDeny", "it is of no use"),
    ("AlwaysPullImages", "set imagePullPolicy in pods"),
    ("DenyServiceExternalIPs", "use a ValidatingAdmissionPolicy"),
    ("EventRateLimit", "leave it out"),
    ("ExtendedResourceToleration", "set tolerations in pods"),
    ("ImagePolicyWebhook", "use a validating webhook"),
    ("LimitPodHardAntiAffinityTopology", "use a ValidatingAdmissionPolicy"),
    ("NamespaceAutoProvision", "create namespaces first"),
    ("NamespaceExists", "NamespaceLifecycle does what it did"),
    ("OwnerReferencesPermissionEnforcement", "leave it out"),
    (
        "PodNodeSelector",
        "set node selectors in pods, or use a MutatingAdmissionPolicy",
    ),
    ("PodTolerationRestriction", "use a ValidatingAdmissionPolicy"),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    #[error("admission-control plugin {0:?} is unknown")]
    Unknown(String),
    #[error("admission-control plugin {0:?} is not available here: {1}")]
    Absent(String, &'static str),
    #[error("admission-control plugin {0:?} can't be switched off here")]
    Elsewhere(String),
    #[error("configuration of the admission plugin {0:?}: {1}")]
    Configuration(String, String),
    #[error("{0:?} in enable-admission-plugins and disable-admission-plugins overlapped")]
    Overlap(String),
}

/// What is switched, and on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    off: Vec<&'static str>,
    pub not_ready_toleration_seconds: i64,
    pub unreachable_toleration_seconds: i64,
    pub pod_security: PodSecurityConfiguration,
    /// Whether containers may be privileged.
    pub allow_privileged: bool,
}

impl Default for Switches {
    fn default() -> Switches {
        Switches {
            off: vec![],
            not_ready_toleration_seconds: 300,
            unreachable_toleration_seconds: 300,
            pod_security: PodSecurityConfiguration::default(),
            allow_privileged: true,
        }
    }
}

impl Switches {
    /// By Kubernetes' names. All that there are are on unless they are switched off.
    pub fn set_plugins(&mut self, enable: &[String], disable: &[String]) -> Result<(), SwitchError> {
        for name in enable {
            if disable.contains(name) {
                return Err(SwitchError::Overlap(name.clone()));
            }
            if let Some((_, advice)) = ABSENT.iter().find(|(absent, _)| absent == name) {
                return Err(SwitchError::Absent(name.clone(), advice));
            }
            if !is_elsewhere(name) {
                row(name)?;
            }
        }
        for name in disable {
            if ABSENT.iter().any(|(absent, _)| absent == name) {
                continue;
            }
            match row(name) {
                Ok(plugin) => self.off.push(plugin.name),
                Err(_) if is_elsewhere(name) => return Err(SwitchError::Elsewhere(name.clone())),
                Err(unknown) => return Err(unknown),
            }
        }
        Ok(())
    }

    /// One plugin's part of `--admission-control-config-file`.
    pub fn configure(&mut self, plugin: &str, configuration: &Value) -> Result<(), SwitchError> {
        if plugin != "PodSecurity" {
            let known =
                is_elsewhere(plugin) || row(plugin).is_ok() || ABSENT.iter().any(|(absent, _)| *absent == plugin);
            return Err(match known {
                true => SwitchError::Configuration(plugin.into(), "only PodSecurity can be configured here".into()),
                false => SwitchError::Unknown(plugin.into()),
            });
        }
        let read = PodSecurityConfiguration::read(configuration);
        self.pod_security = read.map_err(|e| SwitchError::Configuration(plugin.into(), e.to_string()))?;
        Ok(())
    }

    pub(super) fn enabled(&self) -> impl Iterator<Item = &'static Plugin> {
        ALL.iter().copied().filter(|plugin| self.is_on(plugin))
    }

    pub(super) fn is_on(&self, plugin: &Plugin) -> bool {
        !self.off.contains(&plugin.name)
    }
}

fn is_elsewhere(name: &str) -> bool {
    ELSEWHERE.contains(&name)
}

fn row(name: &str) -> Result<&'static Plugin, SwitchError> {
    let mut all = ALL.iter().copied().chain([&resource_quota::PLUGIN]);
    let found = all.find(|plugin| plugin.name == name);
    found.ok_or_else(|| SwitchError::Unknown(name.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_switched_by_name() {
        let set = |enable: &[&str], disable: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
            let mut switches = Switches::default();
            switches.set_plugins(&owned(enable), &owned(disable)).map(|()| switches)
        };
        let names = |switches: &Switches| switches.enabled().map(|plugin| plugin.name).collect::<Vec<_>>();
        let all = names(&Switches::default());
        assert_eq!(all.len(), ALL.len());
        let without = set(
            &["NodeRestriction", "MutatingAdmissionWebhook"],
            &["ServiceAccount", "AlwaysPullImages"],
        )
        .unwrap();
        assert!(!names(&without).contains(&"ServiceAccount"));
        assert_eq!(names(&without).len(), all.len() - 1);
        for (enable, disable, message) in [
            (
                &["Nothing"][..],
                &[][..],
                r#"admission-control plugin "Nothing" is unknown"#,
            ),
            (&[], &["Nothing"], r#"admission-control plugin "Nothing" is unknown"#),
            (
                &["AlwaysPullImages"],
                &[],
                r#"admission-control plugin "AlwaysPullImages" is not available here: set imagePullPolicy in pods"#,
            ),
            (
                &["Priority"],
                &["Priority"],
                r#""Priority" in enable-admission-plugins and disable-admission-plugins overlapped"#,
            ),
            (
                &[],
                &["ValidatingAdmissionWebhook"],
                r#"admission-control plugin "ValidatingAdmissionWebhook" can't be switched off here"#,
            ),
        ] {
            assert_eq!(set(enable, disable).unwrap_err().to_string(), message);
        }
    }
}
