//! The table of kinds as requests see it: the built-in rows, and those of definitions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use orlop_api::kind::{self, Subresource};
use orlop_api::{KindDef, Value};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::metrics::ConversionMetrics;
use super::served::{Facts, Served};
use super::{Slot, names};
use crate::kinds;
use crate::registry::create::stored_kind;

/// Finds kinds, built in and custom.
#[derive(Default)]
pub(crate) struct Kinds {
    /// Rows are never freed: one for each kind, version, scope and set of subresources that there ever was.
    rows: Mutex<HashMap<Identity, &'static KindDef>>,
    current: RwLock<Arc<Snapshot>>,
    /// The generation, for those who follow it.
    changed: watch::Sender<u64>,
    pub(crate) conversions: ConversionMetrics,
}

/// What is served of definitions at one time.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Raised with each change.
    pub generation: u64,
    /// By name of the definition: `crontabs.stable.example.com`, which is also how its objects are stored.
    definitions: BTreeMap<Arc<str>, Arc<Rows>>,
    by_resource: FxHashMap<(&'static str, &'static str, &'static str), &'static KindDef>,
    by_kind: FxHashMap<(&'static str, &'static str, &'static str), &'static KindDef>,
    /// Documents made from this snapshot.
    pub(crate) discovery: OnceLock<crate::discovery::Cached>,
}

/// The rows of one definition.
pub(crate) struct Rows {
    pub facts: Arc<Facts>,
    /// Every version, served or not, in the definition's order.
    pub versions: Vec<&'static KindDef>,
    pub storage: &'static KindDef,
}

#[derive(PartialEq, Eq, Hash)]
struct Identity {
    group: String,
    version: String,
    plural: String,
    kind: String,
    namespaced: bool,
    has_status: bool,
    has_scale: bool,
}

impl Kinds {
    pub(crate) fn of_resource(&self, group: &str, version: &str, plural: &str) -> Option<&'static KindDef> {
        kinds::of_resource(group, version, plural)
            .or_else(|| self.current.read().by_resource.get(&(group, version, plural)).copied())
    }

    /// `("stable.example.com/v1", "CronTab")`.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&'static KindDef> {
        kinds::of_kind(api_version, kind).or_else(|| {
            let (group, version) = api_version.split_once('/')?;
            self.current.read().by_kind.get(&(group, version, kind)).copied()
        })
    }

    /// A resource by its qualified name: the kind in whose form it is stored.
    pub(crate) fn of_stored(&self, resource: &str) -> Option<&'static KindDef> {
        kinds::of_stored(resource).or_else(|| Some(self.current.read().definitions.get(resource)?.storage))
    }

    /// Whether the group serves this version at all.
    pub(crate) fn has_version(&self, group: &str, version: &str) -> bool {
        kinds::has_version(group, version) || {
            let current = self.current.read();
            current.served().any(|k| k.group == group && k.version == version)
        }
    }

    pub(crate) fn has_group(&self, group: &str) -> bool {
        orlop_api::kinds::all().any(|k| k.group == group) || self.current.read().served().any(|k| k.group == group)
    }

    /// Notified of every change.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.read().clone()
    }

    /// Serves a definition as it is now, or no more.
    pub(crate) fn put(&self, facts: Arc<Facts>) {
        let rows = Arc::new(self.rows_of(&facts));
        self.change(|definitions| {
            definitions.insert(facts.name.clone(), rows.clone());
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        if self.current.read().definitions.contains_key(name) {
            self.change(|definitions| {
                definitions.remove(name);
            });
        }
    }

    pub(crate) fn rows(&self, name: &str) -> Option<Arc<Rows>> {
        self.current.read().definitions.get(name).cloned()
    }

    /// The names of all definitions.
    pub(super) fn definitions(&self) -> Vec<Arc<str>> {
        self.current.read().definitions.keys().cloned().collect()
    }

    pub(super) fn all_served(&self) -> Vec<Arc<Served>> {
        let current = self.snapshot();
        let rows = current.definitions.values().flat_map(|rows| rows.versions.iter());
        rows.filter_map(|row| super::of(row)).collect()
    }

    fn change(&self, change: impl Fn(&mut BTreeMap<Arc<str>, Arc<Rows>>)) {
        let mut current = self.current.write();
        let mut definitions = current.definitions.clone();
        change(&mut definitions);
        let generation = current.generation + 1;
        *current = Arc::new(Snapshot::of(definitions, generation));
        self.changed.send_replace(generation);
    }

    fn rows_of(&self, facts: &Arc<Facts>) -> Rows {
        let before = self.rows(&facts.name);
        let row = |target| self.row(facts, target, before.as_deref());
        let versions: Vec<&'static KindDef> = (0..facts.versions.len()).map(row).collect();
        let storage = versions[facts.storage];
        Rows {
            facts: facts.clone(),
            versions,
            storage,
        }
    }

    /// The row of one version, its slot filled with what is served from now on.
    fn row(&self, facts: &Arc<Facts>, version: usize, before: Option<&Rows>) -> &'static KindDef {
        let of = &facts.versions[version];
        let identity = Identity {
            group: facts.group.clone(),
            version: of.name.clone(),
            plural: facts.plural.clone(),
            kind: facts.kind.clone(),
            namespaced: facts.namespaced,
            has_status: of.has_status,
            has_scale: of.has_scale,
        };
        let mut rows = self.rows.lock();
        if let Some(row) = rows.get(&identity) {
            let slot: &Slot = row
                .custom
                .and_then(|c| c.downcast_ref())
                .expect("a custom row has a slot");
            let mut slot = slot.0.write();
            // An unchanged schema stays compiled.
            let served = Served::succeeding(facts.clone(), version, &slot, before.is_some());
            *slot = Arc::new(served);
            return row;
        }
        let served = Arc::new(Served::new(facts.clone(), version));
        let row: &'static KindDef = Box::leak(Box::new(new_row(&identity, Slot(RwLock::new(served)))));
        rows.insert(identity, row);
        row
    }
}

impl Snapshot {
    fn of(definitions: BTreeMap<Arc<str>, Arc<Rows>>, generation: u64) -> Snapshot {
        let mut snapshot = Snapshot {
            generation,
            ..Snapshot::default()
        };
        for rows in definitions.values() {
            for (row, version) in rows.versions.iter().zip(&rows.facts.versions) {
                if version.served && rows.facts.is_established {
                    snapshot.by_resource.insert((row.group, row.version, row.plural), row);
                    snapshot.by_kind.insert((row.group, row.version, row.kind), row);
                }
            }
        }
        snapshot.definitions = definitions;
        snapshot
    }

    /// The kind in whose form objects of the kind are stored.
    pub(crate) fn stored_form(&self, kind: &'static KindDef) -> &'static KindDef {
        match super::of(kind) {
            Some(served) => self
                .definitions
                .get(&served.facts.name)
                .map_or(kind, |rows| rows.storage),
            None => stored_kind(kind),
        }
    }

    /// All rows that are served, by name of the definition.
    pub(crate) fn served(&self) -> impl Iterator<Item = &'static KindDef> + '_ {
        self.definitions
            .values()
            .filter(|rows| rows.facts.is_established)
            .flat_map(|rows| {
                let versions = rows.versions.iter().zip(&rows.facts.versions);
                versions.filter(|(_, version)| version.served).map(|(row, _)| *row)
            })
    }

    /// Of every definition, established or not, the kind in whose form objects are stored.
    pub(crate) fn stored(&self) -> impl Iterator<Item = &'static KindDef> + '_ {
        self.definitions.values().map(|rows| rows.storage)
    }
}

/// What all custom kinds have in common.
const ROW: KindDef = KindDef {
    generation: true,
    unconditional_update: false,
    cells: |_, _| vec![],
    columns: &[],
    prepare_create: |_| {},
    prepare_update: |_, _| {},
    ..KindDef::BASE
};

fn new_row(identity: &Identity, slot: Slot) -> KindDef {
    const STATUS: &[Subresource] = &[Subresource::STATUS];
    const SCALE: &[Subresource] = &[Subresource::SCALE];
    const BOTH: &[Subresource] = &[Subresource::STATUS, Subresource::SCALE];
    let common = KindDef {
        group: names::kept(&identity.group),
        version: names::kept(&identity.version),
        kind: names::kept(&identity.kind),
        plural: names::kept(&identity.plural),
        namespaced: identity.namespaced,
        schema: names::kept(&names::definition(&identity.group, &identity.version, &identity.kind)),
        subresources: match (identity.has_status, identity.has_scale) {
            (true, true) => BOTH,
            (true, false) => STATUS,
            (false, true) => SCALE,
            (false, false) => &[],
        },
        custom: Some(Box::leak(Box::new(slot))),
        ..ROW
    };
    match identity.has_status {
        true => KindDef {
            prepare_create: remove_status,
            prepare_update: kind::keep_status,
            ..common
        },
        false => common,
    }
}

/// The status is written through its own endpoint alone. Upstream: customResourceStrategy.PrepareForCreate
fn remove_status(object: &mut Value) {
    if let Some(members) = object.as_object_mut() {
        members.remove("status");
    }
}
