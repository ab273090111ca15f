//! Plugins beside Kubernetes' own, from a configuration to a decision: the example of
//! docs/how-to/add-a-scheduler-plugin.md and one that scores, under the names of the notes.

use std::sync::Arc;

use orlop_scheduler::cluster::Cluster;
use orlop_scheduler::cluster::node::{NodeId, NodeInfo};
use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::config::{self, PluginRow, Point};
use orlop_scheduler::cycle::{Core, ScheduleFailure};
use orlop_scheduler::framework::event::{Actions, EventKind, Resource};
use orlop_scheduler::framework::points::{AnyFilter, AnyScore, Filter, Normalize, Plugin, Scope, Score};
use orlop_scheduler::framework::verdict::{PreFilter, PreScore, Rejection, Verdict};
use orlop_scheduler::plugins::{Extra, InvalidArgs, profiles_with};
use serde_json::json;

const RACK: &str = "example.com/rack";
const WRONG_RACK: Rejection = Rejection::unresolvable("node(s) were in the wrong rack");

/// A pod that names its rack goes nowhere else.
struct Rack;

impl Plugin for Rack {
    fn name(&self) -> &'static str {
        "MyCustomPluginA"
    }

    fn filter(&self) -> Option<&dyn AnyFilter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }

    fn events(&self) -> Vec<EventKind> {
        vec![EventKind::new(Resource::Node, Actions::ADD.or(Actions::UPDATE_LABEL))]
    }
}

/// Nodes that are in a rack at all are better.
impl Score for Rack {
    type State = ();
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::AsIs;

    fn pre_score(&self, _: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<()> {
        PreScore::Run(())
    }

    fn score(&self, (): &(), _: &PodInfo, node: &NodeInfo) -> i64 {
        if node.labels.contains_key(RACK) { 100 } else { 0 }
    }
}

impl Filter for Rack {
    type State = String;
    const SCOPE: Scope = Scope::Cluster;

    fn pre_filter(&self, pod: &PodInfo, _: &Cluster) -> PreFilter<String> {
        pod.label_set()
            .get(RACK)
            .cloned()
            .map_or(PreFilter::Skip, PreFilter::Run)
    }

    fn filter(&self, rack: &String, _: &PodInfo, node: &NodeInfo) -> Verdict {
        if node.labels.get(RACK) == Some(rack) {
            Ok(())
        } else {
            Err(WRONG_RACK)
        }
    }
}

/// Nodes are as good as the number in their label `rank`, times the argument `factor`.
struct Rank(i64);

impl Plugin for Rank {
    fn name(&self) -> &'static str {
        "MyCustomPluginB"
    }

    fn score(&self) -> Option<&dyn AnyScore> {
        Some(self)
    }
}

impl Score for Rank {
    type State = ();
    const SCOPE: Scope = Scope::Node;
    const NORMALIZE: Normalize = Normalize::Share;

    fn pre_score(&self, _: &PodInfo, _: &Cluster, _: &[NodeId]) -> PreScore<()> {
        PreScore::Run(())
    }

    fn score(&self, (): &(), _: &PodInfo, node: &NodeInfo) -> i64 {
        let rank = node.labels.get("rank").and_then(|text| text.parse::<i64>().ok());
        rank.unwrap_or(0) * self.0
    }
}

const EXTRA: &[Extra] = &[
    Extra {
        row: PluginRow {
            name: "MyCustomPluginA",
            points: &[Point::PreFilter, Point::Filter, Point::Score],
            weight: 0,
        },
        make: |_| Ok(Box::new(Rack)),
    },
    Extra {
        row: PluginRow {
            name: "MyCustomPluginB",
            points: &[Point::Score],
            weight: 0,
        },
        make: |args| {
            let factor = args.custom.get("MyCustomPluginB").map(|a| &a["factor"]);
            let number = factor.map_or(Some(1), |f| f.as_i64());
            number
                .map(|f| Box::new(Rank(f)) as _)
                .ok_or(InvalidArgs("factor must be a number".to_string()))
        },
    },
];

fn core(text: &str) -> Result<Core, String> {
    let rows: Vec<PluginRow> = EXTRA.iter().map(|e| e.row).collect();
    let (config, warnings) = config::parse(text, &rows).map_err(|problems| format!("{problems:?}"))?;
    assert!(warnings.is_empty(), "{warnings:?}");
    Ok(Core::new(profiles_with(&config, EXTRA).map_err(|e| e.to_string())?, 1))
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for (name, rack, rank) in [("a", "r1", "1"), ("b", "r2", "2"), ("c", "r2", "9")] {
        let node = json!({"metadata": {"name": name, "labels": {RACK: rack, "rank": rank}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
        cluster.observe_node(&serde_json::from_value(node).unwrap());
    }
    cluster
}

fn pod(cluster: &mut Cluster, rack: &str) -> Arc<PodInfo> {
    let pod = json!({"metadata": {"name": rack, "uid": rack, "labels": {RACK: rack}}, "spec": {"containers": [{}]}});
    cluster.decode(serde_json::from_value(pod).unwrap())
}

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n";

#[test]
fn custom_plugins_decide_as_the_configuration_says() {
    let text = format!(
        "{HEAD}- schedulerName: default-scheduler\n  plugins:\n    multiPoint:\n      enabled: [{{name: MyCustomPluginA}}]\n    \
         score:\n      enabled: [{{name: MyCustomPluginB, weight: 50}}]\n  pluginConfig:\n  \
         - {{name: MyCustomPluginB, args: {{factor: 3}}}}\n"
    );
    let mut core = core(&text).unwrap();
    let mut cluster = cluster();
    let placed = |core: &mut Core, cluster: &mut Cluster, rack: &str| {
        let pod = pod(cluster, rack);
        match core.schedule(0, cluster, &pod) {
            Ok(choice) => cluster.node(choice.node).unwrap().name.to_string(),
            Err(ScheduleFailure::Unfit(error)) => error.message(),
            Err(ScheduleFailure::Error(error)) => error.to_string(),
        }
    };
    assert_eq!(placed(&mut core, &mut cluster, "r1"), "a");
    assert_eq!(placed(&mut core, &mut cluster, "r2"), "c");
    assert_eq!(
        placed(&mut core, &mut cluster, "r9"),
        "0/3 nodes are available: 3 node(s) were in the wrong rack."
    );
    let asked = pod(&mut cluster, "r2");
    let account = core.explain(0, &cluster, &asked).unwrap();
    let scores: Vec<(i64, i64, i64)> = (account.nodes.iter().flat_map(|n| &n.scores))
        .filter(|s| s.plugin == "MyCustomPluginB")
        .map(|s| (s.raw, s.normalized, s.weight))
        .collect();
    // 3·9 is the most; 100·6/27 = 22.
    assert_eq!(scores, [(27, 100, 50), (6, 22, 50)]);
}

#[test]
fn custom_plugins_are_off_unless_named_and_names_are_checked() {
    let mut plain = core(&format!("{HEAD}- schedulerName: default-scheduler\n")).unwrap();
    let mut cluster = cluster();
    let anywhere = pod(&mut cluster, "r9");
    plain.schedule(0, &cluster, &anywhere).expect("no plugin minds racks");
    let unknown = format!("{HEAD}- plugins: {{filter: {{enabled: [{{name: MyCustomPluginC}}]}}}}\n");
    assert!(core(&unknown).err().unwrap().contains("MyCustomPluginC"));
    let wrong = format!(
        "{HEAD}- plugins: {{score: {{enabled: [{{name: MyCustomPluginB}}]}}}}\n  pluginConfig:\n  \
         - {{name: MyCustomPluginB, args: {{factor: three}}}}\n"
    );
    assert!(
        core(&wrong)
            .err()
            .unwrap()
            .ends_with("plugin MyCustomPluginB: factor must be a number")
    );
}

/// As the notes have it: two profiles in one process, one with plugins of its own, one that scores nothing.
#[test]
fn the_configuration_of_the_notes() {
    let text = format!(
        "{HEAD}    - schedulerName: my-scheduler-2
      plugins:
          score:
                disabled:
                    - name: TaintToleration
                enabled:
                    - name: MyCustomPluginA
                    - name: MyCustomPluginB

    - schedulerName: my-scheduler-3
      plugins:
          preScore:
                disabled:
                    - name: '*'
          score:
                disabled:
                    - name: '*'
"
    );
    let mut core = core(&text).unwrap();
    let scores = |core: &Core, at: usize| -> Vec<(&'static str, i64)> {
        let profile = &core.profiles[at];
        (profile.score.iter())
            .map(|(place, weight)| (profile.plugins[*place].name(), *weight))
            .collect()
    };
    let names = scores(&core, 0);
    assert!(
        names.contains(&("MyCustomPluginA", 1)) && names.contains(&("MyCustomPluginB", 1)),
        "{names:?}"
    );
    assert!(!names.iter().any(|(name, _)| *name == "TaintToleration"), "{names:?}");
    assert_eq!(scores(&core, 1), []);
    let mut cluster = cluster();
    for profile in [0, 1] {
        let asked = pod(&mut cluster, "r2");
        core.schedule(profile, &cluster, &asked).expect("there is room");
    }
}
