//! Keeps the plan up to date with pods, policies and namespaces, and says what changed: an object costs what it touches.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use orlop_api::objects::Labels;

use super::facts::{self, Direction, ObjectName, PodFacts, PolicyFacts};
use super::objects::{Namespace, NetworkPolicy, Pod};
use super::plan::{Member, PlannedSet, PodPlan, PolicyPlan, SetContent, SetName, sets_of};

/// What differs from what was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyChanges {
    pub pods: BTreeSet<ObjectName>,
    pub policies: BTreeSet<ObjectName>,
    /// Sets that came or went.
    pub sets: BTreeSet<SetName>,
    pub members: BTreeSet<(SetName, Member)>,
    /// Addresses that have another pod, or one with other policies.
    pub addresses: BTreeSet<IpAddr>,
}

impl PolicyChanges {
    pub(super) fn is_empty(&self) -> bool {
        *self == PolicyChanges::default()
    }
}

pub(super) struct Planner {
    node: String,
    /// By namespace and name.
    pods: BTreeMap<Arc<str>, BTreeMap<Arc<str>, PodFacts>>,
    /// Those of this node.
    local: BTreeSet<ObjectName>,
    /// Addresses of pods of this node that are not in their status yet.
    attached: BTreeMap<ObjectName, Vec<IpAddr>>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    policies: BTreeMap<ObjectName, Arc<PolicyFacts>>,
    /// How many pods of this node a policy selects.
    selected: BTreeMap<ObjectName, usize>,
    plan: PolicyPlan,
    changes: PolicyChanges,
}

impl Planner {
    pub(super) fn new(node: &str) -> Planner {
        Planner {
            node: node.to_string(),
            pods: BTreeMap::new(),
            local: BTreeSet::new(),
            attached: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            policies: BTreeMap::new(),
            selected: BTreeMap::new(),
            plan: PolicyPlan::default(),
            changes: PolicyChanges::default(),
        }
    }

    pub(super) fn plan(&self) -> &PolicyPlan {
        &self.plan
    }

    pub(super) fn take_changes(&mut self) -> PolicyChanges {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    pub(super) fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    pub(super) fn knows_pod(&self, name: &ObjectName) -> bool {
        self.pod(name).is_some()
    }

    fn pod(&self, name: &ObjectName) -> Option<&PodFacts> {
        self.pods.get(&name.namespace)?.get(&name.name)
    }

    pub(super) fn apply_pod(&mut self, object: &Pod) {
        let name = ObjectName::new(&object.metadata.namespace, &object.metadata.name);
        let facts = facts::pod(object, &self.node);
        self.set_pod(name, facts);
    }

    pub(super) fn forget_pod(&mut self, namespace: &str, name: &str) {
        self.set_pod(ObjectName::new(namespace, name), None);
    }

    /// All that there are.
    pub(super) fn replace_pods(&mut self, objects: &[Pod]) {
        let names = objects
            .iter()
            .map(|pod| ObjectName::new(&pod.metadata.namespace, &pod.metadata.name));
        let names: BTreeSet<ObjectName> = names.collect();
        let known = self.pods.iter().flat_map(|(namespace, pods)| {
            pods.keys().map(|name| ObjectName {
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
            })
        });
        let gone: Vec<ObjectName> = known.filter(|name| !names.contains(name)).collect();
        gone.into_iter().for_each(|name| self.set_pod(name, None));
        objects.iter().for_each(|pod| self.apply_pod(pod));
    }

    /// The runtime of this node gave a pod these addresses, whatever its status says yet; empty: it took them back.
    pub(super) fn set_attached(&mut self, name: &ObjectName, ips: &[IpAddr]) {
        match ips.is_empty() {
            true => drop(self.attached.remove(name)),
            false => drop(self.attached.insert(name.clone(), ips.to_vec())),
        }
        if let Some(facts) = self.pod(name).cloned() {
            self.set_pod(name.clone(), Some(facts));
        }
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = (&ObjectName, &[IpAddr])> {
        self.attached.iter().map(|(name, ips)| (name, &ips[..]))
    }

    fn set_pod(&mut self, name: ObjectName, mut facts: Option<PodFacts>) {
        if let Some(facts) = facts.as_mut().filter(|facts| facts.is_local) {
            let attached = self.attached.get(&name);
            facts.ips.clone_from(attached.unwrap_or(&facts.reported_ips));
        }
        let before = self.pod(&name).cloned();
        if before == facts {
            return;
        }
        self.change_members(&name, before.as_ref(), facts.as_ref());
        self.change_owner(&name, before.as_ref(), facts.as_ref());
        let was_local = before.is_some_and(|pod| pod.is_local);
        let is_local = facts.as_ref().is_some_and(|pod| pod.is_local);
        match is_local {
            true => self.local.insert(name.clone()),
            false => self.local.remove(&name),
        };
        self.store_pod(&name, facts);
        if was_local || is_local {
            self.replan_pod(&name);
        }
    }

    fn store_pod(&mut self, name: &ObjectName, facts: Option<PodFacts>) {
        match facts {
            Some(facts) => {
                let pods = self.pods.entry(Arc::clone(&name.namespace)).or_default();
                pods.insert(Arc::clone(&name.name), facts);
            }
            None => {
                if let Some(pods) = self.pods.get_mut(&name.namespace) {
                    pods.remove(&name.name);
                    if pods.is_empty() {
                        self.pods.remove(&name.namespace);
                    }
                }
            }
        }
    }

    fn change_members(&mut self, name: &ObjectName, before: Option<&PodFacts>, after: Option<&PodFacts>) {
        let nothing = Labels::new();
        let labels = self.namespaces.get(&name.namespace).unwrap_or(&nothing);
        for (set_name, set) in &mut self.plan.sets {
            let of = |pod: Option<&PodFacts>| {
                let selected = pod.filter(|pod| set.content.selects(&name.namespace, labels, pod));
                selected.map(|pod| set.content.members(pod)).unwrap_or_default()
            };
            let (old, new) = (of(before), of(after));
            for member in new.iter().filter(|member| !old.contains(member)) {
                count_in(set_name, set, *member, &mut self.changes);
            }
            for member in old.iter().filter(|member| !new.contains(member)) {
                count_out(set_name, set, *member, &mut self.changes);
            }
        }
    }

    fn change_owner(&mut self, name: &ObjectName, before: Option<&PodFacts>, after: Option<&PodFacts>) {
        for (pod, is_new) in [(before, false), (after, true)] {
            let Some(pod) = pod.filter(|pod| pod.is_local) else {
                continue;
            };
            for ip in &pod.ips {
                self.changes.addresses.insert(*ip);
                let owner = (pod.created, name.clone());
                let owners = self.plan.owners.entry(*ip).or_default();
                match is_new {
                    true => owners.insert(owner),
                    false => owners.remove(&owner),
                };
                if owners.is_empty() {
                    self.plan.owners.remove(ip);
                }
            }
        }
    }

    /// Which policies select a pod of this node.
    fn replan_pod(&mut self, name: &ObjectName) {
        let after = self
            .pod(name)
            .filter(|pod| pod.is_local)
            .and_then(|pod| self.pod_plan(name, pod));
        let before = self.plan.pods.get(name);
        if before == after.as_ref() {
            return;
        }
        let policies = |plan: Option<&PodPlan>| -> BTreeSet<ObjectName> {
            plan.map(|plan| plan.all_policies().into_iter().cloned().collect())
                .unwrap_or_default()
        };
        let (old, new) = (policies(before), policies(after.as_ref()));
        // Its chains hold nothing but addresses and policies, and addresses lead to it by its name.
        let ips = before
            .into_iter()
            .chain(&after)
            .flat_map(|plan| plan.ips.iter().copied());
        self.changes.addresses.extend(ips);
        self.changes.pods.insert(name.clone());
        match after {
            Some(plan) => self.plan.pods.insert(name.clone(), plan),
            None => self.plan.pods.remove(name),
        };
        new.difference(&old).for_each(|policy| self.select(policy));
        old.difference(&new).for_each(|policy| self.deselect(policy));
    }

    /// None: it is not isolated.
    fn pod_plan(&self, name: &ObjectName, pod: &PodFacts) -> Option<PodPlan> {
        let first = ObjectName::new(&name.namespace, "");
        let policies = self
            .policies
            .range(first..)
            .take_while(|(policy, _)| policy.namespace == name.namespace);
        let selecting: Vec<_> = policies
            .filter(|(_, facts)| facts.pod_selector.matches(&pod.labels))
            .collect();
        let about = |direction: Direction| {
            let about = selecting.iter().filter(|(_, facts)| facts.rules(direction).is_some());
            let about: BTreeSet<ObjectName> = about.map(|(name, _)| (*name).clone()).collect();
            (!about.is_empty()).then_some(about)
        };
        let plan = PodPlan {
            ips: pod.ips.clone(),
            ingress: about(Direction::Ingress),
            egress: about(Direction::Egress),
        };
        (plan.ingress.is_some() || plan.egress.is_some()).then_some(plan)
    }

    /// One more pod is selected by a policy.
    fn select(&mut self, policy: &ObjectName) {
        let count = self.selected.entry(policy.clone()).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        let Some(facts) = self.policies.get(policy).cloned() else {
            return;
        };
        self.use_sets(&policy.namespace, &facts);
        self.plan.policies.insert(policy.clone(), facts);
        self.changes.policies.insert(policy.clone());
    }

    fn deselect(&mut self, policy: &ObjectName) {
        let Some(count) = self.selected.get_mut(policy) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.selected.remove(policy);
        if let Some(facts) = self.plan.policies.remove(policy) {
            self.release_sets(&policy.namespace, &facts);
            self.changes.policies.insert(policy.clone());
        }
    }

    fn use_sets(&mut self, namespace: &Arc<str>, policy: &PolicyFacts) {
        for (name, content) in sets_of(namespace, policy) {
            if let Some(set) = self.plan.sets.get_mut(&name) {
                set.users += 1;
                continue;
            }
            let members = self.members(&content);
            self.changes.sets.insert(Arc::clone(&name));
            let set = PlannedSet {
                content,
                users: 1,
                members,
            };
            self.plan.sets.insert(name, set);
        }
    }

    fn release_sets(&mut self, namespace: &Arc<str>, policy: &PolicyFacts) {
        for name in sets_of(namespace, policy).into_keys() {
            let Some(set) = self.plan.sets.get_mut(&name) else {
                continue;
            };
            set.users -= 1;
            if set.users == 0 {
                self.plan.sets.remove(&name);
                self.changes.sets.insert(name);
            }
        }
    }

    /// Of a new set: all pods are looked at once.
    fn members(&self, content: &SetContent) -> BTreeMap<Member, usize> {
        let mut members = BTreeMap::new();
        if let SetContent::Numbers(numbers) = content {
            let all = numbers
                .iter()
                .map(|(protocol, first, last)| (Member::Numbers(*protocol, *first, *last), 1));
            members.extend(all);
            return members;
        }
        let nothing = Labels::new();
        for (namespace, pods) in &self.pods {
            let labels = self.namespaces.get(namespace).unwrap_or(&nothing);
            for pod in pods.values().filter(|pod| content.selects(namespace, labels, pod)) {
                for member in content.members(pod) {
                    *members.entry(member).or_default() += 1;
                }
            }
        }
        members
    }

    pub(super) fn apply_policy(&mut self, object: &NetworkPolicy) {
        let name = ObjectName::new(&object.metadata.namespace, &object.metadata.name);
        self.set_policy(name, Some(facts::policy(object)));
    }

    pub(super) fn forget_policy(&mut self, namespace: &str, name: &str) {
        self.set_policy(ObjectName::new(namespace, name), None);
    }

    pub(super) fn replace_policies(&mut self, objects: &[NetworkPolicy]) {
        let names = objects
            .iter()
            .map(|policy| ObjectName::new(&policy.metadata.namespace, &policy.metadata.name));
        let names: BTreeSet<ObjectName> = names.collect();
        let gone: Vec<ObjectName> = self
            .policies
            .keys()
            .filter(|name| !names.contains(name))
            .cloned()
            .collect();
        gone.into_iter().for_each(|name| self.set_policy(name, None));
        objects.iter().for_each(|policy| self.apply_policy(policy));
    }

    fn set_policy(&mut self, name: ObjectName, facts: Option<PolicyFacts>) {
        if self.policies.get(&name).map(|facts| &**facts) == facts.as_ref() {
            return;
        }
        match facts.map(Arc::new) {
            Some(facts) => {
                self.policies.insert(name.clone(), Arc::clone(&facts));
                if let Some(before) = self.plan.policies.get(&name).cloned() {
                    // Sets that both use stay as they are.
                    self.use_sets(&name.namespace, &facts);
                    self.release_sets(&name.namespace, &before);
                    self.plan.policies.insert(name.clone(), facts);
                    self.changes.policies.insert(name.clone());
                }
            }
            None => drop(self.policies.remove(&name)),
        }
        let first = ObjectName::new(&name.namespace, "");
        let local = self
            .local
            .range(first..)
            .take_while(|pod| pod.namespace == name.namespace);
        let local: Vec<ObjectName> = local.cloned().collect();
        local.iter().for_each(|pod| self.replan_pod(pod));
    }

    pub(super) fn apply_namespace(&mut self, object: &Namespace) {
        self.set_namespace(&object.metadata.name, Some(object.metadata.labels.clone()));
    }

    pub(super) fn forget_namespace(&mut self, name: &str) {
        self.set_namespace(name, None);
    }

    pub(super) fn replace_namespaces(&mut self, objects: &[Namespace]) {
        let names: BTreeSet<&str> = objects
            .iter()
            .map(|namespace| namespace.metadata.name.as_str())
            .collect();
        let gone: Vec<Arc<str>> = self
            .namespaces
            .keys()
            .filter(|name| !names.contains(&***name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.set_namespace(name, None));
        objects.iter().for_each(|namespace| self.apply_namespace(namespace));
    }

    fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let before = self.namespaces.get(name).cloned().unwrap_or_default();
        let after = labels.clone().unwrap_or_default();
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.into(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        if before == after {
            return;
        }
        let Some(pods) = self.pods.get(name) else { return };
        for (set_name, set) in &mut self.plan.sets {
            let was_in = set.content.selects_namespace(name, &before);
            let is_in = set.content.selects_namespace(name, &after);
            if was_in == is_in {
                continue;
            }
            let labels = if is_in { &after } else { &before };
            let selected = pods.values().filter(|pod| set.content.selects(name, labels, pod));
            let members: Vec<Member> = selected.flat_map(|pod| set.content.members(pod)).collect();
            for member in members {
                match is_in {
                    true => count_in(set_name, set, member, &mut self.changes),
                    false => count_out(set_name, set, member, &mut self.changes),
                }
            }
        }
    }
}

fn count_in(name: &SetName, set: &mut PlannedSet, member: Member, changes: &mut PolicyChanges) {
    let count = set.members.entry(member).or_default();
    *count += 1;
    if *count == 1 {
        changes.members.insert((Arc::clone(name), member));
    }
}

fn count_out(name: &SetName, set: &mut PlannedSet, member: Member, changes: &mut PolicyChanges) {
    let Some(count) = set.members.get_mut(&member) else {
        return;
    };
    *count -= 1;
    if *count == 0 {
        set.members.remove(&member);
        changes.members.insert((Arc::clone(name), member));
    }
}
