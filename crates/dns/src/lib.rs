//! Names for services and pods: services and endpoint slices become records (pure), and a server answers for them.
//!
//! Upstream: the DNS-based service discovery specification 1.1.0, and CoreDNS' kubernetes and forward plugins.

pub mod objects;
pub mod zone;
