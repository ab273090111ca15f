//! Metrics of every component: counters, gauges, histograms and labelled families ([`series`]), the Prometheus text
//! format ([`text`]), the `process_*` metrics ([`process`]), and a reader of that format that checks an exposition
//! ([`exposition`]).
//!
//! Counters and gauges are plain atomics. Nothing is registered anywhere: a component owns its metrics and renders them.

pub mod exposition;
pub mod process;
pub mod series;
pub mod text;
