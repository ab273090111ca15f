//! Commands as a user types them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command that ended.
#[derive(Debug)]
pub struct Ran {
    pub line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// What it printed, or the end of the test.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == Some(0), "should have succeeded:\n{self}");
        self.stdout
    }

    /// What it complained about, or the end of the test.
    #[track_caller]
    pub fn fails(self) -> String {
        assert!(self.code != Some(0), "should have failed:\n{self}");
        self.stderr
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = self.code.map_or("a signal".to_string(), |c| c.to_string());
        write!(f, "$ {}\n{}{}(ended with {code})", self.line, self.stdout, self.stderr)
    }
}

/// Ends the test if a program is missing, with what to do about it.
pub fn require(program: &str) {
    let found =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|d| d.join(program).is_file()));
    assert!(
        found,
        "{program} is not installed; run tools/install-test-tools as root"
    );
}

/// A bash command line in a directory of its own: kubectl's caches and the files it writes stay there. Two minutes is
/// enough for anything a test runs.
pub(crate) fn command(line: &str, home: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=1", "120", "bash", "-ceu", "-o", "pipefail", line])
        .current_dir(home)
        .env("HOME", home)
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECTL_KUBERC", "false")
        // What a developer has set must not change what tests see.
        .env_remove("KUBE_EDITOR")
        .env_remove("http_proxy")
        .env_remove("https_proxy")
        .env_remove("HTTP_PROXY")
        .env_remove("HTTPS_PROXY");
    command
}

/// Runs a command to its end, with this on its standard input.
pub(crate) fn run(mut command: Command, line: &str, stdin: &str) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash and timeout (coreutils) are part of every Debian");
    let mut input = child.stdin.take().expect("asked for a pipe");
    let text = stdin.to_string();
    // Apart, so that a command which writes before it has read everything can't block us. One that reads nothing at all
    // closes the pipe: no failure.
    let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let output = child.wait_with_output().expect("our own child");
    writer.join().expect("writing does not panic");
    Ran {
        line: line.to_string(),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
