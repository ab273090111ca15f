//! Service accounts. Upstream: pkg/registry/core/serviceaccount/strategy.go (v1.36).

use serde_json::{Value, json};

use crate::field::Cursor;
use crate::kind::{KindDef, Subresource};
use crate::meta;

pub const DEF: KindDef = KindDef {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    short_names: &["sa"],
    schema: "core/v1.ServiceAccount",
    subresources: &[Subresource {
        name: "token",
        group: "authentication.k8s.io",
        version: "v1",
        kind: "TokenRequest",
        verbs: &["create"],
    }],
    prepare_create: keep_secret_names,
    prepare_update: |new, _| keep_secret_names(new),
    warnings,
    ..KindDef::BASE
};

/// A reference to a secret is its name and nothing else.
fn keep_secret_names(account: &mut Value) {
    for secret in account
        .get_mut("secrets")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let name = secret.get("name").and_then(Value::as_str).filter(|n| !n.is_empty());
        *secret = name.map_or_else(|| json!({}), |name| json!({"name": name}));
    }
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
    let uses = |account: &Cursor<'_>| meta::annotation(account, ENFORCE).is_some();
    if old.is_some_and(uses) || !uses(new) {
        return vec![];
    }
    vec![format!(
        "metadata.annotations[{ENFORCE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_references_keep_only_the_name() {
        let mut account = json!({"secrets": [{"name": "a", "kind": "Secret", "namespace": "n"}, {"uid": "u"}]});
        (DEF.prepare_create)(&mut account);
        assert_eq!(account, json!({"secrets": [{"name": "a"}, {}]}));
    }

    #[test]
    fn the_deprecated_annotation_is_warned_about_once() {
        let plain = json!({});
        let noted = json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
        let (plain, noted) = (Cursor::root(&plain), Cursor::root(&noted));
        assert_eq!(warnings(&noted, None).len(), 1);
        assert_eq!(warnings(&noted, Some(&plain)).len(), 1);
        assert!(warnings(&noted, Some(&noted)).is_empty() && warnings(&plain, None).is_empty());
    }
}
