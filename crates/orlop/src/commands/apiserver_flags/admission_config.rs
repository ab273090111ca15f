//! `--admission-control-config-file`: what plugins are told. Upstream: apiserver.config.k8s.io/v1.

use std::path::Path;

use anyhow::{Context, bail};
use orlop_apiserver::admission::Switches;
use serde_json::Value;

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

/// Tells the plugins what the file says.
pub(super) fn apply(path: &Path, switches: &mut Switches) -> anyhow::Result<()> {
    let file = read(path)?;
    let (version, kind) = (
        file["apiVersion"].as_str().unwrap_or(""),
        file["kind"].as_str().unwrap_or(""),
    );
    if !version.starts_with("apiserver.config.k8s.io/") || kind != "AdmissionConfiguration" {
        bail!("{}: {version:?} {kind:?} is no AdmissionConfiguration", path.display());
    }
    for plugin in file["plugins"].as_array().into_iter().flatten() {
        let name = plugin["name"].as_str().unwrap_or("");
        let configuration = match (&plugin["configuration"], plugin["path"].as_str().unwrap_or("")) {
            (Value::Null, "") => bail!(
                "{}: the plugin {name:?} has neither configuration nor path",
                path.display()
            ),
            // Where the file is, if it says no more.
            (Value::Null, other) => read(&path.parent().unwrap_or(Path::new("")).join(other))?,
            (inline, _) => inline.clone(),
        };
        switches.configure(name, &configuration)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECURITY: &str = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n\
                            defaults:\n  enforce: baseline\n";

    #[test]
    fn plugins_are_told_inline_or_by_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("admission.yaml");
        std::fs::write(dir.path().join("security.yaml"), SECURITY).unwrap();
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
        let indented = SECURITY.replace('\n', "\n    ");
        let inline = format!("{head}- name: PodSecurity\n  configuration:\n    {indented}\n");
        let mut told = Vec::new();
        for text in [inline, format!("{head}- name: PodSecurity\n  path: security.yaml\n")] {
            std::fs::write(&file, text).unwrap();
            let mut switches = Switches::default();
            apply(&file, &mut switches).unwrap();
            assert_ne!(switches, Switches::default());
            told.push(switches);
        }
        assert_eq!(told[0], told[1]);
        for (text, message) in [
            ("kind: Pod\n".to_string(), "is no AdmissionConfiguration"),
            (format!("{head}- name: Unheard\n  configuration: {{}}\n"), "is unknown"),
            (
                format!("{head}- name: EventRateLimit\n  configuration: {{}}\n"),
                "only PodSecurity can be configured here",
            ),
            (
                format!("{head}- name: PodSecurity\n"),
                "has neither configuration nor path",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = apply(&file, &mut Switches::default()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
