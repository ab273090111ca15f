//! Tokens that live in secrets: whoever makes a secret of type `kubernetes.io/service-account-token` that names an account
//! gets one in it. Nobody makes such secrets unasked any more.
//!
//! A token ends with its account: its secret is deleted. An account that names a secret as its own forgets it when the
//! secret goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use orlop_client::{Error, path};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::{ACCOUNT_NAME, ACCOUNT_UID};
use crate::objects::secret::ACCOUNT_TOKEN;
use crate::objects::{Kind, Secret, ServiceAccount};
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileError, ReconcileResult, Setup, WorkQueue, Writer};
use crate::settings::TokenSigner;

pub(crate) const DEF: Def = Def {
    name: "serviceaccount-token-controller",
    // Other controllers have accounts: this one comes before them, hence as the manager itself.
    account: "",
    on_by_default: true,
    start,
};

struct Tokens {
    accounts: Cache<ServiceAccount>,
    secrets: Cache<Secret>,
    signer: Arc<dyn TokenSigner>,
    /// In PEM.
    root_ca: Option<String>,
}

/// Secrets that went, by the account that they were of.
type Gone = Arc<Mutex<FxHashMap<Key, BTreeSet<String>>>>;

/// Without a key there are no tokens.
fn start(setup: &Setup) {
    let Some(signer) = setup.settings.token_signer.clone() else {
        return;
    };
    let (accounts, secrets) = (setup.cache::<ServiceAccount>(), setup.cache::<Secret>());
    let of_secrets = setup.queue("serviceaccount_tokens_secret");
    let of_accounts = setup.queue("serviceaccount_tokens_service");
    let gone = Gone::default();
    wake_secrets(&of_secrets, &accounts, &secrets);
    wake_accounts(&of_accounts, &secrets, &gone);
    let references = References {
        accounts: accounts.clone(),
        secrets: secrets.clone(),
        gone,
    };
    setup.run(of_accounts, setup.settings.concurrent_syncs, references);
    let tokens = Tokens {
        accounts,
        secrets,
        signer,
        root_ca: setup.settings.root_ca.clone(),
    };
    setup.run(of_secrets, setup.settings.concurrent_syncs, tokens);
}

fn wake_secrets(queue: &WorkQueue, accounts: &Cache<ServiceAccount>, secrets: &Cache<Secret>) {
    let wake = queue.clone();
    secrets.on_change(move |_, new| {
        if let Some(secret) = new.filter(|secret| secret.r#type == ACCOUNT_TOKEN) {
            wake.add(Key::from_object(&**secret));
        }
    });
    let (wake, known) = (queue.clone(), secrets.clone());
    accounts.on_change(move |old, new| {
        if let (Some(account), None) = (old, new) {
            let all = known.list_in(&account.metadata.namespace).into_iter();
            let its_own = all.filter(|s| s.metadata.annotation(ACCOUNT_NAME) == Some(&account.metadata.name));
            its_own.for_each(|secret| wake.add(Key::from_object(&*secret)));
        }
    });
}

fn wake_accounts(queue: &WorkQueue, secrets: &Cache<Secret>, gone: &Gone) {
    let (wake, gone) = (queue.clone(), gone.clone());
    secrets.on_change(move |old, new| {
        let (Some(secret), None) = (old, new) else { return };
        let account = secret
            .metadata
            .annotation(ACCOUNT_NAME)
            .filter(|_| secret.r#type == ACCOUNT_TOKEN);
        if let Some(account) = account {
            let key = Key::new(&*secret.metadata.namespace, account);
            gone.lock()
                .entry(key.clone())
                .or_default()
                .insert(secret.metadata.name.clone());
            wake.add(key);
        }
    });
}

impl Reconcile for Tokens {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(secret) = self.secrets.at(key).filter(|secret| secret.r#type == ACCOUNT_TOKEN) else {
            return Ok(Next::Done);
        };
        let Some(name) = secret.metadata.annotation(ACCOUNT_NAME).filter(|name| !name.is_empty()) else {
            return Ok(Next::Done);
        };
        let account = match self.accounts.get(&key.namespace, name) {
            Some(account) if is_of(&secret, &account) => account,
            _ => match writer.api().get(&path_of::<ServiceAccount>(&key.namespace, name)).await {
                Ok(account) if is_of(&secret, &account) => Arc::new(account),
                Ok(_) | Err(Error::NotFound(_)) => return delete(writer, &secret).await,
                Err(error) => return Err(error.into()),
            },
        };
        if !needs(&secret, self.root_ca.as_deref()).is_empty() {
            return self.fill(writer, &account, &secret).await;
        }
        Ok(Next::Done)
    }
}

fn path_of<T: Kind>(namespace: &str, name: &str) -> String {
    path::object(T::API_VERSION, Some(namespace), T::RESOURCE, name)
}

/// The secret names an account by name, and maybe by uid.
fn is_of(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = secret.metadata.annotation(ACCOUNT_UID).filter(|uid| !uid.is_empty());
    uid.is_none_or(|uid| uid == account.metadata.uid)
}

async fn delete(writer: &Writer, secret: &Secret) -> ReconcileResult {
    match writer.delete::<Secret>(&secret.metadata).await {
        Ok(()) | Err(Error::NotFound(_)) => Ok(Next::Done),
        Err(error) => Err(error.into()),
    }
}

/// What the secret lacks.
fn needs(secret: &Secret, root_ca: Option<&str>) -> Vec<&'static str> {
    let mut needs = vec![];
    if root_ca.is_some_and(|root_ca| secret.text("ca.crt") != root_ca) {
        needs.push("ca.crt");
    }
    needs.extend(
        ["namespace", "token"]
            .into_iter()
            .filter(|key| secret.text(key).is_empty()),
    );
    needs
}

impl Tokens {
    async fn fill(&self, writer: &Writer, account: &ServiceAccount, secret: &Secret) -> ReconcileResult {
        let meta = &secret.metadata;
        // The cache does not have all of it.
        let mut whole: Value = match writer.api().get(&path_of::<Secret>(&meta.namespace, &meta.name)).await {
            Ok(whole) => whole,
            Err(Error::NotFound(_)) => return Ok(Next::Done),
            Err(error) => return Err(error.into()),
        };
        if whole["metadata"]["resourceVersion"] != json!(meta.resource_version) {
            // What has changed meanwhile is on its way here.
            return Ok(Next::Done);
        }
        for key in needs(secret, self.root_ca.as_deref()) {
            let value = match key {
                "ca.crt" => self.root_ca.clone().unwrap_or_default(),
                "namespace" => meta.namespace.clone(),
                _ => self.token(account, &meta.name)?,
            };
            whole["data"][key] = json!(BASE64_STANDARD.encode(value));
        }
        whole["metadata"]["annotations"][ACCOUNT_NAME] = json!(account.metadata.name);
        whole["metadata"]["annotations"][ACCOUNT_UID] = json!(account.metadata.uid);
        match writer.replace::<Secret>(meta, &whole).await {
            Ok(_) | Err(Error::NotFound(_) | Error::Conflict(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }

    fn token(&self, account: &ServiceAccount, secret: &str) -> Result<String, ReconcileError> {
        let meta = &account.metadata;
        let token = self.signer.token(&meta.namespace, &meta.name, &meta.uid, secret);
        token.map_err(|error| ReconcileError::NotYet(format!("failed to sign token: {error}")))
    }
}

/// Accounts forget secrets that went.
struct References {
    accounts: Cache<ServiceAccount>,
    secrets: Cache<Secret>,
    gone: Gone,
}

impl Reconcile for References {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let gone = self.gone.lock().get(key).cloned().unwrap_or_default();
        let forgotten = |name: &String| self.secrets.get(&key.namespace, name).is_none();
        let dangling = |account: &ServiceAccount| gone.iter().any(|name| account.refers_to(name) && forgotten(name));
        if self.accounts.at(key).is_some_and(|account| dangling(&account)) {
            let at = path_of::<ServiceAccount>(&key.namespace, &key.name);
            let mut whole: Value = writer.api().get(&at).await?;
            if let Some(references) = whole["secrets"].as_array_mut() {
                references.retain(|r| !gone.iter().any(|name| r["name"] == json!(name) && forgotten(name)));
            }
            let account: ServiceAccount = serde_json::from_value(whole.clone()).unwrap_or_default();
            writer.replace::<ServiceAccount>(&account.metadata, &whole).await?;
        }
        let mut all = self.gone.lock();
        if let Some(names) = all.get_mut(key) {
            names.retain(|name| !gone.contains(name));
            if names.is_empty() {
                all.remove(key);
            }
        }
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, SigningError};
    use crate::testing::Cluster;

    #[derive(Debug)]
    struct Readable;

    impl TokenSigner for Readable {
        fn token(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, SigningError> {
            Ok(format!("{namespace}/{account}/{uid}/{secret}"))
        }
    }

    fn running() -> Cluster {
        let cluster = Cluster::new();
        let settings = Settings {
            root_ca: Some("PEM".to_string()),
            token_signer: Some(Arc::new(Readable)),
            ..Settings::default()
        };
        cluster.run_with(&[&DEF], settings);
        cluster
    }

    fn account(name: &str, uid: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "ns", "uid": uid},
               "secrets": [{"name": "t"}, {"name": "other"}], "imagePullSecrets": [{"name": "pull"}]})
    }

    fn secret(name: &str, account: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "type": ACCOUNT_TOKEN,
               "metadata": {"name": name, "namespace": "ns", "annotations": {ACCOUNT_NAME: account}}})
    }

    fn decoded(text: &Value) -> String {
        String::from_utf8(BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_gets_its_token_and_goes_with_the_account() {
        let cluster = running();
        cluster.put(account("robot", "r1"));
        cluster.put(secret("t", "robot"));
        cluster.wait_until_idle().await;
        let filled = cluster.value::<Secret>("ns", "t").unwrap();
        assert_eq!(decoded(&filled["data"]["ca.crt"]), "PEM");
        assert_eq!(decoded(&filled["data"]["namespace"]), "ns");
        assert_eq!(filled["metadata"]["annotations"][ACCOUNT_UID], "r1");
        assert_eq!(decoded(&filled["data"]["token"]), "ns/robot/r1/t");
        assert_eq!(cluster.writes().len(), 1);
        cluster.delete::<ServiceAccount>("ns", "robot");
        cluster.wait_until_idle().await;
        assert!(cluster.get::<Secret>("ns", "t").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn secrets_of_nobody_go_and_references_to_them() {
        let cluster = running();
        cluster.put(account("robot", "r2"));
        let mut of_former = secret("t", "robot");
        of_former["metadata"]["annotations"][ACCOUNT_UID] = json!("r1");
        cluster.put(of_former);
        cluster.put(json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                           "metadata": {"name": "mine", "namespace": "ns", "annotations": {ACCOUNT_NAME: "nobody"}}}));
        cluster.wait_until_idle().await;
        assert!(cluster.get::<Secret>("ns", "t").is_none());
        assert!(cluster.get::<Secret>("ns", "mine").is_some());
        let account = cluster.value::<ServiceAccount>("ns", "robot").unwrap();
        assert_eq!(account["secrets"], json!([{"name": "other"}]));
        assert_eq!(account["imagePullSecrets"], json!([{"name": "pull"}]));
    }
}
