//! `orlop bench scheduling`: how fast a cluster's scheduler binds pods, through the API, with workloads kept as data.
//!
//! A workload (`bench/scheduling/*.yaml`, schema in `workload`) makes nodes and pods through the API of any cluster.
//! Its measured pods are created by many workers while a watch notes when each is bound; `throughput` turns those moments
//! into figures by the same rules as Kubernetes' scheduler_perf, so that they can be put side by side.
//! The client shares its machine with what it measures: bodies are rendered once and spliced, events are decoded no
//! further than needed.

mod bindings;
pub(crate) mod catalogue;
mod cluster;
mod progress;
pub(crate) mod report;
pub(crate) mod run;
mod template;
mod throughput;
pub(crate) mod workload;
