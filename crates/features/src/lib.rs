//! No code: a development dependency of every crate, so that `cargo test -p CRATE` builds the same third-party crates, with
//! the same features, as the whole workspace does. Without it each crate's first build of its own tests would build
//! dozens of them anew. Nothing of it is shipped: the binary is built without development dependencies.
//!
//! `tests/tidy.rs` in `crates/testkit` says what is missing here when a dependency is added.
