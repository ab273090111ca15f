//! Definitions of custom resources as kube-apiserver keeps them: in the form of v1beta1, which nobody serves any more.
// Upstream: staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1/types.go (v1.36)

use orlop_api::Value;
use serde_json::{Map, json};

pub(super) const OLD_VERSION: &str = "apiextensions.k8s.io/v1beta1";
const NEW_VERSION: &str = "apiextensions.k8s.io/v1";

/// The same in the form of v1. What is not as it must be stays, and is refused where it is decoded.
pub(super) fn to_v1(definition: &mut Value) {
    definition["apiVersion"] = NEW_VERSION.into();
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let first = spec.remove("version").unwrap_or_default();
    // What all versions have in common stands beside them.
    let common = ["subresources", "additionalPrinterColumns", "selectableFields"].map(|name| (name, spec.remove(name)));
    let schema = spec.remove("validation");
    let versions = spec.entry("versions").or_insert_with(|| json!([]));
    if versions.as_array().is_none_or(Vec::is_empty) {
        *versions = json!([{"name": first, "served": true, "storage": true}]);
    }
    for version in versions
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let mut set = |name: &str, value: &Option<Value>| {
            if let (Some(value), false) = (value, version.contains_key(name)) {
                version.insert(name.to_string(), value.clone());
            }
        };
        common.iter().for_each(|(name, value)| set(name, value));
        set("schema", &schema);
        let columns = version
            .get_mut("additionalPrinterColumns")
            .and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            rename(column, "JSONPath", "jsonPath");
        }
    }
    let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) else {
        return;
    };
    let client = conversion.remove("webhookClientConfig");
    let versions = conversion.remove("conversionReviewVersions");
    let mut webhook = Map::new();
    webhook.extend(client.map(|client| ("clientConfig".to_string(), client)));
    webhook.extend(versions.map(|versions| ("conversionReviewVersions".to_string(), versions)));
    if !webhook.is_empty() && conversion.get("strategy").is_some_and(|strategy| strategy == "Webhook") {
        conversion.insert("webhook".to_string(), webhook.into());
    }
}

fn rename(members: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = members.remove(from) {
        members.insert(to.to_string(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_the_versions_is_each_ones() {
        let mut definition = json!({
            "apiVersion": OLD_VERSION, "kind": "CustomResourceDefinition",
            "spec": {
                "group": "example.com", "version": "v1", "scope": "Namespaced",
                "validation": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".a"}],
                "versions": [
                    {"name": "v1", "served": true, "storage": true},
                    {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object",
                        "x-kubernetes-preserve-unknown-fields": true}}},
                ],
                "conversion": {
                    "strategy": "Webhook", "webhookClientConfig": {"url": "https://x"},
                    "conversionReviewVersions": ["v1"],
                },
                "preserveUnknownFields": false,
            },
        });
        to_v1(&mut definition);
        let columns = json!([{"name": "A", "type": "string", "jsonPath": ".a"}]);
        let wanted = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                     "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": {"type": "object"}}},
                    {"name": "v2", "served": true, "storage": false, "subresources": {"status": {}},
                     "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": {"type": "object",
                        "x-kubernetes-preserve-unknown-fields": true}}},
                ],
                "conversion": {
                    "strategy": "Webhook",
                    "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]},
                },
                "preserveUnknownFields": false,
            },
        });
        assert_eq!(definition, wanted);

        let mut single = json!({"spec": {"version": "v1", "conversion": {"strategy": "None"}}});
        to_v1(&mut single);
        assert_eq!(
            single["spec"],
            json!({"versions": [{"name": "v1", "served": true, "storage": true}], "conversion": {"strategy": "None"}})
        );
    }
}
