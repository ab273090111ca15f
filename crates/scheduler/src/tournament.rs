//! The best of many scores, with one of them changing at a time.

/// No score: the node is not in the running.
pub const OUT: i64 = i64::MIN;

/// A binary tree over scores: each inner place knows the best below it and how many have it. A change costs the height.
#[derive(Clone, Debug, Default)]
pub struct Tournament {
    /// Leaves are at `size..`; the root is at 1.
    best: Vec<i64>,
    ties: Vec<u32>,
    size: usize,
    len: usize,
}

impl Tournament {
    pub fn new(scores: impl ExactSizeIterator<Item = i64>) -> Tournament {
        let len = scores.len();
        let size = len.next_power_of_two().max(1);
        let mut best = vec![OUT; 2 * size];
        let mut ties = vec![0; 2 * size];
        for (i, score) in scores.enumerate() {
            best[size + i] = score;
            ties[size + i] = u32::from(score != OUT);
        }
        let mut tree = Tournament { best, ties, size, len };
        for at in (1..size).rev() {
            tree.settle(at);
        }
        tree
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn settle(&mut self, at: usize) {
        let (l, r) = (2 * at, 2 * at + 1);
        let (best, ties) = match self.best[l].cmp(&self.best[r]) {
            std::cmp::Ordering::Greater => (self.best[l], self.ties[l]),
            std::cmp::Ordering::Less => (self.best[r], self.ties[r]),
            std::cmp::Ordering::Equal => (self.best[l], self.ties[l] + self.ties[r]),
        };
        self.best[at] = best;
        self.ties[at] = ties;
    }

    pub fn set(&mut self, index: usize, score: i64) {
        let mut at = self.size + index;
        if self.best[at] == score {
            return;
        }
        self.best[at] = score;
        self.ties[at] = u32::from(score != OUT);
        while at > 1 {
            at /= 2;
            self.settle(at);
        }
    }

    pub fn get(&self, index: usize) -> i64 {
        self.best[self.size + index]
    }

    /// The best score, and how many have it. None if all are out.
    pub fn top(&self) -> Option<(i64, u32)> {
        (self.best[1] != OUT).then(|| (self.best[1], self.ties[1]))
    }

    /// Which has the best score, counting from the left those that do.
    pub fn nth_best(&self, mut nth: u32) -> usize {
        let mut at = 1;
        while at < self.size {
            let (l, r) = (2 * at, 2 * at + 1);
            let left = if self.best[l] == self.best[at] { self.ties[l] } else { 0 };
            at = if nth < left {
                l
            } else {
                nth -= left;
                r
            };
        }
        at - self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_plain_search(start in proptest::collection::vec(-3i64..3, 1..40),
                             changes in proptest::collection::vec((0usize..40, -4i64..4), 0..60)) {
            let mut plain = start.clone();
            let mut tree = Tournament::new(start.into_iter());
            for (at, score) in changes {
                let at = at % plain.len();
                plain[at] = if score == -4 { OUT } else { score };
                tree.set(at, plain[at]);
                let best = *plain.iter().max().unwrap();
                let who: Vec<usize> = (0..plain.len()).filter(|i| plain[*i] == best).collect();
                if best == OUT {
                    prop_assert_eq!(tree.top(), None);
                } else {
                    prop_assert_eq!(tree.top(), Some((best, who.len() as u32)));
                    for (n, i) in who.iter().enumerate() {
                        prop_assert_eq!(tree.nth_best(n as u32), *i);
                    }
                }
            }
        }
    }
}
