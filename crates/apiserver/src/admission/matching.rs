//! Which requests a webhook or a policy looks at: rules, `matchPolicy`, and selectors of namespaces and objects.
//!
//! Upstream: apiserver/pkg/admission/plugin/webhook/{predicates,generic} and plugin/policy/matching (v1.36).

use orlop_api::admissionregistration::GROUP;
use orlop_api::selector::LabelSelector;
use orlop_api::{KindDef, Status, Value};

use super::{Operation, Review};
use crate::lookup::{items, strings, text};

/// Whether a request changes the configuration of admission itself. Nothing that is configured there may stop that:
/// nobody could undo a mistake.
pub(super) fn is_exempt(review: &Review<'_>) -> bool {
    review.kind.group == GROUP
        && matches!(
            review.kind.kind,
            "ValidatingWebhookConfiguration"
                | "MutatingWebhookConfiguration"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Cluster,
    Namespaced,
}

/// One `RuleWithOperations`, or a `NamedRuleWithOperations`.
#[derive(Debug)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource.
    resources: Vec<(String, String)>,
    scope: Scope,
    /// None: all.
    names: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    fn from_value(rule: &Value) -> Rule {
        let split = |text: String| match text.split_once('/') {
            Some((resource, sub)) => (resource.to_string(), sub.to_string()),
            None => (text, String::new()),
        };
        Rule {
            operations: strings(rule.get("operations")),
            groups: strings(rule.get("apiGroups")),
            versions: strings(rule.get("apiVersions")),
            resources: strings(rule.get("resources")).into_iter().map(split).collect(),
            scope: match text(rule, &["scope"]) {
                "Cluster" => Scope::Cluster,
                "Namespaced" => Scope::Namespaced,
                _ => Scope::All,
            },
            names: strings(rule.get("resourceNames")),
        }
    }

    /// Whether it is about requests like this one to this resource.
    fn matches(&self, review: &Review<'_>, kind: &KindDef) -> bool {
        let resource = |(resource, sub): &(String, String)| {
            (resource == "*" || *resource == kind.plural) && (sub == "*" || *sub == review.subresource)
        };
        has(&self.groups, kind.group)
            && self.resources.iter().any(resource)
            && has(&self.versions, kind.version)
            && has(&self.operations, review.operation.name())
            && self.is_in_scope(review)
            && (self.names.is_empty() || self.names.contains(&review.name))
    }

    fn is_in_scope(&self, review: &Review<'_>) -> bool {
        let in_cluster = review.namespace.is_empty() || review.is_namespace_object();
        match self.scope {
            Scope::All => true,
            Scope::Cluster => in_cluster,
            Scope::Namespaced => !in_cluster,
        }
    }
}

/// A selector, or why it can't be read.
type Selector = Result<LabelSelector, String>;

fn selector(value: Option<&Value>) -> Selector {
    match value {
        None | Some(Value::Null) => Ok(LabelSelector::default()),
        Some(value) => LabelSelector::from_object(value).map_err(|e| e.to_string()),
    }
}

/// What one webhook, policy or binding looks at.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Vec<Rule>,
    exclude: Vec<Rule>,
    /// Other versions of a resource count too.
    equivalent: bool,
    namespaces: Selector,
    objects: Selector,
}

impl Matcher {
    /// Of a webhook.
    pub(super) fn of_webhook(hook: &Value) -> Matcher {
        Matcher::new(hook, "rules")
    }

    /// Of a `MatchResources`.
    pub(super) fn of_resources(resources: &Value) -> Matcher {
        Matcher::new(resources, "resourceRules")
    }

    fn new(value: &Value, rules: &str) -> Matcher {
        let read = |name: &str| items(value, &[name]).iter().map(Rule::from_value).collect();
        Matcher {
            rules: read(rules),
            exclude: read("excludeResourceRules"),
            equivalent: text(value, &["matchPolicy"]) != "Exact",
            namespaces: selector(value.get("namespaceSelector")),
            objects: selector(value.get("objectSelector")),
        }
    }

    /// The kind in whose form the webhook or policy wants to see the object, if it looks at the request at all.
    pub(super) fn matches(
        &self,
        review: &Review<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<&'static KindDef>, Status> {
        let Some(kind) = self.match_rules(&self.rules, review) else {
            return Ok(None);
        };
        Ok(self.matches_but_rules(review, object, old)?.then_some(kind))
    }

    /// The same for a binding's `matchResources`, where no rules mean all resources.
    pub(super) fn allows(
        &self,
        review: &Review<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        match self.rules.is_empty() {
            true => self.matches_but_rules(review, object, old),
            false => Ok(self.matches(review, object, old)?.is_some()),
        }
    }

    fn matches_but_rules(
        &self,
        review: &Review<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        if !self.exclude.is_empty() && self.match_rules(&self.exclude, review).is_some() {
            return Ok(false);
        }
        // A namespace that can't be looked at matters only if the object would be selected.
        let namespace = self.selects_namespace(review, object);
        if matches!(namespace, Ok(false)) {
            return Ok(false);
        }
        let selected = self.selects_object(object, old)?;
        if selected {
            namespace?;
        }
        Ok(selected)
    }

    fn match_rules(&self, rules: &[Rule], review: &Review<'_>) -> Option<&'static KindDef> {
        if rules.iter().any(|rule| rule.matches(review, review.kind)) {
            return Some(review.kind);
        }
        if !self.equivalent {
            return None;
        }
        let others = equivalents(review);
        let of = |rule: &Rule| others.iter().copied().find(|kind| rule.matches(review, kind));
        rules.iter().find_map(of)
    }

    fn selects_namespace(&self, review: &Review<'_>, object: Option<&Value>) -> Result<bool, Status> {
        let is_namespace = review.kind.plural == "namespaces";
        if review.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = self.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_empty() {
            return Ok(true);
        }
        let written = matches!(review.operation, Operation::Create | Operation::Update);
        if is_namespace && review.subresource.is_empty() && written {
            return Ok(selector.matches_map(object.and_then(|o| o.pointer("/metadata/labels"))));
        }
        let name = review.namespace_attribute();
        let missing = || Status::not_found("", "namespaces", name);
        let namespace = review.lookup.get("namespaces", "", name).ok_or_else(missing)?;
        Ok(selector.matches_map(namespace.pointer("/metadata/labels")))
    }

    fn selects_object(&self, object: Option<&Value>, old: Option<&Value>) -> Result<bool, Status> {
        let selector = self.objects.as_ref().map_err(Status::internal)?;
        let selects = |object: &Value| selector.matches_map(object.pointer("/metadata/labels"));
        Ok(selector.is_empty() || object.is_some_and(selects) || old.is_some_and(selects))
    }
}

/// The other kinds that are the same objects: other versions, and other groups that store the same.
fn equivalents(review: &Review<'_>) -> Vec<&'static KindDef> {
    let (kind, subresource) = (review.kind, review.subresource);
    let is_other = |other: &&'static KindDef| {
        !std::ptr::eq(*other, kind)
            && other.kind == kind.kind
            && other.is_stored()
            && (other.group, other.version) != (kind.group, kind.version)
            && other.store_prefix() == kind.store_prefix()
            && (subresource.is_empty() || other.subresource(subresource).is_some())
    };
    match kind.is_stored() {
        true => {
            let custom = review.kinds.snapshot();
            orlop_api::kinds::all()
                .chain(custom.served())
                .filter(is_other)
                .collect()
        }
        false => vec![],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told};
    use super::*;

    fn rule(operations: &[&str], groups: &[&str], versions: &[&str], resources: &[&str], scope: &str) -> Value {
        json!({"rules": [{"operations": operations, "apiGroups": groups, "apiVersions": versions, "resources": resources,
            "scope": scope}]})
    }

    #[test]
    fn rules_name_requests() {
        let desk = Desk::new();
        let pod = json!({"metadata": {"namespace": "ns", "name": "p"}});
        let node = json!({"metadata": {"name": "n"}});
        let matches = |hook: &Value, operation, what: &str, object: &Value| {
            let review = desk.review(operation, what, object);
            let found = Matcher::of_webhook(hook).matches(&review, Some(object), None).unwrap();
            found.is_some()
        };
        let create_pods = rule(&["CREATE"], &[""], &["v1"], &["pods"], "*");
        assert!(matches(&create_pods, Operation::Create, "pods", &pod));
        assert!(!matches(&create_pods, Operation::Update, "pods", &pod));
        assert!(!matches(&create_pods, Operation::Create, "pods/eviction", &pod));
        assert!(!matches(&create_pods, Operation::Create, "nodes", &node));
        for resources in [&["*/*"], &["pods/*"], &["*/eviction"]] {
            let hook = rule(&["*"], &["*"], &["*"], resources, "*");
            assert!(
                matches(&hook, Operation::Create, "pods/eviction", &pod),
                "{resources:?}"
            );
        }
        let plain = rule(&["*"], &["*"], &["*"], &["*"], "*");
        assert!(!matches(&plain, Operation::Create, "pods/eviction", &pod));
        for (scope, pods, nodes) in [("*", true, true), ("Cluster", false, true), ("Namespaced", true, false)] {
            let hook = rule(&["*"], &["*"], &["*"], &["*"], scope);
            assert_eq!(matches(&hook, Operation::Create, "pods", &pod), pods, "{scope}");
            assert_eq!(matches(&hook, Operation::Create, "nodes", &node), nodes, "{scope}");
        }
    }

    #[test]
    fn other_versions_count_unless_exactness_is_asked_for() {
        let desk = Desk::new();
        let object = json!({"metadata": {"namespace": "ns", "name": "h"}});
        let review = desk.review(Operation::Create, "horizontalpodautoscalers.autoscaling", &object);
        let other = if review.kind.version == "v1" { "v2" } else { "v1" };
        let mut hook = rule(&["*"], &["autoscaling"], &[other], &["*"], "*");
        let found = |hook: &Value| {
            let kind = Matcher::of_webhook(hook).matches(&review, Some(&object), None).unwrap();
            kind.map(|kind| kind.version)
        };
        assert_eq!(found(&hook), Some(other));
        hook["matchPolicy"] = "Exact".into();
        assert_eq!(found(&hook), None);
        let events = desk.review(Operation::Create, "events", &object);
        let hook = rule(&["*"], &["events.k8s.io"], &["v1"], &["events"], "*");
        let kind = Matcher::of_webhook(&hook)
            .matches(&events, Some(&object), None)
            .unwrap();
        let expected = if events.kind.group.is_empty() {
            "events.k8s.io"
        } else {
            ""
        };
        assert!(kind.is_some_and(|kind| kind.group == expected || kind.group == "events.k8s.io"));
    }

    #[test]
    fn selectors_look_at_namespaces_and_objects() {
        let desk = Desk::new().with("namespaces", json!({"metadata": {"name": "ns", "labels": {"a": "b"}}}));
        let object = |labels: Value| json!({"metadata": {"namespace": "ns", "name": "p", "labels": labels}});
        let mut hook = rule(&["*"], &["*"], &["*"], &["*"], "*");
        let matches = |hook: &Value, new: Option<&Value>, old: Option<&Value>, namespace: &str| {
            let mut review = desk.review(Operation::Update, "pods", &object(json!({})));
            review.namespace = namespace.to_string();
            Matcher::of_webhook(hook)
                .matches(&review, new, old)
                .map(|kind| kind.is_some())
        };
        let (plain, labelled) = (object(json!({})), object(json!({"x": "y"})));
        hook["objectSelector"] = json!({"matchLabels": {"x": "y"}});
        assert!(!matches(&hook, Some(&plain), None, "ns").unwrap());
        assert!(matches(&hook, Some(&labelled), None, "ns").unwrap());
        assert!(matches(&hook, Some(&plain), Some(&labelled), "ns").unwrap());
        hook["namespaceSelector"] = json!({"matchLabels": {"a": "c"}});
        assert!(!matches(&hook, Some(&labelled), None, "ns").unwrap());
        assert_eq!(
            told(matches(&hook, Some(&labelled), None, "gone")),
            "namespaces \"gone\" not found"
        );
        assert!(!matches(&hook, Some(&plain), None, "gone").unwrap());
        assert!(
            matches(&hook, Some(&labelled), None, "").unwrap(),
            "cluster-scoped objects are not exempt"
        );
    }
}
