//! API servers behind this one: an APIService object gives a version of a group to a service, and requests for it are
//! passed on to what is behind the service.
//!
//! `service` reads the objects and `resolve` finds the endpoints (both pure). The [`Table`] says who serves what; it is
//! made anew when an APIService changes. `availability` checks the servers and writes the condition that clients see,
//! `documents` keeps their discovery, `merge` and `openapi` put it together with our own, `registration` keeps an
//! APIService for each version that is served here. The requests themselves take the way of `connect/relay.rs`.
//!
//! Invariants: nothing waits for an extension API server but the requests for it (and for the Swagger document);
//! everything that one sends has a bound in size and time; without remote APIServices a request costs one load.
//!
//! Upstream: staging/src/k8s.io/kube-aggregator (v1.36).

mod availability;
mod documents;
mod due;
mod merge;
mod openapi;
mod registration;
pub(crate) mod resolve;
pub(crate) mod service;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Response};
use orlop_api::Value;
use orlop_base::metrics::text::{header, label, line};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use crate::authn::{MASTERS, UserInfo};
use crate::chain::Server;
use crate::connect::{Backend, BackendError, FrontProxy};
use crate::lookup::ObjectLookup;
use crate::pki::{Credential, PkiError};
use crate::request::RequestInfo;
use crate::respond::{self, Body};

use documents::Documents;
use service::ApiService;

const API_SERVICES: &str = "apiservices.apiregistration.k8s.io";

/// A version of a group that another server serves.
pub(crate) struct Remote {
    pub(crate) api: ApiService,
    pub(crate) backend: Result<Arc<Backend>, BackendError>,
}

impl Remote {
    /// Whether connections to that server would be the same.
    fn reaches(&self, api: &ApiService) -> bool {
        (&self.api.service, &self.api.trust) == (&api.service, &api.trust)
    }
}

/// Who serves what.
#[derive(Default)]
pub(crate) struct Table {
    /// All APIServices, by name.
    services: BTreeMap<String, ApiService>,
    /// By group and version.
    remotes: FxHashMap<String, FxHashMap<String, Arc<Remote>>>,
}

impl Table {
    /// Connections to servers that were known before are kept.
    fn new(objects: &[Arc<Value>], before: &Table, proxy: &FrontProxy) -> Table {
        let mut table = Table::default();
        for object in objects {
            let api = ApiService::read(object);
            if let Some(service) = api.service.clone().filter(|_| api.is_delegated()) {
                let known = before.remote(&api.group, &api.version).filter(|r| r.reaches(&api));
                let backend = match known {
                    Some(remote) => remote.backend.clone(),
                    None => Backend::new(service, &api.trust, proxy).map(Arc::new),
                };
                let versions = table.remotes.entry(api.group.clone()).or_default();
                let api = api.clone();
                versions.insert(api.version.clone(), Arc::new(Remote { api, backend }));
            }
            table.services.insert(api.name.clone(), api);
        }
        table
    }

    fn remote(&self, group: &str, version: &str) -> Option<&Arc<Remote>> {
        self.remotes.get(group)?.get(version)
    }

    fn all_remotes(&self) -> impl Iterator<Item = &Arc<Remote>> {
        self.remotes.values().flat_map(FxHashMap::values)
    }

    /// The priority of a group is the highest of its versions'.
    fn group_priority(&self, group: &str) -> i64 {
        // Upstream: APIRegistrationGroupPriority, higher than any APIService can have.
        if group == orlop_api::apiregistration::GROUP {
            return 20_001;
        }
        let of_group = self.services.values().filter(|s| s.group == group);
        // Where an APIService is still to come: that of custom resources.
        of_group.map(|s| s.group_priority).max().unwrap_or(1000)
    }
}

/// What this server knows of the servers behind it.
pub struct Aggregator {
    proxy: FrontProxy,
    /// Where there is none, most requests need not look any further.
    any_remote: AtomicBool,
    table: RwLock<Arc<Table>>,
    /// Counts the tables.
    changed: watch::Sender<u64>,
    documents: Documents,
    merged: merge::Cache,
    swagger: openapi::Cache,
    /// How often an APIService became unavailable, by name and reason.
    unavailable: Mutex<BTreeMap<(String, String), u64>>,
}

/// Names of APIServices in metrics. More than that are counted no more.
const SERIES_MAX: usize = 1000;

impl Aggregator {
    /// `credential` is that of a front proxy.
    pub fn new(credential: &Credential) -> Result<Aggregator, PkiError> {
        Ok(Aggregator {
            proxy: FrontProxy::new(credential)?,
            any_remote: AtomicBool::new(false),
            table: RwLock::default(),
            changed: watch::Sender::new(0),
            documents: Documents::default(),
            merged: merge::Cache::default(),
            swagger: openapi::Cache::default(),
            unavailable: Mutex::default(),
        })
    }

    /// Reads all APIServices.
    pub(crate) fn reload(&self, lookup: &dyn ObjectLookup) {
        let objects = lookup.list(API_SERVICES, None);
        let before = self.table();
        let table = Arc::new(Table::new(&objects, &before, &self.proxy));
        self.any_remote.store(!table.remotes.is_empty(), Ordering::Release);
        *self.table.write() = table;
        self.changed.send_modify(|count| *count += 1);
    }

    fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// Who serves a request, if it is not this server: `/apis/GROUP/VERSION`, all below, and its OpenAPI document.
    pub(crate) fn remote(&self, info: &RequestInfo) -> Option<Arc<Remote>> {
        if !self.any_remote.load(Ordering::Acquire) {
            return None;
        }
        let path = info.path.strip_prefix("/openapi/v3").unwrap_or(&info.path);
        let mut words = path.strip_prefix("/apis/")?.split('/');
        let (group, version) = (words.next()?, words.next()?);
        self.table().remote(group, version).cloned()
    }

    pub(crate) fn has_remotes(&self) -> bool {
        self.any_remote.load(Ordering::Acquire)
    }

    /// Paths of groups and versions that others serve.
    pub(crate) fn root_paths(&self) -> Vec<String> {
        let table = self.table();
        let paths = table.all_remotes().flat_map(|remote| {
            let group = format!("/apis/{}", remote.api.group);
            [format!("{group}/{}", remote.api.version), group]
        });
        paths.collect()
    }

    fn became_unavailable(&self, name: &str, reason: &str) {
        let mut counts = self.unavailable.lock();
        let key = (name.to_string(), reason.to_string());
        if counts.len() < SERIES_MAX || counts.contains_key(&key) {
            *counts.entry(key).or_default() += 1;
        }
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        let name = "aggregator_unavailable_apiservice";
        let help = "Gauge of APIServices which are marked as unavailable broken down by APIService name.";
        header(out, name, "gauge", help);
        for service in self.table().services.values().take(SERIES_MAX) {
            line(
                out,
                name,
                &label("name", &service.name),
                u8::from(!service.is_available()),
            );
        }
        let name = "aggregator_unavailable_apiservice_total";
        let help = "Counter of APIServices which are marked as unavailable broken down by APIService name and reason.";
        header(out, name, "counter", help);
        for ((service, reason), count) in self.unavailable.lock().iter() {
            let mut labels = label("name", service);
            let _ = write!(labels, ",{}", label("reason", reason));
            line(out, name, &labels, count);
        }
    }
}

impl Server {
    /// Answers discovery and OpenAPI paths that are about what others serve, too; `None`: they don't change the answer.
    pub(crate) async fn merged_document(
        self: &Arc<Self>,
        info: &RequestInfo,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        if !self.aggregator.has_remotes() || !matches!(info.verb, "get" | "head") {
            return None;
        }
        let response = match info.path.trim_end_matches('/') {
            "/openapi/v3" => self.merged_index(headers),
            "/openapi/v2" => self.merged_swagger(headers).await,
            path => self.merged_discovery(path, headers),
        };
        response.map(|response| respond::compressed(response, headers))
    }
}

/// As whom this server asks for itself.
fn aggregator_user() -> UserInfo {
    UserInfo::new("system:kube-aggregator", &[MASTERS])
}

/// Follows the objects, checks the servers and reads their documents; until shutdown.
pub(crate) async fn run(server: Arc<Server>) {
    tokio::join!(
        availability::run(&server),
        documents::run(&server),
        registration::run(&server)
    );
}
