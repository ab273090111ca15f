//! A log that remembers nothing: for simulations and tests, where the store ends with the process.

use std::sync::Arc;

use super::{AppendResult, Log, LogError, LogMeter, OpenError, Replayed, Transaction};
use crate::Revision;

#[derive(Default)]
pub struct MemoryLog {
    meter: Arc<LogMeter>,
}

impl Log for MemoryLog {
    fn replay(&mut self, _sink: &mut dyn FnMut(Replayed)) -> Result<Revision, OpenError> {
        Ok(1)
    }

    fn commit(&mut self, _micros: i64, batch: &[Transaction<'_>]) -> Result<Vec<AppendResult>, LogError> {
        Ok(batch
            .iter()
            .map(|transaction| AppendResult::Committed(transaction.revision))
            .collect())
    }

    fn meter(&self) -> Arc<LogMeter> {
        self.meter.clone()
    }
}
