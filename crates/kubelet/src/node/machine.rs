//! The machine's properties, read from /proc, /sys and /etc at the start and on request.

use std::collections::BTreeMap;
use std::path::Path;

/// The machine. A value that could not be read is zero or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cores: u64,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    /// Size of the pages in bytes → bytes in all such pages.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Size of the file system that holds the kubelet's data.
    pub storage_bytes: u64,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
}

impl Machine {
    /// `data` is any path on the file system that pods' data lies on.
    pub fn read(data: &Path) -> Machine {
        let meminfo = text("/proc/meminfo");
        Machine {
            cores: cores(&text("/proc/cpuinfo")),
            memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            swap_bytes: meminfo_bytes(&meminfo, "SwapTotal"),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            storage_bytes: storage(data),
            machine_id: machine_id(),
            system_uuid: system_uuid(),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel_version: line("/proc/sys/kernel/osrelease"),
            os_image: os_image(&text("/etc/os-release")),
        }
    }
}

fn text(path: &str) -> String {
    std::fs::read(path).map_or(String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn line(path: &str) -> String {
    text(path).trim().to_string()
}

fn machine_id() -> String {
    let found = ["/etc/machine-id", "/var/lib/dbus/machine-id"].map(line);
    found.into_iter().find(|id| !id.is_empty()).unwrap_or_default()
}

fn system_uuid() -> String {
    match line("/sys/class/dmi/id/product_uuid") {
        uuid if uuid.is_empty() => machine_id(),
        uuid => uuid,
    }
}

fn cores(cpuinfo: &str) -> u64 {
    let counted = cpuinfo
        .lines()
        .filter(|line| line.split(':').next().is_some_and(|key| key.trim() == "processor"))
        .count() as u64;
    match counted {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        counted => counted,
    }
}

/// A line of /proc/meminfo, in bytes.
pub fn meminfo_bytes(meminfo: &str, name: &str) -> u64 {
    let found = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = found.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|n| n.parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// Directories such as `hugepages-2048kB`, each with a count.
fn huge_pages(directory: &Path) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB"));
        let Some(size) = size.and_then(|s| s.parse::<u64>().ok()) else {
            continue;
        };
        let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok();
        let count = count.and_then(|s| s.trim().parse::<u64>().ok()).unwrap_or(0);
        let size = size.saturating_mul(1024);
        found.insert(size, size.saturating_mul(count));
    }
    found
}

fn storage(path: &Path) -> u64 {
    // Before its first start the kubelet's directory may not be there yet.
    let existing = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    nix::sys::statvfs::statvfs(existing).map_or(0, |fs| fs.blocks().saturating_mul(fs.fragment_size()))
}

/// `PRETTY_NAME` of os-release.
fn os_image(os_release: &str) -> String {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    value.map_or("Linux".to_string(), |v| v.trim().trim_matches(['"', '\'']).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_as_linux_writes_them() {
        let cpuinfo = "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nprocessor_id : 3\n";
        assert_eq!(cores(cpuinfo), 2);
        assert!(cores("") >= 1);
        let meminfo = "MemTotal:       16384 kB\nMemFree: 1 kB\nSwapTotal: x\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), 16_777_216);
        assert_eq!(
            (meminfo_bytes(meminfo, "SwapTotal"), meminfo_bytes(meminfo, "Mem")),
            (0, 0)
        );
        let names = [
            (
                "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
                "Debian GNU/Linux 12 (bookworm)",
            ),
            ("PRETTY_NAME='a b'", "a b"),
            ("", "Linux"),
        ];
        for (text, expected) in names {
            assert_eq!(os_image(text), expected);
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read(Path::new("/nowhere/at/all"));
        assert!(machine.cores > 0 && machine.memory_bytes > 0 && machine.storage_bytes > 0);
        assert!(!machine.boot_id.is_empty() && !machine.kernel_version.is_empty());
    }

    #[test]
    fn huge_pages_by_size() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [
            ("hugepages-2048kB", "3\n"),
            ("hugepages-1048576kB", "0\n"),
            ("other", "1"),
        ] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        let expected = BTreeMap::from([(2 << 20, 6 << 20), (1 << 30, 0)]);
        assert_eq!(huge_pages(dir.path()), expected);
    }
}
