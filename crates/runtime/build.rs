//! Compiles the program of the built-in images (`builtin/`) for the machine that Orlop is built for.
//!
//! With the compiler that builds everything else and its linker, and nothing else: neither another target nor a static C
//! library need be installed. It takes about two seconds.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=builtin");
    println!("cargo::rustc-check-cfg=cfg(builtin_images)");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo names the target");
    // Its system calls are written down for these; elsewhere there are no built-in images.
    if architecture != "x86_64" && architecture != "aarch64" {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names the directory")).join("echo");
    compile(&out);
    println!("cargo::rustc-cfg=builtin_images");
    println!("cargo::rustc-env=ORLOP_BUILTIN_PROGRAM={}", out.display());
}

fn compile(out: &Path) {
    let mut command = Command::new(env::var_os("RUSTC").expect("cargo names the compiler"));
    command.args(["--edition=2024", "--crate-name=echo", "--crate-type=bin"]);
    for option in [
        "opt-level=z",
        "panic=abort",
        "lto=fat",
        "codegen-units=1",
        "strip=symbols",
        "force-unwind-tables=no",
        "relocation-model=static",
        "target-feature=+crt-static",
        // No C library, not even its beginning of a program.
        "link-arg=-nostartfiles",
        "link-arg=-nostdlib",
        "link-arg=-static",
        // Small, and the same bytes for the same source: images are known by their digests.
        "link-arg=-Wl,--build-id=none,-z,norelro,-z,noseparate-code",
    ] {
        command.arg("-C").arg(option);
    }
    command
        .arg("--target")
        .arg(env::var_os("TARGET").expect("cargo names the target"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("linker=");
        option.push(linker);
        command.arg("-C").arg(option);
    }
    command.arg("-o").arg(out).arg("builtin/main.rs");
    // Flags that are meant for the program around it, such as those of coverage.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
    let status = command.status().expect("the compiler can be started");
    assert!(status.success(), "failed to compile the program of the built-in images");
}
