//! A small machine with another kernel, for what the kernel that tests run on may lack: IPVS.
//!
//! QEMU without hardware's help boots Debian's cloud kernel (`tools/install-test-tools` fetches it) with a file system in
//! memory that holds this very test program, a shell and the tools it uses. The test runs itself again in there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Where `tools/install-test-tools` puts the kernel's package.
const KERNEL: &str = "/var/cache/orlop-test-kernel";
/// Set within the machine.
const INSIDE: &str = "ORLOP_IN_MACHINE";
const RESULT: &str = "orlop-machine-result:";
const LIMIT: Duration = Duration::from_secs(290);

/// Those that something asks for; what they need themselves comes along.
const MODULES: &[&str] = &[
    "dummy",
    "veth",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_hash",
    "nft_limit",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_fib_inet",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_reject_inet",
    "nft_compat",
    "nft_objref",
    "nf_conntrack_netlink",
    "xt_comment",
    "xt_mark",
    "xt_conntrack",
    "xt_nat",
    "xt_MASQUERADE",
    "xt_addrtype",
    "xt_statistic",
    "xt_recent",
    "xt_tcpudp",
    "xt_physdev",
    "xt_nfacct",
    "ipt_REJECT",
    "ip6t_REJECT",
    "ip_vs",
    "ip_vs_rr",
    "ip_vs_lc",
    "ip_vs_dh",
    "ip_vs_sh",
    "ip_vs_sed",
    "ip_vs_nq",
    "ip_vs_wrr",
    "ip_vs_wlc",
    "ip_vs_mh",
];

/// Programs, and under which other names they are used.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ip", &[]),
    ("nft", &[]),
    ("ipvsadm", &[]),
    (
        "xtables-nft-multi",
        &[
            "iptables",
            "iptables-save",
            "iptables-restore",
            "ip6tables",
            "ip6tables-save",
            "ip6tables-restore",
        ],
    ),
];

/// Runs the named test of this program in the machine, unless it is in there already.
pub fn run(test: &str, inside: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let place = tempfile::tempdir().unwrap();
    let initrd = place.path().join("initrd");
    fs::write(&initrd, file_system(place.path(), test)).unwrap();
    boot(&initrd);
}

fn boot(initrd: &Path) {
    // The kernel hands on to the test what it does not know itself.
    let services = std::env::var("ORLOP_SERVICES")
        .map(|n| format!(" ORLOP_SERVICES={n}"))
        .unwrap_or_default();
    let append = format!("console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on{services}");
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg,thread=multi",
            "-smp",
            "2",
            "-m",
            "1536",
            "-nographic",
            "-no-reboot",
            "-net",
            "none",
        ])
        .args(["-append", &append])
        .arg("-kernel")
        .arg(find(&Path::new(KERNEL).join("boot"), "vmlinuz-"))
        .arg("-initrd")
        .arg(initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("qemu-system-x86_64 (tools/install-test-tools installs it): {e}"));
    let console = BufReader::new(machine.stdout.take().unwrap());
    let (send, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            let _ = send.send(String::from_utf8_lossy(&line).trim_end().to_string());
        }
    });
    let started = Instant::now();
    let result = loop {
        match lines.recv_timeout(LIMIT.saturating_sub(started.elapsed())) {
            Ok(line) => match line.strip_prefix(RESULT) {
                Some(result) => break Ok(result.trim().to_string()),
                None => println!("| {line}"),
            },
            Err(_) => {
                break Err(format!(
                    "the machine said nothing more of it in {:?}",
                    started.elapsed()
                ));
            }
        }
    };
    let _ = machine.kill();
    let _ = machine.wait();
    let _ = reader.join();
    assert_eq!(
        result.as_deref(),
        Ok("0"),
        "the test within the machine failed: see its console above"
    );
}

/// The only file of a directory whose name begins so.
fn find(directory: &Path, beginning: &str) -> PathBuf {
    let list = fs::read_dir(directory)
        .unwrap_or_else(|e| panic!("{}: {e} (tools/install-test-tools puts it there)", directory.display()));
    let mut found = list.map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(beginning))
    };
    found
        .find(named)
        .unwrap_or_else(|| panic!("no {beginning}… in {}", directory.display()))
}

fn file_system(place: &Path, test: &str) -> Vec<u8> {
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev", "tmp", "run", "etc", "var", "modules"] {
        archive.directory(directory);
    }
    archive.program("bin/busybox", Path::new("/usr/bin/busybox"));
    for (name, others) in PROGRAMS {
        let path = which(name);
        archive.program(&format!("bin/{name}"), &path);
        archive.libraries(&path);
        for other in *others {
            archive.link(&format!("bin/{other}"), name);
        }
    }
    // iptables finds its extensions by path.
    let extensions = ["/usr/lib/x86_64-linux-gnu/xtables", "/usr/lib/xtables"];
    if let Some(extensions) = extensions.iter().map(Path::new).find(|path| path.is_dir()) {
        for entry in fs::read_dir(extensions).unwrap() {
            let path = entry.unwrap().path();
            archive.program(path.to_str().unwrap().trim_start_matches('/'), &path);
        }
    }
    // Without what a debugger needs, the program is a tenth as long.
    let own = std::env::current_exe().unwrap();
    let stripped = place.join("test");
    let status = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&own)
        .status()
        .expect("strip (of binutils)");
    assert!(status.success(), "strip: {status}");
    archive.program("bin/test-program", &stripped);
    archive.libraries(&stripped);
    let modules = modules(&mut archive);
    archive.init(&modules, test);
    archive.finish()
}

fn which(program: &str) -> PathBuf {
    let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let mut paths = places.iter().map(|place| Path::new(place).join(program));
    paths
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{program} (tools/install-test-tools installs it)"))
}

/// Puts the modules into the archive; their names in an order in which they can be loaded.
fn modules(archive: &mut Archive) -> Vec<String> {
    let mut files = BTreeMap::new();
    let mut directories = vec![find(&Path::new(KERNEL).join("lib/modules"), "").join("kernel")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
            let path = entry.unwrap().path();
            match path.extension().is_some_and(|extension| extension == "ko") {
                true => {
                    files.insert(path.file_stem().unwrap().to_string_lossy().replace('-', "_"), path);
                }
                false if path.is_dir() => directories.push(path),
                false => {}
            }
        }
    }
    let mut order = Vec::new();
    for module in MODULES {
        load(module, &files, archive, &mut order);
    }
    order
}

fn load(module: &str, files: &BTreeMap<String, PathBuf>, archive: &mut Archive, order: &mut Vec<String>) {
    if order.iter().any(|other| other == module) {
        return;
    }
    // What is not a module of this kernel is part of it, or not there at all, and then the test fails.
    let Some(path) = files.get(module) else { return };
    let bytes = fs::read(path).unwrap();
    let depends = b"\0depends=";
    let start = bytes
        .windows(depends.len())
        .position(|w| w == depends)
        .map(|at| at + depends.len());
    let text = start
        .and_then(|at| bytes[at..].split(|byte| *byte == 0).next())
        .unwrap_or_default();
    for other in String::from_utf8_lossy(text)
        .split(',')
        .filter(|other| !other.is_empty())
    {
        load(&other.replace('-', "_"), files, archive, order);
    }
    archive.file(&format!("modules/{module}.ko"), 0o100_644, &bytes);
    order.push(module.to_string());
}

/// A file system in memory, as the kernel takes it (cpio, newc).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        if !self.names.insert(name.to_string()) {
            return;
        }
        self.entry(name, mode, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.names.len();
        let length = content.len();
        let name_length = name.len() + 1;
        let header = format!(
            "070701{number:08X}{mode:08X}{:08X}{:08X}{:08X}{:08X}{length:08X}{:08X}{:08X}{:08X}{:08X}{name_length:08X}{:08X}",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn directory(&mut self, name: &str) {
        if !name.is_empty() && !self.names.contains(name) {
            self.file(name, 0o040_755, &[]);
        }
    }

    fn link(&mut self, name: &str, to: &str) {
        self.file(name, 0o120_777, to.as_bytes());
    }

    fn program(&mut self, name: &str, path: &Path) {
        let content = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mode = fs::metadata(path).unwrap().permissions().mode();
        self.file(name, 0o100_000 | (mode & 0o777), &content);
    }

    /// The shared libraries of a program, under the paths where it looks for them.
    fn libraries(&mut self, program: &Path) {
        let output = Command::new("ldd").arg(program).output().expect("ldd");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let path = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(path) = path {
                self.program(path.trim_start_matches('/'), Path::new(path));
            }
        }
    }

    fn init(&mut self, modules: &[String], test: &str) {
        let load: String = modules
            .iter()
            .map(|m| format!("$b insmod /modules/{m}.ko || echo no module {m}\n"))
            .collect();
        let script = format!(
            "#!/bin/busybox sh\nb=/bin/busybox\n$b mount -t proc proc /proc\n$b mount -t sysfs sys /sys\n\
             $b mount -t devtmpfs dev /dev\n$b mount -t tmpfs tmp /tmp\n{load}\
             export PATH=/bin {INSIDE}=1 RUST_BACKTRACE=0 TMPDIR=/tmp\n\
             /bin/test-program --exact {test} --nocapture 2>&1\n\
             echo \"{RESULT} $?\"\n$b poweroff -f\n"
        );
        self.file("init", 0o100_755, script.as_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
