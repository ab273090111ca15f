//! etcd's messages (`etcdserverpb`, `mvccpb`), written down by hand: names and field numbers are those of etcd 3.6.
//! Enumerations stay numbers where etcd refuses unknown ones itself.

mod admin;
mod kv;
mod lease;
mod watch;

pub use admin::*;
pub use kv::*;
pub use lease::*;
pub use watch::*;

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

/// A request of which nothing matters, and an answer that says no more than that it was done.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// An answer with nothing but a header.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}
