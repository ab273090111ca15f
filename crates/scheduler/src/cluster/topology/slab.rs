//! Things by number; numbers of things that are gone are given out again.

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            slots: vec![],
            free: vec![],
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(thing);
                at
            }
            None => {
                self.slots.push(Some(thing));
                u32::try_from(self.slots.len() - 1).expect("fewer than four billion entries")
            }
        }
    }

    pub(super) fn remove(&mut self, at: u32) -> T {
        self.free.push(at);
        self.slots[at as usize].take().expect("it is there")
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(at, slot)| Some((at, slot.as_ref()?)))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        self.slots[at as usize].as_ref().expect("it is there")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.slots[at as usize].as_mut().expect("it is there")
    }
}
