//! Which nodes will do.

use serde::Deserialize;

use super::{Labels, Node};

/// Terms are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// All of it must hold; an empty one matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<NodeRequirement>,
    pub match_fields: Vec<NodeRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeRequirement {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

impl NodeSelector {
    pub fn matches(&self, node: &Node) -> bool {
        self.node_selector_terms.iter().any(|term| term.matches(node))
    }
}

impl NodeSelectorTerm {
    fn matches(&self, node: &Node) -> bool {
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        !is_empty
            && self
                .match_expressions
                .iter()
                .all(|r| r.matches_label(&node.metadata.labels))
            && self.match_fields.iter().all(|r| r.matches_name(&node.metadata.name))
    }
}

impl NodeRequirement {
    /// An operator that the API does not know matches nothing.
    fn matches_label(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let among = || value.is_some_and(|value| self.values.contains(value));
        let compared = || {
            let [bound] = self.values.as_slice() else { return None };
            Some(value?.parse::<i64>().ok()?.cmp(&bound.parse().ok()?))
        };
        match self.operator.as_str() {
            "In" => among(),
            "NotIn" => !among(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared().is_some_and(|order| order.is_gt()),
            "Lt" => compared().is_some_and(|order| order.is_lt()),
            _ => false,
        }
    }

    /// `metadata.name` is the only field there is.
    fn matches_name(&self, name: &str) -> bool {
        let among = || self.values.iter().any(|value| value == name);
        match (self.key.as_str(), self.operator.as_str()) {
            ("metadata.name", "In") => among(),
            ("metadata.name", "NotIn") => !among(),
            _ => false,
        }
    }
}
