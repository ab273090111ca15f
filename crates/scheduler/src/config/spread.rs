//! PodTopologySpreadArgs: constraints for pods that have none of their own.

use orlop_api::{Cursor, Path, names};

use super::problem::Problems;
use super::read::Fields;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

impl WhenUnsatisfiable {
    pub fn name(self) -> &'static str {
        match self {
            WhenUnsatisfiable::DoNotSchedule => "DoNotSchedule",
            WhenUnsatisfiable::ScheduleAnyway => "ScheduleAnyway",
        }
    }
}

/// A default constraint. Its selector is deduced for each pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultConstraint {
    pub max_skew: i64,
    pub topology_key: String,
    pub when_unsatisfiable: WhenUnsatisfiable,
    pub min_domains: Option<i64>,
    /// `Honor` or `Ignore`, if given.
    pub node_affinity_policy: Option<String>,
    pub node_taints_policy: Option<String>,
    pub match_label_keys: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultingType {
    /// `system_constraints`.
    #[default]
    System,
    /// `PodTopologySpreadArgs::default_constraints`.
    List,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTopologySpreadArgs {
    /// Empty unless `defaulting_type` is `List`.
    pub default_constraints: Vec<DefaultConstraint>,
    pub defaulting_type: DefaultingType,
}

impl PodTopologySpreadArgs {
    /// The constraints of pods that have none: the listed ones, or those of the system.
    pub fn constraints(&self) -> Vec<DefaultConstraint> {
        match self.defaulting_type {
            DefaultingType::System => system_constraints(),
            DefaultingType::List => self.default_constraints.clone(),
        }
    }
}

/// Spread over nodes and zones, loosely.
pub fn system_constraints() -> Vec<DefaultConstraint> {
    let constraint = |max_skew, topology_key: &str| DefaultConstraint {
        max_skew,
        topology_key: topology_key.to_string(),
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        min_domains: None,
        node_affinity_policy: None,
        node_taints_policy: None,
        match_label_keys: vec![],
    };
    vec![
        constraint(3, "kubernetes.io/hostname"),
        constraint(5, "topology.kubernetes.io/zone"),
    ]
}

pub(super) fn read(f: &mut Fields<'_>, p: &mut Problems) -> PodTopologySpreadArgs {
    let kind = f.filled("defaultingType", p).unwrap_or_else(|| "System".to_string());
    let items = f.list("defaultConstraints", p);
    let path = f.path().field("defaultingType");
    let defaulting_type = match kind.as_str() {
        "System" => {
            if !items.is_empty() {
                p.invalid(&path, kind, "when .defaultConstraints are not empty");
            }
            DefaultingType::System
        }
        "List" => DefaultingType::List,
        _ => {
            // Kubernetes lists the two in the order of their declaration.
            p.not_supported(&path, &kind, &["System", "List"]);
            DefaultingType::List
        }
    };
    let mut default_constraints: Vec<DefaultConstraint> = Vec::new();
    for item in items {
        let path = item.path().clone();
        let constraint = constraint(item, p);
        let same = |c: &DefaultConstraint| {
            (&c.topology_key, c.when_unsatisfiable) == (&constraint.topology_key, constraint.when_unsatisfiable)
        };
        if default_constraints.iter().any(same) {
            let pair = format!(
                "{{{}, {}}}",
                constraint.topology_key,
                constraint.when_unsatisfiable.name()
            );
            p.duplicate(&path, pair);
        }
        default_constraints.push(constraint);
    }
    PodTopologySpreadArgs {
        default_constraints,
        defaulting_type,
    }
}

fn constraint(item: Cursor<'_>, p: &mut Problems) -> DefaultConstraint {
    let mut f = Fields::open(item, p);
    let path = f.path().clone();
    let max_skew = f.int("maxSkew", p).unwrap_or(0);
    if max_skew <= 0 {
        p.invalid(&path.field("maxSkew"), max_skew, "not in valid range (0, inf)");
    }
    let topology_key = f.text("topologyKey", p).unwrap_or_default();
    if topology_key.is_empty() {
        p.required(&path.field("topologyKey"), "can not be empty");
    } else {
        let messages = names::qualified_name(&topology_key);
        p.invalid_each(&path.field("topologyKey"), &topology_key, messages);
    }
    let when = f.text("whenUnsatisfiable", p).unwrap_or_default();
    let when_unsatisfiable = action(&when, &path.field("whenUnsatisfiable"), p);
    if f.at("labelSelector").exists() {
        let text = "constraint must not define a selector, as they deduced for each pod";
        p.forbidden(&path.field("labelSelector"), text);
    }
    let constraint = DefaultConstraint {
        max_skew: max_skew.into(),
        topology_key,
        when_unsatisfiable,
        min_domains: f.int("minDomains", p).map(i64::from),
        node_affinity_policy: policy(&mut f, "nodeAffinityPolicy", p),
        node_taints_policy: policy(&mut f, "nodeTaintsPolicy", p),
        match_label_keys: f.texts("matchLabelKeys", p),
    };
    if constraint.min_domains.is_some_and(|n| n <= 0) {
        p.invalid(
            &path.field("minDomains"),
            constraint.min_domains,
            "must be greater than 0",
        );
    }
    f.close(p);
    constraint
}

fn action(text: &str, path: &Path, p: &mut Problems) -> WhenUnsatisfiable {
    match text {
        "DoNotSchedule" => return WhenUnsatisfiable::DoNotSchedule,
        "ScheduleAnyway" => {}
        "" => p.required(path, "can not be empty"),
        _ => p.not_supported(path, text, &["DoNotSchedule", "ScheduleAnyway"]),
    }
    WhenUnsatisfiable::ScheduleAnyway
}

fn policy(f: &mut Fields<'_>, name: &'static str, p: &mut Problems) -> Option<String> {
    let policy = f.filled(name, p)?;
    if !["Honor", "Ignore"].contains(&policy.as_str()) {
        p.not_supported(&f.path().field(name), &policy, &["Honor", "Ignore"]);
    }
    Some(policy)
}
