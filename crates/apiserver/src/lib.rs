//! stub

pub mod authn;
pub mod authz;
pub mod lookup;
pub mod pki;
