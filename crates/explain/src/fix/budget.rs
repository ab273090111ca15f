//! How much a search may cost. Counted in nodes judged and not in time, so that the same question has the same answer.

/// About half a second in an optimised build.
const NODES: usize = 2_000_000;

#[derive(Clone, Debug)]
pub struct Budget {
    left: usize,
    spent: usize,
    /// What was being searched when it ran out.
    exhausted: Vec<&'static str>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::nodes(NODES)
    }
}

impl Budget {
    pub fn nodes(left: usize) -> Budget {
        Budget {
            left,
            spent: 0,
            exhausted: vec![],
        }
    }

    /// Whether this many nodes may be judged for `what`; they are then taken as judged.
    pub(super) fn take(&mut self, nodes: usize, reserve: usize, what: &'static str) -> bool {
        if self.left < nodes + reserve {
            if !self.exhausted.contains(&what) {
                self.exhausted.push(what);
            }
            return false;
        }
        self.left -= nodes;
        self.spent += nodes;
        true
    }

    /// A part of the search was cut short.
    pub(super) fn exhaust(&mut self, what: &'static str) {
        if !self.exhausted.contains(&what) {
            self.exhausted.push(what);
        }
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn spent(&self) -> usize {
        self.spent
    }

    pub(super) fn gave_up(&self) -> Option<String> {
        if self.exhausted.is_empty() {
            return None;
        }
        Some(format!(
            "gave up on {} after judging {} nodes: there may be other fixes, and smaller ones",
            self.exhausted.join(" and "),
            self.spent
        ))
    }
}
