//! What a workload file says. The words are those of scheduler_perf where the thing is the same.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

/// Numbers a size gives names to, such as `nodes` and `pods`.
pub(crate) type Params = BTreeMap<String, usize>;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Workload {
    pub name: String,
    /// One line for `--list`.
    #[serde(default)]
    pub description: String,
    /// The average (pods/s) that Kubernetes' own runs of size `full` must reach on its machines.
    pub upstream_threshold: Option<f64>,
    pub sizes: BTreeMap<String, Params>,
    /// Manifests of its own, before the shared ones.
    #[serde(default)]
    pub templates: BTreeMap<String, Value>,
    /// Done one after the other.
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Op {
    CreateNodes(CreateNodes),
    CreateNamespaces(CreateNamespaces),
    CreatePods(CreatePods),
    CreateAny(CreateAny),
    Churn(Churn),
    DeletePods(DeletePods),
    Wait(Wait),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNodes {
    pub count: Count,
    #[serde(default = "node")]
    pub template: String,
    /// Further labels; each node takes the next value of the list.
    #[serde(default)]
    pub labels: BTreeMap<String, Vec<String>>,
}

/// `count` namespaces `<prefix>-0`, `<prefix>-1` … A namespace without labels need not be made: using it is enough.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNamespaces {
    pub prefix: String,
    pub count: Count,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreatePods {
    pub count: Count,
    pub template: String,
    pub namespace: Option<String>,
    /// Instead of `namespace`: spread over those made by `createNamespaces`.
    pub namespaces: Option<Namespaces>,
    /// These are the pods the figures are about. Exactly one operation has it.
    #[serde(default)]
    pub measure: bool,
    /// Go on only when all are bound. False for pods that shall stay pending.
    #[serde(default = "yes")]
    pub wait: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Namespaces {
    pub prefix: String,
    pub count: Count,
}

/// Any other object, from its manifest.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateAny {
    pub template: String,
    #[serde(default = "one")]
    pub count: Count,
    pub namespace: Option<String>,
}

/// Until the end of the workload, every `interval_ms`: make one object of each template (`create`), or make them at one
/// tick and delete them at the next (`recreate`).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Churn {
    pub mode: ChurnMode,
    pub templates: Vec<String>,
    pub namespace: String,
    #[serde(default = "half_a_second")]
    pub interval_ms: u64,
    /// `create`: stop after so many ticks (0: never); `recreate`: how many of each there are at most.
    #[serde(default)]
    pub number: usize,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ChurnMode {
    Create,
    Recreate,
}

/// In the background, delete the pods of a namespace one by one, so many a second.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DeletePods {
    pub namespace: String,
    pub per_second: u32,
}

/// Wait so long, or for the pods of a namespace that were made with `wait: false`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Wait {
    #[serde(default)]
    pub seconds: f64,
    pub bound: Option<String>,
}

fn node() -> String {
    "node".into()
}

fn yes() -> bool {
    true
}

fn one() -> Count {
    Count::Number(1)
}

fn half_a_second() -> u64 {
    500
}

/// A number, or a product of numbers and parameters: `5`, `$nodes`, `4 * $nodes`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Count {
    Number(usize),
    Product(String),
}

impl Count {
    pub(crate) fn resolve(&self, params: &Params) -> anyhow::Result<usize> {
        let text = match self {
            Count::Number(n) => return Ok(*n),
            Count::Product(text) => text,
        };
        text.split('*').map(str::trim).try_fold(1_usize, |product, factor| {
            let value = match factor.strip_prefix('$') {
                Some(name) => *params
                    .get(name)
                    .with_context(|| format!("count {text:?}: the size gives no {name:?}"))?,
                None => factor
                    .parse()
                    .with_context(|| format!("count {text:?}: {factor:?} is not a number"))?,
            };
            product.checked_mul(value).context("the count is too large")
        })
    }
}

impl Workload {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Workload> {
        Ok(serde_saphyr::from_str(text)?)
    }

    /// The numbers of a size, with those given on the command line in their place.
    pub(crate) fn params(&self, size: &str, overrides: &Params) -> anyhow::Result<Params> {
        let mut params = match self.sizes.get(size) {
            Some(params) => params.clone(),
            None => {
                let known: Vec<&str> = self.sizes.keys().map(String::as_str).collect();
                bail!("{} has no size {size:?}; it has {}", self.name, known.join(", "))
            }
        };
        for (name, value) in overrides {
            if let Some(param) = params.get_mut(name) {
                *param = *value;
            }
        }
        Ok(params)
    }

    /// Everything wrong with it that can be known before it runs.
    pub(crate) fn problems(&self, params: &Params, shared: &BTreeMap<String, Value>) -> Vec<String> {
        let mut problems = vec![];
        let mut with_pods: Vec<&str> = vec![];
        for (i, op) in self.ops.iter().enumerate() {
            let mut found = op.problems(&with_pods);
            let unknown = |name: &&str| !self.templates.contains_key(*name) && !shared.contains_key(*name);
            let templates = op.templates().into_iter().filter(unknown);
            found.extend(templates.map(|name| format!("template {name:?} not found")));
            let counts = op.counts().into_iter().filter_map(|count| count.resolve(params).err());
            found.extend(counts.map(|e| format!("{e:#}")));
            let names = op.namespaces().into_iter().filter(|n| !is_label(n));
            found.extend(names.map(|n| format!("{n:?} is not valid in a namespace name")));
            problems.extend(found.iter().map(|problem| format!("ops[{i}]: {problem}")));
            if let Op::CreatePods(op) = op {
                with_pods.extend(op.namespace.as_deref());
            }
        }
        let measured = |op: &&Op| matches!(op, Op::CreatePods(o) if o.measure);
        match self.ops.iter().filter(measured).count() {
            1 => {}
            n => problems.push(format!("{n} operations have measure: true; it must be one")),
        }
        problems
    }
}

impl Op {
    fn templates(&self) -> Vec<&str> {
        match self {
            Op::CreateNodes(op) => vec![&op.template],
            Op::CreatePods(op) => vec![&op.template],
            Op::CreateAny(op) => vec![&op.template],
            Op::Churn(op) => op.templates.iter().map(String::as_str).collect(),
            Op::CreateNamespaces(_) | Op::DeletePods(_) | Op::Wait(_) => vec![],
        }
    }

    fn counts(&self) -> Vec<&Count> {
        match self {
            Op::CreateNodes(op) => vec![&op.count],
            Op::CreateNamespaces(op) => vec![&op.count],
            Op::CreatePods(op) => std::iter::once(&op.count)
                .chain(op.namespaces.iter().map(|n| &n.count))
                .collect(),
            Op::CreateAny(op) => vec![&op.count],
            Op::Churn(_) | Op::DeletePods(_) | Op::Wait(_) => vec![],
        }
    }

    fn namespaces(&self) -> Vec<&str> {
        match self {
            Op::CreateNamespaces(op) => vec![&op.prefix],
            Op::CreatePods(op) => op.namespace.iter().map(String::as_str).collect(),
            Op::CreateAny(op) => op.namespace.iter().map(String::as_str).collect(),
            Op::Churn(op) => vec![&op.namespace],
            Op::CreateNodes(_) | Op::DeletePods(_) | Op::Wait(_) => vec![],
        }
    }

    /// What only this sort of operation can get wrong. `with_pods`: namespaces that pods were made in before.
    fn problems(&self, with_pods: &[&str]) -> Vec<String> {
        let no_pods = |namespace: &String| !with_pods.contains(&namespace.as_str());
        let found = match self {
            Op::CreateNodes(op) => vec![(op.labels.values().any(Vec::is_empty), "a label has no values")],
            Op::CreatePods(op) => vec![(
                op.namespace.is_some() == op.namespaces.is_some(),
                "give either namespace or namespaces",
            )],
            Op::Churn(op) => vec![(op.interval_ms == 0, "intervalMs must be above 0")],
            Op::DeletePods(op) => vec![
                (no_pods(&op.namespace), "no pods were made in that namespace"),
                (op.per_second == 0, "perSecond must be above 0"),
            ],
            Op::Wait(op) => vec![
                (
                    op.bound.as_ref().is_some_and(no_pods),
                    "no pods were made in that namespace",
                ),
                (
                    !(0.0..=86_400.0).contains(&op.seconds),
                    "seconds must be between 0 and 86400",
                ),
            ],
            Op::CreateNamespaces(_) | Op::CreateAny(_) => vec![],
        };
        let wrong = found.into_iter().filter(|(wrong, _)| *wrong);
        wrong.map(|(_, problem)| problem.to_string()).collect()
    }
}

/// Namespaces get a prefix, so there is less room than a DNS label has.
fn is_label(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && name.len() <= 40 && name.bytes().all(good) && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_products() {
        let params = Params::from([("nodes".into(), 7)]);
        let cases = [
            ("$nodes", Some(7)),
            ("4 * $nodes", Some(28)),
            ("2*3", Some(6)),
            ("$pods", None),
            ("four", None),
            ("$nodes * 99999999999999999999", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(Count::Product(text.into()).resolve(&params).ok(), wanted, "{text}");
        }
    }

    #[test]
    fn problems_are_all_named() {
        let workload = Workload::parse(
            "name: x\nsizes: {full: {pods: 1}}\nops:\n  - createNodes: {count: $nodes, template: nope}\n  \
             - deletePods: {namespace: a, perSecond: 0}\n  - createPods: {count: 1, template: nope}\n",
        );
        let workload = workload.unwrap();
        let params = workload.params("full", &Params::new()).unwrap();
        let problems = workload.problems(&params, &BTreeMap::new());
        for part in [
            "gives no \"nodes\"",
            "template \"nope\" not found",
            "no pods were made",
            "perSecond",
            "either namespace",
            "must be one",
        ] {
            assert!(problems.iter().any(|p| p.contains(part)), "{part}: {problems:?}");
        }
    }

    #[test]
    fn unknown_words_and_sizes_are_refused() {
        for text in [
            "name: x\nsizes: {}\nops: [{createPods: {cuont: 1}}]",
            "name: x\nsizes: {}\nops: [{fly: {}}]",
            "name: x\nsizes: {full: {pods: many}}\nops: []",
        ] {
            assert!(Workload::parse(text).is_err(), "{text}");
        }
        let workload = Workload::parse("name: x\nsizes: {full: {pods: 1}}\nops: []").unwrap();
        let error = workload.params("huge", &Params::new()).unwrap_err();
        assert!(error.to_string().contains("it has full"), "{error}");
    }
}
