//! Netlink, as much of it as the service proxy, network policies and the pod network need: connections and messages,
//! links with their addresses and routes (`route`), tables of nf_tables (`nft`), and tracked flows (`conntrack`). Nothing here knows Kubernetes, and
//! nothing calls a program.

mod connection;
pub mod conntrack;
mod family;
mod namespace;
pub mod nft;
pub mod route;
#[cfg(test)]
mod testing;

pub use connection::*;
pub use family::{Family, Protocol};
pub use namespace::Namespace;
