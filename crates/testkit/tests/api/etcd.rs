//! `orlop etcd`, with etcd's own client (Debian's etcdctl, 3.4).

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_testkit::{eventually, orlop};
use tempfile::TempDir;

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Says what a command wrote to standard output; panics with what it wrote to standard error.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A process that does not outlive its test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// As a supervisor does it; returns whether it ended well.
    pub(crate) fn terminate(&mut self) -> bool {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Etcd {
    dir: TempDir,
    port: u16,
    arguments: Vec<String>,
    process: Process,
}

impl Etcd {
    /// Called by etcd's name, through a link.
    fn start(arguments: &[&str]) -> Etcd {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(orlop(), dir.path().join("etcd")).unwrap();
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let process = launch(dir.path(), port, &arguments);
        let etcd = Etcd {
            dir,
            port,
            arguments,
            process,
        };
        etcd.wait();
        etcd
    }

    fn start_again(&mut self) {
        self.process = launch(self.dir.path(), self.port, &self.arguments);
        self.wait();
    }

    fn wait(&self) {
        eventually("etcd answers", || {
            self.ctl("endpoint health").status().unwrap().success().then_some(())
        });
    }

    fn ctl(&self, line: &str) -> Command {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=127.0.0.1:{}", self.port))
            .args(line.split(' '))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> String {
        run(&mut self.ctl(line))
    }

    fn fails(&self, line: &str) -> String {
        let output = self.ctl(line).output().unwrap();
        assert!(!output.status.success(), "{line}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn get(&self, path: &str) -> String {
        run(Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{}{path}", self.port)]))
    }
}

fn launch(dir: &Path, port: u16, arguments: &[String]) -> Process {
    let url = format!("http://127.0.0.1:{port}");
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    let child = Command::new(dir.join("etcd"))
        .arg("-data-dir")
        .arg(dir.join("data"))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .args(arguments)
        .stderr(log)
        .spawn()
        .unwrap();
    Process(child)
}

#[test]
fn etcdctl_reads_and_writes() {
    let mut etcd = Etcd::start(&[]);
    for (line, answer) in [
        ("put a 1", "OK\n"),
        ("put a 2 --prev-kv", "OK\na\n1\n"),
        ("put b 3", "OK\n"),
        ("get a --print-value-only", "2\n"),
        ("get a z --keys-only", "a\n\nb\n\n"),
        ("get --prefix a --rev=2", "a\n1\n"),
        ("get a z --sort-by=VALUE --order=DESCEND --print-value-only", "3\n2\n"),
        ("get a z --limit=1 --print-value-only", "2\n"),
        ("del a --prev-kv", "1\na\n2\n"),
        ("compact 4", "compacted revision 4\n"),
        ("alarm list", ""),
        ("user list", ""),
    ] {
        assert_eq!(etcd.run(line), answer, "{line}");
    }
    for (line, error) in [
        (
            "get a --rev=2",
            "etcdserver: mvcc: required revision has been compacted",
        ),
        (
            "get a --rev=99",
            "etcdserver: mvcc: required revision is a future revision",
        ),
        ("put b 1 --lease=1234", "etcdserver: requested lease not found"),
        ("move-leader 1", "etcdserver: bad leader transferee"),
        ("snapshot save /dev/null", "there is no database file to send"),
        (
            "member add other --peer-urls=http://127.0.0.1:1",
            "this member is the only one",
        ),
    ] {
        let told = etcd.fails(line);
        assert!(told.contains(error), "{line}: {told}");
    }
    assert!(etcd.run("endpoint status").contains("3.6."));
    assert!(etcd.run("member list").contains("started, default"));
    assert_eq!(etcd.get("/health"), r#"{"health":"true","reason":""}"#);
    assert!(etcd.get("/version").contains(r#""etcdserver":"3.6."#));
    assert!(etcd.get("/metrics").contains("\netcd_debugging_mvcc_keys_total 1\n"));
    assert!(etcd.process.terminate(), "a signal is no failure");
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let mut etcd = Etcd::start(&[]);
    etcd.run("put before 1");
    let granted = etcd.run("lease grant 1000");
    let lease = granted.split(' ').nth(1).unwrap().to_string();
    for n in 0..20 {
        etcd.run(&format!("put k{n} {n} --lease={lease}"));
        if n % 5 == 4 {
            etcd.process.kill();
            etcd.start_again();
        }
    }
    let keys = etcd.run("get --prefix k --keys-only");
    assert_eq!(keys.lines().filter(|line| !line.is_empty()).count(), 20, "{keys}");
    let status: serde_json::Value = serde_json::from_str(&etcd.run("get before -w json")).unwrap();
    assert_eq!(status["header"]["revision"], 22);
    etcd.run(&format!("lease revoke {lease}"));
    assert_eq!(etcd.run("get --prefix k --keys-only"), "");
    assert_eq!(etcd.run("get before --print-value-only"), "1\n");
}

#[test]
fn watches_see_the_past_the_present_and_expired_leases() {
    let etcd = Etcd::start(&[]);
    etcd.run("put w 1");
    let watching = etcd.ctl("watch w --rev=2 --prev-kv").spawn().unwrap();
    let mut watching = Process(watching);
    let granted = etcd.run("lease grant 2");
    let lease = granted.split(' ').nth(1).unwrap().to_string();
    etcd.run(&format!("put w 2 --lease={lease}"));
    eventually("the lease has ended", || etcd.run("get w").is_empty().then_some(()));
    etcd.run("put w 3");
    let mut seen = watching.0.stdout.take().unwrap();
    let expected = "PUT\nw\n1\nPUT\nw\n1\nw\n2\nDELETE\nw\n2\nw\n\nPUT\nw\n3\n";
    let mut text = vec![0; expected.len()];
    std::io::Read::read_exact(&mut seen, &mut text).unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

/// Certificates by openssl: an authority, or one that it signed.
pub(crate) struct Certificates(pub(crate) PathBuf);

impl Certificates {
    fn openssl(&self, line: &str, more: &[&str]) {
        run(Command::new("openssl")
            .current_dir(&self.0)
            .args(line.split(' '))
            .args(more));
    }

    /// A pair of files that signs itself, NAME.crt and NAME.key.
    pub(crate) fn authority(&self, name: &str) {
        let files = format!("-keyout {name}.key -out {name}.crt -subj /CN={name}");
        let line = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
        self.openssl(&format!("{line} {files}"), &[]);
    }

    pub(crate) fn signed(&self, name: &str, authority: &str, subject: &str, extensions: &str) {
        std::fs::write(self.0.join("extensions"), extensions).unwrap();
        let line = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        self.openssl(&format!("{line} -keyout {name}.key -out {name}.csr -subj"), &[subject]);
        let line = format!("x509 -req -days 2 -in {name}.csr -out {name}.crt -extfile extensions -CAcreateserial");
        self.openssl(&format!("{line} -CA {authority}.crt -CAkey {authority}.key"), &[]);
    }
}

#[test]
fn clients_come_in_by_their_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates(dir.path().into());
    certificates.authority("ca");
    certificates.signed(
        "server",
        "ca",
        "/CN=etcd",
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth",
    );
    certificates.signed("client", "ca", "/CN=client", "extendedKeyUsage=clientAuth");
    let (port, plain) = (free_port(), free_port());
    let file = |name: &str| dir.path().join(name).display().to_string();
    let child = Command::new(orlop())
        .args(["etcd", "--client-cert-auth", "--data-dir", &file("data")])
        .args(["--cert-file", &file("server.crt"), "--key-file", &file("server.key")])
        .args(["--trusted-ca-file", &file("ca.crt")])
        .arg(format!("--listen-client-urls=https://127.0.0.1:{port}"))
        .arg(format!("--listen-metrics-urls=http://127.0.0.1:{plain}"))
        .stderr(std::fs::File::create(file("log")).unwrap())
        .spawn();
    let mut process = Process(child.unwrap());
    let ctl = |known: bool| {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=https://127.0.0.1:{port}"));
        command.args(["--cacert", &file("ca.crt"), "--command-timeout=1s"]);
        if known {
            command.args(["--cert", &file("client.crt"), "--key", &file("client.key")]);
        }
        command.args(["put", "k", "v"]);
        command.output().unwrap().status.success()
    };
    eventually("a client with a certificate comes in", || ctl(true).then_some(()));
    assert!(!ctl(false), "nobody else does");
    let health = run(Command::new("curl").args(["-sf", &format!("http://127.0.0.1:{plain}/health")]));
    assert!(health.contains(r#""health":"true""#), "{health}");
    assert!(process.terminate());
}
