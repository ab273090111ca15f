//! Paths and queries of the Kubernetes API.

use std::fmt::Write;

/// The path of a collection: `collection("apps/v1", Some("web"), "deployments")`. Without a namespace it is that of all
/// namespaces, or of a resource that has none.
pub fn collection(api_version: &str, namespace: Option<&str>, resource: &str) -> String {
    let mut path = String::with_capacity(64);
    path.push_str(if api_version.contains('/') { "/apis/" } else { "/api/" });
    path.push_str(api_version);
    if let Some(namespace) = namespace.filter(|n| !n.is_empty()) {
        path.push_str("/namespaces/");
        escape(&mut path, namespace);
    }
    path.push('/');
    path.push_str(resource);
    path
}

/// The path of one object: `object("v1", Some("web"), "pods", "a")`.
pub fn object(api_version: &str, namespace: Option<&str>, resource: &str, name: &str) -> String {
    let mut path = collection(api_version, namespace, resource);
    path.push('/');
    escape(&mut path, name);
    path
}

/// The path of a part of an object: `subresource("v1", Some("web"), "pods", "a", "binding")`.
pub fn subresource(api_version: &str, namespace: Option<&str>, resource: &str, name: &str, part: &str) -> String {
    let mut path = object(api_version, namespace, resource, name);
    path.push('/');
    path.push_str(part);
    path
}

/// Appends parameters to a path, which may have some already. Those with an empty value are left out.
pub(crate) fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut uri = path.to_string();
    let mut separator = if path.contains('?') { '&' } else { '?' };
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        uri.push(separator);
        separator = '&';
        uri.push_str(name);
        uri.push('=');
        escape(&mut uri, value);
    }
    uri
}

/// Percent-encodes what is not unreserved (RFC 3986).
fn escape(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ => write!(out, "%{byte:02X}").expect("a string takes all that is written to it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(collection("v1", None, "nodes"), "/api/v1/nodes");
        assert_eq!(collection("v1", Some(""), "pods"), "/api/v1/pods");
        assert_eq!(
            object("apps/v1", Some("web"), "deployments", "a"),
            "/apis/apps/v1/namespaces/web/deployments/a"
        );
        assert_eq!(
            subresource("v1", Some("web"), "pods", "a", "binding"),
            "/api/v1/namespaces/web/pods/a/binding"
        );
        let role = object("rbac.authorization.k8s.io/v1", None, "clusterroles", "system:a/b");
        assert_eq!(role, "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aa%2Fb");
    }

    #[test]
    fn queries() {
        let parameters = [
            ("fieldSelector", "spec.nodeName!=,a=b"),
            ("continue", ""),
            ("limit", "5"),
        ];
        assert_eq!(
            with_query("/x", &parameters),
            "/x?fieldSelector=spec.nodeName%21%3D%2Ca%3Db&limit=5"
        );
        assert_eq!(with_query("/x?a=b", &[("c", "ä")]), "/x?a=b&c=%C3%A4");
        assert_eq!(with_query("/x", &[]), "/x");
    }
}
