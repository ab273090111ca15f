//! EncryptionConfiguration files (`apiserver.config.k8s.io/v1`): which resources are encrypted in the log, and with what.
// Upstream: staging/src/k8s.io/apiserver/pkg/apis/apiserver/validation/validation_encryption.go (v1.36)

use std::collections::HashSet;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::config_file::{self, ContentError, duration};

const AES_KEY_SIZES: [usize; 3] = [16, 24, 32];
const SECRETBOX_KEY_SIZES: [usize; 1] = [32];

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct EncryptionConfiguration {
    pub(super) resources: Vec<ResourceConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ResourceConfiguration {
    pub(super) resources: Vec<String>,
    pub(super) providers: Vec<ProviderConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ProviderConfiguration {
    pub(super) aesgcm: Option<Keys>,
    pub(super) aescbc: Option<Keys>,
    pub(super) secretbox: Option<Keys>,
    pub(super) identity: Option<Value>,
    pub(super) kms: Option<KmsConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Keys {
    pub(super) keys: Vec<Key>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Key {
    pub(super) name: String,
    secret: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Name: {}, Secret: [REDACTED]", self.name)
    }
}

impl Key {
    pub(super) fn secret(&self) -> Vec<u8> {
        BASE64_STANDARD.decode(&self.secret).unwrap_or_default()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct KmsConfiguration {
    pub(super) api_version: String,
    pub(super) name: String,
    pub(super) cachesize: Option<i64>,
    pub(super) endpoint: String,
    #[serde(deserialize_with = "duration")]
    pub(super) timeout: Option<Duration>,
}

/// What is wrong with an encryption configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum EncryptionConfigError {
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error("{}", .0.join(", "))]
    Invalid(Vec<String>),
}

impl EncryptionConfiguration {
    pub(super) fn parse(bytes: &[u8]) -> Result<EncryptionConfiguration, EncryptionConfigError> {
        let versions = ["apiserver.config.k8s.io/v1"];
        let configuration: EncryptionConfiguration = config_file::decode(bytes, &versions, "EncryptionConfiguration")?;
        let problems = configuration.problems();
        match problems.is_empty() {
            true => Ok(configuration),
            false => Err(EncryptionConfigError::Invalid(problems)),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.resources.is_empty() {
            problems.push("resources: Required value: at least one resources is required".to_string());
        }
        let mut kms_names = HashSet::new();
        for (i, entry) in self.resources.iter().enumerate() {
            let path = format!("resources[{i}]");
            for (field, is_empty) in [
                ("resources", entry.resources.is_empty()),
                ("providers", entry.providers.is_empty()),
            ] {
                if is_empty {
                    let field = format!("{path}.{field}");
                    problems.push(format!("{field}: Required value: at least one {field} is required"));
                }
            }
            check_resources(&format!("{path}.resources"), &entry.resources, &mut problems);
            for (j, provider) in entry.providers.iter().enumerate() {
                provider.check(&format!("{path}.providers[{j}]"), &mut kms_names, &mut problems);
            }
        }
        problems
    }
}

fn check_resources(path: &str, resources: &[String], problems: &mut Vec<String>) {
    let mut seen = HashSet::new();
    let mut groups = HashSet::new();
    for (i, resource) in resources.iter().enumerate() {
        let why = match resource.as_str() {
            "*" => Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"),
            text if text.chars().any(char::is_uppercase) => Some("resource name should not contain capital letters"),
            text if text.ends_with(".events.k8s.io") || text.ends_with("extensions") && text.contains('.') => Some(
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
                 config file",
            ),
            text if !seen.insert(text) => Some("the same resource cannot be specified multiple times"),
            _ => None,
        };
        if let Some(why) = why {
            problems.push(format!("{path}[{i}]: Invalid value: {resource:?}: {why}"));
        }
        groups.insert(group_of(resource));
    }
    let is_masked = |resource: &String| {
        let is_everything = resource == "*.*";
        match resource.strip_prefix("*.") {
            _ if is_everything => resources.len() > 1,
            Some(group) => resources
                .iter()
                .any(|other| other != resource && group_of(other) == group),
            None => false,
        }
    };
    if resources.iter().any(is_masked) {
        problems.push(format!(
            "{path}: Invalid value: {resources:?}: using overlapping resources such as 'secrets' and '*.' in the same \
             resource list is not allowed as they will be masked"
        ));
    }
}

fn group_of(resource: &str) -> &str {
    resource.split_once('.').map_or("", |(_, group)| group)
}

impl ProviderConfiguration {
    fn check(&self, path: &str, kms_names: &mut HashSet<String>, problems: &mut Vec<String>) {
        let given = [
            self.aesgcm.is_some(),
            self.aescbc.is_some(),
            self.secretbox.is_some(),
            self.identity.is_some(),
            self.kms.is_some(),
        ];
        match given.iter().filter(|given| **given).count() {
            0 => problems.push(format!(
                "{path}: Required value: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, \
                 Secretbox, Identity"
            )),
            1 => {}
            _ => problems.push(format!(
                "{path}: Invalid value: more than one provider specified in a single element, should split into \
                 different list elements"
            )),
        }
        let mut keys = |field: &str, keys: &Option<Keys>, sizes: &[usize]| {
            if let Some(keys) = keys {
                keys.check(&format!("{path}.{field}.keys"), sizes, problems);
            }
        };
        keys("aesgcm", &self.aesgcm, &AES_KEY_SIZES);
        keys("aescbc", &self.aescbc, &AES_KEY_SIZES);
        keys("secretbox", &self.secretbox, &SECRETBOX_KEY_SIZES);
        if let Some(kms) = &self.kms {
            kms.check(&format!("{path}.kms"), kms_names, problems);
        }
    }
}

impl Keys {
    fn check(&self, path: &str, sizes: &[usize], problems: &mut Vec<String>) {
        if self.keys.is_empty() {
            problems.push(format!("{path}: Required value: at least one {path} is required"));
        }
        for (i, key) in self.keys.iter().enumerate() {
            let path = format!("{path}[{i}]");
            if key.name.is_empty() {
                problems.push(format!(
                    "{path}.name: Required value: name is a mandatory field for a key"
                ));
            }
            match BASE64_STANDARD.decode(&key.secret) {
                _ if key.secret.is_empty() => {
                    problems.push(format!("{path}.secret: Required value: secret is a mandatory field for a key"));
                }
                Err(_) => problems.push(format!(
                    "{path}.secret: Invalid value: \"REDACTED\": secrets must be base64 encoded"
                )),
                Ok(secret) if !sizes.contains(&secret.len()) => problems.push(format!(
                    "{path}.secret: Invalid value: \"REDACTED\": secret is not of the expected length, got {}, expected \
                     one of {sizes:?}",
                    secret.len()
                )),
                Ok(_) => {}
            }
        }
    }
}

impl KmsConfiguration {
    fn check(&self, path: &str, names: &mut HashSet<String>, problems: &mut Vec<String>) {
        let mut invalid = |field: &str, value: &str, why: &str| {
            problems.push(format!("{path}.{field}: Invalid value: {value:?}: {why}"));
        };
        match self.name.as_str() {
            "" => invalid("name", "", "name is a mandatory field for a provider"),
            name if name.contains(':') => {
                let why = format!("invalid KMS provider name {name}, must not contain ':'");
                invalid("name", name, &why);
            }
            name if !names.insert(name.to_string()) => {
                let why = format!("duplicate KMS provider name {name}, names must be unique");
                invalid("name", name, &why);
            }
            _ => {}
        }
        if self.api_version != "v2" {
            invalid(
                "apiVersion",
                &self.api_version,
                "unsupported apiVersion for KMS provider, only v2 is supported",
            );
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            invalid("timeout", "0s", "timeout should be a positive value");
        }
        if self.cachesize.is_some() {
            invalid("cachesize", "", "cachesize is not supported in v2");
        }
        if self.socket().is_none() {
            invalid(
                "endpoint",
                &self.endpoint,
                "unsupported scheme for KMS provider, only unix is supported",
            );
        }
    }

    /// The path of the socket; abstract ones begin with `@`.
    pub(super) fn socket(&self) -> Option<&str> {
        let path = self.endpoint.strip_prefix("unix:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        (!path.is_empty()).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(resources: &str) -> Result<EncryptionConfiguration, EncryptionConfigError> {
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: {resources}}}"
        );
        EncryptionConfiguration::parse(text.as_bytes())
    }

    #[test]
    fn files_are_checked() {
        let key = "{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZg==}";
        let with = |resources: &str, provider: &str| format!("[{{resources: {resources}, providers: [{provider}]}}]");
        let kms = |fields: &str| {
            with(
                "[secrets]",
                &format!("{{kms: {{apiVersion: v2, name: a, endpoint: 'unix:///x', {fields}}}}}"),
            )
        };
        for good in [
            with(
                "[secrets, configmaps, things.example.com]",
                &format!("{{aesgcm: {{keys: [{key}]}}}}, {{identity: {{}}}}"),
            ),
            with("['*.*']", &format!("{{aescbc: {{keys: [{key}]}}}}")),
            with("['*.', '*.apps']", "{identity: {}}"),
            kms("timeout: 3s"),
        ] {
            parse(&good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for (text, wanted) in [
            ("[]".to_string(), "at least one resources is required"),
            (
                with("[]", "{identity: {}}"),
                "at least one resources[0].resources is required",
            ),
            (with("[secrets]", ""), "at least one resources[0].providers is required"),
            (
                with("['*']", "{identity: {}}"),
                "use '*.' to encrypt all the resources from core API group",
            ),
            (
                with("[Secrets]", "{identity: {}}"),
                "should not contain capital letters",
            ),
            (
                with("[secrets, secrets]", "{identity: {}}"),
                "cannot be specified multiple times",
            ),
            (with("[secrets, '*.']", "{identity: {}}"), "they will be masked"),
            (with("[secrets, '*.*']", "{identity: {}}"), "they will be masked"),
            (
                with("[secrets]", "{}"),
                "does not contain any of the expected providers",
            ),
            (
                with("[secrets]", &format!("{{identity: {{}}, aescbc: {{keys: [{key}]}}}}")),
                "more than one provider specified",
            ),
            (
                with("[secrets]", "{aesgcm: {keys: []}}"),
                "at least one resources[0].providers[0].aesgcm.keys is required",
            ),
            (
                with("[secrets]", "{aesgcm: {keys: [{name: k, secret: '***'}]}}"),
                "secrets must be base64 encoded",
            ),
            (
                with("[secrets]", &format!("{{secretbox: {{keys: [{key}]}}}}")),
                "got 16, expected one of [32]",
            ),
            (
                with(
                    "[secrets]",
                    &format!("{{aescbc: {{keys: [{}]}}}}", key.replace("name: k,", "")),
                ),
                "name is a mandatory",
            ),
            (kms("").replace("v2", "v1"), "only v2 is supported"),
            (kms("").replace("unix:///x", "tcp://x"), "only unix is supported"),
            (kms("").replace("name: a", "name: 'a:b'"), "must not contain ':'"),
            (kms("cachesize: 5"), "cachesize is not supported in v2"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}:\n{error}");
            assert!(!error.contains("MDEy"), "no secrets in errors: {error}");
        }
    }
}
