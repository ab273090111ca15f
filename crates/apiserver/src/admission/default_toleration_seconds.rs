//! DefaultTolerationSeconds: a pod stays five minutes on a node that is not ready or out of reach, unless it says
//! otherwise.
//! Upstream: plugin/pkg/admission/defaulttolerationseconds (v1.36).

use orlop_api::{Status, Value};
use serde_json::json;

use super::{Operation, Plugin, Review};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "DefaultTolerationSeconds",
    mutate: Some(mutate),
    validate: None,
};

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "pods") || review.operation == Operation::Delete {
        return Ok(());
    }
    let mut tolerations = items(pod, &["spec", "tolerations"]).to_vec();
    let before = tolerations.len();
    let switches = &review.config.admission;
    for (key, seconds) in [
        ("node.kubernetes.io/not-ready", switches.not_ready_toleration_seconds),
        (
            "node.kubernetes.io/unreachable",
            switches.unreachable_toleration_seconds,
        ),
    ] {
        // Any word on the matter counts, whatever its operator: no key and no effect mean all of them.
        let speaks_of = |t: &Value| {
            let (own, effect) = (text(t, &["key"]), text(t, &["effect"]));
            (own.is_empty() || own == key) && matches!(effect, "" | "NoExecute")
        };
        if !tolerations.iter().any(speaks_of) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
            }));
        }
    }
    if tolerations.len() > before {
        pod["spec"]["tolerations"] = tolerations.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Desk;
    use super::*;

    #[test]
    fn what_a_pod_says_itself_stands() {
        let toleration =
            |key: &str, effect: &str| json!({"key": key, "operator": "Equal", "value": "v", "effect": effect});
        let added =
            |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        let (ready, reach) = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable");
        let cases = [
            (vec![], vec![ready, reach]),
            (vec![toleration(ready, "NoExecute")], vec![reach]),
            (vec![toleration(reach, "")], vec![ready]),
            (vec![toleration(reach, "NoSchedule")], vec![ready, reach]),
            (vec![toleration("", "NoExecute")], vec![]),
            (vec![json!({"operator": "Exists"})], vec![]),
            (
                vec![json!({"operator": "Exists", "effect": "NoSchedule"})],
                vec![ready, reach],
            ),
            (vec![toleration(reach, "NoExecute"), toleration(ready, "")], vec![]),
        ];
        let desk = Desk::new();
        for (given, missing) in cases {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"tolerations": given}});
            let expected: Vec<Value> = given.iter().cloned().chain(missing.into_iter().map(added)).collect();
            let created = desk.create(&PLUGIN, "pods", pod.clone()).unwrap();
            assert_eq!(created["spec"]["tolerations"], Value::from(expected.clone()));
            let updated = desk.update(&PLUGIN, "pods", pod.clone(), created).unwrap();
            assert_eq!(updated["spec"]["tolerations"], Value::from(expected));
            let status = desk.update(&PLUGIN, "pods/status", pod.clone(), pod.clone()).unwrap();
            assert_eq!(status, pod);
        }
    }
}
