//! How the shipped binary is linked. (A profile's `strip` is not applied to a package with a profile of its own.)

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    if !is("PROFILE", "release") || !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    // Relative relocations in a twentieth of their room: two megabytes. glibc 2.36 (Debian 12) and later read them.
    if is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // One copy of functions that became the same code: another megabyte. Where rustc links with its own lld.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_own_linker = std::env::var_os("RUSTC_LINKER").is_none() && !flags.contains("link");
    if is("TARGET", "x86_64-unknown-linux-gnu") && is_own_linker {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
