//! DefaultTolerationSeconds: a pod stays five minutes on a node that is not ready or out of reach, unless it says
//! otherwise.

use orlop_api::{Status, Value};
use serde_json::json;

use super::{Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "DefaultTolerationSeconds",
    mutate: Some(mutate),
    validate: None,
};

const SECONDS: i64 = 300;

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !review.is("", "pods") || review.operation == Operation::Delete {
        return Ok(());
    }
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let before = tolerations.len();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = |t: &Value| {
            let word = |name: &str| t.get(name).and_then(Value::as_str).unwrap_or("");
            matches!(
                word("key"),
                "" | "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable"
            ) && (word("key").is_empty() || word("key") == key)
                && matches!(word("effect"), "" | "NoExecute")
        };
        if !tolerations.iter().any(tolerated) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS,
            }));
        }
    }
    if tolerations.len() > before {
        pod["spec"]["tolerations"] = tolerations.into();
    }
    Ok(())
}
