//! Cluster roles that are the sum of others: those with an aggregation rule have the rules of all roles it selects.
// Upstream: pkg/controller/clusterroleaggregation (v1.36). Differs: aggregated roles that select one another can't keep
// rules alive that no other role has.

use std::collections::BTreeSet;
use std::sync::Arc;

use orlop_api::selector::LabelSelector;
use serde_json::{Value, json};

use crate::objects::ClusterRole;
use crate::ownership::matches;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer, precondition};

pub(crate) const DEF: Def = Def {
    name: "clusterrole-aggregation-controller",
    account: "clusterrole-aggregation-controller",
    on_by_default: true,
    start,
};

struct Controller {
    roles: Cache<ClusterRole>,
}

fn start(setup: &Setup) {
    let queue = setup.queue("ClusterRoleAggregator");
    let roles = setup.cache::<ClusterRole>();
    let (wake, known) = (queue.clone(), roles.clone());
    // Any role may be part of any other; those that are sums are few.
    roles.on_change(move |_, _| {
        let all = known.list().into_iter();
        let sums = all.filter(|role| role.aggregation_rule.is_some());
        sums.for_each(|role| wake.add(Key::from_object(&*role)));
    });
    setup.run(queue, setup.settings.concurrent_syncs, Controller { roles });
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(role) = self.roles.at(key).filter(|role| !role.metadata.is_deleted()) else {
            return Ok(Next::Done);
        };
        if let Some(rules) = plan(&role, &self.roles.list()) {
            let patch = json!({"metadata": precondition(&role.metadata), "rules": rules});
            writer.patch::<ClusterRole>(&role.metadata, &patch).await?;
        }
        Ok(Next::Done)
    }
}

/// The rules that the role should have, if it is a sum and has not.
fn plan(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Option<Vec<Value>> {
    role.aggregation_rule.as_ref()?;
    let mut parts = BTreeSet::new();
    gather(role, all, &mut parts);
    let mut rules: Vec<Value> = vec![];
    for part in all
        .iter()
        .filter(|r| r.aggregation_rule.is_none() && parts.contains(&r.metadata.name))
    {
        for rule in &part.rules {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    let same = rules.len() == role.rules.len() && rules.iter().all(|rule| role.rules.contains(rule));
    (!same).then_some(rules)
}

/// The names of all roles that the role takes in, through other sums as well.
fn gather(role: &ClusterRole, all: &[Arc<ClusterRole>], parts: &mut BTreeSet<String>) {
    let Some(rule) = &role.aggregation_rule else { return };
    let selectors = rule.cluster_role_selectors.iter();
    let selectors: Vec<LabelSelector> = selectors.filter_map(|s| LabelSelector::from_object(s).ok()).collect();
    for other in all {
        let selected = selectors.iter().any(|selector| matches(selector, &other.metadata));
        if selected && parts.insert(other.metadata.name.clone()) {
            gather(other, all, parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str, label: &str, verbs: &[&str]) -> Value {
        let rules: Vec<Value> = verbs.iter().map(|verb| json!({"verbs": [verb]})).collect();
        json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules})
    }

    fn sum(name: &str, label: &str, selected: &str, verbs: &[&str]) -> Value {
        let mut sum = role(name, label, verbs);
        sum["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {selected: "true"}}]});
        sum
    }

    #[test]
    fn sums_have_the_rules_of_their_parts() {
        let all: Vec<Arc<ClusterRole>> = [
            sum("admin", "", "to-admin", &["bind"]),
            role("a", "to-admin", &["bind", "update"]),
            sum("edit", "to-admin", "to-edit", &["stale"]),
            role("b", "to-edit", &["update", "get"]),
            sum("right", "", "to-edit", &["get", "update"]),
            sum("circle", "to-circle", "to-circle", &["kept alive"]),
            sum("empty", "", "to-nobody", &[]),
        ]
        .into_iter()
        .map(|value| Arc::new(serde_json::from_value(value).unwrap()))
        .collect();
        let planned = |name: &str| {
            let role = all.iter().find(|r| r.metadata.name == name).unwrap();
            plan(role, &all).map(|rules| {
                rules
                    .iter()
                    .map(|r| r["verbs"][0].as_str().unwrap().to_string())
                    .collect()
            })
        };
        let verbs = |verbs: &[&str]| -> Option<Vec<String>> { Some(verbs.iter().map(ToString::to_string).collect()) };
        assert_eq!(planned("admin"), verbs(&["bind", "update", "get"]));
        assert_eq!(planned("edit"), verbs(&["update", "get"]));
        assert_eq!(planned("circle"), verbs(&[]));
        for done in ["a", "right", "empty"] {
            assert_eq!(planned(done), None, "{done}");
        }
    }
}
