//! One workload on one cluster: its operations in order, what goes on in the background, and cleaning up.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_base::clock::Shift;
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use super::bindings::{Bindings, PodSet};
use super::cluster::{Cluster, Resource, in_parallel};
use super::progress::Phase;
use super::report::{Process, WorkloadResult};
use super::template::{Body, Manifest};
use super::workload::{Churn, ChurnMode, CreateAny, CreateNodes, CreatePods, DeletePods, Op, Params, Wait, Workload};
use super::{catalogue, throughput};
use crate::bench::client::Target;
use crate::bench::process;

/// How a run is done, apart from what the workload says.
pub(crate) struct Settings {
    /// Give up when no pod has been bound for so long.
    pub patience: Duration,
    /// Processes whose memory and processor time are reported.
    pub pids: Vec<u32>,
}

pub(crate) struct Run {
    workload: Workload,
    size: String,
    params: Params,
    settings: Settings,
    /// In front of every name, so that runs don't meet.
    name: String,
    cluster: Arc<Cluster>,
    bindings: Arc<Bindings>,
    watch: JoinHandle<anyhow::Result<()>>,
    background: JoinSet<anyhow::Result<()>>,
    sets: Vec<NamedSet>,
    made: Arc<Mutex<Made>>,
    nodes: usize,
}

/// The pods of one operation, and where they are.
#[derive(Clone)]
struct NamedSet {
    number: usize,
    pods: Arc<PodSet>,
    namespaces: Arc<Vec<String>>,
}

impl NamedSet {
    fn path(&self, index: usize) -> String {
        let namespace = &self.namespaces[index % self.namespaces.len()];
        format!("/api/v1/namespaces/{namespace}/pods")
    }

    fn full_name(&self, index: usize) -> String {
        let namespace = &self.namespaces[index % self.namespaces.len()];
        format!("pod {namespace}/{}", Bindings::pod_name(self.number, index))
    }

    fn pod_path(&self, index: usize) -> String {
        format!("{}/{}", self.path(index), Bindings::pod_name(self.number, index))
    }
}

/// What there is to clean up. Noted before it is made, so that nothing is forgotten when a run is interrupted.
#[derive(Default)]
struct Made {
    namespaces: Vec<String>,
    /// Paths of objects outside of namespaces.
    objects: Vec<String>,
}

impl Run {
    /// Connects, and starts to watch.
    pub(crate) async fn prepare(
        target: &Target,
        workload: Workload,
        size: &str,
        params: Params,
        settings: Settings,
    ) -> anyhow::Result<Run> {
        let cluster = Arc::new(Cluster::connect(target).await?);
        let name = run_name();
        let bindings = Arc::new(Bindings::new(&name));
        // A connection of its own: events don't queue behind answers.
        let connection = target.connect_http2().await?;
        let revision = bindings.list(&connection).await?;
        let following = bindings.clone();
        let watch = tokio::spawn(async move { following.follow(connection, revision).await });
        settings.pids.iter().for_each(|pid| process::reset_peak(*pid));
        Ok(Run {
            workload,
            size: size.to_string(),
            params,
            settings,
            name,
            cluster,
            bindings,
            watch,
            background: JoinSet::new(),
            sets: vec![],
            made: Default::default(),
            nodes: 0,
        })
    }

    /// All operations, one after the other.
    pub(crate) async fn execute(&mut self) -> anyhow::Result<WorkloadResult> {
        let mut outcome = None;
        for op in self.workload.ops.clone() {
            match op {
                Op::CreateNodes(op) => self.create_nodes(op).await?,
                Op::CreateNamespaces(op) => {
                    let count = op.count.resolve(&self.params)?;
                    let names = (0..count).map(|i| self.scoped(&format!("{}-{i}", op.prefix))).collect();
                    self.make_namespaces(names, &op.labels).await?;
                }
                Op::CreatePods(op) if op.measure => outcome = Some(self.measure(op).await?),
                Op::CreatePods(op) => {
                    let (set, body) = self.plan_pods(&op).await?;
                    let phase = bound_phase("pods before", &set, op.wait);
                    self.create_pods(&set, body).await?;
                    if op.wait {
                        self.wait_until_bound(&set).await?;
                    }
                    phase.finish();
                }
                Op::CreateAny(op) => self.create_any(op).await?,
                Op::Churn(op) => self.churn(op).await?,
                Op::DeletePods(op) => self.delete_pods(op),
                Op::Wait(op) => self.wait(op).await?,
            }
        }
        self.background.abort_all();
        outcome.context("the workload measures nothing")
    }

    fn scoped(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn manifest(&self, template: &str) -> anyhow::Result<Manifest> {
        let shared: BTreeMap<String, Value>;
        let value = match self.workload.templates.get(template) {
            Some(value) => value,
            None => {
                shared = catalogue::templates();
                &shared[template]
            }
        };
        Manifest::new(value, &self.name).with_context(|| format!("template {template:?}"))
    }

    async fn make_namespaces(&self, names: Vec<String>, labels: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let new: Vec<String> = {
            let mut made = self.made.lock().expect("nothing panics under the lock");
            let new: Vec<String> = names.into_iter().filter(|n| !made.namespaces.contains(n)).collect();
            made.namespaces.extend(new.iter().cloned());
            new
        };
        let (cluster, labels) = (self.cluster.clone(), labels.clone());
        let names = Arc::new(new);
        in_parallel(names.len(), move |i| {
            let (cluster, labels, names) = (cluster.clone(), labels.clone(), names.clone());
            async move { cluster.create_namespace(&names[i], &labels).await }
        })
        .await
    }

    async fn create_nodes(&mut self, op: CreateNodes) -> anyhow::Result<()> {
        let count = op.count.resolve(&self.params)?;
        let mut manifest = self.manifest(&op.template)?;
        manifest.label_with_name("kubernetes.io/hostname");
        manifest.fill_allocatable();
        // One body for each mixture of labels; with lists of different lengths they repeat only after their product.
        let mixtures: usize = op.labels.values().map(Vec::len).product();
        let bodies: Vec<Body> = (0..mixtures.min(count))
            .map(|i| {
                let mut manifest = manifest.clone();
                for (key, values) in &op.labels {
                    manifest.label(key, &values[i % values.len()]);
                }
                manifest.body()
            })
            .collect();
        let prefix = self.scoped(&format!("n{}", self.nodes));
        self.nodes += count;
        let names: Vec<String> = match manifest.name() {
            Some(name) if count == 1 => vec![name.to_string()],
            Some(name) => bail!("a template for {count} nodes must not have a fixed name ({name})"),
            None => (0..count).map(|i| format!("{prefix}-{i}")).collect(),
        };
        self.note_objects(names.iter().map(|name| format!("/api/v1/nodes/{name}")));
        let done = Arc::new(AtomicUsize::new(0));
        let seen = done.clone();
        let phase = Phase::start("nodes", count, move || seen.load(Ordering::Relaxed));
        let cluster = self.cluster.clone();
        let shared = Arc::new((manifest, bodies, names));
        in_parallel(count, move |i| {
            let (cluster, shared, done) = (cluster.clone(), shared.clone(), done.clone());
            async move {
                let (manifest, bodies, names) = &*shared;
                cluster
                    .create_node(manifest, &bodies[i % bodies.len()], &names[i])
                    .await?;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        })
        .await?;
        phase.finish();
        Ok(())
    }

    fn note_objects(&self, paths: impl Iterator<Item = String>) {
        let mut made = self.made.lock().expect("nothing panics under the lock");
        made.objects.extend(paths);
    }

    async fn plan_pods(&mut self, op: &CreatePods) -> anyhow::Result<(NamedSet, Arc<Body>)> {
        let count = op.count.resolve(&self.params)?;
        let namespaces: Vec<String> = match (&op.namespace, &op.namespaces) {
            (Some(one), _) => vec![self.scoped(one)],
            (None, Some(many)) => {
                let count = many.count.resolve(&self.params)?;
                (0..count)
                    .map(|i| self.scoped(&format!("{}-{i}", many.prefix)))
                    .collect()
            }
            (None, None) => bail!("createPods names no namespace"),
        };
        if namespaces.is_empty() {
            bail!("createPods: there are no namespaces to put pods in");
        }
        self.make_namespaces(namespaces.clone(), &BTreeMap::new()).await?;
        let manifest = self.manifest(&op.template)?;
        if manifest.kind() != "Pod" || manifest.name().is_some() {
            bail!("template {:?} must be a pod without a name", op.template);
        }
        let (number, pods) = self.bindings.add(count);
        let set = NamedSet {
            number,
            pods,
            namespaces: Arc::new(namespaces),
        };
        self.sets.push(set.clone());
        Ok((set, Arc::new(manifest.body())))
    }

    async fn create_pods(&self, set: &NamedSet, body: Arc<Body>) -> anyhow::Result<()> {
        let (cluster, bindings, set) = (self.cluster.clone(), self.bindings.clone(), set.clone());
        in_parallel(set.pods.len(), move |i| {
            let path = set.path(i);
            let body = body.named(&Bindings::pod_name(set.number, i));
            bindings.created(&set.pods, i);
            let cluster = cluster.clone();
            async move { cluster.create(&path, body).await.map(|_| ()) }
        })
        .await
    }

    async fn measure(&mut self, op: CreatePods) -> anyhow::Result<WorkloadResult> {
        let (set, body) = self.plan_pods(&op).await?;
        let phase = bound_phase("measured pods", &set, true);
        let before = self.processes();
        let own_before = process::usage(std::process::id()).unwrap_or_default().cpu;
        let started = self.bindings.now();
        self.create_pods(&set, body).await?;
        let created = self.bindings.now();
        self.wait_until_bound(&set).await?;
        phase.finish();
        let own_cpu = process::usage(std::process::id())
            .unwrap_or_default()
            .cpu
            .saturating_sub(own_before);
        let processes = self.processes().into_iter().map(|(pid, after)| {
            let cpu_before = before.iter().find(|(p, _)| *p == pid).map_or(after.cpu, |(_, u)| u.cpu);
            Process {
                pid,
                cpu: after.cpu.saturating_sub(cpu_before),
                usage: after,
            }
        });
        let moments = set.pods.moments();
        let mut bound: Vec<Duration> = moments.iter().map(|(_, b)| b.saturating_sub(started)).collect();
        bound.sort();
        let mut latencies: Vec<f64> = moments
            .iter()
            .map(|(c, b)| b.saturating_sub(*c).as_secs_f64() * 1e3)
            .collect();
        latencies.sort_by(f64::total_cmp);
        let last = bound.last().copied().unwrap_or_default();
        let create_time = created.saturating_sub(started);
        Ok(WorkloadResult {
            workload: self.workload.name.clone(),
            size: self.size.clone(),
            params: self.params.clone(),
            upstream_threshold: self.workload.upstream_threshold.filter(|_| self.size == "full"),
            nodes: self.nodes,
            pods: bound.len(),
            duration: last,
            create_time,
            windows: throughput::windows(&bound, throughput::noticed(create_time, last)),
            latencies_ms: latencies,
            processes: processes.collect(),
            client_cpu: own_cpu,
        })
    }

    fn processes(&self) -> Vec<(u32, process::Usage)> {
        let pids = self.settings.pids.iter();
        pids.filter_map(|pid| Some((*pid, process::usage(*pid)?))).collect()
    }

    /// Ends when all are bound, with an error when nothing moves any more.
    async fn wait_until_bound(&mut self, set: &NamedSet) -> anyhow::Result<()> {
        let (mut seen, mut moved) = (0, Instant::now());
        loop {
            let bound = set.pods.bound_count();
            if bound == set.pods.len() {
                return Ok(());
            }
            if bound != seen {
                (seen, moved) = (bound, Instant::now());
            }
            if self.watch.is_finished() {
                (&mut self.watch).await.context("the watch of pods failed")??;
                bail!("the watch of pods ended");
            }
            while let Some(ended) = self.background.try_join_next() {
                ended.context("a background operation failed")??;
            }
            if moved.elapsed() > self.settings.patience {
                bail!("{}", self.pending_account(set, moved.elapsed()).await);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many pods wait, and what the scheduler says of one of them.
    async fn pending_account(&self, set: &NamedSet, waited: Duration) -> String {
        let pending = set.pods.len() - set.pods.bound_count();
        let index = set.pods.first_pending().unwrap_or(0);
        let reason = match self.pending_reason(set, index).await {
            Ok(Some(reason)) => format!("says {reason:?}"),
            Ok(None) => "has no FailedScheduling event and no condition: is a scheduler running?".to_string(),
            Err(error) => format!("request failed: {error:#}"),
        };
        format!(
            "{pending} of {} pods are still pending and none was bound for {:.0} s; {} {reason}",
            set.pods.len(),
            waited.as_secs_f64(),
            set.full_name(index),
        )
    }

    async fn pending_reason(&self, set: &NamedSet, index: usize) -> anyhow::Result<Option<String>> {
        let namespace = &set.namespaces[index % set.namespaces.len()];
        let name = Bindings::pod_name(set.number, index);
        let events = self
            .cluster
            .get(&format!("/api/v1/namespaces/{namespace}/events"))
            .await?;
        let failed = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|e| e["reason"] == "FailedScheduling")
            .max_by_key(|e| e["involvedObject"]["name"] == name.as_str());
        if let Some(text) = failed.and_then(|e| e["message"].as_str().or(e["note"].as_str())) {
            return Ok(Some(text.to_string()));
        }
        let pod = self.cluster.get(&set.pod_path(index)).await?;
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let scheduled = conditions.find(|c| c["type"] == "PodScheduled");
        Ok(scheduled.and_then(|c| c["message"].as_str()).map(str::to_string))
    }

    async fn create_any(&self, op: CreateAny) -> anyhow::Result<()> {
        let manifest = self.manifest(&op.template)?;
        let resource = self.cluster.resource(manifest.api_version(), manifest.kind()).await?;
        let namespace = self.namespace_for(&resource, op.namespace.as_deref()).await?;
        let path = resource.path(&namespace);
        let body = manifest.body();
        let count = op.count.resolve(&self.params)?;
        for i in 0..count {
            let made_up = self.scoped(&format!("{}-{i}", op.template));
            let name = body.fixed_name.clone().unwrap_or(made_up);
            if !resource.namespaced {
                self.note_objects(std::iter::once(format!("{path}/{name}")));
            }
            self.cluster.create(&path, body.named(&name)).await?;
        }
        Ok(())
    }

    async fn namespace_for(&self, resource: &Resource, namespace: Option<&str>) -> anyhow::Result<String> {
        if !resource.namespaced {
            return Ok(String::new());
        }
        let namespace = self.scoped(namespace.context("the object needs a namespace")?);
        self.make_namespaces(vec![namespace.clone()], &BTreeMap::new()).await?;
        Ok(namespace)
    }

    async fn churn(&mut self, op: Churn) -> anyhow::Result<()> {
        let mut objects = vec![];
        for (i, template) in op.templates.iter().enumerate() {
            let mut manifest = self.manifest(template)?;
            manifest.fill_allocatable();
            let resource = self.cluster.resource(manifest.api_version(), manifest.kind()).await?;
            let namespace = self.namespace_for(&resource, Some(&op.namespace)).await?;
            objects.push(Churned {
                path: resource.path(&namespace),
                prefix: self.scoped(&format!("churn{i}")),
                body: manifest.body(),
                namespaced: resource.namespaced,
            });
        }
        let (cluster, made) = (self.cluster.clone(), self.made.clone());
        self.background
            .spawn(async move { churn(cluster, made, op, objects).await });
        Ok(())
    }

    fn delete_pods(&mut self, op: DeletePods) {
        let namespace = self.scoped(&op.namespace);
        let sets: Vec<NamedSet> = self.sets_in(&namespace);
        let cluster = self.cluster.clone();
        self.background.spawn(async move {
            let mut ticks = ticks(Duration::from_secs_f64(1.0 / f64::from(op.per_second)));
            for set in sets {
                for i in 0..set.pods.len() {
                    ticks.tick().await;
                    cluster.delete(&set.pod_path(i)).await?;
                }
            }
            Ok(())
        });
    }

    fn sets_in(&self, namespace: &str) -> Vec<NamedSet> {
        let here = |set: &&NamedSet| set.namespaces.iter().any(|n| n == namespace);
        self.sets.iter().filter(here).cloned().collect()
    }

    async fn wait(&mut self, op: Wait) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_secs_f64(op.seconds)).await;
        if let Some(namespace) = op.bound {
            for set in self.sets_in(&self.scoped(&namespace)) {
                self.wait_until_bound(&set).await?;
            }
        }
        Ok(())
    }

    /// Takes away what the run made. Goes on over errors; the first one is returned.
    pub(crate) async fn clean_up(mut self) -> anyhow::Result<()> {
        self.background.shutdown().await;
        self.watch.abort();
        let made = std::mem::take(&mut *self.made.lock().expect("nothing panics under the lock"));
        let mut outcome = Ok(());
        for namespace in &made.namespaces {
            outcome = outcome.and(self.cluster.delete_pods(namespace).await);
            outcome = outcome.and(self.cluster.delete(&format!("/api/v1/namespaces/{namespace}")).await);
        }
        let (cluster, objects) = (self.cluster.clone(), Arc::new(made.objects));
        let others = in_parallel(objects.len(), move |i| {
            let (cluster, objects) = (cluster.clone(), objects.clone());
            async move { cluster.delete(&objects[i]).await }
        });
        outcome.and(others.await)
    }
}

/// Shows bound pods, or the mere creation of those nobody waits for.
fn bound_phase(label: &str, set: &NamedSet, wait: bool) -> Phase {
    let (label, pods) = (if wait { label } else { "pods not waited for" }, set.pods.clone());
    Phase::start(label, set.pods.len(), move || pods.bound_count())
}

struct Churned {
    path: String,
    prefix: String,
    body: Body,
    namespaced: bool,
}

fn ticks(interval: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval_at(Instant::now().later(interval), interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn churn(cluster: Arc<Cluster>, made: Arc<Mutex<Made>>, op: Churn, objects: Vec<Churned>) -> anyhow::Result<()> {
    let mut ticks = ticks(Duration::from_millis(op.interval_ms));
    let slots = op.number.max(1);
    let mut alive: HashMap<(usize, usize), String> = HashMap::new();
    for tick in 0_usize.. {
        if op.mode == ChurnMode::Create && op.number > 0 && tick >= op.number {
            break;
        }
        ticks.tick().await;
        for (i, object) in objects.iter().enumerate() {
            let slot = (i, tick % slots);
            if let Some(path) = alive.remove(&slot) {
                cluster.delete(&path).await?;
                continue;
            }
            let name = format!("{}-{tick}", object.prefix);
            let path = format!("{}/{name}", object.path);
            if !object.namespaced {
                let mut made = made.lock().expect("nothing panics under the lock");
                made.objects.push(path.clone());
            }
            cluster.create(&object.path, object.body.named(&name)).await?;
            if op.mode == ChurnMode::Recreate {
                alive.insert(slot, path);
            }
        }
    }
    Ok(())
}

/// Short, fit for DNS names, and different for each run.
fn run_name() -> String {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let nanos = orlop_base::Clock::System.now().as_nanosecond() as u64;
    let mixed = (nanos ^ (u64::from(std::process::id()) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("ob{:05x}{}", mixed >> 44, RUNS.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runs_are_short_and_differ() {
        let (one, two) = (run_name(), run_name());
        assert_ne!(one, two);
        assert!(
            one.len() <= 10 && one.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{one}"
        );
    }
}
