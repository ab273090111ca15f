//! The shim of tests: what `orlop shim` is in the shipped binary.

fn main() {
    orlop_runtime::embedded::shim::main()
}
