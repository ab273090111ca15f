//! The messages of the container runtime interface (`runtime.v1`), with its names and field numbers.
//!
//! They are written as plain structs rather than generated, so that building needs no protocol compiler. What neither
//! Orlop nor a Linux runtime uses (Windows, check-points, the streamed lists, Prometheus metrics over CRI) is left out:
//! an unknown field is skipped when it comes in.

mod container;
mod enums;
mod image;
mod runtime;
mod sandbox;
mod stats;

pub use container::*;
pub use enums::*;
pub use image::*;
pub use runtime::*;
pub use sandbox::*;
pub use stats::*;
