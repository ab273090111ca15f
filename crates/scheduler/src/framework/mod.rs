//! What a plugin is, what it answers, and how a profile puts plugins together.

pub mod detail;
pub mod event;
pub mod permit;
pub mod points;
pub mod profile;
pub mod verdict;
