//! The answers to TokenRequest (`serviceaccounts/token`) and TokenReview.
//! Upstream: pkg/registry/core/serviceaccount/storage/token.go, pkg/registry/authentication/tokenreview (v1.36).

use jiff::Timestamp;
use orlop_api::{Cursor, Problems, Status};
use orlop_base::clock::{Shift, rfc3339};
use serde_json::{Value, json};

use super::service_account::YEAR_SECONDS;
use super::{Authenticator, Bound, BoundObject, ServiceAccountRef, TokenIssuer};
use crate::lookup::{ObjectLookup, strings, text};

const GROUP: &str = "authentication.k8s.io";
/// Pods ask for tokens of this odd lifetime when nobody chose one. They get a year and are only counted as stale
/// afterwards, for clients that read their token once.
const UNCHOSEN_SECONDS: i64 = 3607;

/// What a TokenRequest is answered with.
#[derive(Debug)]
pub struct IssuedToken {
    /// The request with its status filled in.
    pub request: Value,
    pub warnings: Vec<String>,
    /// For the audit log: `JTI=…`.
    pub credential_id: String,
}

impl TokenIssuer {
    /// Answers a TokenRequest (decoded and defaulted) for the named service account.
    pub fn answer_request(
        &self,
        namespace: &str,
        name: &str,
        mut request: Value,
        now: Timestamp,
        lookup: &dyn ObjectLookup,
    ) -> Result<IssuedToken, Status> {
        check_names(&request, namespace, name)?;
        let account = lookup.get("serviceaccounts", namespace, name);
        let account = account.ok_or_else(|| Status::not_found("", "serviceaccounts", name))?;
        let uid = text(&account, &["metadata", "uid"]);
        self.complete(&mut request, namespace, name, uid, now)?;
        let bound = bound_object(&request, namespace, name, lookup)?;

        let mut warnings = Vec::new();
        let mut seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
        let most = self.max_expiration_seconds().unwrap_or(YEAR_SECONDS);
        if seconds > most {
            warnings.push(format!(
                "requested expiration of {seconds} seconds shortened to {most} seconds"
            ));
            seconds = most;
            request["spec"]["expirationSeconds"] = json!(seconds);
        }
        let audiences = strings(request["spec"].get("audiences"));
        let for_us = audiences.iter().all(|audience| self.api_audiences().contains(audience));
        let unchosen = seconds == UNCHOSEN_SECONDS && for_us && matches!(bound, Some(BoundObject::Pod { .. }));
        let (lifetime, warn_after) = if unchosen {
            (YEAR_SECONDS, Some(seconds))
        } else {
            (seconds, None)
        };
        let account = ServiceAccountRef { namespace, name, uid };
        let (token, _, id) = self
            .issue_with_warning(account, &audiences, lifetime, warn_after, bound, now)
            .map_err(|error| Status::internal(error.to_string()))?;
        let expires = now.later_by_seconds(seconds);
        request["status"] = json!({"token": token, "expirationTimestamp": rfc3339(expires)});
        Ok(IssuedToken {
            request,
            warnings,
            credential_id: format!("JTI={id}"),
        })
    }

    /// Fills in what the request left open, and validates the result.
    fn complete(
        &self,
        request: &mut Value,
        namespace: &str,
        name: &str,
        uid: &str,
        now: Timestamp,
    ) -> Result<(), Status> {
        let asked = text(request, &["metadata", "uid"]);
        if !asked.is_empty() && asked != uid {
            let why =
                format!("the UID in the token request ({asked}) does not match the UID of the service account ({uid})");
            return Err(Status::conflict(GROUP, "TokenRequest", name, why));
        }
        if strings(request["spec"].get("audiences")).is_empty() {
            request["spec"]["audiences"] = json!(self.api_audiences());
        }
        let metadata = &mut request["metadata"];
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(namespace);
        metadata["uid"] = json!(uid);
        metadata["creationTimestamp"] = json!(rfc3339(now));
        let mut problems = Problems::default();
        orlop_api::authentication::validate_token_request(&Cursor::root(request), &mut problems);
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid(GROUP, "TokenRequest", "", &problems)),
        }
    }
}

/// Name and namespace may be left out of the body, but not differ from the path.
fn check_names(request: &Value, namespace: &str, name: &str) -> Result<(), Status> {
    let root = Cursor::root(request);
    let metadata = root.at("metadata");
    for (field, wanted) in [("name", name), ("namespace", namespace)] {
        let given = metadata.at(field);
        if !matches!(given.str(), "") && given.str() != wanted {
            let mut problems = Problems::default();
            problems.invalid(&given, format!("must match the service account {field} if specified"));
            return Err(Status::invalid(GROUP, "TokenRequest", name, &problems));
        }
    }
    Ok(())
}

/// The object that the request binds the token to, as it is now.
fn bound_object(
    request: &Value,
    namespace: &str,
    account: &str,
    lookup: &dyn ObjectLookup,
) -> Result<Option<BoundObject>, Status> {
    let Some(reference) = request["spec"].get("boundObjectRef").filter(|r| !r.is_null()) else {
        return Ok(None);
    };
    let part = |name| text(reference, &[name]);
    let (name, kind) = (part("name"), part("kind"));
    let (group, version) = part("apiVersion").split_once('/').unwrap_or(("", part("apiVersion")));
    let (resource, namespace) = match (group, kind) {
        ("", "Pod") => ("pods", namespace),
        ("", "Secret") => ("secrets", namespace),
        ("", "Node") => ("nodes", ""),
        _ => {
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(message));
        }
    };
    let object = lookup.get(resource, namespace, name);
    let object = object.ok_or_else(|| Status::not_found("", resource, name))?;
    if kind == "Pod" && text(&object, &["spec", "serviceAccountName"]) != account {
        let message = format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        );
        return Err(Status::bad_request(message));
    }
    let bound = Bound {
        name: name.into(),
        uid: text(&object, &["metadata", "uid"]).into(),
    };
    if !part("uid").is_empty() && part("uid") != bound.uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            part("uid")
        );
        return Err(Status::conflict("", kind, name, why));
    }
    Ok(Some(match kind {
        "Pod" => BoundObject::Pod {
            object: bound,
            node: node_of(&object, lookup),
        },
        "Secret" => BoundObject::Secret(bound),
        _ => BoundObject::Node(bound),
    }))
}

/// The node a pod is on; without its UID if it is unknown.
fn node_of(pod: &Value, lookup: &dyn ObjectLookup) -> Option<Bound> {
    let name = text(pod, &["spec", "nodeName"]);
    let uid = |node: &Value| text(node, &["metadata", "uid"]).to_string();
    (!name.is_empty()).then(|| Bound {
        name: name.into(),
        uid: lookup.get("nodes", "", name).map(|node| uid(&node)).unwrap_or_default(),
    })
}

impl Authenticator {
    /// The status of a TokenReview.
    pub async fn token_review(&self, spec: &Value, now: Timestamp, lookup: &dyn ObjectLookup) -> Result<Value, Status> {
        let token = text(spec, &["token"]);
        if token.is_empty() {
            return Err(Status::bad_request(orlop_api::authentication::NO_TOKEN));
        }
        let mut audiences = strings(spec.get("audiences"));
        if audiences.is_empty() {
            audiences = self.issuer().api_audiences().to_vec();
        }
        Ok(match self.authenticate_token(token, &audiences, now, lookup).await {
            Ok(found) => {
                json!({"authenticated": true, "user": found.user.to_value(), "audiences": found.audiences})
            }
            Err(error) => json!({"user": {}, "error": error.to_string()}),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;
    use crate::authn::DEFAULT_ISSUER;
    use crate::authn::service_account::tests::issuer;
    use crate::lookup::fixture::Objects;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn cluster() -> Objects {
        let object = |namespace: &str, name: &str, uid: &str, spec: Value| json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}, "spec": spec});
        Objects::default()
            .with("serviceaccounts", object("ns", "robot", "u-1", json!({})))
            .with(
                "pods",
                object(
                    "ns",
                    "web",
                    "p-1",
                    json!({"serviceAccountName": "robot", "nodeName": "n1"}),
                ),
            )
            .with(
                "pods",
                object("ns", "other", "p-2", json!({"serviceAccountName": "default"})),
            )
            .with("secrets", object("ns", "s", "s-1", json!({})))
            .with("nodes", object("", "n1", "n-1", json!({})))
    }

    #[test]
    fn token_requests() {
        let reference = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "name": name});
        let with_uid = |mut reference: Value| {
            reference["uid"] = json!("x");
            reference
        };
        // metadata, bound to, expected extra of the user or status code and message
        let node = ("authentication.kubernetes.io/node-name", "n1");
        type Expected<'a> = Result<Vec<(&'a str, &'a str)>, (u16, &'a str)>;
        let cases: Vec<(Value, Value, Expected<'_>)> = vec![
            (json!({}), Value::Null, Ok(vec![])),
            (
                json!({"name": "robot", "namespace": "ns", "uid": "u-1"}),
                Value::Null,
                Ok(vec![]),
            ),
            (
                json!({}),
                reference("Pod", "web"),
                Ok(vec![("authentication.kubernetes.io/pod-name", "web"), node]),
            ),
            (json!({}), reference("Node", "n1"), Ok(vec![node])),
            (json!({}), reference("Secret", "s"), Ok(vec![])),
            (
                json!({"name": "x"}),
                Value::Null,
                Err((422, "must match the service account name if specified")),
            ),
            (
                json!({"namespace": "x"}),
                Value::Null,
                Err((422, "must match the service account namespace if specified")),
            ),
            (
                json!({"uid": "x"}),
                Value::Null,
                Err((409, "does not match the UID of the service account (u-1)")),
            ),
            (
                json!({}),
                reference("Pod", "gone"),
                Err((404, "pods \"gone\" not found")),
            ),
            (
                json!({}),
                reference("Pod", "other"),
                Err((400, "to pod running with different serviceaccount name.")),
            ),
            (
                json!({}),
                with_uid(reference("Secret", "s")),
                Err((409, "might have been deleted and then recreated")),
            ),
            (
                json!({}),
                reference("ConfigMap", "c"),
                Err((400, "cannot bind token to object of type /v1, Kind=ConfigMap")),
            ),
        ];
        let (objects, authenticator) = (cluster(), Authenticator::new(Arc::new(issuer())));
        for (metadata, bound, expected) in cases {
            let what = format!("{metadata} {bound}");
            let mut request = json!({"metadata": metadata, "spec": {"expirationSeconds": 3600}});
            if !bound.is_null() {
                request["spec"]["boundObjectRef"] = bound;
            }
            match (
                authenticator
                    .issuer()
                    .answer_request("ns", "robot", request, at(0), &objects),
                expected,
            ) {
                (Ok(issued), Ok(extra)) => {
                    let status = &issued.request["status"];
                    assert_eq!(status["expirationTimestamp"], rfc3339(at(3600)), "{what}");
                    assert_eq!(issued.request["metadata"]["uid"], "u-1");
                    let token = status["token"].as_str().unwrap();
                    let audiences = [DEFAULT_ISSUER.to_string()];
                    let found = authenticator.authenticate_token(token, &audiences, at(1), &objects);
                    let user = found.now_or_never().expect("nobody is asked").unwrap().user;
                    assert_eq!(
                        user.extra["authentication.kubernetes.io/credential-id"],
                        [issued.credential_id]
                    );
                    for (key, value) in extra {
                        assert_eq!(user.extra[key], [value], "{what}");
                    }
                }
                (Err(status), Err((code, message))) => {
                    assert_eq!(status.code, code, "{what}: {status}");
                    assert!(status.message.contains(message), "{what}: {status}");
                }
                (Ok(issued), Err(_)) => panic!("{what}: {issued:?}"),
                (Err(status), Ok(_)) => panic!("{what}: {status}"),
            }
        }
        let gone = authenticator
            .issuer()
            .answer_request("ns", "gone", json!({"spec": {}}), at(0), &objects);
        assert_eq!(gone.unwrap_err().message, "serviceaccounts \"gone\" not found");
    }

    #[test]
    fn lifetimes() {
        let (objects, issuer) = (cluster(), issuer());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "web"});
        // seconds, bound, audiences: status expires after, token expires after, warns
        let year = YEAR_SECONDS;
        let cases = [
            (3600, pod.clone(), json!([]), Some((3600, 3600, None))),
            (3607, pod.clone(), json!([]), Some((3607, year, Some(3607)))),
            (3607, pod, json!(["else"]), Some((3607, 3607, None))),
            (3607, Value::Null, json!([]), Some((3607, 3607, None))),
            (year + 1, Value::Null, json!([]), Some((year, year, None))),
            (599, Value::Null, json!([]), None),
            ((1 << 32) + 1, Value::Null, json!([]), None),
        ];
        for (seconds, bound, audiences, expected) in cases {
            let request =
                json!({"spec": {"expirationSeconds": seconds, "boundObjectRef": bound, "audiences": audiences}});
            let answer = issuer.answer_request("ns", "robot", request, at(0), &objects);
            let found = answer.ok().map(|issued| {
                use base64::Engine;
                let status = &issued.request["status"];
                let payload = status["token"].as_str().unwrap().split('.').nth(1).unwrap().to_string();
                let claims = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap();
                let claims: Value = serde_json::from_slice(&claims).unwrap();
                let since = |value: &Value| value.as_i64().map(|second| second - at(0).as_second());
                let shown: Timestamp = status["expirationTimestamp"].as_str().unwrap().parse().unwrap();
                assert_eq!(issued.warnings.len(), usize::from(seconds > year));
                let warns = since(&claims["kubernetes.io"]["warnafter"]);
                (
                    shown.as_second() - at(0).as_second(),
                    since(&claims["exp"]).unwrap(),
                    warns,
                )
            });
            assert_eq!(found, expected, "{seconds} {audiences}");
        }
    }

    #[test]
    fn lifetimes_have_a_limit_where_one_is_set() {
        let hour = std::time::Duration::from_secs(3600);
        let issuer = issuer().with_max_expiration(Some(hour));
        for (seconds, expected) in [(600, 600), (3600, 3600), (86_400, 3600)] {
            let request = json!({"spec": {"expirationSeconds": seconds}});
            let issued = issuer
                .answer_request("ns", "robot", request, at(0), &cluster())
                .unwrap();
            assert_eq!(issued.request["spec"]["expirationSeconds"], expected);
            let shortened = format!("requested expiration of {seconds} seconds shortened to 3600 seconds");
            let warned = (seconds > 3600).then_some(shortened);
            assert_eq!(issued.warnings, Vec::from_iter(warned));
        }
    }

    #[test]
    fn token_reviews() {
        let (objects, authenticator) = (cluster(), Authenticator::new(Arc::new(issuer())));
        let request = json!({"spec": {"expirationSeconds": 600, "audiences": ["a", "b"]}});
        let issued = authenticator
            .issuer()
            .answer_request("ns", "robot", request, at(0), &objects)
            .unwrap();
        let token = issued.request["status"]["token"].clone();
        let review = |spec: Value| {
            let reviewed = authenticator.token_review(&spec, at(1), &objects);
            reviewed.now_or_never().expect("nobody is asked")
        };
        let good = review(json!({"token": token, "audiences": ["b", "c"]})).unwrap();
        assert_eq!(
            (&good["authenticated"], &good["audiences"]),
            (&json!(true), &json!(["b"]))
        );
        assert_eq!(good["user"]["username"], "system:serviceaccount:ns:robot");
        let bad = review(json!({"token": token})).unwrap();
        assert_eq!(bad.get("authenticated"), None);
        assert!(
            bad["error"]
                .as_str()
                .unwrap()
                .contains("is invalid for the target audiences")
        );
        assert_eq!(
            review(json!({"token": "rubbish"})).unwrap(),
            json!({"user": {}, "error": "invalid bearer token"})
        );
        assert_eq!(review(json!({})).unwrap_err().code, 400);
    }
}
