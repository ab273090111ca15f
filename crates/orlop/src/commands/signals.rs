//! Ctrl-C and its like.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop_base::Shutdown;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A shutdown that the first signal triggers, and whether one came. A second signal does not wait. To be called before
/// anything is started, so that an early Ctrl-C stops cleanly too.
pub(super) fn stop_on_signal() -> std::io::Result<(Shutdown, Arc<AtomicBool>)> {
    let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (shutdown, asked) = (Shutdown::default(), Arc::new(AtomicBool::new(false)));
    tokio::spawn(stop(signals, asked.clone(), shutdown.clone()));
    Ok((shutdown, asked))
}

async fn stop(signals: (Signal, Signal), asked: Arc<AtomicBool>, shutdown: Shutdown) {
    let (mut interrupt, mut terminate) = signals;
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    next().await;
    tracing::info!("stopping; a second signal exits at once");
    asked.store(true, Ordering::Relaxed);
    shutdown.trigger();
    next().await;
    tracing::warn!("exiting at once after a second signal");
    std::process::exit(1);
}
