//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may decide on and sign requests, and
//! what nobody may ask for.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orlop_api::{Status, Value};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::{Change, Operation, Plugin, Review};
use crate::authz::Attributes;

pub const APPROVAL: Plugin = Plugin {
    name: "CertificateApproval",
    mutate: None,
    validate: Some(approval),
};
pub const SIGNING: Plugin = Plugin {
    name: "CertificateSigning",
    mutate: None,
    validate: Some(signing),
};
pub const SUBJECT: Plugin = Plugin {
    name: "CertificateSubjectRestriction",
    mutate: None,
    validate: Some(subject),
};

fn is_request(review: &Review<'_>, subresource: &str) -> bool {
    review.kind.group == "certificates.k8s.io"
        && review.kind.plural == "certificatesigningrequests"
        && review.subresource == subresource
}

/// The verb must be held on the signer itself, or on all signers of its domain.
fn may(review: &Review<'_>, verb: &'static str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or(""));
    [signer, &domain].iter().any(|name| {
        let attributes = Attributes::resource(review.user, verb, "certificates.k8s.io", "signers").named(name);
        review.authorizer.authorize(&attributes, review.lookup).allowed
    })
}

fn signer(old: Option<&Value>) -> &str {
    old.and_then(|o| o.pointer("/spec/signerName"))
        .and_then(Value::as_str)
        .unwrap_or("")
}

fn approval(review: &Review<'_>, _: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    if !is_request(review, "approval") || may(review, "approve", signer(old)) {
        return Ok(vec![]);
    }
    Err(review.forbidden(format!(
        "user not permitted to approve requests with signerName {:?}",
        signer(old)
    )))
}

fn signing(review: &Review<'_>, new: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let (Some(new), Some(old)) = (new, old) else {
        return Ok(vec![]);
    };
    let changed = new.pointer("/status/certificate") != old.pointer("/status/certificate");
    if !is_request(review, "status") || !changed || may(review, "sign", signer(Some(old))) {
        return Ok(vec![]);
    }
    Err(review.forbidden(format!(
        "user not permitted to sign requests with signerName {:?}",
        signer(Some(old))
    )))
}

/// The group that may do everything is not to be had by asking for it.
fn subject(review: &Review<'_>, new: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(new) = new.filter(|_| is_request(review, "") && review.operation == Operation::Create) else {
        return Ok(vec![]);
    };
    if signer(Some(new)) != "kubernetes.io/kube-apiserver-client" {
        return Ok(vec![]);
    }
    let pem = new.pointer("/spec/request").and_then(Value::as_str).unwrap_or("");
    if request_groups(pem).iter().any(|g| g == "system:masters") {
        return Err(review
            .forbidden("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"));
    }
    Ok(vec![])
}

/// The organisations in the subject of a signing request (PEM, in base64 as it stands in the object). Requests that
/// can't be read have none; validation refuses them.
fn request_groups(encoded: &str) -> Vec<String> {
    let groups = || -> Option<Vec<String>> {
        let pem = BASE64_STANDARD.decode(encoded).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        let subject = &request.certification_request_info.subject;
        Some(
            subject
                .iter_organization()
                .filter_map(|o| o.as_str().ok().map(str::to_string))
                .collect(),
        )
    };
    groups().unwrap_or_default()
}
