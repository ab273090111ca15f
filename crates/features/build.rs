//! Here only because Cargo leaves out the build dependencies of packages that have no build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
