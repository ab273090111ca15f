//! What waits to be written. About one event there is one request at a time, so that its count never goes back; what
//! comes meanwhile waits, and only the newest of it.

use std::collections::{HashMap, VecDeque};

use super::Report;

#[derive(Default)]
pub(super) struct Outbox {
    ready: VecDeque<Report>,
    /// Names of events that are being written, with what is to be written next.
    busy: HashMap<Box<str>, Option<Report>>,
}

impl Outbox {
    pub(super) fn extend(&mut self, reports: impl IntoIterator<Item = Report>) {
        self.ready.extend(reports);
    }

    /// Nothing could be written now, were there room.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// What to write next. Its event is busy until `finish`.
    pub(super) fn next(&mut self) -> Option<Report> {
        while let Some(report) = self.ready.pop_front() {
            match self.busy.get_mut(&report.name) {
                None => {
                    self.busy.insert(report.name.clone(), None);
                    return Some(report);
                }
                Some(next) if next.as_ref().is_none_or(|next| next.count < report.count) => *next = Some(report),
                Some(_) => {}
            }
        }
        None
    }

    pub(super) fn finish(&mut self, name: &str) {
        if let Some(Some(next)) = self.busy.remove(name) {
            self.ready.push_front(next);
        }
    }
}
