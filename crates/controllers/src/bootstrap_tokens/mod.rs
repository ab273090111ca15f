//! Tokens with which machines join: those that may sign vouch for the public `cluster-info`, and those that have run out go.
//! Neither runs unless asked for, as in Kubernetes.
// Upstream: pkg/controller/bootstrap (v1.36)

pub(crate) mod clean;
pub(crate) mod sign;

use jiff::Timestamp;

use crate::objects::Secret;
use crate::objects::secret::BOOTSTRAP_TOKEN;

const NAMESPACE: &str = "kube-system";

fn is_token(secret: &Secret) -> bool {
    secret.r#type == BOOTSTRAP_TOKEN && secret.metadata.namespace == NAMESPACE
}

/// When the token stops being good; what can't be read never was.
fn end(secret: &Secret) -> Option<Timestamp> {
    let text = secret.text("expiration");
    (!text.is_empty()).then(|| text.parse().unwrap_or(Timestamp::MIN))
}
