//! The `authorizer` of expressions: what it asks, and the trait by which the caller answers.
//!
//! Upstream: apiserver/pkg/cel/library/authz.go.

use std::fmt;
use std::sync::Arc;

/// Who answers `authorizer.….check(…)`. Bound to a variable with [`crate::Value::authorizer`] or
/// [`crate::Value::request_resource`].
///
/// It is asked in the middle of an evaluation, so it must not wait for long.
pub trait Authorizer: Send + Sync {
    fn check(&self, requirement: &Requirement) -> Verdict;
}

/// What is asked: whether somebody may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Namespace and name of the service account that is asked about; else it is the user of the request.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    pub target: Target,
}

/// What a requirement is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path that is no resource.
    Path(String),
    Resource(ResourceAttributes),
}

/// A resource that is asked about. The version is always `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAttributes {
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// As the expression gave it: parsing it is the caller's.
    pub field_selector: Option<Selector>,
    /// As the expression gave it: parsing it is the caller's.
    pub label_selector: Option<Selector>,
}

/// The text of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(pub String);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub reason: String,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny,
    NoOpinion,
}

/// An authorizer and whom it is asked about.
#[derive(Clone)]
pub(crate) struct Subject<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) service_account: Option<Arc<(String, String)>>,
}

impl Subject<'_> {
    pub(crate) fn check(&self, verb: &str, target: Target) -> Verdict {
        self.authorizer.check(&Requirement {
            service_account: self.service_account.as_deref().cloned(),
            verb: verb.to_string(),
            target,
        })
    }
}

impl fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({:?})", self.service_account)
    }
}
