//! What the audit log says of one request: it is filled on the way through the chain, by one step at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderValue, USER_AGENT};
use jiff::Timestamp;
use orlop_api::Status;
use orlop_base::Random;
use orlop_base::clock::rfc3339_micro;
use serde_json::{Value, json};

use super::policy::{Coverage, Level};
use crate::authn::UserInfo;
use crate::request::RequestInfo;

/// Upstream: the same, and the same mark where it was cut.
const USER_AGENT_MAX: usize = 1024;
const CUT: &str = "...TRUNCATED";
/// Upstream takes what clients call their requests at any length.
const ID_MAX: usize = 64;
const ID_HEADER: &str = "audit-id";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

/// What the log says of one request.
#[derive(Clone, Debug)]
pub struct Trail {
    id: String,
    uri: String,
    verb: &'static str,
    object: Option<Value>,
    received: Timestamp,
    source_ips: Vec<String>,
    user_agent: String,
    /// Who proved who they are, whomever they then act as.
    pub user: Option<Arc<UserInfo>>,
    pub impersonated: Option<Arc<UserInfo>>,
    /// Whether it was allowed, and why.
    pub decision: Option<(bool, Arc<str>)>,
    /// What steps on the way have to say, beside the decision.
    pub annotations: BTreeMap<String, String>,
    /// How much of it is recorded.
    pub(crate) coverage: Coverage,
    pub(crate) request_object: Option<Value>,
    pub(crate) response_object: Option<Value>,
}

impl Trail {
    /// Of a request that nobody keeps a log of: it has a name, which the answer tells.
    pub fn unlogged(info: &RequestInfo, headers: &HeaderMap) -> Trail {
        Trail {
            id: id_of(headers),
            uri: String::new(),
            verb: info.verb,
            object: None,
            received: Timestamp::UNIX_EPOCH,
            source_ips: vec![],
            user_agent: String::new(),
            user: None,
            impersonated: None,
            decision: None,
            annotations: BTreeMap::new(),
            coverage: Coverage::default(),
            request_object: None,
            response_object: None,
        }
    }

    pub fn new(info: &RequestInfo, uri: &str, headers: &HeaderMap, peer: Option<IpAddr>, received: Timestamp) -> Trail {
        Trail {
            uri: uri.to_string(),
            object: info.is_resource.then(|| object_ref(info)),
            received,
            source_ips: source_ips(headers, peer).iter().map(IpAddr::to_string).collect(),
            user_agent: user_agent(headers),
            coverage: Coverage::all(Level::Metadata),
            ..Trail::unlogged(info, headers)
        }
    }

    /// Names what is created, which the path does not.
    pub fn name_created(&mut self, body: &[u8]) {
        if self.verb == "create"
            && let Some(object) = self.object.as_mut().filter(|object| object.get("name").is_none())
            && let Some(name) = name_in(body)
        {
            object["name"] = name.into();
        }
    }

    /// The `Audit-Id` of the answer.
    pub fn id(&self) -> HeaderValue {
        HeaderValue::from_str(&self.id).expect("an id that came in a header, or of hexadecimal digits")
    }

    /// The `audit.k8s.io/v1` Event of a stage.
    pub(super) fn event(&self, stage: Stage, response: Option<&Value>, at: Timestamp) -> Value {
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": self.coverage.level.name(),
            "auditID": self.id, "stage": format!("{stage:?}"),
            "requestURI": self.uri, "verb": self.verb,
            "user": self.user.as_deref().map_or_else(|| json!({}), UserInfo::to_value),
            "requestReceivedTimestamp": rfc3339_micro(self.received), "stageTimestamp": rfc3339_micro(at),
        });
        let optional = [
            ("impersonatedUser", self.impersonated.as_deref().map(UserInfo::to_value)),
            (
                "sourceIPs",
                (!self.source_ips.is_empty()).then(|| json!(self.source_ips)),
            ),
            (
                "userAgent",
                (!self.user_agent.is_empty()).then(|| json!(self.user_agent)),
            ),
            ("objectRef", self.object.clone()),
            ("responseStatus", response.cloned()),
            ("requestObject", self.request_object.clone()),
            ("responseObject", self.response_object.clone()),
            ("annotations", self.all_annotations()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                event[name] = value;
            }
        }
        event
    }

    fn all_annotations(&self) -> Option<Value> {
        let mut all = self.annotations.clone();
        if let Some((allowed, reason)) = &self.decision {
            let decision = if *allowed { "allow" } else { "forbid" };
            all.insert("authorization.k8s.io/decision".into(), decision.into());
            all.insert("authorization.k8s.io/reason".into(), reason.to_string());
        }
        (!all.is_empty()).then(|| json!(all))
    }
}

/// The name of an object in JSON or protobuf, without the trouble of reading all of it.
fn name_in(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        name: String,
    }
    if let Ok((_, message)) = orlop_api::protobuf::open(body) {
        // The metadata is the first field of every kind, and the name the first of its own.
        let name = std::str::from_utf8(first_field(first_field(message)?)?);
        return name.ok().map(str::to_string);
    }
    let named = serde_json::from_slice::<Named>(body).ok()?;
    Some(named.metadata.name)
}

/// The content of field 1 if a message begins with it.
fn first_field(message: &[u8]) -> Option<&[u8]> {
    let mut rest = message.strip_prefix(&[0x0a])?;
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let (byte, tail) = rest.split_first()?;
        rest = tail;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return rest.get(..length);
        }
    }
    None
}

fn object_ref(info: &RequestInfo) -> Value {
    let mut object = json!({"resource": info.resource, "apiVersion": info.version});
    let parts = [
        ("namespace", &info.namespace),
        ("name", &info.name),
        ("apiGroup", &info.group),
        ("subresource", &info.subresource),
    ];
    for (name, text) in parts {
        if !text.is_empty() {
            object[name] = text.as_str().into();
        }
    }
    object
}

/// The response's status as the log has it: all of a failure, of a success the code alone.
pub fn response_status(code: u16, failure: Option<&Status>) -> Value {
    match failure {
        Some(status) => json!({
            "metadata": {}, "status": "Failure", "message": status.message, "reason": status.reason, "code": code,
        }),
        None => json!({"metadata": {}, "code": code}),
    }
}

/// The client's own name for the request, or a new one.
fn id_of(headers: &HeaderMap) -> String {
    let given = headers.get(ID_HEADER).and_then(|value| value.to_str().ok());
    match given.filter(|id| !id.is_empty()) {
        Some(id) => id.chars().take(ID_MAX).collect(),
        None => new_id(),
    }
}

/// Tells requests apart and keeps no secret: the kernel need not be asked for each of them.
fn new_id() -> String {
    thread_local! {
        static RANDOM: RefCell<Random> = RefCell::new(Random::from_entropy());
    }
    let bits = RANDOM.with_borrow_mut(|random| [random.next_u64(), random.next_u64()]);
    let bytes: [u8; 16] = std::array::from_fn(|i| bits[i / 8].to_le_bytes()[i % 8]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

fn user_agent(headers: &HeaderMap) -> String {
    let whole = headers.get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
    let whole = String::from_utf8_lossy(whole);
    match whole.char_indices().nth(USER_AGENT_MAX) {
        None => whole.into_owned(),
        Some((end, _)) => format!("{}{CUT}", &whole[..end]),
    }
}

/// Where a request came from: what proxies on the way say, and last, which nobody can make up, who connected to us.
fn source_ips(headers: &HeaderMap, peer: Option<IpAddr>) -> Vec<IpAddr> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let parse = |text: &str| text.trim().parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let mut ips: Vec<IpAddr> = text("x-forwarded-for").split(',').filter_map(parse).collect();
    ips.extend(parse(text("x-real-ip")).filter(|ip| !ips.contains(ip)));
    let peer = peer.map(|ip| ip.to_canonical());
    ips.extend(peer.filter(|ip| ips.last() != Some(ip)));
    ips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn where_requests_come_from() {
        let peer: Option<IpAddr> = Some("::ffff:10.0.0.9".parse().unwrap());
        for (list, wanted) in [
            (vec![], "10.0.0.9"),
            (
                vec![("x-forwarded-for", "1.1.1.1, nonsense,2.2.2.2")],
                "1.1.1.1 2.2.2.2 10.0.0.9",
            ),
            (vec![("x-forwarded-for", "1.1.1.1, 10.0.0.9")], "1.1.1.1 10.0.0.9"),
            (
                vec![("x-forwarded-for", "1.1.1.1"), ("x-real-ip", "1.1.1.1")],
                "1.1.1.1 10.0.0.9",
            ),
            (vec![("x-real-ip", "fd00::1")], "fd00::1 10.0.0.9"),
        ] {
            let got: Vec<String> = source_ips(&headers(&list), peer)
                .iter()
                .map(IpAddr::to_string)
                .collect();
            assert_eq!(got.join(" "), wanted);
        }
        assert!(source_ips(&HeaderMap::new(), None).is_empty());
    }

    #[test]
    fn lines_tell_who_did_it_and_as_whom() {
        let list = headers(&[("audit-id", &"i".repeat(100)), ("user-agent", &"u".repeat(2000))]);
        let info = RequestInfo::parse(&http::Method::DELETE, "/api/v1/namespaces/d/pods/p", "");
        let mut trail = Trail::new(&info, "/api/v1/namespaces/d/pods/p", &list, None, Timestamp::UNIX_EPOCH);
        trail.user = Some(Arc::new(UserInfo::new("admin", &["g"])));
        trail.impersonated = Some(Arc::new(UserInfo::new("ann", &[])));
        trail.decision = Some((false, "because".into()));
        let status = Status::not_found("", "pods", "p");
        let line = trail.event(
            Stage::ResponseComplete,
            Some(&response_status(404, Some(&status))),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(line["auditID"].as_str().unwrap(), "i".repeat(64));
        assert_eq!(trail.id().to_str().unwrap(), "i".repeat(64));
        assert_eq!(line["userAgent"].as_str().unwrap().len(), USER_AGENT_MAX + CUT.len());
        assert_eq!(
            (&line["user"]["username"], &line["impersonatedUser"]["username"]),
            (&json!("admin"), &json!("ann"))
        );
        let annotations = json!({"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": "because"});
        assert_eq!(line["annotations"], annotations);
        assert_eq!(
            (&line["stage"], &line["objectRef"]["name"]),
            (&json!("ResponseComplete"), &json!("p"))
        );
        assert_eq!(line["responseStatus"]["message"], "pods \"p\" not found");

        let info = RequestInfo::parse(&http::Method::POST, "/api/v1/namespaces/d/pods", "");
        let mut trail = Trail::new(&info, "", &list, None, Timestamp::UNIX_EPOCH);
        trail.name_created(b"nonsense");
        trail.name_created(br#"{"kind": "Pod", "metadata": {"labels": {}, "name": "p"}}"#);
        let line = trail.event(Stage::RequestReceived, None, Timestamp::UNIX_EPOCH);
        assert_eq!(line["objectRef"]["name"], "p");

        let ty = orlop_api::schema::schema().get("core/v1.ConfigMap").unwrap();
        let object = json!({"metadata": {"name": "m".repeat(200), "labels": {"a": "b"}}, "data": {"x": "y"}});
        let message = orlop_api::protobuf::encode(&object, "v1", "ConfigMap", ty);
        assert_eq!(name_in(&message), Some("m".repeat(200)));
        for end in 0..message.len() {
            name_in(&message[..end]);
        }
    }
}
