//! What each signer signs.
// Upstream: pkg/apis/certificates/helpers.go, pkg/controller/certificates/signer (v1.36)

use std::collections::BTreeSet;

use crate::settings::RequestedIdentity;

pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// Whether this cluster signs for the signer.
pub(super) fn is_known(signer: &str) -> bool {
    matches!(signer, KUBELET_CLIENT | KUBELET_SERVING | CLIENT | LEGACY)
}

/// What a signer finds wrong with a request, as its condition says it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct RuleViolation(String);

/// Checks a request by the rules of its signer.
pub(super) fn check(signer: &str, asked: &RequestedIdentity, usages: &[String]) -> Result<(), RuleViolation> {
    match signer {
        KUBELET_CLIENT => kubelet_client(asked, usages),
        KUBELET_SERVING => kubelet_serving(asked, usages),
        CLIENT => client(usages),
        LEGACY => Ok(()),
        other => Err(RuleViolation(format!("unrecognized signerName: {other:?}"))),
    }
}

pub(super) fn kubelet_client(asked: &RequestedIdentity, usages: &[String]) -> Result<(), RuleViolation> {
    check_organization(asked)?;
    for (present, what) in [
        (&asked.dns_names, "DNS"),
        (&asked.emails, "Email"),
        (&asked.addresses, "IP"),
        (&asked.uris, "URI"),
    ] {
        if !present.is_empty() {
            return Err(RuleViolation(format!("{what} subjectAltNames are not allowed")));
        }
    }
    check_common_name(asked)?;
    check_usages(usages, "client auth")
}

fn kubelet_serving(asked: &RequestedIdentity, usages: &[String]) -> Result<(), RuleViolation> {
    check_organization(asked)?;
    if asked.dns_names.is_empty() && asked.addresses.is_empty() {
        return Err(RuleViolation("DNS or IP subjectAltName is required".to_string()));
    }
    for (present, what) in [(&asked.emails, "Email"), (&asked.uris, "URI")] {
        if !present.is_empty() {
            return Err(RuleViolation(format!("{what} subjectAltNames are not allowed")));
        }
    }
    check_usages(usages, "server auth")?;
    check_common_name(asked)
}

fn client(usages: &[String]) -> Result<(), RuleViolation> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(wrong) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(RuleViolation(format!("invalid usage for client certificate: {wrong}")));
    }
    match usages.iter().any(|usage| usage == "client auth") {
        true => Ok(()),
        false => Err(RuleViolation(
            "missing required usage for client certificate: client auth".to_string(),
        )),
    }
}

fn check_organization(asked: &RequestedIdentity) -> Result<(), RuleViolation> {
    if asked.organizations != ["system:nodes"] {
        return Err(RuleViolation("subject organization is not system:nodes".to_string()));
    }
    // A node has no UID or the like to give itself.
    match asked.other_attributes.is_empty() {
        true => Ok(()),
        false => Err(RuleViolation(
            "subject attributes beside organization and common name are not allowed".to_string(),
        )),
    }
}

fn check_common_name(asked: &RequestedIdentity) -> Result<(), RuleViolation> {
    match asked.common_name.starts_with("system:node:") {
        true => Ok(()),
        false => Err(RuleViolation(
            "subject common name does not begin with system:node:".to_string(),
        )),
    }
}

/// Signing, the purpose, and for the sake of RSA keys encipherment.
fn check_usages(usages: &[String], purpose: &str) -> Result<(), RuleViolation> {
    let usages: BTreeSet<&str> = usages.iter().map(String::as_str).collect();
    let with_rsa = BTreeSet::from(["digital signature", "key encipherment", purpose]);
    let without = BTreeSet::from(["digital signature", purpose]);
    if usages == with_rsa || usages == without {
        return Ok(());
    }
    let mut listed: Vec<&str> = with_rsa.into_iter().collect();
    listed.sort_unstable();
    Err(RuleViolation(format!("usages did not match [{}]", listed.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_for_their_signer() {
        let node = RequestedIdentity {
            common_name: "system:node:a".to_string(),
            organizations: vec!["system:nodes".to_string()],
            ..RequestedIdentity::default()
        };
        let named = RequestedIdentity {
            dns_names: vec!["a".to_string()],
            ..node.clone()
        };
        let stranger = RequestedIdentity {
            organizations: vec!["system:nodes".to_string(), "more".to_string()],
            ..node.clone()
        };
        let numbered = RequestedIdentity {
            other_attributes: vec![("1.3.6.1.4.1.57683.2".to_string(), "uid".to_string())],
            ..node.clone()
        };
        let misnamed = RequestedIdentity {
            common_name: "a".to_string(),
            ..node.clone()
        };
        let (client, server) = (
            "digital signature,client auth",
            "digital signature,key encipherment,server auth",
        );
        for (signer, asked, usages, wanted) in [
            (KUBELET_CLIENT, &node, client, ""),
            (
                KUBELET_CLIENT,
                &node,
                server,
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (KUBELET_CLIENT, &named, client, "DNS subjectAltNames are not allowed"),
            (
                KUBELET_CLIENT,
                &stranger,
                client,
                "subject organization is not system:nodes",
            ),
            (
                KUBELET_CLIENT,
                &misnamed,
                client,
                "subject common name does not begin with system:node:",
            ),
            (
                KUBELET_CLIENT,
                &numbered,
                client,
                "subject attributes beside organization and common name are not allowed",
            ),
            (KUBELET_SERVING, &named, server, ""),
            (KUBELET_SERVING, &node, server, "DNS or IP subjectAltName is required"),
            (CLIENT, &misnamed, "client auth", ""),
            (
                CLIENT,
                &misnamed,
                "client auth,server auth",
                "invalid usage for client certificate: server auth",
            ),
            (
                CLIENT,
                &misnamed,
                "key encipherment",
                "missing required usage for client certificate: client auth",
            ),
            (LEGACY, &misnamed, "any", ""),
        ] {
            let usages: Vec<String> = usages.split(',').map(str::to_string).collect();
            let violation = check(signer, asked, &usages).err();
            let told = violation.map(|v| v.to_string()).unwrap_or_default();
            assert_eq!(told, wanted, "{signer} {usages:?}");
        }
        assert!(!is_known("example.com/own") && check("example.com/own", &node, &[]).is_err());
    }
}
