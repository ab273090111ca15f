//! The network with real namespaces, links and packets. Each test has namespaces of its own, which go with it.

mod bed;
mod kills;
mod nodes;
mod traffic;
