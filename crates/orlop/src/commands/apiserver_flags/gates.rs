//! `--runtime-config` and `--feature-gates`: what is served, and how, is fixed; they may ask for what is the case.

use std::collections::BTreeSet;

use anyhow::{Context, bail};

use super::super::parse_bool;

fn split(text: &str) -> anyhow::Result<(&str, bool)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((
            name.trim(),
            parse_bool(value.trim()).with_context(|| format!("{text:?}"))?,
        )),
        None => Ok((text.trim(), true)),
    }
}

/// Group and version of all that is served: "v1", "apps/v1".
fn served() -> BTreeSet<String> {
    let name = |kind: &orlop_api::KindDef| match kind.group {
        "" => kind.version.to_string(),
        group => format!("{group}/{}", kind.version),
    };
    orlop_api::kinds::all().map(name).collect()
}

/// Upstream: staging/src/k8s.io/apiserver/pkg/server/options/api_enablement.go.
pub(super) fn check_runtime_config(entries: &[String]) -> anyhow::Result<()> {
    let served = served();
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        let (key, on) = split(entry).context("--runtime-config")?;
        let version = key.rsplit('/').next().unwrap_or_default();
        let is_preview = version.contains("alpha") || version.contains("beta");
        match (key, on) {
            ("api/ga", true) | ("api/alpha" | "api/beta", false) => {}
            ("api/all" | "api/alpha" | "api/beta", true) => {
                tracing::warn!(
                    entry,
                    "serving no alpha or beta versions but those that are always served"
                );
            }
            ("api/all" | "api/ga" | "api/legacy", false) => bail!("--runtime-config: {key} can't be switched off"),
            ("api/legacy", true) => {}
            (key, on) if served.contains(key) == on => {}
            (key, true) if is_preview => {
                // A component that can do without asks for it all the same.
                tracing::warn!(version = key, "serving no such alpha or beta version");
            }
            (key, true) => bail!("--runtime-config: unknown api groups {key}"),
            (key, false) if served.contains(key) => bail!("--runtime-config: {key} can't be switched off"),
            (_, false) => {}
        }
    }
    Ok(())
}

/// Whatever a gate switches upstream is on or off here for good.
pub(super) fn check_features(entries: &[String]) -> anyhow::Result<()> {
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        let (gate, on) = split(entry).context("--feature-gates")?;
        if gate.is_empty() || !gate.chars().all(|c| c.is_ascii_alphanumeric()) {
            bail!("--feature-gates: unrecognized feature gate: {gate}");
        }
        if !entry.contains('=') {
            bail!("--feature-gates: missing bool value for {gate}");
        }
        tracing::warn!(gate, on, "ignoring a feature gate: what it switches is fixed here");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_may_be_asked_for() {
        for (entry, refused) in [
            ("apps/v1=true", None),
            ("v1", None),
            ("api/all=true", None),
            ("api/beta=false", None),
            ("resource.k8s.io/v1alpha3=true", None),
            ("resource.k8s.io/v1alpha3=false", None),
            ("apps/v1=false", Some("--runtime-config: apps/v1 can't be switched off")),
            ("api/ga=false", Some("--runtime-config: api/ga can't be switched off")),
            (
                "nobody.example/v1=true",
                Some("--runtime-config: unknown api groups nobody.example/v1"),
            ),
        ] {
            let error = check_runtime_config(&[entry.to_string()])
                .err()
                .map(|error| error.to_string());
            assert_eq!(error.as_deref(), refused, "{entry}");
        }
        assert!(check_runtime_config(&["apps/v1=maybe".into()]).is_err());
    }

    #[test]
    fn gates_have_names_and_values() {
        assert!(check_features(&["WatchList=true".into(), "CBORServingAndStorage=false".into()]).is_ok());
        assert!(check_features(&["WatchList".into()]).is_err());
        assert!(check_features(&["WatchList=maybe".into()]).is_err());
        assert!(check_features(&["no-gate=true".into()]).is_err());
    }
}
