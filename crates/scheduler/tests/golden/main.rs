//! Cases worked out by hand, at least three for every formula: small clusters in a few lines of text, and the numbers and
//! sentences that Kubernetes 1.36 gives for them. (Spreading, inter-pod affinity and volumes have theirs beside the code.)

mod filters;
mod fixture;
mod messages;
mod preemption;
mod requests;
mod scores;
