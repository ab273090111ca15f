//! Priority: a pod's class becomes its number; one class at most is the default of all others.
//! Upstream: plugin/pkg/admission/priority (v1.36).

use std::sync::Arc;

use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};
use crate::lookup::text;

pub(super) const PLUGIN: Plugin = Plugin {
    name: "Priority",
    mutate: Some(mutate),
    validate: Some(validate),
};

const CLASSES: &str = "priorityclasses.scheduling.k8s.io";

fn mutate(review: &Review<'_>, pod: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "pods") {
        return Ok(());
    }
    match review.operation {
        Operation::Create => set_priority(review, pod),
        // An update may leave out what the system had filled in.
        Operation::Update => {
            for name in ["priority", "preemptionPolicy"] {
                if pod["spec"].get(name).is_none()
                    && let Some(before) = old.and_then(|o| o["spec"].get(name))
                {
                    pod["spec"][name] = before.clone();
                }
            }
            Ok(())
        }
        Operation::Delete | Operation::Connect => Ok(()),
    }
}

/// With two defaults (made at the same time) the smaller one counts.
fn default_class(review: &Review<'_>) -> Option<Arc<Value>> {
    let classes = review.lookup.list(CLASSES, None);
    let defaults = classes.into_iter().filter(|c| c["globalDefault"] == true);
    defaults.min_by_key(|c| value(c))
}

fn value(class: &Value) -> i64 {
    class["value"].as_i64().unwrap_or(0)
}

fn set_priority(review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
    let class = match text(pod, &["spec", "priorityClassName"]) {
        "" => default_class(review),
        name => match review.lookup.get(CLASSES, "", name) {
            Some(class) => Some(class),
            None => return Err(review.forbidden(format!("no PriorityClass with name {name} was found"))),
        },
    };
    let class = class.as_deref();
    let priority = class.map_or(0, value);
    let policy = match class.map_or("", |c| text(c, &["preemptionPolicy"])) {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    if let Some(given) = pod["spec"]["priority"].as_i64().filter(|p| *p != priority) {
        return Err(review.forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        )));
    }
    if let Some(given) = pod["spec"]["preemptionPolicy"].as_str().filter(|p| *p != policy) {
        return Err(review.forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = class["metadata"]["name"].clone();
    }
    pod["spec"]["priority"] = priority.into();
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}

fn validate(review: &Review<'_>, class: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(class) = class.filter(|_| review.is("scheduling.k8s.io", "priorityclasses")) else {
        return Ok(vec![]);
    };
    if class["globalDefault"] == true
        && let Some(other) = default_class(review)
        && other["metadata"]["name"] != class["metadata"]["name"]
    {
        return Err(review.forbidden(format!(
            "PriorityClass {} is already marked as default. Only one default can exist",
            text(&other, &["metadata", "name"])
        )));
    }
    Ok(vec![])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    fn class(name: &str, value: i64, default: bool) -> Value {
        json!({"metadata": {"name": name}, "value": value, "globalDefault": default, "preemptionPolicy": "Never"})
    }

    #[test]
    fn classes_become_numbers() {
        let bare = Desk::new().with(CLASSES, class("high", 100, false));
        let defaulted = Desk::new()
            .with(CLASSES, class("high", 100, false))
            .with(CLASSES, class("a", 9, true))
            .with(CLASSES, class("b", 5, true));
        let integer = |given: i64, computed: i64| {
            format!(
                "pods \"p\" is forbidden: the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
            )
        };
        let policy = "pods \"p\" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name";
        let spec = |name: &str, priority: i64, policy: &str| {
            Ok(json!({"priorityClassName": name, "priority": priority, "preemptionPolicy": policy}))
        };
        let cases = [
            (
                &bare,
                json!({}),
                Ok(json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})),
            ),
            (&bare, json!({"priorityClassName": "high"}), spec("high", 100, "Never")),
            (
                &bare,
                json!({"priorityClassName": "high", "priority": 100}),
                spec("high", 100, "Never"),
            ),
            (
                &bare,
                json!({"priorityClassName": "high", "priority": 1}),
                Err(integer(1, 100)),
            ),
            (&bare, json!({"priority": 7}), Err(integer(7, 0))),
            (
                &bare,
                json!({"priorityClassName": "high", "preemptionPolicy": "PreemptLowerPriority"}),
                Err(policy.to_string()),
            ),
            (
                &bare,
                json!({"priorityClassName": "gone"}),
                Err("pods \"p\" is forbidden: no PriorityClass with name gone was found".to_string()),
            ),
            (&defaulted, json!({}), spec("b", 5, "Never")),
            (
                &defaulted,
                json!({"priorityClassName": "high"}),
                spec("high", 100, "Never"),
            ),
        ];
        for (desk, given, expected) in cases {
            let pod = json!({"metadata": {"name": "p"}, "spec": given});
            let created = desk.create(&PLUGIN, "pods", pod);
            let result = created.map(|p| p["spec"].clone()).map_err(|s| s.message);
            assert_eq!(result, expected, "{given}");
        }
        let old = json!({"metadata": {"name": "p"}, "spec": {"priority": 3, "preemptionPolicy": "Never"}});
        let new = json!({"metadata": {"name": "p"}, "spec": {"preemptionPolicy": "X"}});
        let updated = bare.update(&PLUGIN, "pods", new, old).unwrap();
        assert_eq!(updated["spec"], json!({"priority": 3, "preemptionPolicy": "X"}));
    }

    #[test]
    fn one_class_is_the_default() {
        let desk = Desk::new().with(CLASSES, class("a", 9, true));
        let refused = "priorityclasses.scheduling.k8s.io \"b\" is forbidden: PriorityClass a is already marked as default. Only one default can exist";
        assert_eq!(told(desk.create(&PLUGIN, CLASSES, class("b", 1, true))), refused);
        assert_eq!(told(desk.create(&PLUGIN, CLASSES, class("b", 1, false))), "ok");
        let updated = desk.update(&PLUGIN, CLASSES, class("b", 1, true), class("b", 1, false));
        assert_eq!(told(updated), refused);
        let own = desk.update(&PLUGIN, CLASSES, class("a", 9, true), class("a", 9, true));
        assert_eq!(told(own), "ok");
    }
}
