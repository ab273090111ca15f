//! Webhooks and policies that ask for another version of a kind than the request's, where a webhook converts them.

use orlop_testkit::{Server, until};
use serde_json::{Value, json};

use crate::admission::{Hooks, MUTATING, VALIDATING, configure, message, remove, rule};
use crate::public_kinds::{convert, machine, machines};
use crate::webhook_server::WebhookServer;

const MACHINE_POLICIES: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: drain}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [cluster.example.net], apiVersions: [v1beta1], operations: [CREATE, UPDATE], resources: [machines]}
  paramKind: {apiVersion: cluster.example.net/v1beta2, kind: Machine}
  matchConditions: [{name: not-the-param, expression: "object.metadata.name != 'least'"}]
  validations:
  - expression: int(object.spec.nodeDrainTimeout.replace('s', '')) >= params.spec.deletion.nodeDrainTimeoutSeconds
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: drain}
spec:
  policyName: drain
  validationActions: [Deny]
  paramRef: {name: least, namespace: default, parameterNotFoundAction: Allow}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: cluster}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [cluster.example.net], apiVersions: [v1beta1], operations: [CREATE], resources: [machines]}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{spec: Object.spec{clusterName: object.spec.clusterName + '-' + object.spec.nodeDrainTimeout}}"
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: cluster}
spec: {policyName: cluster}
"#;

/// Webhooks and policies see objects in the version that they ask for, whoever converts them.
#[tokio::test(flavor = "multi_thread")]
async fn versions_that_a_webhook_converts_are_reviewed_like_others() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let conversions = WebhookServer::start(&[], convert).await;
    server.run_with("kubectl apply -f -", &machines(&conversions, "v1beta1").to_string());
    server.run("kubectl wait --for=condition=Established crd/machines.cluster.example.net");
    let rules =
        |operations: &[&str]| json!({"rules": [rule(operations, "cluster.example.net", "v1beta1", "machines")]});
    configure(
        &http,
        MUTATING,
        "m",
        vec![hooks.hook("domain", rules(&["CREATE", "UPDATE"]))],
    )
    .await;
    configure(&http, VALIDATING, "v", vec![hooks.hook("allow", rules(&["*"]))]).await;
    server.run_with("kubectl apply -f -", MACHINE_POLICIES);
    let path = "/apis/cluster.example.net/v1beta2/namespaces/default/machines";
    let newer = |name: &str, seconds: u32| -> Value {
        let spec = json!({"clusterName": "c", "deletion": {"nodeDrainTimeoutSeconds": seconds},
            "readinessGates": [{"conditionType": "One"}]});
        serde_json::from_str(&machine("v1beta2", name, spec)).unwrap()
    };
    let made = http.post(path, &newer("least", 20)).await.expect(201);
    let expected = json!({"clusterName": "c-20s", "deletion": {"nodeDrainTimeoutSeconds": 20}, "failureDomain": "f1",
        "readinessGates": [{"conditionType": "One"}]});
    assert_eq!(
        (&made["apiVersion"], &made["spec"]),
        (&json!("cluster.example.net/v1beta2"), &expected)
    );
    let seen = hooks.called("domain").remove(0);
    assert_eq!(
        (
            &seen["kind"]["version"],
            &seen["requestKind"]["version"],
            &seen["object"]["spec"]
        ),
        (
            &json!("v1beta1"),
            &json!("v1beta2"),
            &json!({"clusterName": "c-20s", "nodeDrainTimeout": "20s"})
        )
    );
    let seen = hooks.called("allow").remove(0);
    assert_eq!(seen["object"]["apiVersion"], "cluster.example.net/v1beta1");
    assert_eq!(seen["object"]["spec"]["failureDomain"], "f1");
    // A parameter is shown in the version that the policy names, whatever it is stored in.
    let refused = http.post(path, &newer("short", 10)).await.refused(422, "Invalid");
    assert!(
        message(&refused).contains("with binding 'drain' denied request: failed expression"),
        "{refused}"
    );
    http.post(path, &newer("long", 30)).await.expect(201);
    // Deletes are shown the same way.
    http.delete(&format!("{path}/long")).await.expect(200);
    let seen = hooks.called("allow").pop().unwrap();
    assert_eq!(
        (&seen["operation"], &seen["oldObject"]["apiVersion"]),
        (&json!("DELETE"), &json!("cluster.example.net/v1beta1"))
    );
    let metrics = http.get("/metrics").await.text();
    for sample in [
        r#"apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="drain",policy_binding="drain"} 1"#,
        r#"apiserver_mutating_admission_policy_check_total{error_type="no_error",policy="cluster",policy_binding="cluster"} 3"#,
        r#"apiserver_admission_match_condition_evaluation_seconds_count{kind="policy",name="drain",operation="CREATE",type="validate"} 2"#,
        r#"apiserver_conversion_webhook_request_total{failure_type="",result="success"}"#,
        r#"apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="machines.cluster.example.net",from_version="v1beta2",succeeded="true",to_version="v1beta1"}"#,
    ] {
        assert!(metrics.contains(sample), "{sample}");
    }
    // Without its conversion a review is refused, unless nobody asks for the other version.
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/machines.cluster.example.net";
    let mut defined = http.get(definition).await.expect(200);
    defined["spec"]["conversion"]["webhook"]["clientConfig"]["url"] = "https://127.0.0.1:1/".into();
    defined["spec"]["versions"][0]["storage"] = false.into();
    defined["spec"]["versions"][1]["storage"] = true.into();
    http.put(definition, &defined).await.expect(200);
    until("the other webhook is asked", async || {
        let refused = http.post(path, &newer("away", 30)).await;
        let text = refused.json()["message"].as_str().unwrap_or("").to_string();
        text.contains(
            "conversion webhook for cluster.example.net/v1beta2, Kind=Machine failed: Post \"https://127.0.0.1:1/",
        )
        .then_some(())
    })
    .await;
    server.run("kubectl delete validatingadmissionpolicybinding,mutatingadmissionpolicybinding --all");
    remove(&http, MUTATING, "m").await;
    remove(&http, VALIDATING, "v").await;
    http.post(path, &newer("away", 30)).await.expect(201);
}
