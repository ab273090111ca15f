//! The OpenAPI documents, made from the schema and the table of kinds.

use http::{HeaderMap, Response};

use crate::request::Query;
use crate::respond::Body;

/// Answers /openapi/v2 and /openapi/v3…; `None` for other paths.
pub fn respond(_path: &str, _query: &Query, _headers: &HeaderMap) -> Option<Response<Body>> {
    None
}
