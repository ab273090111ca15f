//! Authorisation: may this user do that?

mod attributes;

pub use attributes::{Attributes, Decision, forbidden};
