//! SPDY/3.1 as Kubernetes uses it: many byte streams over one connection, both sides.
//!
//! `frame` turns bytes into frames and back, `headers` compresses header blocks, `connection` carries streams, with
//! `buffers` between it and their owners.
//!
//! Deliberately absent: windows. The implementation on the other side of every Kubernetes connection neither sends nor
//! heeds WINDOW_UPDATE, so waiting for one would hang. Back-pressure is that of the connection: when the reader of
//! one stream is slow its buffer fills and the connection is not read on. Priorities, push and credentials are
//! absent too.

mod buffers;
mod connection;
mod frame;
mod headers;

pub(crate) use connection::{Connection, Incoming, Side, Stream};
pub(crate) use headers::Headers;
