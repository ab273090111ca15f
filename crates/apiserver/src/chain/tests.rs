use super::*;

#[test]
fn routes_are_there_or_not_and_take_their_methods_alone() {
    for (method, path, wanted) in [
        ("GET", "/api/v1/pods", 0),
        ("POST", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("HEAD", "/api/v1/pods", 405),
        ("GET", "/api/v1/pods/x", 404),
        ("POST", "/api/v1/namespaces/d/pods", 0),
        ("PUT", "/api/v1/namespaces/d/pods", 405),
        ("OPTIONS", "/api/v1/namespaces/d/pods/x", 405),
        ("OPTIONS", "/api/v1/namespaces/d/pods/x/proxy", 0),
        ("DELETE", "/api/v1/namespaces/d/pods", 0),
        ("POST", "/api/v1/namespaces/d/pods/x", 405),
        ("PATCH", "/api/v1/namespaces/d/pods/x", 0),
        ("POST", "/api/v1/namespaces/d/pods/x/status", 405),
        ("POST", "/api/v1/namespaces/d/pods/x/binding", 0),
        ("GET", "/api/v1/namespaces/d/pods/x/nosuch", 404),
        ("GET", "/api/v1/namespaces/d/nodes", 404),
        ("GET", "/api/v1/namespaces/d", 0),
        ("DELETE", "/api/v1/namespaces", 405),
        ("PUT", "/api/v1/namespaces/d/finalize", 0),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 0),
        ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 405),
        ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews/x", 404),
        ("POST", "/apis/authorization.k8s.io/v1/localsubjectaccessreviews", 404),
    ] {
        let method: Method = method.parse().unwrap();
        let info = RequestInfo::parse(&method, path, "");
        let kind = kinds::of_resource(&info.group, &info.version, &info.resource).unwrap();
        let got = check_route(kind, &info, &method).map_or_else(|s| s.code, |()| 0);
        assert_eq!(got, wanted, "{method} {path}");
    }
}
