//! Tokens in secrets that were made unasked, long ago, and that nobody has used for a year: marked first, so that a late
//! user is noticed, and deleted after another year.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp, ToSpan};
use orlop_base::Clock;
use orlop_client::{Api, DeleteOptions, Error, ListQuery, Preconditions, path};
use serde_json::{Value, json};

use super::{ACCOUNT_NAME, ACCOUNT_UID};
use crate::objects::secret::ACCOUNT_TOKEN;
use crate::objects::{Secret, ServiceAccount};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "legacy-serviceaccount-token-cleaner-controller",
    account: "legacy-service-account-token-cleaner",
    on_by_default: true,
    start,
};

const EVERY: Duration = Duration::from_secs(24 * 3600);
/// Where the API server says since when it has noted who uses such tokens.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

struct Cleaner {
    accounts: Cache<ServiceAccount>,
    secrets: Cache<Secret>,
    /// To look which secrets pods have.
    reader: Api,
    unused_for: Duration,
    clock: Clock,
}

/// One key: everything is looked at once a day.
fn start(setup: &Setup) {
    let queue = setup.queue("legacy_serviceaccount_token_cleaner");
    queue.add(Key::default());
    let cleaner = Cleaner {
        accounts: setup.cache::<ServiceAccount>(),
        secrets: setup.cache::<Secret>(),
        reader: setup.caches.reader().clone(),
        unused_for: setup.settings.legacy_service_account_token_clean_up_period,
        clock: setup.clock.clone(),
    };
    setup.run(queue, 1, cleaner);
}

impl Reconcile for Cleaner {
    async fn reconcile(&self, _: &Key, writer: &Writer) -> ReconcileResult {
        let again = Ok(Next::After(EVERY));
        let at = path::object("v1", Some("kube-system"), "configmaps", TRACKING);
        let tracking: Value = match writer.api().get(&at).await {
            Ok(tracking) => tracking,
            // Not every server tracks.
            Err(Error::NotFound(_)) => return again,
            Err(error) => return Err(error.into()),
        };
        let since = tracking["data"]["since"].as_str().and_then(|text| text.parse().ok());
        let Some(since) = since else { return again };
        let Some(limit) = limit(self.clock.now(), since, self.unused_for) else {
            return again;
        };
        for secret in self.secrets.list() {
            let mut fate = fate(&secret, self.account_of(&secret).as_deref(), limit);
            if fate != TokenAction::Keep && self.is_mounted(&secret).await? {
                fate = TokenAction::Keep;
            }
            self.apply(writer, &secret, fate).await?;
        }
        again
    }
}

impl Cleaner {
    fn account_of(&self, secret: &Secret) -> Option<Arc<ServiceAccount>> {
        let name = secret.metadata.annotation(ACCOUNT_NAME)?;
        let account = self.accounts.get(&secret.metadata.namespace, name)?;
        let uid = secret.metadata.annotation(ACCOUNT_UID).unwrap_or_default();
        (uid.is_empty() || uid == account.metadata.uid).then_some(account)
    }

    async fn is_mounted(&self, secret: &Secret) -> orlop_client::Result<bool> {
        let meta = &secret.metadata;
        let pods = path::collection("v1", Some(&meta.namespace), "pods");
        let pods = self.reader.list::<Value>(&pods, &ListQuery::default()).await?;
        let mut names = BTreeSet::new();
        pods.items.iter().for_each(|pod| secret_names(&pod["spec"], &mut names));
        Ok(names.contains(meta.name.as_str()))
    }

    async fn apply(&self, writer: &Writer, secret: &Secret, fate: TokenAction) -> orlop_client::Result<()> {
        let meta = &secret.metadata;
        let done = match fate {
            TokenAction::Keep => return Ok(()),
            TokenAction::Mark => {
                let today = date(self.clock.now()).to_string();
                let patch = json!({"metadata": {"uid": meta.uid, "labels": {INVALID_SINCE: today}}});
                writer.patch::<Secret>(meta, &patch).await.map(|_| ())
            }
            TokenAction::Delete => {
                let preconditions = Preconditions {
                    resource_version: Some(meta.resource_version.clone()),
                    ..Preconditions::default()
                };
                let options = DeleteOptions {
                    preconditions: Some(preconditions),
                    ..DeleteOptions::default()
                };
                writer.delete_with::<Secret>(meta, options).await
            }
        };
        match done {
            Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(()),
            done => done,
        }
    }
}

fn date(at: Timestamp) -> Date {
    at.to_zoned(jiff::tz::TimeZone::UTC).date()
}

/// The time before which use does not count any more; none as long as use has not been noted for that long.
fn limit(now: Timestamp, tracked_since: Date, unused_for: Duration) -> Option<Timestamp> {
    let limit = now.checked_sub(SignedDuration::try_from(unused_for).ok()?).ok()?;
    // From the first whole day on.
    let whole = tracked_since.checked_add(1.day()).ok()?;
    (date(limit) >= whole).then_some(limit)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenAction {
    Keep,
    /// From today on nobody is to use it.
    Mark,
    Delete,
}

/// `account`: whose token it is. Only those that an account names as its own may have been made unasked.
fn fate(secret: &Secret, account: Option<&ServiceAccount>, limit: Timestamp) -> TokenAction {
    let meta = &secret.metadata;
    let is_old = meta.creation_timestamp.is_some_and(|created| created < limit);
    let made_unasked = account.is_some_and(|account| account.refers_to(&meta.name));
    if secret.r#type != ACCOUNT_TOKEN || meta.is_deleted() || !is_old || !made_unasked {
        return TokenAction::Keep;
    }
    let used_long_ago = match meta.label(LAST_USED).map(str::parse::<Date>) {
        None => true,
        Some(Ok(last)) => last < date(limit),
        // What can't be read can't be judged.
        Some(Err(_)) => false,
    };
    match meta.label(INVALID_SINCE).and_then(|text| text.parse::<Date>().ok()) {
        _ if !used_long_ago => TokenAction::Keep,
        None => TokenAction::Mark,
        Some(since) if since < date(limit) => TokenAction::Delete,
        Some(_) => TokenAction::Keep,
    }
}

/// All that may be the name of a secret: rather one too many.
fn secret_names<'v>(value: &'v Value, names: &mut BTreeSet<&'v str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| secret_names(item, names)),
        Value::Object(members) => {
            for (key, member) in members {
                let about_secrets = key.to_ascii_lowercase().contains("secret");
                if about_secrets {
                    names.extend(member.as_str());
                    names.extend(member["name"].as_str());
                    let items = member.as_array().into_iter().flatten();
                    names.extend(items.filter_map(|item| item["name"].as_str()));
                }
                secret_names(member, names);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Kind as _;
    use crate::testing::Cluster;

    fn day(text: &str) -> Timestamp {
        format!("{text}T00:00:00Z").parse().unwrap()
    }

    #[test]
    fn secrets_are_judged_by_their_use() {
        let account: ServiceAccount = serde_json::from_value(json!({"secrets": [{"name": "t"}]})).unwrap();
        for (what, secret, wanted) in [
            ("never used", json!({}), TokenAction::Mark),
            (
                "young",
                json!({"creationTimestamp": "2026-01-02T00:00:00Z"}),
                TokenAction::Keep,
            ),
            (
                "used lately",
                json!({"labels": {LAST_USED: "2026-01-01"}}),
                TokenAction::Keep,
            ),
            (
                "used long ago",
                json!({"labels": {LAST_USED: "2025-12-31"}}),
                TokenAction::Mark,
            ),
            (
                "unreadable",
                json!({"labels": {LAST_USED: "lately"}}),
                TokenAction::Keep,
            ),
            (
                "marked",
                json!({"labels": {INVALID_SINCE: "2026-01-01"}}),
                TokenAction::Keep,
            ),
            (
                "marked long ago",
                json!({"labels": {INVALID_SINCE: "2025-12-31"}}),
                TokenAction::Delete,
            ),
            (
                "going",
                json!({"deletionTimestamp": "2026-01-02T00:00:00Z"}),
                TokenAction::Keep,
            ),
            ("asked for", json!({"name": "mine"}), TokenAction::Keep),
        ] {
            let mut value =
                json!({"type": ACCOUNT_TOKEN, "metadata": {"name": "t", "creationTimestamp": "2020-01-01T00:00:00Z"}});
            for (key, member) in secret.as_object().unwrap() {
                value["metadata"][key] = member.clone();
            }
            let secret: Secret = serde_json::from_value(value).unwrap();
            assert_eq!(fate(&secret, Some(&account), day("2026-01-01")), wanted, "{what}");
            assert_eq!(
                fate(&secret, None, day("2026-01-01")),
                TokenAction::Keep,
                "{what}, of nobody"
            );
        }
    }

    #[test]
    fn use_must_have_been_noted_for_long_enough() {
        let ten_days = Duration::from_secs(10 * 86_400);
        for (since, wanted) in [
            ("2026-01-01", Some(day("2026-01-10"))),
            ("2026-01-09", Some(day("2026-01-10"))),
            ("2026-01-10", None),
        ] {
            assert_eq!(
                limit(day("2026-01-20"), since.parse().unwrap(), ten_days),
                wanted,
                "{since}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_pod_has_stays() {
        let cluster = Cluster::new();
        cluster.put(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRACKING, "namespace": "kube-system"},
                           "data": {"since": "2020-01-01"}}),
        );
        cluster.put(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "ns"},
                           "secrets": [{"name": "old"}, {"name": "dead"}, {"name": "mounted"}]}),
        );
        for (name, labels) in [
            ("old", json!({})),
            ("dead", json!({INVALID_SINCE: "2023-01-01"})),
            ("mounted", json!({})),
        ] {
            cluster.put(
                json!({"apiVersion": "v1", "kind": "Secret", "type": ACCOUNT_TOKEN, "metadata": {
                "name": name, "namespace": "ns", "annotations": {ACCOUNT_NAME: "a"}, "labels": labels,
                "creationTimestamp": "2020-01-01T00:00:00Z"}}),
            );
        }
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "mounted"}}]}}]}}),
        );
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        let label = |name: &str| {
            cluster
                .get::<Secret>("ns", name)
                .map(|s| s.meta().label(INVALID_SINCE).map(str::to_string))
        };
        assert_eq!(label("old"), Some(Some("2026-01-01".to_string())));
        assert_eq!((label("dead"), label("mounted")), (None, Some(None)));
    }
}
