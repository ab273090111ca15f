//! What is sent, what may be answered, and what is made of it.

use serde_json::json;

use super::super::fixture::{Desk, told};
use super::super::shown::{Form, put_back, shown};
use super::super::{Operation, conditions};
use super::exchange::{Answer, AnswerError, denial, read, request};
use super::*;
use crate::kinds;

const UID: &str = "u";

fn answer(response: Value) -> Vec<u8> {
    let mut response = response;
    if response.is_object() && response.get("uid").is_none() {
        response["uid"] = UID.into();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
        .to_string()
        .into_bytes()
}

/// What a webhook that wants to see `kind` is sent.
async fn sent(review: &Review<'_>, kind: &'static KindDef, object: Option<&Value>, old: Option<&Value>) -> Value {
    let form = Form::new(review, kind, object, old).await.unwrap();
    serde_json::from_slice(&request(review, ReviewVersion::V1, UID, kind, &form)).unwrap()
}

#[tokio::test]
async fn a_webhook_is_sent_the_request() {
    let desk = Desk::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}});
    let mut review = desk.review(Operation::Create, "pods", &pod);
    review.dry_run = true;
    let sent = sent(&review, review.kind, Some(&pod), None).await;
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    assert_eq!(
        sent,
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
            "uid": UID, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "p", "namespace": "ns", "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": pod, "oldObject": null, "dryRun": true,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]}}})
    );
}

#[tokio::test]
async fn subresources_and_other_versions_are_shown_as_what_they_are() {
    let desk = Desk::new();
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ns"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}});
    let review = desk.review(Operation::Update, "deployments.apps/scale", &deployment);
    let sent = sent(&review, review.kind, Some(&deployment), Some(&deployment)).await;
    let sent = &sent["request"];
    assert_eq!(
        sent["kind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    assert_eq!(
        sent["resource"],
        json!({"group": "apps", "version": "v1", "resource": "deployments"})
    );
    assert_eq!(
        (&sent["subResource"], &sent["requestSubResource"]),
        (&json!("scale"), &json!("scale"))
    );
    assert_eq!(sent["object"]["spec"], json!({"replicas": 3}));
    assert_eq!(sent["oldObject"]["kind"], "Scale");
    let mut made = shown(&review, review.kind, &deployment).await.unwrap().into_owned();
    made["spec"]["replicas"] = 5.into();
    let mut object = deployment.clone();
    assert!(put_back(&review, review.kind, made, &mut object).await.unwrap());
    assert_eq!(object["spec"]["replicas"], 5);
    assert_eq!(object["kind"], "Deployment");

    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ns"}, "message": "m",
        "involvedObject": {"kind": "Pod"}, "count": 2});
    let review = Review {
        kind: kinds::of_resource("", "v1", "events").unwrap(),
        ..desk.review(Operation::Create, "pods", &event)
    };
    let other = kinds::of_resource("events.k8s.io", "v1", "events").unwrap();
    let seen = shown(&review, other, &event).await.unwrap().into_owned();
    assert_eq!(
        (&seen["apiVersion"], &seen["note"]),
        (&json!("events.k8s.io/v1"), &json!("m"))
    );
    let mut made = seen;
    made["note"] = "n".into();
    let mut object = event.clone();
    assert!(put_back(&review, other, made, &mut object).await.unwrap());
    assert_eq!((&object["apiVersion"], &object["message"]), (&json!("v1"), &json!("n")));
}

#[test]
fn answers_are_checked() {
    let patch = "W10="; // []
    let ok = |response: Value, mutating| read(&answer(response), ReviewVersion::V1, UID, mutating);
    let allowed = ok(
        json!({"allowed": true, "warnings": ["w"], "auditAnnotations": {"k": "v"}}),
        false,
    );
    let expected = Answer {
        allowed: true,
        status: Value::Null,
        patch: None,
        warnings: vec!["w".into()],
        audit_annotations: [("k".to_string(), "v".to_string())].into(),
    };
    assert_eq!(allowed, Ok(expected));
    let patched = ok(json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"}), true);
    assert_eq!(patched.unwrap().patch.as_deref(), Some(&b"[]"[..]));
    let invalid = |why: &str| AnswerError::Invalid(why.into());
    for (response, mutating, why) in [
        (json!(null), true, invalid("webhook response was absent")),
        (
            json!({"uid": "x"}),
            true,
            invalid(r#"expected response.uid="u", got "x""#),
        ),
        (
            json!({"patch": patch, "patchType": "JSONPatch"}),
            false,
            invalid("validating webhook may not return response.patch"),
        ),
        (
            json!({"patchType": "JSONPatch"}),
            false,
            invalid("validating webhook may not return response.patchType"),
        ),
        (
            json!({"patch": patch}),
            true,
            invalid("webhook returned response.patch but not response.patchType"),
        ),
        (
            json!({"patchType": "JSONPatch"}),
            true,
            invalid("webhook returned response.patchType but not response.patch"),
        ),
        (
            json!({"patch": patch, "patchType": "Merge"}),
            true,
            AnswerError::PatchType("Merge".into()),
        ),
    ] {
        assert_eq!(ok(response, mutating), Err(why));
    }
    let other = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "response": {"uid": UID}});
    assert_eq!(
        read(other.to_string().as_bytes(), ReviewVersion::V1, UID, false)
            .unwrap_err()
            .to_string(),
        "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview"
    );
    for (body, part) in [
        ("", "0-length response"),
        ("<html>", "json parse error"),
        ("{}", "Object 'Kind' is missing in '{}'"),
        (
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"allowed":"yes"}}"#,
            "cannot unmarshal string",
        ),
    ] {
        let refused = read(body.as_bytes(), ReviewVersion::V1, UID, false)
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("failed to call webhook: ") && refused.contains(part),
            "{refused}"
        );
    }
}

#[test]
fn refusals_are_told_in_the_words_of_the_webhook() {
    let told = |given: Value| {
        let status = denial("a.b.c", given);
        (status.code, status.reason.to_string(), status.message)
    };
    let message = |rest: &str| format!("admission webhook \"a.b.c\" denied the request{rest}");
    assert_eq!(told(Value::Null), (400, String::new(), message(" without explanation")));
    assert_eq!(
        told(json!({"reason": "my own"})),
        (400, "my own".into(), message(": my own"))
    );
    assert_eq!(
        told(json!({"code": 418, "message": "no", "reason": "Forbidden"})),
        (418, "Forbidden".into(), message(": no"))
    );
    assert_eq!(told(json!({"code": 200})).0, 400);
}

#[tokio::test]
async fn what_a_patch_makes_must_be_an_object_of_the_kind() {
    let desk = Desk::new();
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    let review = desk.review(Operation::Create, "pods", &pod);
    let made = async |change: fn(&mut Value)| {
        let (mut made, mut object) = (pod.clone(), pod.clone());
        change(&mut made);
        let changed = put_back(&review, review.kind, made, &mut object).await;
        changed.map(|changed| (changed, object))
    };
    let (changed, object) = made(|p| p["metadata"]["labels"] = json!({"a": "b"})).await.unwrap();
    assert!(changed);
    assert_eq!(
        object["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent",
        "defaulted again"
    );
    assert!(!made(|_| {}).await.unwrap().0);
    assert!(
        !made(|p| p["unknown"] = 1.into()).await.unwrap().0,
        "unknown fields are dropped"
    );
    assert!(told(made(|p| p["kind"] = "Node".into()).await).contains("kind is not Pod any more"));
    assert!(told(made(|p| *p = json!([])).await).contains("not v1 any more"));
    assert!(told(made(|p| p["spec"] = json!("text")).await).contains("cannot unmarshal string"));
}

#[test]
fn conditions_that_are_absent_hold() {
    let desk = Desk::new();
    let review = desk.review(Operation::Create, "pods", &json!({}));
    let none = conditions::Conditions::new(&[], false, false);
    let nothing = Form {
        object: None,
        old: None,
    };
    assert!(matches!(
        none.evaluate(&review, "w", Step::Admit, review.kind, &nothing),
        conditions::Matched::Yes
    ));
}
