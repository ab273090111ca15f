//! Log lines of components, each into a file of its own (see `log_files`), beside standard error.
//!
//! Whoever logs only formats the line and puts it into a bounded queue; one thread writes the files. When the disk is slower
//! than the lines come, lines are left out of the files and counted there: nobody waits.

use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Clock;
use orlop_base::task::current_component;
use parking_lot::Mutex;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;

use super::log_files::{LogFile, LogPaths};
use super::shown::{self, SHOWN, SHOWN_COUNT};

/// Lines that may wait for the disk.
const QUEUE: usize = 1024;
/// Longer lines are cut.
const LINE_MAX: usize = 16 << 10;
/// A file that is larger makes room for a new one. There are at most three for a component.
const FILE_MAX: u64 = 4 << 20;
/// How long to wait for the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Set once: what logs has no other way to know where lines go.
static LOGS: OnceLock<ComponentLogs> = OnceLock::new();

/// The way to the files. A component is its place in [`SHOWN`].
struct ComponentLogs {
    queue: SyncSender<Message>,
    /// Until somebody writes them.
    waiting: Mutex<Option<Receiver<Message>>>,
    dropped: [AtomicU64; SHOWN_COUNT],
}

enum Message {
    Line {
        component: usize,
        at: Timestamp,
        text: Vec<u8>,
    },
    /// The component is started.
    Begin(usize),
    Flush(SyncSender<()>),
}

/// From now on lines are kept for the files, as many as there is room for until [`write_to`] says where those are: the data
/// directory may be another process's.
pub(crate) fn capture() {
    let (queue, messages) = sync_channel(QUEUE);
    let logs = ComponentLogs {
        queue,
        waiting: Mutex::new(Some(messages)),
        dropped: Default::default(),
    };
    if LOGS.set(logs).is_ok() {
        begin_of("kube-apiserver");
    }
}

/// Writes what was and will be captured to files in this directory.
pub(crate) fn write_to(directory: &Path) -> io::Result<()> {
    let Some(messages) = LOGS.get().and_then(|logs| logs.waiting.lock().take()) else {
        return Ok(());
    };
    std::fs::create_dir_all(directory)?;
    let file = |component: usize| LogFile::new(LogPaths::new(directory, SHOWN[component].name), FILE_MAX);
    let files: [LogFile; SHOWN_COUNT] = std::array::from_fn(file);
    let thread = std::thread::Builder::new().name("orlop-logs".into());
    thread.spawn(move || write_files(files, &messages)).map(drop)
}

/// A component that the supervisor knows by this name is being started.
pub(crate) fn begin(component: &str) {
    if let Some(shown) = SHOWN.iter().find(|shown| shown.components.contains(&component)) {
        begin_of(shown.name);
    }
}

fn begin_of(name: &str) {
    let component = SHOWN.iter().position(|shown| shown.name == name);
    if let (Some(logs), Some(component)) = (LOGS.get(), component) {
        // If so many lines wait that there is no room, the log just goes on.
        let _ = logs.queue.try_send(Message::Begin(component));
    }
}

/// Waits until what was logged up to now is in the files, but not for long.
pub(crate) fn flush() {
    let Some(logs) = LOGS.get().filter(|logs| logs.waiting.lock().is_none()) else {
        return;
    };
    let (done, finished) = sync_channel(1);
    if logs.queue.try_send(Message::Flush(done)).is_ok() {
        let _ = finished.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn write_files(mut files: [LogFile; SHOWN_COUNT], messages: &Receiver<Message>) {
    let mut failures = 0u64;
    while let Ok(first) = messages.recv() {
        let mut asked = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            let done = match message {
                Message::Begin(component) => files[component].begin(),
                Message::Line { component, at, text } => write_line(&mut files[component], component, at, &text),
                Message::Flush(done) => {
                    asked.push(done);
                    Ok(())
                }
            };
            note_failure(done, &mut failures);
            next = messages.try_recv().ok();
        }
        for file in &mut files {
            note_failure(file.flush(), &mut failures);
        }
        for done in asked {
            let _ = done.send(());
        }
    }
}

fn write_line(file: &mut LogFile, component: usize, at: Timestamp, text: &[u8]) -> io::Result<()> {
    let dropped = LOGS
        .get()
        .map_or(0, |logs| logs.dropped[component].swap(0, Ordering::Relaxed));
    if dropped > 0 {
        file.write(
            at,
            format!("{dropped} lines were left out: the disk is too slow").as_bytes(),
        )?;
    }
    file.write(at, text)
}

/// Standard error has the lines in any case, so this is said rarely.
fn note_failure(done: io::Result<()>, failures: &mut u64) {
    if let Err(error) = done {
        *failures += 1;
        if failures.is_power_of_two() {
            tracing::warn!(err = %error, failures, "failed to write component logs");
        }
    }
}

/// Passes lines of components on to a layer that writes with [`ComponentWriter`], while there are files.
pub(crate) struct ComponentLines<L>(pub L);

impl<S: Subscriber, L: Layer<S>> Layer<S> for ComponentLines<L> {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if LOGS.get().is_some() && owner(event.metadata()).is_some() {
            self.0.on_event(event, context);
        }
    }
}

fn owner(metadata: &Metadata<'_>) -> Option<usize> {
    shown::owner(metadata.target(), current_component())
}

/// Writes to the file of the component that logs.
pub(crate) struct ComponentWriter;

/// To one component's file, or to nowhere.
pub(crate) struct ToComponent(Option<usize>);

impl<'a> MakeWriter<'a> for ComponentWriter {
    type Writer = ToComponent;

    fn make_writer(&'a self) -> ToComponent {
        ToComponent(None)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> ToComponent {
        ToComponent(owner(metadata))
    }
}

impl Write for ToComponent {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if let (Some(component), Some(logs)) = (self.0, LOGS.get()) {
            let line = Message::Line {
                component,
                at: Clock::System.now(),
                text: text[..text.len().min(LINE_MAX)].to_vec(),
            };
            if logs.queue.try_send(line).is_err() {
                logs.dropped[component].fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
