//! Tokens of service accounts.

use crate::types::json::{kind, object};
use crate::types::meta::{ObjectMeta, Time};

kind! {
    "authentication.k8s.io/v1";
    pub struct TokenRequest {
        metadata: ObjectMeta = "metadata",
        spec: Option<TokenRequestSpec> = "spec",
        status: Option<TokenRequestStatus> = "status",
    }
}

object! {
    pub struct TokenRequestSpec {
        audiences: Option<Vec<String>> = "audiences",
        bound_object_ref: Option<BoundObjectReference> = "boundObjectRef",
        expiration_seconds: Option<i64> = "expirationSeconds",
    }
}

object! {
    pub struct TokenRequestStatus {
        expiration_timestamp: Option<Time> = "expirationTimestamp",
        token: Option<String> = "token",
    }
}

object! {
    pub struct BoundObjectReference {
        api_version: Option<String> = "apiVersion",
        kind: Option<String> = "kind",
        name: Option<String> = "name",
        uid: Option<String> = "uid",
    }
}
