//! How far a phase is: a bar on a terminal, now and then a line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use orlop_base::clock::monotonic;

const LINE_EVERY: Duration = Duration::from_secs(10);

/// One phase under way. Dropping it takes the bar away.
pub(super) struct Phase {
    label: String,
    total: usize,
    started: Instant,
    bar: Option<ProgressBar>,
    updates: tokio::task::JoinHandle<()>,
}

impl Phase {
    /// `done` is asked now and then how many of `total` there are.
    pub(super) fn start(label: &str, total: usize, done: impl Fn() -> usize + Send + 'static) -> Phase {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{msg:28} {bar:40} {pos:>6}/{len} {per_sec:>10} {elapsed}";
            let style = ProgressStyle::with_template(style).expect("the template is right");
            ProgressBar::new(total as u64)
                .with_style(style)
                .with_message(label.to_string())
        });
        let updates = tokio::spawn(report(label.to_string(), total, bar.clone(), done));
        Phase {
            label: label.to_string(),
            total,
            started: monotonic(),
            bar,
            updates,
        }
    }

    pub(super) fn finish(self) {
        let took = self.started.elapsed().as_secs_f64();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let rate = self.total as f64 / took.max(1e-9);
        eprintln!("  {}: {} in {took:.2} s ({rate:.0}/s)", self.label, self.total);
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        self.updates.abort();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

async fn report(label: String, total: usize, bar: Option<ProgressBar>, done: impl Fn() -> usize) {
    let mut last_line = monotonic();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match &bar {
            Some(bar) => bar.set_position(done() as u64),
            None if last_line.elapsed() >= LINE_EVERY => {
                eprintln!("  {label}: {} of {total}", done());
                last_line = monotonic();
            }
            None => {}
        }
    }
}
