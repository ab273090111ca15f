//! Critical-pod preemption: which pods to preempt when a pod does not fit. Pure.
//!
//! As little harm as possible: Guaranteed pods are preempted only if all others together don't free enough, Burstable ones
//! only if BestEffort ones don't; within a class as few pods as possible, then small ones.
//!
//! Upstream: pkg/kubelet/preemption (v1.36). Differs in that a pod which turns out not to be needed stays.

use std::cmp::Ordering;

use orlop_api::types::core::Pod;

use crate::spec::resources::{QosClass, amount_of, is_critical, pod_requests, qos_class};

pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
pub const CONDITION_MESSAGE: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// A resource there is too little of. Cpu counts in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub name: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Lack {
    fn missing(&self) -> i64 {
        self.requested - (self.capacity - self.used)
    }
}

/// A pod that may go: what it would free of each lack, in their order.
struct Victim {
    index: usize,
    class: QosClass,
    frees: Vec<i64>,
    /// Memory and cpu: the smaller goes.
    size: (i64, i64),
}

/// Preempting every pod of a lower priority would not free enough; names what is lacking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no set of running pods found to reclaim resources: {0}")]
pub struct PreemptionError(String);

/// Indices in `others` of the pods to preempt.
pub fn plan(preemptor: &Pod, others: &[&Pod], lacks: &[Lack]) -> Result<Vec<usize>, PreemptionError> {
    let victims = victims(preemptor, others, lacks);
    let needs: Vec<i64> = lacks.iter().map(Lack::missing).collect();
    let all = &victims.iter().collect::<Vec<_>>();
    let left = less(&needs, all);
    if left.iter().any(|need| *need > 0) {
        return Err(PreemptionError(render(lacks, &left)));
    }
    let of = |class: QosClass| victims.iter().filter(|v| v.class == class).collect::<Vec<_>>();
    let (best_effort, burstable) = (of(QosClass::BestEffort), of(QosClass::Burstable));
    let cheaper: Vec<&Victim> = best_effort.iter().chain(&burstable).copied().collect();
    let mut chosen = nearest(of(QosClass::Guaranteed), less(&needs, &cheaper));
    let with = |more: &[&Victim]| less(&less(&needs, more), &best_effort);
    chosen.extend(nearest(burstable, with(&chosen)));
    chosen.extend(nearest(best_effort.clone(), less(&needs, &chosen)));
    Ok(only_needed(chosen, &needs).iter().map(|v| v.index).collect())
}

fn victims(preemptor: &Pod, others: &[&Pod], lacks: &[Lack]) -> Vec<Victim> {
    let may_go = others.iter().enumerate().filter(|(_, pod)| preempts(preemptor, pod));
    may_go
        .map(|(index, pod)| {
            let requests = pod_requests(pod, true);
            let amount = |name: &str| match name {
                "pods" => 1,
                _ => requests.get(name).map_or(0, |quantity| amount_of(name, quantity)),
            };
            Victim {
                index,
                class: qos_class(pod),
                frees: lacks.iter().map(|lack| amount(&lack.name)).collect(),
                size: (amount("memory"), amount("cpu")),
            }
        })
        .collect()
}

fn preempts(preemptor: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref()?.priority;
    let higher = priority(preemptor)
        .zip(priority(other))
        .is_some_and(|(mine, theirs)| mine > theirs);
    (is_critical(preemptor) && !is_critical(other)) || higher
}

/// What is still needed once these are gone.
fn less(needs: &[i64], gone: &[&Victim]) -> Vec<i64> {
    let left = |(place, need): (usize, &i64)| {
        let freed = gone.iter().map(|v| v.frees[place]);
        freed.fold(*need, i64::saturating_sub).max(0)
    };
    needs.iter().enumerate().map(left).collect()
}

/// Picks, again and again, the pod that leaves the least to be found, until nothing is.
fn nearest<'a>(mut from: Vec<&'a Victim>, mut needs: Vec<i64>) -> Vec<&'a Victim> {
    let mut chosen = Vec::new();
    while needs.iter().any(|need| *need > 0) {
        let distance = |v: &Victim| -> f64 {
            let open = needs.iter().zip(&v.frees).filter(|(need, _)| **need > 0);
            open.map(|(need, frees)| ((need - frees).max(0) as f64 / *need as f64).powi(2))
                .sum()
        };
        let order = |a: &&'a Victim, b: &&'a Victim| {
            let nearer = distance(a).partial_cmp(&distance(b)).unwrap_or(Ordering::Equal);
            nearer.then(a.size.cmp(&b.size))
        };
        let best = from.iter().copied().min_by(order);
        let Some(best) = best else { break };
        from.retain(|v| v.index != best.index);
        needs = less(&needs, &[best]);
        chosen.push(best);
    }
    chosen
}

/// Drops pods whose preemption is not needed, the most valuable first: they come first in `chosen`.
fn only_needed<'a>(mut chosen: Vec<&'a Victim>, needs: &[i64]) -> Vec<&'a Victim> {
    let mut place = 0;
    while place < chosen.len() {
        let spared = chosen.remove(place);
        if less(needs, &chosen).iter().any(|need| *need > 0) {
            chosen.insert(place, spared);
            place += 1;
        }
    }
    chosen
}

fn render(lacks: &[Lack], left: &[i64]) -> String {
    let open = lacks.iter().zip(left).filter(|(_, left)| **left > 0);
    let texts = open.map(|(lack, left)| format!("(res: {}, q: {left}), ", lack.name));
    format!("[{}]", texts.collect::<String>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(priority: i32, cpu: i64, memory: i64, class: QosClass) -> Pod {
        let amounts = json!({"cpu": format!("{cpu}m"), "memory": memory.to_string()});
        let resources = match class {
            QosClass::Guaranteed => json!({"requests": amounts, "limits": amounts}),
            QosClass::Burstable => json!({"requests": amounts}),
            QosClass::BestEffort => json!({}),
        };
        orlop_api::types::from_value(json!({
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
            "status": {"qosClass": class.as_str()},
        }))
        .unwrap()
    }

    fn lack(name: &str, missing: i64) -> Lack {
        Lack {
            name: name.into(),
            requested: missing,
            used: 0,
            capacity: 0,
        }
    }

    fn critical() -> Pod {
        pod(2_000_000_000, 0, 0, QosClass::Burstable)
    }

    #[test]
    fn the_least_harm_is_done() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let small = pod(0, 100, 100, Burstable);
        let large = pod(0, 400, 400, Burstable);
        let sure = pod(0, 300, 300, Guaranteed);
        let free = pod(0, 0, 0, BestEffort);
        let system = pod(2_000_000_000, 1000, 1000, Burstable);
        let cases: [(&[&Pod], &[Lack], Result<&[usize], &str>); 8] = [
            // One that is enough rather than two; the smaller of two that are.
            (&[&small, &large], &[lack("cpu", 200)], Ok(&[1])),
            (&[&large, &small], &[lack("cpu", 100)], Ok(&[1])),
            (&[&small, &large], &[lack("cpu", 450)], Ok(&[1, 0])),
            // Better a large Burstable one than a Guaranteed one, and that only if it must be.
            (&[&sure, &large], &[lack("memory", 300)], Ok(&[1])),
            (&[&sure, &large], &[lack("memory", 500)], Ok(&[0, 1])),
            (&[&free, &sure, &small], &[lack("pods", 1)], Ok(&[0])),
            // Pods of the system are not pushed off by their like.
            (
                &[&system, &small],
                &[lack("cpu", 150), lack("pods", 1)],
                Err("no set of running pods found to reclaim resources: [(res: cpu, q: 50), ]"),
            ),
            (
                &[],
                &[lack("pods", 1)],
                Err("no set of running pods found to reclaim resources: [(res: pods, q: 1), ]"),
            ),
        ];
        for (others, lacks, expected) in cases {
            let expected = expected.map(<[usize]>::to_vec).map_err(String::from);
            let planned = plan(&critical(), others, lacks).map_err(|error| error.to_string());
            assert_eq!(planned, expected, "{lacks:?}");
        }
    }

    proptest! {
        /// Whoever goes may go, is needed, and all together are enough; no class goes while cheaper ones are enough.
        #[test]
        fn enough_and_no_more(
            all in proptest::collection::vec((0u8..3, 0i64..9, 0i64..9, 0u8..8), 0..12),
            cpu in 1i64..30, memory in 1i64..30,
        ) {
            let classes = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed];
            let pods: Vec<Pod> = all.iter().map(|(class, cpu, memory, high)| {
                let priority = if *high == 0 { 2_000_000_000 } else { 5 };
                let (class, zero) = (classes[*class as usize], *class == 0);
                pod(priority, if zero { 0 } else { *cpu }, if zero { 0 } else { *memory }, class)
            }).collect();
            let others: Vec<&Pod> = pods.iter().collect();
            let lacks = [lack("cpu", cpu), lack("memory", memory)];
            let amounts = |i: usize| {
                let requests = pod_requests(&pods[i], true);
                let of = |name: &str| requests.get(name).map_or(0, |q| amount_of(name, q));
                (of("cpu"), of("memory"))
            };
            let sum = |of: &[usize]| of.iter().map(|i| amounts(*i)).fold((0, 0), |(a, b), (c, m)| (a + c, b + m));
            let enough = |of: &[usize]| { let (c, m) = sum(of); c >= cpu && m >= memory };
            let may: Vec<usize> = (0..pods.len()).filter(|i| !is_critical(&pods[*i])).collect();
            match plan(&critical(), &others, &lacks) {
                Err(_) => prop_assert!(!enough(&may)),
                Ok(gone) => {
                    prop_assert!(enough(&gone));
                    prop_assert!(gone.iter().all(|i| may.contains(i)));
                    for spared in &gone {
                        let rest: Vec<usize> = gone.iter().copied().filter(|i| i != spared).collect();
                        prop_assert!(!enough(&rest));
                    }
                    let cheap: Vec<usize> =
                        may.iter().copied().filter(|i| qos_class(&pods[*i]) != QosClass::Guaranteed).collect();
                    if enough(&cheap) {
                        prop_assert!(gone.iter().all(|i| cheap.contains(i)));
                    }
                }
            }
        }
    }
}
