//! How far something long is: a spinner on a terminal, a line for each new state elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Something under way. Dropping it takes the spinner away.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    shown: String,
}

impl Progress {
    pub(crate) fn start(message: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is right");
            let bar = ProgressBar::new_spinner().with_style(style);
            bar.enable_steady_tick(TICK);
            bar
        });
        let mut progress = Progress {
            bar,
            shown: String::new(),
        };
        progress.set(message);
        progress
    }

    /// For a terminal only: too much for a log.
    pub(crate) fn detail(&mut self, message: &str) {
        if self.bar.is_some() {
            self.set(message);
        }
    }

    pub(crate) fn set(&mut self, message: &str) {
        if self.shown == message {
            return;
        }
        self.shown = message.to_string();
        match &self.bar {
            Some(bar) => bar.set_message(message.to_string()),
            None => eprintln!("{message}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
