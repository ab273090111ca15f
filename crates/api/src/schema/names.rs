//! A small hash table from a type's field names to their places: every key of every body is looked up in one, and a
//! binary search would compare each with half a dozen names.

/// Open addressing; at most half full. A slot holds the place plus one, 0 if it is free.
#[derive(Debug, Default)]
pub(crate) struct Names(Box<[u8]>);

/// Few names of one type share length, first, middle and last letter.
fn hash(name: &str) -> usize {
    let b = name.as_bytes();
    let (Some(first), Some(last)) = (b.first(), b.last()) else {
        return 0;
    };
    let letters = usize::from(*first) * 7 + usize::from(b[b.len() / 2]) * 31 + usize::from(*last) * 3;
    letters + b.len() * 13
}

impl Names {
    pub(crate) fn new(names: impl ExactSizeIterator<Item = &'static str>) -> Names {
        let mut slots = vec![0; (names.len() * 2).next_power_of_two()].into_boxed_slice();
        for (place, name) in names.enumerate() {
            let mut at = hash(name) & (slots.len() - 1);
            while slots[at] != 0 {
                at = (at + 1) & (slots.len() - 1);
            }
            slots[at] = u8::try_from(place + 1).expect("no type has that many fields");
        }
        Names(slots)
    }

    pub(crate) fn find(&self, name: &str, name_at: impl Fn(usize) -> &'static str) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        let mask = self.0.len() - 1;
        let mut at = hash(name) & mask;
        while self.0[at] != 0 {
            let place = usize::from(self.0[at]) - 1;
            if name_at(place) == name {
                return Some(place);
            }
            at = (at + 1) & mask;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::schema;

    #[test]
    fn every_field_is_found_and_nothing_else() {
        for t in schema().types() {
            for (i, f) in t.fields.iter().enumerate() {
                assert_eq!(t.index(f.name), Some(i), "{} {}", t.name, f.name);
            }
            for odd in ["", "x", "Name", "metadataa", "ä"] {
                assert_eq!(t.index(odd), None, "{} {odd}", t.name);
            }
        }
    }
}
