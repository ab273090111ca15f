//! The container runtime interface, version 1, over a socket.

pub mod messages;
