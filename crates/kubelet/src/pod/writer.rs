//! The status manager: writes pod statuses to the API server, and deletes pods that are done.
//!
//! Only the newest status of a pod counts, and only what differs from the server's is sent, as a strategic merge patch that
//! names the pod's uid: a status never lands on another pod of the same name. Failed writes are retried with back-off for as
//! long as the pod is known; a server that was unreachable for hours gets the newest status when it is back.
//!
//! The first status of a pod that is being created is delayed a moment: most pods run soon after, and then one write is
//! enough.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orlop_api::types::core::{Pod, PodStatus};
use orlop_base::Shutdown;
use orlop_base::clock::Shift;
use orlop_client::{Api, DeleteOptions, Error, Preconditions, path};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::policy;
use super::status::is_own_condition;

/// Writes in flight at once.
const IN_FLIGHT: usize = 32;
/// How long a status that says nothing yet waits for one that does.
const PENDING_WAIT: Duration = Duration::from_millis(400);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// The mirror pod of a static pod, by the static pod's uid.
pub type Mirrors = Arc<dyn Fn(&str) -> Option<Arc<Pod>> + Send + Sync>;

/// Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    entries: Mutex<BTreeMap<String, Entry>>,
    wake: Notify,
}

struct Entry {
    /// The object the status goes to; for a static pod without a mirror pod so far the static pod.
    pod: Arc<Pod>,
    status: PodStatus,
    /// Counts up with each status; what has been written.
    version: u64,
    written: u64,
    /// What the server has, and as of when.
    server: Option<(u64, PodStatus)>,
    finished: bool,
    /// It was deleted from the API server: no more writes.
    deleted: bool,
    in_flight: bool,
    failures: u32,
    due: Instant,
}

/// What came of a write.
enum WriteResult {
    Written(Box<Pod>),
    Deleted,
    /// There is no such pod any more, or it is another one.
    Gone,
    Failed,
    /// A static pod that has no mirror pod yet.
    NoPlace,
}

impl Writer {
    /// Without an API server statuses are kept here and go nowhere.
    pub fn start(api: Option<Api>, mirrors: Mirrors, shutdown: Shutdown) -> (Writer, JoinHandle<()>) {
        let shared = Arc::new(Shared {
            entries: Mutex::default(),
            wake: Notify::new(),
        });
        let writer = Writer { shared: shared.clone() };
        let task = async move {
            match api {
                Some(api) => run(shared, api, mirrors, shutdown).await,
                None => shutdown.wait().await,
            }
        };
        (writer, orlop_base::spawn(task))
    }

    /// The newest status of a pod. `finished`: nothing of it is left, so its object may go, if it is to be deleted.
    pub fn set(&self, pod: &Arc<Pod>, status: &PodStatus, finished: bool) {
        let now = Instant::now();
        let mut entries = self.shared.entries.lock();
        let entry = entries.entry(policy::uid(pod).to_string()).or_insert_with(|| Entry {
            pod: pod.clone(),
            status: PodStatus::default(),
            version: 0,
            written: 0,
            server: None,
            finished: false,
            deleted: false,
            in_flight: false,
            failures: 0,
            due: now,
        });
        if entry.deleted {
            return;
        }
        entry.pod = pod.clone();
        if !policy::is_static(pod) {
            entry.saw(pod);
        }
        let deletable = finished && pod.metadata.deletion_timestamp.is_some();
        let same = entry.version > 0 && entry.status == *status && (entry.finished || !deletable);
        entry.finished |= deletable;
        let news = entry
            .server
            .as_ref()
            .is_some_and(|(_, server)| !patch_of(server, status).is_empty());
        if same && !news {
            return;
        }
        entry.status = status.clone();
        entry.version += 1;
        let due = if says_nothing(status) && !entry.finished {
            now.later(PENDING_WAIT)
        } else {
            now
        };
        // A status that waits must not be put off for ever by others that say nothing.
        let waits = entry.version - 1 > entry.written && entry.failures == 0;
        entry.due = if waits {
            entry.due.min(due)
        } else if entry.failures == 0 {
            due
        } else {
            entry.due
        };
        drop(entries);
        self.shared.wake.notify_one();
    }

    /// Another pod of the API shows this static pod now: it has heard nothing yet.
    pub fn mirror_changed(&self, uid: &str) {
        if let Some(entry) = self.shared.entries.lock().get_mut(uid) {
            entry.server = None;
            entry.version += 1;
            entry.due = Instant::now();
        }
        self.shared.wake.notify_one();
    }

    /// What the server shows of a static pod: if others wrote something else, it is written again.
    pub fn mirror_seen(&self, uid: &str, mirror: &Pod) {
        if let Some(entry) = self.shared.entries.lock().get_mut(uid) {
            entry.saw(mirror);
            let server = entry.server.as_ref();
            if !entry.in_flight
                && entry.version == entry.written
                && server.is_some_and(|(_, server)| !patch_of(server, &entry.status).is_empty())
            {
                entry.version += 1;
                entry.due = Instant::now();
            }
        }
        self.shared.wake.notify_one();
    }

    /// The pod is known no more.
    pub fn forget(&self, uid: &str) {
        self.shared.entries.lock().remove(uid);
    }

    /// The newest status, written or not.
    pub fn status(&self, uid: &str) -> Option<PodStatus> {
        self.shared.entries.lock().get(uid).map(|entry| entry.status.clone())
    }
}

#[cfg(test)]
impl Writer {
    /// The pod's object may go.
    pub fn is_finished(&self, uid: &str) -> bool {
        self.shared.entries.lock().get(uid).is_some_and(|entry| entry.finished)
    }
}

impl Entry {
    /// The server had this.
    fn saw(&mut self, pod: &Pod) {
        let revision = revision(pod);
        if self.server.as_ref().is_none_or(|(known, _)| revision > *known) {
            self.server = Some((revision, pod.status.clone().unwrap_or_default()));
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.in_flight && self.version > self.written && self.due <= now
    }
}

fn revision(pod: &Pod) -> u64 {
    let text = pod.metadata.resource_version.as_deref().unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// Nothing but that it is being worked on.
fn says_nothing(status: &PodStatus) -> bool {
    let quiet = |reason: Option<&str>| matches!(reason, None | Some("ContainerCreating" | "PodInitializing"));
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut states = lists.into_iter().flatten().flatten().filter_map(|s| s.state.as_ref());
    status.phase.as_deref() == Some("Pending")
        && status.reason.is_none()
        && states.all(|s| s.waiting.as_ref().is_some_and(|w| quiet(w.reason.as_deref())))
}

async fn run(shared: Arc<Shared>, api: Api, mirrors: Mirrors, shutdown: Shutdown) {
    let mut writing = FuturesUnordered::new();
    loop {
        let now = Instant::now();
        let mut next = None;
        {
            let mut entries = shared.entries.lock();
            for (uid, entry) in entries.iter_mut() {
                if writing.len() < IN_FLIGHT && entry.is_due(now) {
                    entry.in_flight = true;
                    let job = Job::of(uid, entry);
                    writing.push(job.run(api.clone(), mirrors.clone()));
                } else if !entry.in_flight && entry.version > entry.written {
                    next = [next, Some(entry.due)].into_iter().flatten().min();
                }
            }
        }
        let full = writing.len() >= IN_FLIGHT;
        let timer = next.filter(|_| !full).unwrap_or(now.later(Duration::from_secs(3600)));
        tokio::select! {
            Some((uid, version, outcome)) = writing.next(), if !writing.is_empty() => settle(&shared, &uid, version, outcome),
            () = shared.wake.notified() => {}
            () = tokio::time::sleep_until(timer), if !full => {}
            () = shutdown.wait() => return,
        }
    }
}

fn settle(shared: &Shared, uid: &str, version: u64, outcome: WriteResult) {
    let mut entries = shared.entries.lock();
    let Some(entry) = entries.get_mut(uid) else { return };
    entry.in_flight = false;
    match outcome {
        WriteResult::Written(pod) => {
            entry.saw(&pod);
            entry.written = version;
            entry.failures = 0;
        }
        WriteResult::Deleted | WriteResult::Gone => {
            entry.deleted |= matches!(outcome, WriteResult::Deleted);
            entry.written = version;
            entry.failures = 0;
        }
        WriteResult::NoPlace => entry.due = Instant::now().later(Duration::from_secs(1)),
        WriteResult::Failed => {
            let delay = RETRY_FIRST.saturating_mul(1 << entry.failures.min(10)).min(RETRY_MAX);
            entry.failures = entry.failures.saturating_add(1);
            entry.due = Instant::now().later(delay);
            // What the server has is not known for sure after a failure.
            entry.server = None;
        }
    }
}

/// One status on its way.
struct Job {
    uid: String,
    pod: Arc<Pod>,
    status: PodStatus,
    version: u64,
    server: Option<PodStatus>,
    finished: bool,
}

impl Job {
    fn of(uid: &str, entry: &Entry) -> Job {
        Job {
            uid: uid.to_string(),
            pod: entry.pod.clone(),
            status: entry.status.clone(),
            version: entry.version,
            server: entry.server.as_ref().map(|(_, status)| status.clone()),
            finished: entry.finished,
        }
    }

    async fn run(self, api: Api, mirrors: Mirrors) -> (String, u64, WriteResult) {
        let outcome = self.write(&api, &mirrors).await;
        let outcome = outcome.unwrap_or_else(|error| match error {
            Error::NotFound(_) => WriteResult::Gone,
            // Another pod of that name, most likely: the next try looks first.
            Error::Conflict(_) => WriteResult::Failed,
            error => {
                if !error.is_away() {
                    let pod = policy::described(&self.pod);
                    tracing::warn!(pod, err = error.chain(), "failed to update status for pod");
                }
                WriteResult::Failed
            }
        });
        (self.uid, self.version, outcome)
    }

    async fn write(&self, api: &Api, mirrors: &Mirrors) -> Result<WriteResult, Error> {
        let is_static = policy::is_static(&self.pod);
        let mirror = if is_static { mirrors(&self.uid) } else { None };
        let target: &Pod = match &mirror {
            Some(mirror) => mirror,
            None if is_static => return Ok(WriteResult::NoPlace),
            None => &self.pod,
        };
        let (namespace, name) = (Some(policy::namespace(target)), policy::name(target));
        let uid = policy::uid(target);
        let known = self
            .server
            .clone()
            .or_else(|| Some(mirror.as_ref()?.status.clone().unwrap_or_default()));
        let server = match known {
            Some(status) => status,
            None => {
                let pod: Pod = api.get(&path::object("v1", namespace, "pods", name)).await?;
                if policy::uid(&pod) != uid {
                    return Ok(WriteResult::Gone);
                }
                pod.status.unwrap_or_default()
            }
        };
        let changes = patch_of(&server, &self.status);
        let mut written = target.clone();
        if !changes.is_empty() {
            let patch = json!({"metadata": {"uid": uid}, "status": changes});
            let path = path::subresource("v1", namespace, "pods", name, "status");
            written = api.patch_strategic(&path, &patch).await?;
        }
        if self.finished && mirror.is_none() {
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.to_string()),
                    ..Default::default()
                }),
                ..Default::default()
            };
            api.delete(&path::object("v1", namespace, "pods", name), &options)
                .await?;
            return Ok(WriteResult::Deleted);
        }
        Ok(WriteResult::Written(Box::new(written)))
    }
}

/// Fields of a status that others write.
const FOREIGN: [&str; 5] = [
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "resize",
];

/// What of a status is to be sent so that the server has it; empty if nothing is.
fn patch_of(server: &PodStatus, wanted: &PodStatus) -> Map<String, Value> {
    let object = |status: &PodStatus| match orlop_api::types::to_value(status) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let (server, wanted) = (object(server), object(wanted));
    let mut patch = Map::new();
    let fields = server
        .keys()
        .chain(wanted.keys().filter(|key| !server.contains_key(*key)));
    for field in fields.filter(|field| !FOREIGN.contains(&field.as_str())) {
        let (old, new) = (server.get(field), wanted.get(field));
        if old == new {
            continue;
        }
        let change = match field.as_str() {
            "conditions" => conditions_patch(old, new),
            // Lists that are merged by address: the old ones must go.
            "podIPs" | "hostIPs" => Some(match new.and_then(Value::as_array) {
                Some(list) => {
                    let mut list = list.clone();
                    list.push(json!({"$patch": "replace"}));
                    Value::Array(list)
                }
                None => Value::Null,
            }),
            _ => Some(new.cloned().unwrap_or(Value::Null)),
        };
        if let Some(change) = change {
            patch.insert(field.clone(), change);
        }
    }
    patch
}

/// Conditions are merged by type: those that changed, and those of ours that are no more.
fn conditions_patch(old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let (old, new) = (list(old), list(new));
    let type_of = |condition: &Value| condition["type"].as_str().unwrap_or_default().to_string();
    let mut changes = Vec::new();
    for condition in &new {
        let type_ = type_of(condition);
        let ours = is_own_condition(&type_) || type_ == "DisruptionTarget";
        let before = old.iter().find(|c| type_of(c) == type_);
        if !ours || before == Some(condition) {
            continue;
        }
        let mut change = condition.clone();
        // Merging keeps what is not named: a reason that no longer holds has to be taken back.
        for key in before.and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if change.get(key).is_none() {
                change[key.as_str()] = Value::Null;
            }
        }
        changes.push(change);
    }
    for condition in &old {
        let type_ = type_of(condition);
        if is_own_condition(&type_) && !new.iter().any(|c| type_of(c) == type_) {
            changes.push(json!({"$patch": "delete", "type": type_}));
        }
    }
    (!changes.is_empty()).then_some(Value::Array(changes))
}

#[cfg(test)]
mod tests;
