//! The API server: requests come in over TLS (or from inside the process), are authenticated, authorised, decoded,
//! defaulted, admitted, validated and stored; reads and watches hand out what is stored.
//!
//! `chain` is the order in which that happens, `registry` the verbs, `admission` what is decided by looking at other
//! objects. What a kind is stands in `orlop_api`; no file here is about one kind, but for `registry/subresources` and
//! `registry/services`.
//!
//! Invariants: nothing is acknowledged before it is durable; nothing is visible before it is durable; every write is a
//! compare-and-set; whatever must change together is one transaction.

pub mod admission;
mod aggregator;
pub mod audit;
pub mod authn;
pub mod authz;
mod bodies;
pub mod bootstrap;
pub mod chain;
pub mod computed;
pub mod config;
mod config_file;
mod connect;
mod custom;
pub mod discovery;
pub mod encryption;
mod expressions;
mod flowcontrol;
pub mod health;
pub mod housekeeping;
pub mod in_process;
pub mod internal;
mod key_files;
pub mod kinds;
mod long_list;
pub mod lookup;
pub mod metrics;
pub mod negotiate;
pub mod object;
pub mod openapi;
pub mod pki;
pub mod registry;
mod remote;
pub mod request;
pub mod respond;
pub mod serve;
#[cfg(test)]
mod serve_tests;
mod shares;
pub mod start;
mod storage;
pub mod table;
mod usage;
mod webhook_client;

pub use config::{Config, EtcdConfig};
pub use config_file::FileError;
pub use connect::NodesInside;
pub use key_files::{KeyFileError, KeyFiles, NamedCertificate};
pub use orlop_streaming::Pipe;
pub use remote::KubeconfigError;
pub use start::{Running, StartError, start};
pub use storage::EtcdTlsError;
