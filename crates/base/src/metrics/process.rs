//! `process_*`: CPU time, memory and files of this process.

use super::text;

/// The kernel counts processor time for user space in hundredths of a second, whatever it uses itself.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// Appends the `process_*` metrics, read from /proc now; those that can't be read are left out.
pub fn write(out: &mut String) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = fields_of_stat(&stat);
    let field = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (field(11), field(12)) {
        let name = "process_cpu_seconds_total";
        text::header(out, name, "counter", "Total user and system CPU time spent in seconds.");
        text::line(out, name, "", text::float((user + system) / TICKS_PER_SECOND));
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        text::header(out, "process_open_fds", "gauge", "Number of open file descriptors.");
        text::line(out, "process_open_fds", "", files.count());
    }
    if let Some(pages) = field(21) {
        let name = "process_resident_memory_bytes";
        text::header(out, name, "gauge", "Resident memory size in bytes.");
        text::line(out, name, "", pages as u64 * PAGE_BYTES);
    }
    if let (Some(started), Some(booted)) = (field(19), boot_time()) {
        let name = "process_start_time_seconds";
        text::header(
            out,
            name,
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        );
        text::line(out, name, "", text::float(booted + started / TICKS_PER_SECOND));
    }
    if let Some(bytes) = field(20) {
        let name = "process_virtual_memory_bytes";
        text::header(out, name, "gauge", "Virtual memory size in bytes.");
        text::line(out, name, "", bytes as u64);
    }
}

/// The fields after the name, which may have spaces and brackets in it: the first is the state.
fn fields_of_stat(stat: &str) -> Vec<&str> {
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().collect()
}

fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets() {
        assert_eq!(fields_of_stat("7 (a) b) S 1 2"), ["S", "1", "2"]);
        let mut out = String::new();
        write(&mut out);
        for name in [
            "cpu_seconds_total",
            "open_fds",
            "resident_memory_bytes",
            "start_time_seconds",
        ] {
            assert!(out.contains(&format!("\nprocess_{name} ")), "{out}");
        }
    }
}
