//! What a process takes: memory and processor time, read from `/proc`.

use std::time::Duration;

/// One process at one moment. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub name: String,
    pub resident: u64,
    pub peak: u64,
    pub cpu: Duration,
}

/// Kernel clock ticks a second; 100 on every Linux that reports to user space.
const TICKS_PER_SECOND: u64 = 100;

/// None when there is no such process (or it isn't ours to look at).
pub(crate) fn usage(pid: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(parse(&status, &stat))
}

/// Bytes of memory, of which a process has its part of those that it shares with others. None when there is no such process.
pub(crate) fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Makes the kernel forget the peak so far, so that the next one belongs to what comes now. Needs the right to do so; the
/// peak is that of the whole life of the process otherwise.
pub(crate) fn reset_peak(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn parse(status: &str, stat: &str) -> Usage {
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("").trim();
    let bytes = |name: &str| {
        let digits = field(name).split_whitespace().next();
        digits.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    // The name stands in brackets and may hold anything; what is counted comes after it: state is the first field there,
    // user and system time the twelfth and thirteenth.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    Usage {
        name: field("Name:").to_string(),
        resident: bytes("VmRSS:"),
        peak: bytes("VmHWM:"),
        cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_time_are_read_from_proc() {
        let status = "Name:\tkube-scheduler\nVmPeak:\t  900 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n";
        let stat = "12 (odd) name) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0";
        let wanted = Usage {
            name: "kube-scheduler".into(),
            resident: 200 * 1024,
            peak: 300 * 1024,
            cpu: Duration::from_secs(2),
        };
        assert_eq!(parse(status, stat), wanted);
    }

    #[test]
    fn this_process_has_a_size_and_no_process_has_none() {
        assert!(usage(std::process::id()).is_some_and(|u| u.peak >= u.resident && u.resident > 0));
        assert_eq!(usage(u32::MAX), None);
        assert!(proportional(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert_eq!(proportional(u32::MAX), None);
    }
}
