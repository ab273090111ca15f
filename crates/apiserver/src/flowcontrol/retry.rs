//! When clients that were rejected shall come back: the later the more of them there are. Pure.
//!
//! Upstream: dropped_requests_tracker.go: doubled while many are rejected, a second less when few are.

use std::collections::VecDeque;

const MAX: u64 = 32;

#[derive(Debug)]
pub(super) struct RetryAfter {
    /// Seconds and how many were rejected in each; the last one is still going on.
    history: VecDeque<(u64, u64)>,
    seconds: u64,
    doubled_at: u64,
}

impl Default for RetryAfter {
    fn default() -> RetryAfter {
        RetryAfter {
            history: VecDeque::new(),
            seconds: 1,
            doubled_at: 0,
        }
    }
}

impl RetryAfter {
    /// A request was rejected in this second; returns after how many it may come back.
    pub(super) fn rejected(&mut self, now: u64) -> u64 {
        match self.history.back_mut() {
            Some((second, count)) if *second == now => *count += 1,
            _ => {
                self.update(now);
                self.history.push_back((now, 1));
            }
        }
        self.seconds
    }

    fn update(&mut self, now: u64) {
        while self.history.front().is_some_and(|(second, _)| second + MAX < now) {
            self.history.pop_front();
        }
        let since = now.saturating_sub(self.seconds);
        let recent: u64 = self
            .history
            .iter()
            .filter(|(second, _)| *second >= since)
            .map(|(_, n)| n)
            .sum();
        if now.saturating_sub(self.doubled_at) >= self.seconds && recent >= 3 * self.seconds {
            self.seconds = (self.seconds * 2).min(MAX);
            self.doubled_at = now;
        } else if recent < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_the_later() {
        let mut retry = RetryAfter::default();
        assert_eq!(retry.rejected(100), 1);
        let mut last = 1;
        for second in 101..300 {
            last = (0..200).map(|_| retry.rejected(second)).last().unwrap();
        }
        assert_eq!(last, MAX);
        for second in (300..1000).step_by(40) {
            last = retry.rejected(second);
        }
        assert!(last < MAX, "{last}");
        assert!(retry.history.len() <= 34);
    }
}
