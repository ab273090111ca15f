//! `KubeSchedulerConfiguration`: read, defaulted, checked.
