//! A small machine with another kernel, for what the kernel that tests run on may lack: IPVS, control groups of version 2
//! under systemd.
//!
//! QEMU without hardware's help boots Debian's cloud kernel (`tools/install-test-tools` fetches it) with a file system in
//! memory that holds the very test program, a shell and the tools it uses. The test runs itself again in there.

mod archive;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use archive::Archive;
use orlop_base::clock::monotonic;

/// Where `tools/install-test-tools` puts the kernel's package.
const KERNEL: &str = "/var/cache/orlop-test-kernel";
/// Set within the machine.
const INSIDE: &str = "ORLOP_IN_MACHINE";
const RESULT: &str = "orlop-machine-result:";
/// What the test harness says before the test: a name that is none of a test's runs nothing, and succeeds.
const RAN: &str = "running 1 test";
/// Where the binary under test is in there, if the test puts it there.
pub const ORLOP: &str = "orlop";
const LIMIT: Duration = Duration::from_secs(290);
/// What systemd is told to bring up, and nothing else.
const TARGET: &str = "orlop-test.target";

/// Within a machine already.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs the named test of this program (`module::function`) in a machine, unless it is in there already. `make` gets a directory for what it
/// has to make first.
pub fn run(test: &str, make: impl FnOnce(&Path) -> Machine, inside: impl FnOnce()) {
    if is_inside() {
        return inside();
    }
    let place = tempfile::tempdir().unwrap();
    let machine = make(place.path());
    let initrd = place.path().join("initrd");
    fs::write(&initrd, machine.file_system(place.path(), test)).unwrap();
    boot(&initrd, &machine.append());
}

/// What the machine is made of. Programs find their libraries; modules bring along those they need.
#[derive(Default)]
pub struct Machine {
    modules: Vec<&'static str>,
    /// Where in the machine, and what.
    files: Vec<(String, PathBuf)>,
    /// Name and what it leads to.
    links: Vec<(String, String)>,
    /// Handed on to the test where it is set.
    variables: Vec<&'static str>,
    systemd: bool,
}

impl Machine {
    pub fn new() -> Machine {
        Machine::default()
    }

    /// Kernel modules. One that the kernel does not have is part of it, or not there at all: then the test fails.
    pub fn modules(mut self, modules: &[&'static str]) -> Machine {
        self.modules.extend(modules);
        self
    }

    /// A program of this machine's, and under which other names it is used.
    pub fn program(mut self, name: &str, others: &[&str]) -> Machine {
        self.files.push((format!("bin/{name}"), which(name)));
        let links = others.iter().map(|other| (format!("bin/{other}"), name.to_string()));
        self.links.extend(links);
        self
    }

    /// A file, or a directory with all that is in it, under the path it has here.
    pub fn same(mut self, path: &Path) -> Machine {
        match path.is_dir() {
            true => {
                for entry in fs::read_dir(path).unwrap() {
                    self = self.same(&entry.unwrap().path());
                }
            }
            false => {
                let name = path.to_str().expect("a plain path").trim_start_matches('/');
                self.files.push((name.to_string(), path.to_path_buf()));
            }
        }
        self
    }

    /// A file under another path.
    pub fn file(mut self, name: &str, path: &Path) -> Machine {
        self.files
            .push((name.trim_start_matches('/').to_string(), path.to_path_buf()));
        self
    }

    /// A variable of the environment that the test reads.
    pub fn variable(mut self, name: &'static str) -> Machine {
        self.variables.push(name);
        self
    }

    /// systemd is the first process, as on real machines, and control groups are of version 2.
    pub fn systemd(mut self) -> Machine {
        self.systemd = true;
        self.same(Path::new("/usr/lib/systemd/systemd"))
            .program("systemctl", &[])
            .program("dbus-daemon", &[])
    }

    /// The kernel hands on to the first process what it does not know itself.
    fn append(&self) -> String {
        let mut append = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on".to_string();
        for name in &self.variables {
            if let Ok(value) = std::env::var(name) {
                append.push_str(&format!(" {name}={value}"));
            }
        }
        if self.systemd {
            append.push_str(" systemd.show_status=0 systemd.unified_cgroup_hierarchy=1");
        }
        append
    }

    fn file_system(&self, place: &Path, test: &str) -> Vec<u8> {
        let mut archive = Archive::default();
        for directory in ["proc", "sys", "dev", "tmp", "run", "etc", "var", "modules", "root"] {
            archive.directory(directory);
        }
        archive.copy("bin/busybox", Path::new("/usr/bin/busybox"));
        for (name, path) in &self.files {
            archive.copy(name, path);
        }
        for (name, to) in &self.links {
            archive.link(name, to);
        }
        archive.copy("bin/test-program", &stripped(&std::env::current_exe().unwrap(), place));
        let modules = modules(&self.modules, &mut archive);
        self.first_process(&mut archive, &modules, test);
        archive.finish()
    }

    fn first_process(&self, archive: &mut Archive, modules: &[String], test: &str) {
        let load: String = modules
            .iter()
            .map(|m| format!("$b insmod /modules/{m}.ko || echo no module {m}\n"))
            .collect();
        let head = "#!/bin/busybox sh\nb=/bin/busybox\n";
        let run = format!(
            "export PATH=/bin:/sbin {INSIDE}=1 ORLOP_BIN=/{ORLOP} RUST_BACKTRACE=0 TMPDIR=/tmp\n\
             /bin/test-program --exact {test} --nocapture 2>&1\n\
             echo \"{RESULT} $?\"\n$b poweroff -f\n"
        );
        let mounts = "$b mount -t proc proc /proc\n$b mount -t sysfs sys /sys\n$b mount -t devtmpfs dev /dev\n\
                      $b mount -t tmpfs tmp /tmp\n";
        let init = match self.systemd {
            false => format!("{head}{mounts}{load}{run}"),
            // Containers can't be made on the file system that the kernel begins with: on to another one.
            true => format!(
                "{head}{load}$b mkdir /new\n$b mount -t tmpfs -o mode=755 tmpfs /new\n\
                 for d in /*; do [ $d = /new ] || $b cp -a $d /new/; done\n\
                 exec $b switch_root /new /usr/lib/systemd/systemd --unit={TARGET}\n"
            ),
        };
        archive.file("init", 0o100_755, init.as_bytes());
        if self.systemd {
            archive.file("bin/run-test", 0o100_755, format!("{head}{run}").as_bytes());
            units(archive);
        }
    }
}

/// What systemd needs to know, and the applets of busybox for whoever runs a shell.
fn units(archive: &mut Archive) {
    let service = "[Unit]\nDefaultDependencies=no\nWants=dbus.service\nAfter=dbus.service\n\
                   [Service]\nExecStart=/bin/run-test\nStandardOutput=tty\nStandardError=tty\n\
                   TTYPath=/dev/console\nKillMode=process\n";
    // systemd looks for its clients on the bus only if it has these two units itself.
    let bus_socket = "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n";
    let bus = "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n[Service]\n\
               ExecStart=/bin/dbus-daemon --config-file=/etc/bus.conf --address=systemd: --nofork --nopidfile\n";
    let bus_policy = "<busconfig><type>system</type>\
                      <listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth><policy context=\"default\">\
                      <allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\"/>\
                      <allow send_type=\"signal\"/><allow receive_sender=\"*\"/></policy></busconfig>";
    let target = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=orlop-test.service\n";
    for (name, text) in [
        ("etc/systemd/system/orlop-test.service", service),
        (&format!("etc/systemd/system/{TARGET}"), target),
        ("etc/systemd/system/dbus.socket", bus_socket),
        ("etc/systemd/system/dbus.service", bus),
        ("etc/bus.conf", bus_policy),
        ("etc/resolv.conf", "nameserver 127.0.0.1\n"),
        ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/hosts", "127.0.0.1 localhost machine\n"),
        ("etc/hostname", "machine\n"),
    ] {
        archive.file(name, 0o100_644, text.as_bytes());
    }
    archive.link("var/run", "/run");
    let applets = Command::new("busybox").arg("--list").output().expect("busybox").stdout;
    for applet in String::from_utf8_lossy(&applets).lines() {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
}

/// A program without what a debugger needs: a tenth as long.
pub fn stripped(program: &Path, place: &Path) -> PathBuf {
    let stripped = place.join(program.file_name().expect("a program"));
    let status = Command::new("strip").arg("-o").arg(&stripped).arg(program).status();
    let status = status.expect("strip (of binutils)");
    assert!(status.success(), "strip: {status}");
    stripped
}

fn boot(initrd: &Path, append: &str) {
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg,thread=multi",
            "-smp",
            "2",
            "-m",
            "2048",
            "-nographic",
            "-no-reboot",
            "-net",
            "none",
        ])
        .args(["-append", append])
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
    let started = monotonic();
    let mut has_run = false;
    let result = loop {
        match lines.recv_timeout(LIMIT.saturating_sub(started.elapsed())) {
            Ok(line) => match line.strip_prefix(RESULT) {
                Some(result) => break Ok(result.trim().to_string()),
                None => {
                    has_run |= line == RAN;
                    println!("| {line}");
                }
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
    assert!(
        has_run,
        "there is no such test in the machine: it is named by its whole path"
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

fn which(program: &str) -> PathBuf {
    let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let mut paths = places.iter().map(|place| Path::new(place).join(program));
    paths
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{program} (tools/install-test-tools installs it)"))
}

/// Puts the modules into the archive; their names in an order in which they can be loaded.
fn modules(wanted: &[&str], archive: &mut Archive) -> Vec<String> {
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
    for module in wanted {
        load(module, &files, archive, &mut order);
    }
    order
}

fn load(module: &str, files: &BTreeMap<String, PathBuf>, archive: &mut Archive, order: &mut Vec<String>) {
    if order.iter().any(|other| other == module) {
        return;
    }
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
