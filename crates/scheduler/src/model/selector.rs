//! Label selectors and node selectors, and whether labels match them.

use serde::Deserialize;

use super::Labels;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    pub match_labels: Labels,
    pub match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Requirement {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|r| r.matches(labels))
    }
}

impl Requirement {
    /// An operator that the API does not know matches nothing.
    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => !value.is_some_and(|v| self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

/// Terms are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// All of it must hold; an empty one matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<NodeRequirement>,
    pub match_fields: Vec<NodeRequirement>,
}

pub type NodeRequirement = Requirement;

impl NodeSelector {
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector_terms.iter().any(|t| t.matches(name, labels))
    }
}

impl NodeSelectorTerm {
    pub fn is_empty(&self) -> bool {
        self.match_expressions.is_empty() && self.match_fields.is_empty()
    }

    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        !self.is_empty()
            && self
                .match_expressions
                .iter()
                .all(|r| r.matches_node(labels.get(&r.key)))
            && self.match_fields.iter().all(|r| r.matches_field(name))
    }
}

impl Requirement {
    /// Beside the operators of label selectors: Gt and Lt, on whole numbers.
    fn matches_node(&self, value: Option<&String>) -> bool {
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => !value.is_some_and(|v| self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => self.compared(value).is_some_and(|(label, bound)| label > bound),
            "Lt" => self.compared(value).is_some_and(|(label, bound)| label < bound),
            _ => false,
        }
    }

    fn compared(&self, value: Option<&String>) -> Option<(i64, i64)> {
        let [bound] = self.values.as_slice() else { return None };
        Some((value?.parse().ok()?, bound.parse().ok()?))
    }

    /// `metadata.name` is the only field there is.
    fn matches_field(&self, name: &str) -> bool {
        let among = || self.values.iter().any(|v| v == name);
        match (self.key.as_str(), self.operator.as_str()) {
            ("metadata.name", "In") => among(),
            ("metadata.name", "NotIn") => !among(),
            _ => false,
        }
    }
}
