//! Whether extension API servers answer: their service and its endpoints are there, and one of those answers discovery.
//! The answer is the condition `Available` of the APIService. Checked when something changes, every 30 s, and after a
//! failure sooner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use orlop_api::{KindDef, Status, Value};
use orlop_store::Watcher;
use tokio::time::Instant;

use super::due::{Due, Pace};
use super::resolve::{self, Endpoint};
use super::service::{ApiService, Condition};
use super::{API_SERVICES, Remote, Table, aggregator_user};
use crate::chain::Server;
use crate::connect::{FetchError, FetchLimits};
use crate::internal::Internal;
use crate::kinds;
use crate::lookup::ObjectLookup;
use crate::object::Object;

/// Upstream: the resync period and the rate limiter of its controller.
const PACE: Pace = Pace {
    every: Duration::from_secs(30),
    retry_first: Duration::from_millis(5),
    retry_max: Duration::from_secs(30),
};
/// Discovery of one version should be quick and is small.
const LIMITS: FetchLimits = FetchLimits {
    bytes: 4 << 20,
    wait: Duration::from_secs(5),
};
/// So many endpoints are asked at the same time; one that answers is enough.
const ATTEMPTS: usize = 5;
/// Servers that are checked at the same time.
const AT_ONCE: usize = 32;

/// The endpoints, or why there are none.
type Found = Result<Vec<Endpoint>, Condition>;

/// What is checked, and by what it was last looked at.
#[derive(Default)]
struct Known {
    api: BTreeMap<String, (ApiService, Found)>,
}

/// Runs until shutdown.
pub(super) async fn run(server: &Arc<Server>) {
    let (mut due, mut known) = (Due::<String>::new(PACE), Known::default());
    let mut checks = FuturesUnordered::new();
    let mut changes = Changes::new(server);
    loop {
        let now = Instant::now();
        while checks.len() < AT_ONCE {
            let Some(name) = due.start(now) else { break };
            checks.push(async move {
                let worked = check(server, &name).await;
                (name, worked, now)
            });
        }
        let next = due.next().filter(|_| checks.len() < AT_ONCE);
        let next = async move {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changes.next() => known.apply(server, &change, &mut due),
            Some((name, worked, began)) = checks.next(), if !checks.is_empty() => {
                due.done(&name, worked, began, Instant::now());
            }
            () = next => {}
            () = server.shutdown.wait() => return,
        }
    }
}

/// What may have changed.
enum Change {
    ApiServices,
    /// Services or endpoints of these namespaces.
    Namespaces(Vec<String>),
    Everything,
}

struct Changes<'s> {
    server: &'s Arc<Server>,
    watchers: Option<[Watcher<Object>; 3]>,
}

impl<'s> Changes<'s> {
    fn new(server: &'s Arc<Server>) -> Changes<'s> {
        Changes { server, watchers: None }
    }

    /// `Everything` at first, and whenever the history was lost.
    async fn next(&mut self) -> Change {
        let Some([api, services, slices]) = &mut self.watchers else {
            return self.start();
        };
        let (is_api, events) = tokio::select! {
            events = api.next() => (true, events),
            events = services.next() => (false, events),
            events = slices.next() => (false, events),
        };
        let Ok(events) = events else { return self.start() };
        if is_api {
            return Change::ApiServices;
        }
        let namespace = |key: &str| key.rsplit('/').nth(1).unwrap_or("").to_string();
        let mut namespaces: Vec<String> = events.iter().map(|event| namespace(&event.key)).collect();
        namespaces.sort();
        namespaces.dedup();
        Change::Namespaces(namespaces)
    }

    fn start(&mut self) -> Change {
        let store = &self.server.registry.store;
        let watch = |resource: &str| {
            let prefix = format!("{}{resource}/", kinds::PREFIX);
            let watcher = store.watch(&prefix, store.revision());
            watcher.expect("a watch from now on is always possible")
        };
        self.watchers = Some([API_SERVICES, "services", "endpointslices.discovery.k8s.io"].map(watch));
        Change::Everything
    }
}

impl Known {
    /// Makes due what a change is about.
    fn apply(&mut self, server: &Arc<Server>, change: &Change, due: &mut Due<String>) {
        if !matches!(change, Change::Namespaces(_)) {
            server.aggregator.reload(&*server.registry);
        }
        let table = server.aggregator.table();
        if matches!(change, Change::Everything) {
            self.api.clear();
        }
        self.forget(&table, due);
        let now = Instant::now();
        for api in table.services.values() {
            let is_concerned = match (change, &api.service) {
                (Change::Namespaces(changed), Some(service)) => changed.contains(&service.namespace),
                (Change::Namespaces(_), None) => false,
                _ => true,
            };
            if is_concerned && self.differs(api, &*server.registry) {
                due.touch(&api.name, now);
            }
        }
    }

    fn forget(&mut self, table: &Table, due: &mut Due<String>) {
        self.api.retain(|name, _| table.services.contains_key(name));
        due.retain(|name| table.services.contains_key(name));
    }

    /// Whether there is something new about an APIService, its condition aside.
    fn differs(&mut self, api: &ApiService, lookup: &dyn ObjectLookup) -> bool {
        let found = match &api.service {
            Some(service) => resolve::endpoints(lookup, service),
            None => Ok(vec![]),
        };
        let condition_is_ours = match (&api.service, &api.condition) {
            (_, None) => false,
            (None, Some(condition)) => *condition == Condition::local(),
            (Some(_), Some(condition)) => condition.reason != "Local",
        };
        let bare = ApiService {
            condition: None,
            ..api.clone()
        };
        let new = (bare, found);
        let same = self.api.get(&api.name) == Some(&new);
        self.api.insert(api.name.clone(), new);
        !same || !condition_is_ours
    }
}

/// Checks an APIService and writes what was found. False: again soon.
async fn check(server: &Arc<Server>, name: &str) -> bool {
    let table = server.aggregator.table();
    let Some(api) = table.services.get(name) else {
        return true;
    };
    let condition = match &api.service {
        None => Condition::local(),
        // The core group and that of APIServices are served here whatever is said.
        Some(_) if !api.is_delegated() => Condition::local(),
        Some(_) => match table.remote(&api.group, &api.version) {
            Some(remote) => examine(server, remote).await,
            None => return true,
        },
    };
    let answered = condition.reason != "FailedDiscoveryCheck";
    match publish(server, api, condition).await {
        Ok(()) => answered,
        Err(status) if status.code == 404 => true,
        Err(status) => {
            tracing::warn!(api_service = name, err = %status, "failed to update APIService status");
            false
        }
    }
}

async fn examine(server: &Arc<Server>, remote: &Remote) -> Condition {
    let failed = |why: String| Condition::unavailable("FailedDiscoveryCheck", why);
    let backend = match &remote.backend {
        Ok(backend) => backend,
        Err(error) => return failed(error.to_string()),
    };
    let endpoints = match resolve::endpoints(&*server.registry, &backend.service) {
        Ok(endpoints) => endpoints,
        Err(condition) => return condition,
    };
    let path = format!("/apis/{}/{}", remote.api.group, remote.api.version);
    let user = aggregator_user();
    let attempts = endpoints.len().min(ATTEMPTS);
    let chosen = (0..attempts).filter_map(|_| backend.choose(&endpoints));
    let mut asked: FuturesUnordered<_> = chosen
        .map(|endpoint| async {
            let url = format!("https://{}{path}", endpoint.authority());
            let answer = backend.fetch(endpoint, &path, "application/json", &user, LIMITS).await;
            match answer {
                Ok(answer) if (200..300).contains(&answer.code) => Ok(()),
                Ok(answer) => Err(format!(
                    "failing or missing response from {url}: bad status from {url}: {}",
                    answer.code
                )),
                // It answered, whatever came after that.
                Err(FetchError::Body(_)) => Ok(()),
                Err(error) => Err(format!("failing or missing response from {url}: Get {url:?}: {error}")),
            }
        })
        .collect();
    let mut last = String::new();
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(()) => return Condition::passed(),
            Err(why) => last = why,
        }
    }
    failed(last)
}

fn kind() -> &'static KindDef {
    kinds::of_stored(API_SERVICES).expect("a built-in kind")
}

/// Writes the condition, unless it is there already or the APIService has become another one meanwhile.
async fn publish(server: &Arc<Server>, api: &ApiService, condition: Condition) -> Result<(), Status> {
    let registry = &server.registry;
    let stored = ObjectLookup::get(&**registry, API_SERVICES, "", &api.name);
    let Some(stored) = stored else { return Ok(()) };
    let before = ApiService::read(&stored);
    let is_same = |stored: &ApiService| (&stored.service, &stored.trust) == (&api.service, &api.trust);
    if !is_same(&before) || before.condition.as_ref() == Some(&condition) {
        return Ok(());
    }
    tracing::info!(
        api_service = api.name,
        available = condition.status,
        reason = condition.reason,
        message = condition.message,
        "changed APIService availability"
    );
    let desired = |old: &Value| -> Result<Value, Status> {
        let mut new = old.clone();
        if is_same(&ApiService::read(old)) {
            condition.write(&mut new, registry.now());
        }
        Ok(new)
    };
    let internal = Internal::new(registry.clone());
    internal.change_status(kind(), "", &api.name, &desired).await?;
    if before.is_available() && !condition.is_true() {
        server.aggregator.became_unavailable(&api.name, &condition.reason);
    }
    Ok(())
}
