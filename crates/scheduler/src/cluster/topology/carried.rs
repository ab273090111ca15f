//! Terms that pods on nodes carry, for pods that come later: who matches them, and where their carriers are.
//!
//! For a newcomer all terms that match it are put together in a *view*: one table per topology key. Views are kept up to
//! date as carriers come and go, and newcomers that the same terms match share one.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::keys::{Domains, KeyId, Keys, add_at};
use super::scope::NodeRecord;
use super::selector::{Index, Namespaces, PodSelector};
use super::slab::Slab;
use crate::cluster::pod::{LabelClass, PodInfo};

/// Views kept at most.
const VIEWS: usize = 256;
/// Label classes whose views are remembered.
const SEEN: usize = 4096;

/// What kind of term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Required anti-affinity: keeps newcomers out.
    Repels,
    /// Required affinity: the carriers would like company.
    Requires,
    /// Preferred affinity and anti-affinity, with weights.
    Prefers,
}

const GROUPS: [Group; 3] = [Group::Repels, Group::Requires, Group::Prefers];

#[derive(Debug, PartialEq, Eq, Hash)]
struct TermKey {
    group: Group,
    /// Negative for anti-affinity; 1 for what is required.
    weight: i32,
    key: KeyId,
    selector: PodSelector,
}

#[derive(Debug)]
struct Term {
    what: Arc<TermKey>,
    /// Pods that carry it, by domain.
    counts: Arc<Vec<i32>>,
    /// How often a class of pods that are there carries it.
    classes: u32,
    views: Vec<u32>,
}

#[derive(Debug)]
struct Carrier {
    terms: Vec<u32>,
    pods: usize,
}

#[derive(Debug)]
struct View {
    group: Group,
    terms: Vec<u32>,
    tables: Vec<Table>,
    used: u64,
}

#[derive(Debug)]
struct Table {
    key: KeyId,
    /// Weights, summed up.
    counts: Arc<Vec<i32>>,
    /// Carriers.
    total: i64,
}

#[derive(Debug, Default)]
pub(super) struct Carried {
    terms: Slab<Term>,
    by_term: FxHashMap<Arc<TermKey>, u32>,
    index: Index,
    /// By the pod class's id.
    carriers: FxHashMap<u64, Carrier>,
    views: Slab<View>,
    by_terms: FxHashMap<(Group, Vec<u32>), u32>,
    /// Label class → views of the three groups.
    seen: FxHashMap<u64, [Option<u32>; 3]>,
    clock: u64,
}

impl Carried {
    /// No pod that is there carries any term.
    pub(super) fn is_empty(&self) -> bool {
        self.terms.len() == 0
    }

    pub(super) fn uses(&self, key: KeyId) -> bool {
        self.terms.iter().any(|(_, t)| t.what.key == key)
    }

    // ---- pods ----

    pub(super) fn add_pod(&mut self, pod: &PodInfo, node: u32, keys: &mut Keys, nodes: &[Option<NodeRecord>]) {
        if !pod.class.has_affinity() {
            return;
        }
        if !self.carriers.contains_key(&pod.class.id) {
            let terms = self.terms_of(pod, keys, nodes);
            self.carriers.insert(pod.class.id, Carrier { terms, pods: 0 });
        }
        let carrier = self.carriers.get_mut(&pod.class.id).expect("taken up just now");
        carrier.pods += 1;
        self.shift_pod(pod, node, 1, keys);
    }

    pub(super) fn remove_pod(&mut self, pod: &PodInfo, node: u32, keys: &Keys) {
        self.shift_pod(pod, node, -1, keys);
        let Some(carrier) = self.carriers.get_mut(&pod.class.id) else {
            return;
        };
        carrier.pods -= 1;
        if carrier.pods == 0
            && let Some(carrier) = self.carriers.remove(&pod.class.id)
        {
            for term in carrier.terms {
                self.release(term);
            }
        }
    }

    /// Counts a pod into its node's domains, or out of them.
    pub(super) fn shift_pod(&mut self, pod: &PodInfo, node: u32, by: i32, keys: &Keys) {
        let Some(carrier) = self.carriers.get(&pod.class.id) else {
            return;
        };
        for id in &carrier.terms {
            let term = &mut self.terms[*id];
            let Some(domain) = keys.domain(term.what.key, node as usize) else {
                continue;
            };
            add_at(&mut term.counts, domain, by);
            for view in &term.views {
                let tables = &mut self.views[*view].tables;
                let table = tables.iter_mut().find(|t| t.key == term.what.key);
                let table = table.expect("a view has a table for each key of its terms");
                add_at(&mut table.counts, domain, by * term.what.weight);
                table.total += i64::from(by);
            }
        }
    }

    fn terms_of(&mut self, pod: &PodInfo, keys: &mut Keys, nodes: &[Option<NodeRecord>]) -> Vec<u32> {
        let (with, without) = (
            &pod.class.spec.affinity.pod_affinity,
            &pod.class.spec.affinity.pod_anti_affinity,
        );
        let repels = without.required.iter().map(|t| (Group::Repels, 1, t));
        let requires = with.required.iter().map(|t| (Group::Requires, 1, t));
        let likes = with.preferred.iter().map(|t| (t.weight, &t.pod_affinity_term));
        let dislikes = without.preferred.iter().map(|t| (-t.weight, &t.pod_affinity_term));
        let prefers = likes.chain(dislikes).map(|(w, t)| (Group::Prefers, w, t));
        (repels.chain(requires).chain(prefers))
            .map(|(group, weight, term)| {
                self.term(TermKey {
                    group,
                    weight,
                    key: keys.id(&term.topology_key, nodes),
                    selector: PodSelector::carried(term, &pod.class.namespace),
                })
            })
            .collect()
    }

    fn term(&mut self, what: TermKey) -> u32 {
        if let Some(&id) = self.by_term.get(&what) {
            self.terms[id].classes += 1;
            return id;
        }
        let what = Arc::new(what);
        let id = self.terms.insert(Term {
            what: what.clone(),
            counts: Arc::default(),
            classes: 1,
            views: vec![],
        });
        self.index.add(id, what.selector.anchor());
        self.by_term.insert(what, id);
        self.seen.clear();
        id
    }

    fn release(&mut self, id: u32) {
        let term = &mut self.terms[id];
        term.classes -= 1;
        if term.classes > 0 {
            return;
        }
        for view in term.views.clone() {
            self.drop_view(view);
        }
        let term = self.terms.remove(id);
        self.index.remove(id, term.what.selector.anchor());
        self.by_term.remove(&term.what);
        self.seen.clear();
    }

    /// Some namespaces got other labels: other newcomers match.
    pub(super) fn namespaces_changed(&mut self) {
        self.seen.clear();
    }

    // ---- newcomers ----

    /// What the carried terms that match a newcomer amount to, by topology key. Tables without a carrier are left out.
    pub(super) fn matching(
        &mut self,
        labels: &LabelClass,
        group: Group,
        keys: &Keys,
        namespaces: &Namespaces,
    ) -> Vec<Domains> {
        if self.is_empty() {
            return vec![];
        }
        let views = match self.seen.get(&labels.id) {
            Some(views) => *views,
            None => self.look_up(labels, keys, namespaces),
        };
        let Some(id) = views[group as usize] else { return vec![] };
        self.clock += 1;
        let view = &mut self.views[id];
        view.used = self.clock;
        let tables = view.tables.iter().filter(|t| t.total > 0);
        tables
            .map(|t| Domains {
                key: keys.name(t.key).clone(),
                column: keys.column(t.key).clone(),
                counts: t.counts.clone(),
            })
            .collect()
    }

    fn look_up(&mut self, labels: &LabelClass, keys: &Keys, namespaces: &Namespaces) -> [Option<u32>; 3] {
        // Before any view is made: making room may not take away one of those made for this newcomer.
        if self.views.len() + GROUPS.len() > VIEWS {
            self.forget(VIEWS / 2);
        }
        let mut found: [Vec<u32>; 3] = Default::default();
        for id in self.index.candidates(&labels.set.labels) {
            let what = &self.terms[id].what;
            if what.selector.matches(&labels.set, namespaces) {
                found[what.group as usize].push(id);
            }
        }
        let views = GROUPS.map(|group| {
            let mut terms = std::mem::take(&mut found[group as usize]);
            terms.sort_unstable();
            (!terms.is_empty()).then(|| self.view(group, terms, keys))
        });
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        self.seen.insert(labels.id, views);
        views
    }

    fn view(&mut self, group: Group, terms: Vec<u32>, keys: &Keys) -> u32 {
        let name = (group, terms);
        if let Some(&id) = self.by_terms.get(&name) {
            return id;
        }
        let terms = name.1.clone();
        let mut tables: Vec<Table> = vec![];
        for id in &terms {
            let term = &self.terms[*id];
            let at = tables.iter().position(|t| t.key == term.what.key).unwrap_or_else(|| {
                tables.push(Table {
                    key: term.what.key,
                    counts: Arc::new(vec![0; keys.width(term.what.key)]),
                    total: 0,
                });
                tables.len() - 1
            });
            let sums = Arc::make_mut(&mut tables[at].counts);
            for (sum, pods) in sums.iter_mut().zip(&*term.counts) {
                *sum += pods * term.what.weight;
            }
            tables[at].total += term.counts.iter().map(|n| i64::from(*n)).sum::<i64>();
        }
        self.clock += 1;
        let id = self.views.insert(View {
            group,
            terms: terms.clone(),
            tables,
            used: self.clock,
        });
        for term in terms {
            self.terms[term].views.push(id);
        }
        self.by_terms.insert(name, id);
        id
    }

    fn drop_view(&mut self, id: u32) {
        let view = self.views.remove(id);
        for term in &view.terms {
            self.terms[*term].views.retain(|v| *v != id);
        }
        self.by_terms.remove(&(view.group, view.terms));
    }

    fn forget(&mut self, keep: usize) {
        let mut by_use: Vec<(u64, u32)> = self.views.iter().map(|(id, v)| (v.used, id)).collect();
        by_use.sort_unstable();
        let excess = by_use.len().saturating_sub(keep);
        for (_, id) in by_use.drain(..excess) {
            self.drop_view(id);
        }
        self.seen.clear();
    }
}
