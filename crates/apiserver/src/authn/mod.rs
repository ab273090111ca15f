//! Authentication: whose request is this?

mod certificate;
mod user;

pub use certificate::CertIdentity;
pub use user::*;

/// A credential was presented and is no good. Clients only learn that (401); the text is for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthnError {
    #[error("client certificate is {0}")]
    Certificate(&'static str),
    #[error("{0}")]
    Token(String),
}

impl AuthnError {
    pub fn status(&self) -> orlop_api::Status {
        orlop_api::Status::unauthorized()
    }
}
