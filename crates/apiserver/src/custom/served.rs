//! What is served of a definition: the facts that discovery and routing need, and, made when first needed, the schema.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use orlop_api::{KindDef, Status, Value};
use orlop_apiextensions::CustomVersion;
use orlop_store::{Item, Revision};

use crate::lookup::{items, strings, text};
use crate::object::Object;

/// A definition, as far as requests must know it before they meet an object.
pub(crate) struct Facts {
    /// The definition's name, `crontabs.stable.example.com`.
    pub name: Arc<str>,
    pub uid: String,
    pub generation: i64,
    pub group: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub versions: Vec<VersionFacts>,
    /// Which of the versions objects are stored in.
    pub storage: usize,
    pub is_established: bool,
    /// It is being deleted: objects go, and none come.
    pub is_terminating: bool,
    /// Objects change versions by a webhook, not by their apiVersion alone.
    pub webhook: Option<ConversionWebhook>,
    record: Arc<Object>,
}

/// Who converts objects.
pub(crate) struct ConversionWebhook {
    pub client: Value,
    pub review_versions: Vec<String>,
}

impl ConversionWebhook {
    fn of(conversion: &Value) -> Option<ConversionWebhook> {
        (conversion["strategy"] == "Webhook").then(|| ConversionWebhook {
            client: conversion["webhook"]["clientConfig"].clone(),
            review_versions: strings(conversion["webhook"].get("conversionReviewVersions")),
        })
    }
}

pub(crate) struct VersionFacts {
    pub name: String,
    pub served: bool,
    pub has_status: bool,
    pub has_scale: bool,
    /// What its users are warned of.
    pub deprecation: Option<String>,
}

impl Facts {
    /// Reads a stored definition; none if it is not one that can be served (which validation refuses).
    pub(crate) fn of(item: &Item<Object>, definition: &Value) -> Option<Facts> {
        let is_true = |condition: &str| {
            items(definition, &["status", "conditions"])
                .iter()
                .any(|c| c["type"] == condition && c["status"] == "True")
        };
        let group = text(definition, &["spec", "group"]);
        let names = match definition.pointer("/status/acceptedNames/plural") {
            Some(Value::String(plural)) if !plural.is_empty() => &definition["status"]["acceptedNames"],
            _ => &definition["spec"]["names"],
        };
        let versions = items(definition, &["spec", "versions"]);
        let kind = text(names, &["kind"]);
        Some(Facts {
            name: text(definition, &["metadata", "name"]).into(),
            uid: text(definition, &["metadata", "uid"]).to_string(),
            generation: definition["metadata"]["generation"].as_i64().unwrap_or(1),
            group: group.to_string(),
            plural: text(definition, &["spec", "names", "plural"]).to_string(),
            singular: text(names, &["singular"]).to_string(),
            kind: text(definition, &["spec", "names", "kind"]).to_string(),
            list_kind: match text(names, &["listKind"]) {
                "" => format!("{kind}List"),
                given => given.to_string(),
            },
            short_names: strings(names.get("shortNames")),
            categories: strings(names.get("categories")),
            namespaced: definition["spec"]["scope"] == "Namespaced",
            storage: versions.iter().position(|v| v["storage"] == true)?,
            versions: versions.iter().map(|v| VersionFacts::of(v, group, kind)).collect(),
            is_established: is_true("Established"),
            is_terminating: definition["metadata"]["deletionTimestamp"].is_string(),
            webhook: ConversionWebhook::of(&definition["spec"]["conversion"]),
            record: item.record.clone(),
        })
    }

    /// The whole definition.
    pub(crate) fn definition(&self) -> Value {
        self.record.value()
    }
}

impl VersionFacts {
    fn of(version: &Value, group: &str, kind: &str) -> VersionFacts {
        let name = text(version, &["name"]);
        let is_deprecated = version["deprecated"] == true;
        let warning = match version.get("deprecationWarning").and_then(Value::as_str) {
            Some(given) => given.to_string(),
            None => format!("{group}/{name} {kind} is deprecated"),
        };
        let subresource = |name: &str| version["subresources"].get(name).is_some_and(|s| !s.is_null());
        VersionFacts {
            name: name.to_string(),
            served: version["served"] == true,
            has_status: subresource("status"),
            has_scale: subresource("scale"),
            deprecation: is_deprecated.then_some(warning),
        }
    }
}

/// One version of a definition.
pub(crate) struct Served {
    pub facts: Arc<Facts>,
    version: usize,
    compiled: OnceLock<Result<Arc<CustomVersion>, Status>>,
    /// Objects stored later than this are as the present schema makes them: nothing is to be filled in.
    settled: AtomicU64,
}

/// Nobody knows yet from which revision on.
const UNSETTLED: Revision = Revision::MAX;

/// A version that objects are converted to.
pub(crate) struct Target {
    pub api_version: String,
    pub schema: Arc<CustomVersion>,
}

impl Served {
    pub(super) fn new(facts: Arc<Facts>, version: usize) -> Served {
        // Of a definition that never changed, every object is.
        let settled = if facts.generation <= 1 { 0 } else { UNSETTLED };
        Served {
            facts,
            version,
            compiled: OnceLock::new(),
            settled: AtomicU64::new(settled),
        }
    }

    /// What is served next in the place of `before`.
    pub(super) fn succeeding(facts: Arc<Facts>, version: usize, before: &Served, is_same_life: bool) -> Served {
        let same = is_same_life && before.facts.uid == facts.uid && before.facts.generation == facts.generation;
        let next = Served::new(facts, version);
        if same {
            if let Some(compiled) = before.compiled.get() {
                let _ = next.compiled.set(compiled.clone());
            }
            next.settled
                .store(before.settled.load(Ordering::Acquire), Ordering::Release);
        }
        next
    }

    pub(crate) fn version(&self) -> &VersionFacts {
        &self.facts.versions[self.version]
    }

    /// The schema with all that follows from it, made at the first use.
    pub(crate) fn schema(&self) -> Result<Arc<CustomVersion>, Status> {
        let compile = || {
            CustomVersion::compile(&self.facts.definition(), &self.version().name)
                .map(Arc::new)
                .map_err(|e| Status::internal(format!("failed to use {}: {e}", self.facts.name)))
        };
        self.compiled.get_or_init(compile).clone()
    }

    /// No request that began with an older schema is left.
    pub(super) fn settle(&self, revision: Revision) {
        let _ = self
            .settled
            .compare_exchange(UNSETTLED, revision, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn is_settled_at(&self, revision: Revision) -> bool {
        let settled = self.settled.load(Ordering::Acquire);
        settled == 0 || (settled != UNSETTLED && revision > settled)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.settled.load(Ordering::Acquire) == UNSETTLED
    }

    pub(super) fn target(&self, kind: &KindDef) -> Result<Target, Status> {
        Ok(Target {
            api_version: kind.api_version(),
            schema: self.schema()?,
        })
    }
}
