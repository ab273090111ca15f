//! Token webhooks: somebody else says whose token it is, in TokenReviews.
// Upstream: staging/src/k8s.io/apiserver/plugin/pkg/authenticator/token/webhook (v1.36)

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Authenticated, UserInfo};
use crate::lookup::{strings, text};
use crate::remote::{AnswerCache, Backoff, CallError, KubeconfigError, Webhook};

const TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500));

/// Where token reviews go.
#[derive(Clone, Debug)]
pub struct TokenWebhookOptions {
    /// A kubeconfig that describes it.
    pub config_file: PathBuf,
    /// Of the reviews: v1 or v1beta1.
    pub version: String,
    pub cache_ttl: Duration,
}

pub(super) struct TokenWebhook {
    webhook: Webhook,
    version: String,
    cache_ttl: Duration,
    answers: AnswerCache<Answer>,
}

#[derive(Clone)]
enum Answer {
    Known(Authenticated),
    /// Nobody's, perhaps with a reason.
    Unknown(Arc<str>),
}

impl TokenWebhook {
    pub(super) fn new(options: &TokenWebhookOptions) -> Result<TokenWebhook, KubeconfigError> {
        Ok(TokenWebhook {
            webhook: Webhook::from_kubeconfig(&options.config_file)?,
            version: options.version.clone(),
            cache_ttl: options.cache_ttl,
            answers: AnswerCache::default(),
        })
    }

    /// The user of a token, or why there is none.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        own_audiences: &[String],
    ) -> Result<Result<Authenticated, Arc<str>>, CallError> {
        let question = crate::pki::sha256(json!([token, audiences]).to_string().as_bytes());
        let ask = async {
            let answer = self.ask(token, audiences, own_audiences).await?;
            Ok((answer, self.cache_ttl))
        };
        Ok(match self.answers.get_or_ask(question, ask).await? {
            Answer::Known(found) => Ok(found),
            Answer::Unknown(why) => Err(why),
        })
    }

    async fn ask(&self, token: &str, audiences: &[String], own_audiences: &[String]) -> Result<Answer, CallError> {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "metadata": {}, "spec": {"token": token, "audiences": audiences}, "status": {"user": {}},
        });
        let answered = BACKOFF
            .retry(CallError::is_retriable, || {
                Box::pin(self.webhook.post(&review, TIMEOUT))
            })
            .await?;
        Ok(read(&answered["status"], audiences, own_audiences))
    }
}

/// What the status of a review says. Webhooks that know of no audiences vouch for the API server's own.
fn read(status: &Value, audiences: &[String], own_audiences: &[String]) -> Answer {
    let found = match strings(status.get("audiences")) {
        found if found.is_empty() => own_audiences.to_vec(),
        found => found,
    };
    let common: Vec<String> = audiences.iter().filter(|a| found.contains(a)).cloned().collect();
    if status["authenticated"] != true || common.is_empty() {
        return Answer::Unknown(text(status, &["error"]).into());
    }
    let user = &status["user"];
    let extra = user["extra"].as_object().into_iter().flatten();
    let mut user = UserInfo {
        name: text(user, &["username"]).to_string(),
        uid: text(user, &["uid"]).to_string(),
        groups: strings(user.get("groups")),
        extra: extra
            .map(|(key, values)| (key.clone(), strings(Some(values))))
            .collect(),
    };
    user.ensure_authenticated();
    Answer::Known(Authenticated {
        user: Arc::new(user),
        audiences: common,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_read() {
        let own = vec!["api".to_string()];
        for (status, audiences, wanted) in [
            (
                json!({"authenticated": true, "user": {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}}}),
                vec!["api"],
                Ok("ann g+system:authenticated api"),
            ),
            (
                json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["x", "y"]}),
                vec!["y", "z"],
                Ok("ann system:authenticated y"),
            ),
            (
                json!({"authenticated": true, "user": {"username": "ann"}}),
                vec!["other"],
                Err(""),
            ),
            (
                json!({"authenticated": false, "error": "expired"}),
                vec!["api"],
                Err("expired"),
            ),
            (Value::Null, vec!["api"], Err("")),
        ] {
            let audiences: Vec<String> = audiences.into_iter().map(str::to_string).collect();
            let found = match read(&status, &audiences, &own) {
                Answer::Known(found) => {
                    let user = &found.user;
                    Ok(format!(
                        "{} {} {}",
                        user.name,
                        user.groups.join("+"),
                        found.audiences.join("+")
                    ))
                }
                Answer::Unknown(why) => Err(why.to_string()),
            };
            assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{status}");
        }
    }
}
