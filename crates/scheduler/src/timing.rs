//! How long decisions take, by extension point and by plugin. For metrics only: nothing is decided by it.
//!
//! Differs from upstream, where every point asks every plugin about every node: here answers are kept and asked for again
//! only for what changed, so that
//! - a cycle has one observation of PreFilter, Filter and Score each. Filter is the time to bring the answers up to date
//!   (filters and raw scores of nodes that changed) and to find the nodes that fit; Score the rest: PreScore, the scores
//!   that look at the whole cluster, normalising, and the choice;
//! - what one plugin takes is measured by asking it once more about one node, in one cycle of ten.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::cycle::Core;
use crate::framework::points::AnyState;
use crate::framework::verdict::{PreFilter, PreScore, Rejection};

/// One in so many cycles is looked at plugin by plugin. Upstream: 10 % of them, at random.
pub const SAMPLE_EVERY: u64 = 10;

pub const SUCCESS: &str = "Success";
pub const SKIP: &str = "Skip";
pub const WAIT: &str = "Wait";
pub const ERROR: &str = "Error";

/// As Kubernetes names it.
pub fn status(rejection: &Rejection) -> &'static str {
    if rejection.unresolvable {
        "UnschedulableAndUnresolvable"
    } else {
        "Unschedulable"
    }
}

/// The parts of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    PreFilter,
    Filter,
    Score,
}

/// What the steps of one decision took; None for those that were not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Laps([Option<Duration>; 3]);

impl Laps {
    pub fn of(&self, step: Step) -> Option<Duration> {
        self.0[step as usize]
    }
}

/// Stands still, and costs nothing, unless switched on.
#[derive(Default)]
pub(crate) struct Stopwatch {
    pub on: bool,
    since: Option<Instant>,
    laps: Laps,
}

impl Stopwatch {
    pub(crate) fn start(&mut self) {
        self.laps = Laps::default();
        self.resume();
    }

    /// What happened since the last lap does not count.
    pub(crate) fn resume(&mut self) {
        self.since = self.on.then(orlop_base::clock::monotonic);
    }

    pub(crate) fn lap(&mut self, step: Step) {
        if let Some(since) = self.since {
            let now = orlop_base::clock::monotonic();
            self.laps.0[step as usize] = Some(now.duration_since(since));
            self.since = Some(now);
        }
    }

    pub(crate) fn take(&mut self) -> Laps {
        std::mem::take(&mut self.laps)
    }
}

/// One plugin at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub plugin: &'static str,
    pub point: &'static str,
    pub status: &'static str,
    pub took: Duration,
}

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = orlop_base::clock::monotonic();
    let answer = act();
    (answer, start.elapsed())
}

impl Core {
    /// Asks every plugin about one node, one by one.
    pub fn sample(
        &mut self,
        profile: usize,
        cluster: &Cluster,
        pod: &PodInfo,
        node: &NodeInfo,
        mut tell: impl FnMut(Sample),
    ) {
        self.look(profile, cluster, pod, |profile, _, _| {
            let mut tell = |place: usize, point, status, took| {
                let plugin = profile.plugins[place].name();
                tell(Sample {
                    plugin,
                    point,
                    status,
                    took,
                });
            };
            let mut states: Vec<(usize, AnyState)> = vec![];
            for place in &profile.pre_filter {
                let (answer, took) = timed(|| profile.filter_at(*place).pre_filter(pod, cluster));
                let status = match answer {
                    PreFilter::Skip => SKIP,
                    PreFilter::Reject(rejection) => status(&rejection),
                    PreFilter::Run(state) | PreFilter::Only(state, _) => {
                        states.push((*place, state));
                        SUCCESS
                    }
                };
                tell(*place, "PreFilter", status, took);
            }
            for place in &profile.filter {
                if let Some((_, state)) = states.iter().find(|(p, _)| p == place) {
                    let (verdict, took) = timed(|| profile.filter_at(*place).filter(state, pod, node));
                    tell(
                        *place,
                        "Filter",
                        verdict.as_ref().map_or_else(status, |()| SUCCESS),
                        took,
                    );
                }
            }
            for (place, _) in &profile.score {
                let score = profile.score_at(*place);
                let (answer, took) = timed(|| score.pre_score(pod, cluster, &[node.id]));
                let PreScore::Run(state) = answer else {
                    tell(*place, "PreScore", SKIP, took);
                    continue;
                };
                tell(*place, "PreScore", SUCCESS, took);
                let (_, took) = timed(|| score.score(&state, pod, node));
                tell(*place, "Score", SUCCESS, took);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_and_plugins_are_measured() {
        let mut cluster = Cluster::default();
        for name in ["a", "b"] {
            let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}});
            cluster.observe_node(&serde_json::from_value(node).unwrap());
        }
        let pod = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        let pod = cluster.decode(serde_json::from_value(pod).unwrap());
        let mut core = Core::new(crate::plugins::profiles(&Default::default()).unwrap(), 1);
        core.schedule(0, &cluster, &pod).unwrap();
        assert_eq!(core.laps(), Laps::default(), "nobody asked for it");
        core.measure();
        let choice = core.schedule(0, &cluster, &pod).unwrap();
        let laps = core.laps();
        assert!(
            [Step::PreFilter, Step::Filter, Step::Score]
                .iter()
                .all(|s| laps.of(*s).is_some())
        );
        assert_eq!(core.laps(), Laps::default(), "each is told once");

        let mut samples = vec![];
        let node = cluster.node(choice.node).unwrap();
        core.sample(0, &cluster, &pod, node, |s| samples.push((s.plugin, s.point, s.status)));
        assert!(
            samples.contains(&("NodeResourcesFit", "PreFilter", "Success")),
            "{samples:?}"
        );
        assert!(samples.contains(&("NodeResourcesFit", "Filter", "Success")));
        assert!(samples.contains(&("NodeResourcesFit", "Score", "Success")));
        assert!(samples.contains(&("NodePorts", "PreFilter", "Skip")));
        assert!(
            !samples
                .iter()
                .any(|(plugin, point, _)| (*plugin, *point) == ("NodePorts", "Filter"))
        );
    }
}
