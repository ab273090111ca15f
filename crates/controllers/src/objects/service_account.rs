//! Service accounts.

use serde::Deserialize;

use super::{Kind, Meta};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    pub metadata: Meta,
    pub secrets: Vec<SecretReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SecretReference {
    pub name: String,
}

impl Kind for ServiceAccount {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ServiceAccount";
    const RESOURCE: &'static str = "serviceaccounts";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl ServiceAccount {
    pub fn refers_to(&self, secret: &str) -> bool {
        self.secrets.iter().any(|reference| reference.name == secret)
    }
}
