//! Signs `cluster-info` with each token that may: who joins with a token sees that somebody who knows it wrote that.
//! A signature is a JSON web signature (HS256) without its content.

use std::collections::BTreeMap;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use orlop_base::Clock;
use orlop_client::Error;
use serde_json::json;

use super::{NAMESPACE, end, is_token};
use crate::objects::config_map::CLUSTER_INFO;
use crate::objects::{ConfigMap, Secret, with_type_meta};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "bootstrap-signer-controller",
    account: "bootstrap-signer",
    on_by_default: false,
    start,
};

const PUBLIC: &str = "kube-public";
const SIGNATURE: &str = "jws-kubeconfig-";

struct Signer {
    maps: Cache<ConfigMap>,
    secrets: Cache<Secret>,
    clock: Clock,
}

/// One key: the config map.
fn start(setup: &Setup) {
    let queue = setup.queue("bootstrap_signer_queue");
    let (maps, secrets) = (setup.cache::<ConfigMap>(), setup.cache::<Secret>());
    let info = Key::new(PUBLIC, CLUSTER_INFO);
    let (wake, key) = (queue.clone(), info.clone());
    maps.on_change(move |_, new| {
        if new.is_some_and(|map| Key::from_object(&**map) == key) {
            wake.add(key.clone());
        }
    });
    let wake = queue.clone();
    secrets.on_change(move |old, new| {
        if new.or(old).is_some_and(|secret| is_token(secret)) {
            wake.add(info.clone());
        }
    });
    let clock = setup.clock.clone();
    setup.run(queue, 1, Signer { maps, secrets, clock });
}

impl Reconcile for Signer {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(map) = self.maps.at(key) else {
            return Ok(Next::Done);
        };
        let now = self.clock.now();
        let secrets = self.secrets.list_in(NAMESPACE);
        let tokens: BTreeMap<String, String> = secrets.iter().filter_map(|s| signing_token(s, now)).collect();
        if let Some(signed) = plan(&map, &tokens) {
            match writer
                .replace::<ConfigMap>(&map.metadata, &with_type_meta(&signed))
                .await
            {
                Ok(_) | Err(Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A token that runs out stops signing, whether or not somebody deletes it.
        let ends = secrets.iter().filter(|s| is_token(s)).filter_map(|s| end(s));
        let next = ends.filter(|end| *end > now).min();
        Ok(next.map_or(Next::Done, |end| Next::After(end.duration_since(now).unsigned_abs())))
    }
}

/// The token's id and secret, if it may sign.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(String, String)> {
    let (id, value) = (secret.text("token-id"), secret.text("token-secret"));
    let by_name = secret.metadata.name.strip_prefix("bootstrap-token-")?;
    let good = is_token(secret)
        && by_name == id
        && id.len() == 6
        && !value.is_empty()
        && secret.text("usage-bootstrap-signing") == "true"
        && end(secret).is_none_or(|end| end > now);
    good.then_some((id, value))
}

/// The map with the signatures it should have, if it has others.
fn plan(map: &ConfigMap, tokens: &BTreeMap<String, String>) -> Option<ConfigMap> {
    let content = map.data.get("kubeconfig")?;
    let mut signed = map.clone();
    signed.data.retain(|key, _| !key.starts_with(SIGNATURE));
    let signatures = tokens
        .iter()
        .map(|(id, secret)| (format!("{SIGNATURE}{id}"), signature(content, id, secret)));
    signed.data.extend(signatures);
    (signed.data != map.data).then_some(signed)
}

fn signature(content: &str, id: &str, secret: &str) -> String {
    let base64 = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let header = base64(json!({"alg": "HS256", "kid": id}).to_string().as_bytes());
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{}", base64(content.as_bytes())).as_bytes());
    format!("{header}..{}", base64(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::prelude::BASE64_STANDARD;
    use serde_json::Value;

    use super::*;
    use crate::bootstrap_tokens::clean;
    use crate::testing::Cluster;

    fn token(id: &str, more: Value) -> Value {
        let mut data = json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"});
        for (key, value) in more.as_object().unwrap() {
            data[key] = value.clone();
        }
        for (_, value) in data.as_object_mut().unwrap() {
            *value = json!(BASE64_STANDARD.encode(value.as_str().unwrap()));
        }
        json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "data": data,
               "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": NAMESPACE}})
    }

    #[test]
    fn a_signature_is_as_others_compute_it() {
        let wanted = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..K1chermAQEq0rdqy-ehj0VDfmA_ytv8Wzh9g26FldrE";
        assert_eq!(signature("apiVersion: v1\n", "abcdef", "0123456789abcdef"), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_sign_until_they_run_out() {
        let cluster = Cluster::new();
        cluster.put(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CLUSTER_INFO, "namespace": PUBLIC},
                           "data": {"kubeconfig": "apiVersion: v1", "jws-kubeconfig-oldold": "x"}}),
        );
        cluster.put(token("aaaaaa", json!({})));
        cluster.put(token("bbbbbb", json!({"expiration": "2026-01-01T01:00:00Z"})));
        cluster.put(token("cccccc", json!({"usage-bootstrap-signing": "false"})));
        cluster.put(token("dddddd", json!({"expiration": "2025-01-01T01:00:00Z"})));
        cluster.put(token("eeeeee", json!({"token-id": "ffffff"})));
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        let keys = || -> Vec<String> {
            let map = cluster.get::<ConfigMap>(PUBLIC, CLUSTER_INFO).unwrap();
            map.data.into_keys().collect()
        };
        assert_eq!(keys(), ["jws-kubeconfig-aaaaaa", "jws-kubeconfig-bbbbbb", "kubeconfig"]);
        assert_eq!(cluster.writes().len(), 1);
        cluster.advance(Duration::from_secs(3700)).await;
        assert_eq!(keys(), ["jws-kubeconfig-aaaaaa", "kubeconfig"]);
        cluster.run(&[&clean::DEF]);
        cluster.wait_until_idle().await;
        let left: Vec<String> = cluster
            .list::<Secret>("")
            .into_iter()
            .map(|s| s.metadata.name)
            .collect();
        assert_eq!(
            left,
            [
                "bootstrap-token-aaaaaa",
                "bootstrap-token-cccccc",
                "bootstrap-token-eeeeee"
            ]
        );
    }
}
