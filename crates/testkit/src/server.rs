//! The real binary as a child process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::containerd::leftovers;
use crate::http::{Http, Identity};
use crate::machine;
use crate::shell::{self, Ran};
use crate::wait::eventually;

/// How a server is to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    command: String,
    arguments: Vec<String>,
    data_dir: Option<PathBuf>,
}

impl Launch {
    /// `orlop up` on a free port, without a node: `arg("--nodes=1")` brings one up. Without a proxy, since tests that run
    /// at the same time share this machine's rules: see [`crate::network`] for those that want one.
    pub fn up() -> Launch {
        Launch {
            command: "up".into(),
            arguments: [
                "--port=0",
                "--nodes=0",
                "--kubelet-port=0",
                "--proxy-mode=none",
                // Tests that run at the same time share this machine's ports.
                "--scheduler-port=0",
                "--controller-manager-port=0",
                "--kubelet-healthz-port=0",
                // Whoever runs tests has a kubeconfig of their own.
                "--no-kubeconfig",
            ]
            .map(String::from)
            .to_vec(),
            data_dir: None,
        }
    }

    /// `orlop apiserver` on a free port of this machine only.
    pub fn apiserver() -> Launch {
        let arguments = vec!["--secure-port=0".into(), "--bind-address=127.0.0.1".into()];
        Launch {
            command: "apiserver".into(),
            arguments,
            data_dir: None,
        }
    }

    /// One more argument, instead of an earlier one of its name.
    pub fn arg(mut self, argument: impl Into<String>) -> Launch {
        let argument = argument.into();
        let name = |a: &str| a.split('=').next().unwrap_or("").to_string();
        self.arguments.retain(|a| name(a) != name(&argument));
        self.arguments.push(argument);
        self
    }

    /// Keeps its state here and not in the server's own temporary directory.
    pub fn data_dir(mut self, path: &Path) -> Launch {
        self.data_dir = Some(path.to_path_buf());
        self
    }

    pub fn start(self) -> Server {
        // A machine has what its test put into it, and programs start slowly there.
        if !machine::is_inside() {
            ["kubectl", "curl", "openssl"]
                .iter()
                .for_each(|tool| shell::require(tool));
        }
        let home = tempfile::Builder::new()
            .prefix("orlop-test-")
            .tempdir()
            .expect("a temporary directory");
        let data_dir = self.data_dir.clone().unwrap_or_else(|| home.path().join("data"));
        let mut server = Server {
            home,
            data_dir,
            launch: self,
            child: None,
            starts: 0,
            panics: false,
        };
        server.start_again();
        server
    }

    /// The command that would start it, for tests of starts that fail.
    pub fn command(&self, data_dir: &Path) -> Command {
        let mut command = Command::new(crate::orlop());
        command
            .arg(&self.command)
            .arg("--data-dir")
            .arg(data_dir)
            .args(&self.arguments);
        command
            .env_remove("RUST_LOG")
            .env_remove("ORLOP_DATA_DIR")
            .stdin(Stdio::null());
        command
    }
}

/// A running server with a home of its own: data, log, and the files and caches of commands run against it. It goes away
/// with the value.
#[derive(Debug)]
pub struct Server {
    home: TempDir,
    data_dir: PathBuf,
    launch: Launch,
    child: Option<Child>,
    starts: u32,
    /// The test makes it panic.
    panics: bool,
}

impl Server {
    /// `orlop up`, serving.
    pub fn start() -> Server {
        Launch::up().start()
    }

    /// `orlop apiserver` whose namespaces take pods: their service accounts, which appear by themselves, are there. From
    /// then on nobody acts but the test.
    pub fn with_accounts() -> Server {
        Launch::apiserver().start().await_accounts()
    }

    /// `orlop up` whose namespaces take pods: the scheduler and all else at work.
    pub fn at_work() -> Server {
        Server::start().await_accounts()
    }

    fn await_accounts(self) -> Server {
        eventually("every namespace has its account and its CA", || {
            let names = self.run("kubectl get sa,cm -A -o name");
            let count = |name: &str| names.lines().filter(|l| *l == name).count();
            (count("serviceaccount/default") == 4 && count("configmap/kube-root-ca.crt") == 4).then_some(())
        });
        self
    }

    /// Panics in its log are what the test is about.
    pub fn expect_panics(&mut self) {
        self.panics = true;
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The admin's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    pub fn url(&self) -> String {
        self.identity().url
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().expect("the server runs").id() as i32)
    }

    // ---- Starting and stopping.

    /// Starts on the same data, after `kill` or `stop`. The port may be another one.
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "the server still runs");
        self.starts += 1;
        // It appears when the server serves, so the old one must not be taken for it.
        let kubeconfig = self.kubeconfig();
        let _ = std::fs::remove_file(&kubeconfig);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("our own directory");
        let mut command = self.launch.command(&self.data_dir);
        command
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log);
        let mut child = command.spawn().expect("the binary was found a moment ago");
        eventually("the server writes its kubeconfig", || {
            if let Some(status) = child.try_wait().expect("our own child") {
                panic!("the server ended ({status}) before it served:\n{}", self.log());
            }
            kubeconfig.exists().then_some(())
        });
        self.child = Some(child);
    }

    /// The same home and data, started another way.
    pub fn relaunch(mut self, launch: Launch) -> Server {
        self.launch = launch;
        if self.child.is_some() {
            self.kill();
        }
        self.start_again();
        self
    }

    /// `kill -9`: no warning, no cleaning up.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the server runs");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Ctrl-C or another signal, and how the server ended.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        kill(self.pid(), signal).expect("our own child");
        self.wait_stopped()
    }

    /// How the server ended that was told to stop.
    pub fn wait_stopped(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        eventually("the server stops", || child.try_wait().expect("our own child"))
    }

    pub fn log_path(&self) -> PathBuf {
        self.home.path().join("orlop.log")
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    // ---- Clients.

    /// A command line (bash) with `KUBECONFIG` set, in the server's home directory.
    pub fn sh(&self, line: &str) -> Ran {
        self.sh_with(line, "")
    }

    /// The same, with this on its standard input.
    pub fn sh_with(&self, line: &str, stdin: &str) -> Ran {
        shell::run(self.command(line), line, stdin)
    }

    /// The command line, not yet run.
    pub fn command(&self, line: &str) -> Command {
        shell::command(line, self.home(), &self.kubeconfig())
    }

    /// Runs a command that must succeed and returns what it printed.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.sh(line).ok()
    }

    /// Runs a command that must fail and returns what it complained about.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        self.sh(line).fails()
    }

    /// `kubectl apply -f -` and the like, with a manifest.
    #[track_caller]
    pub fn run_with(&self, line: &str, manifest: &str) -> String {
        self.sh_with(line, manifest).ok()
    }

    #[track_caller]
    pub fn fails_with(&self, line: &str, manifest: &str) -> String {
        self.sh_with(line, manifest).fails()
    }

    /// `kubectl get -o json` of this.
    #[track_caller]
    pub fn get(&self, what: &str) -> Value {
        let text = self.run(&format!("kubectl get {what} -o json"));
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// Whom the admin's kubeconfig makes its bearer.
    pub fn identity(&self) -> Identity {
        Identity::of_kubeconfig(&self.kubeconfig())
    }

    /// An HTTPS client as the admin.
    pub async fn http(&self) -> Http {
        Http::connect(&self.identity()).await.expect("the server serves")
    }

    /// A kube-rs client as the admin.
    pub async fn client(&self) -> kube::Client {
        self.client_of(&self.kubeconfig()).await
    }

    /// A kube-rs client as whoever the kubeconfig says.
    pub async fn client_of(&self, kubeconfig: &Path) -> kube::Client {
        // Only the first caller of a process can choose; the others find the choice made.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .expect("a valid kubeconfig");
        kube::Client::try_from(config).expect("a valid configuration")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Pods that still were there had volumes.
        leftovers::unmount(self.home());
        leftovers::unmount(&self.data_dir);
        let log = self.log();
        if std::thread::panicking() {
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("---- the end of the server's log ({} starts)", self.starts);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        } else if let Some(at) = log.find("panicked at").filter(|_| !self.panics) {
            panic!(
                "the server panicked: {}",
                log[at..].lines().take(3).collect::<Vec<_>>().join("\n")
            );
        }
    }
}
