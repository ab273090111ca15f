//! Named formats: `format.dns1123Label().validate(text)`.
//!
//! Upstream: apiserver/pkg/cel/library/format.go, apimachinery/pkg/util/validation, kube-openapi's strfmt.

use super::{Body, Outcome, no_overload, time, url};
use crate::value::Value;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use orlop_api::names;

/// A format and what is said about texts that do not have it.
#[derive(Debug)]
pub struct NamedFormat {
    /// As expressions name it.
    key: &'static str,
    pub(crate) name: &'static str,
    /// How long its pattern counts in costs.
    pub(crate) pattern_size: u64,
    validate: fn(&str) -> Vec<String>,
}

macro_rules! formats {
    ($($key:literal $name:literal $size:literal $validate:expr),+ $(,)?) => {
        const FORMATS: &[NamedFormat] = &[$(NamedFormat {
            key: $key,
            name: $name,
            pattern_size: $size,
            validate: $validate,
        }),+];

        pub(super) const FUNCTIONS: &[(&str, Body)] = &[
            ("format.named", named),
            ("validate", validate),
            $((concat!("format.", $key), |_| Ok(find($key).map_or(Value::Null, Value::Format)))),+
        ];
    };
}

formats! {
    "dns1123Label" "DNS1123Label" 30 names::dns_label,
    "dns1123Subdomain" "DNS1123Subdomain" 60 names::dns_subdomain,
    "dns1035Label" "DNS1035Label" 30 names::dns_1035_label,
    "qualifiedName" "QualifiedName" 60 names::qualified_name,
    "dns1123LabelPrefix" "DNS1123LabelPrefix" 30 |text| names::dns_label(&without_dash(text)),
    "dns1123SubdomainPrefix" "DNS1123SubdomainPrefix" 60 |text| names::dns_subdomain(&without_dash(text)),
    "dns1035LabelPrefix" "DNS1035LabelPrefix" 30 |text| names::dns_1035_label(&without_dash(text)),
    "labelValue" "LabelValue" 40 names::label_value,
    "uri" "URI" 1103 |text| url::parse(text).err().into_iter().collect(),
    "uuid" "uuid" 100 |text| said(is_uuid(text), "does not match the UUID format"),
    "byte" "byte" 84 |text| said(BASE64_STANDARD.decode(text).is_ok(), "invalid base64"),
    "date" "date" 116 |text| said(text.len() == 10 && time::parse_date_or_time(text).is_some(), "invalid date"),
    "datetime" "datetime" 116 |text| {
        said(text.len() > 10 && time::parse_date_or_time(text).is_some(), "invalid datetime")
    },
}

fn said(ok: bool, otherwise: &str) -> Vec<String> {
    if ok { vec![] } else { vec![otherwise.to_string()] }
}

/// A name to which something will be appended may end in a dash.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(start) if text.len() > 1 => format!("{start}a"),
        _ => text.to_string(),
    }
}

fn is_uuid(text: &str) -> bool {
    let bare: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    bare.len() == 32 && bare.iter().all(u8::is_ascii_hexdigit)
}

fn find(key: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.key == key)
}

fn named<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(name)] => Ok(Value::optional(find(name).map(Value::Format))),
        _ => no_overload(),
    }
}

fn validate<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Format(format), Value::String(text)] => {
            let problems = (format.validate)(text);
            let problems =
                (!problems.is_empty()).then(|| Value::list(problems.into_iter().map(Value::string).collect()));
            Ok(Value::optional(problems))
        }
        _ => no_overload(),
    }
}
