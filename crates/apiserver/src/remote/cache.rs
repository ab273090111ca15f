//! Answers of webhooks, remembered for a while. Of several callers with the same question one asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Upper bound of what is remembered; beyond it, what is stale goes, and if that is not enough, everything.
const MAX_ENTRIES: usize = 8192;

/// SHA-256 of a question: what is remembered holds no secrets.
pub(crate) type Question = [u8; 32];

pub(crate) struct AnswerCache<V> {
    answers: Mutex<HashMap<Question, Answer<V>>>,
    asked: Mutex<HashMap<Question, Arc<tokio::sync::Mutex<()>>>>,
}

struct Answer<V> {
    value: V,
    asked: Instant,
    ttl: Duration,
}

impl<V> Default for AnswerCache<V> {
    fn default() -> AnswerCache<V> {
        AnswerCache {
            answers: Mutex::default(),
            asked: Mutex::default(),
        }
    }
}

impl<V: Clone> AnswerCache<V> {
    /// What is remembered and not stale.
    pub(crate) fn get(&self, question: &Question) -> Option<V> {
        let answers = self.answers.lock();
        let answer = answers.get(question)?;
        (answer.asked.elapsed() < answer.ttl).then(|| answer.value.clone())
    }

    /// The remembered answer or a new one. `ask` says for how long its answer may be remembered; errors never are.
    pub(crate) async fn get_or_ask<E>(
        &self,
        question: Question,
        ask: impl Future<Output = Result<(V, Duration), E>>,
    ) -> Result<V, E> {
        if let Some(value) = self.get(&question) {
            return Ok(value);
        }
        let turn = self.asked.lock().entry(question).or_default().clone();
        let held = turn.lock().await;
        let outcome = match self.get(&question) {
            Some(value) => Ok(value),
            None => {
                let asked = Instant::now();
                ask.await.map(|(value, ttl)| {
                    self.remember(question, value.clone(), asked, ttl);
                    value
                })
            }
        };
        drop(held);
        let mut asked = self.asked.lock();
        // Ours and that in the map: nobody else waits.
        if Arc::strong_count(&turn) <= 2 {
            asked.remove(&question);
        }
        outcome
    }

    fn remember(&self, question: Question, value: V, asked: Instant, ttl: Duration) {
        if ttl.is_zero() {
            return;
        }
        let mut answers = self.answers.lock();
        if answers.len() >= MAX_ENTRIES {
            answers.retain(|_, answer| answer.asked.elapsed() < answer.ttl);
            if answers.len() >= MAX_ENTRIES {
                answers.clear();
            }
        }
        answers.insert(question, Answer { value, asked, ttl });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_asks_and_others_remember() {
        let cache = AnswerCache::default();
        let calls = Cell::new(0);
        let calls = &calls;
        let ask = |ttl: u64| async move {
            let ttl = Duration::from_secs(ttl);
            tokio::time::sleep(Duration::from_millis(5)).await;
            calls.set(calls.get() + 1);
            Ok::<_, ()>((calls.get(), ttl))
        };
        let many = futures::future::join_all((0..5).map(|_| cache.get_or_ask([1; 32], ask(10)))).await;
        assert_eq!((many, calls.get()), (vec![Ok(1); 5], 1));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get(&[1; 32]), None);
        assert_eq!(cache.get_or_ask([1; 32], ask(0)).await, Ok(2));
        assert_eq!(cache.get_or_ask([1; 32], ask(0)).await, Ok(3));
        assert_eq!(
            cache.get_or_ask([2; 32], async { Err::<(i32, Duration), _>(()) }).await,
            Err(())
        );
        assert!(cache.asked.lock().is_empty());
    }
}
