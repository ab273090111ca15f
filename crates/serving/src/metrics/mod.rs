//! What every component's metrics are written with.

pub mod process;
pub mod text;
