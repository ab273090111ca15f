//! A cluster's life as its user sees it: up in the background, status, down, purge, and the kubeconfig on the way. Every test
//! has a home of its own, so that nobody's kubeconfig is touched.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_base::clock::monotonic;
use orlop_testkit::{Ran, eventually, orlop, require};
use serde_json::Value;
use tempfile::TempDir;

/// Simulated, on ports that nobody has.
const FLAGS: &str = "--port=0 --runtime=simulated --node-name=n1 --kubelet-port=0 --kubelet-healthz-port=0 \
                     --scheduler-port=0 --controller-manager-port=0";

/// How long a message may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A user's home, and the clusters that were started in it.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        require("kubectl");
        Home(
            tempfile::Builder::new()
                .prefix("orlop-home-")
                .tempdir()
                .expect("a temporary directory"),
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path(".kube/config")
    }

    fn command(&self, program: &Path, arguments: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .env("HOME", self.0.path())
            .env("KUBECTL_KUBERC", "false")
            .stdin(Stdio::null());
        for variable in ["KUBECONFIG", "SUDO_UID", "ORLOP_DATA_DIR", "RUST_LOG", "NO_COLOR"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, program: &Path, arguments: &str) -> Ran {
        let output = self.command(program, arguments).output().expect("the program runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran {
            line: format!("{} {arguments}", program.display()),
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// With the data directory of this name.
    fn orlop(&self, cluster: &str, arguments: &str) -> Ran {
        let dir = self.path(cluster);
        self.run(&orlop(), &format!("{arguments} --data-dir={}", dir.display()))
    }

    fn up(&self, cluster: &str) -> String {
        self.orlop(cluster, &format!("up -d {FLAGS}")).ok()
    }

    fn kubectl(&self, arguments: &str) -> Ran {
        self.run(Path::new("kubectl"), arguments)
    }

    /// Names of contexts, with a star at the current one.
    fn contexts(&self) -> Vec<String> {
        let config = self.kubectl("config view -o json").ok();
        let config: Value = serde_json::from_str(&config).expect("kubectl prints JSON");
        let contexts = config["contexts"].as_array().cloned().unwrap_or_default();
        let shown = contexts.iter().map(|context| {
            let star = if context["name"] == config["current-context"] {
                "*"
            } else {
                ""
            };
            format!("{}{star}", context["name"].as_str().expect("a name"))
        });
        shown.collect()
    }

    fn pid(&self, cluster: &str) -> Option<Pid> {
        let text = std::fs::read_to_string(self.path(cluster).join("process.json")).ok()?;
        let process: Value = serde_json::from_str(&text).ok()?;
        Some(Pid::from_raw(process["pid"].as_i64()? as i32))
    }

    /// `kill -9`, and wait until it has gone: it is not our child.
    fn kill(&self, cluster: &str) {
        let pid = self.pid(cluster).expect("a cluster runs");
        kill(pid, Signal::SIGKILL).expect("a cluster runs");
        eventually("the process has ended", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
    }

    fn status(&self, cluster: &str) -> Value {
        let ran = self.orlop(cluster, "status -o json");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran}"))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            if entry.path().join("store").exists() {
                let name = entry.file_name().to_string_lossy().into_owned();
                drop(self.orlop(&name, "down --purge --grace-period=0"));
            }
        }
    }
}

#[test]
fn up_status_down() {
    let home = Home::new();
    let nothing = home.orlop("data", "status");
    assert_eq!(nothing.code, Some(1));
    let advice = format!(
        "no cluster runs in {0}; start one with: orlop up -d --data-dir {0}\n",
        home.path("data").display()
    );
    assert_eq!(nothing.stdout, advice);

    let greeting = home.up("data");
    assert!(greeting.contains("Orlop serves Kubernetes v1.36."), "{greeting}");
    assert!(greeting.contains("context orlop is the current one in "), "{greeting}");
    // Without an export, and ready for pods.
    let nodes = home.kubectl("get nodes --no-headers").ok();
    let cells: Vec<&str> = nodes.split_whitespace().collect();
    assert!(cells.starts_with(&["n1", "Ready"]), "{nodes}");
    assert_eq!(home.contexts(), ["orlop*"]);
    let mode = std::fs::metadata(home.config()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    home.kubectl("create deployment web --image=nginx --replicas=2").ok();
    home.kubectl("wait --for=condition=Available deployment/web --timeout=60s")
        .ok();
    let status = home.orlop("data", "status");
    let text = status.stdout.clone();
    status.ok();
    assert!(text.starts_with("Cluster    running, healthy\n"), "{text}");
    let has_row = |cells: &[&str]| {
        text.lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>().starts_with(cells))
    };
    assert!(
        has_row(&["n1", "Ready"]) && has_row(&["scheduler", "running", "0"]),
        "{text}"
    );
    let status = home.status("data");
    assert_eq!(
        (&status["healthy"], &status["context"]),
        (&true.into(), &"orlop".into())
    );
    let running = status["nodes"][0]["runningPods"].as_u64();
    assert!(running >= Some(2), "{status}");
    assert_eq!(
        status["pid"].as_i64().map(|pid| pid as i32),
        home.pid("data").map(Pid::as_raw)
    );

    let again = home.orlop("data", &format!("up -d {FLAGS}")).fails();
    let pid = home.pid("data").unwrap();
    assert!(again.contains(&format!("already (process {pid})")), "{again}");

    home.orlop("data", "component stop scheduler").ok();
    home.orlop("data", "status").ok();
    home.orlop("data", "component panic controller-manager").ok();
    eventually("the failed component is seen", || {
        let ran = home.orlop("data", "status");
        let is_seen = ran.code == Some(1) && ran.stdout.contains("failed: controller-manager");
        is_seen.then_some(())
    });

    let down = home.orlop("data", "down").ok();
    assert!(down.contains("Stopped the cluster in "), "{down}");
    assert!(!home.config().exists(), "it was made for the cluster");
    assert_eq!(home.pid("data"), None);
    assert_eq!(home.orlop("data", "status").code, Some(1));
    // Once more is not an error, and what was there is there again.
    assert!(home.orlop("data", "down").ok().contains("No cluster runs in "));
    home.up("data");
    let web = home.kubectl("get deployment web -o name").ok();
    assert_eq!(web.trim(), "deployment.apps/web");
    let log = std::fs::read_to_string(home.path("data/orlop.log")).unwrap();
    assert_eq!(log.matches("Orlop serves Kubernetes").count(), 2, "{log}");
}

#[test]
fn a_start_that_fails_says_why() {
    let home = Home::new();
    let config = home.path("scheduler.yaml");
    std::fs::write(&config, "kind: Nonsense\n").unwrap();
    let ran = home.orlop(
        "data",
        &format!("up -d {FLAGS} --scheduler-config={}", config.display()),
    );
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is not a valid scheduler configuration"), "{ran}");
    assert!(ran.stderr.contains("orlop.log"), "{ran}");
    // A port that somebody has.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let flags = FLAGS.replace("--port=0", &format!("--port={port}"));
    let refused = home.orlop("data", &format!("up -d {flags}")).fails();
    assert!(
        refused.contains(&format!("can't listen on 127.0.0.1:{port}")),
        "{refused}"
    );
    assert!(!refused.contains("Nonsense"), "only what it said itself: {refused}");
    assert!(!home.config().exists());
}

#[test]
fn a_killed_cluster_is_seen_and_starts_again() {
    let home = Home::new();
    home.up("data");
    home.kubectl("create namespace kept").ok();
    home.kill("data");
    let status = home.orlop("data", "status");
    assert_eq!(status.code, Some(1));
    assert!(
        status.stdout.contains("was killed, or the machine was restarted"),
        "{status}"
    );
    assert_eq!(home.status("data")["phase"], "Killed");
    // Its context is still there, and is its own at the next start.
    assert_eq!(home.contexts(), ["orlop*"]);
    home.up("data");
    assert_eq!(home.contexts(), ["orlop*"]);
    home.kubectl("get namespace kept").ok();
    home.kill("data");
    // `down` cleans up what the process could not.
    home.orlop("data", "down").ok();
    assert!(!home.config().exists());
    assert!(home.orlop("data", "status").stdout.starts_with("no cluster runs in "));
}

#[test]
fn purge_removes_the_directory_and_no_other() {
    let home = Home::new();
    home.up("data");
    let purged = home.orlop("data", "down --purge").ok();
    let dir = home.path("data");
    assert!(purged.contains(&format!("Removed {}\n", dir.display())), "{purged}");
    assert!(!dir.exists() && !home.config().exists());
    // After a kill, too; and what somebody put there before us stays.
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("thesis.txt"), "mine").unwrap();
    home.up("data");
    home.kill("data");
    let purged = home.orlop("data", "down --purge").ok();
    assert!(purged.contains("left: thesis.txt"), "{purged}");
    let left: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["thesis.txt"]);
    let refused = home.orlop("data", "down --purge").fails();
    assert!(refused.contains("is not a data directory of Orlop"), "{refused}");
    assert!(dir.join("thesis.txt").exists());
}

/// What somebody has already: fields that nobody knows, and a context in use.
const THEIRS: &str = "\
apiVersion: v1
kind: Config
current-context: work
x-theirs: {colour: blue, list: [1, \"2\"]}
clusters:
- name: work
  cluster: {server: \"https://example.invalid:6443\", x-unknown: true}
contexts:
- name: work
  context: {cluster: work, user: me, namespace: a}
users:
- name: me
  user: {token: \"0123\"}
";

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a kubeconfig");
    serde_saphyr::from_str(&text).expect("YAML")
}

#[test]
fn two_clusters_and_a_context_that_was_there() {
    let home = Home::new();
    std::fs::create_dir(home.path(".kube")).unwrap();
    std::fs::write(home.config(), THEIRS).unwrap();
    let before = yaml(&home.config());
    let greeting = home.up("first");
    assert!(greeting.contains("instead of work until it ends"), "{greeting}");
    assert_eq!(home.contexts(), ["orlop*", "work"]);
    home.up("second");
    assert_eq!(home.contexts(), ["orlop", "orlop-second*", "work"]);
    home.kubectl("create namespace of-second").ok();
    assert!(
        home.kubectl("--context=orlop get namespace of-second")
            .fails()
            .contains("NotFound")
    );
    home.orlop("first", "down").ok();
    assert_eq!(home.contexts(), ["orlop-second*", "work"]);
    home.orlop("second", "down").ok();
    assert_eq!(yaml(&home.config()), before);
}

#[test]
fn a_kubeconfig_can_be_left_alone() {
    let home = Home::new();
    let greeting = home.orlop("data", &format!("up -d --no-kubeconfig {FLAGS}")).ok();
    let own = home.path("data/kubeconfig");
    assert!(
        greeting.contains(&format!("export KUBECONFIG={}", own.display())),
        "{greeting}"
    );
    assert!(!home.config().exists());
    home.kubectl(&format!("--kubeconfig={} get ns", own.display())).ok();
    home.orlop("data", "down").ok();
    // What can't be understood is not touched, and no reason not to start.
    std::fs::create_dir_all(home.path(".kube")).unwrap();
    std::fs::write(home.config(), "contexts: 7\n").unwrap();
    let greeting = home.up("data");
    assert!(greeting.contains("export KUBECONFIG="), "{greeting}");
    home.orlop("data", "down").ok();
    assert_eq!(std::fs::read_to_string(home.config()).unwrap(), "contexts: 7\n");
    // The first file of several is the one that is written.
    let (one, two) = (home.path("one"), home.path("two"));
    let mut up = home.command(
        &orlop(),
        &format!("up -d {FLAGS} --data-dir={}", home.path("data").display()),
    );
    let files = format!("{}:{}", one.display(), two.display());
    let status = up
        .env("KUBECONFIG", files)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert!(one.exists() && !two.exists());
    home.orlop("data", "down").ok();
    assert!(!one.exists());
}

#[test]
fn others_may_write_the_kubeconfig_at_the_same_time() {
    let home = Home::new();
    let clusters = ["a", "b", "c"];
    std::thread::scope(|scope| {
        let ups = clusters.map(|cluster| scope.spawn(|| home.up(cluster)));
        let contexts = scope.spawn(|| {
            for number in 0..10 {
                // kubectl does not wait for the lock: it is tried again.
                eventually("kubectl sets a context", || {
                    let line = format!("config set-context theirs-{number} --cluster=x --user=y");
                    home.kubectl(&line).succeeded().then_some(())
                });
            }
        });
        ups.into_iter().for_each(|up| drop(up.join().unwrap()));
        contexts.join().unwrap();
    });
    let mut names = home.contexts();
    names
        .iter_mut()
        .for_each(|name| *name = name.trim_end_matches('*').to_string());
    names.sort();
    let theirs: Vec<String> = (0..10).map(|number| format!("theirs-{number}")).collect();
    let mut ours: Vec<&String> = names.iter().filter(|name| name.starts_with("orlop")).collect();
    ours.retain(|name| *name == "orlop" || clusters.iter().any(|c| **name == format!("orlop-{c}")));
    assert_eq!(ours.len(), 3, "{names:?}");
    assert!(theirs.iter().all(|name| names.contains(name)), "{names:?}");
    std::thread::scope(|scope| {
        let downs = clusters.map(|cluster| scope.spawn(|| home.orlop(cluster, "down").ok()));
        downs.into_iter().for_each(|down| drop(down.join().unwrap()));
    });
    let mut left = home.contexts();
    left.sort();
    assert_eq!(left, theirs);
}

#[test]
fn the_foreground_says_the_same_and_cleans_up() {
    let home = Home::new();
    let dir = home.path("data");
    let mut child = home
        .command(&orlop(), &format!("up {FLAGS} --data-dir={}", dir.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the cluster is healthy", || {
        home.orlop("data", "status").succeeded().then_some(())
    });
    assert_eq!(home.contexts(), ["orlop*"]);
    let refused = home.orlop("data", &format!("up {FLAGS}")).fails();
    assert!(refused.contains(&child.id().to_string()), "{refused}");
    assert_eq!(home.contexts(), ["orlop*"], "a start that was refused changes nothing");
    home.orlop("data", "status").ok();
    home.orlop("data", "down").ok();
    assert!(child.wait().unwrap().success());
    assert!(!home.config().exists() && !dir.join("process.json").exists());
    assert!(!dir.join("orlop.log").exists(), "the log is on the terminal");
}

#[test]
fn a_machine_without_kubectl_is_told_how_to_get_it() {
    let home = Home::new();
    let mut up = home.command(
        &orlop(),
        &format!("up -d {FLAGS} --data-dir={}", home.path("data").display()),
    );
    let output = up.env("PATH", "/nowhere").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("kubectl is not in PATH. Get it with:  curl "), "{text}");
    assert!(
        text.contains("https://dl.k8s.io/release/v1.36.") && !text.contains("+orlop0.1.0/bin"),
        "{text}"
    );
}

/// The flags above as a file, as `orlop.service` has one.
const CONFIG: &str = "port: 0\nruntime: simulated\nnode-name: n1\nkubelet-port: 0\nkubelet-healthz-port: 0\nscheduler-port: 0\n\
                      controller-manager-port: 0\nno-kubeconfig: true\n";

/// systemd's side of `Type=notify` with a watchdog.
#[test]
fn a_service_manager_is_told() {
    let home = Home::new();
    let socket = UnixDatagram::bind(home.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut seen: Vec<String> = vec![];
    let next = |seen: &mut Vec<String>, what: &str| {
        let (mut buffer, deadline) = ([0; 4096], monotonic() + PATIENCE);
        loop {
            // It says so often that it lives that a silence never comes.
            assert!(monotonic() < deadline, "{what}: {seen:?}");
            let length = socket
                .recv(&mut buffer)
                .unwrap_or_else(|e| panic!("{what}: {e}; {seen:?}"));
            let lines = String::from_utf8_lossy(&buffer[..length]);
            seen.extend(lines.lines().map(str::to_string));
            if let Some(line) = lines.lines().find(|line| line.contains(what)) {
                return line.to_string();
            }
        }
    };
    std::fs::write(home.path("config.yaml"), CONFIG).unwrap();
    let arguments = format!(
        "up --config={} --data-dir={}",
        home.path("config.yaml").display(),
        home.path("c").display()
    );
    let mut command = home.command(&orlop(), &arguments);
    command
        .env("NOTIFY_SOCKET", home.path("notify"))
        .env("WATCHDOG_USEC", "100000");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    next(&mut seen, "READY=1");
    let status = next(&mut seen, "; 1 node, ");
    assert!(status.starts_with("STATUS=Kubernetes v1.36."), "{status}");
    next(&mut seen, "WATCHDOG=1");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    next(&mut seen, "STOPPING=1");
    assert!(child.wait().unwrap().success());

    // What the file must not say, and what the line says instead.
    std::fs::write(home.path("config.yaml"), "porrt: 0\n").unwrap();
    let refused = home.run(&orlop(), &arguments);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("config.yaml: porrt: unknown field (is it port?)"),
        "{refused}"
    );
    let printed = home.run(&orlop(), "config print").ok();
    assert!(printed.contains("\n#port: 6443\n"), "{printed}");
}
