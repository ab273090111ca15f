//! Plans for single states, and sets driven through random schedules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Random;
use orlop_base::clock::Shift;
use serde_json::{Value, json};

use super::identity;
use super::plan::{self, Plan, PodAction, View, Which};
use crate::objects::{ControllerRevision, PersistentVolumeClaim, Pod, StatefulSet};
use crate::revisions;

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A set with these fields in its spec.
fn set(spec: Value) -> StatefulSet {
    let mut all = json!({
        "replicas": 3, "podManagementPolicy": "OrderedReady", "selector": {"matchLabels": {"app": "web"}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    });
    for (key, value) in spec.as_object().unwrap() {
        all[key] = value.clone();
    }
    let object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 1}, "spec": all});
    serde_json::from_value(object).unwrap()
}

/// `2 old ready`: web-2 of the current revision, ready for ten seconds. Without `old`: of the update. Further words:
/// `pending`, `unready`, `failed`, `leaving`, `just` (ready now), `unlabelled`, `bare` (without its volume).
fn pod(words: &str) -> Pod {
    let words: Vec<&str> = words.split(' ').collect();
    let is = |word: &str| words.contains(&word);
    let name = format!("web-{}", words[0]);
    let phase = match () {
        () if is("failed") => "Failed",
        () if is("pending") => "Pending",
        () => "Running",
    };
    let ready = is("ready") || is("just");
    let since = if is("just") {
        start()
    } else {
        start().earlier(Duration::from_secs(10))
    };
    let volume = json!([{"name": "www", "persistentVolumeClaim": {"claimName": format!("www-{name}")}}]);
    let mut labels = json!({revisions::POD_LABEL: if is("old") { "r1" } else { "r2" }});
    if !is("unlabelled") {
        labels["statefulset.kubernetes.io/pod-name"] = name.as_str().into();
    }
    let pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels,
                     "deletionTimestamp": is("leaving").then(start)},
        "spec": {"volumes": if is("bare") { json!([]) } else { volume }},
        "status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": since},
        ]},
    });
    serde_json::from_value(pod).unwrap()
}

fn planned(set: &StatefulSet, pods: &[Arc<Pod>], claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>) -> Plan {
    plan::plan(&View {
        set,
        current: "r1",
        update: "r2",
        pods,
        claim: &|name| claims.get(name).cloned(),
        now: start(),
    })
}

/// `+1` or `+1old`: make; `-1`: delete; `label 1`; `lacks 1`; `claims 1`.
fn told(plan: &Plan) -> String {
    let steps = plan.phases.iter().flatten().map(|step| {
        let n = step.ordinal;
        match &step.act {
            PodAction::Nothing => format!("claims {n}"),
            PodAction::Create(Which::Update) => format!("+{n}"),
            PodAction::Create(Which::Current) => format!("+{n}old"),
            PodAction::Delete(_) => format!("-{n}"),
            PodAction::Label(_) => format!("label {n}"),
            PodAction::LacksStorage => format!("lacks {n}"),
        }
    });
    steps.collect::<Vec<_>>().join(" ")
}

fn check(spec: Value, pods: &[&str], wanted: &str) {
    let set = set(spec.clone());
    let pods_there: Vec<_> = pods.iter().map(|words| Arc::new(pod(words))).collect();
    let plan = planned(&set, &pods_there, &BTreeMap::new());
    assert_eq!(told(&plan), wanted, "{spec} {pods:?}");
}

#[test]
fn in_order_one_waits_for_the_other() {
    let plain = || json!({});
    check(plain(), &[], "+0");
    check(plain(), &["0 pending"], "");
    check(plain(), &["0 unready"], "");
    check(plain(), &["0 ready"], "+1");
    check(plain(), &["0 ready", "2 ready"], "+1");
    check(plain(), &["1 ready", "2 ready"], "+0");
    check(plain(), &["0 ready leaving", "1 ready"], "");
    check(plain(), &["0 failed", "1 ready"], "-0");
    check(plain(), &["0 failed leaving", "1 ready"], "");
    check(plain(), &["0 ready", "1 ready", "2 ready"], "");
    check(json!({"minReadySeconds": 5}), &["0 just"], "");
    check(json!({"minReadySeconds": 5}), &["0 ready"], "+1");
    check(json!({"ordinals": {"start": 4}}), &["4 ready"], "+5");
    check(json!({"replicas": 0}), &[], "");
    // Labels are given back on the way.
    check(plain(), &["0 ready unlabelled", "1 ready"], "label 0 +2");
    check(plain(), &["0 unready unlabelled"], "");
    // Going down, from the top, one after the other.
    let one = || json!({"replicas": 1});
    check(one(), &["0 ready", "1 ready", "2 ready"], "-2");
    check(one(), &["0 ready", "1 ready", "2 ready leaving"], "");
    check(one(), &["0 unready", "1 ready", "2 ready"], "");
    check(one(), &["0 ready", "1 unready", "2 ready"], "-2");
    check(one(), &["0 ready", "1 ready", "2 unready"], "-2");
    check(one(), &["0 ready", "1 unready", "2 unready"], "");
    check(one(), &["0 ready", "1 failed", "2 failed"], "-2");
    check(
        json!({"ordinals": {"start": 2}, "replicas": 1}),
        &["0 ready", "1 ready", "2 ready"],
        "-1",
    );
}

#[test]
fn in_parallel_nobody_waits() {
    let parallel = |replicas: u32| json!({"podManagementPolicy": "Parallel", "replicas": replicas});
    check(parallel(3), &[], "+0 +1 +2");
    check(parallel(3), &["1 unready"], "+0 +2");
    check(parallel(3), &["0 failed", "1 unready", "2 leaving"], "-0");
    check(
        parallel(1),
        &["0 unready", "1 unready", "2 ready", "3 leaving"],
        "-2 -1",
    );
    check(parallel(2), &["0 ready unlabelled", "3 ready"], "label 0 +1 -3");
}

#[test]
fn updates_go_from_the_top() {
    let old = ["0 old ready", "1 old ready", "2 old ready"];
    check(json!({}), &old, "-2");
    check(json!({}), &["0 old ready", "1 old ready", "2 unready"], "");
    check(json!({}), &["0 old ready", "1 old ready", "2 ready"], "-1");
    check(json!({}), &["0 old ready", "1 old ready"], "+2");
    check(json!({"updateStrategy": {"type": "OnDelete"}}), &old, "");
    check(json!({"updateStrategy": {"type": "OnDelete"}}), &["0 old ready"], "+1");
    let partition = |n: u32| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": n}}});
    check(partition(2), &old, "-2");
    check(partition(2), &["0 old ready", "1 old ready", "2 ready"], "");
    check(partition(2), &["0 old ready"], "+1old");
    check(partition(2), &["0 old ready", "1 old ready"], "+2");
    check(partition(9), &old, "");
    // In parallel an old one that is of no use does not wait for others below it.
    let parallel = json!({"podManagementPolicy": "Parallel"});
    check(
        parallel.clone(),
        &["0 old unready", "1 old unready", "2 old unready"],
        "-2",
    );
    check(parallel.clone(), &["0 old unready", "1 old unready", "2 unready"], "");
    check(parallel, &["0 old unready", "1 old unready", "2 ready"], "-1");
    let many = |max: Value| {
        json!({"replicas": 4, "podManagementPolicy": "Parallel",
               "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": max}}})
    };
    let four = ["0 old ready", "1 old ready", "2 old ready", "3 old ready"];
    check(many(json!(2)), &four, "-3 -2");
    check(many(json!(9)), &four, "-3 -2 -1");
    check(many(json!("60%")), &four, "-3 -2");
    check(many(json!("1%")), &four, "-3");
    check(
        many(json!(2)),
        &["0 old ready", "1 old unready", "2 old ready", "3 ready"],
        "-2",
    );
    check(
        many(json!(2)),
        &["0 old unready", "1 old unready", "2 old ready", "3 ready"],
        "",
    );
}

fn claim(name: &str, owner: Option<(&str, &str)>, leaving: bool) -> (String, Arc<PersistentVolumeClaim>) {
    let owners: Vec<Value> = owner
        .iter()
        .map(|(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true}))
        .collect();
    let claim =
        json!({"metadata": {"name": name, "ownerReferences": owners, "deletionTimestamp": leaving.then(start)}});
    (name.to_string(), Arc::new(serde_json::from_value(claim).unwrap()))
}

#[test]
fn claims_come_before_pods() {
    let templates = json!([{"metadata": {"name": "www"}}]);
    let policy = |scaled: &str| json!({"whenScaled": scaled, "whenDeleted": "Retain"});
    let spec = |scaled: &str| json!({"volumeClaimTemplates": templates, "persistentVolumeClaimRetentionPolicy": policy(scaled)});
    let plan = |scaled: &str, pods: &[&str], claims: Vec<(String, Arc<PersistentVolumeClaim>)>| {
        let pods: Vec<_> = pods.iter().map(|words| Arc::new(pod(words))).collect();
        planned(&set(spec(scaled)), &pods, &claims.into_iter().collect())
    };
    let first = plan("Retain", &[], vec![]);
    assert_eq!(
        (told(&first).as_str(), first.phases[0][0].claims.create.len()),
        ("+0", 1)
    );
    let there = plan("Retain", &[], vec![claim("www-web-0", None, false)]);
    assert_eq!(
        (told(&there).as_str(), there.phases[0][0].claims.create.len()),
        ("+0", 0)
    );
    let leaving = plan("Retain", &[], vec![claim("www-web-0", None, true)]);
    assert_eq!(leaving.phases[0][0].claims.leaving.as_deref(), Some("www-web-0"));
    // The claim goes with the pod that had it; its successor waits.
    let left_over = || vec![claim("www-web-0", Some(("web-0", "gone")), false)];
    assert_eq!(told(&plan("Delete", &[], left_over())), "");
    assert_eq!(told(&plan("Retain", &[], left_over())), "+0");
    // Only a pod that can't start yet gets a claim that is missing.
    assert_eq!(told(&plan("Retain", &["0 pending"], vec![])), "claims 0");
    assert_eq!(told(&plan("Retain", &["0 ready", "1 ready", "2 ready"], vec![])), "");
    assert_eq!(
        told(&plan("Retain", &["0 ready bare", "1 ready"], vec![])),
        "lacks 0 +2"
    );
    // A pod that is to go takes its claim along.
    let all = ["0 ready", "1 ready", "2 ready", "3 ready"];
    assert_eq!(
        told(&plan("Delete", &all, vec![claim("www-web-3", None, false)])),
        "claims 3 -3"
    );
    assert_eq!(
        told(&plan(
            "Delete",
            &all,
            vec![claim("www-web-3", Some(("web-3", "web-3")), false)]
        )),
        "-3"
    );
    assert_eq!(told(&plan("Retain", &all, vec![claim("www-web-3", None, false)])), "-3");
}

#[test]
fn the_status_counts_pods() {
    let there = |words: &[&str]| -> Vec<Arc<Pod>> { words.iter().map(|words| Arc::new(pod(words))).collect() };
    let spec = json!({"minReadySeconds": 5});
    let plan = planned(
        &set(spec),
        &there(&["0 old ready", "1 old just", "2 ready leaving", "3 pending"]),
        &BTreeMap::new(),
    );
    let status = &plan.status;
    assert_eq!(
        (status.replicas, status.ready_replicas, status.available_replicas),
        (4, 3, 2)
    );
    assert_eq!((status.current_replicas, status.updated_replicas), (2, 1));
    assert_eq!(
        (status.current_revision.as_str(), status.update_revision.as_str()),
        ("r1", "r2")
    );
    assert_eq!(plan.look_again, Some(Duration::from_secs(5)));
    // One goes for the update and does not count any more.
    let plan = planned(
        &set(json!({})),
        &there(&["0 old ready", "1 old ready", "2 old ready"]),
        &BTreeMap::new(),
    );
    assert_eq!((plan.status.current_replicas, plan.status.updated_replicas), (2, 0));
    let plan = planned(
        &set(json!({})),
        &there(&["0 ready", "1 ready", "2 ready"]),
        &BTreeMap::new(),
    );
    assert_eq!(
        (plan.status.current_replicas, plan.status.current_revision.as_str()),
        (3, "r2")
    );
}

#[test]
fn revisions_beyond_the_limit_go_unless_something_is_made_from_them() {
    let revision = |n: i64| {
        let made = json!({"metadata": {"name": format!("r{n}")}, "revision": n});
        Arc::new(serde_json::from_value::<ControllerRevision>(made).unwrap())
    };
    let all: Vec<_> = (0..6).map(revision).collect();
    for (limit, wanted) in [(10, vec![]), (2, vec!["r0", "r3"]), (0, vec!["r0", "r3", "r4", "r5"])] {
        let set = set(json!({"revisionHistoryLimit": limit}));
        let pods = [Arc::new(pod("0 old"))];
        let view = View {
            set: &set,
            current: "r1",
            update: "r2",
            pods: &pods,
            claim: &|_| None,
            now: start(),
        };
        let gone = plan::revisions_to_forget(&view, &all);
        let names: Vec<&str> = gone.iter().map(|r| r.metadata.name.as_str()).collect();
        assert_eq!(names, wanted, "{limit}");
    }
}

/// A cluster with one set, and things that happen to it.
struct World {
    random: Random,
    set: StatefulSet,
    pods: BTreeMap<i64, Arc<Pod>>,
    now: Timestamp,
    template: u64,
    made: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::seeded(seed);
        let mut rolling = json!({"partition": if random.below(2) == 0 { 0 } else { random.below(5) }});
        if random.below(4) == 0 {
            rolling["maxUnavailable"] = json!(1 + random.below(3));
        }
        let strategy = match random.below(5) {
            0 => json!({"type": "OnDelete"}),
            _ => json!({"type": "RollingUpdate", "rollingUpdate": rolling}),
        };
        let policy = if random.below(2) == 0 {
            "Parallel"
        } else {
            "OrderedReady"
        };
        let spec = json!({
            "replicas": random.below(6), "podManagementPolicy": policy, "updateStrategy": strategy,
            "minReadySeconds": if random.below(3) == 0 { 5 } else { 0 }, "ordinals": {"start": random.below(2) * 3},
        });
        let set = set(spec);
        World {
            random,
            set,
            pods: BTreeMap::new(),
            now: start(),
            template: 1,
            made: 0,
        }
    }

    fn update_revision(&self) -> String {
        format!("r{}", self.template)
    }

    fn something_happens(&mut self) {
        match self.random.below(20) {
            0 => self.set.spec.replicas = Some(self.random.below(7) as i64),
            1 => self.template += 1,
            // Undone: back to an older template.
            2 => self.template = 1 + self.random.below(self.template),
            3 => self.now = self.now.later(Duration::from_secs(1 + self.random.below(10))),
            4 => self.set.spec.ordinals.start = self.random.below(3) as i64,
            5..=10 => self.reconcile(),
            11 => self.worsen(),
            _ => {
                if let Some(ordinal) = self.some_pod() {
                    self.get_on(ordinal);
                }
            }
        }
    }

    fn some_pod(&mut self) -> Option<i64> {
        let at = self.random.below(self.pods.len().max(1) as u64) as usize;
        self.pods.keys().nth(at).copied()
    }

    fn worsen(&mut self) {
        let Some(ordinal) = self.some_pod() else { return };
        let pod = Arc::make_mut(self.pods.get_mut(&ordinal).unwrap());
        match self.random.below(4) {
            0 => pod.status.phase = "Failed".into(),
            1 => set_ready(pod, false, self.now),
            2 => drop(pod.metadata.labels.remove("statefulset.kubernetes.io/pod-name")),
            _ => pod.metadata.deletion_timestamp = Some(self.now),
        }
    }

    fn get_on(&mut self, ordinal: i64) {
        let pod = Arc::make_mut(self.pods.get_mut(&ordinal).unwrap());
        if pod.metadata.is_deleted() {
            self.pods.remove(&ordinal);
        } else if pod.status.phase == "Pending" {
            pod.status.phase = "Running".into();
        } else if !pod.is_terminal() && !pod.is_ready() {
            set_ready(pod, true, self.now);
        }
    }

    fn plan(&self) -> Plan {
        let pods: Vec<_> = self.pods.values().cloned().collect();
        let update = self.update_revision();
        let current = match self.set.status.current_revision.as_str() {
            "" => update.clone(),
            current => current.to_string(),
        };
        plan::plan(&View {
            set: &self.set,
            current: &current,
            update: &update,
            pods: &pods,
            claim: &|_| None,
            now: self.now,
        })
    }

    fn is_well(&self, ordinal: i64) -> bool {
        let min_ready = Duration::from_secs(self.set.spec.min_ready_seconds.into());
        let pod = self.pods.get(&ordinal);
        pod.is_some_and(|p| p.is_active() && p.is_available(min_ready, self.now))
    }

    fn reconcile(&mut self) {
        let plan = self.plan();
        self.check(&plan);
        for step in plan.phases.iter().flatten() {
            let n = step.ordinal;
            match &step.act {
                PodAction::Create(which) => {
                    let revision = match which {
                        Which::Current => plan.status.current_revision.clone(),
                        Which::Update => self.update_revision(),
                    };
                    self.made += 1;
                    let mut pod = pod(&format!("{n} pending"));
                    pod.metadata.uid = format!("uid-{}", self.made);
                    pod.metadata.labels.insert(revisions::POD_LABEL.into(), revision);
                    assert!(self.pods.insert(n, Arc::new(pod)).is_none(), "there is a web-{n}");
                }
                PodAction::Delete(pod) => {
                    let there = self.pods.get_mut(&n).expect("only what is there is deleted");
                    let there = Arc::make_mut(there);
                    assert_eq!(there.metadata.uid, pod.metadata.uid);
                    assert!(!there.metadata.is_deleted(), "web-{n} is deleted twice");
                    there.metadata.deletion_timestamp = Some(self.now);
                }
                PodAction::Label(_) => {
                    let pod = Arc::make_mut(self.pods.get_mut(&n).unwrap());
                    let labels = &mut pod.metadata.labels;
                    labels.insert("statefulset.kubernetes.io/pod-name".into(), format!("web-{n}"));
                }
                PodAction::Nothing | PodAction::LacksStorage => unreachable!("there are no claims"),
            }
        }
        self.set.status = plan.status;
    }

    fn check(&self, plan: &Plan) {
        let wanted = identity::wanted(&self.set);
        let in_order = self.set.spec.pod_management_policy == "OrderedReady";
        let rolling = self.set.spec.update_strategy.rolling_update.as_ref();
        let partition = wanted.start + rolling.map_or(0, |r| r.partition);
        let [fill, _, shrink, update] = &plan.phases;
        for step in fill {
            assert!(wanted.contains(&step.ordinal));
            if matches!(step.act, PodAction::Create(_)) && in_order {
                assert!(
                    (wanted.start..step.ordinal).all(|n| self.is_well(n)),
                    "+{} too early",
                    step.ordinal
                );
            }
            if let PodAction::Create(which) = &step.act {
                assert_eq!(*which == Which::Current, rolling.is_some() && step.ordinal < partition);
            }
        }
        let all_well = wanted.clone().all(|n| self.is_well(n));
        for step in shrink {
            assert!(!wanted.contains(&step.ordinal));
            if in_order {
                let beyond = |n: &&i64| !wanted.contains(n);
                assert_eq!(self.pods.keys().rfind(beyond), Some(&step.ordinal), "not the highest");
                assert!(all_well && shrink.len() == 1, "-{} too early", step.ordinal);
            }
        }
        let unwell = wanted.clone().filter(|n| !self.is_well(*n)).count();
        let max = rolling
            .and_then(|r| r.max_unavailable.as_ref())
            .map(|m| m.as_u64().unwrap() as usize);
        for step in update {
            let n = step.ordinal;
            assert!(n >= partition && wanted.contains(&n), "-{n} is not to be updated");
            let label = self.pods[&n].metadata.label(revisions::POD_LABEL);
            assert_ne!(label, Some(self.update_revision().as_str()), "-{n} is up to date");
            assert_ne!(self.set.spec.update_strategy.r#type, "OnDelete");
            if in_order {
                assert!(
                    all_well && self.pods.keys().all(|n| wanted.contains(n)),
                    "-{n} too early"
                );
            }
            if max.is_none() {
                assert!((n + 1..wanted.end).all(|above| self.is_well(above)), "-{n} too early");
            }
        }
        let most = max.unwrap_or(1);
        assert!(update.is_empty() || update.len() <= most);
        assert!(max.is_none() || update.is_empty() || update.len() + unwell <= most);
        let labels = fill
            .iter()
            .filter(|step| matches!(step.act, PodAction::Label(_)))
            .count();
        assert!(!in_order || fill.len() - labels <= 1, "{}", told(plan));
    }

    /// Nothing bad happens any more.
    fn calm(&mut self) {
        for _ in 0..120 {
            let before = self.set.status.clone();
            self.reconcile();
            if before == self.set.status && told(&self.plan()).is_empty() && self.pods.keys().all(|n| self.is_well(*n))
            {
                break;
            }
            let names: Vec<i64> = self.pods.keys().copied().collect();
            for ordinal in names {
                self.get_on(ordinal);
            }
            self.now = self.now.later(Duration::from_secs(10));
        }
        let plan = self.plan();
        assert_eq!(told(&plan), "", "it goes on and on");
        let wanted = identity::wanted(&self.set);
        assert!(self.pods.keys().copied().eq(wanted.clone()), "{:?}", self.pods.keys());
        let (count, update) = (wanted.end - wanted.start, self.update_revision());
        let status = &plan.status;
        assert_eq!(
            [status.replicas, status.ready_replicas, status.available_replicas],
            [count; 3]
        );
        let strategy = &self.set.spec.update_strategy;
        if let Some(rolling) = &strategy.rolling_update {
            for (ordinal, pod) in self.pods.range(wanted.start + rolling.partition..) {
                assert_eq!(
                    pod.metadata.label(revisions::POD_LABEL),
                    Some(update.as_str()),
                    "web-{ordinal}"
                );
            }
            assert!(rolling.partition > 0 || status.current_revision == update);
        }
    }
}

fn set_ready(pod: &mut Pod, ready: bool, now: Timestamp) {
    let condition = &mut pod.status.conditions[0];
    condition.status = if ready { "True" } else { "False" }.into();
    condition.last_transition_time = Some(now);
}

#[test]
fn order_is_kept_at_every_moment_and_sets_converge() {
    for seed in 0..2000 {
        let mut world = World::new(seed);
        let story = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..80 {
                world.something_happens();
            }
            world.calm();
        }));
        assert!(story.is_ok(), "seed {seed}");
    }
}
