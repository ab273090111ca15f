//! Cases worked out by hand, at least three for every formula: small clusters in a few lines of text, and the numbers and
//! sentences that Kubernetes 1.36 gives for them. `by_plugin` has some for every plugin; the other files go into what has
//! many rules. (Spreading, inter-pod affinity and volumes have more of them beside the code.)

mod by_plugin;
mod filters;
mod fixture;
mod messages;
mod preemption;
mod requests;
mod scores;
