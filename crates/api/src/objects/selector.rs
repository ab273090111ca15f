//! Label selectors and node selectors in the form in which objects hold them.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

use super::{Labels, or_default};
use crate::selector::{Op, Requirement};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LabelSelector {
    #[serde(deserialize_with = "or_default")]
    pub match_labels: Labels,
    #[serde(deserialize_with = "label_requirements")]
    pub match_expressions: Vec<Requirement>,
}

impl LabelSelector {
    /// Selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|r| holds(r, labels))
    }
}

/// Terms are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    #[serde(deserialize_with = "or_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

impl NodeSelector {
    /// The node's name and its labels.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.node_selector_terms.iter().any(|term| term.matches(name, labels))
    }
}

/// All of it must hold; an empty one matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    #[serde(deserialize_with = "node_requirements")]
    pub match_expressions: Vec<Requirement>,
    #[serde(deserialize_with = "field_requirements")]
    pub match_fields: Vec<Requirement>,
}

/// The only field of a node that terms can be about.
pub const NAME_FIELD: &str = "metadata.name";

impl NodeSelectorTerm {
    pub fn is_empty(&self) -> bool {
        self.match_expressions.is_empty() && self.match_fields.is_empty()
    }

    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let named = |field: &Requirement| field.key == NAME_FIELD && field.matches(Some(name));
        !self.is_empty()
            && self.match_expressions.iter().all(|r| holds(r, labels))
            && self.match_fields.iter().all(named)
    }
}

fn holds(requirement: &Requirement, labels: &Labels) -> bool {
    requirement.matches(labels.get(&requirement.key).map(String::as_str))
}

/// A requirement as it is written.
#[derive(Deserialize)]
#[serde(default)]
struct Written<'a> {
    key: String,
    #[serde(borrow)]
    operator: Cow<'a, str>,
    #[serde(deserialize_with = "or_default")]
    values: Vec<String>,
}

impl Default for Written<'_> {
    fn default() -> Self {
        Written {
            key: String::new(),
            operator: Cow::Borrowed(""),
            values: vec![],
        }
    }
}

/// Which operators there are depends on what the selector is for; the others match nothing.
fn requirements<'de, D: Deserializer<'de>>(
    from: D,
    read: fn(&str, Vec<String>) -> Op,
) -> Result<Vec<Requirement>, D::Error> {
    let written: Vec<Written<'de>> = or_default(from)?;
    let requirement = |r: Written<'de>| Requirement {
        key: r.key,
        op: read(&r.operator, r.values),
    };
    Ok(written.into_iter().map(requirement).collect())
}

fn label_requirements<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Requirement>, D::Error> {
    requirements(from, label_operator)
}

fn node_requirements<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Requirement>, D::Error> {
    requirements(from, node_operator)
}

fn field_requirements<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Requirement>, D::Error> {
    requirements(from, field_operator)
}

fn label_operator(operator: &str, values: Vec<String>) -> Op {
    match operator {
        "Exists" => Op::Exists,
        "DoesNotExist" => Op::DoesNotExist,
        _ => field_operator(operator, values),
    }
}

/// Beside the operators of label selectors: Gt and Lt, on whole numbers.
fn node_operator(operator: &str, values: Vec<String>) -> Op {
    let bound = || match values.as_slice() {
        [bound] => bound.parse::<i64>().ok(),
        _ => None,
    };
    match operator {
        "Gt" => bound().map_or(Op::Unknown, Op::Gt),
        "Lt" => bound().map_or(Op::Unknown, Op::Lt),
        _ => label_operator(operator, values),
    }
}

fn field_operator(operator: &str, values: Vec<String>) -> Op {
    match operator {
        "In" => Op::In(values),
        "NotIn" => Op::NotIn(values),
        _ => Op::Unknown,
    }
}
