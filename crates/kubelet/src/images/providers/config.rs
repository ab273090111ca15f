//! The configuration of credential providers: CredentialProviderConfig, in one file or several in a directory.
// Upstream: pkg/credentialprovider/plugin/config.go (v1.36)

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_api::duration::parse_duration;
use serde::{Deserialize, Deserializer};

use super::ProviderError;

pub(super) const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const VERSIONS: [&str; 3] = [
    V1,
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
const CONFIG_VERSIONS: [&str; 3] = [
    "kubelet.config.k8s.io/v1",
    "kubelet.config.k8s.io/v1beta1",
    "kubelet.config.k8s.io/v1alpha1",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<ProviderConfig>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ProviderConfig {
    /// Also the name of its program.
    pub name: String,
    #[serde(default)]
    pub match_images: Vec<String>,
    #[serde(default, deserialize_with = "duration")]
    pub default_cache_duration: Option<Duration>,
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<Variable>,
    #[serde(default)]
    pub token_attributes: Option<TokenAttributes>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TokenAttributes {
    #[serde(default)]
    pub service_account_token_audience: String,
    /// Pods without a service account get nothing from this provider.
    #[serde(default)]
    pub require_service_account: Option<bool>,
    #[serde(default)]
    pub required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    pub optional_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    pub cache_type: String,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let nanos = parse_duration(&text).map_err(serde::de::Error::custom)?;
    let nanos = u64::try_from(nanos)
        .map_err(|_| serde::de::Error::custom(format!("{text} must be greater than or equal to 0")))?;
    Ok(Some(Duration::from_nanos(nanos)))
}

/// All providers of a file, or of the files of a directory in the order of their names.
pub(super) fn read(path: &Path) -> Result<Vec<ProviderConfig>, ProviderError> {
    let mut all: Vec<ProviderConfig> = Vec::new();
    for file in files(path)? {
        let shown = file.display();
        let text = std::fs::read_to_string(&file)
            .map_err(|e| ProviderError::Config(format!("unable to read file {shown}: {e}")))?;
        let document: Document = serde_saphyr::from_str(&text)
            .map_err(|e| ProviderError::Config(format!("error decoding config {shown}: {e}")))?;
        if document.kind != "CredentialProviderConfig" || !CONFIG_VERSIONS.contains(&document.api_version.as_str()) {
            return Err(ProviderError::Config(format!(
                "error decoding config {shown}: unexpected kind {:?} of {:?}: must be CredentialProviderConfig of {}",
                document.kind, document.api_version, CONFIG_VERSIONS[0]
            )));
        }
        all.extend(document.providers);
    }
    let problems = problems(&all);
    match problems.is_empty() {
        true => Ok(all),
        false => Err(ProviderError::Config(format!(
            "failed to validate credential provider config: {}",
            problems.join("; ")
        ))),
    }
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ProviderError> {
    let shown = path.display();
    let found =
        std::fs::metadata(path).map_err(|e| ProviderError::Config(format!("unable to access path {shown}: {e}")))?;
    if !found.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries =
        std::fs::read_dir(path).map_err(|e| ProviderError::Config(format!("unable to read directory {shown}: {e}")))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| !file.is_dir())
        .filter(|file| matches!(file.extension().and_then(|e| e.to_str()), Some("json" | "yaml" | "yml")))
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(ProviderError::Config(format!(
            "no configuration files found in directory {shown}"
        ))),
        false => Ok(files),
    }
}

/// Every problem, by its field.
fn problems(providers: &[ProviderConfig]) -> Vec<String> {
    let mut problems = Vec::new();
    if providers.is_empty() {
        problems.push("providers: at least 1 item in plugins is required".to_string());
    }
    let mut names = BTreeSet::new();
    for (n, provider) in providers.iter().enumerate() {
        let mut say = |field: &str, problem: String| problems.push(format!("providers[{n}].{field}: {problem}"));
        let name = &provider.name;
        if name.is_empty() || name.contains(['/', ' ', '\0']) || name == "." || name == ".." {
            say(
                "name",
                format!("{name:?} is not the name of a program in the folder of providers"),
            );
        }
        if !names.insert(name) {
            say("name", format!("duplicate provider name {name:?}"));
        }
        if !VERSIONS.contains(&provider.api_version.as_str()) {
            let versions = VERSIONS.join(", ");
            say(
                "apiVersion",
                format!("{:?}: must be one of {versions}", provider.api_version),
            );
        }
        if provider.match_images.is_empty() {
            say("matchImages", "at least 1 item in matchImages is required".into());
        }
        for image in provider
            .match_images
            .iter()
            .filter(|image| image.contains(char::is_whitespace))
        {
            say("matchImages", format!("match image is invalid: {image:?}"));
        }
        if provider.default_cache_duration.is_none() {
            say("defaultCacheDuration", "is required".into());
        }
        if let Some(attributes) = &provider.token_attributes {
            token_problems(attributes, &provider.api_version, |field, problem| {
                say(&format!("tokenAttributes{field}"), problem);
            });
        }
    }
    problems
}

fn token_problems(attributes: &TokenAttributes, version: &str, mut say: impl FnMut(&str, String)) {
    if version != V1 {
        say("", format!("is only supported for {V1} API version"));
    }
    if attributes.service_account_token_audience.is_empty() {
        say(".serviceAccountTokenAudience", "is required".into());
    }
    let required = &attributes.required_service_account_annotation_keys;
    match attributes.require_service_account {
        None => say(".requireServiceAccount", "is required".into()),
        Some(false) if !required.is_empty() => say(
            ".requiredServiceAccountAnnotationKeys",
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set".into(),
        ),
        Some(_) => {}
    }
    let mut seen = BTreeSet::new();
    for key in required
        .iter()
        .chain(&attributes.optional_service_account_annotation_keys)
    {
        if key.is_empty() || !seen.insert(key) {
            say("", format!("the annotation key {key:?} is empty or listed twice"));
        }
    }
    if !["ServiceAccount", "Token"].contains(&attributes.cache_type.as_str()) {
        let is = &attributes.cache_type;
        say(".cacheType", format!("{is:?}: must be one of ServiceAccount, Token"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
  - name: ecr
    matchImages: ["*.dkr.ecr.*.amazonaws.com", "registry.io:8080/path"]
    defaultCacheDuration: 12h
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    args: [get]
    env: [{name: AWS_PROFILE, value: x}]
    tokenAttributes:
      serviceAccountTokenAudience: aud
      cacheType: Token
      requireServiceAccount: true
      requiredServiceAccountAnnotationKeys: [a.io/role]
      optionalServiceAccountAnnotationKeys: [a.io/other]
"#;

    fn problem(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, text).unwrap();
        read(&file).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_file_or_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            read(&dir.path().join("none"))
                .unwrap_err()
                .to_string()
                .starts_with("unable to access path")
        );
        assert!(
            read(dir.path())
                .unwrap_err()
                .to_string()
                .starts_with("no configuration files found")
        );
        std::fs::write(dir.path().join("b.yaml"), GOOD).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "nothing").unwrap();
        let other = GOOD.replace("name: ecr", "name: acr");
        std::fs::write(dir.path().join("a.yml"), other).unwrap();
        let names: Vec<String> = read(dir.path()).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["acr", "ecr"]);
        let one = &read(&dir.path().join("b.yaml")).unwrap()[0];
        assert_eq!(one.default_cache_duration, Some(Duration::from_secs(12 * 3600)));
        std::fs::write(dir.path().join("c.json"), GOOD).unwrap();
        assert!(
            read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("duplicate provider name \"ecr\"")
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(problem(GOOD), "");
        let cases = [
            ("name: ecr", "name: ../sh", "providers[0].name: \"../sh\""),
            ("name: ecr", "name: ..", "providers[0].name"),
            ("cacheType: Token", "cacheType: Tokens", "tokenAttributes.cacheType"),
            ("cacheType: Token", "cachetype: Token", "cachetype"),
            ("defaultCacheDuration: 12h", "", "defaultCacheDuration: is required"),
            (
                "defaultCacheDuration: 12h",
                "defaultCacheDuration: -1s",
                "must be greater than or equal to 0",
            ),
            (
                "credentialprovider.kubelet.k8s.io/v1",
                "credentialprovider.kubelet.k8s.io/v2",
                "apiVersion",
            ),
            (
                "credentialprovider.kubelet.k8s.io/v1",
                "credentialprovider.kubelet.k8s.io/v1beta1",
                "is only supported",
            ),
            (
                "requireServiceAccount: true",
                "requireServiceAccount: false",
                "cannot be false when",
            ),
            ("a.io/other", "a.io/role", "listed twice"),
            (
                "kind: CredentialProviderConfig",
                "kind: KubeletConfiguration",
                "unexpected kind \"KubeletConfiguration\"",
            ),
        ];
        for (is, becomes, expected) in cases {
            let said = problem(&GOOD.replace(is, becomes));
            assert!(said.contains(expected), "{becomes}: {said}");
        }
    }
}
