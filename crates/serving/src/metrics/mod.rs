//! What every component's metrics are written with.

pub mod process;
pub mod series;
pub mod text;
