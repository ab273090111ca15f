//! The versions of the configuration: v1, and what is still read of v1beta3 and v1beta2.

use orlop_api::Cursor;
use serde_json::Value;

use super::defaults::PluginRow;
use super::problem::Problems;
use super::read::Fields;

pub(super) const GROUP: &str = "kubescheduler.config.k8s.io";
pub(super) const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
pub(super) const KIND: &str = "KubeSchedulerConfiguration";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiVersion {
    V1,
    V1Beta3,
    V1Beta2,
}

impl ApiVersion {
    pub(super) fn name(self) -> &'static str {
        match self {
            ApiVersion::V1 => "v1",
            ApiVersion::V1Beta3 => "v1beta3",
            ApiVersion::V1Beta2 => "v1beta2",
        }
    }

    fn parse(text: &str) -> Option<ApiVersion> {
        let version = text.strip_prefix(GROUP)?.strip_prefix('/')?;
        [ApiVersion::V1, ApiVersion::V1Beta3, ApiVersion::V1Beta2]
            .into_iter()
            .find(|v| v.name() == version)
    }

    pub(super) fn is_old(self) -> bool {
        self != ApiVersion::V1
    }

    /// The default weight of a plugin: three were raised with v1beta3, and v1beta2 keeps meaning what it meant.
    pub(super) fn default_weight(self, row: &PluginRow) -> i64 {
        match (self, row.name) {
            (ApiVersion::V1Beta2, "InterPodAffinity" | "NodeAffinity" | "TaintToleration") => 1,
            _ => row.weight,
        }
    }

    /// Why a plugin that is gone in every version is refused.
    pub(super) fn invalid_plugin(self) -> String {
        format!(
            "was invalid in version \"v1\" (KubeSchedulerConfiguration is version \"{GROUP}/{}\")",
            self.name()
        )
    }

    /// Whether plugin args may say this of themselves.
    pub(super) fn takes_args_of(self, api_version: &str) -> bool {
        ApiVersion::parse(api_version).is_some_and(|v| v == self || v == ApiVersion::V1)
    }
}

/// Reads apiVersion and kind. `None` if this is something else altogether, and reading on would only confuse.
pub(super) fn read(fields: &mut Fields<'_>, p: &mut Problems, warnings: &mut Vec<String>) -> Option<ApiVersion> {
    let (api_version, kind) = (fields.at("apiVersion"), fields.at("kind"));
    let known = word(&api_version, p).and_then(|text| {
        let version = ApiVersion::parse(text);
        if version.is_none() {
            let detail = format!("no kind {KIND:?} is registered for this version; only {API_VERSION} is");
            p.invalid(api_version.path(), text, detail);
        }
        version
    });
    let kind = word(&kind, p).and_then(|text| {
        if text != KIND {
            p.invalid(kind.path(), text, format!("couldn't decode as {KIND}"));
        }
        (text == KIND).then_some(())
    });
    if let Some(version) = known.filter(|v| v.is_old()) {
        warnings.push(old(version));
    }
    kind.and(known)
}

fn word<'a>(c: &Cursor<'a>, p: &mut Problems) -> Option<&'a str> {
    match c.value() {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        Some(value) if !value.is_string() => {
            p.wrong_type(c.path(), value, "must be a string");
            None
        }
        _ => {
            p.required(c.path(), "");
            None
        }
    }
}

fn old(version: ApiVersion) -> String {
    let name = version.name();
    let kept = match version {
        ApiVersion::V1Beta2 => "; InterPodAffinity, NodeAffinity and TaintToleration keep its default weight of 1",
        _ => "",
    };
    format!("apiVersion: {GROUP}/{name} no longer exists and is read as v1{kept}; write {API_VERSION}")
}

/// Fields that only older versions have.
pub(super) fn read_old_fields(
    fields: &mut Fields<'_>,
    version: ApiVersion,
    p: &mut Problems,
    warnings: &mut Vec<String>,
) {
    if version != ApiVersion::V1Beta2 {
        return;
    }
    for name in ["healthzBindAddress", "metricsBindAddress"] {
        let Some(address) = fields.text(name, p) else { continue };
        let path = fields.path().field(name);
        if address.is_empty() || address == "0" || address.ends_with(":0") {
            warnings.push(format!(
                "{path}: is left out: there is no insecure port; use --secure-port"
            ));
        } else {
            p.invalid(
                &path,
                address,
                "must be empty or with an explicit 0 port; use --secure-port",
            );
        }
    }
}
