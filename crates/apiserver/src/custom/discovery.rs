//! What discovery shows of a kind beyond its row, and in which order it shows versions.

use std::borrow::Cow;
use std::cmp::Ordering;

use orlop_api::KindDef;

/// Names and verbs of a kind, built in or custom.
pub(crate) struct Shown {
    pub singular: Cow<'static, str>,
    pub short_names: Vec<Cow<'static, str>>,
    pub categories: Vec<Cow<'static, str>>,
    pub verbs: &'static [&'static str],
}

impl Shown {
    pub(crate) fn of(kind: &KindDef) -> Shown {
        let Some(served) = super::of(kind) else {
            let borrowed = |list: &[&'static str]| list.iter().map(|word| Cow::Borrowed(*word)).collect();
            return Shown {
                singular: kind.singular.into(),
                short_names: borrowed(kind.short_names),
                categories: borrowed(kind.categories),
                verbs: kind.verbs.names(),
            };
        };
        let owned = |list: &[String]| list.iter().map(|word| Cow::Owned(word.clone())).collect();
        let facts = &served.facts;
        Shown {
            singular: facts.singular.clone().into(),
            short_names: owned(&facts.short_names),
            categories: owned(&facts.categories),
            verbs: match facts.is_terminating {
                true => &["delete", "deletecollection", "get", "list", "watch"],
                false => &[
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "create",
                    "update",
                    "watch",
                ],
            },
        }
    }
}

/// Versions as discovery lists them: general availability before beta before alpha, newer before older, other names last.
// Upstream: apimachinery pkg/version (CompareKubeAwareVersionStrings)
pub(crate) fn kube_aware_order(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// (stability, major, minor) of `v2`, `v1beta3`.
fn parse(version: &str) -> Option<(u8, u64, u64)> {
    let number = |text: &str| -> Option<u64> {
        let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        text.parse().ok().filter(|_| is_plain)
    };
    let rest = version.strip_prefix('v')?;
    for (word, stability) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_by_stability_and_age() {
        let mut versions = [
            "v1alpha1",
            "foo10",
            "v10",
            "v1",
            "v11alpha2",
            "v2",
            "foo1",
            "v12alpha1",
            "v10beta3",
            "v3beta1",
            "v11beta2",
        ];
        versions.sort_by(|a, b| kube_aware_order(a, b));
        let expected = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "v1alpha1",
            "foo1",
            "foo10",
        ];
        assert_eq!(versions, expected);
    }
}
