//! Blocking work (file systems, the kernel), off the threads of the async runtime.

use std::any::Any;
use std::io;

use tokio::task::JoinError;

/// Runs it to its end, even if nobody waits for that any more. An error says that it panicked.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    // Boxed, so that tokio's part is compiled once and not for each closure.
    let work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(move || Box::new(work()));
    let done = tokio::task::spawn_blocking(work).await?;
    Ok(*done.downcast().expect("the value that the work returned"))
}

/// As [`run`] for work that may fail as I/O does; so does a panic of it.
pub(crate) async fn run_io<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    run(work)
        .await
        .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}
