//! Log lines at Kubernetes' verbosities (klog's `V(n)`), which five levels of `tracing` can't tell apart.
//!
//! The verbosity is the last part of the event's target (`orlop_scheduler::shell::bind::v2`). Targets are known before
//! anything is formatted, and whether a line is wanted is remembered at each place that logs: a line that nobody wants costs
//! one read of an atomic. For `RUST_LOG` and its like a line has an ordinary level too: up to 3 `info`, 4 and 5 `debug`, from
//! 6 on `trace`. Callers need `tracing` among their dependencies.

/// The verbosity in an event's target, if it has one.
pub fn of_target(target: &str) -> Option<u8> {
    let (_, last) = target.rsplit_once("::")?;
    last.strip_prefix('v')?.parse().ok()
}

/// Logs at a verbosity of Kubernetes: `v!(2, pod = key, "Successfully bound pod to node")`.
#[macro_export]
macro_rules! v {
    (1, $($event:tt)+) => { ::tracing::info!(target: concat!(module_path!(), "::v1"), $($event)+) };
    (2, $($event:tt)+) => { ::tracing::info!(target: concat!(module_path!(), "::v2"), $($event)+) };
    (3, $($event:tt)+) => { ::tracing::info!(target: concat!(module_path!(), "::v3"), $($event)+) };
    (4, $($event:tt)+) => { ::tracing::debug!(target: concat!(module_path!(), "::v4"), $($event)+) };
    (5, $($event:tt)+) => { ::tracing::debug!(target: concat!(module_path!(), "::v5"), $($event)+) };
    (6, $($event:tt)+) => { ::tracing::trace!(target: concat!(module_path!(), "::v6"), $($event)+) };
    (10, $($event:tt)+) => { ::tracing::trace!(target: concat!(module_path!(), "::v10"), $($event)+) };
}

/// Whether anybody wants lines of verbosity 10: before work that is done only to be logged.
#[macro_export]
macro_rules! v10_enabled {
    () => {
        ::tracing::enabled!(target: concat!(module_path!(), "::v10"), ::tracing::Level::TRACE)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_tell_their_verbosity() {
        let cases = [
            ("orlop_scheduler::shell::bind::v2", Some(2)),
            ("orlop_scheduler::shell::v10", Some(10)),
            ("orlop_scheduler::shell::bind", None),
            ("orlop_scheduler::shell::vault", None),
            ("v2", None),
        ];
        for (target, expected) in cases {
            assert_eq!(of_target(target), expected, "{target}");
        }
    }
}
