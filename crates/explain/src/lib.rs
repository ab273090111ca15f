//! Why a pod is where it is, or nowhere; what little would have to change; and what would happen if.
//!
//! Everything here is pure: a `Snapshot` of objects and a scheduler configuration go in, values come out, and `render`
//! makes text of them. Every verdict, score and victim is the scheduler's own: `World` loads the snapshot into its core,
//! and a fix is only reported once that core has placed the pod with it. Who reads the objects, and who prints, is the
//! binary's business.
//!
//! Left out on purpose: extenders are not asked (the answer says so), and nothing is written.

mod amount;
mod detail;
pub mod fix;
pub mod pod;
pub mod render;
pub mod simulate;
mod snapshot;
pub mod style;
mod workload;
mod world;

pub use pod::{PodExplanation, PodFacts, PodState};
pub use snapshot::{ObjectError, Snapshot, Unreadable};
pub use workload::{WorkloadExplanation, WorkloadObjects, explain_workload};
pub use world::World;
