//! The shell: informers feed the planner, and the tables follow its plan.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use orlop_base::clock::Shift;
use orlop_base::{BoxFuture, Shutdown};
use orlop_client::{Api, Delta, Inbox, Selection, informer, path};
use orlop_netlink::nft::TableError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::attached::AttachedPods;
use super::facts::ObjectName;
use super::objects::{Namespace, NetworkPolicy, Pod};
use super::planner::Planner;
use super::rules::Tables;

/// Changes that may wait.
const QUEUE: usize = 1024;
/// After a sync that failed; doubled up to the period in which everything is looked at anyway.
const RETRY: Duration = Duration::from_secs(1);
/// How often everything is compared with what the kernel holds, while somebody is isolated.
const FULL_SYNC_PERIOD: Duration = Duration::from_secs(60);

/// How to enforce policies on a node.
pub struct Options {
    /// Policies, and as soon as there is one pods and namespaces, are watched through it.
    pub api: Api,
    pub node_name: String,
    /// The name of the nf_tables tables: one that no other cluster of this machine has.
    pub table: String,
    /// The node's network namespace. None: that of the calling thread.
    pub namespace: Option<PathBuf>,
    pub attached: AttachedPods,
    pub shutdown: Shutdown,
}

/// Why enforcement ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("failed to open the node's network namespace or a netfilter socket in it")]
    Open(#[source] std::io::Error),
    #[error("failed to sync network policies: {0}")]
    Table(#[from] TableError),
}

enum InformerEvent {
    Policies(Vec<Delta<NetworkPolicy>>),
    Pods(Vec<Delta<Pod>>),
    Namespaces(Vec<Delta<Namespace>>),
}

/// Which informers have delivered their first list.
#[derive(Default)]
struct SyncedInformers {
    policies: bool,
    pods: bool,
    namespaces: bool,
}

/// The plan and where it is applied.
struct Engine {
    planner: Planner,
    tables: Tables,
}

impl Engine {
    /// Applies what changed, or everything. How many steps it took.
    fn sync(&mut self, is_full: bool) -> Result<usize, TableError> {
        let changes = self.planner.take_changes();
        match is_full {
            true => self.tables.apply_all(self.planner.plan()),
            false => self.tables.apply(self.planner.plan(), &changes),
        }
    }
}

struct Shell {
    options: Options,
    /// Away only while it syncs.
    engine: Option<Box<Engine>>,
    events: mpsc::Sender<InformerEvent>,
    synced_informers: SyncedInformers,
    /// Pods and namespaces are watched, since there is, or was, a policy.
    watches_pods: bool,
    needs_full_sync: bool,
    next_full: Instant,
    retry: Duration,
    retry_at: Option<Instant>,
}

/// Runs until the shutdown. Rules stay in place afterwards, so that what is isolated stays so; the next run takes them over.
pub fn run(options: Options) -> BoxFuture<'static, Result<(), PolicyError>> {
    Box::pin(enforce(options))
}

/// Removes the tables that runs with this name have left.
pub fn clean_up(table: &str, namespace: Option<&std::path::Path>) -> Result<(), PolicyError> {
    Ok(open_tables(table, namespace)?.delete()?)
}

fn open_tables(table: &str, namespace: Option<&std::path::Path>) -> Result<Tables, PolicyError> {
    let namespace = match namespace {
        Some(path) => orlop_netlink::Namespace::open(path),
        None => orlop_netlink::Namespace::current(),
    };
    let opened = namespace.and_then(|namespace| Tables::open(&namespace, table));
    opened.map_err(PolicyError::Open)
}

async fn enforce(options: Options) -> Result<(), PolicyError> {
    let (events, mut inputs) = mpsc::channel(QUEUE);
    let tables = open_tables(&options.table, options.namespace.as_deref())?;
    let (shutdown, attached) = (options.shutdown.clone(), options.attached.clone());
    let mut shell = Shell::new(options, tables, events);
    shell.watch_policies();
    shell.observe_attached();
    loop {
        tokio::select! {
            _ = shutdown.wait() => return Ok(()),
            input = inputs.recv() => match input {
                None => return Ok(()),
                Some(input) => shell.observe(input),
            },
            _ = attached.changed() => shell.observe_attached(),
            _ = tokio::time::sleep_until(shell.wake_at()) => {}
        }
        // What came in the meantime goes into the same sync.
        while let Ok(input) = inputs.try_recv() {
            shell.observe(input);
        }
        shell.sync_if_due().await;
    }
}

impl Shell {
    fn new(options: Options, tables: Tables, events: mpsc::Sender<InformerEvent>) -> Shell {
        Shell {
            engine: Some(Box::new(Engine {
                planner: Planner::new(&options.node_name),
                tables,
            })),
            options,
            events,
            synced_informers: SyncedInformers::default(),
            watches_pods: false,
            needs_full_sync: true,
            next_full: Instant::now(),
            retry: RETRY,
            retry_at: None,
        }
    }

    fn planner(&mut self) -> &mut Planner {
        &mut self
            .engine
            .as_mut()
            .expect("the engine is only away while it syncs")
            .planner
    }

    fn watch_policies(&self) {
        let policies = Selection::all(path::collection("networking.k8s.io/v1", None, "networkpolicies"));
        let inbox = Inbox::new(&self.events, InformerEvent::Policies);
        informer::start(&self.options.api, policies, inbox, &self.options.shutdown);
    }

    /// A cluster without policies does not pay for them.
    fn watch_pods(&mut self) {
        if self.watches_pods {
            return;
        }
        self.watches_pods = true;
        let (api, shutdown) = (&self.options.api, &self.options.shutdown);
        let all = |resource| Selection::all(path::collection("v1", None, resource));
        informer::start(
            api,
            all("pods"),
            Inbox::new(&self.events, InformerEvent::Pods),
            shutdown,
        );
        let inbox = Inbox::new(&self.events, InformerEvent::Namespaces);
        informer::start(api, all("namespaces"), inbox, shutdown);
    }

    fn observe(&mut self, event: InformerEvent) {
        match event {
            InformerEvent::Policies(deltas) => deltas.into_iter().for_each(|delta| self.observe_policy(delta)),
            InformerEvent::Pods(deltas) => deltas.into_iter().for_each(|delta| self.observe_pod(delta)),
            InformerEvent::Namespaces(deltas) => deltas.into_iter().for_each(|delta| self.observe_namespace(delta)),
        }
    }

    fn observe_policy(&mut self, delta: Delta<NetworkPolicy>) {
        match delta {
            Delta::Bookmark(_) => {}
            Delta::Reset(policies) => {
                self.planner().replace_policies(&policies);
                self.synced_informers.policies = true;
            }
            Delta::Applied(policy) => self.planner().apply_policy(&policy),
            Delta::Deleted(policy) => self
                .planner()
                .forget_policy(&policy.metadata.namespace, &policy.metadata.name),
        }
        if self.planner().has_policies() {
            self.watch_pods();
        }
    }

    fn observe_pod(&mut self, delta: Delta<Pod>) {
        match delta {
            Delta::Bookmark(_) => {}
            Delta::Reset(pods) => {
                self.planner().replace_pods(&pods);
                self.synced_informers.pods = true;
            }
            Delta::Applied(pod) => self.planner().apply_pod(&pod),
            Delta::Deleted(pod) => self.planner().forget_pod(&pod.metadata.namespace, &pod.metadata.name),
        }
    }

    fn observe_namespace(&mut self, delta: Delta<Namespace>) {
        match delta {
            Delta::Bookmark(_) => {}
            Delta::Reset(namespaces) => {
                self.planner().replace_namespaces(&namespaces);
                self.synced_informers.namespaces = true;
            }
            Delta::Applied(namespace) => self.planner().apply_namespace(&namespace),
            Delta::Deleted(namespace) => self.planner().forget_namespace(&namespace.metadata.name),
        }
    }

    fn observe_attached(&mut self) {
        let attached = self.options.attached.all();
        let known = self.planner().attached().map(|(pod, _)| pod);
        let gone: BTreeSet<ObjectName> = known.filter(|pod| !attached.contains_key(pod)).cloned().collect();
        gone.iter().for_each(|pod| self.planner().set_attached(pod, &[]));
        attached
            .iter()
            .for_each(|(pod, ips)| self.planner().set_attached(pod, ips));
    }

    /// All that decides about packets is known.
    fn is_synced(&self) -> bool {
        let synced = &self.synced_informers;
        synced.policies && (!self.watches_pods || (synced.pods && synced.namespaces))
    }

    /// When there is something to do even if nothing comes in.
    fn wake_at(&mut self) -> Instant {
        let never = Instant::now().later(Duration::from_secs(3600));
        if !self.is_synced() {
            return never;
        }
        let full = (!self.planner().plan().pods.is_empty()).then_some(self.next_full);
        full.into_iter().chain(self.retry_at).min().unwrap_or(never)
    }

    async fn sync_if_due(&mut self) {
        if !self.is_synced() {
            return;
        }
        let now = Instant::now();
        let is_isolating = !self.planner().plan().pods.is_empty();
        self.needs_full_sync |= is_isolating && now >= self.next_full;
        let may_try = self.retry_at.is_none_or(|at| now >= at);
        if (self.needs_full_sync || self.planner().has_changes()) && may_try {
            self.sync().await;
        }
        if !self.needs_full_sync && !self.planner().has_changes() {
            self.report_attached();
        }
    }

    async fn sync(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        let is_full = self.needs_full_sync;
        let (engine, outcome) = blocking(move || {
            let outcome = engine.sync(is_full);
            (engine, outcome)
        })
        .await;
        self.engine = Some(engine);
        let now = Instant::now();
        match outcome {
            Ok(steps) => {
                tracing::debug!(steps, full = is_full, "synced network policies");
                self.needs_full_sync = false;
                self.retry = RETRY;
                self.retry_at = None;
                if is_full {
                    self.next_full = now.later(FULL_SYNC_PERIOD);
                }
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(err = %error, ?cause, "failed to sync network policies");
                self.needs_full_sync = true;
                self.retry_at = Some(now.later(self.retry));
                self.retry = self.retry.saturating_mul(2).min(FULL_SYNC_PERIOD);
            }
        }
    }

    /// Without policies every pod is as it should be; else those that are known.
    fn report_attached(&mut self) {
        let watches_pods = self.watches_pods;
        let planner = self.planner();
        let done = planner
            .attached()
            .filter(|(pod, _)| !watches_pods || planner.knows_pod(pod));
        let done: Vec<_> = done.map(|(pod, ips)| (pod.clone(), ips.to_vec())).collect();
        self.options.attached.set_applied(&done);
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
