//! Requests for certificates. They are written whole, so all their fields are here.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Condition, Kind, Meta, condition};

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct CertificateSigningRequest {
    pub metadata: Meta,
    pub spec: RequestSpec,
    pub status: RequestStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestSpec {
    /// PKCS #10 in PEM in base64.
    pub request: String,
    pub signer_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<String>,
    /// Who asks, as the server noted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub extra: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RequestStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
}

impl Kind for CertificateSigningRequest {
    const API_VERSION: &'static str = "certificates.k8s.io/v1";
    const KIND: &'static str = "CertificateSigningRequest";
    const RESOURCE: &'static str = "certificatesigningrequests";

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

impl CertificateSigningRequest {
    pub fn has(&self, kind: &str) -> bool {
        condition::find(&self.status.conditions, kind).is_some()
    }

    pub fn is_approved(&self) -> bool {
        self.has("Approved") && !self.has("Denied")
    }

    pub fn is_issued(&self) -> bool {
        !self.status.certificate.is_empty()
    }

    /// PKCS #10 in PEM.
    pub fn pem(&self) -> String {
        let bytes = BASE64_STANDARD.decode(&self.spec.request).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
