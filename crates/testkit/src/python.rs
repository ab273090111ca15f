//! Python with the `kubernetes` and `kopf` packages, in a virtual environment that is made once and kept under `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The client in a version for the API we serve, and the framework for operators.
const REQUIREMENTS: [&str; 2] = ["kubernetes>=34", "kopf>=1.38"];

/// The interpreter that has them.
pub fn python() -> PathBuf {
    let target = crate::orlop()
        .ancestors()
        .nth(2)
        .expect("target/PROFILE/orlop")
        .to_path_buf();
    let environment = target.join("testkit-python");
    let interpreter = environment.join("bin/python");
    // Tests run side by side: one makes it, the others wait.
    let lock = std::fs::File::create(target.join("testkit-python.lock")).expect("target/ can be written");
    lock.lock().expect("files can be locked");
    // Says what is in it: an environment of before is made anew.
    let complete = environment.join(".complete");
    let contents = REQUIREMENTS.join("\n");
    if std::fs::read_to_string(&complete).ok().as_ref() != Some(&contents) {
        crate::require("python3");
        let _ = std::fs::remove_dir_all(&environment);
        run(
            Command::new("python3").args(["-m", "venv"]).arg(&environment),
            "is python3-venv installed?",
        );
        let mut pip = Command::new(&interpreter);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(REQUIREMENTS);
        run(&mut pip, "pip needs a package index");
        std::fs::write(complete, contents).expect("target/ can be written");
    }
    interpreter
}

fn run(command: &mut Command, hint: &str) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; {hint}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed ({hint}); see tools/install-test-tools:\n{stderr}"
    );
}

/// A script of this crate's `python` directory.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}
