//! ServiceAccount: every pod runs as one, and gets its token mounted unless the pod or the account says no.
//! Upstream: plugin/pkg/admission/serviceaccount (v1.36).

use std::sync::Arc;

use orlop_api::{Status, Value};
use orlop_base::Random;
use serde_json::json;

use super::node_restriction::MIRROR_ANNOTATION;
use super::{Change, Operation, Plugin, Review, pod_api_references};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "ServiceAccount",
    mutate: Some(mutate),
    validate: Some(validate),
};

const DEFAULT: &str = "default";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Kubelets renew a token well before this runs out; the odd seconds tell it from one asked for by hand.
const TOKEN_SECONDS: i64 = 3607;

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("", "pods") && review.operation == Operation::Create
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some()
}

fn account_of(review: &Review<'_>, pod: &Value) -> Result<Arc<Value>, Status> {
    let name = text(pod, &["spec", "serviceAccountName"]);
    if name.is_empty() {
        let why = format!(
            "no service account specified for pod {}/{}",
            review.namespace,
            review.displayed_name()
        );
        return Err(review.forbidden(why));
    }
    match review.lookup.get("serviceaccounts", &review.namespace, name) {
        Some(account) => Ok(account),
        // Every namespace gets its default account right after it is made; who is faster need not wait for it.
        None if name == DEFAULT => Ok(Arc::new(json!({"metadata": {"name": DEFAULT}}))),
        None => Err(review.forbidden(format!(
            "error looking up service account {}/{name}: serviceaccount {name:?} not found",
            review.namespace
        ))),
    }
}

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    // Static pods run without the API server, so they can't have an account of it.
    if !is_new_pod(review) || is_mirror(pod) {
        return Ok(());
    }
    if text(pod, &["spec", "serviceAccountName"]).is_empty() {
        pod["spec"]["serviceAccountName"] = DEFAULT.into();
    }
    // The field's older name always says the same.
    pod["spec"]["serviceAccount"] = pod["spec"]["serviceAccountName"].clone();
    let account = account_of(review, pod)?;
    let wants = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or(account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if wants {
        mount_token(pod, || Random::from_entropy().name_suffix(5));
    }
    let secrets = items(&account, &["imagePullSecrets"]);
    if items(pod, &["spec", "imagePullSecrets"]).is_empty() && !secrets.is_empty() {
        pod["spec"]["imagePullSecrets"] = secrets.into();
    }
    Ok(())
}

/// Adds the projected volume and mounts it wherever nothing else is mounted there.
fn mount_token(pod: &mut Value, suffix: impl Fn() -> String) {
    let mut volumes = items(pod, &["spec", "volumes"]).to_vec();
    // A volume of that name from an earlier pass or a careful author is used as it is.
    let there = volumes
        .iter()
        .map(|v| text(v, &["name"]))
        .find(|n| n.starts_with(VOLUME_PREFIX))
        .map(str::to_string);
    let name = there.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{}", suffix()));
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mut mounts = items(container, &["volumeMounts"]).to_vec();
            if !mounts.iter().any(|m| text(m, &["mountPath"]) == MOUNT_PATH) {
                used = true;
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                container["volumeMounts"] = mounts.into();
            }
        }
    }
    if used && there.is_none() {
        volumes.push(token_volume(&name));
        pod["spec"]["volumes"] = volumes.into();
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}})
}

fn validate(review: &Review<'_>, pod: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let debugged = review.is_sub("", "pods", "ephemeralcontainers") && review.operation == Operation::Update;
    let Some(pod) = pod.filter(|_| is_new_pod(review) || debugged) else {
        return Ok(vec![]);
    };
    if !debugged && is_mirror(pod) {
        return match mirror_problem(pod) {
            None => Ok(vec![]),
            Some(why) => Err(review.forbidden(why)),
        };
    }
    let account = account_of(review, pod)?;
    if !limits_secrets(&account) {
        return Ok(vec![]);
    }
    let stray = if debugged {
        stray_variable(pod, &account, "ephemeralContainers", "ephemeral container")
    } else {
        stray_secret(pod, &account)
    };
    match stray {
        None => Ok(vec![]),
        Some(why) => Err(review.forbidden(why)),
    }
}

fn mirror_problem(pod: &Value) -> Option<&'static str> {
    if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
        return Some("a mirror pod may not reference service accounts");
    }
    if pod_api_references::uses_secrets(pod) {
        return Some("a mirror pod may not reference secrets");
    }
    let projects_token = items(pod, &["spec", "volumes"])
        .iter()
        .flat_map(|v| items(v, &["projected", "sources"]))
        .any(|s| s.get("serviceAccountToken").is_some());
    projects_token.then_some("a mirror pod may not use ServiceAccountToken volume projections")
}

/// An account may name the only secrets its pods may use.
fn limits_secrets(account: &Value) -> bool {
    let word = &account["metadata"]["annotations"]["kubernetes.io/enforce-mountable-secrets"];
    matches!(word.as_str().unwrap_or(""), "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn lists(account: &Value, list: &str, name: &str) -> bool {
    items(account, &[list]).iter().any(|s| text(s, &["name"]) == name)
}

/// The first use of a secret that the account does not list.
fn stray_secret(pod: &Value, account: &Value) -> Option<String> {
    let own = text(account, &["metadata", "name"]);
    let of_volume = items(pod, &["spec", "volumes"])
        .iter()
        .filter(|v| v.get("secret").is_some())
        .map(|v| text(v, &["secret", "secretName"]))
        .find(|secret| !lists(account, "secrets", secret))
        .map(|secret| format!("volume with secret.secretName={secret:?} is not allowed because service account {own} does not reference that secret"));
    let of_pull = || {
        let pulls = items(pod, &["spec", "imagePullSecrets"])
            .iter()
            .map(|s| text(s, &["name"]));
        pulls
            .enumerate()
            .find(|(_, name)| !lists(account, "imagePullSecrets", name))
            .map(|(i, name)| format!("imagePullSecrets[{i}].name={name:?} is not allowed because service account {own} does not reference that imagePullSecret"))
    };
    of_volume
        .or_else(|| stray_variable(pod, account, "initContainers", "init container"))
        .or_else(|| stray_variable(pod, account, "containers", "container"))
        .or_else(of_pull)
}

/// The first secret in an environment that the account does not list.
fn stray_variable(pod: &Value, account: &Value, list: &str, title: &str) -> Option<String> {
    let own = text(account, &["metadata", "name"]);
    let stray = |secret: &str| !lists(account, "secrets", secret);
    let told = |container: &Value, how: String, secret: &str| {
        let name = text(container, &["name"]);
        format!(
            "{title} {name} with {how} referencing secret.secretName={secret:?} is not allowed because service account {own} does not reference that secret"
        )
    };
    items(pod, &["spec", list]).iter().find_map(|container| {
        let variables = items(container, &["env"])
            .iter()
            .filter(|e| e.pointer("/valueFrom/secretKeyRef").is_some());
        let variable = variables
            .map(|e| (text(e, &["name"]), text(e, &["valueFrom", "secretKeyRef", "name"])))
            .find(|(_, secret)| stray(secret))
            .map(|(name, secret)| told(container, format!("envVar {name}"), secret));
        variable.or_else(|| {
            let sources = items(container, &["envFrom"]).iter();
            sources
                .filter(|e| e.get("secretRef").is_some())
                .map(|e| text(e, &["secretRef", "name"]))
                .find(|secret| stray(secret))
                .map(|secret| told(container, "envFrom".to_string(), secret))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Desk, told, with};
    use super::*;

    fn pod() -> Value {
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "own", "mountPath": "/x"}]},
                {"name": "d", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}],
            "volumes": [{"name": "own", "emptyDir": {}}],
        }})
    }

    #[test]
    fn tokens_are_mounted_where_there_is_room() {
        let created = Desk::new().create(&PLUGIN, "pods", pod()).unwrap();
        let spec = &created["spec"];
        assert_eq!(
            (&spec["serviceAccountName"], &spec["serviceAccount"]),
            (&json!("default"), &json!("default"))
        );
        let name = spec["volumes"][1]["name"].as_str().unwrap();
        let suffix = name.strip_prefix("kube-api-access-").unwrap();
        assert_eq!(suffix.len(), 5);
        assert_eq!(spec["volumes"][0], json!({"name": "own", "emptyDir": {}}));
        assert_eq!(spec["volumes"][1], token_volume(name));
        let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
        assert_eq!(spec["initContainers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(
            spec["containers"][0]["volumeMounts"],
            json!([{"name": "own", "mountPath": "/x"}, mount])
        );
        assert_eq!(spec["containers"][1], pod()["spec"]["containers"][1]);
        // The same pod once more changes nothing, and another pod gets another name.
        assert_eq!(Desk::new().create(&PLUGIN, "pods", created.clone()).unwrap(), created);
        let names: std::collections::BTreeSet<String> = (0..20)
            .map(|_| Desk::new().create(&PLUGIN, "pods", pod()).unwrap())
            .map(|p| p["spec"]["volumes"][1]["name"].as_str().unwrap().to_string())
            .collect();
        assert_eq!(names.len(), 20);
    }

    #[test]
    fn tokens_may_be_declined() {
        let account = |automount: Value| {
            let account =
                json!({"metadata": {"name": "default", "namespace": "ns"}, "imagePullSecrets": [{"name": "s"}]});
            Desk::new().with(
                "serviceaccounts",
                with(account, json!({"automountServiceAccountToken": automount})),
            )
        };
        let full = json!({"spec": {"initContainers": [], "containers": [{"name": "d",
            "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]}});
        let cases = [
            (json!(null), json!({}), 2),
            (json!(false), json!({}), 1),
            (json!(false), json!({"spec": {"automountServiceAccountToken": true}}), 2),
            (json!(true), json!({"spec": {"automountServiceAccountToken": false}}), 1),
            (json!(null), full, 1),
        ];
        for (of_account, of_pod, volumes) in cases {
            let created = account(of_account)
                .create(&PLUGIN, "pods", with(pod(), of_pod))
                .unwrap();
            assert_eq!(items(&created, &["spec", "volumes"]).len(), volumes);
            assert_eq!(created["spec"]["imagePullSecrets"], json!([{"name": "s"}]));
        }
        let own = with(pod(), json!({"spec": {"imagePullSecrets": [{"name": "t"}]}}));
        let created = account(json!(null)).create(&PLUGIN, "pods", own).unwrap();
        assert_eq!(created["spec"]["imagePullSecrets"], json!([{"name": "t"}]));
        let missing = with(pod(), json!({"spec": {"serviceAccountName": "gone"}}));
        assert_eq!(
            told(Desk::new().create(&PLUGIN, "pods", missing)),
            "pods \"p\" is forbidden: error looking up service account ns/gone: serviceaccount \"gone\" not found"
        );
        let updated = Desk::new().update(&PLUGIN, "pods", pod(), pod()).unwrap();
        assert_eq!(updated, pod());

        let desk = Desk::new();
        desk.objects.remove("serviceaccounts", "ns", "default");
        let early = desk.create(&PLUGIN, "pods", pod()).unwrap();
        assert_eq!(early["spec"]["serviceAccountName"], "default");
    }

    #[test]
    fn mirror_pods_have_no_account() {
        let mirror = with(pod(), json!({"metadata": {"annotations": {MIRROR_ANNOTATION: "x"}}}));
        let cases = [
            (json!({}), "ok"),
            (
                json!({"spec": {"serviceAccountName": "default"}}),
                "pods \"p\" is forbidden: a mirror pod may not reference service accounts",
            ),
            (
                json!({"spec": {"imagePullSecrets": [{"name": "s"}]}}),
                "pods \"p\" is forbidden: a mirror pod may not reference secrets",
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}]}}]}}),
                "pods \"p\" is forbidden: a mirror pod may not use ServiceAccountToken volume projections",
            ),
        ];
        for (changes, expected) in cases {
            let pod = with(mirror.clone(), changes);
            let result = Desk::new().create(&PLUGIN, "pods", pod.clone());
            assert_eq!(told(result.clone()), expected);
            assert!(result.is_err() || result.unwrap() == pod);
        }
    }

    #[test]
    fn accounts_may_list_the_secrets_of_their_pods() {
        let account = |enforced: &str| {
            json!({"metadata": {"name": "default", "namespace": "ns",
                "annotations": {"kubernetes.io/enforce-mountable-secrets": enforced}},
                "secrets": [{"name": "good"}], "imagePullSecrets": [{"name": "pull"}]})
        };
        let env = |secret: &str| json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
        let from = |secret: &str| json!([{"secretRef": {"name": secret}}]);
        let because = "is not allowed because service account default does not reference that secret";
        let container = |member: &str, value: Value| {
            let mut container = json!({"name": "c"});
            container[member] = value;
            json!([container])
        };
        let volume = |secret: &str| json!([{"name": "v", "secret": {"secretName": secret}}]);
        let cases = [
            ("/spec/volumes", volume("good"), String::new()),
            ("/spec/volumes", volume("bad"), format!("volume with secret.secretName=\"bad\" {because}")),
            ("/spec/containers", container("env", env("good")), String::new()),
            (
                "/spec/containers",
                container("env", env("bad")),
                format!("container c with envVar E referencing secret.secretName=\"bad\" {because}"),
            ),
            (
                "/spec/initContainers",
                container("envFrom", from("bad")),
                format!("init container c with envFrom referencing secret.secretName=\"bad\" {because}"),
            ),
            ("/spec/imagePullSecrets", json!([{"name": "pull"}]), String::new()),
            (
                "/spec/imagePullSecrets",
                json!([{"name": "pull"}, {"name": "bad"}]),
                "imagePullSecrets[1].name=\"bad\" is not allowed because service account default does not reference that imagePullSecret".to_string(),
            ),
        ];
        for (place, value, why) in cases {
            let member = place.rsplit('/').next().unwrap();
            let mut pod = pod();
            pod["spec"][member] = value;
            let expected = match why.as_str() {
                "" => "ok".to_string(),
                why => format!("pods \"p\" is forbidden: {why}"),
            };
            let strict = Desk::new().with("serviceaccounts", account("True"));
            assert_eq!(told(strict.create(&PLUGIN, "pods", pod.clone())), expected, "{place}");
            let lax = Desk::new().with("serviceaccounts", account("no"));
            assert_eq!(told(lax.create(&PLUGIN, "pods", pod.clone())), "ok");
        }
        let strict = Desk::new().with("serviceaccounts", account("1"));
        let running = with(pod(), json!({"spec": {"serviceAccountName": "default"}}));
        let debugged = with(
            running.clone(),
            json!({"spec": {"ephemeralContainers": container("env", env("bad"))}}),
        );
        assert_eq!(
            told(strict.update(&PLUGIN, "pods/ephemeralcontainers", debugged, running)),
            format!(
                "pods \"p\" is forbidden: ephemeral container c with envVar E referencing secret.secretName=\"bad\" {because}"
            )
        );
    }
}
