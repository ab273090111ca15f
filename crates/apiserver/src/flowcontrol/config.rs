//! Flow schemas and priority levels as objects say them, and which requests a schema matches. Pure.
//!
//! Upstream: util/flowcontrol/{rule.go,apf_controller.go} of k8s.io/apiserver (v1.36).

use orlop_api::Value;
use orlop_api::flowcontrol::standard;

use super::borrowing::Bounds;
use super::queue_set::Queuing;
use crate::authn::{UserInfo, split_service_account};
use crate::lookup::{items, strings, text};
use crate::request::RequestInfo;

/// A list of words, or any word.
#[derive(Clone, Debug, PartialEq)]
enum Words {
    All,
    Of(Vec<String>),
}

impl Words {
    fn read(list: Option<&Value>) -> Words {
        let words = strings(list);
        match words.as_slice() {
            [only] if only == "*" => Words::All,
            _ => Words::Of(words),
        }
    }

    fn contain(&self, word: &str) -> bool {
        match self {
            Words::All => true,
            Words::Of(words) => words.iter().any(|other| other == word),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Subject {
    Anyone,
    User(String),
    Group(String),
    /// Without a name: all of the namespace.
    ServiceAccount(String, Option<String>),
}

impl Subject {
    fn read(subject: &Value) -> Option<Subject> {
        let named = |member: &str, name: &str| text(subject, &[member, name]).to_string();
        let or_anyone = |name: String, make: fn(String) -> Subject| match name.as_str() {
            "*" => Subject::Anyone,
            _ => make(name),
        };
        match text(subject, &["kind"]) {
            "User" => Some(or_anyone(named("user", "name"), Subject::User)),
            "Group" => Some(or_anyone(named("group", "name"), Subject::Group)),
            "ServiceAccount" => {
                let name = named("serviceAccount", "name");
                let namespace = named("serviceAccount", "namespace");
                Some(Subject::ServiceAccount(namespace, (name != "*").then_some(name)))
            }
            _ => None,
        }
    }

    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Subject::Anyone => true,
            Subject::User(name) => user.name == *name,
            Subject::Group(group) => user.in_group(group),
            Subject::ServiceAccount(namespace, name) => split_service_account(&user.name)
                .is_some_and(|(of, own)| of == namespace && name.as_ref().is_none_or(|name| name == own)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ResourceRule {
    verbs: Words,
    groups: Words,
    /// `pods` or `pods/status`.
    resources: Words,
    namespaces: Words,
    cluster_scope: bool,
}

impl ResourceRule {
    fn read(rule: &Value) -> ResourceRule {
        let words = |name: &str| Words::read(rule.get(name));
        ResourceRule {
            verbs: words("verbs"),
            groups: words("apiGroups"),
            resources: words("resources"),
            namespaces: words("namespaces"),
            cluster_scope: rule["clusterScope"] == true,
        }
    }

    fn matches(&self, info: &RequestInfo) -> bool {
        let is_resource = |word: &str| match word.split_once('/') {
            Some((resource, sub)) => resource == info.resource && sub == info.subresource,
            None => word == info.resource && info.subresource.is_empty(),
        };
        let of_resource = match &self.resources {
            Words::All => true,
            Words::Of(words) => words.iter().any(|word| is_resource(word)),
        };
        let in_scope = match info.namespace.is_empty() {
            true => self.cluster_scope,
            false => self.namespaces.contain(&info.namespace),
        };
        of_resource && in_scope && self.verbs.contain(info.verb) && self.groups.contain(&info.group)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct PathRule {
    verbs: Words,
    paths: Vec<String>,
}

impl PathRule {
    fn read(rule: &Value) -> PathRule {
        PathRule {
            verbs: Words::read(rule.get("verbs")),
            paths: strings(rule.get("nonResourceURLs")),
        }
    }

    fn matches(&self, info: &RequestInfo) -> bool {
        // A rule for a path is also one for all below it.
        let covers = |path: &String| {
            let prefix = path.trim_end_matches('*').trim_end_matches('/');
            let below = info.path.strip_prefix(prefix);
            path == "*" || *path == info.path || below.is_some_and(|rest| rest.starts_with('/'))
        };
        self.verbs.contain(info.verb) && self.paths.iter().any(covers)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

impl Rule {
    fn read(rule: &Value) -> Rule {
        Rule {
            subjects: items(rule, &["subjects"]).iter().filter_map(Subject::read).collect(),
            resources: items(rule, &["resourceRules"]).iter().map(ResourceRule::read).collect(),
            paths: items(rule, &["nonResourceRules"]).iter().map(PathRule::read).collect(),
        }
    }

    fn matches(&self, info: &RequestInfo, user: &UserInfo) -> bool {
        self.subjects.iter().any(|subject| subject.is(user))
            && match info.is_resource {
                true => self.resources.iter().any(|rule| rule.matches(info)),
                false => self.paths.iter().any(|rule| rule.matches(info)),
            }
    }
}

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    None,
    User,
    Namespace,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FlowSchema {
    pub name: String,
    pub uid: String,
    pub level: String,
    pub distinguisher: Distinguisher,
    precedence: i64,
    rules: Vec<Rule>,
}

impl FlowSchema {
    pub(super) fn read(object: &Value) -> FlowSchema {
        FlowSchema {
            name: text(object, &["metadata", "name"]).to_string(),
            uid: text(object, &["metadata", "uid"]).to_string(),
            level: text(object, &["spec", "priorityLevelConfiguration", "name"]).to_string(),
            distinguisher: match text(object, &["spec", "distinguisherMethod", "type"]) {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            precedence: object["spec"]["matchingPrecedence"].as_i64().unwrap_or(1000),
            rules: items(object, &["spec", "rules"]).iter().map(Rule::read).collect(),
        }
    }

    pub(super) fn matches(&self, info: &RequestInfo, user: &UserInfo) -> bool {
        self.rules.iter().any(|rule| rule.matches(info, user))
    }

    pub(super) fn distinguish<'r>(&self, info: &'r RequestInfo, user: &'r UserInfo) -> &'r str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PriorityLevel {
    pub name: String,
    pub uid: String,
    pub queuing: Queuing,
    shares: u32,
    lendable_percent: u32,
    borrowing_percent: Option<u32>,
}

impl PriorityLevel {
    pub(super) fn read(object: &Value) -> PriorityLevel {
        let spec = &object["spec"];
        let is_exempt = text(spec, &["type"]) == "Exempt";
        let part = if is_exempt { &spec["exempt"] } else { &spec["limited"] };
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let queues = &part["limitResponse"]["queuing"];
        let count = |name: &str, default: usize| number(&queues[name]).map_or(default, |n| n as usize).max(1);
        let is_queued = text(part, &["limitResponse", "type"]) == "Queue";
        PriorityLevel {
            name: text(object, &["metadata", "name"]).to_string(),
            uid: text(object, &["metadata", "uid"]).to_string(),
            queuing: match (is_exempt, is_queued) {
                (true, _) => Queuing::Exempt,
                (false, false) => Queuing::None,
                (false, true) => Queuing::Queues {
                    count: count("queues", 64),
                    hand_size: count("handSize", 8),
                    length_limit: count("queueLengthLimit", 50),
                },
            },
            shares: number(&part["nominalConcurrencyShares"]).unwrap_or(if is_exempt { 0 } else { 30 }),
            lendable_percent: number(&part["lendablePercent"]).unwrap_or(0).min(100),
            borrowing_percent: number(&part["borrowingLimitPercent"]),
        }
    }

    pub(super) fn is_exempt(&self) -> bool {
        self.queuing == Queuing::Exempt
    }

    /// Its part of the server's seats.
    fn bounds(&self, shares: u64, seats: u32) -> Bounds {
        let part = |whole: u32, percent: u32| (f64::from(whole) * f64::from(percent) / 100.0).round() as u32;
        let nominal = u64::from(seats) * u64::from(self.shares);
        let nominal = u32::try_from(nominal.div_ceil(shares.max(1))).unwrap_or(u32::MAX);
        let borrowed = self.borrowing_percent.map_or(seats, |percent| part(nominal, percent));
        Bounds {
            nominal,
            min: nominal - part(nominal, self.lendable_percent),
            max: nominal.saturating_add(borrowed),
        }
    }

    /// How wide a request may be at most: so wide that those of a hand fit side by side.
    pub(super) fn seats_max(&self, bounds: Bounds) -> u32 {
        let Queuing::Queues { hand_size, .. } = self.queuing else {
            return u32::MAX;
        };
        let part = (f64::from(bounds.nominal) * 0.15).ceil() as u32;
        part.min(bounds.nominal / u32::try_from(hand_size).unwrap_or(u32::MAX))
            .max(1)
    }
}

/// All that is configured, complete: the mandatory schemas and levels are there, and every schema's level is.
#[derive(Debug)]
pub(super) struct Plan {
    /// In the order in which they are tried.
    pub schemas: Vec<FlowSchema>,
    pub levels: Vec<(PriorityLevel, Bounds)>,
}

impl Plan {
    /// `seats` are those of the whole server.
    pub(super) fn new<'v>(
        schemas: impl Iterator<Item = &'v Value>,
        levels: impl Iterator<Item = &'v Value>,
        seats: u32,
    ) -> Plan {
        let mut levels: Vec<PriorityLevel> = levels.map(PriorityLevel::read).collect();
        // What is exempt and what is not does not change with what somebody wrote.
        levels.retain(|level| level.is_exempt() == (level.name == "exempt"));
        let mut schemas: Vec<FlowSchema> = schemas.map(FlowSchema::read).collect();
        for name in ["exempt", "catch-all"] {
            if !levels.iter().any(|level| level.name == name) {
                let object = standard::mandatory_priority_level(name).expect("a mandatory level");
                levels.push(PriorityLevel::read(&object));
            }
        }
        schemas.retain(|schema| levels.iter().any(|level| level.name == schema.level));
        for name in ["exempt", "catch-all"] {
            if !schemas.iter().any(|schema| schema.name == name) {
                let object = standard::mandatory_flow_schema(name).expect("a mandatory schema");
                schemas.push(FlowSchema::read(&object));
            }
        }
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        let shares = levels.iter().map(|level| u64::from(level.shares)).sum();
        let with_bounds = |level: PriorityLevel| {
            let bounds = level.bounds(shares, seats);
            (level, bounds)
        };
        Plan {
            schemas,
            levels: levels.into_iter().map(with_bounds).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;

    fn standard_plan() -> Plan {
        let (schemas, levels) = (standard::flow_schemas(), standard::priority_levels());
        Plan::new(schemas.iter(), levels.iter(), 600)
    }

    fn classified(plan: &Plan, user: &UserInfo, line: &str) -> String {
        let (method, target) = line.split_once(' ').unwrap();
        let info = RequestInfo::parse(&method.parse::<Method>().unwrap(), target, "");
        let schema = plan.schemas.iter().find(|schema| schema.matches(&info, user));
        schema.map_or_else(String::new, |schema| {
            let flow = schema.distinguish(&info, user);
            format!("{} {} {flow}", schema.name, schema.level)
        })
    }

    #[test]
    fn requests_go_where_upstream_sends_them() {
        let plan = standard_plan();
        let user = |name: &str, groups: &[&str]| UserInfo::new(name, &[groups, &["system:authenticated"]].concat());
        let node = user("system:node:n", &["system:nodes"]);
        let controller = UserInfo::service_account("kube-system", "job-controller", "u");
        let scheduler = user("system:kube-scheduler", &[]);
        for (who, line, wanted) in [
            (&user("root", &["system:masters"]), "GET /api/v1/pods", "exempt exempt "),
            (&UserInfo::anonymous(), "GET /readyz", "probes exempt "),
            (&UserInfo::anonymous(), "GET /livez/ping", "probes exempt "),
            (
                &UserInfo::anonymous(),
                "GET /version",
                "global-default global-default system:anonymous",
            ),
            (
                &scheduler,
                "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
                "system-leader-election leader-election system:kube-scheduler",
            ),
            (
                &scheduler,
                "GET /api/v1/namespaces/d/pods",
                "kube-scheduler workload-high d",
            ),
            (
                &node,
                "PATCH /api/v1/nodes/n/status",
                "system-node-high node-high system:node:n",
            ),
            (
                &node,
                "PATCH /api/v1/namespaces/d/pods/p/status",
                "system-nodes system system:node:n",
            ),
            (
                &controller,
                "GET /api/v1/namespaces/d/pods",
                "kube-system-service-accounts workload-high d",
            ),
            (
                &UserInfo::service_account("d", "default", "u"),
                "GET /api/v1/pods",
                "service-accounts workload-low system:serviceaccount:d:default",
            ),
            (
                &user("ann", &[]),
                "GET /api/v1/pods",
                "global-default global-default ann",
            ),
            // In no group at all: of no schema, and the caller takes the last one.
            (&UserInfo::new("nobody", &[]), "GET /api/v1/pods", ""),
        ] {
            assert_eq!(classified(&plan, who, line), wanted, "{} {line}", who.name);
        }
    }

    #[test]
    fn seats_are_divided_by_shares() {
        let bounds: Vec<(String, Bounds)> = standard_plan()
            .levels
            .iter()
            .map(|(level, bounds)| (level.name.clone(), *bounds))
            .collect();
        let of = |name: &str| bounds.iter().find(|(other, _)| other == name).unwrap().1;
        // Upstream: the same numbers in its documentation of 600 seats.
        for (name, nominal, min) in [
            ("exempt", 0, 0),
            ("catch-all", 13, 13),
            ("system", 74, 50),
            ("node-high", 98, 73),
            ("leader-election", 25, 25),
            ("workload-high", 98, 49),
            ("workload-low", 245, 24),
            ("global-default", 49, 24),
        ] {
            assert_eq!(
                (of(name).nominal, of(name).min, of(name).max),
                (nominal, min, nominal + 600),
                "{name}"
            );
        }
        let plan = standard_plan();
        let low = plan
            .levels
            .iter()
            .find(|(level, _)| level.name == "workload-low")
            .unwrap();
        assert_eq!(low.0.seats_max(low.1), 37);
    }

    #[test]
    fn what_is_mandatory_is_there_and_what_dangles_is_not() {
        let schema = json!({"metadata": {"name": "x"}, "spec": {"priorityLevelConfiguration": {"name": "none"}}});
        let level = json!({"metadata": {"name": "sly"}, "spec": {"type": "Exempt", "exempt": {}}});
        let plan = Plan::new([&schema].into_iter(), [&level].into_iter(), 10);
        let names: Vec<&str> = plan.schemas.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["exempt", "catch-all"]);
        let names: Vec<&str> = plan.levels.iter().map(|(l, _)| l.name.as_str()).collect();
        assert_eq!(names, ["exempt", "catch-all"]);
    }

    #[test]
    fn rules_match_by_all_of_their_words() {
        let rule = ResourceRule::read(
            &json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"],
            "namespaces": ["a"]}),
        );
        let matches = |path: &str| rule.matches(&RequestInfo::parse(&Method::GET, path, ""));
        assert!(matches("/api/v1/namespaces/a/pods/p") && matches("/api/v1/namespaces/a/pods/p/log"));
        for path in [
            "/api/v1/namespaces/b/pods/p",
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/a/pods/p/status",
            "/apis/apps/v1/namespaces/a/pods/p",
            "/api/v1/nodes/n",
        ] {
            assert!(!matches(path), "{path}");
        }
        let paths = PathRule::read(&json!({"verbs": ["*"], "nonResourceURLs": ["/a", "/b/*"]}));
        let matches = |path: &str| paths.matches(&RequestInfo::parse(&Method::GET, path, ""));
        assert!(matches("/a") && matches("/a/x") && matches("/b/x"));
        assert!(!matches("/ab") && !matches("/c"));
    }
}
