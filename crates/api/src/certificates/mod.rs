//! The kinds of the certificates group.

use crate::kind::KindDef;

mod pem;
pub mod signing_request;

pub const GROUP: &str = "certificates.k8s.io";

pub const ALL: &[&KindDef] = &[&signing_request::DEF];
