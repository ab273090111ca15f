//! For tests of controllers: a cluster around the client's API server in memory (`orlop_client::testing`).
//!
//! ```text
//! #[tokio::test(start_paused = true)]                      // time is tokio's; the wall clock goes with it
//! async fn three_are_wanted() {
//!     let cluster = Cluster::new();
//!     cluster.nodes(Nodes::new(2));                        // optional: pods get bound, ready, and end when deleted
//!     cluster.put(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {…}, …}));
//!     cluster.run(&[&REPLICA_SET]);
//!     cluster.wait_until_idle().await;                              // until nobody has asked or written anything for a second
//!     assert_eq!(cluster.list::<Pod>("ns").len(), 3);
//! }
//! ```
//!
//! `put` stores an object as it is, status and all (give namespaces explicitly); `edit`, `edit_status`, `delete` do what a
//! user or kubelet would through the API; `remove` makes gone what a finalizer or a kubelet holds. `get`, `list` and `value`
//! look, `events` has "Type Reason message", `writes` what the controllers wrote. `advance` lets time go by (and settles).
//! `faults` makes calls fail by seed (`calm` ends that), `kill`, `kill_after_writes` and `run` are restarts, `hook` answers what the server
//! does not know (discovery, access reviews). Pods with a node stay after a delete, with a deletionTimestamp, until
//! `Nodes` or `remove` ends them. Kinds need no registration.

mod pods;

use std::sync::Arc;
use std::time::Duration;

use orlop_base::clock::Shift;
use orlop_base::{Clock, Shutdown};
use orlop_client::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(crate) use self::pods::Nodes;
use crate::objects::Kind;
use crate::run::Options;
use crate::runtime::Def;
use crate::settings::Settings;
pub(crate) use orlop_client::testing::{Call, Faults, Refusal, Store, StoreResult};
use orlop_client::testing::{Connection, ListSelector, ObjectPath, Reply, Server, collection};

/// Nothing asked, answered or watched for this long means that all is done.
pub(crate) const QUIET: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);
/// After failures in a row a watch waits for up to a minute before its next try, a lost answer takes half of one.
const CALM: Duration = Duration::from_secs(180);
/// Who is not quiet by then goes round in circles.
const PATIENCE: Duration = Duration::from_secs(1800);

pub(crate) struct Cluster {
    pub clock: Clock,
    server: Server,
    nodes: Mutex<Nodes>,
    running: Mutex<Option<Running>>,
}

struct Running {
    defs: Vec<&'static Def>,
    settings: Settings,
    connection: Connection,
    shutdown: Shutdown,
}

impl Cluster {
    pub(crate) fn new() -> Cluster {
        Cluster::seeded(1)
    }

    /// Starts at 2026-01-01T00:00:00Z. In a runtime whose time is paused.
    pub(crate) fn seeded(seed: u64) -> Cluster {
        let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        Cluster {
            server: Server::new(clock.clone(), seed),
            clock,
            nodes: Mutex::default(),
            running: Mutex::default(),
        }
    }

    /// The nodes that run pods from now on.
    pub(crate) fn nodes(&self, nodes: Nodes) {
        *self.nodes.lock() = nodes;
    }

    pub(crate) fn change_nodes(&self, change: impl FnOnce(&mut Nodes)) {
        let mut nodes = self.nodes.lock();
        change(&mut nodes);
        nodes.look_again();
    }

    pub(crate) fn faults(&self, faults: Faults) {
        self.server.set_faults(faults);
    }

    /// Asked before the server; may answer in its stead.
    pub(crate) fn hook(&self, mut hook: impl FnMut(&Call, &mut Store) -> Option<StoreResult<Value>> + Send + 'static) {
        self.server
            .set_hook(move |call, store| hook(call, store).map(Reply::Now));
    }

    /// For requests of the test's own.
    pub(crate) fn api(&self) -> Api {
        self.server.api()
    }

    /// Starts the controllers, with the default settings.
    pub(crate) fn run(&self, defs: &[&'static Def]) {
        self.run_with(defs, Settings::default());
    }

    /// Starts the controllers; those that ran before are killed.
    pub(crate) fn run_with(&self, defs: &[&'static Def], settings: Settings) {
        self.kill();
        let connection = self.server.connect();
        let running = Running {
            defs: defs.to_vec(),
            settings,
            connection: connection.clone(),
            shutdown: Shutdown::default(),
        };
        let for_account = connection.clone();
        let options = Options {
            api: Api::in_process(connection, "kube-controller-manager"),
            account: Box::new(move |account| Api::in_process(for_account.clone(), account)),
            controllers: running.defs.clone(),
            settings: running.settings.clone(),
            election: None,
            clock: self.clock.clone(),
            metrics: Arc::default(),
            health: Arc::default(),
            shutdown: running.shutdown.clone(),
        };
        tokio::spawn(crate::run::run(options));
        *self.running.lock() = Some(running);
    }

    /// The controllers end in the middle of whatever they do: nothing they ask from now on is done.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running.lock().take() {
            running.connection.cut();
            running.shutdown.trigger();
        }
    }

    /// After so many more writes the controllers are killed; `wait_until_idle` starts them again.
    pub(crate) fn kill_after_writes(&self, writes: u32) {
        if let Some(running) = &*self.running.lock() {
            running.connection.cut_after_writes(writes);
        }
    }

    fn restart_if_dead(&self) {
        let dead = {
            let running = self.running.lock();
            let dead = running.as_ref().filter(|running| running.connection.is_dead());
            dead.map(|running| (running.defs.clone(), running.settings.clone()))
        };
        if let Some((defs, settings)) = dead {
            self.run_with(&defs, settings);
        }
    }

    /// One step of time and of the nodes.
    async fn step(&self) {
        tokio::time::sleep(STEP).await;
        self.server.tick();
        self.restart_if_dead();
        self.server.write(|store| self.nodes.lock().step(store));
    }

    /// Until nothing has happened for `QUIET`.
    pub(crate) async fn wait_until_idle(&self) {
        let began = tokio::time::Instant::now();
        let mut changed = (0, began);
        loop {
            self.step().await;
            let revision = self.server.read(Store::revision);
            if changed.0 != revision {
                changed = (revision, tokio::time::Instant::now());
            }
            if self.server.quiet_for().min(changed.1.elapsed()) >= QUIET {
                return;
            }
            if began.elapsed() > PATIENCE {
                let log = self.server.log();
                let last = log.iter().rev().take(20);
                let last: Vec<String> = last.map(|(call, code)| line(call, *code)).collect();
                panic!("the controllers come to no end; lately:\n{}", last.join("\n"));
            }
        }
    }

    /// Lets time go by, in steps, and then all come to rest.
    pub(crate) async fn advance(&self, by: Duration) {
        self.pass(by).await;
        self.wait_until_idle().await;
    }

    /// Nothing goes wrong any more, and whoever waits for the next try has had it.
    pub(crate) async fn calm(&self) {
        self.faults(Faults::default());
        self.advance(CALM).await;
    }

    /// Lets time go by, whatever is under way then.
    pub(crate) async fn pass(&self, by: Duration) {
        let until = tokio::time::Instant::now().later(by);
        while tokio::time::Instant::now() < until {
            self.step().await;
        }
    }

    /// Stores the object as it is, under its kind, namespace and name; answers what is stored.
    pub(crate) fn put(&self, object: Value) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or("").to_string();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let meta = &object["metadata"];
        let place = self.place_of(&version, &kind, &text(&meta["namespace"]), &text(&meta["name"]));
        self.write(|store| (*store.put(&place, object)).clone())
    }

    fn place_of(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectPath {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        ObjectPath {
            collection: collection(group, &plural(kind)),
            namespace: namespace.to_string(),
            name: name.to_string(),
        }
    }

    fn place<T: Kind>(&self, namespace: &str, name: &str) -> ObjectPath {
        let group = T::API_VERSION.split_once('/').map_or("", |(group, _)| group);
        ObjectPath {
            collection: collection(group, T::RESOURCE),
            namespace: namespace.to_string(),
            name: name.to_string(),
        }
    }

    fn write<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        self.server.write(change)
    }

    /// Changes an object as its user would; false if it is not there.
    pub(crate) fn edit<T: Kind>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> bool {
        self.edit_part::<T>(namespace, name, "", change)
    }

    /// Changes its status.
    pub(crate) fn edit_status<T: Kind>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> bool {
        self.edit_part::<T>(namespace, name, "status", change)
    }

    fn edit_part<T: Kind>(&self, namespace: &str, name: &str, part: &str, change: impl FnOnce(&mut Value)) -> bool {
        let place = self.place::<T>(namespace, name);
        let change = |object: &mut Value| {
            change(object);
            Ok(())
        };
        self.write(|store| store.update(&place, part, change).is_ok())
    }

    /// As `kubectl delete` does; false if it is not there.
    pub(crate) fn delete<T: Kind>(&self, namespace: &str, name: &str) -> bool {
        self.delete_with::<T>(namespace, name, json!({}))
    }

    pub(crate) fn delete_with<T: Kind>(&self, namespace: &str, name: &str, options: Value) -> bool {
        let place = self.place::<T>(namespace, name);
        self.write(|store| store.delete(&place, &options).is_ok())
    }

    /// Gone at once, whatever holds it.
    pub(crate) fn remove<T: Kind>(&self, namespace: &str, name: &str) -> bool {
        let place = self.place::<T>(namespace, name);
        self.write(|store| store.remove(&place).is_ok())
    }

    pub(crate) fn get<T: Kind>(&self, namespace: &str, name: &str) -> Option<T> {
        let value = self.value::<T>(namespace, name)?;
        Some(serde_json::from_value(value).expect("an object of its kind's shape"))
    }

    pub(crate) fn value<T: Kind>(&self, namespace: &str, name: &str) -> Option<Value> {
        let place = self.place::<T>(namespace, name);
        self.server
            .read(|store| store.get(&place).ok().map(|found| (*found).clone()))
    }

    /// In the order of names; of all namespaces if it is empty.
    pub(crate) fn list<T: Kind>(&self, namespace: &str) -> Vec<T> {
        let values = self.values::<T>(namespace).into_iter();
        values
            .map(|value| serde_json::from_value((*value).clone()).expect("an object of its kind's shape"))
            .collect()
    }

    pub(crate) fn values<T: Kind>(&self, namespace: &str) -> Vec<Arc<Value>> {
        let wanted = ListSelector {
            place: self.place::<T>(namespace, ""),
            ..ListSelector::default()
        };
        self.server.read(|store| store.list(&wanted))
    }

    /// "Normal ScalingReplicaSet Scaled up …", in the order of their making.
    pub(crate) fn events(&self) -> Vec<String> {
        let wanted = ListSelector {
            place: ObjectPath {
                collection: collection("", "events"),
                ..ObjectPath::default()
            },
            ..ListSelector::default()
        };
        let mut events = self.server.read(|store| store.list(&wanted));
        let revision = |event: &Arc<Value>| {
            let text = event["metadata"]["uid"].as_str().unwrap_or("");
            text.to_string()
        };
        events.sort_by_key(revision);
        let text = |value: &Value| value.as_str().unwrap_or("").to_string();
        let line = |e: &Arc<Value>| format!("{} {} {}", text(&e["type"]), text(&e["reason"]), text(&e["message"]));
        events.iter().map(line).collect()
    }

    /// What the controllers have written, events left out: "account METHOD path code"; the code is 0 if no answer came.
    pub(crate) fn writes(&self) -> Vec<String> {
        let log = self.server.log();
        let writes = log
            .iter()
            .filter(|(call, _)| call.is_write() && !call.path.contains("/events"));
        writes.map(|(call, code)| line(call, *code)).collect()
    }

    /// All requests but watches, with their bodies.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.server.log().into_iter().map(|(call, _)| call).collect()
    }
}

fn line(call: &Call, code: u16) -> String {
    format!("{} {} {} {code}", call.by, call.method, call.path)
}

/// The resource of a kind, by the rules of English as Kubernetes has them.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    if kind == "endpoints" {
        kind
    } else if let Some(stem) = kind.strip_suffix('y')
        && !kind.ends_with("ay")
    {
        format!("{stem}ies")
    } else if kind.ends_with('s') {
        format!("{kind}es")
    } else {
        format!("{kind}s")
    }
}

#[cfg(test)]
mod tests;
