//! Policies over a cluster in memory: what they refuse, say and change.

use futures::FutureExt;
use orlop_api::Status;
use serde_json::json;

use super::super::fixture::{Desk, told, with};
use super::super::{Operation, dynamic};
use super::*;

const POLICIES: &str = VALIDATING[0];
const BINDINGS: &str = VALIDATING[1];

fn rules(resource: &str) -> Value {
    json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource], "scope": "*"}]})
}

fn policy(spec: Value) -> Value {
    let base = json!({"failurePolicy": "Fail", "matchConstraints": rules("configmaps")});
    json!({"metadata": {"name": "p"}, "spec": with(base, spec)})
}

fn binding(spec: Value) -> Value {
    let base = json!({"policyName": "p", "validationActions": ["Deny"]});
    json!({"metadata": {"name": "b"}, "spec": with(base, spec)})
}

fn map() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "ns"}, "data": {"k": "v"}})
}

/// Lets the policies that are compiled from the desk's objects review the creation of an object.
fn review_create(review: &Review<'_>, object: &Value) -> Result<(), Status> {
    let policies = compile(review.lookup, VALIDATING, &[]);
    let reviewed = validate(review, &policies, Some(object), None).now_or_never();
    reviewed.expect("without a conversion webhook nothing is waited for")
}

/// What comes of creating that map under one policy and binding, and the warnings.
fn created(desk: Desk, spec: Value, bound: Value) -> (String, Vec<String>) {
    let desk = desk.with(POLICIES, policy(spec)).with(BINDINGS, binding(bound));
    let object = map();
    let review = desk.review(Operation::Create, "configmaps", &object);
    let result = review_create(&review, &object);
    let code = result.as_ref().err().map_or(0, |status| status.code);
    let told = told(result);
    let short = told
        .strip_prefix("configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ");
    (
        short.map_or(told.clone(), |why| format!("{code} {why}")),
        desk.warnings(),
    )
}

fn decided(spec: Value) -> String {
    created(Desk::new(), spec, json!({})).0
}

fn validations(expression: &str) -> Value {
    json!({"validations": [{"expression": expression}]})
}

#[test]
fn validations_hold_or_refuse() {
    for (spec, expected) in [
        (validations("object.data.k == 'v'"), "ok"),
        (
            validations("object.data.k == 'w'"),
            "422 failed expression: object.data.k == 'w'",
        ),
        (validations("oldObject == null && request.operation == 'CREATE'"), "ok"),
        (
            validations("request.userInfo.username == 'admin' && namespaceObject.metadata.name == 'ns'"),
            "ok",
        ),
        (
            json!({"validations": [{"expression": "false", "message": " no ", "reason": "Forbidden"}]}),
            "403 no",
        ),
        (
            json!({"validations": [{"expression": "false", "message": "no", "messageExpression": "'k is ' + object.data.k"}]}),
            "422 k is v",
        ),
        (
            json!({"validations": [{"expression": "false", "message": "no", "messageExpression": "object.data.gone"}]}),
            "422 no",
        ),
        (
            validations("object.data.gone == 'x'"),
            "422 expression 'object.data.gone == 'x'' resulted in error: no such key: gone",
        ),
        (
            json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.data.gone == 'x'"}]}),
            "ok",
        ),
        (
            json!({"variables": [{"name": "a", "expression": "object.data.k"}, {"name": "b", "expression": "variables.a + 'x'"}],
                "validations": [{"expression": "variables.b == 'vx'"}]}),
            "ok",
        ),
        (
            json!({"matchConditions": [{"name": "c", "expression": "object.data.k == 'w'"}], "validations": [{"expression": "false"}]}),
            "ok",
        ),
        (
            json!({"matchConditions": [{"name": "c", "expression": "object.gone == 1"}], "validations": [{"expression": "true"}]}),
            "422 expression 'object.gone == 1' resulted in error: no such key: gone",
        ),
        (
            json!({"matchConstraints": rules("secrets"), "validations": [{"expression": "false"}]}),
            "ok",
        ),
        (
            validations("authorizer.group('').resource('pods').check('get').allowed()"),
            "ok",
        ),
        (
            validations("authorizer.requestResource.check('create').allowed()"),
            "ok",
        ),
        (
            validations("authorizer.serviceAccount('ns', 'x').group('').resource('pods').check('get').allowed()"),
            "422 failed expression: authorizer.serviceAccount('ns', 'x').group('').resource('pods').check('get').allowed()",
        ),
    ] {
        assert_eq!(decided(spec.clone()), expected, "{spec}");
    }
}

#[test]
fn bindings_say_what_to_do() {
    let spec = || validations("false");
    let (told, warnings) = created(Desk::new(), spec(), json!({"validationActions": ["Warn", "Audit"]}));
    assert_eq!(told, "ok");
    assert_eq!(
        warnings,
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: false"]
    );
    let elsewhere = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}, "objectSelector": {}}});
    assert_eq!(created(Desk::new(), spec(), elsewhere).0, "ok");
    let other = json!({"policyName": "other"});
    assert_eq!(created(Desk::new(), spec(), other).0, "ok");
}

#[test]
fn audit_annotations_are_published() {
    let desk = Desk::new()
        .with(
            POLICIES,
            policy(
                json!({"auditAnnotations": [{"key": "a", "valueExpression": "'k: ' + object.data.k"},
                {"key": "b", "valueExpression": "null"}]}),
            ),
        )
        .with(BINDINGS, binding(json!({})));
    let object = map();
    let review = desk.review(Operation::Create, "configmaps", &object);
    review_create(&review, &object).unwrap();
    let annotations = review.warnings.take_annotations();
    assert_eq!(
        annotations.into_iter().collect::<Vec<_>>(),
        [("p/a".to_string(), "k: v".to_string())]
    );
}

#[test]
fn parameters_are_found() {
    let param = |name: &str, max: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "ns", "labels": {"for": "p"}}, "data": {"want": max}})
    };
    let desk = || {
        Desk::new()
            .with("configmaps", param("x", "v"))
            .with("configmaps", param("y", "w"))
    };
    let spec = || {
        json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "validations": [{"expression": "params != null && object.data.k == params.data.want"}]})
    };
    let failed = "422 failed expression: params != null && object.data.k == params.data.want";
    for (reference, expected) in [
        (json!({"name": "x"}), "ok"),
        (json!({"name": "y"}), failed),
        (json!({"selector": {"matchLabels": {"for": "p"}}}), failed),
        (
            json!({"selector": {"matchLabels": {"for": "q"}}, "parameterNotFoundAction": "Allow"}),
            "ok",
        ),
        (
            json!({"name": "gone", "parameterNotFoundAction": "Deny"}),
            "422 failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
        ),
        (
            json!({"name": "x", "namespace": "elsewhere", "parameterNotFoundAction": "Allow"}),
            "ok",
        ),
    ] {
        assert_eq!(
            created(desk(), spec(), json!({"paramRef": reference})).0,
            expected,
            "{reference}"
        );
    }
    assert_eq!(
        created(desk(), spec(), json!({})).0,
        failed,
        "without a reference they are null"
    );
    let unknown = with(spec(), json!({"paramKind": {"apiVersion": "a.b/v1", "kind": "Gone"}}));
    assert_eq!(
        created(desk(), unknown, json!({"paramRef": {"name": "x"}})).0,
        "configmaps \"m\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'a.b/v1, Kind=Gone'"
    );
}

async fn mutated(desk: Desk, mut object: Value) -> Result<Value, Status> {
    let what = if object["kind"] == "Pod" { "pods" } else { "configmaps" };
    let review_of = object.clone();
    let review = desk.review(Operation::Create, what, &review_of);
    dynamic::mutate(&review, Some(&mut object), None, |_| Ok(())).await?;
    Ok(object)
}

fn mutating(desk: Desk, name: &str, spec: Value) -> Desk {
    let mut policy = policy(spec);
    policy["metadata"]["name"] = name.into();
    let mut bound = binding(json!({"policyName": name}));
    bound["metadata"]["name"] = name.into();
    desk.with(MUTATING[0], policy).with(MUTATING[1], bound)
}

fn apply(expression: &str) -> Value {
    json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}])
}

fn json_patch(expression: &str) -> Value {
    json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}])
}

#[tokio::test]
async fn mutations_change_the_object() {
    let labels = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}";
    let made = mutated(mutating(Desk::new(), "p", json!({"mutations": apply(labels)})), map()).await;
    assert_eq!(made.unwrap()["metadata"]["labels"], json!({"a": "b"}));
    let add = r#"[JSONPatch{op: "add", path: "/data/" + jsonpatch.escapeKey("x/y"), value: "z"}]"#;
    let made = mutated(mutating(Desk::new(), "p", json!({"mutations": json_patch(add)})), map()).await;
    assert_eq!(made.unwrap()["data"], json!({"k": "v", "x/y": "z"}));
    let tested =
        r#"[JSONPatch{op: "test", path: "/data/k", value: "w"}, JSONPatch{op: "add", path: "/data/x", value: "y"}]"#;
    let made = mutated(
        mutating(Desk::new(), "p", json!({"mutations": json_patch(tested)})),
        map(),
    )
    .await;
    assert_eq!(made.unwrap()["data"], json!({"k": "v"}), "a failed test is no error");
}

#[tokio::test]
async fn mutations_that_fail_refuse_the_request() {
    let pod = || {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q", "namespace": "ns"},
        "spec": {"containers": [{"name": "c"}]}})
    };
    let for_pods = |mutations: Value| json!({"matchConstraints": rules("pods"), "mutations": mutations});
    let refused = |mutations: Value| mutated(mutating(Desk::new(), "p", for_pods(mutations)), pod());
    let told = |result: Result<Value, Status>| result.unwrap_err().message;
    let atomic = r#"Object{spec: Object.spec{nodeSelector: {"a": "b"}}}"#;
    assert_eq!(
        told(refused(apply(atomic)).await),
        "policy 'p' with binding 'p' denied request: error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.nodeSelector"
    );
    assert_eq!(
        told(
            refused(json_patch(
                r#"[JSONPatch{op: "add", path: "/spec/x/y", value: object.gone}]"#
            ))
            .await
        ),
        "policy 'p' with binding 'p' denied request: expression '[JSONPatch{op: \"add\", path: \"/spec/x/y\", value: object.gone}]' resulted in error: no such key: gone"
    );
    assert!(
        told(refused(json_patch(r#"[JSONPatch{op: "remove", path: "/spec/x/y"}]"#)).await).contains("JSON Patch: ")
    );
    let container = r#"Object{spec: Object.spec{containers: [Object.spec.containers{name: "c", image: "i"}]}}"#;
    let made = refused(apply(container)).await.unwrap();
    assert_eq!(made["spec"]["containers"][0]["image"], "i");
    assert_eq!(
        made["spec"]["containers"][0]["imagePullPolicy"], "Always",
        "defaulted again"
    );
    let fails_open = with(for_pods(apply(atomic)), json!({"failurePolicy": "Ignore"}));
    assert!(mutated(mutating(Desk::new(), "p", fails_open), pod()).await.is_ok());
}

#[tokio::test]
async fn policies_are_asked_again() {
    let counts = r#"[JSONPatch{op: "add", path: "/data/seen", value: string(size(object.data))}]"#;
    let desk = |again: &str| {
        let first = json!({"reinvocationPolicy": again, "mutations": json_patch(counts)});
        let add = r#"[JSONPatch{op: "add", path: "/data/later", value: "x"}]"#;
        let desk = mutating(Desk::new(), "a", first);
        mutating(desk, "b", json!({"mutations": json_patch(add)}))
    };
    assert_eq!(mutated(desk("IfNeeded"), map()).await.unwrap()["data"]["seen"], "3");
    assert_eq!(mutated(desk("Never"), map()).await.unwrap()["data"]["seen"], "1");
}

#[test]
fn expressions_that_do_not_compile_are_refused() {
    let problems = |object: &Value| {
        let mut problems = orlop_api::Problems::default();
        let rules = &super::super::expressions::VALIDATING_POLICIES;
        (rules.validate_create)(&orlop_api::Cursor::root(object), &mut problems);
        problems.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let object = policy(json!({"variables": [{"name": "a", "expression": "1"}],
        "validations": [{"expression": "variables.a == 1"}, {"expression": "variables.a == 'x'"}, {"expression": "object.x"},
            {"expression": "true", "messageExpression": "1 + 1"}, {"expression": "params.x == 1"}]}));
    let found = problems(&object);
    let expected = [
        "spec.validations[1].expression: Invalid value: \"variables.a == 'x'\": compilation failed: ERROR: <input>:1:13: found no matching overload for '_==_' applied to '(int, string)'",
        "spec.validations[2].expression: Invalid value: \"object.x\": must evaluate to bool",
        "spec.validations[3].messageExpression: Invalid value: \"1 + 1\": must evaluate to string but got int",
        "spec.validations[4].expression: Invalid value: \"params.x == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn only_what_has_changed_is_compiled_again() {
    let versioned = |revision: &str| {
        let mut policy = policy(validations("true"));
        policy["metadata"]["uid"] = "u".into();
        policy["metadata"]["resourceVersion"] = revision.into();
        policy
    };
    let desk = Desk::new()
        .with(POLICIES, versioned("1"))
        .with(BINDINGS, binding(json!({})));
    let first = compile(&desk.objects, VALIDATING, &[]);
    let second = compile(&desk.objects, VALIDATING, &first);
    assert!(Arc::ptr_eq(&first[0].definition, &second[0].definition));
    desk.objects.put(POLICIES, versioned("2"));
    let third = compile(&desk.objects, VALIDATING, &second);
    assert!(!Arc::ptr_eq(&second[0].definition, &third[0].definition));
}
