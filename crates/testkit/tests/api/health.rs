//! Health checks fail when something is wrong and recover when it is right again: those of the API server, of components
//! that run alone, and of the kubelet. The proxy's are in `nodes/services.rs`, full disks in `durability.rs`.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use orlop_testkit::{Launch, Server, eventually};
use serde_json::json;

/// A port that nobody uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The checks of an endpoint (`https://HOST:PORT/readyz`) and what became of them; none if nobody answers. The whole is
/// under the empty name.
fn checks(url: &str) -> Option<BTreeMap<String, bool>> {
    let mut curl = Command::new("curl");
    curl.args(["-sk", "--max-time", "10", "-w", "%{http_code}"]);
    let output = curl.arg(format!("{url}?verbose")).output().expect("curl is installed");
    let text = String::from_utf8(output.stdout).unwrap();
    if !output.status.success() {
        return None;
    }
    let mut checks = BTreeMap::new();
    for line in text.lines() {
        let result = line.strip_prefix("[+]").map(|rest| (rest, true));
        let result = result.or_else(|| line.strip_prefix("[-]").map(|rest| (rest, false)));
        if let Some((rest, passes)) = result {
            checks.insert(rest.split(' ').next().unwrap().to_string(), passes);
        }
    }
    let passes = match text.lines().last() {
        Some("200") => true,
        Some("500") => false,
        other => panic!("{url}: {other:?}: {text}"),
    };
    checks.insert(String::new(), passes);
    Some(checks)
}

/// Whether an endpoint passes (`readyz`), or one check of it (`readyz/log`). None: nobody answers, or there is no such
/// check.
fn result(url: &str, check: &str) -> Option<bool> {
    let (endpoint, name) = check.split_once('/').unwrap_or((check, ""));
    checks(&format!("{url}/{endpoint}"))?.get(name).copied()
}

/// The same of an API server that answers.
#[track_caller]
fn passes(server: &Server, check: &str) -> bool {
    result(&server.url(), check).unwrap_or_else(|| panic!("no {check}"))
}

#[track_caller]
fn until(server: &Server, check: &str, expected: bool) {
    eventually(&format!("{check} passes: {expected}"), || {
        (passes(server, check) == expected).then_some(())
    });
}

/// `orlop component`, for this server.
fn component(server: &Server, arguments: &str) -> String {
    let program = orlop_testkit::orlop();
    let (program, directory) = (program.display(), server.data_dir().display());
    server.run(&format!("{program} component {arguments} --data-dir {directory}"))
}

/// A thread that does not get on, as if the disk kept it waiting. It goes on when this is dropped.
struct HungThread(Pid);

impl HungThread {
    /// The thread of this name. Only the caller's own thread can let it go on again.
    fn stop(process: Pid, name: &str) -> HungThread {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let is_it = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
        let task = tasks.map(|task| task.unwrap().path()).find(is_it);
        let task = task.unwrap_or_else(|| panic!("no thread {name}"));
        let thread = Pid::from_raw(task.file_name().unwrap().to_str().unwrap().parse().unwrap());
        ptrace::seize(thread, ptrace::Options::empty()).expect("ptrace needs root");
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        HungThread(thread)
    }
}

impl Drop for HungThread {
    fn drop(&mut self) {
        ptrace::detach(self.0, None).unwrap();
    }
}

#[test]
fn a_disk_that_hangs_fails_etcd_until_it_goes_on() {
    let server = Server::with_accounts();
    assert!(passes(&server, "livez") && passes(&server, "readyz"));
    let hung = HungThread::stop(server.pid(), "orlop-store");
    let mut write = server.command("kubectl create configmap late").spawn().unwrap();
    until(&server, "livez/etcd", false);
    until(&server, "readyz/etcd-readiness", false);
    for failing in ["livez", "healthz", "readyz", "healthz/etcd", "readyz/etcd"] {
        assert!(!passes(&server, failing), "{failing}");
    }
    for passing in ["livez/ping", "livez/log", "readyz/log", "readyz/informer-sync"] {
        assert!(passes(&server, passing), "{passing}");
    }
    assert!(
        write.try_wait().unwrap().is_none(),
        "nothing is acknowledged that is not on disk"
    );
    drop(hung);
    assert!(write.wait().unwrap().success());
    for endpoint in ["livez", "healthz", "readyz"] {
        until(&server, endpoint, true);
    }
}

#[test]
fn informer_sync_fails_while_the_servers_own_loops_are_down() {
    let mut server = Server::start();
    server.expect_panics();
    assert!(passes(&server, "readyz/informer-sync"));
    component(&server, "stop housekeeping");
    assert!(!passes(&server, "readyz/informer-sync") && !passes(&server, "readyz"));
    assert!(passes(&server, "livez"), "a restart would not help");
    component(&server, "start housekeeping");
    until(&server, "readyz", true);
    component(&server, "panic housekeeping");
    until(&server, "readyz/informer-sync", false);
    until(&server, "readyz/informer-sync", true);
}

#[test]
fn a_component_whose_loop_stalls_fails_its_check_until_it_goes_on() {
    let server = Launch::up().arg("--component-stall-timeout=2s").start();
    let check = "readyz/scheduler";
    assert!(passes(&server, check));
    component(&server, "stall scheduler 5");
    until(&server, check, false);
    assert!(passes(&server, "livez"), "a restart is not called for yet");
    until(&server, check, true);
    let log = server.log();
    assert!(
        log.contains("component changed state component=\"scheduler\" state=stalled"),
        "{log}"
    );
    let metrics = server.run("kubectl get --raw /metrics");
    let restarts = "orlop_component_restarts_total{component=\"scheduler\"} 0\n";
    assert!(metrics.contains(restarts), "{metrics}");
    until(&server, "readyz", true);
}

#[test]
fn a_server_that_is_to_stop_is_not_ready_and_serves_on() {
    let mut server = Launch::apiserver().arg("--shutdown-delay-duration=4s").start();
    assert!(passes(&server, "readyz/shutdown"));
    kill(server.pid(), Signal::SIGTERM).unwrap();
    until(&server, "readyz/shutdown", false);
    assert!(!passes(&server, "readyz"));
    assert!(passes(&server, "livez") && passes(&server, "readyz/ping"));
    assert_eq!(server.wait_stopped().code(), Some(0));
    server.start_again();
    // Whoever does not want to wait says so.
    kill(server.pid(), Signal::SIGTERM).unwrap();
    until(&server, "readyz/shutdown", false);
    assert_eq!(server.stop(Signal::SIGINT).code(), Some(1));
    server.start_again();
    assert!(passes(&server, "readyz/shutdown") && passes(&server, "readyz"));
}

/// A component in a process of its own. It is killed with the value.
struct Alone {
    child: Child,
    url: String,
    log: PathBuf,
}

impl Alone {
    fn start(home: &Path, command: &str, arguments: &[&str]) -> Alone {
        let (port, log) = (free_port(), home.join(format!("{command}.log")));
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(orlop_testkit::orlop())
            .args([command, "--kubeconfig=admin.conf", "--bind-address=127.0.0.1"])
            .arg(format!("--secure-port={port}"))
            .args(arguments)
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let url = format!("https://127.0.0.1:{port}");
        Alone { child, url, log }
    }

    /// None: it does not serve, or there is no such check.
    fn result(&self, check: &str) -> Option<bool> {
        result(&self.url, check)
    }

    #[track_caller]
    fn until(&mut self, check: &str, expected: bool) {
        eventually(&format!("{check} passes: {expected}"), || {
            let last = self.result(check);
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!(
                    "{check}: {last:?}, {status}:\n{}",
                    std::fs::read_to_string(&self.log).unwrap()
                );
            }
            (last == Some(expected)).then_some(())
        });
    }

    fn wait(&mut self) -> ExitStatus {
        eventually("it ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A component without its API server: its caches can't fill, and a lease that it can't renew is lost.
fn loses_its_api_server(command: &str, sync_check: &str) {
    let port = free_port();
    let mut server = Launch::apiserver().arg(format!("--secure-port={port}")).start();
    let home = server.home().to_path_buf();
    // The server's own file goes away while it is down.
    std::fs::copy(server.kubeconfig(), home.join("admin.conf")).unwrap();
    server.kill();

    let mut alone = Alone::start(&home, command, &["--leader-elect=false"]);
    alone.until("readyz", false);
    assert_eq!(alone.result(&format!("readyz/{sync_check}")), Some(false));
    assert_eq!(alone.result("readyz/shutdown"), Some(true));
    assert_eq!(
        (alone.result("healthz"), alone.result("livez")),
        (Some(true), Some(true))
    );
    assert_eq!(alone.result("healthz/leaderElection"), None, "there is no election");
    server.start_again();
    alone.until(&format!("readyz/{sync_check}"), true);
    alone.until("readyz", true);
    drop(alone);

    let election = [
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=200ms",
    ];
    let is_held = |server: &Server| {
        let held = server.sh("kubectl get lease -n kube-system -o jsonpath={.items[*].spec.holderIdentity}");
        !held.stdout.trim().is_empty()
    };
    let mut leader = Alone::start(&home, command, &election);
    leader.until("healthz/leaderElection", true);
    eventually("it leads", || is_held(&server).then_some(()));
    leader.until("readyz", true);
    server.kill();
    // It says that its lease is lost, or it is gone already: never that all is well.
    eventually("the lost lease is seen", || {
        (leader.result("healthz/leaderElection") != Some(true)).then_some(())
    });
    assert_eq!(leader.wait().code(), Some(1));
    let log = std::fs::read_to_string(&leader.log).unwrap();
    assert!(log.contains("leaderelection lost"), "{log}");

    // Whoever starts it anew need not wait for the API server.
    let mut again = Alone::start(&home, command, &election);
    again.until("healthz/leaderElection", true);
    server.start_again();
    again.until("readyz", true);
    assert_eq!(again.result("healthz/leaderElection"), Some(true));
}

#[test]
fn the_scheduler_without_its_api_server() {
    loses_its_api_server("scheduler", "sched-handler-sync");
}

#[test]
fn the_controller_manager_without_its_api_server() {
    loses_its_api_server("controller-manager", "informer-sync");
}

/// The kubelet's own port, and what the cluster thinks of its node.
#[test]
fn a_kubelet_that_is_gone_answers_nothing_and_its_node_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let (port, file) = (free_port(), directory.path().join("kubelet.yaml"));
    // It renews its lease every half second.
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "nodeLeaseDurationSeconds": 2, "healthzPort": port});
    std::fs::write(&file, config.to_string()).unwrap();
    let server = Launch::up()
        .arg("--nodes=1")
        .arg("--node-name=n")
        .arg("--runtime=simulated")
        .arg(format!("--kubelet-config={}", file.display()))
        .arg("--node-monitor-grace-period=2s")
        .start();
    let healthz = || server.sh(&format!("curl -sf http://127.0.0.1:{port}/healthz")).stdout;
    let ready = || {
        let path = "{.status.conditions[?(@.type==\"Ready\")].status}";
        server.sh(&format!("kubectl get node n -o jsonpath='{path}'")).stdout
    };
    let is_well = || (healthz() == "ok" && ready() == "True").then_some(());
    eventually("the kubelet is healthy and its node ready", is_well);
    for check in ["ping", "log", "syncloop"] {
        let page = format!("kubectl get --raw /api/v1/nodes/n/proxy/healthz/{check}");
        assert_eq!(server.run(&page), "ok", "{check}");
    }
    component(&server, "stop kubelet");
    assert_eq!(healthz(), "", "nobody listens there");
    eventually("nobody hears from the node", || (ready() == "Unknown").then_some(()));
    assert!(passes(&server, "readyz"), "somebody stopped it: nothing is wrong");
    component(&server, "start kubelet");
    eventually("the kubelet is back", is_well);
}
