//! Component statuses: made up when asked for, never stored. Upstream: pkg/registry/core/componentstatus (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::field::Cursor;
use crate::kind::{Column, KindDef, Verbs};

pub const DEF: KindDef = KindDef {
    kind: "ComponentStatus",
    plural: "componentstatuses",
    singular: "componentstatus",
    short_names: &["cs"],
    namespaced: false,
    schema: "core/v1.ComponentStatus",
    verbs: Verbs::ReadOnly,
    columns: &[
        Column::string("Status"),
        Column::string("Message"),
        Column::string("Error"),
    ],
    cells,
    ..KindDef::BASE
};

/// The status of a component: healthy with a message, or not with an error.
pub fn component(name: &str, state: Result<&str, &str>) -> Value {
    let condition = match state {
        Ok(message) => json!({"type": "Healthy", "status": "True", "message": message}),
        Err(error) => json!({"type": "Healthy", "status": "False", "message": error}),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [condition],
    })
}

fn cells(component: &Value, _now: Timestamp) -> Vec<Value> {
    let conditions = Cursor::root(component).at("conditions");
    let healthy = conditions.items().find(|c| c.at("type").str() == "Healthy");
    let Some(condition) = healthy else {
        return vec!["Unknown".into(), "".into(), "".into()];
    };
    let status = if condition.at("status").str() == "True" {
        "Healthy"
    } else {
        "Unhealthy"
    };
    vec![
        status.into(),
        condition.at("message").str().into(),
        condition.at("error").str().into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::row;

    #[test]
    fn rows() {
        assert_eq!(row(&DEF, &component("scheduler", Ok("ok"))), "Healthy|ok|");
        assert_eq!(row(&DEF, &component("scheduler", Err("gone"))), "Unhealthy|gone|");
        assert_eq!(row(&DEF, &json!({})), "Unknown||");
    }
}
