//! RBAC's policy rules: what one rule allows, and whether some rules cover others.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Attributes;
use crate::lookup::strings;

const ALL: &str = "*";

/// `rbac.authorization.k8s.io/v1` PolicyRule. Every list is a choice; names, if any, narrow the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyRule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl PolicyRule {
    pub fn from_value(rule: &Value) -> PolicyRule {
        PolicyRule {
            verbs: strings(rule.get("verbs")),
            api_groups: strings(rule.get("apiGroups")),
            resources: strings(rule.get("resources")),
            resource_names: strings(rule.get("resourceNames")),
            non_resource_urls: strings(rule.get("nonResourceURLs")),
        }
    }

    /// The rules of a Role or ClusterRole.
    pub fn all_of(role: &Value) -> Vec<PolicyRule> {
        crate::lookup::items(role, &["rules"])
            .iter()
            .map(PolicyRule::from_value)
            .collect()
    }

    pub fn resource(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        PolicyRule {
            verbs: owned(verbs),
            api_groups: owned(groups),
            resources: owned(resources),
            ..Default::default()
        }
    }

    pub fn urls(verbs: &[&str], urls: &[&str]) -> PolicyRule {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        PolicyRule {
            verbs: owned(verbs),
            non_resource_urls: owned(urls),
            ..Default::default()
        }
    }

    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        // Upstream never omits the verbs.
        map.insert("verbs".into(), json!(self.verbs));
        for (key, list) in [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ] {
            if !list.is_empty() {
                map.insert(key.into(), json!(list));
            }
        }
        Value::Object(map)
    }

    pub fn allows(&self, attrs: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, attrs.verb) {
            return false;
        }
        if !attrs.is_resource {
            return self.non_resource_urls.iter().any(|url| url_covers(url, attrs.path));
        }
        has_or_all(&self.api_groups, attrs.group)
            && self
                .resources
                .iter()
                .any(|r| resource_matches(r, attrs.resource, attrs.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, attrs.name))
    }

    /// How messages show a rule.
    pub fn compact(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }

    /// Rules with one verb and one resource (or URL) each that together say the same.
    fn atoms(&self) -> Vec<PolicyRule> {
        let mut atoms = Vec::new();
        let one = |text: &String| vec![text.clone()];
        let names: Vec<Vec<String>> = match self.resource_names.is_empty() {
            true => vec![Vec::new()],
            false => self.resource_names.iter().map(one).collect(),
        };
        for verb in &self.verbs {
            for (group, resource) in self
                .api_groups
                .iter()
                .flat_map(|g| self.resources.iter().map(move |r| (g, r)))
            {
                atoms.extend(names.iter().map(|name| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: name.clone(),
                    ..Default::default()
                }));
            }
            atoms.extend(self.non_resource_urls.iter().map(|url| PolicyRule {
                verbs: one(verb),
                non_resource_urls: one(url),
                ..Default::default()
            }));
        }
        atoms
    }

    /// Whether this rule allows all that an atom does.
    fn covers_atom(&self, atom: &PolicyRule) -> bool {
        let names_fit = match atom.resource_names.first() {
            None => self.resource_names.is_empty(),
            Some(name) => self.resource_names.is_empty() || has(&self.resource_names, name),
        };
        names_fit
            && atom.verbs.iter().all(|verb| has_or_all(&self.verbs, verb))
            && atom.api_groups.iter().all(|group| has_or_all(&self.api_groups, group))
            && atom.resources.iter().all(|resource| {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                self.resources
                    .iter()
                    .any(|r| resource_matches(r, resource, subresource))
            })
            && atom
                .non_resource_urls
                .iter()
                .all(|url| self.non_resource_urls.iter().any(|own| url_covers(own, url)))
    }
}

/// What of `wanted` the `held` rules do not cover, in small pieces; empty if they cover everything.
pub(super) fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let atoms = wanted.iter().flat_map(PolicyRule::atoms);
    atoms
        .filter(|atom| !held.iter().any(|rule| rule.covers_atom(atom)))
        .collect()
}

/// Joins pieces that differ in their verb only, for shorter messages.
pub(super) fn join_verbs(atoms: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut joined = Vec::new();
    let mut by_resource: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    for mut atom in atoms {
        if atom.non_resource_urls.is_empty() {
            let verbs = std::mem::take(&mut atom.verbs);
            by_resource.entry(atom).or_default().extend(verbs);
        } else {
            joined.push(atom);
        }
    }
    joined.extend(
        by_resource
            .into_iter()
            .map(|(rule, verbs)| PolicyRule { verbs, ..rule }),
    );
    joined
}

/// A list of strings as Go prints one: `["a" "b"]`.
pub(super) fn quoted(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|s| s == wanted)
}

fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|s| s == ALL || s == wanted)
}

/// A rule names `pods`, `pods/log`, `*/scale` or `*`; the last covers subresources as well.
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == ALL {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((r, s)) => !subresource.is_empty() && s == subresource && (r == ALL || r == resource),
    }
}

/// `*`, the path itself, or a prefix that ends in `*`.
fn url_covers(rule: &str, path: &str) -> bool {
    rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::UserInfo;

    fn rule(text: &str) -> PolicyRule {
        // "verbs groups resources names urls", each list separated by commas, "-" for none, "core" for "".
        let mut lists = text.split(' ').map(|list| match list {
            "-" => Vec::new(),
            list => list
                .split(',')
                .map(|s| if s == "core" { "" } else { s }.to_string())
                .collect(),
        });
        let mut next = || lists.next().unwrap_or_default();
        PolicyRule {
            verbs: next(),
            api_groups: next(),
            resources: next(),
            resource_names: next(),
            non_resource_urls: next(),
        }
    }

    #[test]
    fn truth_table_of_resources() {
        // rule, verb group resource/subresource name, allowed
        let cases = [
            ("get core pods", "get core pods web", true),
            ("get core pods", "list core pods ", false),
            ("get core pods", "get apps pods web", false),
            ("get core pods", "get core pods/log web", false),
            ("get core pods/log", "get core pods/log web", true),
            ("get core pods/log", "get core pods web", false),
            ("* * *", "delete apps deployments/scale x", true),
            ("get * *", "delete apps deployments x", false),
            ("update apps */scale", "update apps deployments/scale x", true),
            ("update apps */scale", "update apps deployments x", false),
            ("update apps */scale", "update apps deployments/status x", false),
            ("get core pods/*", "get core pods/log web", false),
            ("get core pods/*", "get core pods web", false),
            ("get core configmaps a,b", "get core configmaps b", true),
            ("get core configmaps a,b", "get core configmaps c", false),
            ("list core configmaps a", "list core configmaps ", false),
            ("get,list core,apps pods,deployments", "list apps deployments ", true),
            ("get - pods", "get core pods x", false),
            ("- core pods", "get core pods x", false),
            ("get - - - *", "get core pods x", false),
            (
                "impersonate authentication.k8s.io userextras/scopes v",
                "impersonate authentication.k8s.io userextras/scopes v",
                true,
            ),
        ];
        let user = UserInfo::new("u", &[]);
        for (policy, request, allowed) in cases {
            let parts: Vec<&str> = request.split(' ').collect();
            let (resource, subresource) = parts[2].split_once('/').unwrap_or((parts[2], ""));
            let group = if parts[1] == "core" { "" } else { parts[1] };
            let attrs = Attributes::resource(&user, parts[0], group, resource)
                .subresource(subresource)
                .named(parts[3]);
            assert_eq!(rule(policy).allows(&attrs), allowed, "{policy} | {request}");
        }
    }

    #[test]
    fn truth_table_of_paths() {
        let cases = [
            ("get - - - /healthz", "get /healthz", true),
            ("get - - - /healthz", "get /healthz/etcd", false),
            ("get - - - /healthz/*", "get /healthz/etcd", true),
            ("get - - - /healthz/*", "get /healthz", false),
            ("get - - - /health*", "get /healthz", true),
            ("* - - - *", "post /anything", true),
            ("get - - - *", "post /anything", false),
            ("* * *", "get /healthz", false),
        ];
        let user = UserInfo::new("u", &[]);
        for (policy, request, allowed) in cases {
            let (verb, path) = request.split_once(' ').unwrap();
            assert_eq!(
                rule(policy).allows(&Attributes::path(&user, verb, path)),
                allowed,
                "{policy} | {request}"
            );
        }
    }

    #[test]
    fn covering() {
        // held (joined by ;), wanted, what is missing
        let cases = [
            ("get,list core pods", "get core pods", ""),
            ("* * *", "get,list core,apps pods,deployments/scale x", ""),
            (
                "get core pods",
                "get,list core pods,secrets",
                concat!(
                    r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#,
                    "\n",
                    r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#
                ),
            ),
            (
                "get core pods a",
                "get core pods",
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            ("get core pods a", "get core pods a", ""),
            ("get core pods", "get core pods a", ""),
            (
                "get core pods a",
                "get core pods a,b",
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#,
            ),
            ("update apps */scale", "update apps deployments/scale", ""),
            (
                "update apps deployments/scale",
                "update apps */scale",
                r#"{APIGroups:["apps"], Resources:["*/scale"], Verbs:["update"]}"#,
            ),
            (
                "get core pods",
                "* core pods",
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#,
            ),
            (
                "get core pods",
                "get core *",
                r#"{APIGroups:[""], Resources:["*"], Verbs:["get"]}"#,
            ),
            ("get - - - /healthz*", "get - - - /healthz,/healthz/x", ""),
            (
                "get - - - /healthz",
                "get - - - /healthz*",
                r#"{NonResourceURLs:["/healthz*"], Verbs:["get"]}"#,
            ),
            ("* * *", "get - - - /", r#"{NonResourceURLs:["/"], Verbs:["get"]}"#),
            ("get core pods;list core pods", "get,list core pods", ""),
            (
                "",
                "get core pods",
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            ("", "- core pods", ""),
        ];
        for (held, wanted, missing) in cases {
            let held: Vec<PolicyRule> = held.split(';').filter(|r| !r.is_empty()).map(rule).collect();
            let missing_rules = join_verbs(uncovered(&held, &[rule(wanted)]));
            let text: Vec<String> = missing_rules.iter().map(PolicyRule::compact).collect();
            assert_eq!(text.join("\n"), missing, "{held:?} | {wanted}");
        }
    }

    proptest::proptest! {
        /// Whatever rules cover, they also allow: no request passes the wanted rules that the covering ones refuse.
        #[test]
        fn covering_rules_allow_what_they_cover(
            held in proptest::collection::vec(small_rule(), 0..4),
            wanted in proptest::collection::vec(small_rule(), 0..3),
            (verb, group, resource, sub, name) in ("[ab]", "[gh]", "[rs]", "([x]|)", "[nm]"),
        ) {
            let user = UserInfo::new("u", &[]);
            let attrs = Attributes::resource(&user, &verb, &group, &resource).subresource(&sub).named(&name);
            if uncovered(&held, &wanted).is_empty() && wanted.iter().any(|r| r.allows(&attrs)) {
                proptest::prop_assert!(held.iter().any(|r| r.allows(&attrs)));
            }
        }
    }

    fn small_rule() -> impl proptest::strategy::Strategy<Value = PolicyRule> {
        use proptest::prelude::Strategy;
        let list = |pattern: &'static str, len: std::ops::Range<usize>| proptest::collection::vec(pattern, len);
        let lists = (
            list("[ab*]", 1..3),
            list("[gh*]", 1..3),
            list("([rs*]|[rs*]/x)", 1..3),
            list("[nm]", 0..3),
        );
        lists.prop_map(|(verbs, api_groups, resources, resource_names)| PolicyRule {
            verbs,
            api_groups,
            resources,
            resource_names,
            non_resource_urls: Vec::new(),
        })
    }
}
