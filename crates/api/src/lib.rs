//! The words of the Kubernetes API: the table of kinds, the schema of every type, and what is decided about an object
//! without looking at any other: decoding, defaults, validation, patches, selectors, printing columns.
//!
//! Data comes in as bytes (JSON, YAML, protobuf) and goes out as `serde_json::Value` in the exact shape Kubernetes would
//! answer with. There is no I/O and no async here, and the server needs no Rust struct per kind: one table of types
//! (`schema`) describes them all, so that the request path is written once and custom resources can be rows added at run
//! time. Components that look at many fields of an object decode it into the structs of `types`, those that look at few
//! into the slim ones of `objects`.

/// Errors whose message goes to users as it is, in a field problem or a `metav1.Status`: those take an `Into<String>`.
macro_rules! errors_as_text {
    ($($error:ty),+) => {
        $(impl From<$error> for String {
            fn from(error: $error) -> String {
                error.to_string()
            }
        })+
    };
}
use errors_as_text;

pub mod field;
pub mod names;
pub mod status;

pub mod kind;
pub mod kinds;
pub mod printing;

pub mod duration;
pub mod int_or_string;
pub mod ip;
pub mod patch;
pub mod pattern;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod schema;
pub mod selector;
pub mod structural;
pub mod workload;

mod fill;
#[cfg(test)]
mod kind_check;
mod rules;

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod events;
pub mod flowcontrol;
pub mod meta;
pub mod metrics;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod resource;
pub mod resources;
pub mod scheduling;
pub mod storage;

pub mod objects;
pub mod types;

pub use field::{Cursor, Path, Problem, ProblemKind, Problems};
pub use kind::KindDef;
pub use serde_json::Value;
pub use status::Status;
