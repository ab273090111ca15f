//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may decide on and sign requests, and
//! what nobody may ask for.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orlop_api::{Status, Value};
use orlop_x509::{CertificateRequest, RequestError};

use super::{Change, Operation, Plugin, Review};
use crate::authn::MASTERS;
use crate::authz::Attributes;

pub(super) const APPROVAL: Plugin = Plugin {
    name: "CertificateApproval",
    mutate: None,
    validate: Some(approval),
};
pub(super) const SIGNING: Plugin = Plugin {
    name: "CertificateSigning",
    mutate: None,
    validate: Some(signing),
};
pub(super) const SUBJECT: Plugin = Plugin {
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
    let (Some(new), Some(old), true) = (new, old, is_request(review, "status")) else {
        return Ok(vec![]);
    };
    let changed = ["/status/certificate", "/status/conditions"]
        .iter()
        .any(|part| new.pointer(part) != old.pointer(part));
    if !changed || may(review, "sign", signer(Some(old))) {
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
    let request = new.pointer("/spec/request").and_then(Value::as_str).unwrap_or("");
    let request = read(request).map_err(|why| review.forbidden(format!("failed to parse CSR: {why}")))?;
    if request.subject.organizations().any(|group| group == MASTERS) {
        return Err(review
            .forbidden("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"));
    }
    Ok(vec![])
}

/// Reads a signing request: PEM, in base64 as it stands in the object. What can't be read whole is an error.
pub(super) fn read(encoded: &str) -> Result<CertificateRequest, UnreadableRequest> {
    let pem = BASE64_STANDARD.decode(encoded)?;
    Ok(CertificateRequest::from_pem(&pem)?)
}

/// Why a signing request can't be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum UnreadableRequest {
    Base64(#[from] base64::DecodeError),
    Request(#[from] RequestError),
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told, with};
    use super::*;

    /// A signing request as it stands in an object.
    pub fn signing_request(name: &str, group: impl Into<rcgen::DnValue>) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        let key = rcgen::KeyPair::generate().unwrap();
        BASE64_STANDARD.encode(params.serialize_request(&key).unwrap().pem().unwrap())
    }

    const RESOURCE: &str = "certificatesigningrequests.certificates.k8s.io";

    fn request(signer: &str, request: &str) -> Value {
        json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": request}})
    }

    fn granted(verb: &str, signer: &str) -> Desk {
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb],
            "resourceNames": [signer]});
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}]});
        Desk::new()
            .user("u", &[])
            .with(
                "clusterroles.rbac.authorization.k8s.io",
                json!({"metadata": {"name": "r"}, "rules": [rule]}),
            )
            .with("clusterrolebindings.rbac.authorization.k8s.io", binding)
    }

    #[test]
    fn decisions_need_a_right_on_the_signer() {
        let old = request("example.com/a", "");
        let signed = with(old.clone(), json!({"status": {"certificate": "Zm9v"}}));
        let failed = with(old.clone(), json!({"status": {"conditions": [{"type": "Failed"}]}}));
        let refused = |verb: &str| {
            format!(
                "{RESOURCE} \"r\" is forbidden: user not permitted to {verb} requests with signerName \"example.com/a\""
            )
        };
        let (ok, of_approval) = ("ok".to_string(), format!("{RESOURCE}/approval"));
        let of_status = format!("{RESOURCE}/status");
        for (verb, signer, approves, signs) in [
            ("approve", "example.com/a", &ok, &refused("sign")),
            ("approve", "example.com/*", &ok, &refused("sign")),
            ("approve", "example.com/b", &refused("approve"), &refused("sign")),
            ("sign", "example.com/*", &refused("approve"), &ok),
        ] {
            let desk = granted(verb, signer);
            let result = desk.update(&APPROVAL, &of_approval, old.clone(), old.clone());
            assert_eq!(told(result), *approves, "{verb} {signer}");
            for new in [&signed, &failed] {
                let result = desk.update(&SIGNING, &of_status, new.clone(), old.clone());
                assert_eq!(told(result), *signs, "{verb} {signer}");
            }
            let labelled = with(old.clone(), json!({"metadata": {"labels": {"a": "b"}}}));
            assert_eq!(told(desk.update(&SIGNING, &of_status, labelled, old.clone())), "ok");
            assert_eq!(told(desk.update(&APPROVAL, RESOURCE, old.clone(), old.clone())), "ok");
        }
    }

    #[test]
    fn nobody_asks_to_be_a_master() {
        let (client, serving) = ("kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving");
        let masters = signing_request("me", "system:masters");
        let others = signing_request("me", "system:master");
        let hidden = signing_request("me", rcgen::DnValue::BmpString("system:masters".try_into().unwrap()));
        let refused = |why: &str| format!("{RESOURCE} \"r\" is forbidden: {why}");
        let cases = [
            (client, others.as_str(), "ok".to_string()),
            (serving, &masters, "ok".to_string()),
            (
                client,
                &masters,
                refused("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"),
            ),
            (
                client,
                &hidden,
                refused(
                    "failed to parse CSR: subject attribute 2.5.4.10 can't be read: its value is no UTF8String, PrintableString, IA5String or NumericString",
                ),
            ),
            (
                client,
                "Zm9v",
                refused("failed to parse CSR: PEM block type must be CERTIFICATE REQUEST"),
            ),
        ];
        for (signer, pem, expected) in cases {
            let result = Desk::new().create(&SUBJECT, RESOURCE, request(signer, pem));
            assert_eq!(told(result), expected, "{signer}");
        }
        let subject = read(&others).unwrap().subject;
        assert_eq!(subject.common_name(), "me");
        assert_eq!(subject.organizations().collect::<Vec<_>>(), ["system:master"]);
    }
}
