//! Extenders: schedulers' helpers behind HTTP.
// Upstream: pkg/scheduler/apis/config/types.go, pkg/scheduler/extender.go (v1.36)

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_api::{Cursor, Path, names, resources};

use super::problem::Problems;
use super::read::Fields;
use crate::model::PodSpec;

/// How long an extender may take unless it is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extender {
    pub url_prefix: String,
    /// A verb is appended to the prefix; an empty one is not called.
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    pub enable_https: bool,
    pub tls: Option<Tls>,
    pub http_timeout: Duration,
    /// Send and take node names only.
    pub node_cache_capable: bool,
    /// If not empty, only pods that ask for one of these are sent.
    pub managed_resources: Vec<ManagedResource>,
    /// Scheduling goes on when the extender fails.
    pub ignorable: bool,
}

impl Extender {
    /// Whether it is asked about such a pod.
    pub fn is_interested(&self, spec: &PodSpec) -> bool {
        let asks = |name: &str| {
            (spec.containers.iter().chain(&spec.init_containers))
                .any(|c| c.resources.requests.contains_key(name) || c.resources.limits.contains_key(name))
        };
        let managed = &self.managed_resources;
        managed.is_empty() || managed.iter().any(|resource| asks(&resource.name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedResource {
    pub name: String,
    pub ignored_by_scheduler: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    /// PEM; used before the files.
    pub cert_data: Vec<u8>,
    pub key_data: Vec<u8>,
    pub ca_data: Vec<u8>,
}

/// In the order they are asked: those that may fail come last.
pub(super) fn read(items: Vec<Cursor<'_>>, path: &Path, p: &mut Problems) -> Vec<Extender> {
    let mut extenders = Vec::new();
    let mut managed = Vec::new();
    for item in items {
        let extender = read_one(item.clone(), p);
        check(&extender, item.path(), &mut managed, p);
        extenders.push(extender);
    }
    let binders = extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        p.invalid(path, found, "only one extender can implement bind");
    }
    extenders.sort_by_key(|extender| extender.ignorable);
    extenders
}

fn read_one(item: Cursor<'_>, p: &mut Problems) -> Extender {
    let mut f = Fields::open(item, p);
    let mut text = |name, f: &mut Fields<'_>| f.text(name, p).unwrap_or_default();
    let mut extender = Extender {
        url_prefix: text("urlPrefix", &mut f),
        filter_verb: text("filterVerb", &mut f),
        preempt_verb: text("preemptVerb", &mut f),
        prioritize_verb: text("prioritizeVerb", &mut f),
        bind_verb: text("bindVerb", &mut f),
        ..Extender::default()
    };
    extender.weight = f.long("weight", p).unwrap_or(0);
    extender.enable_https = f.flag("enableHTTPS", p).unwrap_or(false);
    extender.node_cache_capable = f.flag("nodeCacheCapable", p).unwrap_or(false);
    extender.ignorable = f.flag("ignorable", p).unwrap_or(false);
    let nanos = f.duration("httpTimeout", p).unwrap_or(0);
    if nanos < 0 {
        let shown = f.at("httpTimeout").value().cloned().unwrap_or_default();
        p.invalid(&f.path().field("httpTimeout"), shown, "must be zero or positive");
    }
    extender.http_timeout = match u64::try_from(nanos) {
        Ok(0) | Err(_) => DEFAULT_TIMEOUT,
        Ok(nanos) => Duration::from_nanos(nanos),
    };
    for resource in f.list("managedResources", p) {
        let mut f = Fields::open(resource, p);
        extender.managed_resources.push(ManagedResource {
            name: f.text("name", p).unwrap_or_default(),
            ignored_by_scheduler: f.flag("ignoredByScheduler", p).unwrap_or(false),
        });
        f.close(p);
    }
    let tls = f.at("tlsConfig");
    if tls.exists() {
        extender.tls = Some(read_tls(tls, p));
    }
    f.close(p);
    extender
}

fn read_tls(tls: Cursor<'_>, p: &mut Problems) -> Tls {
    let mut f = Fields::open(tls, p);
    let insecure = f.flag("insecure", p).unwrap_or(false);
    let mut text = |name| f.text(name, p).unwrap_or_default();
    let mut tls = Tls {
        insecure,
        server_name: text("serverName"),
        cert_file: text("certFile"),
        key_file: text("keyFile"),
        ca_file: text("caFile"),
        ..Tls::default()
    };
    tls.cert_data = bytes(&mut f, "certData", p);
    tls.key_data = bytes(&mut f, "keyData", p);
    tls.ca_data = bytes(&mut f, "caData", p);
    f.close(p);
    tls
}

fn bytes(f: &mut Fields<'_>, name: &'static str, p: &mut Problems) -> Vec<u8> {
    let text = f.text(name, p).unwrap_or_default();
    STANDARD.decode(text.trim()).unwrap_or_else(|_| {
        // The value may be a key and is not shown.
        p.wrong_type(&f.path().field(name), &"<hidden>".into(), "must be base64");
        vec![]
    })
}

fn check(extender: &Extender, path: &Path, managed: &mut Vec<String>, p: &mut Problems) {
    if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
        let text = "must have a positive weight applied to it";
        p.invalid(&path.field("weight"), extender.weight, text);
    }
    for (i, resource) in extender.managed_resources.iter().enumerate() {
        let name = resource.name.as_str();
        let path = path.field("managedResources").index(i).field("name");
        let wrong = names::qualified_name(name);
        if !wrong.is_empty() {
            p.invalid_each(&path, name, wrong);
        } else if !resources::is_extended(name) {
            p.invalid(&path, name, "is an invalid extended resource name");
        }
        if managed.iter().any(|other| other == name) {
            p.invalid(&path, name, "duplicate extender managed resource name");
        }
        managed.push(name.to_string());
    }
}
