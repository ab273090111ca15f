//! How components reach a cluster: transports (TLS or in process), requests, informers, events, leader election.
//!
//! Data comes in as JSON, over TLS or straight from an API server in the same process, and goes out as the caller's own
//! structs: every call and every informer decodes into any `T: DeserializeOwned`, so that a component keeps only the
//! fields it uses. `api` is the request layer that the rest stands on; `informer` turns lists and watches into one
//! ordered stream of changes that never loses one.
//!
//! Invariants: every request has a time limit; that the server is unreachable is logged once, by `Api`, whoever noticed;
//! every queue has a bound; an informer runs until the shutdown.
//!
//! Left out on purpose: client-side rate limits (the server's 429 is honoured instead; a bound on requests in flight
//! keeps it rare) and caches: what is worth keeping of an object, and by what it is found, only its reader knows.

pub mod api;
mod backoff;
pub mod error;
pub mod events;
pub mod informer;
pub mod leader;
mod lines;
pub mod path;
mod reachability;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;

pub use api::{Api, DeleteOptions, List, ListQuery, Preconditions};
pub use error::{Error, Result, Status, UnavailableReason};
pub use events::{Event, EventType, ObjectReference, Recorder};
pub use informer::{Delta, Inbox, Selection, Sink, watch};
pub use leader::{Election, Leadership, elect};
pub use reachability::Failures;
pub use transport::{Client, ResponseBody};
