//! Approves the client certificates of nodes: for who may ask for any node's, and for nodes that renew their own.

use std::sync::Arc;

use orlop_client::path;
use serde_json::{Value, json};

use super::{ACCOUNT, rules, wake_for_requests};
use crate::objects::{CertificateSigningRequest, Condition, with_type_meta};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, Writer};
use crate::settings::{Certificates, RequestedIdentity};

pub(crate) const DEF: Def = Def {
    name: "certificatesigningrequest-approving-controller",
    account: ACCOUNT,
    on_by_default: true,
    start,
};

struct Approver {
    requests: Cache<CertificateSigningRequest>,
    certificates: Arc<dyn Certificates>,
}

fn start(setup: &Setup) {
    let Some(certificates) = setup.settings.certificates.clone() else {
        return;
    };
    let (queue, requests) = (setup.queue("csrapproving"), setup.cache::<CertificateSigningRequest>());
    wake_for_requests(&queue, &requests);
    let approver = Approver { requests, certificates };
    setup.run(queue, setup.settings.concurrent_syncs, approver);
}

impl Reconcile for Approver {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(request) = self.requests.at(key) else {
            return Ok(Next::Done);
        };
        if request.is_issued() || request.has("Approved") || request.has("Denied") {
            return Ok(Next::Done);
        }
        // The server takes no request that can't be read; an older one may have, and it stays unreadable.
        let Ok(asked) = self.certificates.read(&request.pem()) else {
            return Ok(Next::Done);
        };
        let rights = rights_needed(&request, &asked);
        for (right, message) in &rights {
            if may(writer, &request, right).await? {
                return approve(writer, &request, message).await;
            }
        }
        match rights.is_empty() {
            true => Ok(Next::Done),
            // Who asks may get the right later.
            false => Err(ReconcileError::NotYet(
                "requestor is not permitted to request a node client certificate".to_string(),
            )),
        }
    }
}

/// Any of these rights will do; none for requests that are others' business.
fn rights_needed(request: &CertificateSigningRequest, asked: &RequestedIdentity) -> Vec<(&'static str, &'static str)> {
    let spec = &request.spec;
    if spec.signer_name != rules::KUBELET_CLIENT || rules::kubelet_client(asked, &spec.usages).is_err() {
        return vec![];
    }
    let mut rights = vec![];
    if spec.username == asked.common_name {
        let message = "Auto approving self kubelet client certificate after SubjectAccessReview.";
        rights.push(("selfnodeclient", message));
    }
    rights.push((
        "nodeclient",
        "Auto approving kubelet client certificate after SubjectAccessReview.",
    ));
    rights
}

async fn may(writer: &Writer, request: &CertificateSigningRequest, right: &str) -> orlop_client::Result<bool> {
    let spec = &request.spec;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
            "resourceAttributes": {
                "group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create",
                "subresource": right, "version": "*",
            },
        },
    });
    let reviews = path::collection("authorization.k8s.io/v1", None, "subjectaccessreviews");
    let answer: Value = writer.api().create(&reviews, &review).await?;
    Ok(answer["status"]["allowed"] == true)
}

async fn approve(writer: &Writer, request: &CertificateSigningRequest, message: &str) -> ReconcileResult {
    let mut approved = request.clone();
    approved.status.conditions.push(Condition {
        r#type: "Approved".to_string(),
        status: "True".to_string(),
        reason: "AutoApproved".to_string(),
        message: message.to_string(),
        ..Condition::default()
    });
    writer
        .replace_part::<CertificateSigningRequest>(&request.metadata, "approval", &with_type_meta(&approved))
        .await?;
    Ok(Next::Done)
}
