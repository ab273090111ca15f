//! `--cpu` and `--memory`: using as much as was asked for.

use alloc::format;

use super::log;
use crate::sys;

/// Processes that use as much of the processors: one for each whole one, and one for the rest.
pub(super) fn burn(milli: u64) {
    let mut left = milli;
    while left > 0 {
        let share = left.min(1000);
        left -= share;
        if sys::fork() == Ok(0) {
            burn_share(share);
        }
    }
}

/// So many thousandths of a processor, in periods of a tenth of a second, as the kernel limits them.
fn burn_share(milli: u64) -> ! {
    const PERIOD_MS: u64 = 100;
    sys::end_with_parent();
    loop {
        let begun = sys::monotonic_ms();
        let used = sys::process_nanos();
        while sys::process_nanos() - used < milli * PERIOD_MS * 1000 {}
        let rest = PERIOD_MS.saturating_sub(sys::monotonic_ms() - begun);
        let _ = sys::nanosleep(rest * 1_000_000);
    }
}

pub(super) fn use_memory(bytes: u64) -> sys::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let start = sys::map_memory(bytes as usize)?;
    for at in (0..bytes as usize).step_by(4096) {
        // SAFETY: within what was mapped just now.
        unsafe { start.add(at).write_volatile(1) };
    }
    log("using memory", &format!("bytes={bytes}"));
    Ok(())
}
