//! The built-in images, and the program in them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use super::*;

async fn prepared(dir: &Path, image: &str) -> PreparedImage {
    let store = ImageStore::open(
        dir,
        Options {
            builtin: true,
            ..options()
        },
    )
    .await
    .unwrap();
    store.prepare(image, &holder("c")).await.unwrap()
}

#[tokio::test]
async fn built_in_images_are_there_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(
        dir.path(),
        Options {
            builtin: true,
            ..options()
        },
    )
    .await
    .unwrap();
    for (name, entrypoint) in [("orlop.local/echo", "/echo"), ("orlop.local/pause:latest", "/pause")] {
        let id = store.pull(&spec(name), None, silent()).await.unwrap();
        let status = store.status(&spec(name)).await.unwrap().unwrap();
        assert!(
            status.pinned && status.id == id && status.size < 1_000_000,
            "{status:?}"
        );
        let prepared = store.prepare(name, &holder(name)).await.unwrap();
        assert_eq!(prepared.config.config.entrypoint, [entrypoint]);
        assert_eq!(prepared.layers.len(), 1);
    }
    assert_eq!(names(&dir.path().join("layers")).len(), 1);
    assert_eq!(store.prune(Prune::Unused).await.unwrap(), Vec::<String>::new());
    assert_clean(dir.path());

    // Opened again, nothing is done; of another version, the tags move and the old ones go.
    let before = std::fs::metadata(dir.path().join("index.json")).unwrap();
    let store = ImageStore::open(
        dir.path(),
        Options {
            builtin: true,
            ..options()
        },
    )
    .await
    .unwrap();
    let after = std::fs::metadata(dir.path().join("index.json")).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    let old = Digest::of(b"an older version");
    let mut index = (*store.inner.read_index().await.unwrap()).clone();
    let mut record = index.images.values().next().unwrap().clone();
    record.id = old.clone();
    index.insert(record);
    store.inner.index.write(&store.inner.layout.index(), &index).unwrap();
    let store = ImageStore::open(
        dir.path(),
        Options {
            builtin: true,
            ..options()
        },
    )
    .await
    .unwrap();
    let ids: Vec<String> = store.list().await.unwrap().into_iter().map(|i| i.id).collect();
    assert_eq!(ids.len(), 2);
    assert!(!ids.contains(&old.to_string()));
}

/// Runs the program as it would run in a container; needs to be root for that.
struct Root(Option<PreparedImage>);

impl Root {
    async fn open(dir: &Path) -> Root {
        match nix::unistd::geteuid().is_root() {
            true => Root(Some(prepared(dir, "orlop.local/echo").await)),
            false => Root(None),
        }
    }

    fn command(&self, arguments: &[&str]) -> Option<Command> {
        let root = self.0.as_ref()?.layers[0].clone();
        let program = std::ffi::CString::new(arguments[0]).unwrap();
        // By `chroot` of the tools that every machine has: no unsafe code for a test.
        let mut command = Command::new("chroot");
        command.arg(root).arg(program.to_str().unwrap()).args(&arguments[1..]);
        command
            .env_clear()
            .env("PATH", "/bin:/usr/sbin:/usr/bin:/sbin")
            .process_group(0);
        Some(command)
    }

    fn run(&self, arguments: &[&str]) -> Option<Output> {
        Some(self.command(arguments)?.stdin(Stdio::null()).output().unwrap())
    }

    /// Standard output and exit code.
    fn shell(&self, script: &str) -> Option<(String, i32)> {
        let output = self.run(&["/bin/sh", "-c", script])?;
        Some((
            String::from_utf8(output.stdout).unwrap(),
            output.status.code().unwrap_or(-1),
        ))
    }
}

#[tokio::test]
async fn the_shell_does_what_exercises_need() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).await;
    for (script, output, code) in [
        ("echo hello  world", "hello world\n", 0),
        ("echo 'a  b' \"c  $X d\"", "a  b c   d\n", 0),
        ("X=1; export Y=2; echo $X$Y ${Z:-3} ${X}x", "12 3 1x\n", 0),
        (
            "i=0; while [ $i -lt 3 ]; do echo $i; i=$((i + 1)); done",
            "0\n1\n2\n",
            0,
        ),
        ("for x in a 'b c'; do echo \"<$x>\"; done", "<a>\n<b c>\n", 0),
        (
            "false || echo or; true && echo and; ! false && echo not",
            "or\nand\nnot\n",
            0,
        ),
        (
            "if test -d /tmp; then echo yes; elif true; then echo no; else echo no; fi",
            "yes\n",
            0,
        ),
        ("echo one | cat; (cd /tmp; pwd); pwd", "one\n/tmp\n/\n", 0),
        ("echo $(echo inner $(echo nested))", "inner nested\n", 0),
        ("while true; do echo once; break; done; exit 3", "once\n", 3),
        ("until false; do exit 4; done", "", 4),
        (
            "echo x > /tmp/f; echo y >> /tmp/f; cat < /tmp/f; rm /tmp/f; cat /tmp/f 2>/tmp/e || echo $?",
            "x\ny\n1\n",
            0,
        ),
        ("nosuchprogram; echo $?", "127\n", 0),
        ("set -e; false; echo not reached", "", 1),
        ("sh -c 'echo $0 $1 $#' name first second", "name first 2\n", 0),
        ("env | cat; true", "PATH=/bin:/usr/sbin:/usr/bin:/sbin\n", 0),
        ("kill -TERM $$; echo not reached", "", 143),
        ("echo $((7 / 2 * (1 + 1))) $((-5 % 3))", "6 -2\n", 0),
        (
            "touch /tmp/healthy; test -f /tmp/healthy && rm -f /tmp/healthy /tmp/none; ls /tmp",
            "e\n",
            0,
        ),
        // What it does not know it says.
        ("case x in x) echo;; esac", "", 2),
        ("echo \"open", "", 2),
        ("f() { echo; }", "", 2),
    ] {
        let Some(found) = root.shell(script) else {
            return;
        };
        let code = if code == 143 { -1 } else { code };
        assert_eq!(found, (output.to_string(), code), "{script}");
    }
}

#[tokio::test]
async fn files_go_in_and_out_as_kubectl_cp_does_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).await;
    let pipe = |arguments: &[&str], input: Vec<u8>| {
        let mut child = root
            .command(arguments)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        Some(output)
    };
    let long = "n".repeat(150);
    let large = vec![7u8; 100_000];
    let input = images::files(&[("d/small", b"1"), (&format!("d/{long}"), b"long"), ("large", &large)]);
    let Some(output) = pipe(&["/bin/tar", "-xmf", "-", "-C", "/tmp"], input) else {
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = root.run(&["/bin/tar", "cf", "-", "/tmp"]).unwrap();
    let mut reader = tar::TarReader::new(&output.stdout[..]);
    let mut found = BTreeMap::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let mut content = vec![];
        reader.read_to_end(&mut content).unwrap();
        found.insert(String::from_utf8(entry.name).unwrap(), content);
    }
    assert_eq!(
        found.keys().cloned().collect::<Vec<_>>(),
        ["tmp/", "tmp/d/", &format!("tmp/d/{long}"), "tmp/d/small", "tmp/large"]
    );
    assert_eq!(found["tmp/large"], large);
    // Nothing leaves the directory.
    for hostile in [
        images::files(&[("../escaped", b"x")]),
        images::archive(&[
            (images::link("l", tar::Kind::Symlink, "/etc"), b""),
            (images::entry("l/escaped", tar::Kind::Regular), b"x"),
        ]),
    ] {
        let output = pipe(&["/bin/tar", "xf", "-", "-C", "/tmp"], hostile).unwrap();
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(root.shell("ls /etc /escaped").unwrap().0, "/etc:\ngroup\npasswd\n");
}

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Its first line says that it listens.
    fn start(root: &Root, arguments: &[&str]) -> Option<Server> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let flag = format!("--port={port}");
        let all = [&["/echo", &flag, "--tcp-port=0", "--udp-port=0"], arguments].concat();
        let mut child = root
            .command(&all)?
            .env("NODE_NAME", "node-1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(
            line.ends_with(&format!("listening protocol=http port={port}\n")),
            "{line}"
        );
        // Its pipe must not fill up.
        std::thread::spawn(move || io::copy(&mut out, &mut io::sink()));
        Some(Server { child, port })
    }

    fn get(&self, root: &Root, path: &str) -> (String, i32) {
        let output = root
            .run(&["/bin/wget", "-qO-", &format!("http://127.0.0.1:{}{path}", self.port)])
            .unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }
}

#[tokio::test]
async fn the_server_tells_what_reached_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).await;
    let Some(mut server) = Server::start(&root, &[]) else {
        return;
    };
    let (text, _) = server.get(&root, "/some/path?x=1");
    for part in [
        "Hostname: ",
        "Address: 127.0.0.1\n",
        "Node: node-1\n",
        "GET /some/path?x=1 HTTP/1.1\n",
        "Host: 127.0.0.1",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(server.get(&root, "/readyz"), ("ok\n".to_string(), 0));
    assert_eq!(server.get(&root, "/readyz/fail").1, 0);
    assert_eq!(server.get(&root, "/readyz").1, 1);
    assert_eq!(server.get(&root, "/healthz").1, 0);
    assert_eq!(server.get(&root, "/readyz/ok").1, 0);
    assert_eq!(server.get(&root, "/status?code=404").1, 1);
    assert_eq!(server.get(&root, "/delay?seconds=0.01").1, 0);
    let url = format!("http://localhost:{}/", server.port);
    let output = root
        .run(&["/bin/curl", "-s", "-H", "X-Test: yes", "-d", "the body", &url])
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("Hostname") && text.contains("X-Test: yes\n") && text.ends_with("\n\nthe body\n"),
        "{text}"
    );
    assert_eq!(server.get(&root, "/exit?code=7"), ("exiting with 7\n".to_string(), 0));
    assert_eq!(server.child.wait().unwrap().code(), Some(7));
}

#[tokio::test]
async fn the_server_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).await;
    let Some(mut server) = Server::start(&root, &[]) else {
        return;
    };
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    for (arguments, code) in [
        (&["/echo", "--fail=5"][..], 5),
        (&["/echo", "--sleep=0.01"], 0),
        (&["/echo", "--sleep=0.01", "--fail"], 1),
        (&["/echo", "--cpu=x"], 2),
        (&["/echo", "--nonsense"], 2),
        (&["/echo", "nonsense"], 2),
        (&["/echo", "--memory=1Mi", "--cpu=10m", "--sleep=10ms"], 0),
    ] {
        assert_eq!(root.run(arguments).unwrap().status.code(), Some(code), "{arguments:?}");
    }
}
