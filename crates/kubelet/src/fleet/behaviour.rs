//! How simulated pods and nodes behave: from annotations, else from the first rule that matches, else as most pods do.

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_api::metrics::Usage;
use orlop_api::quantity::Quantity;
use serde::Deserialize;

use super::life::PodView;

/// Annotations of a pod, each a duration ("1.5s", "2m") or a number.
pub const START_DELAY: &str = "orlop.io/start-delay";
pub const READY_DELAY: &str = "orlop.io/ready-delay";
pub const RUN_FOR: &str = "orlop.io/run-for";
pub const EXIT_CODE: &str = "orlop.io/exit-code";
/// These hold for every container of the pod, and with `.NAME` behind them for the one of that name.
pub const CPU: &str = "orlop.io/cpu";
pub const MEMORY: &str = "orlop.io/memory";
pub const LOG: &str = "orlop.io/log";
/// Annotation of a node: see `Fault`.
pub const FAULT: &str = "orlop.io/fault";

/// What a container uses of which nothing is said: as little as on a node with a simulated runtime.
const USAGE: Usage = Usage {
    cpu_nano_cores: 1_000_000,
    memory_bytes: 1 << 20,
};

/// What is wrong with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It says nothing any more: no heartbeats, and nothing happens to its pods.
    Silent,
    NotReady,
    MemoryPressure,
    DiskPressure,
    PidPressure,
}

impl Fault {
    pub fn parse(text: &str) -> Option<Fault> {
        Some(match text {
            "silent" => Fault::Silent,
            "not-ready" => Fault::NotReady,
            "memory-pressure" => Fault::MemoryPressure,
            "disk-pressure" => Fault::DiskPressure,
            "pid-pressure" => Fault::PidPressure,
            _ => return None,
        })
    }
}

/// How one pod behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Behaviour {
    /// From binding to running.
    pub start_delay: Duration,
    /// From running to ready.
    pub ready_delay: Duration,
    /// How long containers run; `None`: until the pod is deleted.
    pub run_for: Option<Duration>,
    pub exit_code: i32,
}

/// The rules of a file. The first that matches a pod counts; annotations of the pod go before any rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default)]
    pods: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Rule {
    /// Everything named must be so; nothing named matches every pod.
    namespace: Option<String>,
    labels: BTreeMap<String, String>,
    /// Kind of the controlling owner, such as `Job`.
    owner: Option<String>,
    start_delay: Option<Span>,
    ready_delay: Option<Span>,
    run_for: Option<Span>,
    exit_code: Option<i32>,
    cpu: Option<Amount>,
    memory: Option<Amount>,
}

/// A quantity as Kubernetes writes it, `250m` or `64Mi`: in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Amount(u128);

impl TryFrom<String> for Amount {
    type Error = String;

    fn try_from(text: String) -> Result<Amount, String> {
        let read = Quantity::parse(&text).ok().and_then(|q| u128::try_from(q.nanos()).ok());
        read.map(Amount)
            .ok_or_else(|| format!("{text:?} is not a quantity such as \"250m\" or \"64Mi\""))
    }
}

/// A duration as Kubernetes writes it: `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Span(Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Span, String> {
        span(&text).map(Span)
    }
}

fn span(text: &str) -> Result<Duration, String> {
    let nanos = orlop_api::duration::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a duration such as \"1.5s\""))?;
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| format!("{text:?} is a negative duration"))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RulesError(String);

impl Rules {
    pub fn parse(yaml: &str) -> Result<Rules, RulesError> {
        serde_saphyr::from_str(yaml).map_err(|e| RulesError(e.to_string()))
    }

    /// What a container of the pod uses while it runs.
    pub(super) fn usage(&self, pod: &PodView, container: &str) -> Usage {
        let rule = self.pods.iter().find(|rule| rule.matches(pod));
        let annotated = |name| Amount::try_from(annotation(&pod.annotations, name, container)?.to_string()).ok();
        let cpu = annotated(CPU).or(rule.and_then(|rule| rule.cpu));
        let memory = annotated(MEMORY).or(rule.and_then(|rule| rule.memory));
        let number = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        Usage {
            cpu_nano_cores: cpu.map_or(USAGE.cpu_nano_cores, |Amount(nano)| number(nano)),
            memory_bytes: memory.map_or(USAGE.memory_bytes, |Amount(nano)| number(nano / 1_000_000_000)),
        }
    }

    pub(super) fn of(&self, pod: &PodView) -> Behaviour {
        let mut behaviour = Behaviour::default();
        // A job's pods come to an end, or no job ever would.
        if pod.owner.as_deref() == Some("Job") {
            behaviour.run_for = Some(Duration::from_secs(1));
        }
        if let Some(rule) = self.pods.iter().find(|rule| rule.matches(pod)) {
            rule.apply(&mut behaviour);
        }
        annotated(&mut behaviour, &pod.annotations);
        behaviour
    }
}

impl Rule {
    fn matches(&self, pod: &PodView) -> bool {
        self.namespace.as_ref().is_none_or(|n| *n == pod.namespace)
            && self.owner.as_ref().is_none_or(|o| Some(o) == pod.owner.as_ref())
            && self.labels.iter().all(|(k, v)| pod.labels.get(k) == Some(v))
    }

    fn apply(&self, behaviour: &mut Behaviour) {
        if let Some(Span(delay)) = self.start_delay {
            behaviour.start_delay = delay;
        }
        if let Some(Span(delay)) = self.ready_delay {
            behaviour.ready_delay = delay;
        }
        if let Some(Span(run)) = self.run_for {
            behaviour.run_for = Some(run);
        }
        if let Some(code) = self.exit_code {
            behaviour.exit_code = code;
        }
    }
}

/// What an annotation says of a container: its own goes before that for all.
pub(super) fn annotation<'a>(
    annotations: &'a BTreeMap<String, String>,
    name: &str,
    container: &str,
) -> Option<&'a str> {
    let own = annotations.get(&format!("{name}.{container}"));
    own.or_else(|| annotations.get(name)).map(String::as_str)
}

/// What can't be read is left out: a simulation goes on.
fn annotated(behaviour: &mut Behaviour, annotations: &BTreeMap<String, String>) {
    let time = |name: &str| annotations.get(name).and_then(|text| span(text).ok());
    if let Some(delay) = time(START_DELAY) {
        behaviour.start_delay = delay;
    }
    if let Some(delay) = time(READY_DELAY) {
        behaviour.ready_delay = delay;
    }
    if let Some(run) = time(RUN_FOR) {
        behaviour.run_for = Some(run);
    }
    if let Some(code) = annotations.get(EXIT_CODE).and_then(|text| text.parse().ok()) {
        behaviour.exit_code = code;
    }
}
