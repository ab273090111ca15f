//! Service accounts: every namespace has one and what it takes to trust the API server, and those who still keep tokens in
//! secrets get them, until nobody uses them any more.
// Upstream: pkg/controller/serviceaccount, pkg/controller/certificates/rootcacertpublisher (v1.36)

pub(crate) mod accounts;
pub(crate) mod cleaner;
pub(crate) mod root_ca;
pub(crate) mod tokens;

/// On secrets with a token: whose it is.
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
