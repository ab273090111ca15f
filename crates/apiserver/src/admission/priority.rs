//! Priority: a pod's class becomes its number; one class at most is the default of all others.

use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
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
        Operation::Delete => Ok(()),
    }
}

fn set_priority(review: &Review<'_>, pod: &mut Value) -> Result<(), Status> {
    let named = pod["spec"]["priorityClassName"].as_str().unwrap_or("").to_string();
    let (name, priority, policy) = if named.is_empty() {
        let classes = review.lookup.list(CLASSES, None);
        // With two defaults (made at the same time) the smaller one counts.
        let default = classes
            .iter()
            .filter(|c| c["globalDefault"] == true)
            .min_by_key(|c| c["value"].as_i64());
        match default {
            Some(class) => (text(&class["metadata"], "name"), value(class), policy(class)),
            None => (String::new(), 0, "PreemptLowerPriority".to_string()),
        }
    } else {
        let class = review
            .lookup
            .get(CLASSES, "", &named)
            .ok_or_else(|| review.forbidden(format!("no PriorityClass with name {named} was found")))?;
        (named, value(&class), policy(&class))
    };
    if let Some(given) = pod["spec"]["priority"].as_i64()
        && given != priority
    {
        return Err(review.forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        )));
    }
    if let Some(given) = pod["spec"]["preemptionPolicy"].as_str()
        && given != policy
    {
        return Err(review.forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if !name.is_empty() {
        pod["spec"]["priorityClassName"] = name.into();
    }
    pod["spec"]["priority"] = priority.into();
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or("").to_string()
}

fn value(class: &Value) -> i64 {
    class["value"].as_i64().unwrap_or(0)
}

fn policy(class: &Value) -> String {
    class["preemptionPolicy"]
        .as_str()
        .unwrap_or("PreemptLowerPriority")
        .to_string()
}

fn validate(review: &Review<'_>, class: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(class) = class.filter(|_| review.is("scheduling.k8s.io", "priorityclasses")) else {
        return Ok(vec![]);
    };
    if class["globalDefault"] == true {
        let other = review
            .lookup
            .list(CLASSES, None)
            .into_iter()
            .find(|c| c["globalDefault"] == true && c["metadata"]["name"] != class["metadata"]["name"]);
        if let Some(other) = other {
            let name = text(&other["metadata"], "name");
            return Err(review.forbidden(format!(
                "PriorityClass {name} is already marked as default. Only one default can exist"
            )));
        }
    }
    Ok(vec![])
}
