//! The kinds of the authentication group: questions about who someone is, answered at once and never stored.
//!
//! Upstream: pkg/apis/authentication/validation, pkg/registry/authentication (v1.36). The answers are the API server's.

use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{KindDef, Verbs};

pub const GROUP: &str = "authentication.k8s.io";

pub const ALL: &[&KindDef] = &[&SELF_SUBJECT_REVIEW, &TOKEN_REVIEW];

pub const SELF_SUBJECT_REVIEW: KindDef = KindDef {
    group: GROUP,
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    namespaced: false,
    schema: "authentication/v1.SelfSubjectReview",
    verbs: Verbs::CreateOnly,
    ..KindDef::BASE
};

/// A review without a token is refused as a bad request, not as an invalid object: `NO_TOKEN` says so.
pub const TOKEN_REVIEW: KindDef = KindDef {
    kind: "TokenReview",
    plural: "tokenreviews",
    singular: "tokenreview",
    schema: "authentication/v1.TokenReview",
    ..SELF_SUBJECT_REVIEW
};

pub const NO_TOKEN: &str = "token is required for TokenReview in authentication";

/// Defaults of a TokenRequest, the body of `serviceaccounts/token`.
pub fn default_token_request(request: &mut Value) {
    fill::absent(fill::member(request, "spec"), "expirationSeconds", 3600);
}

pub fn validate_token_request(request: &Cursor<'_>, p: &mut Problems) {
    let expires = request.at("spec").at("expirationSeconds");
    match expires.as_i64() {
        Some(..600) => p.invalid(&expires, "may not specify a duration less than 10 minutes"),
        Some(seconds) if seconds > 1 << 32 => {
            p.invalid(&expires, "may not specify a duration larger than 2^32 seconds");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;
    use serde_json::json;

    #[test]
    fn token_requests_live_from_ten_minutes_on() {
        for (seconds, wanted) in [
            (json!(null), ""),
            (json!(600), ""),
            (
                json!(599),
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
            ),
            (
                json!(4294967297i64),
                "spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
            ),
        ] {
            let mut request = json!({"spec": {"expirationSeconds": seconds}});
            default_token_request(&mut request);
            let mut p = Problems::default();
            validate_token_request(&Cursor::root(&request), &mut p);
            assert_eq!(p.0.iter().map(Problem::to_string).collect::<String>(), wanted);
        }
        let mut empty = json!({});
        default_token_request(&mut empty);
        assert_eq!(empty, json!({"spec": {"expirationSeconds": 3600}}));
    }
}
