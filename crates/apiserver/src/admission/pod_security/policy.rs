//! Which level, in which version, a namespace asks for: its `pod-security.kubernetes.io/…` labels.
//! Upstream: pod-security-admission/api (v1.36).

use std::fmt;

use orlop_api::{Path, ProblemKind, Problems, Value};

/// From lax to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub(super) fn parse(word: &str) -> Result<Level, &'static str> {
        match word {
            "privileged" => Ok(Level::Privileged),
            "baseline" => Ok(Level::Baseline),
            "restricted" => Ok(Level::Restricted),
            _ => Err("must be one of privileged, baseline, restricted"),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        })
    }
}

/// The minor version of Kubernetes whose rules count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    Minor(u32),
    Latest,
}

impl Version {
    pub(super) fn parse(word: &str) -> Result<Version, &'static str> {
        if word == "latest" {
            return Ok(Version::Latest);
        }
        let digits = word.strip_prefix("v1.").unwrap_or("");
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        match digits.parse() {
            Ok(minor) if plain => Ok(Version::Minor(minor)),
            _ => Err("must be \"latest\" or \"v1.x\""),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Minor(minor) => write!(f, "v1.{minor}"),
            Version::Latest => f.write_str("latest"),
        }
    }
}

/// `restricted:v1.30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standard {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// What happens to pods that break a standard: refused, noted in the audit log, warned about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub enforce: Standard,
    pub audit: Standard,
    pub warn: Standard,
}

pub(super) const ANYTHING: Standard = Standard {
    level: Level::Privileged,
    version: Version::Latest,
};

const PREFIX: &str = "pod-security.kubernetes.io/";

struct Labels<'a> {
    labels: &'a Value,
    problems: Problems,
}

impl Labels<'_> {
    /// The value of a label, if there is one; what can't be read is a problem.
    fn read<T>(&mut self, name: &str, parse: fn(&str) -> Result<T, &'static str>) -> Option<Result<T, ()>> {
        let key = format!("{PREFIX}{name}");
        let word = self.labels.get(&key)?.as_str().unwrap_or("");
        Some(parse(word).map_err(|why| {
            let path = Path::default().field("metadata").field("labels").key(&key);
            self.problems
                .push(ProblemKind::Invalid, &path, Some(format!("{word:?}")), why);
        }))
    }

    fn version(&mut self, name: &str) -> Option<Version> {
        self.read(name, Version::parse)
            .map(|version| version.unwrap_or(Version::Latest))
    }
}

/// The policy of a namespace, that of the defaults where it says nothing, and what is wrong with its labels. Who can't spell the level to enforce gets the strictest;
/// misspelled levels to audit and warn about are not used.
pub(super) fn of_namespace(namespace: &Value, defaults: Policy) -> (Policy, Problems) {
    let mut policy = defaults;
    let mut labels = Labels {
        labels: &namespace["metadata"]["labels"],
        problems: Problems::default(),
    };
    let enforce = labels.read("enforce", Level::parse);
    if let Some(level) = enforce {
        policy.enforce.level = level.unwrap_or(Level::Restricted);
    }
    if let Some(version) = labels.version("enforce-version") {
        policy.enforce.version = version;
    }
    if let Some(level) = labels.read("audit", Level::parse) {
        policy.audit.level = level.unwrap_or(Level::Privileged);
    }
    if let Some(version) = labels.version("audit-version") {
        policy.audit.version = version;
    }
    let warn = labels.read("warn", Level::parse);
    if let Some(level) = warn {
        policy.warn.level = level.unwrap_or(Level::Privileged);
    }
    let warn_version = labels.version("warn-version");
    if let Some(version) = warn_version {
        policy.warn.version = version;
    }
    // Who makes a workload whose pods will be refused is told at once.
    if warn.is_none() && matches!(enforce, Some(Ok(_))) && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        policy.warn.version = warn_version.unwrap_or(policy.enforce.version);
    }
    (policy, labels.problems)
}

impl Policy {
    pub(super) fn allows_anything(&self) -> bool {
        [self.enforce, self.audit, self.warn]
            .iter()
            .all(|s| s.level == Level::Privileged)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_make_a_policy() {
        let anything = Policy {
            enforce: ANYTHING,
            audit: ANYTHING,
            warn: ANYTHING,
        };
        let shown = |labels: &[(&str, &str)]| {
            let labels: serde_json::Map<String, Value> = labels
                .iter()
                .map(|(k, v)| (format!("{PREFIX}{k}"), (*v).into()))
                .collect();
            let (p, problems) = of_namespace(&json!({"metadata": {"labels": labels}}), anything);
            let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            (format!("{} {} {}", p.enforce, p.audit, p.warn), problems.join("; "))
        };
        let cases: &[(&[(&str, &str)], &str, &str)] = &[
            (&[], "privileged:latest privileged:latest privileged:latest", ""),
            (
                &[("enforce", "baseline")],
                "baseline:latest privileged:latest baseline:latest",
                "",
            ),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.30")],
                "restricted:v1.30 privileged:latest restricted:v1.30",
                "",
            ),
            (
                &[
                    ("enforce", "baseline"),
                    ("enforce-version", "v1.9"),
                    ("warn-version", "v1.22"),
                ],
                "baseline:v1.9 privileged:latest baseline:v1.22",
                "",
            ),
            (
                &[
                    ("enforce", "restricted"),
                    ("warn", "privileged"),
                    ("audit", "baseline"),
                    ("audit-version", "v1.0"),
                ],
                "restricted:latest baseline:v1.0 privileged:latest",
                "",
            ),
            (
                &[
                    ("enforce", "strict"),
                    ("audit", "loose"),
                    ("warn", "Baseline"),
                    ("enforce-version", "v1.01"),
                    ("warn-version", "1.20"),
                ],
                "restricted:latest privileged:latest privileged:latest",
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted; \
                 metadata.labels[pod-security.kubernetes.io/enforce-version]: Invalid value: \"v1.01\": must be \"latest\" or \"v1.x\"; \
                 metadata.labels[pod-security.kubernetes.io/audit]: Invalid value: \"loose\": must be one of privileged, baseline, restricted; \
                 metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"Baseline\": must be one of privileged, baseline, restricted; \
                 metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.20\": must be \"latest\" or \"v1.x\"",
            ),
            (
                &[("enforce", "")],
                "restricted:latest privileged:latest privileged:latest",
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"\": must be one of privileged, baseline, restricted",
            ),
        ];
        for (labels, policy, problems) in cases {
            assert_eq!(shown(labels), (policy.to_string(), problems.to_string()), "{labels:?}");
        }
    }
}
