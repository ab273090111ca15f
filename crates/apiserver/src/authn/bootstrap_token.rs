//! Bootstrap tokens: `id.secret`, kept in secrets of kube-system, with which new nodes introduce themselves.
//! Upstream: plugin/pkg/auth/authenticator/token/bootstrap (v1.36).

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::{AUTHENTICATED, UserInfo, data_of, same_bytes};
use crate::lookup::{ObjectLookup, text};

const GROUP: &str = "system:bootstrappers";

/// The user of a bootstrap token, if it is one and may be used for authentication.
pub(super) fn authenticate(token: &str, now: Timestamp, lookup: &dyn ObjectLookup) -> Option<UserInfo> {
    let (id, secret) = split(token)?;
    let object = lookup.get("secrets", "kube-system", &format!("bootstrap-token-{id}"))?;
    let usable = object["metadata"].get("deletionTimestamp").is_none()
        && text(&object, &["type"]) == "bootstrap.kubernetes.io/token"
        && same_bytes(&data_of(&object, "token-secret"), secret.as_bytes())
        && data_of(&object, "token-id") == id.as_bytes()
        && !is_expired(&object, now)
        && data_of(&object, "usage-bootstrap-authentication") == b"true";
    if !usable {
        return None;
    }
    let mut user = UserInfo {
        name: format!("system:bootstrap:{id}"),
        groups: groups(&object)?,
        ..Default::default()
    };
    user.ensure_group(AUTHENTICATED);
    Some(user)
}

fn split(token: &str) -> Option<(&str, &str)> {
    let plain = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    token
        .split_once('.')
        .filter(|(id, secret)| plain(id, 6) && plain(secret, 16))
}

/// An unreadable date counts as past.
fn is_expired(secret: &Value, now: Timestamp) -> bool {
    match String::from_utf8(data_of(secret, "expiration")) {
        Ok(date) if date.is_empty() => false,
        Ok(date) => date.parse::<Timestamp>().map_or(true, |expires| expires <= now),
        Err(_) => true,
    }
}

/// The default group and the extra ones, sorted; none if a name is not allowed here.
fn groups(secret: &Value) -> Option<Vec<String>> {
    let extra = String::from_utf8(data_of(secret, "auth-extra-groups")).ok()?;
    let mut groups = BTreeSet::from([GROUP.to_string()]);
    for group in extra.split(',').filter(|_| !extra.is_empty()) {
        let name = group.strip_prefix(GROUP)?.strip_prefix(':')?;
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let allowed = name.len() <= 256
            && name.bytes().all(|b| plain(b) || b == b':' || b == b'-')
            && name.bytes().last().is_some_and(plain);
        if !allowed {
            return None;
        }
        groups.insert(group.to_string());
    }
    Some(groups.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn truth_table() {
        // changes to a good secret (key, value; "" removes it), the token, the groups it gives (none: refused)
        let plain = Some(vec!["system:bootstrappers", "system:authenticated"]);
        let cases = [
            (vec![], TOKEN, plain.clone()),
            (vec![], "abcdef.0123456789abcdeX", None),
            (vec![], "abcdef.0123456789abcde0", None),
            (vec![], "abcdeg.0123456789abcdef", None),
            (vec![], "abcdef", None),
            (vec![("token-id", "abcdeg")], TOKEN, None),
            (vec![("token-secret", "")], TOKEN, None),
            (vec![("usage-bootstrap-authentication", "")], TOKEN, None),
            (vec![("usage-bootstrap-authentication", "yes")], TOKEN, None),
            (vec![("expiration", "2026-11-15T12:00:01Z")], TOKEN, plain.clone()),
            (vec![("expiration", "2026-11-15T14:00:01+02:00")], TOKEN, plain),
            (vec![("expiration", "2026-11-15T12:00:00Z")], TOKEN, None),
            (vec![("expiration", "tomorrow")], TOKEN, None),
            (
                vec![("auth-extra-groups", "system:bootstrappers:z,system:bootstrappers:a:b-c")],
                TOKEN,
                Some(vec![
                    "system:bootstrappers",
                    "system:bootstrappers:a:b-c",
                    "system:bootstrappers:z",
                    "system:authenticated",
                ]),
            ),
            (vec![("auth-extra-groups", "system:masters")], TOKEN, None),
            (vec![("auth-extra-groups", "system:bootstrappers:")], TOKEN, None),
            (vec![("auth-extra-groups", "system:bootstrappers:a-")], TOKEN, None),
            (vec![("type", "Opaque")], TOKEN, None),
            (vec![("deleted", "yes")], TOKEN, None),
        ];
        for (changes, token, expected) in cases {
            let mut data = serde_json::Map::new();
            let mut secret = json!({"metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef"},
                "type": "bootstrap.kubernetes.io/token"});
            let good = [
                ("token-id", "abcdef"),
                ("token-secret", "0123456789abcdef"),
                ("usage-bootstrap-authentication", "true"),
            ];
            for (key, value) in good.iter().chain(&changes) {
                match *key {
                    "type" => secret["type"] = json!(value),
                    "deleted" => secret["metadata"]["deletionTimestamp"] = json!("2026-11-15T12:00:00Z"),
                    _ => drop(data.insert(key.to_string(), json!(BASE64_STANDARD.encode(value)))),
                }
            }
            secret["data"] = Value::Object(data);
            let objects = Objects::default().with("secrets", secret);
            let user = authenticate(token, "2026-11-15T12:00:00Z".parse().unwrap(), &objects);
            let groups = user
                .as_ref()
                .map(|u| u.groups.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(groups, expected, "{changes:?} {token}");
            if let Some(user) = user {
                assert_eq!(user.name, "system:bootstrap:abcdef");
            }
        }
    }
}
