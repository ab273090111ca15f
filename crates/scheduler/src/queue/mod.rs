//! The scheduling queue: active, back-off, unschedulable and gated pods.
