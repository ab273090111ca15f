//! Certificates as credentials: names that are read exactly or not at all, client certificates that are asked for in the
//! handshake and verified by whoever authenticates, and servers whose certificate nobody looks at.

mod any_certificate;
mod client;
mod content;
mod name;
mod request;

pub use any_certificate::AnyCertificate;
pub use client::{AuthorityError, ClientAuthority, ClientCertificate, VerifyError};
pub use content::{CertificateContent, ContentError};
pub use name::{AlternativeNames, Attribute, COMMON_NAME, DistinguishedName, NameError, ORGANIZATION, USER_UID};
pub use request::{CertificateRequest, RequestError};
