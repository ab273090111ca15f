//! Which plugin wants to hear of what, and small sets of plugins.

use rustc_hash::FxHashMap;

use crate::framework::event::{Event, EventKind, Resource};

/// Number of a plugin in a `Registry`.
pub(super) type PluginId = u8;

/// Some plugins; `SchedulingQueue::names` tells which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PluginSet(u64);

impl PluginSet {
    const ALL: PluginSet = PluginSet(u64::MAX);

    fn one(id: PluginId) -> PluginSet {
        PluginSet(1 << id)
    }

    pub(super) fn insert(&mut self, id: PluginId) {
        self.0 |= 1 << id;
    }

    pub(super) fn has(self, id: PluginId) -> bool {
        self.0 & (1 << id) != 0
    }

    pub(super) fn and(self, other: PluginSet) -> PluginSet {
        PluginSet(self.0 & other.0)
    }

    pub(super) fn or(self, other: PluginSet) -> PluginSet {
        PluginSet(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn ids(self) -> impl Iterator<Item = PluginId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let id = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            // 64 zeros: nothing was left.
            PluginId::try_from(id).ok().filter(|id| *id < 64)
        })
    }
}

const RESOURCES: usize = Resource::Any as usize + 1;
const ACTIONS: usize = 32;

/// Plugins by name, and who registered which events.
#[derive(Debug)]
pub(super) struct Registry {
    names: Vec<&'static str>,
    ids: FxHashMap<&'static str, PluginId>,
    /// By resource and number of the action's bit.
    interested: Box<[[PluginSet; ACTIONS]; RESOURCES]>,
    /// Plugins that named no events, and so hear of all.
    always: PluginSet,
}

impl Registry {
    pub(super) fn new(plugins: impl IntoIterator<Item = (&'static str, Vec<EventKind>)>) -> Registry {
        let mut registry = Registry {
            names: vec![],
            ids: FxHashMap::default(),
            interested: Box::new([[PluginSet::default(); ACTIONS]; RESOURCES]),
            always: PluginSet::default(),
        };
        for (name, kinds) in plugins {
            registry.register(name, &kinds);
        }
        registry
    }

    /// Several profiles may have the same plugin: it hears of what any of them registered.
    fn register(&mut self, name: &'static str, kinds: &[EventKind]) -> PluginId {
        let id = *self.ids.entry(name).or_insert_with(|| {
            self.names.push(name);
            PluginId::try_from(self.names.len() - 1)
                .ok()
                .filter(|id| *id < 64)
                .expect("there are fewer than 64 plugins in the program")
        });
        if kinds.is_empty() || kinds.iter().any(|k| k.resource == Resource::Any) {
            self.always.insert(id);
        }
        for kind in kinds {
            for (bit, plugins) in self.interested[kind.resource as usize].iter_mut().enumerate() {
                if kind.actions.0 & (1 << bit) != 0 {
                    plugins.insert(id);
                }
            }
        }
        id
    }

    /// A name that was not registered (an extender) is taken as one that any event may concern.
    pub(super) fn id(&mut self, name: &'static str) -> PluginId {
        match self.ids.get(name) {
            Some(id) => *id,
            None => self.register(name, &[]),
        }
    }

    pub(super) fn set(&mut self, names: &[&'static str]) -> PluginSet {
        (names.iter()).fold(PluginSet::default(), |set, name| set.or(PluginSet::one(self.id(name))))
    }

    pub(super) fn name(&self, id: PluginId) -> &'static str {
        self.names[usize::from(id)]
    }

    pub(super) fn names(&self, set: PluginSet) -> impl Iterator<Item = &'static str> + '_ {
        set.ids().map(|id| self.name(id))
    }

    /// Who registered an event of this kind.
    pub(super) fn interested(&self, event: &Event) -> PluginSet {
        if event.resource == Resource::Any {
            return PluginSet::ALL;
        }
        let by_action = &self.interested[event.resource as usize];
        let mut found = self.always;
        let mut bits = event.actions.0;
        while bits != 0 {
            found = found.or(by_action[bits.trailing_zeros() as usize]);
            bits &= bits - 1;
        }
        found
    }
}
