//! How many waiting pods each plugin holds back, by profile.

use super::plugins::PluginId;
use super::pod::QueuedPod;

/// Few entries, however many pods: one for each plugin that rejects, and each scheduler name.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    counts: Vec<(PluginId, String, usize)>,
    changed: bool,
}

impl Rejected {
    pub(super) fn add(&mut self, pod: &QueuedPod) {
        self.each(pod, |count| *count += 1);
    }

    pub(super) fn remove(&mut self, pod: &QueuedPod) {
        self.each(pod, |count| *count -= 1);
    }

    fn each(&mut self, pod: &QueuedPod, change: impl Fn(&mut usize)) {
        let profile = &pod.pod.class.spec.scheduler_name;
        for id in pod.rejectors().ids() {
            let known = self.counts.iter().position(|(i, p, _)| *i == id && p == profile);
            let at = known.unwrap_or_else(|| {
                self.counts.push((id, profile.clone(), 0));
                self.counts.len() - 1
            });
            change(&mut self.counts[at].2);
            self.changed = true;
        }
    }

    /// The counts, if they changed since they were last asked for.
    pub(super) fn news(&mut self) -> Option<impl Iterator<Item = (PluginId, &str, usize)>> {
        let news = std::mem::take(&mut self.changed);
        news.then(|| self.counts.iter().map(|(id, profile, n)| (*id, profile.as_str(), *n)))
    }
}
