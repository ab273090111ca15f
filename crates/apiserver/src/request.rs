//! What a request asks for, read from its method, path and query: the same words that authorisation, metrics, audit and
//! the handlers then use.

use http::Method;
use orlop_api::Status;

/// The parsed request line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestInfo {
    /// get, list, watch, create, update, patch, delete, deletecollection; the lower-case method for other paths.
    pub verb: &'static str,
    pub path: String,
    /// False for paths outside the API groups (/healthz, /version, discovery).
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// What follows the subresource (proxy paths), without the leading slash.
    pub rest: String,
    pub query: Query,
}

/// Query parameters, in order, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query(pub Vec<(String, String)>);

impl Query {
    pub fn parse(raw: &str) -> Query {
        let pairs = raw.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name, true), percent_decode(value, true))
        });
        Query(pairs.collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Booleans as Kubernetes reads them: present and neither "false" nor "0".
    pub fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|v| !matches!(v, "false" | "0" | "False" | "FALSE" | "f" | "F"))
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        }
    }
}

/// Undoes %XX (and `+` in queries). Bytes that do not make UTF-8 become U+FFFD, which no name or key allows.
pub fn percent_decode(text: &str, plus_is_space: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_string();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        match bytes[i] {
            b'%' if i + 2 < bytes.len() => match (hex(bytes[i + 1]), hex(bytes[i + 2])) {
                (Some(h), Some(l)) => {
                    out.push(h << 4 | l);
                    i += 2;
                }
                _ => out.push(b'%'),
            },
            b'+' if plus_is_space => out.push(b' '),
            b => out.push(b),
        }
        i += 1;
    }
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

impl RequestInfo {
    pub fn parse(method: &Method, path: &str, raw_query: &str) -> RequestInfo {
        let query = Query::parse(raw_query);
        let segments: Vec<String> = path
            .split('/')
            .filter(|s| !s.is_empty())
            .map(|s| percent_decode(s, false))
            .collect();
        let mut info = RequestInfo {
            path: path.to_string(),
            verb: plain_verb(method),
            query,
            ..Default::default()
        };
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        // Double slashes lead nowhere.
        if path.starts_with("//") {
            return info;
        }
        let rest = match words.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = version.to_string();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                info.group = group.to_string();
                info.version = version.to_string();
                rest
            }
            _ => return info,
        };
        info.is_resource = true;
        info.read_resource(method, rest);
        info
    }

    fn read_resource(&mut self, method: &Method, mut words: &[&str]) {
        // The old form /api/v1/watch/pods, still spoken by a few clients.
        let old_watch = words[0] == "watch" && words.len() > 1 && *method == Method::GET;
        if old_watch {
            words = &words[1..];
        }
        match words {
            // A namespace itself, or one of its own subresources.
            ["namespaces", name] => self.set("namespaces", name, name, &[]),
            ["namespaces", name, sub @ ("status" | "finalize")] => self.set("namespaces", name, name, &[sub]),
            ["namespaces", ns, resource] => self.set(resource, ns, "", &[]),
            ["namespaces", ns, resource, name, rest @ ..] => self.set(resource, ns, name, rest),
            [resource] => self.set(resource, "", "", &[]),
            [resource, name, rest @ ..] => self.set(resource, "", name, rest),
            [] => {}
        }
        self.verb = match (method, self.name.is_empty()) {
            (&Method::GET, _) if old_watch => "watch",
            (&Method::GET, true) if self.query.flag("watch") => "watch",
            (&Method::GET | &Method::HEAD, true) => "list",
            (&Method::GET | &Method::HEAD, false) => "get",
            (&Method::DELETE, true) => "deletecollection",
            (&Method::DELETE, false) => "delete",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            _ => plain_verb(method),
        };
    }

    fn set(&mut self, resource: &str, namespace: &str, name: &str, rest: &[&str]) {
        self.resource = resource.to_string();
        self.namespace = namespace.to_string();
        self.name = name.to_string();
        if let [sub, rest @ ..] = rest {
            self.subresource = sub.to_string();
            self.rest = rest.join("/");
        }
    }

    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    /// Requests that stay open by design: they do not count against the in-flight limits.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy")
            || (self.subresource == "log" && self.query.flag("follow"))
    }
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        let cases = [
            ("GET", "/api/v1/pods", "list pods "),
            ("GET", "/api/v1/namespaces/d/pods?watch=true", "watch pods d"),
            ("GET", "/api/v1/namespaces/d/pods/p", "get pods d p"),
            ("GET", "/api/v1/watch/pods", "watch pods "),
            ("POST", "/api/v1/namespaces/d/pods/p/binding", "create pods d p binding"),
            ("PUT", "/api/v1/namespaces/d/finalize", "update namespaces d d finalize"),
            ("PUT", "/api/v1/namespaces/d/status", "update namespaces d d status"),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/d/deployments",
                "deletecollection deployments d",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/d/deployments/x/scale",
                "patch deployments d x scale",
            ),
            ("GET", "/api/v1/nodes/n%2F1", "get nodes  n/1"),
            (
                "GET",
                "/api/v1/namespaces/d/services/s/proxy/a/b",
                "get services d s proxy a/b",
            ),
            ("GET", "/apis/apps/v1", "get   "),
            ("GET", "/healthz", "get   "),
        ];
        for (method, target, wanted) in cases {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let i = RequestInfo::parse(&method.parse().unwrap(), path, query);
            let got = [i.verb, &i.resource, &i.namespace, &i.name, &i.subresource, &i.rest].join(" ");
            assert_eq!(got.trim_end(), wanted.trim_end(), "{target}");
            assert_eq!(i.is_resource, wanted.len() > 7, "{target}");
        }
    }

    #[test]
    fn queries_decode() {
        let q = Query::parse("labelSelector=a%3Db%2Cc+in+(d)&limit=5&watch=0&x");
        assert_eq!(q.get("labelSelector"), Some("a=b,c in (d)"));
        assert_eq!(q.number("limit").unwrap(), Some(5));
        assert!(!q.flag("watch") && q.flag("x") && !q.flag("y"));
        assert!(q.number("labelSelector").is_err());
        assert_eq!(percent_decode("a%ff%2", false), "a\u{fffd}%2");
    }
}
