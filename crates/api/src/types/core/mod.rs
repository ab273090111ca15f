//! The core group: pods, nodes, and what pods refer to.

mod container;
mod env;
mod node;
mod objects;
mod persistent_volume;
mod pod;
mod pod_status;
mod security;
mod volume;

pub use container::*;
pub use env::*;
pub use node::*;
pub use objects::*;
pub use persistent_volume::*;
pub use pod::*;
pub use pod_status::*;
pub use security::*;
pub use volume::*;
