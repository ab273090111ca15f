//! Limit ranges. Upstream: ValidateLimitRange, SetDefaults_LimitRangeItem (v1.36).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::resource_rules::{round_up, validate_container_resource, validate_resource};
use crate::field::{Cursor, Problems};
use crate::kind::{Column, KindDef};
use crate::meta::invalid_text;
use crate::quantity::Quantity;
use crate::{fill, names, printing, resources};

pub const DEF: KindDef = KindDef {
    kind: "LimitRange",
    plural: "limitranges",
    singular: "limitrange",
    short_names: &["limits"],
    schema: "core/v1.LimitRange",
    prepare_create: |_| {},
    prepare_update: |_, _| {},
    columns: &[Column::CREATED_AT],
    cells: |range, _| vec![printing::text(range, "/metadata/creationTimestamp").into()],
    default,
    validate,
    create_on_update: true,
    ..KindDef::BASE
};

/// For containers: the default limit is the maximum, the default request the default limit, or else the minimum.
fn default(range: &mut Value) {
    let Some(spec) = range.get_mut("spec") else { return };
    for item in fill::items(spec, "limits") {
        if item.get("type").and_then(Value::as_str) == Some("Container") {
            inherit(item, "max", "default");
            inherit(item, "default", "defaultRequest");
            inherit(item, "min", "defaultRequest");
        }
        for list in LISTS {
            round_up(item, list);
        }
    }
}

/// What `from` names and `to` does not is copied over.
fn inherit(item: &mut Value, from: &str, to: &str) {
    let source: Map<String, Value> = item.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
    if source.is_empty() {
        return;
    }
    let target = fill::member(item, to);
    for (name, quantity) in source {
        fill::absent(target, &name, quantity);
    }
}

/// The resource lists of an item; the constants are places in this table.
const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
const MAX: usize = 0;
const MIN: usize = 1;
const LIMIT: usize = 2;
const REQUEST: usize = 3;
const RATIO: usize = 4;

fn validate(range: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for item in range.at("spec").at("limits").items() {
        let kind = item.at("type");
        validate_type(&kind, p);
        if !seen.insert(kind.str()) {
            p.duplicate(&kind);
        }
        let is_pod = kind.str() == "Pod";
        let mut names = BTreeSet::new();
        for (i, list) in LISTS.map(|name| item.at(name)).into_iter().enumerate() {
            // A pod has limits of its own, but nothing to fill in.
            if is_pod && matches!(i, LIMIT | REQUEST) {
                if !list.is_empty() {
                    p.forbidden(&list, "may not be specified when `type` is 'Pod'");
                }
                continue;
            }
            for (name, entry) in list.entries() {
                match kind.str() {
                    "Pod" | "Container" => validate_container_resource(name, entry.path(), p),
                    _ => validate_resource(name, entry.path(), p),
                }
                names.insert(name);
            }
        }
        if kind.str() == "PersistentVolumeClaim"
            && !item.at("min").has_key("storage")
            && !item.at("max").has_key("storage")
        {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            p.required(&item.at("limits"), detail);
        }
        for name in names {
            let entries = std::array::from_fn(|i| match i {
                LIMIT | REQUEST if is_pod => None,
                _ => entry(&item.at(LISTS[i]), name),
            });
            validate_order(&entries, p);
            validate_ratio(&entries, p);
            validate_overcommit(&entries, name, p);
        }
    }
}

fn validate_type(kind: &Cursor<'_>, p: &mut Problems) {
    let messages = names::qualified_name(kind.str());
    if messages.is_empty()
        && !kind.str().contains('/')
        && !matches!(kind.str(), "Pod" | "Container" | "PersistentVolumeClaim")
    {
        p.invalid(kind, "must be a standard limit type or fully qualified");
    }
    for message in messages {
        invalid_text(kind, message, p);
    }
}

/// A quantity in one of the lists, and where it stands.
struct Entry<'a> {
    at: Cursor<'a>,
    quantity: Quantity,
}

type Entries<'a> = [Option<Entry<'a>>; LISTS.len()];

fn entry<'a>(list: &Cursor<'a>, name: &str) -> Option<Entry<'a>> {
    let at = Cursor::new(list.value()?.get(name), list.path().key(name));
    let quantity = Quantity::parse(at.as_str()?).ok()?;
    Some(Entry { at, quantity })
}

/// min ≤ defaultRequest ≤ default ≤ max. In which list the problem stands, and whose value it shows, is as upstream.
fn validate_order(entries: &Entries<'_>, p: &mut Problems) {
    for (low, high, low_word, high_word, at, shown) in [
        (MIN, MAX, "min", "max", MIN, MIN),
        (MIN, REQUEST, "min", "default request", REQUEST, REQUEST),
        (REQUEST, MAX, "default request", "max", REQUEST, REQUEST),
        (REQUEST, LIMIT, "default request", "default limit", REQUEST, REQUEST),
        (MIN, LIMIT, "min", "default", LIMIT, MIN),
        (LIMIT, MAX, "default", "max", LIMIT, MAX),
    ] {
        let (Some(low), Some(high)) = (&entries[low], &entries[high]) else {
            continue;
        };
        if low.quantity > high.quantity
            && let (Some(at), Some(shown)) = (&entries[at], &entries[shown])
        {
            let (low, high) = (low.at.str(), high.at.str());
            let detail = format!("{low_word} value {low} is greater than {high_word} value {high}");
            p.invalid_value(at.at.path(), &shown.at.str().into(), detail);
        }
    }
}

fn validate_ratio(entries: &Entries<'_>, p: &mut Problems) {
    const MAX_MILLI_VALUE: i64 = i64::MAX / 1000;
    let Some(ratio) = &entries[RATIO] else { return };
    let text = ratio.at.str();
    if ratio.quantity.milli_value() < 1000 {
        p.invalid(&ratio.at, format!("ratio {text} is less than 1"));
    }
    let (Some(min), Some(max)) = (&entries[MIN], &entries[MAX]) else {
        return;
    };
    let fine = [ratio, min, max].iter().all(|e| e.quantity.value() < MAX_MILLI_VALUE);
    let (wanted, possible) = if fine {
        let possible = max.quantity.milli_value() as f64 / min.quantity.milli_value() as f64;
        (ratio.quantity.milli_value() as f64 / 1000.0, possible)
    } else {
        let possible = max.quantity.value() as f64 / min.quantity.value() as f64;
        (ratio.quantity.value() as f64, possible)
    };
    if wanted > possible {
        p.invalid(
            &ratio.at,
            format!("ratio {text} is greater than max/min = {possible:.6}"),
        );
    }
}

/// Of what cannot be overcommitted, request and limit are the same.
fn validate_overcommit(entries: &Entries<'_>, name: &str, p: &mut Problems) {
    let (Some(limit), Some(request)) = (&entries[LIMIT], &entries[REQUEST]) else {
        return;
    };
    if !resources::overcommit_allowed(name) && limit.quantity != request.quantity {
        let (limit, value) = (limit.at.str(), request.at.str());
        let detail = format!("default value {limit} must equal to defaultRequest value {value} in {name}");
        p.invalid(&request.at, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check::{defaulted, refuses};
    use serde_json::json;

    fn one(item: Value) -> Value {
        json!({"spec": {"limits": [item]}})
    }

    #[test]
    fn containers_inherit_defaults() {
        let item = json!({"type": "Container", "max": {"cpu": "2"}, "default": {"memory": "1Gi"}, "min": {"cpu": "1", "x.io/y": "1"}});
        let wanted = json!({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "x.io/y": "1"},
            "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "2", "memory": "1Gi", "x.io/y": "1"}});
        assert_eq!(defaulted(&DEF, one(item)), one(wanted));
        let pod = one(json!({"type": "Pod", "max": {"cpu": "2"}}));
        assert_eq!(defaulted(&DEF, pod.clone()), pod);
    }

    #[test]
    fn rules() {
        let at = "spec.limits[0]";
        refuses(
            &DEF,
            &one(
                json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "1500m"}}),
            ),
            &[
                (
                    one(json!({"type": "Box"})),
                    &format!("{at}.type: Invalid value: \"Box\": must be a standard limit type or fully qualified"),
                ),
                (
                    json!({"spec": {"limits": [{"type": "Pod"}, {"type": "Pod"}]}}),
                    "spec.limits[1].type: Duplicate value: \"Pod\"",
                ),
                (
                    one(json!({"type": "Pod", "default": {"cpu": "1"}})),
                    &format!("{at}.default: Forbidden: may not be specified when `type` is 'Pod'"),
                ),
                (
                    one(json!({"type": "Pod", "defaultRequest": {"cpu": "1"}})),
                    &format!("{at}.defaultRequest: Forbidden: may not be specified when `type` is 'Pod'"),
                ),
                (
                    one(json!({"type": "PersistentVolumeClaim"})),
                    &format!(
                        "{at}.limits: Required value: either minimum or maximum storage value is required, but neither was provided"
                    ),
                ),
                (
                    one(json!({"type": "x.io/y", "max": {"bogus": "1"}})),
                    &format!(
                        "{at}.max[bogus]: Invalid value: \"bogus\": must be a standard resource type or fully qualified"
                    ),
                ),
                (
                    one(json!({"type": "Pod", "max": {"pods": "1"}})),
                    &format!("{at}.max[pods]: Invalid value: \"pods\": must be a standard resource for containers"),
                ),
                (
                    one(json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}})),
                    &format!("{at}.min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"),
                ),
                (
                    one(
                        json!({"type": "Container", "min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}, "default": {"cpu": "3"}}),
                    ),
                    &format!(
                        "{at}.defaultRequest[cpu]: Invalid value: \"1\": min value 2 is greater than default request value 1"
                    ),
                ),
                (
                    one(json!({"type": "x.io/y", "max": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}})),
                    &format!(
                        "{at}.defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than max value 1"
                    ),
                ),
                (
                    one(json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}})),
                    &format!(
                        "{at}.defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1"
                    ),
                ),
                (
                    one(json!({"type": "x.io/y", "min": {"cpu": "2"}, "default": {"cpu": "1"}})),
                    &format!("{at}.default[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1"),
                ),
                (
                    one(json!({"type": "x.io/y", "max": {"cpu": "1"}, "default": {"cpu": "2"}})),
                    &format!("{at}.default[cpu]: Invalid value: \"1\": default value 2 is greater than max value 1"),
                ),
                (
                    one(json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}})),
                    &format!("{at}.maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1"),
                ),
                (
                    one(
                        json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}}),
                    ),
                    &format!(
                        "{at}.maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000"
                    ),
                ),
                (
                    one(
                        json!({"type": "Container", "default": {"x.io/gpu": "2"}, "defaultRequest": {"x.io/gpu": "1"}}),
                    ),
                    &format!(
                        "{at}.defaultRequest[x.io/gpu]: Invalid value: \"1\": default value 2 must equal to defaultRequest value 1 in x.io/gpu"
                    ),
                ),
            ],
        );
    }
}
