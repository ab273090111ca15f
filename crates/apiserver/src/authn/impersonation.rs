//! Impersonation: a request made as somebody else, by those who may. Headers say as whom; each part of the identity must
//! be allowed. Constrained impersonation (narrower rights, tied to what the request does) is tried before the plain
//! verb `impersonate`; the first way that allows it counts.
//! Upstream: staging/src/k8s.io/apiserver/pkg/endpoints/filters/impersonation (v1.36).

use http::{HeaderMap, HeaderName};
use orlop_api::{Status, names};

use super::{
    ANONYMOUS, AUTHENTICATED, MASTERS, NODE_NAME, NODES, UNAUTHENTICATED, UserInfo, service_account_groups, split_node,
    split_service_account,
};
use crate::authz::{Attributes, Decision, forbidden};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const API_GROUP: &str = "authentication.k8s.io";
/// From this many groups or extra values on, a right to all of them is asked for first.
const MANY: usize = 4;

type Authorize<'a> = &'a dyn Fn(&Attributes<'_>) -> Decision;

/// The user to continue as; none if the headers do not ask for anybody. `request` is what the original user asks for.
pub fn impersonate(
    request: &Attributes<'_>,
    headers: &HeaderMap,
    authorize: Authorize<'_>,
) -> Result<Option<UserInfo>, Status> {
    let Some(wanted) = wanted(headers)? else {
        return Ok(None);
    };
    let mut refusal = None;
    for mode in MODES.iter().filter(|mode| (mode.applies)(&wanted, request.user)) {
        match mode.check(&wanted, request, authorize) {
            Ok(user) => return Ok(Some(user)),
            Err(status) => refusal = refusal.or(Some(status)),
        }
    }
    Err(refusal.expect("plain impersonation applies to everybody, so some mode has refused"))
}

/// Takes credentials and impersonation out of the headers, for requests that are passed on.
pub fn strip_headers(headers: &mut HeaderMap) {
    let is_identity = |name: &HeaderName| {
        let name = name.as_str();
        matches!(
            name,
            "authorization" | "x-remote-user" | "x-remote-uid" | "x-remote-group" | USER | UID | GROUP
        ) || name.starts_with(EXTRA_PREFIX)
            || name.starts_with("x-remote-extra-")
    };
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_identity(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Who the headers ask for, as they say it.
fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let mut user = UserInfo::default();
    for (name, value) in headers {
        let known = [USER, UID, GROUP].contains(&name.as_str()) || name.as_str().starts_with(EXTRA_PREFIX);
        if !known {
            continue;
        }
        let value = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Status::bad_request(format!("header {name} is not readable")))?;
        match name.as_str() {
            // Of several, the first counts.
            USER if user.name.is_empty() => user.name = value.to_string(),
            UID if user.uid.is_empty() => user.uid = value.to_string(),
            GROUP => user.groups.push(value.to_string()),
            name => {
                if let Some(key) = name.strip_prefix(EXTRA_PREFIX) {
                    user.extra
                        .entry(percent_decoded(key))
                        .or_default()
                        .push(value.to_string());
                }
            }
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if !user.uid.is_empty() || !user.groups.is_empty() || !user.extra.is_empty() {
        let message = format!("requested {} without impersonating a user name", go_user(&user));
        return Err(Status::bad_request(message));
    }
    Ok(None)
}

/// A user as Go prints one.
fn go_user(user: &UserInfo) -> String {
    let strings = |list: &[String]| -> String {
        let quoted: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if user.groups.is_empty() {
        "[]string(nil)".to_string()
    } else {
        strings(&user.groups)
    };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_string()
    } else {
        let entries: Vec<String> = user
            .extra
            .iter()
            .map(|(k, v)| format!("{k:?}:{}", strings(v)))
            .collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    format!(
        "&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}",
        user.uid
    )
}

/// Extra keys may hold characters that header names may not; what is no proper encoding is taken as it stands.
pub(super) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, tail) = match (first, tail) {
            (b'%', [a, b, tail @ ..]) => match (hex(*a), hex(*b)) {
                (Some(a), Some(b)) => (a << 4 | b, tail),
                _ => return text.to_string(),
            },
            (b'%', _) => return text.to_string(),
            (byte, tail) => (byte, tail),
        };
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_string())
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|d| d as u8)
}

/// One way of being allowed to impersonate. Constrained modes have a name; the plain one has none.
struct Mode {
    name: Option<&'static str>,
    /// Given whom the headers ask for and who asks.
    applies: fn(&UserInfo, &UserInfo) -> bool,
}

const MODES: &[Mode] = &[
    Mode {
        name: Some("associated-node"),
        applies: |wanted, asker| {
            let node = split_node(&wanted.name);
            node.is_some()
                && only_name(wanted)
                && split_service_account(&asker.name).is_some()
                && node == node_of(asker)
        },
    },
    Mode {
        name: Some("arbitrary-node"),
        applies: |wanted, _| only_name(wanted) && split_node(&wanted.name).is_some(),
    },
    Mode {
        name: Some("serviceaccount"),
        applies: |wanted, _| only_name(wanted) && split_service_account(&wanted.name).is_some(),
    },
    Mode {
        name: Some("user-info"),
        applies: |wanted, _| split_node(&wanted.name).is_none() && split_service_account(&wanted.name).is_none(),
    },
    Mode {
        name: None,
        applies: |_, _| true,
    },
];

fn only_name(user: &UserInfo) -> bool {
    user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty()
}

/// The node that a service account's token is bound to.
fn node_of(asker: &UserInfo) -> Option<&str> {
    match asker.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([node]) => Some(node),
        _ => None,
    }
}

impl Mode {
    fn check(&self, wanted: &UserInfo, request: &Attributes<'_>, authorize: Authorize<'_>) -> Result<UserInfo, Status> {
        let ask = |attrs: &Attributes<'_>| match authorize(attrs) {
            decision if decision.allowed => Ok(()),
            decision => Err(forbidden(attrs, &decision.reason)),
        };
        let verb = match self.name {
            Some(name) => {
                let verb = format!("impersonate-on:{name}:{}", request.verb);
                ask(&Attributes {
                    verb: &verb,
                    ..*request
                })?;
                format!("impersonate:{name}")
            }
            None => "impersonate".to_string(),
        };
        let group = if self.name.is_some() { API_GROUP } else { "" };
        let about = |group, resource| Attributes::resource(request.user, &verb, group, resource);

        let mut user = wanted.clone();
        self.check_name(&mut user, about(group, "users"), &ask)?;
        if !wanted.uid.is_empty() {
            ask(&about(API_GROUP, "uids").named(&wanted.uid))?;
        }
        self.check_groups(&wanted.groups, about(group, "groups"), &ask)?;
        self.check_extra(wanted, about(API_GROUP, "userextras"), &ask)?;

        if user.name == ANONYMOUS {
            user.ensure_group(UNAUTHENTICATED);
        } else if !user.in_group(UNAUTHENTICATED) {
            user.ensure_group(AUTHENTICATED);
        }
        Ok(user)
    }

    /// Nodes and service accounts have groups that follow from their names.
    fn check_name(&self, user: &mut UserInfo, attrs: Attributes<'_>, ask: Ask<'_>) -> Result<(), Status> {
        let name = user.name.clone();
        if let Some((namespace, account)) = split_service_account(&name) {
            if user.groups.is_empty() {
                user.groups = service_account_groups(namespace);
            }
            return ask(&Attributes {
                resource: "serviceaccounts",
                ..attrs
            }
            .in_namespace(namespace)
            .named(account));
        }
        if let (Some(mode), Some(node)) = (self.name, split_node(&name)) {
            user.groups = vec![NODES.to_string()];
            // A right to one's own node holds on whatever node one happens to be.
            let node = if mode == "associated-node" { "*" } else { node };
            return ask(&Attributes {
                resource: "nodes",
                ..attrs
            }
            .named(node));
        }
        ask(&attrs.named(&name))
    }

    fn check_groups(&self, groups: &[String], attrs: Attributes<'_>, ask: Ask<'_>) -> Result<(), Status> {
        if self.name.is_some() {
            if groups.iter().any(String::is_empty) {
                return Err(forbidden(&attrs, "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == MASTERS) {
                let reason = "impersonating the system:masters group is not allowed";
                return Err(forbidden(&attrs.named(MASTERS), reason));
            }
            if groups.len() >= MANY && ask(&attrs.named("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| ask(&attrs.named(group)))
    }

    fn check_extra(&self, wanted: &UserInfo, attrs: Attributes<'_>, ask: Ask<'_>) -> Result<(), Status> {
        if self.name.is_some() {
            check_extra_form(wanted).map_err(|why| forbidden(&attrs, &why))?;
            let values: usize = wanted.extra.values().map(Vec::len).sum();
            if values >= MANY && ask(&attrs.subresource("*").named("*")).is_ok() {
                return Ok(());
            }
        }
        let pairs = wanted
            .extra
            .iter()
            .flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        pairs
            .into_iter()
            .try_for_each(|(key, value)| ask(&attrs.subresource(key).named(value)))
    }
}

type Ask<'a> = &'a dyn Fn(&Attributes<'_>) -> Result<(), Status>;

fn check_extra_form(wanted: &UserInfo) -> Result<(), String> {
    for (key, values) in &wanted.extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".into());
        }
        let domain = key
            .split_once('/')
            .filter(|(_, path)| !path.is_empty())
            .map(|(domain, _)| domain);
        if !domain.is_some_and(|domain| names::dns_subdomain(domain).is_empty()) {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            return Err(format!(
                "impersonating an invalid key in extra is not allowed: {key:?}: {why}"
            ));
        }
        if key.chars().any(char::is_uppercase) {
            return Err(format!(
                "impersonating a non-lowercase key in extra is not allowed: {key:?}"
            ));
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    /// Impersonates with exactly these rights: "verb resource[/subresource] name".
    fn check(asker: &UserInfo, lines: &[(&str, &str)], rights: &[&str]) -> Result<Option<UserInfo>, Status> {
        let authorize = |attrs: &Attributes<'_>| {
            let mut resource = format!("{}.{}", attrs.resource, attrs.group);
            if !attrs.subresource.is_empty() {
                resource = format!("{resource}/{}", attrs.subresource);
            }
            let resource = resource.trim_end_matches('.');
            let scope = if attrs.namespace.is_empty() {
                String::new()
            } else {
                format!("{}/", attrs.namespace)
            };
            let right = format!("{} {resource} {scope}{}", attrs.verb, attrs.name);
            Decision {
                allowed: rights.contains(&right.as_str()),
                ..Default::default()
            }
        };
        let request = Attributes::resource(asker, "list", "", "pods").in_namespace("ns");
        impersonate(&request, &headers(lines), &authorize)
    }

    #[test]
    fn truth_table() {
        let (user, group) = (("Impersonate-User", "bob"), ("Impersonate-Group", "dev"));
        let robot = ("Impersonate-User", "system:serviceaccount:a:robot");
        let node = ("Impersonate-User", "system:node:n1");
        let extra = ("Impersonate-Extra-Acme.io%2Fscope", "view");
        let extra_right = "impersonate userextras.authentication.k8s.io/acme.io/scope view";
        // headers, rights, name and groups (none: refused)
        type Case<'a> = (Vec<(&'a str, &'a str)>, Vec<&'a str>, Option<(&'a str, &'a str)>);
        let cases: Vec<Case<'_>> = vec![
            (
                vec![user],
                vec!["impersonate users bob"],
                Some(("bob", "system:authenticated")),
            ),
            (vec![user], vec!["impersonate users eve"], None),
            (vec![user, group], vec!["impersonate users bob"], None),
            (
                vec![user, group],
                vec!["impersonate users bob", "impersonate groups dev"],
                Some(("bob", "dev,system:authenticated")),
            ),
            (
                vec![user, ("Impersonate-Group", "system:unauthenticated")],
                vec!["impersonate users bob", "impersonate groups system:unauthenticated"],
                Some(("bob", "system:unauthenticated")),
            ),
            (
                vec![user, ("Impersonate-Group", "system:masters")],
                vec!["impersonate users bob", "impersonate groups system:masters"],
                Some(("bob", "system:masters,system:authenticated")),
            ),
            (
                vec![user, ("Impersonate-Uid", "7")],
                vec!["impersonate users bob"],
                None,
            ),
            (
                vec![user, ("Impersonate-Uid", "7")],
                vec!["impersonate users bob", "impersonate uids.authentication.k8s.io 7"],
                Some(("bob", "system:authenticated")),
            ),
            (vec![user, extra], vec!["impersonate users bob"], None),
            (
                vec![user, extra],
                vec!["impersonate users bob", extra_right],
                Some(("bob", "system:authenticated")),
            ),
            (
                vec![robot],
                vec!["impersonate serviceaccounts a/robot"],
                Some((
                    "system:serviceaccount:a:robot",
                    "system:serviceaccounts,system:serviceaccounts:a,system:authenticated",
                )),
            ),
            (
                vec![robot],
                vec!["impersonate users system:serviceaccount:a:robot"],
                None,
            ),
            (
                vec![("Impersonate-User", "system:anonymous")],
                vec!["impersonate users system:anonymous"],
                Some(("system:anonymous", "system:unauthenticated")),
            ),
            // Constrained: the right to the user and the right to do this as somebody else.
            (
                vec![user],
                vec!["impersonate:user-info users.authentication.k8s.io bob"],
                None,
            ),
            (vec![user], vec!["impersonate-on:user-info:list pods ns/"], None),
            (
                vec![user],
                vec![
                    "impersonate:user-info users.authentication.k8s.io bob",
                    "impersonate-on:user-info:list pods ns/",
                ],
                Some(("bob", "system:authenticated")),
            ),
            (
                vec![user, ("Impersonate-Group", "system:masters")],
                vec![
                    "impersonate:user-info users.authentication.k8s.io bob",
                    "impersonate-on:user-info:list pods ns/",
                    "impersonate:user-info groups.authentication.k8s.io system:masters",
                ],
                None,
            ),
            (
                vec![robot],
                vec![
                    "impersonate:serviceaccount serviceaccounts.authentication.k8s.io a/robot",
                    "impersonate-on:serviceaccount:list pods ns/",
                ],
                Some((
                    "system:serviceaccount:a:robot",
                    "system:serviceaccounts,system:serviceaccounts:a,system:authenticated",
                )),
            ),
            (
                vec![node],
                vec![
                    "impersonate:arbitrary-node nodes.authentication.k8s.io n1",
                    "impersonate-on:arbitrary-node:list pods ns/",
                ],
                Some(("system:node:n1", "system:nodes,system:authenticated")),
            ),
            (
                vec![node],
                vec![
                    "impersonate:associated-node nodes.authentication.k8s.io *",
                    "impersonate-on:associated-node:list pods ns/",
                ],
                None,
            ),
            (
                vec![node, group],
                vec!["impersonate users system:node:n1", "impersonate groups dev"],
                Some(("system:node:n1", "dev,system:authenticated")),
            ),
        ];
        let asker = UserInfo::new("alice", &[]);
        for (lines, rights, expected) in cases {
            let found = check(&asker, &lines, &rights);
            match (&found, expected) {
                (Ok(Some(user)), Some((name, groups))) => {
                    assert_eq!(
                        (user.name.as_str(), user.groups.join(",").as_str()),
                        (name, groups),
                        "{lines:?}"
                    )
                }
                (Err(status), None) => assert_eq!(status.code, 403, "{lines:?}"),
                _ => panic!("{lines:?} {rights:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn service_accounts_may_stand_in_for_their_own_node() {
        let mut agent = UserInfo::service_account("kube-system", "agent", "u");
        let rights = [
            "impersonate:associated-node nodes.authentication.k8s.io *",
            "impersonate-on:associated-node:list pods ns/",
        ];
        let ask = |agent: &UserInfo, node: &str| check(agent, &[("Impersonate-User", node)], &rights);
        assert!(ask(&agent, "system:node:n1").is_err());
        agent.extra.insert(NODE_NAME.into(), vec!["n1".into()]);
        assert_eq!(ask(&agent, "system:node:n1").unwrap().unwrap().name, "system:node:n1");
        assert!(ask(&agent, "system:node:n2").is_err());
    }

    #[test]
    fn headers_without_a_user() {
        let asker = UserInfo::new("alice", &[]);
        assert_eq!(check(&asker, &[("Accept", "*/*")], &[]).unwrap(), None);
        assert_eq!(check(&asker, &[("Impersonate-Group", "g")], &[]).unwrap_err().code, 400);
        assert_eq!(
            check(&asker, &[("Impersonate-Extra-a", "g")], &[]).unwrap_err().code,
            400
        );
        let refused = check(&asker, &[("Impersonate-User", "bob")], &[]).unwrap_err();
        let message = concat!(
            r#"pods is forbidden: User "alice" cannot impersonate-on:user-info:list resource "pods" in API "#,
            r#"group "" in the namespace "ns""#
        );
        assert_eq!(refused.message, message);
    }

    #[test]
    fn stripping_leaves_the_rest() {
        let mut map = headers(&[
            ("Authorization", "x"),
            ("Impersonate-Extra-a", "b"),
            ("X-Remote-Extra-a", "b"),
            ("Impersonate-Group", "a"),
            ("Impersonate-Group", "b"),
            ("Accept", "*/*"),
        ]);
        strip_headers(&mut map);
        assert_eq!(map.keys().map(|k| k.as_str()).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn percent_decoding() {
        let cases = [
            ("a", "a"),
            ("acme.io%2Fx", "acme.io/x"),
            ("%zz", "%zz"),
            ("a%2", "a%2"),
            ("%", "%"),
            ("%ff", "%ff"),
            ("%c3%a4", "ä"),
        ];
        for (text, decoded) in cases {
            assert_eq!(percent_decoded(text), decoded);
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_headers_never_panic(values in proptest::collection::vec(("[a-z%0-9.-]{0,12}", proptest::collection::vec(0u8..=255, 0..20)), 0..6)) {
            let mut map = HeaderMap::new();
            for (i, (key, value)) in values.iter().enumerate() {
                let name = [USER.into(), UID.into(), GROUP.into(), format!("{EXTRA_PREFIX}{key}")][i % 4].clone();
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                    map.append(name, value);
                }
            }
            let asker = UserInfo::new("alice", &[]);
            for allowed in [true, false] {
                let request = Attributes::resource(&asker, "list", "", "pods");
                let answer = impersonate(&request, &map, &|_| Decision { allowed, ..Default::default() });
                if let Ok(Some(user)) = answer {
                    proptest::prop_assert!(allowed && user.groups.iter().any(|g| g == AUTHENTICATED || g == UNAUTHENTICATED));
                }
            }
        }
    }
}
