//! Secrets. Of those that no controller has to do with nothing but their names is kept.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::{Kind, Meta};

pub const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
pub const BOOTSTRAP_TOKEN: &str = "bootstrap.kubernetes.io/token";

#[derive(Clone, Default, Deserialize)]
#[serde(default, from = "Stored")]
pub struct Secret {
    pub metadata: Meta,
    pub r#type: String,
    /// In base64; empty unless it is a token of some kind.
    data: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: Meta,
    r#type: String,
    data: BTreeMap<String, String>,
}

impl From<Stored> for Secret {
    fn from(stored: Stored) -> Secret {
        let concerns_us = [ACCOUNT_TOKEN, BOOTSTRAP_TOKEN].contains(&stored.r#type.as_str());
        Secret {
            metadata: stored.metadata,
            r#type: stored.r#type,
            data: if concerns_us { stored.data } else { BTreeMap::new() },
        }
    }
}

impl Kind for Secret {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "Secret";
    const RESOURCE: &'static str = "secrets";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl Secret {
    /// What stands there, decoded; empty if there is nothing.
    pub fn text(&self, key: &str) -> String {
        let bytes = self.data.get(key).and_then(|text| BASE64_STANDARD.decode(text).ok());
        bytes
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}
