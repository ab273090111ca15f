//! ServiceAccount: every pod runs as one, and gets its token mounted unless the pod or the account says no.

use orlop_api::{Status, Value};
use serde_json::json;

use super::{Change, Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "ServiceAccount",
    mutate: Some(mutate),
    validate: Some(validate),
};

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Kubelets renew a token well before this runs out; the odd seconds tell it from one asked for by hand.
const TOKEN_SECONDS: i64 = 3607;

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or("")
}

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("", "pods") && review.operation == Operation::Create
}

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !is_new_pod(review) {
        return Ok(());
    }
    // Static pods run without the API server, so they can't have an account of it.
    if pod
        .pointer("/metadata/annotations/kubernetes.io~1config.mirror")
        .is_some()
    {
        return check_mirror(review, pod);
    }
    if text(&pod["spec"], "serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = "default".into();
    }
    let name = text(&pod["spec"], "serviceAccountName").to_string();
    pod["spec"]["serviceAccount"] = name.clone().into();
    let account = review
        .lookup
        .get("serviceaccounts", &review.namespace, &name)
        .ok_or_else(|| {
            review.forbidden(format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                review.namespace
            ))
        })?;
    let wants = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or(account["automountServiceAccountToken"].as_bool())
        .unwrap_or(true);
    if wants {
        mount_token(pod, &review.lookup_suffix(&name));
    }
    let own = pod["spec"]["imagePullSecrets"]
        .as_array()
        .is_some_and(|s| !s.is_empty());
    if !own && let Some(secrets) = account["imagePullSecrets"].as_array().filter(|s| !s.is_empty()) {
        pod["spec"]["imagePullSecrets"] = secrets.clone().into();
    }
    Ok(())
}

fn check_mirror(review: &Review<'_>, pod: &Value) -> Result<(), Status> {
    if !text(&pod["spec"], "serviceAccountName").is_empty() {
        return Err(review.forbidden("a mirror pod may not reference service accounts"));
    }
    Ok(())
}

impl Review<'_> {
    /// A short suffix that differs between pods; from what is already unique about this request.
    fn lookup_suffix(&self, seed: &str) -> String {
        let mut random = orlop_base::Random::seeded(
            self.now.as_nanosecond() as u64 ^ (seed.len() as u64) << 48 ^ (self.name.len() as u64) << 56,
        );
        random.name_suffix(5)
    }
}

/// Adds the projected volume and mounts it wherever nothing else is mounted there.
fn mount_token(pod: &mut Value, suffix: &str) {
    let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    // A volume of that name from an earlier pass or a careful author is used as it is.
    let there = volumes
        .iter()
        .map(|v| text(v, "name"))
        .find(|n| n.starts_with("kube-api-access-"))
        .map(str::to_string);
    let name = there.clone().unwrap_or_else(|| format!("kube-api-access-{suffix}"));
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in pod["spec"]
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            if mounts.iter().any(|m| text(m, "mountPath") == MOUNT_PATH) {
                continue;
            }
            used = true;
            let mut mounts = mounts;
            mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            container["volumeMounts"] = mounts.into();
        }
    }
    if used && there.is_none() {
        let mut volumes = volumes;
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

/// An account may name the only secrets its pods may use.
fn validate(review: &Review<'_>, pod: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(pod) = pod.filter(|_| is_new_pod(review)) else {
        return Ok(vec![]);
    };
    let name = text(&pod["spec"], "serviceAccountName");
    let Some(account) = review.lookup.get("serviceaccounts", &review.namespace, name) else {
        return Ok(vec![]);
    };
    let enforced = account.pointer("/metadata/annotations/kubernetes.io~1enforce-mountable-secrets");
    if enforced.and_then(Value::as_str) != Some("true") {
        return Ok(vec![]);
    }
    let allowed = |secret: &str| {
        account["secrets"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|s| text(s, "name") == secret)
    };
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        if let Some(secret) = volume.pointer("/secret/secretName").and_then(Value::as_str)
            && !allowed(secret)
        {
            return Err(review.forbidden(format!(
                "volume with secret.secretName={secret:?} is not allowed because service account {name} does not reference that secret"
            )));
        }
    }
    Ok(vec![])
}
