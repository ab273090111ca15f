//! API priority and fairness: which requests are executed when there are more than there are seats for.
//!
//! A request belongs to the first flow schema that matches it (`config`) and thereby to a priority level. Each level has a
//! part of the server's seats, lends what it does not need (`borrowing`) and has queues, in which the flows of the level
//! get equal parts (`queue_set`, `shuffle`). How many seats a request takes is estimated (`width`); who was rejected is
//! told when to come back (`retry`). All of these are pure. `level` is the shell around one level, `maintain` follows the
//! objects and keeps those that must be there, `report` writes metrics and dumps.
//!
//! Upstream: util/flowcontrol of k8s.io/apiserver (v1.36).

mod borrowing;
mod config;
mod level;
mod maintain;
mod queue_set;
mod report;
mod retry;
mod shuffle;
#[cfg(test)]
mod tests;
mod width;

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;
use orlop_api::Value;
use orlop_base::clock::monotonic;
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHasher};

use crate::authn::UserInfo;
use crate::lookup::ObjectLookup;
use crate::request::RequestInfo;

use config::{Distinguisher, FlowSchema, Plan};
pub(crate) use level::Ticket;
use level::{FlowStats, Level};
use queue_set::Queuing;
use width::Facts;

pub(crate) use maintain::run;

const FLOW_SCHEMAS: &str = "flowschemas.flowcontrol.apiserver.k8s.io";
const PRIORITY_LEVELS: &str = "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io";

/// A request that takes seats, for those who want to know what it is.
pub(crate) trait Described: Send + Sync {
    fn info(&self) -> &RequestInfo;
}

/// A flow schema in use.
pub(crate) struct Flow {
    schema: FlowSchema,
    level: Arc<Level>,
    stats: Arc<FlowStats>,
    schema_uid: HeaderValue,
    level_uid: HeaderValue,
}

impl Flow {
    /// For `X-Kubernetes-PF-FlowSchema-UID` and `X-Kubernetes-PF-PriorityLevel-UID`.
    pub(crate) fn headers(&self) -> [(&'static str, HeaderValue); 2] {
        [
            ("x-kubernetes-pf-flowschema-uid", self.schema_uid.clone()),
            ("x-kubernetes-pf-prioritylevel-uid", self.level_uid.clone()),
        ]
    }
}

/// What is configured now.
#[derive(Default)]
struct Active {
    flows: Vec<Arc<Flow>>,
    /// Levels, those too that are not configured any more but still have requests.
    levels: BTreeMap<String, Arc<Level>>,
}

/// A request that is not to be executed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub(crate) retry_after_seconds: u32,
}

pub(crate) struct FlowControl {
    /// Of the whole server.
    seats: u32,
    /// How long requests wait at most.
    wait_max: Duration,
    epoch: Instant,
    active: RwLock<Arc<Active>>,
    /// Kept when a schema is changed, or goes and comes again: by level and schema.
    stats: Mutex<BTreeMap<(String, String), Arc<FlowStats>>>,
    fair_fraction: Mutex<f64>,
    watches: Watches,
}

/// Counters of flow schemas that are gone are kept up to so many.
const STATS_MAX: usize = 1000;

impl FlowControl {
    /// `seats` are those of the whole server; requests may wait for a quarter of `request_timeout`.
    pub(crate) fn new(seats: usize, request_timeout: Duration) -> FlowControl {
        let control = FlowControl {
            seats: u32::try_from(seats).unwrap_or(u32::MAX),
            // Upstream: a quarter of the time that requests have, a minute at most.
            wait_max: request_timeout.mul_f64(0.25).min(Duration::from_secs(60)),
            epoch: monotonic(),
            active: RwLock::default(),
            stats: Mutex::default(),
            fair_fraction: Mutex::default(),
            watches: Watches::default(),
        };
        control.configure(&[], &[]);
        control
    }

    fn now(&self) -> Duration {
        monotonic().saturating_duration_since(self.epoch)
    }

    /// Reads all flow schemas and priority levels.
    pub(crate) fn reload(&self, lookup: &dyn ObjectLookup) {
        self.configure(&lookup.list(FLOW_SCHEMAS, None), &lookup.list(PRIORITY_LEVELS, None));
    }

    fn configure(&self, schemas: &[Arc<Value>], levels: &[Arc<Value>]) {
        let plan = Plan::new(
            schemas.iter().map(|schema| &**schema),
            levels.iter().map(|level| &**level),
            self.seats,
        );
        let (before, now) = (self.active.read().clone(), self.now());
        let mut active = Active::default();
        for (spec, bounds) in plan.levels {
            let known = before.levels.get(&spec.name).cloned();
            let name = spec.name.clone();
            let level = match known {
                Some(level) => {
                    level.configure(now, spec, bounds);
                    level
                }
                None => Arc::new(Level::new(self.epoch, now, spec, bounds)),
            };
            active.levels.insert(name, level);
        }
        for (name, level) in &before.levels {
            if !active.levels.contains_key(name) && !level.retire() {
                active.levels.insert(name.clone(), level.clone());
            }
        }
        for schema in plan.schemas {
            let level = active.levels[&schema.level].clone();
            let uid = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
            active.flows.push(Arc::new(Flow {
                stats: self.stats_of(&level, &schema.name),
                schema_uid: uid(&schema.uid),
                level_uid: uid(&level.uid()),
                schema,
                level,
            }));
        }
        *self.active.write() = Arc::new(active);
        self.adjust();
    }

    fn stats_of(&self, level: &Level, schema: &str) -> Arc<FlowStats> {
        let mut all = self.stats.lock();
        if all.len() >= STATS_MAX {
            // Those that nobody has any more.
            all.retain(|_, stats| Arc::strong_count(stats) > 1);
        }
        let key = (level.name.clone(), schema.to_string());
        all.entry(key).or_default().clone()
    }

    /// Adjusts the seats of all levels to what they needed since the last time.
    fn adjust(&self) {
        let (active, now) = (self.active.read().clone(), self.now());
        let parties: Vec<_> = active.levels.values().map(|level| level.observe(now)).collect();
        let (shares, fraction) = borrowing::adjust(&parties);
        for (level, share) in active.levels.values().zip(shares) {
            level.set_share(now, share);
        }
        *self.fair_fraction.lock() = fraction;
    }

    /// The flow schema of a request, whose first match counts.
    pub(crate) fn classify(&self, info: &RequestInfo, user: &UserInfo) -> Arc<Flow> {
        let active = self.active.read();
        let matching = active.flows.iter().find(|flow| flow.schema.matches(info, user));
        // Users without any group match nothing.
        let last = || active.flows.iter().find(|flow| flow.schema.name == "catch-all");
        let flow = matching.or_else(last);
        flow.expect("the catch-all schema is always there").clone()
    }

    /// Waits for seats for a request. They are taken until the ticket is dropped.
    pub(crate) async fn admit(
        &self,
        flow: &Arc<Flow>,
        request: Arc<dyn Described>,
        user: &Arc<UserInfo>,
        objects: &(dyn Fn() -> usize + Sync),
    ) -> Result<Ticket, Rejected> {
        let (work, hash) = {
            let info = request.info();
            let facts = Facts {
                objects,
                watches: &|| self.watches.count(&info.group, &info.resource),
            };
            (
                width::estimate(info, flow.level.seats_max(), &facts),
                hash(flow, info, user),
            )
        };
        flow.stats.note_width(work);
        level::admit(flow, request, user.clone(), work, hash, self.wait_max).await
    }

    /// Counts a watch that sees all changes of a resource; until the counter that is returned is decremented.
    pub(crate) fn watches(&self, group: &str, resource: &str) -> Arc<AtomicI64> {
        self.watches.counter(group, resource)
    }
}

/// Requests of the same schema and distinguisher are one flow.
fn hash(flow: &Flow, info: &RequestInfo, user: &UserInfo) -> u64 {
    if !matches!(flow.level.queuing(), Queuing::Queues { .. }) {
        return 0;
    }
    let mut hasher = FxHasher::default();
    hasher.write(flow.schema.name.as_bytes());
    if flow.schema.distinguisher != Distinguisher::None {
        hasher.write_u8(0);
        hasher.write(flow.schema.distinguish(info, user).as_bytes());
    }
    // Hands are dealt from all of its bits.
    hasher.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

/// How many watches see all changes of a resource, by group and resource.
#[derive(Default)]
struct Watches(RwLock<FxHashMap<String, FxHashMap<String, Arc<AtomicI64>>>>);

impl Watches {
    fn count(&self, group: &str, resource: &str) -> u32 {
        let all = self.0.read();
        let counter = all.get(group).and_then(|resources| resources.get(resource));
        let count = counter.map_or(0, |counter| counter.load(Ordering::Relaxed));
        u32::try_from(count).unwrap_or(0)
    }

    fn counter(&self, group: &str, resource: &str) -> Arc<AtomicI64> {
        let mut all = self.0.write();
        let resources = all.entry(group.to_string()).or_default();
        resources.entry(resource.to_string()).or_default().clone()
    }
}
