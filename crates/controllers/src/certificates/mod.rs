//! Certificates that are asked for through the API: approved for nodes, signed for those who were approved, and cleared
//! away. What is in a request is read, and signed, by `Settings::certificates`: the keys are elsewhere.
// Upstream: pkg/controller/certificates (v1.36)

pub(crate) mod approve;
pub(crate) mod clean;
mod rules;
pub(crate) mod sign;

use crate::objects::CertificateSigningRequest;
use crate::runtime::{Cache, Key, WorkQueue};

const ACCOUNT: &str = "certificate-controller";

/// Every request that has no certificate yet.
fn wake_for_requests(queue: &WorkQueue, requests: &Cache<CertificateSigningRequest>) {
    let wake = queue.clone();
    requests.on_change(move |_, new| {
        if let Some(request) = new.filter(|request| !request.is_issued()) {
            wake.add(Key::from_object(&**request));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::settings::{Certificates, MalformedRequest, RequestedIdentity, Settings, SigningError};
    use crate::testing::Cluster;

    /// Reads requests that say `common name|organisation`, and signs by writing down what it was asked.
    #[derive(Debug)]
    struct Readable;

    impl Certificates for Readable {
        fn read(&self, request: &str) -> Result<RequestedIdentity, MalformedRequest> {
            let (name, organisation) = request
                .split_once('|')
                .ok_or_else(|| MalformedRequest("no request".to_string()))?;
            Ok(RequestedIdentity {
                common_name: name.to_string(),
                organizations: vec![organisation.to_string()],
                ..RequestedIdentity::default()
            })
        }

        fn can_sign(&self) -> bool {
            true
        }

        fn sign(
            &self,
            request: &str,
            validated: &RequestedIdentity,
            usages: &[String],
            valid: Duration,
            _: Timestamp,
        ) -> Result<String, SigningError> {
            assert_eq!(self.read(request).as_ref(), Ok(validated));
            Ok(format!("{request} {} {}", usages.join(","), valid.as_secs()))
        }
    }

    fn request(name: &str, user: &str, content: &str, signer: &str) -> Value {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
               "spec": {"request": BASE64_STANDARD.encode(content), "signerName": signer, "username": user,
                        "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
                        "extra": {"k": ["v"]}}})
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_may_ask_get_their_certificate() {
        let cluster = Cluster::new();
        cluster.hook(|call, _| {
            let asked = call
                .path
                .ends_with("/subjectaccessreviews")
                .then(|| call.body.clone())?;
            let attributes = &asked["spec"]["resourceAttributes"];
            let allowed = asked["spec"]["user"] == "boot" && attributes["subresource"] == "nodeclient"
                || asked["spec"]["user"] == "system:node:a" && attributes["subresource"] == "selfnodeclient";
            Some(Ok(json!({"metadata": {}, "status": {"allowed": allowed}})))
        });
        let client = "kubernetes.io/kube-apiserver-client-kubelet";
        for (name, user, content, signer) in [
            ("self", "system:node:a", "system:node:a|system:nodes", client),
            ("boot", "boot", "system:node:b|system:nodes", client),
            ("other", "mallory", "system:node:b|system:nodes", client),
            ("admin", "boot", "root|system:masters", client),
            ("unknown", "boot", "system:node:b|system:nodes", "example.com/signer"),
        ] {
            cluster.put(request(name, user, content, signer));
        }
        let mut approved = request("user", "u", "u|g", "kubernetes.io/kube-apiserver-client");
        approved["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        cluster.put(approved.clone());
        let mut wrong = approved.clone();
        wrong["metadata"]["name"] = json!("wrong");
        wrong["spec"]["usages"] = json!(["server auth"]);
        cluster.put(wrong);
        let mut unreadable = approved.clone();
        unreadable["metadata"]["name"] = json!("unreadable");
        unreadable["spec"]["request"] = json!(BASE64_STANDARD.encode("hidden"));
        cluster.put(unreadable);
        let settings = Settings {
            certificates: Some(Arc::new(Readable)),
            ..Settings::default()
        };
        cluster.run_with(&[&approve::DEF, &sign::DEF], settings);
        cluster.advance(Duration::from_secs(5)).await;
        let outcome = |name: &str| {
            let request = cluster.value::<CertificateSigningRequest>("", name).unwrap();
            let certificate = request["status"]["certificate"].as_str().unwrap_or_default();
            let certificate = String::from_utf8(BASE64_STANDARD.decode(certificate).unwrap()).unwrap();
            let condition = &request["status"]["conditions"][0];
            let reason = condition["reason"].as_str().unwrap_or_default().to_string();
            (
                condition["type"].as_str().unwrap_or_default().to_string(),
                reason,
                certificate,
            )
        };
        let result = |a: &str, b: &str, c: &str| (a.to_string(), b.to_string(), c.to_string());
        let issued = "system:node:a|system:nodes digital signature,client auth 3600";
        assert_eq!(outcome("self"), result("Approved", "AutoApproved", issued));
        assert_eq!(outcome("boot").0, "Approved");
        assert!(outcome("boot").2.starts_with("system:node:b"));
        for nothing in ["other", "admin", "unknown"] {
            assert_eq!(outcome(nothing), result("", "", ""), "{nothing}");
        }
        assert_eq!(outcome("user").2, "u|g digital signature,client auth 3600");
        assert_eq!(outcome("wrong").2, "");
        let wrong = cluster.get::<CertificateSigningRequest>("", "wrong").unwrap();
        let unreadable = cluster.get::<CertificateSigningRequest>("", "unreadable").unwrap();
        assert!(unreadable.has("Failed") && !unreadable.is_issued());
        assert!(wrong.has("Failed") && wrong.spec.extra == json!({"k": ["v"]}));
    }
}
