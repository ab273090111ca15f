//! How components reach a cluster: transports, informers, events, leader election.
