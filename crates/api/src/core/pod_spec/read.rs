//! Reading that costs nothing for what is not there. A pod spec has hundreds of fields of which a pod uses twenty, so
//! paths are only built for fields that are present.

use std::net::IpAddr;

use serde_json::Value;

use crate::field::{Cursor, Path, Problems};
use crate::workload;

pub(crate) trait Read<'a> {
    /// The field, if it is there.
    fn given(&self, name: &'static str) -> Option<Cursor<'a>>;
    fn raw(&self, name: &str) -> Option<&'a Value>;

    /// The string in a field, or "".
    fn text(&self, name: &str) -> &'a str {
        self.raw(name).and_then(Value::as_str).unwrap_or("")
    }
    fn number(&self, name: &str) -> Option<i64> {
        self.raw(name).and_then(Value::as_i64)
    }
    fn flag(&self, name: &str) -> Option<bool> {
        self.raw(name).and_then(Value::as_bool)
    }
    fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }
    /// The elements of a list field; none if it is not there.
    fn list(&self, name: &str) -> &'a [Value] {
        self.raw(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    /// The elements of a list field, each with its path.
    fn each(&self, name: &'static str) -> impl Iterator<Item = Cursor<'a>> {
        self.given(name).into_iter().flat_map(|list| list.items())
    }
}

impl<'a> Read<'a> for Cursor<'a> {
    fn given(&self, name: &'static str) -> Option<Cursor<'a>> {
        let value = self.raw(name)?;
        Some(Cursor::new(Some(value), self.path().field(name)))
    }

    fn raw(&self, name: &str) -> Option<&'a Value> {
        self.value()?.get(name).filter(|v| !v.is_null())
    }
}

/// One of the listed values, shown in the given order where upstream does not sort. No path is built if all is well.
pub(crate) fn choice(c: &Cursor<'_>, field: &'static str, supported: &[&str], p: &mut Problems) {
    match c.text(field) {
        text if supported.contains(&text) => {}
        "" => p.required(&c.at(field), ""),
        _ => unsupported(&c.at(field), supported, p),
    }
}

/// `Unsupported value` with the list as it is.
pub(crate) fn unsupported(c: &Cursor<'_>, supported: &[&str], p: &mut Problems) {
    let value = Value::from(c.str()).to_string();
    workload::unsupported(c.path(), value, supported, p);
}

/// An IP address in a field of the early days: any spelling but leading zeros and IPv4 in IPv6.
pub(crate) fn legacy_ip(c: &Cursor<'_>, path: &Path, p: &mut Problems) {
    let text = c.str();
    let complaint = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return,
        Err(_) if has_leading_zeros(text) => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    p.invalid_value(path, &Value::from(text), complaint);
}

/// An IPv4 address but for leading zeros.
fn has_leading_zeros(text: &str) -> bool {
    let octets: Vec<&str> = text.split('.').collect();
    octets.len() == 4
        && octets.iter().all(|o| {
            !o.is_empty()
                && o.bytes().all(|b| b.is_ascii_digit())
                && o.trim_start_matches('0').len() <= 3
                && o.parse::<u64>().is_ok_and(|n| n < 256)
        })
}
