//! The embedded runtime with real containers: needs root and busybox-static.

mod support;

mod faults;
mod kills;
mod lifecycle;
mod logs;
mod misbehaviour;
mod mounts;
mod namespaces;
mod resources;
mod security;
mod sessions;
mod version2;
