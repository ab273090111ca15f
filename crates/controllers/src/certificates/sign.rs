//! Signs what was approved for the signers that this cluster is.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orlop_base::Clock;

use super::rules::RuleViolation;
use super::{ACCOUNT, rules, wake_for_requests};
use crate::objects::{CertificateSigningRequest, Condition, with_type_meta};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, Writer};
use crate::settings::{Certificates, MalformedRequest, RequestedIdentity};

pub(crate) const DEF: Def = Def {
    name: "certificatesigningrequest-signing-controller",
    account: ACCOUNT,
    on_by_default: true,
    start,
};

/// Twice as long as certificates are valid before they are signed.
const SHORTEST: Duration = Duration::from_secs(600);

struct Signer {
    requests: Cache<CertificateSigningRequest>,
    certificates: Arc<dyn Certificates>,
    longest: Duration,
    clock: Clock,
}

/// Without an authority there is nothing to sign with.
fn start(setup: &Setup) {
    let Some(certificates) = setup.settings.certificates.clone().filter(|c| c.can_sign()) else {
        return;
    };
    let (queue, requests) = (setup.queue("csrsigning"), setup.cache::<CertificateSigningRequest>());
    wake_for_requests(&queue, &requests);
    let signer = Signer {
        requests,
        certificates,
        longest: setup.settings.cluster_signing_duration,
        clock: setup.clock.clone(),
    };
    setup.run(queue, setup.settings.concurrent_syncs, signer);
}

/// Why a request is not signed.
#[derive(Debug, thiserror::Error)]
enum InvalidRequest {
    #[error(transparent)]
    Malformed(#[from] MalformedRequest),
    #[error(transparent)]
    Refused(#[from] RuleViolation),
}

impl Signer {
    /// Whom the certificate is for, if the signer's rules allow it.
    fn validate(&self, request: &CertificateSigningRequest) -> Result<RequestedIdentity, InvalidRequest> {
        let spec = &request.spec;
        let identity = self.certificates.read(&request.pem())?;
        rules::check(&spec.signer_name, &identity, &spec.usages)?;
        Ok(identity)
    }
}

impl Reconcile for Signer {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let ready = |r: &Arc<CertificateSigningRequest>| r.is_approved() && !r.is_issued() && !r.has("Failed");
        let Some(request) = self.requests.at(key).filter(ready) else {
            return Ok(Next::Done);
        };
        let (pem, spec) = (request.pem(), &request.spec);
        if !rules::is_known(&spec.signer_name) {
            return Ok(Next::Done);
        }
        let mut signed = CertificateSigningRequest::clone(&request);
        // What can't be read can't be judged: that will not change.
        match self.validate(&request) {
            Err(error) => signed.status.conditions.push(Condition {
                r#type: "Failed".to_string(),
                status: "True".to_string(),
                reason: "SignerValidationFailure".to_string(),
                message: error.to_string(),
                last_update_time: Some(self.clock.now()),
                ..Condition::default()
            }),
            Ok(validated) => {
                let valid = validity(spec.expiration_seconds, self.longest);
                let certificate = self
                    .certificates
                    .sign(&pem, &validated, &spec.usages, valid, self.clock.now());
                let certificate =
                    certificate.map_err(|e| ReconcileError::NotYet(format!("error auto signing csr: {e}")))?;
                signed.status.certificate = BASE64_STANDARD.encode(certificate);
            }
        }
        writer
            .replace_part::<CertificateSigningRequest>(&request.metadata, "status", &with_type_meta(&signed))
            .await?;
        Ok(Next::Done)
    }
}

fn validity(asked_seconds: Option<i32>, longest: Duration) -> Duration {
    let asked = asked_seconds.map(|s| Duration::from_secs(u64::try_from(s).unwrap_or(0)));
    asked.map_or(longest, |asked| asked.max(SHORTEST).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_last_as_long_as_asked_within_limits() {
        let year = Duration::from_secs(365 * 86_400);
        for (asked, seconds) in [
            (None, 31_536_000),
            (Some(3600), 3600),
            (Some(1), 600),
            (Some(i32::MAX), 31_536_000),
        ] {
            assert_eq!(validity(asked, year).as_secs(), seconds, "{asked:?}");
        }
    }
}
