//! What extenders respond. They are written against Go's JSON, which takes field names in any case: so do we.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::node::NodeId;
use crate::cluster::pod::PodInfo;
use crate::framework::verdict::Rejection;
use crate::preemption::Candidate;

/// Why a response can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseError {
    /// Not what the protocol asks for.
    #[error("{0}")]
    Malformed(String),
    /// The extender failed, in its own words.
    #[error("{0}")]
    Reported(String),
    /// It names nodes or pods that it can't mean.
    #[error("{0}")]
    Unknown(String),
}

fn malformed(reason: impl Into<String>) -> ResponseError {
    ResponseError::Malformed(reason.into())
}

/// A field of an object, null as if it were not there.
fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let map = object.as_object()?;
    let found = map.get(name).or_else(|| {
        map.iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    });
    found.filter(|v| !v.is_null())
}

fn expect_object<'a>(value: &'a Value, what: &str) -> Result<&'a Value, ResponseError> {
    match value {
        Value::Object(_) | Value::Null => Ok(value),
        _ => Err(malformed(format!("{what} must be an object"))),
    }
}

fn text(object: &Value, name: &str) -> Result<Option<String>, ResponseError> {
    match field(object, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed(format!("{name} must be a string"))),
    }
}

fn list<'a>(object: &'a Value, name: &str) -> Result<Option<&'a Vec<Value>>, ResponseError> {
    match field(object, name) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(malformed(format!("{name} must be a list"))),
    }
}

fn whole_number(object: &Value, name: &str) -> Result<i64, ResponseError> {
    match field(object, name) {
        None => Ok(0),
        Some(number) => number
            .as_i64()
            .ok_or_else(|| malformed(format!("{name} must be a whole number"))),
    }
}

/// The `Error` that every response may have.
pub(super) fn error(response: &Value) -> Option<String> {
    let error = text(response, "Error").unwrap_or_else(|error| Some(error.to_string()));
    error.filter(|error| !error.is_empty())
}

/// Which nodes passed, and why others did not.
pub(super) struct FilterResponse {
    passed: Vec<String>,
    failed: BTreeMap<String, String>,
    unresolvable: BTreeMap<String, String>,
}

impl FilterResponse {
    pub(super) fn read(response: &Value, names: bool) -> Result<FilterResponse, ResponseError> {
        let response = expect_object(response, "the response")?;
        if let Some(error) = error(response) {
            return Err(ResponseError::Reported(error));
        }
        let passed = match list(response, "NodeNames")?.filter(|_| names) {
            Some(names) => names
                .iter()
                .map(|n| n.as_str().map(str::to_string))
                .collect::<Option<_>>(),
            None => match field(response, "Nodes") {
                // Neither: no node will do.
                None => Some(vec![]),
                Some(nodes) => list(nodes, "items")?.map_or(Some(vec![]), |items| {
                    let name = |node: &Value| text(field(node, "metadata")?, "name").ok().flatten();
                    items.iter().map(name).collect()
                }),
            },
        };
        Ok(FilterResponse {
            passed: passed.ok_or_else(|| malformed("every node must have a name"))?,
            failed: messages(response, "FailedNodes")?,
            unresolvable: messages(response, "FailedAndUnresolvableNodes")?,
        })
    }

    /// The nodes that passed, in the extender's order; each must be one of the request.
    pub(super) fn kept(
        &self,
        cluster: &Cluster,
        asked: &[NodeId],
        extender: &str,
    ) -> Result<Vec<NodeId>, ResponseError> {
        let asked: HashSet<NodeId> = asked.iter().copied().collect();
        let mut seen = HashSet::new();
        let mut kept = vec![];
        for name in &self.passed {
            let id = cluster.node_named(name).map(|n| n.id).filter(|id| asked.contains(id));
            let id = id.ok_or_else(|| {
                ResponseError::Unknown(format!(
                    "extender {extender:?} claims a filtered node {name:?} which is not found in the input node list"
                ))
            })?;
            if seen.insert(id) {
                kept.push(id);
            }
        }
        Ok(kept)
    }

    /// Of nodes that are in both lists, what eviction can't mend counts.
    pub(super) fn rejections(&self, cluster: &Cluster) -> Vec<(NodeId, Rejection)> {
        let known = |name: &String| cluster.node_named(name).map(|n| n.id);
        let reject = |(name, why): (&String, &String), unresolvable| {
            Some((known(name)?, Rejection::because(why.clone(), unresolvable)))
        };
        let failed = self
            .failed
            .iter()
            .filter(|(name, _)| !self.unresolvable.contains_key(*name));
        (self.unresolvable.iter().filter_map(|entry| reject(entry, true)))
            .chain(failed.filter_map(|entry| reject(entry, false)))
            .collect()
    }
}

fn messages(response: &Value, name: &str) -> Result<BTreeMap<String, String>, ResponseError> {
    let Some(map) = field(response, name) else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_value(map.clone()).map_err(|_| malformed(format!("{name} must give a message for each node")))
}

/// Scores by node; of a node that is named twice, all count.
pub(super) fn scores(response: &Value) -> Result<HashMap<String, i64>, ResponseError> {
    let mut scores: HashMap<String, i64> = HashMap::new();
    let items = match response {
        Value::Null => return Ok(scores),
        Value::Array(items) => items,
        _ => return Err(malformed("the response must be a list of hosts with scores")),
    };
    for item in items {
        let item = expect_object(item, "a score")?;
        let host = text(item, "Host")?.unwrap_or_default();
        let score = scores.entry(host).or_default();
        *score = score.saturating_add(whole_number(item, "Score")?);
    }
    Ok(scores)
}

/// What is to go from a node: uids of pods, and how many disruption budgets it breaks.
pub(super) struct Victims {
    uids: Vec<String>,
    violations: usize,
}

/// By node; `None` where the extender names a node and says nothing of it.
pub(super) fn victims(response: &Value) -> Result<BTreeMap<String, Option<Victims>>, ResponseError> {
    let response = expect_object(response, "the response")?;
    let map = match field(response, "NodeNameToMetaVictims") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(malformed("NodeNameToMetaVictims must be an object")),
    };
    let read = |victims: &Value| -> Result<Option<Victims>, ResponseError> {
        if expect_object(victims, "victims")?.is_null() {
            return Ok(None);
        }
        let pods = list(victims, "Pods")?.map_or(&[][..], Vec::as_slice);
        let uids: Result<Vec<String>, ResponseError> =
            pods.iter().map(|p| Ok(text(p, "UID")?.unwrap_or_default())).collect();
        let violations = usize::try_from(whole_number(victims, "NumPDBViolations")?).unwrap_or(0);
        Ok(Some(Victims {
            uids: uids?,
            violations,
        }))
    };
    map.iter()
        .map(|(node, victims)| Ok((node.clone(), read(victims)?)))
        .collect()
}

/// Makes candidates of what the extender wants. It may drop nodes, and choose other pods, but only such as are there.
pub(super) fn candidates(
    victims: BTreeMap<String, Option<Victims>>,
    cluster: &Cluster,
    before: &[Candidate],
    ignorable: bool,
    extender: &str,
) -> Result<Vec<Candidate>, ResponseError> {
    let mut changed = vec![];
    for (name, victims) in victims {
        let node = cluster
            .node_named(&name)
            .ok_or_else(|| ResponseError::Unknown(format!("node {name:?} not found")))?;
        let victims = victims.unwrap_or(Victims {
            uids: vec![],
            violations: 0,
        });
        let find = |uid: &String| -> Result<Arc<PodInfo>, ResponseError> {
            let found = node.pods.iter().find(|p| *p.uid == **uid).cloned();
            found.ok_or_else(|| {
                ResponseError::Unknown(format!(
                    "extender: {extender} claims to preempt pod (UID: {uid}) on node: {name}, but the pod is not found \
                     on that node"
                ))
            })
        };
        let mut pods = victims.uids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if pods.is_empty() {
            if ignorable {
                continue;
            }
            return Err(malformed(format!("expected at least one victim pod on node {name:?}")));
        }
        pods.sort_by(|a, b| crate::preemption::more_important(a, b));
        changed.push(Candidate {
            node: node.id,
            name: node.name.clone(),
            victims: pods,
            violations: victims.violations,
        });
    }
    // As they were, as far as they were.
    let place = |c: &Candidate| before.iter().position(|b| b.node == c.node).unwrap_or(before.len());
    changed.sort_by_key(place);
    Ok(changed)
}
