//! Whether a container that has ended is started again.

use serde_json::Value;

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

fn rules(container: &Value) -> &[Value] {
    container
        .get("restartPolicyRules")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Decided by the container's rules for exit codes, then by its own policy, then by the pod's.
pub fn should_restart(container: &Value, spec: &Value, exit_code: i64) -> bool {
    let by_policy = |policy: &str| match policy {
        "Always" => Some(true),
        "OnFailure" => Some(exit_code != 0),
        "Never" => Some(false),
        _ => None,
    };
    let own = text(container, "restartPolicy");
    if !own.is_empty() {
        let rule = rules(container).iter().find(|rule| matches(rule, exit_code));
        if rule.is_some_and(|r| matches!(text(r, "action"), "Restart" | "RestartAllContainers")) {
            return true;
        }
        if let Some(decided) = by_policy(own) {
            return decided;
        }
    }
    by_policy(text(spec, "restartPolicy")).unwrap_or(true)
}

fn matches(rule: &Value, exit_code: i64) -> bool {
    let Some(codes) = rule.get("exitCodes") else {
        return false;
    };
    let values = codes.get("values").and_then(Value::as_array);
    let listed = values.is_some_and(|v| v.iter().any(|c| c.as_i64() == Some(exit_code)));
    match text(codes, "operator") {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// Some container's end may start all of them again.
pub fn all_may_restart(spec: &Value) -> bool {
    ["initContainers", "containers"].iter().any(|list| {
        let containers = spec.get(*list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        containers
            .iter()
            .flat_map(rules)
            .any(|rule| text(rule, "action") == "RestartAllContainers")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_come_before_policies() {
        let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
        let plain = json!({});
        let never = json!({"restartPolicy": "Never", "restartPolicyRules": rules});
        let always = json!({"restartPolicy": "Always"});
        for (container, pod, code, want) in [
            (&plain, "Always", 0, true),
            (&plain, "OnFailure", 0, false),
            (&plain, "OnFailure", 1, true),
            (&plain, "Never", 1, false),
            (&never, "Always", 42, true),
            (&never, "Always", 1, false),
            (&always, "Never", 0, true),
        ] {
            let spec = json!({"restartPolicy": pod});
            assert_eq!(should_restart(container, &spec, code), want, "{container} {pod} {code}");
        }
        assert!(!all_may_restart(&json!({"containers": [never]})));
        let all = json!({"initContainers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]});
        assert!(all_may_restart(&all));
    }
}
