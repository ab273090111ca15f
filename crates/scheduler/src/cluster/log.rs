//! Which nodes changed, in order: what a reader has not seen yet is all it must look at again.

use super::node::NodeId;

/// Entries kept; a reader that is further behind starts over.
const KEPT: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct ChangeLog {
    entries: std::collections::VecDeque<NodeId>,
    /// Number of the first entry kept.
    first: u64,
}

impl ChangeLog {
    pub fn touch(&mut self, node: NodeId) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(node);
    }

    /// One past the last entry.
    pub fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Nodes touched at or after `from`; None if that is too long ago.
    pub fn since(&self, from: u64) -> Option<impl ExactSizeIterator<Item = NodeId> + '_> {
        let skip = from.checked_sub(self.first)?;
        let skip = usize::try_from(skip).ok()?.min(self.entries.len());
        Some(self.entries.range(skip..).copied())
    }
}
