//! What all service ports together ask for, kept up to date by the service port. Pure.
//!
//! Several may ask for the same thing (an address, mostly); the first of them by name says what it is like, and it goes
//! with the last.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::render::{Host, KernelObject, Match, Set, Value, element, needs_mark, render};
use crate::plan::{Family, Key, ServicePort};

/// The highest byte of the marks of virtual servers, by which they are known as ours.
const MARKS: u32 = 0x4f00_0000;
const MARKS_MASK: u32 = 0xff00_0000;

type Claims = SmallVec<[(Arc<Key>, Value); 1]>;

#[derive(Debug, Default)]
pub struct DesiredState {
    host: Host,
    /// A bit that marks must not have: it asks for masquerading.
    masquerade_bit: u8,
    rendered: FxHashMap<Arc<Key>, Vec<(KernelObject, Value)>>,
    things: FxHashMap<KernelObject, Claims>,
    marks: FxHashMap<Key, u32>,
    marks_taken: FxHashSet<u32>,
}

/// Things that may have changed, with what they were like before.
pub type Touched = FxHashMap<KernelObject, Option<Value>>;

impl DesiredState {
    pub fn new(masquerade_bit: u8) -> DesiredState {
        DesiredState {
            masquerade_bit,
            ..DesiredState::default()
        }
    }

    /// What rendering needs to know of this node; service ports are to be set again if it changed.
    pub fn set_host(&mut self, host: Host, touched: &mut Touched) {
        for family in Family::ALL {
            let of_family = host.node_port_addresses.iter().filter(|ip| Family::of(**ip) == family);
            let things = of_family.map(|ip| (element(family, Set::NodeAddresses, Match::Address(*ip)), Value::None));
            let mut things: Vec<_> = things.collect();
            things.sort_by_key(|(thing, _)| *thing);
            self.put(&nobody(family), Some(things), touched);
        }
        self.host = host;
    }

    /// Service ports that ask for something.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rendered
            .keys()
            .map(|key| &**key)
            .filter(|key| !key.namespace.is_empty())
    }

    /// What a thing should be like; none if nobody asks for it.
    pub fn value(&self, thing: &KernelObject) -> Option<&Value> {
        self.things
            .get(thing)
            .and_then(|claims| claims.first())
            .map(|(_, value)| value)
    }

    pub fn things(&self) -> impl Iterator<Item = (&KernelObject, &Value)> {
        self.things
            .iter()
            .filter_map(|(thing, claims)| claims.first().map(|(_, value)| (thing, value)))
    }

    /// Takes in what a service port asks for now; none if it is gone.
    pub fn set(&mut self, key: &Key, port: Option<&ServicePort>, touched: &mut Touched) {
        let mark = self.mark(key, port.is_some_and(needs_mark));
        let now = port.map(|port| render(port, &self.host, mark));
        self.put(key, now, touched);
    }

    fn put(&mut self, key: &Key, now: Option<Vec<(KernelObject, Value)>>, touched: &mut Touched) {
        let stays = now.is_some();
        let now = now.unwrap_or_default();
        let known = self.rendered.remove_entry(key);
        if known.as_ref().is_none_or(|(_, before)| *before != now) {
            let key = known
                .as_ref()
                .map_or_else(|| Arc::new(key.clone()), |(key, _)| key.clone());
            for (thing, value) in known.iter().flat_map(|(_, before)| before) {
                // What stays as it is costs nothing.
                if find(&now, thing) != Some(value) {
                    self.unclaim(thing, &key, touched);
                }
            }
            for (thing, value) in &now {
                if known.as_ref().and_then(|(_, before)| find(before, thing)) != Some(value) {
                    self.claim(*thing, &key, value.clone(), touched);
                }
            }
        }
        if stays {
            let key = known.map_or_else(|| Arc::new(key.clone()), |(key, _)| key);
            self.rendered.insert(key, now);
        }
    }

    fn unclaim(&mut self, thing: &KernelObject, key: &Key, touched: &mut Touched) {
        let Some(claims) = self.things.get_mut(thing) else {
            return;
        };
        touched
            .entry(*thing)
            .or_insert_with(|| claims.first().map(|(_, value)| value.clone()));
        claims.retain(|(owner, _)| **owner != *key);
        if claims.is_empty() {
            self.things.remove(thing);
        }
    }

    fn claim(&mut self, thing: KernelObject, key: &Arc<Key>, value: Value, touched: &mut Touched) {
        let claims = self.things.entry(thing).or_default();
        touched
            .entry(thing)
            .or_insert_with(|| claims.first().map(|(_, value)| value.clone()));
        let place = claims.partition_point(|(owner, _)| owner < key);
        claims.insert(place, (key.clone(), value));
    }

    /// The mark of a service port. It follows from its name, so that a later process comes to the same one.
    fn mark(&mut self, key: &Key, needed: bool) -> u32 {
        if !needed {
            if let Some(mark) = self.marks.remove(key) {
                self.marks_taken.remove(&mark);
            }
            return 0;
        }
        if let Some(mark) = self.marks.get(key) {
            return *mark;
        }
        let wanted = hash(key);
        let mut tries = (0..=u32::MAX).map(|n| mark_of(wanted.wrapping_add(n), self.masquerade_bit));
        let mark = tries
            .find(|mark| !self.marks_taken.contains(mark))
            .expect("there are fewer service ports than marks");
        self.marks.insert(key.clone(), mark);
        self.marks_taken.insert(mark);
        mark
    }
}

fn find<'a>(things: &'a [(KernelObject, Value)], wanted: &KernelObject) -> Option<&'a Value> {
    let place = things.binary_search_by_key(wanted, |(thing, _)| *thing).ok()?;
    Some(&things[place].1)
}

/// Who asks for what no service does.
fn nobody(family: Family) -> Key {
    Key {
        family,
        namespace: "".into(),
        name: "".into(),
        port: "".into(),
    }
}

/// FNV-1a: the same in every version of this program.
fn hash(key: &Key) -> u32 {
    let bytes = format!("{:?} {key}", key.family).into_bytes();
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// A number as a mark that does not ask for masquerading.
fn mark_of(number: u32, masquerade_bit: u8) -> u32 {
    let low = (1u32 << masquerade_bit) - 1;
    let spread = (number & low) | ((number & !low) << 1);
    (MARKS | (spread & !MARKS_MASK)) & !(1 << masquerade_bit)
}

/// The bits by which our marks are known, and what they are.
pub fn marks(masquerade_bit: u8) -> (u32, u32) {
    (MARKS_MASK, MARKS & !(1 << masquerade_bit))
}

/// Whether virtual servers of this mark are ours.
pub fn is_our_mark(mark: u32, masquerade_bit: u8) -> bool {
    let (mask, marks) = marks(masquerade_bit);
    mark & mask == marks
}
