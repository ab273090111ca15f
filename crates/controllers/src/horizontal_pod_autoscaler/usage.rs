//! How many pods the measurements ask for.
//!
//! Pods without a measurement must not make the change larger than it would be with one: scaling down they count as using all
//! they may, scaling up as using nothing. So do pods that are not ready yet, when scaling up.
// Upstream: pkg/controller/podautoscaler/replica_calculator.go (v1.36)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::quantity::Quantity;

use crate::objects::horizontal_pod_autoscaler::PodMetrics;
use crate::objects::pod::Container;
use crate::objects::{Pod, condition};

/// What one pod used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// In thousandths.
    pub value: i64,
    pub at: Timestamp,
    /// Taken over this long.
    pub window: Duration,
}

pub(super) type Samples = BTreeMap<String, Sample>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Percent of what the pods request.
    Utilization(i64),
    /// Thousandths, for each pod.
    Average(i64),
}

/// Deviations that are not acted on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn allow(&self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// How long after its start a pod's CPU says little about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warmup {
    pub cpu_initialization: Duration,
    pub initial_readiness: Duration,
}

pub(super) struct Question<'a> {
    pub current: i64,
    pub pods: &'a [Arc<Pod>],
    pub samples: Samples,
    pub resource: &'a str,
    /// Empty: the whole pod.
    pub container: &'a str,
    pub target: Target,
    pub tolerances: Tolerances,
    pub warmup: Warmup,
    pub now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub replicas: i64,
    /// Percent of the requests, where that is the target.
    pub utilization: Option<i64>,
    /// Thousandths, for each pod.
    pub average: i64,
}

/// What the pods used of a resource; pods of which a part was not measured are left out.
pub(super) fn samples(metrics: &[PodMetrics], resource: &str, container: &str) -> Samples {
    let usage = |pod: &PodMetrics| -> Option<i64> {
        let mut concerned = pod
            .containers
            .iter()
            .filter(|c| container.is_empty() || c.name == container)
            .peekable();
        concerned.peek()?;
        let milli = |text: &String| Quantity::parse(text).ok().map(|q| q.milli_value());
        concerned.map(|c| c.usage.get(resource).and_then(milli)).sum()
    };
    let one = |pod: &PodMetrics| {
        let nanos = orlop_api::duration::parse_duration(&pod.window).unwrap_or(0);
        let sample = Sample {
            value: usage(pod)?,
            at: pod.timestamp?,
            window: Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)),
        };
        Some((pod.metadata.name.clone(), sample))
    };
    metrics.iter().filter_map(one).collect()
}

/// The pods by what their samples are worth.
#[derive(Default)]
struct Groups {
    ready: i64,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

/// Why no size can be told from what was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    /// Nothing was measured that counts.
    #[error("{0}")]
    NoSamples(&'static str),
    /// A pod does not say what its usage is a share of.
    #[error("{0}")]
    NoRequest(String),
}

impl Question<'_> {
    pub(super) fn answer(&self) -> Result<Proposal, UsageError> {
        if self.pods.is_empty() {
            return Err(UsageError::NoSamples(
                "no pods returned by selector while calculating replica count",
            ));
        }
        let groups = self.groups();
        let mut samples = self.samples.clone();
        samples.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
        if samples.is_empty() {
            return Err(UsageError::NoSamples(
                "did not receive metrics for targeted pods (pods might be unready)",
            ));
        }
        let requests = match self.target {
            Target::Average(_) => BTreeMap::new(),
            Target::Utilization(_) => self.requests()?,
        };
        let (ratio, utilization, average) = self.ratio(&samples, &requests)?;
        let proposal = |replicas| Proposal {
            replicas,
            utilization,
            average,
        };
        let unready_count = !groups.unready.is_empty() && ratio > 1.0;
        if !unready_count && groups.missing.is_empty() {
            return Ok(proposal(match self.tolerances.allow(ratio) {
                true => self.current,
                false => times(ratio, groups.ready),
            }));
        }
        self.fill_in(&mut samples, &requests, &groups, ratio);
        let (new_ratio, _, _) = self.ratio(&samples, &requests)?;
        let turned = (ratio < 1.0 && new_ratio > 1.0) || (ratio > 1.0 && new_ratio < 1.0);
        if self.tolerances.allow(new_ratio) || turned {
            return Ok(proposal(self.current));
        }
        let wanted = times(new_ratio, i64::try_from(samples.len()).unwrap_or(i64::MAX));
        let backwards = (new_ratio < 1.0 && wanted > self.current) || (new_ratio > 1.0 && wanted < self.current);
        Ok(proposal(if backwards { self.current } else { wanted }))
    }

    /// Conservative assumptions for pods without metrics.
    fn fill_in(&self, samples: &mut Samples, requests: &BTreeMap<String, i64>, groups: &Groups, ratio: f64) {
        let mut guess = |name: &String, value: i64| {
            let sample = Sample {
                value,
                at: self.now,
                window: Duration::ZERO,
            };
            samples.insert(name.clone(), sample);
        };
        for name in &groups.missing {
            if ratio > 1.0 {
                guess(name, 0);
            } else if ratio < 1.0 {
                let request = requests.get(name).copied().unwrap_or(0);
                guess(
                    name,
                    match self.target {
                        Target::Average(target) => target,
                        Target::Utilization(percent) => request.saturating_mul(percent.max(100)) / 100,
                    },
                );
            }
        }
        if ratio > 1.0 {
            groups.unready.iter().for_each(|name| guess(name, 0));
        }
    }

    fn groups(&self) -> Groups {
        let mut groups = Groups::default();
        for pod in self.pods {
            let name = pod.metadata.name.clone();
            if pod.metadata.is_deleted() || pod.status.phase == "Failed" {
                groups.ignored.insert(name);
            } else if pod.status.phase == "Pending" {
                groups.unready.insert(name);
            } else if let Some(sample) = self.samples.get(&name) {
                if self.resource == "cpu" && self.is_warming_up(pod, sample) {
                    groups.unready.insert(name);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(name);
            }
        }
        groups
    }

    /// Its CPU usage reflects its start rather than its work.
    fn is_warming_up(&self, pod: &Pod, sample: &Sample) -> bool {
        let (Some(ready), Some(start)) = (condition::find(&pod.status.conditions, "Ready"), pod.status.start_time)
        else {
            return true;
        };
        let later = |t: Timestamp, by: Duration| t.checked_add(by).unwrap_or(Timestamp::MAX);
        let since = ready.last_transition_time.unwrap_or(Timestamp::MIN);
        let unready = ready.status == "False";
        if later(start, self.warmup.cpu_initialization) > self.now {
            unready || sample.at < later(since, sample.window)
        } else {
            // Never ready since it started.
            unready && later(start, self.warmup.initial_readiness) > since
        }
    }

    fn requests(&self) -> Result<BTreeMap<String, i64>, UsageError> {
        let request = |pod: &Arc<Pod>| Ok((pod.metadata.name.clone(), self.request(pod)?));
        self.pods.iter().map(request).collect()
    }

    fn request(&self, pod: &Pod) -> Result<i64, UsageError> {
        let milli = |requests: &BTreeMap<String, String>| {
            let text = requests.get(self.resource)?;
            Quantity::parse(text).ok().map(|q| q.milli_value())
        };
        let whole = pod
            .spec
            .resources
            .as_ref()
            .and_then(|resources| milli(&resources.requests));
        if let (Some(whole), "") = (whole, self.container) {
            return Ok(whole);
        }
        let name = &pod.metadata.name;
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
        let all = pod.spec.containers.iter().chain(sidecars);
        let concerned: Vec<&Container> = all
            .filter(|c| self.container.is_empty() || c.name == self.container)
            .collect();
        if concerned.is_empty() && !self.container.is_empty() {
            let reason = format!("container {} not found in Pod {name}", self.container);
            return Err(UsageError::NoRequest(reason));
        }
        let one = |container: &&Container| {
            milli(&container.resources.requests).ok_or_else(|| {
                UsageError::NoRequest(format!(
                    "missing request for {} in container {} of Pod {name}",
                    self.resource, container.name
                ))
            })
        };
        concerned.iter().map(one).sum()
    }

    /// Usage by target, the utilization in percent, and the average.
    fn ratio(
        &self,
        samples: &Samples,
        requests: &BTreeMap<String, i64>,
    ) -> Result<(f64, Option<i64>, i64), UsageError> {
        match self.target {
            Target::Average(target) => {
                let total: i64 = samples.values().map(|s| s.value).sum();
                let average = total / i64::try_from(samples.len().max(1)).unwrap_or(1);
                Ok((average as f64 / target as f64, None, average))
            }
            Target::Utilization(target) => {
                let known = samples
                    .iter()
                    .filter_map(|(name, s)| Some((s.value, *requests.get(name)?)));
                let (used, requested, count) = known.fold((0i64, 0i64, 0i64), |(u, r, n), (value, request)| {
                    (u + value, r + request, n + 1)
                });
                if requested == 0 {
                    return Err(UsageError::NoSamples("no metrics returned matched known pods"));
                }
                let percent = used.saturating_mul(100) / requested;
                Ok((percent as f64 / target as f64, Some(percent), used / count))
            }
        }
    }
}

/// Rounded up.
fn times(ratio: f64, pods: i64) -> i64 {
    let wanted = (ratio * pods as f64).ceil();
    // A target of zero asks for more than there can be.
    if wanted >= f64::from(i32::MAX) {
        i64::from(i32::MAX)
    } else {
        wanted as i64
    }
}
