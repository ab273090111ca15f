//! How a cluster is: gathered in its process, shown by `orlop status`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_apiserver::chain::Server;
use orlop_apiserver::health;
use orlop_client::{Api, ListQuery, path};
use serde::{Deserialize, Serialize};

use crate::bench::process;
use crate::control;
use crate::output::counted;
use crate::process_file::ProcessFile;
use crate::stop::StopRequest;

/// Pods are counted this many at a time.
const PAGE: u32 = 1000;
/// More nodes than these are counted and not shown.
const NODES_SHOWN: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub healthy: bool,
    pub phase: Phase,
    pub pid: i32,
    pub started: Timestamp,
    pub version: String,
    pub kubernetes_version: String,
    pub url: String,
    pub data_dir: PathBuf,
    /// The context in the user's kubeconfig.
    pub context: Option<String>,
    pub memory_bytes: u64,
    /// The checks of `/readyz` that fail.
    pub failed_checks: Vec<String>,
    /// Pods that are still to be stopped.
    pub stopping_pods: usize,
    pub components: Vec<ComponentReport>,
    /// Nodes of this process.
    pub own_nodes: Vec<String>,
    pub nodes: Vec<NodeReport>,
    /// What kept the nodes or pods from being read.
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Serving,
    Stopping,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComponentReport {
    pub name: String,
    pub state: String,
    pub healthy: bool,
    pub restarts: u64,
    pub since: Timestamp,
    pub last_error: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub name: String,
    pub ready: bool,
    pub unschedulable: bool,
    /// Why it is not ready.
    pub message: String,
    /// That have not ended.
    pub pods: usize,
    pub running_pods: usize,
    pub allocatable_pods: usize,
}

impl Report {
    fn judge(mut self) -> Report {
        let own_ready = self
            .own_nodes
            .iter()
            .all(|own| self.nodes.iter().any(|node| node.name == *own));
        self.healthy = self.phase == Phase::Serving
            && self.error.is_none()
            && self.failed_checks.is_empty()
            && self.components.iter().all(|component| component.healthy)
            && own_ready
            && self.nodes.iter().all(|node| node.ready);
        self
    }

    /// Whether the API is served and this process' nodes are ready for pods; else what is not.
    pub(crate) fn missing(&self) -> Option<String> {
        if let Some(check) = self.failed_checks.first() {
            let component = self.components.iter().find(|component| component.name == *check);
            let why = component.map_or("", |component| &component.last_error);
            return Some(match why {
                "" => format!("check {check} passes"),
                why => format!("check {check} passes ({why})"),
            });
        }
        if let Some(error) = &self.error {
            return Some(format!("the API answers ({error})"));
        }
        self.own_nodes.iter().find_map(|own| {
            let node = self.nodes.iter().find(|node| node.name == *own);
            let why = match node {
                None => "not registered yet",
                Some(node) if !node.ready => &node.message,
                Some(_) => return None,
            };
            Some(format!("node {own} is Ready ({why})"))
        })
    }
}

/// Where a report comes from.
#[derive(Clone)]
pub(crate) struct Source {
    pub server: Arc<Server>,
    /// With the right to read nodes and pods.
    pub api: Api,
    pub process: ProcessFile,
    pub data_dir: PathBuf,
    pub context: Option<String>,
    pub own_nodes: Vec<String>,
    pub stop: StopRequest,
}

impl Source {
    pub(crate) async fn report(&self) -> Report {
        let (nodes, error) = match read_nodes(&self.api).await {
            Ok(nodes) => (nodes, None),
            Err(error) => (vec![], Some(error.to_string())),
        };
        let components = self.server.health.components.all().into_iter();
        let components = components.map(|(name, record)| ComponentReport {
            name: name.to_string(),
            state: record.state.to_string(),
            healthy: record.state.is_healthy(),
            restarts: record.restarts,
            since: record.since,
            last_error: record.error,
        });
        let failed = health::unready(&self.server).into_iter();
        let report = Report {
            healthy: false,
            phase: match self.stop.shutdown().is_triggered() {
                true => Phase::Stopping,
                false => Phase::Serving,
            },
            pid: self.process.id.pid,
            started: self.process.started,
            version: self.process.version.clone(),
            kubernetes_version: orlop_apiserver::discovery::GIT_VERSION.to_string(),
            url: self.process.url.clone(),
            data_dir: self.data_dir.clone(),
            context: self.context.clone(),
            memory_bytes: process::usage(std::process::id()).map_or(0, |usage| usage.resident),
            failed_checks: failed.map(str::to_string).collect(),
            stopping_pods: self.stop.pods().remaining(),
            components: components.collect(),
            own_nodes: self.own_nodes.clone(),
            nodes,
            error,
        };
        report.judge()
    }
}

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Vec<Condition>,
    allocatable: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

async fn read_nodes(api: &Api) -> orlop_client::Result<Vec<NodeReport>> {
    let nodes = path::collection("v1", None, "nodes");
    let nodes: Vec<Node> = api.list(&nodes, &ListQuery::default()).await?.items;
    let mut reports: BTreeMap<String, NodeReport> =
        nodes.iter().map(|n| (n.metadata.name.clone(), report(n))).collect();
    let pods = path::collection("v1", None, "pods");
    let mut query = ListQuery {
        limit: Some(PAGE),
        ..ListQuery::default()
    };
    loop {
        let page = api.list_page::<Pod>(&pods, &query).await?;
        page.items.iter().for_each(|pod| count(&mut reports, pod));
        match page.continue_token {
            Some(token) => query.continue_token = Some(token),
            None => return Ok(reports.into_values().collect()),
        }
    }
}

fn report(node: &Node) -> NodeReport {
    let ready = node.status.conditions.iter().find(|c| c.r#type == "Ready");
    NodeReport {
        name: node.metadata.name.clone(),
        ready: ready.is_some_and(|c| c.status == "True"),
        unschedulable: node.spec.unschedulable,
        message: match ready {
            Some(c) if c.status != "True" => c.message.clone(),
            Some(_) => String::new(),
            None => "no status yet".to_string(),
        },
        allocatable_pods: node
            .status
            .allocatable
            .get("pods")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0),
        ..NodeReport::default()
    }
}

fn count(reports: &mut BTreeMap<String, NodeReport>, pod: &Pod) {
    let Some(node) = reports.get_mut(&pod.spec.node_name) else {
        return;
    };
    if !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        node.pods += 1;
    }
    if pod.status.phase == "Running" {
        node.running_pods += 1;
    }
}

/// For people.
pub(crate) fn render(report: &Report, now: Timestamp) -> String {
    let mut text = String::new();
    let health = match (report.phase, report.healthy) {
        (Phase::Stopping, _) if report.stopping_pods > 0 => {
            format!("stopping, {} left", counted(report.stopping_pods, "pod"))
        }
        (Phase::Stopping, _) => "stopping".to_string(),
        (Phase::Serving, true) => "running, healthy".to_string(),
        (Phase::Serving, false) => "running, not healthy".to_string(),
    };
    let age = |since: Timestamp| control::age(now.duration_since(since));
    let mut field = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<11}{value}");
    };
    field("Cluster", health);
    let memory = report.memory_bytes / 1_000_000;
    field(
        "Process",
        format!("{}, up {}, {memory} MB", report.pid, age(report.started)),
    );
    field(
        "Version",
        format!("{} (Kubernetes {})", report.version, report.kubernetes_version),
    );
    field("API server", report.url.clone());
    field("Data", report.data_dir.display().to_string());
    if let Some(context) = &report.context {
        field("Context", context.clone());
    }
    let checks = match report.failed_checks.as_slice() {
        [] => "all pass".to_string(),
        failed => format!("failed: {}", failed.join(", ")),
    };
    field("Readiness", checks);
    if let Some(error) = &report.error {
        field("Error", error.clone());
    }
    text.push('\n');
    render_components(&mut text, &report.components, age);
    render_nodes(&mut text, &report.nodes);
    text
}

fn render_components(text: &mut String, components: &[ComponentReport], age: impl Fn(Timestamp) -> String) {
    let heads = ["COMPONENT", "STATE", "RESTARTS", "AGE", "LAST ERROR"].map(String::from);
    let rows = components.iter().map(|c| {
        let cells = [&c.name, &c.state, &c.restarts.to_string(), &age(c.since), &c.last_error];
        cells.map(String::from).to_vec()
    });
    render_table(text, &heads, rows.collect());
}

/// Those that are not ready first; of many others some.
fn render_nodes(text: &mut String, nodes: &[NodeReport]) {
    text.push('\n');
    if nodes.is_empty() {
        text.push_str("No nodes.\n");
        return;
    }
    let heads = ["NODE", "STATUS", "PODS", "RUNNING", "MESSAGE"].map(String::from);
    let mut sorted: Vec<&NodeReport> = nodes.iter().collect();
    sorted.sort_by_key(|node| node.ready);
    let rows = sorted.iter().take(NODES_SHOWN).map(|node| {
        let ready = if node.ready { "Ready" } else { "NotReady" };
        let cordoned = if node.unschedulable { ",SchedulingDisabled" } else { "" };
        vec![
            node.name.clone(),
            format!("{ready}{cordoned}"),
            format!("{}/{}", node.pods, node.allocatable_pods),
            node.running_pods.to_string(),
            node.message.clone(),
        ]
    });
    render_table(text, &heads, rows.collect());
    if nodes.len() > NODES_SHOWN {
        let (left_off, ready) = (
            nodes.len() - NODES_SHOWN,
            nodes.iter().filter(|node| node.ready).count(),
        );
        let _ = writeln!(
            text,
            "… and {left_off} more; {ready} of {} nodes are Ready",
            nodes.len()
        );
    }
}

/// Columns as wide as they need to be.
pub(crate) fn render_table(text: &mut String, heads: &[String], rows: Vec<Vec<String>>) {
    let all = || std::iter::once(heads).chain(rows.iter().map(Vec::as_slice));
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    for row in all() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let component = |name: &str, state: &str, error: &str| ComponentReport {
            name: name.into(),
            state: state.into(),
            healthy: state == "running",
            restarts: u64::from(!error.is_empty()),
            since: Timestamp::UNIX_EPOCH,
            last_error: error.into(),
        };
        Report {
            healthy: false,
            phase: Phase::Serving,
            pid: 42,
            started: Timestamp::UNIX_EPOCH,
            version: "0.1.0".into(),
            kubernetes_version: "v1.36.4".into(),
            url: "https://127.0.0.1:6443".into(),
            data_dir: "/var/lib/orlop".into(),
            context: Some("orlop".into()),
            memory_bytes: 45_600_000,
            failed_checks: vec![],
            stopping_pods: 0,
            components: vec![
                component("scheduler", "running", ""),
                component("dns", "running", "port in use"),
            ],
            own_nodes: vec!["n1".into()],
            nodes: vec![NodeReport {
                name: "n1".into(),
                ready: true,
                pods: 3,
                running_pods: 2,
                allocatable_pods: 110,
                ..NodeReport::default()
            }],
            error: None,
        }
        .judge()
    }

    #[test]
    fn people_see_it_at_a_glance() {
        let text = render(&report(), Timestamp::from_second(180).unwrap());
        let expected = "\
Cluster    running, healthy
Process    42, up 3m, 45 MB
Version    0.1.0 (Kubernetes v1.36.4)
API server https://127.0.0.1:6443
Data       /var/lib/orlop
Context    orlop
Readiness  all pass

COMPONENT  STATE    RESTARTS  AGE  LAST ERROR
scheduler  running  0         3m
dns        running  1         3m   port in use

NODE  STATUS  PODS   RUNNING  MESSAGE
n1    Ready   3/110  2
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_not_well_is_told() {
        let unwell = |change: fn(&mut Report)| {
            let mut report = report();
            assert!(report.healthy && report.missing().is_none());
            change(&mut report);
            report.judge()
        };
        let cases: [(fn(&mut Report), Option<&str>); 6] = [
            (|r| r.failed_checks.push("etcd".into()), Some("check etcd passes")),
            (
                |r| r.failed_checks.push("dns".into()),
                Some("check dns passes (port in use)"),
            ),
            (|r| r.phase = Phase::Stopping, None),
            (|r| r.nodes.clear(), Some("node n1 is Ready (not registered yet)")),
            (
                |r| {
                    r.nodes[0].ready = false;
                    r.nodes[0].message = "no network".into();
                },
                Some("node n1 is Ready (no network)"),
            ),
            (|r| r.components[0].healthy = false, None),
        ];
        for (change, missing) in cases {
            let report = unwell(change);
            assert!(!report.healthy);
            assert_eq!(report.missing().as_deref(), missing);
        }
    }

    #[test]
    fn of_many_nodes_those_in_trouble_are_shown() {
        let node = |n: usize| NodeReport {
            name: format!("sim-{n}"),
            ready: n != 999,
            ..NodeReport::default()
        };
        let nodes: Vec<NodeReport> = (0..1000).map(node).collect();
        let mut text = String::new();
        render_nodes(&mut text, &nodes);
        assert!(text.contains("sim-999  NotReady"), "{text}");
        assert!(
            text.ends_with("… and 980 more; 999 of 1000 nodes are Ready\n"),
            "{text}"
        );
    }

    #[test]
    fn pods_are_counted_where_they_are() {
        let mut reports = BTreeMap::from([("n1".to_string(), NodeReport::default())]);
        let pods = [
            ("n1", "Running"),
            ("n1", "Pending"),
            ("n1", "Failed"),
            ("n2", "Running"),
            ("", "Pending"),
        ];
        for (node, phase) in pods {
            let pod = serde_json::json!({"spec": {"nodeName": node}, "status": {"phase": phase}});
            count(&mut reports, &serde_json::from_value(pod).unwrap());
        }
        assert_eq!((reports["n1"].pods, reports["n1"].running_pods), (2, 1));
    }
}
