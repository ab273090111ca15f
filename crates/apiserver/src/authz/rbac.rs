//! RBAC: roles and bindings, compiled into an index by user and group. The index is rebuilt when one of the four
//! resources has changed and somebody asks; a check then looks at the rules of the asker's own grants only.
//! Upstream: plugin/pkg/auth/authorizer/rbac, pkg/registry/rbac/validation (v1.36).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use super::aggregate::effective_rules;
use super::{Attributes, Decision, PolicyRule};
use crate::authn::{UserInfo, service_account_username};
use crate::lookup::{ObjectLookup, items, text};

pub(super) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
pub(super) const ROLES: &str = "roles.rbac.authorization.k8s.io";
const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
const ROLE_BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";

#[derive(Default)]
pub struct Rbac {
    compiled: RwLock<Option<Compiled>>,
}

/// The index with the generations of what it was made from: roles and cluster roles, bindings and cluster bindings.
/// Roles are kept beside it, because bindings change far more often.
struct Compiled {
    roles_stamp: [u64; 2],
    bindings_stamp: [u64; 2],
    roles: Arc<Roles>,
    index: Arc<Index>,
}

#[derive(Default)]
struct Index {
    /// Service accounts are here under their user names.
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

/// What one user or one group has been granted.
#[derive(Default)]
struct Grants {
    everywhere: Vec<Grant>,
    by_namespace: HashMap<String, Vec<Grant>>,
}

/// A binding, as one of its subjects sees it.
struct Grant {
    /// Position among the bindings, and of the subject in its binding: a binding counts once for its first subject.
    order: (usize, usize),
    /// "RBAC: allowed by …"
    reason: Arc<str>,
    /// The rules of the role, or why there are none.
    rules: Result<Arc<[PolicyRule]>, Arc<str>>,
}

/// All rules somebody has in a namespace, and what was wrong with some of the bindings.
#[derive(Clone, Debug, Default)]
pub struct RulesOf {
    pub rules: Vec<PolicyRule>,
    pub errors: Vec<String>,
}

impl Rbac {
    pub fn authorize(&self, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Decision {
        let index = self.index(lookup);
        let mut errors: Vec<(usize, &str)> = Vec::new();
        for grant in index.grants(attrs.user, attrs.namespace) {
            match &grant.rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attrs)) => {
                    return Decision::allow(grant.reason.clone());
                }
                Ok(_) => {}
                Err(error) => errors.push((grant.order.0, error)),
            }
        }
        errors.sort_unstable();
        let errors: Vec<String> = errors.into_iter().map(|(_, error)| error.to_string()).collect();
        match joined(&errors) {
            Some(errors) => Decision::no_opinion(format!("RBAC: {errors}")),
            None => Decision::default(),
        }
    }

    /// Everything that `user` may do in a namespace (and everywhere), binding by binding.
    pub fn rules_of(&self, user: &UserInfo, namespace: &str, lookup: &dyn ObjectLookup) -> RulesOf {
        let index = self.index(lookup);
        let mut grants: Vec<&Grant> = index.grants(user, namespace).collect();
        grants.sort_by_key(|grant| grant.order);
        grants.dedup_by_key(|grant| grant.order.0);
        let mut result = RulesOf::default();
        for grant in grants {
            match &grant.rules {
                Ok(rules) => result.rules.extend(rules.iter().cloned()),
                Err(error) => result.errors.push(error.to_string()),
            }
        }
        result
    }

    fn index(&self, lookup: &dyn ObjectLookup) -> Arc<Index> {
        // Generations are read before the objects: what is compiled is at least as new as its stamp says.
        let roles_stamp = [CLUSTER_ROLES, ROLES].map(|r| lookup.generation(r));
        let bindings_stamp = [CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS].map(|r| lookup.generation(r));
        let mut known_roles = None;
        if let Some(compiled) = &*self.compiled.read()
            && compiled.roles_stamp == roles_stamp
        {
            if compiled.bindings_stamp == bindings_stamp {
                return compiled.index.clone();
            }
            known_roles = Some(compiled.roles.clone());
        }
        // Two askers may compile at once; the later write wins, and if it was the older one, the next asker notices.
        let roles = known_roles.unwrap_or_else(|| {
            let (cluster, local) = (lookup.list(CLUSTER_ROLES, None), lookup.list(ROLES, None));
            Arc::new(Roles::compile(&cluster, &local))
        });
        let index = Arc::new(Index::build(&roles, lookup));
        *self.compiled.write() = Some(Compiled {
            roles_stamp,
            bindings_stamp,
            roles,
            index: index.clone(),
        });
        index
    }
}

/// Several errors as one text, each once; none if there are none.
pub(super) fn joined(errors: &[String]) -> Option<String> {
    let mut unique: Vec<&str> = Vec::new();
    for error in errors {
        if !unique.contains(&error.as_str()) {
            unique.push(error);
        }
    }
    match unique.as_slice() {
        [] => None,
        [one] => Some(one.to_string()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

impl Index {
    /// The grants that apply to a user, in no order that matters; a binding may show up under several of its subjects.
    fn grants<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let own = self.users.get(&user.name);
        let groups = user.groups.iter().filter_map(|group| self.groups.get(group));
        own.into_iter().chain(groups).flat_map(move |grants| {
            let local = match namespace {
                "" => None,
                namespace => grants.by_namespace.get(namespace),
            };
            grants.everywhere.iter().chain(local.into_iter().flatten())
        })
    }

    fn build(roles: &Roles, lookup: &dyn ObjectLookup) -> Index {
        let mut index = Index::default();
        let bindings = lookup
            .list(CLUSTER_ROLE_BINDINGS, None)
            .into_iter()
            .map(|b| (b, "ClusterRoleBinding"));
        let bindings = bindings.chain(lookup.list(ROLE_BINDINGS, None).into_iter().map(|b| (b, "RoleBinding")));
        for (position, (binding, kind)) in bindings.enumerate() {
            index.add(position, &binding, kind, roles);
        }
        index
    }

    fn add(&mut self, position: usize, binding: &Value, kind: &str, roles: &Roles) {
        let namespace = text(binding, &["metadata", "namespace"]);
        let rules = roles.resolve(&binding["roleRef"], namespace);
        for (number, subject) in items(binding, &["subjects"]).iter().enumerate() {
            let name = text(subject, &["name"]);
            let grants = match text(subject, &["kind"]) {
                "User" => self.users.entry(name.to_string()).or_default(),
                "Group" => self.groups.entry(name.to_string()).or_default(),
                "ServiceAccount" => match service_account_namespace(subject, namespace) {
                    "" => continue,
                    own => self.users.entry(service_account_username(own, name)).or_default(),
                },
                _ => continue,
            };
            let grant = Grant {
                order: (position, number),
                reason: format!("RBAC: allowed by {}", describe(binding, kind, subject)).into(),
                rules: rules.clone(),
            };
            match namespace {
                "" => grants.everywhere.push(grant),
                namespace => grants
                    .by_namespace
                    .entry(namespace.to_string())
                    .or_default()
                    .push(grant),
            }
        }
    }
}

/// A service account without a namespace is taken to be of the binding's.
fn service_account_namespace<'a>(subject: &'a Value, binding_namespace: &'a str) -> &'a str {
    match text(subject, &["namespace"]) {
        "" => binding_namespace,
        own => own,
    }
}

fn describe(binding: &Value, kind: &str, subject: &Value) -> String {
    let namespace = text(binding, &["metadata", "namespace"]);
    let mut name = text(binding, &["metadata", "name"]).to_string();
    if !namespace.is_empty() {
        name = format!("{name}/{namespace}");
    }
    let (subject_kind, mut subject_name) = (text(subject, &["kind"]), text(subject, &["name"]).to_string());
    if subject_kind == "ServiceAccount" {
        subject_name = format!("{subject_name}/{}", service_account_namespace(subject, namespace));
    }
    let (role_kind, role) = (text(binding, &["roleRef", "kind"]), text(binding, &["roleRef", "name"]));
    format!("{kind} {name:?} of {role_kind} {role:?} to {subject_kind} {subject_name:?}")
}

/// Compiled rules of all roles.
struct Roles {
    cluster: HashMap<String, Arc<[PolicyRule]>>,
    /// By namespace and name.
    local: HashMap<(String, String), Arc<[PolicyRule]>>,
}

impl Roles {
    fn compile(cluster: &[Arc<Value>], local: &[Arc<Value>]) -> Roles {
        let key = |role: &Value| {
            let part = |name| text(role, &["metadata", name]).to_string();
            (part("namespace"), part("name"))
        };
        Roles {
            cluster: effective_rules(cluster)
                .into_iter()
                .map(|(name, rules)| (name.to_string(), rules.into()))
                .collect(),
            local: local
                .iter()
                .map(|role| (key(role), PolicyRule::all_of(role).into()))
                .collect(),
        }
    }

    fn resolve(&self, reference: &Value, namespace: &str) -> Result<Arc<[PolicyRule]>, Arc<str>> {
        let name = text(reference, &["name"]);
        let (found, missing) = match text(reference, &["kind"]) {
            "ClusterRole" => (self.cluster.get(name), "clusterrole"),
            "Role" => (self.local.get(&(namespace.to_string(), name.to_string())), "role"),
            other => return Err(format!("unsupported role reference kind: {other:?}").into()),
        };
        found
            .cloned()
            .ok_or_else(|| format!("{missing}.rbac.authorization.k8s.io {name:?} not found").into())
    }
}

/// A role reference that stands for no role.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UnresolvedRole(Arc<str>);

/// The rules that a binding's role reference stands for, for escalation checks.
pub(super) fn referenced_rules(
    reference: &Value,
    namespace: &str,
    lookup: &dyn ObjectLookup,
) -> Result<Vec<PolicyRule>, UnresolvedRole> {
    let (cluster, local) = match text(reference, &["kind"]) {
        "Role" => (
            Vec::new(),
            lookup
                .get(ROLES, namespace, text(reference, &["name"]))
                .into_iter()
                .collect(),
        ),
        _ => (lookup.list(CLUSTER_ROLES, None), Vec::new()),
    };
    let rules = Roles::compile(&cluster, &local).resolve(reference, namespace);
    rules.map(|rules| rules.to_vec()).map_err(UnresolvedRole)
}

#[cfg(test)]
mod tests;
