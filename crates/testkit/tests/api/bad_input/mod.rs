//! Requests that are wrong: the right Status, nothing changed, and the server is there for the next one.

mod bounds;

use http::Method;
use orlop_testkit::{Http, HttpResponse, Server};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// A server with a config map `a` and a deployment `d`: whatever moves its revision after this is a test's doing.
fn at_rest() -> Server {
    let server = Server::with_accounts();
    server.run("kubectl create configmap a --from-literal=k=v && kubectl create deployment d --image=i");
    server
}

async fn revision(http: &Http) -> String {
    let list = http.get("/api/v1/namespaces?limit=1").await.expect(200);
    list["metadata"]["resourceVersion"].as_str().unwrap().to_string()
}

struct Wrong {
    method: &'static str,
    path: String,
    media: &'static str,
    body: Vec<u8>,
    code: u16,
    reason: &'static str,
    message: &'static str,
}

/// `POST path media body` → `code reason`, with this in the message.
fn wrong(
    request: (&'static str, &str, &'static str),
    body: impl Into<Vec<u8>>,
    answer: (u16, &'static str, &'static str),
) -> Wrong {
    Wrong {
        method: request.0,
        path: request.1.to_string(),
        media: request.2,
        body: body.into(),
        code: answer.0,
        reason: answer.1,
        message: answer.2,
    }
}

async fn check(server: &Server, cases: Vec<Wrong>) {
    let http = server.http().await;
    let before = revision(&http).await;
    let mut problems = vec![];
    for case in cases {
        let method = Method::from_bytes(case.method.as_bytes()).unwrap();
        let headers: Vec<(&str, &str)> = if case.media.is_empty() {
            vec![]
        } else {
            vec![("content-type", case.media)]
        };
        let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(100)]).into_owned();
        let what = format!("{} {} ({}) {shown}", case.method, case.path, case.media);
        match http.ask(method, &case.path, &headers, case.body).await {
            Err(e) => problems.push(format!("{what}\n    no answer: {e}")),
            Ok(answer) => problems
                .extend(judge(&answer, case.code, case.reason, case.message).map(|p| format!("{what}\n    {p}"))),
        }
    }
    if revision(&http).await != before {
        problems.push("something was written".to_string());
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn judge(answer: &HttpResponse, code: u16, reason: &str, message: &str) -> Option<String> {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    let is_status =
        body["kind"] == "Status" && body["apiVersion"] == "v1" && body["status"] == "Failure" && body["code"] == code;
    let right = answer.status == code
        && is_status
        && body["reason"] == reason
        && body["message"].as_str().is_some_and(|m| m.contains(message));
    (!right).then(|| {
        format!(
            "expected {code} {reason} {message:?}, got {} {}",
            answer.status,
            answer.text()
        )
    })
}

fn named(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string()
}

#[tokio::test]
async fn bodies_that_are_no_objects() {
    let server = at_rest();
    let post = |body: &str, message| wrong(("POST", MAPS, JSON), body, (400, "BadRequest", message));
    let mut cases = vec![
        post("", ""),
        post("{", "json parse error"),
        post(r#"{"kind": "ConfigMap", "metadata": {"name": "x"}"#, ""),
        post("[]", ""),
        post("\"text\"", ""),
        post("{}}", ""),
        post("{'kind': 'ConfigMap'}", ""),
        wrong(("POST", MAPS, YAML), "kind: [ConfigMap", (400, "BadRequest", "")),
        wrong(
            ("POST", MAPS, YAML),
            "kind: ConfigMap\n\tmetadata: {}",
            (400, "BadRequest", ""),
        ),
        wrong(
            ("POST", MAPS, YAML),
            "a: &a [*a, *a]\nb: *nonesuch",
            (400, "BadRequest", ""),
        ),
        // Not what the path is about.
        post(
            r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}"#,
            "Secret in version \"v1\" cannot be handled as a ConfigMap",
        ),
        post(
            r#"{"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}}"#,
            "",
        ),
        post(
            r#"{"apiVersion": "v1", "kind": "Nonesuch", "metadata": {"name": "x"}}"#,
            "no kind \"Nonesuch\" is registered for version \"v1\"",
        ),
        post(r#"{"apiVersion": "v1", "kind": 5}"#, ""),
        wrong(("POST", DEPLOYMENTS, JSON), named("x"), (400, "BadRequest", "")),
        wrong(
            ("POST", MAPS, JSON),
            "{}",
            (
                422,
                "Invalid",
                "metadata.name: Required value: name or generateName is required",
            ),
        ),
    ];
    // Right in form, wrong in type.
    for (members, message) in [
        (
            r#""data": 5"#,
            "cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string",
        ),
        (
            r#""data": {"a": 5}"#,
            "cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            r#""metadata": {"name": ["x"]}"#,
            "cannot unmarshal array into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            r#""metadata": {"labels": "x"}"#,
            "cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            r#""immutable": "yes""#,
            "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool",
        ),
        (r#""binaryData": {"a": "***"}"#, "illegal base64 data"),
        (r#""metadata": {"creationTimestamp": "yesterday"}"#, "parsing time"),
    ] {
        cases.push(post(
            &format!(r#"{{"apiVersion": "v1", "kind": "ConfigMap", {members}}}"#),
            message,
        ));
    }
    let deployment = |spec: &str| {
        format!(r#"{{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {{"name": "x"}}, "spec": {spec}}}"#)
    };
    for spec in [
        r#"{"replicas": "three"}"#,
        r#"{"replicas": 1.5}"#,
        r#"{"replicas": 99999999999}"#,
        r#"{"template": {"spec": {"containers": {}}}}"#,
        r#"{"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}}"#,
    ] {
        cases.push(wrong(
            ("POST", DEPLOYMENTS, JSON),
            deployment(spec),
            (400, "BadRequest", ""),
        ));
    }
    check(&server, cases).await;
}

#[tokio::test]
async fn bodies_that_are_too_much() {
    let server = at_rest();
    let data = "x".repeat(4 << 20);
    let large = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"a": data}})
        .to_string();
    // Below the limit for requests, above that of config maps.
    let fat =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fat"}, "data": {"a": &data[..2 << 20]}})
            .to_string();
    let nested = |n: usize| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"deep","annotations":{}{}}}}}"#,
            "[".repeat(n),
            "]".repeat(n)
        )
    };
    let steps = |n: usize| {
        format!(
            "[{}]",
            vec![r#"{"op":"test","path":"/kind","value":"ConfigMap"}"#; n].join(",")
        )
    };
    check(
        &server,
        vec![
            wrong(("POST", MAPS, JSON), large.clone(), (413, "RequestEntityTooLarge", "limit is 3145728")),
            wrong(("PUT", &format!("{MAPS}/a"), JSON), large.clone(), (413, "RequestEntityTooLarge", "limit is 3145728")),
            wrong(("PATCH", &format!("{MAPS}/a"), MERGE_PATCH), large.clone(), (413, "RequestEntityTooLarge", "limit is 3145728")),
            wrong(("DELETE", &format!("{MAPS}/a"), JSON), large, (413, "RequestEntityTooLarge", "limit is 3145728")),
            wrong(("POST", MAPS, JSON), fat, (422, "Invalid", "Too long: may not be more than 1048576 bytes")),
            wrong(("POST", MAPS, JSON), nested(100_000), (400, "BadRequest", "")),
            wrong(("POST", MAPS, JSON), "[".repeat(1 << 20), (400, "BadRequest", "")),
            wrong(("POST", MAPS, JSON), "{\"a\":".repeat(1 << 18), (400, "BadRequest", "")),
            wrong(("POST", MAPS, YAML), "[".repeat(1 << 20), (400, "BadRequest", "")),
            wrong(("POST", MAPS, YAML), "- ".repeat(1 << 18), (400, "BadRequest", "")),
            wrong(("POST", MAPS, YAML), "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]\ni: &i [*h,*h,*h,*h,*h,*h,*h,*h,*h]\n", (400, "BadRequest", "")),
            wrong(("PATCH", &format!("{MAPS}/a"), MERGE_PATCH), nested(50_000), (400, "BadRequest", "")),
            wrong(("PATCH", &format!("{MAPS}/a"), JSON_PATCH), steps(10_001), (413, "RequestEntityTooLarge", "The allowed maximum operations in a JSON patch is 10000, got 10001")),
        ],
    )
    .await;
}

/// Bytes that are no UTF-8 become the replacement character, as Go's decoder has it; never a crash, never other bytes.
#[tokio::test]
async fn bytes_that_are_no_text() {
    let server = at_rest();
    let http = server.http().await;
    let body = b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"bytes\"},\"data\":{\"a\":\"x\xff\xfey\"}}";
    let answer = http
        .ask(Method::POST, MAPS, &[("content-type", JSON)], body.to_vec())
        .await
        .unwrap();
    assert_eq!(answer.expect(201)["data"]["a"], "x\u{fffd}\u{fffd}y");
    let key =
        b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"key\"},\"data\":{\"\xff\":\"\"}}";
    http.ask(Method::POST, MAPS, &[("content-type", JSON)], key.to_vec())
        .await
        .unwrap()
        .refused(422, "Invalid");
    let yaml = http
        .ask(
            Method::POST,
            MAPS,
            &[("content-type", YAML)],
            b"kind: \xff\xfe".to_vec(),
        )
        .await
        .unwrap();
    yaml.refused(400, "BadRequest");
    // Lone surrogates, NUL, and characters beyond the first plane.
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"odd"},"data":{"a":"\ud800","b":"\u0000","c":"😀"}}"#;
    let odd = http
        .ask(Method::POST, MAPS, &[("content-type", JSON)], body)
        .await
        .unwrap()
        .expect(201);
    assert_eq!(odd["data"], json!({"a": "\u{fffd}", "b": "\u{0}", "c": "😀"}));
    assert_eq!(http.get(&format!("{MAPS}/odd")).await.json()["data"], odd["data"]);
}

#[tokio::test]
async fn unknown_and_doubled_fields() {
    let server = at_rest();
    let http = server.http().await;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME","nope":1},"data":{"a":"1"},"data":{"b":"2"},"dat":{}}"#;
    let post = async |name: &str, mode: &str| {
        let path = if mode.is_empty() {
            MAPS.to_string()
        } else {
            format!("{MAPS}?fieldValidation={mode}")
        };
        http.ask(
            Method::POST,
            &path,
            &[("content-type", JSON)],
            body.replace("NAME", name),
        )
        .await
        .unwrap()
    };
    let before = revision(&http).await;
    let strict = post("s", "Strict").await.refused(400, "BadRequest");
    let message = strict["message"].as_str().unwrap();
    for part in [
        "strict decoding error: ",
        r#"unknown field "metadata.nope""#,
        r#"duplicate field "data""#,
        r#"unknown field "dat""#,
    ] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    let unknown = post("u", "Sometimes").await.refused(422, "Invalid");
    assert!(
        unknown["message"].as_str().unwrap().contains(
            r#"fieldValidation: Unsupported value: "Sometimes": supported values: "", "Ignore", "Strict", "Warn""#
        ),
        "{unknown:#}"
    );
    assert_eq!(revision(&http).await, before);

    // Without a word about it, one is warned.
    for (name, mode) in [("w", "Warn"), ("d", "")] {
        let answer = post(name, mode).await;
        let object = answer.expect(201);
        assert_eq!(object["data"], json!({"b": "2"}), "the last one counts");
        assert_eq!(object["dat"], Value::Null);
        let warnings = answer.warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(
            warnings.contains(&r#"299 - "unknown field \"dat\"""#.to_string()),
            "{warnings:?}"
        );
    }
    let ignored = post("i", "Ignore").await;
    ignored.expect(201);
    assert_eq!(ignored.warnings(), Vec::<String>::new());

    // The same for patches and updates.
    for (media, patch) in [
        (MERGE_PATCH, r#"{"dat":{"a":"b"}}"#),
        (STRATEGIC_PATCH, r#"{"dat":{"a":"b"}}"#),
        (JSON_PATCH, r#"[{"op":"add","path":"/dat","value":{}}]"#),
        (
            APPLY_PATCH,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"dat":{}}"#,
        ),
    ] {
        let path = |mode: &str| format!("{MAPS}/a?fieldManager=me&fieldValidation={mode}");
        let strict = http
            .ask(Method::PATCH, &path("Strict"), &[("content-type", media)], patch)
            .await
            .unwrap();
        assert!(
            matches!(strict.status.as_u16(), 400 | 422 | 500),
            "{media}: {}",
            strict.text()
        );
        assert!(strict.text().contains("dat"), "{media}: {}", strict.text());
        let ignored = http
            .ask(Method::PATCH, &path("Ignore"), &[("content-type", media)], patch)
            .await
            .unwrap();
        assert!(
            ignored.status == 200 || media == APPLY_PATCH,
            "{media}: {}",
            ignored.text()
        );
    }
    let strict = http
        .ask(
            Method::PUT,
            &format!("{MAPS}/a?fieldValidation=Strict"),
            &[("content-type", JSON)],
            body.replace("NAME", "a"),
        )
        .await
        .unwrap();
    strict.refused(400, "BadRequest");
}

#[tokio::test]
async fn wrong_media_types_and_verbs() {
    let server = at_rest();
    let map = format!("{MAPS}/a");
    let unsupported = |method, path: &str, media| wrong((method, path, media), "{}", (415, "UnsupportedMediaType", ""));
    let not_allowed = |method, path: &str| {
        wrong(
            (method, path, JSON),
            named("a"),
            (
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ),
        )
    };
    check(
        &server,
        vec![
            unsupported("POST", MAPS, "text/plain"),
            unsupported("POST", MAPS, "application/x-www-form-urlencoded"),
            unsupported("PUT", &map, "application/xml"),
            unsupported("PATCH", &map, JSON),
            unsupported("PATCH", &map, "text/plain"),
            not_allowed("POST", &map),
            not_allowed("PUT", MAPS),
            not_allowed("PATCH", MAPS),
            not_allowed("POST", "/api/v1/componentstatuses"),
            not_allowed("DELETE", "/api/v1/namespaces/default/pods/x/binding"),
            not_allowed("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
            not_allowed("DELETE", "/api/v1/namespaces"),
            not_allowed("TRACE", &map),
            not_allowed("FROB", &map),
        ],
    )
    .await;
    let http = server.http().await;
    http.ask(Method::GET, &map, &[("accept", "text/html")], "")
        .await
        .unwrap()
        .refused(406, "NotAcceptable");
    http.ask(
        Method::GET,
        &map,
        &[("accept", "application/json;as=Nonesuch;g=meta.k8s.io;v=v1")],
        "",
    )
    .await
    .unwrap()
    .refused(406, "NotAcceptable");
}

#[tokio::test]
async fn paths_that_lead_nowhere() {
    let server = at_rest();
    let nowhere = |path: &str| wrong(("GET", path, ""), "", (404, "NotFound", ""));
    check(
        &server,
        vec![
            nowhere("/api/v1/nonesuch"),
            nowhere("/api/v1/namespaces/default/nonesuch/x"),
            nowhere("/apis/apps/v1/namespaces/default/nodes"),
            nowhere("/api/v1/namespaces/default/configmaps/a/status"),
            nowhere("/api/v1/namespaces/default/configmaps/a/b/c/d"),
            nowhere("/api/v1/namespaces/default/configmaps/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
            nowhere("/api/v1/namespaces/default/configmaps/%00"),
            nowhere("/api/v1/namespaces/default/configmaps/%ff%fe"),
            wrong(
                ("GET", &format!("{MAPS}/missing"), ""),
                "",
                (404, "NotFound", r#"configmaps "missing" not found"#),
            ),
            wrong(
                ("DELETE", &format!("{MAPS}/missing"), ""),
                "",
                (404, "NotFound", r#"configmaps "missing" not found"#),
            ),
            wrong(
                ("PUT", &format!("{MAPS}/missing"), JSON),
                named("missing"),
                (404, "NotFound", r#"configmaps "missing" not found"#),
            ),
            wrong(
                ("POST", "/api/v1/namespaces/nowhere/configmaps", JSON),
                named("x"),
                (404, "NotFound", r#"namespaces "nowhere" not found"#),
            ),
        ],
    )
    .await;
    // Where nothing is served at all there is no Status either.
    let http = server.http().await;
    for path in [
        "/nonesuch",
        "/apis/nonesuch.example.org/v1/things",
        "/apis/apps/v2/deployments",
    ] {
        let answer = http.get(path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text().trim_end()),
            (404, "404 page not found"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn parameters_that_make_no_sense() {
    let server = at_rest();
    let bad = |query: &str, message| {
        wrong(
            ("GET", &format!("{MAPS}?{query}"), ""),
            "",
            (400, "BadRequest", message),
        )
    };
    let invalid = |method, path: String, message| wrong((method, &path, JSON), named("x"), (422, "Invalid", message));
    check(
        &server,
        vec![
            bad(
                "labelSelector=a%3D%3Db%3D%3Dc",
                "found '==', expected: ',' or 'end of string'",
            ),
            bad("labelSelector=a%20in%20b", "unable to parse requirement"),
            bad("labelSelector=%21%21a", ""),
            bad("labelSelector=-a%3Db", ""),
            bad(
                "fieldSelector=metadata.colour%3Dred",
                r#""metadata.colour" is not a known field selector: only "metadata.name", "metadata.namespace""#,
            ),
            bad("fieldSelector=metadata.name", "invalid selector"),
            bad("limit=many", ""),
            bad("limit=2&continue=nonsense", "continue key is not valid"),
            bad("limit=2&continue=e30%3D", "continue key is not valid"),
            bad(
                "limit=2&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiIuLi8uLi8ifQ",
                "continue key is not valid",
            ),
            bad("watch=true&timeoutSeconds=soon", ""),
            invalid(
                "POST",
                format!("{MAPS}?dryRun=Maybe"),
                r#"dryRun: Unsupported value: ["Maybe"]: supported values: "All""#,
            ),
            invalid(
                "POST",
                format!("{MAPS}?fieldManager={}", "x".repeat(200)),
                "fieldManager: Too long: may not be more than 128 bytes",
            ),
            wrong(
                ("DELETE", &format!("{MAPS}/a?propagationPolicy=Sometimes"), ""),
                "",
                (422, "Invalid", "propagationPolicy"),
            ),
            wrong(
                ("DELETE", &format!("{MAPS}/a"), JSON),
                r#"{"apiVersion":"v1","kind":"DeleteOptions","orphanDependents":true,"propagationPolicy":"Orphan"}"#,
                (422, "Invalid", "propagationPolicy"),
            ),
            wrong(
                ("DELETE", &format!("{MAPS}/a"), JSON),
                r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"other"}}"#,
                (
                    409,
                    "Conflict",
                    "the UID in the precondition (other) does not match the UID in record",
                ),
            ),
            wrong(
                ("DELETE", &format!("{MAPS}/a?resourceVersion=x"), JSON),
                "{",
                (400, "BadRequest", ""),
            ),
        ],
    )
    .await;
    // A token made by this server for another list is as bad.
    let http = server.http().await;
    let page = http.get("/api/v1/namespaces?limit=1").await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap();
    http.get(&format!("/api/v1/namespaces?limit=1&continue={token}"))
        .await
        .expect(200);
    let mixed = http
        .get(&format!(
            "/api/v1/namespaces?limit=1&continue={token}&resourceVersionMatch=Exact&resourceVersion=5"
        ))
        .await;
    assert!(matches!(mixed.status.as_u16(), 400 | 422), "{}", mixed.text());
}

#[tokio::test]
async fn names_that_do_not_match() {
    let server = at_rest();
    let in_namespace = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace}}).to_string()
    };
    let with = |member: &str, value: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", member: value}}).to_string()
    };
    let named_by =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
    let map = format!("{MAPS}/a");
    let dns = "a lowercase RFC 1123 subdomain must consist of";
    check(
        &server,
        vec![
            wrong(
                ("PUT", &map, JSON),
                named("b"),
                (
                    400,
                    "BadRequest",
                    "the name of the object (b) does not match the name on the URL (a)",
                ),
            ),
            wrong(
                ("PUT", &map, JSON),
                in_namespace("other"),
                (
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                ),
            ),
            wrong(
                ("POST", MAPS, JSON),
                in_namespace("other"),
                (
                    400,
                    "BadRequest",
                    "the namespace of the provided object does not match the namespace sent on the request",
                ),
            ),
            wrong(
                ("PATCH", &map, MERGE_PATCH),
                r#"{"metadata":{"name":"b"}}"#,
                (
                    400,
                    "BadRequest",
                    "the name of the object (b) does not match the name on the URL (a)",
                ),
            ),
            wrong(
                ("PATCH", &map, MERGE_PATCH),
                r#"{"metadata":{"uid":"6d3f0e3c-6d0b-4a54-9d67-9c6a44b8a7b5"}}"#,
                (
                    422,
                    "Invalid",
                    "metadata.uid: Invalid value: \"6d3f0e3c-6d0b-4a54-9d67-9c6a44b8a7b5\": field is immutable",
                ),
            ),
            wrong(
                ("PUT", &map, JSON),
                with("uid", json!("6d3f0e3c-6d0b-4a54-9d67-9c6a44b8a7b5")),
                (
                    409,
                    "Conflict",
                    "Precondition failed: UID in precondition: 6d3f0e3c-6d0b-4a54-9d67-9c6a44b8a7b5",
                ),
            ),
            wrong(
                ("PATCH", &map, MERGE_PATCH),
                r#"{"metadata":{"resourceVersion":"1"}}"#,
                (
                    409,
                    "Conflict",
                    "the object has been modified; please apply your changes to the latest version and try again",
                ),
            ),
            wrong(
                ("PUT", &map, JSON),
                with("resourceVersion", json!("1")),
                (409, "Conflict", "the object has been modified"),
            ),
            wrong(("POST", MAPS, JSON), named_by("A_b"), (422, "Invalid", dns)),
            wrong(("POST", MAPS, JSON), named_by("a/b"), (422, "Invalid", dns)),
            wrong(
                ("POST", MAPS, JSON),
                named_by(&"a".repeat(254)),
                (422, "Invalid", "must be no more than 253"),
            ),
            wrong(
                ("POST", MAPS, JSON),
                named_by("a"),
                (409, "AlreadyExists", r#"configmaps "a" already exists"#),
            ),
            wrong(
                ("POST", MAPS, JSON),
                with("labels", json!({"a b": "c"})).replace("\"a\",", "\"x\","),
                (422, "Invalid", "metadata.labels: Invalid value: \"a b\""),
            ),
            wrong(
                ("POST", MAPS, JSON),
                with("finalizers", json!(["nonsense"])).replace("\"name\":\"a\"", "\"name\":\"x\""),
                (422, "Invalid", "metadata.finalizers"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn patches_that_do_not_apply() {
    let server = at_rest();
    let (map, deployment) = (format!("{MAPS}/a"), format!("{DEPLOYMENTS}/d"));
    let patch = |path: &str, media, body: &str, code, reason, message| {
        wrong(("PATCH", path, media), body, (code, reason, message))
    };
    check(
        &server,
        vec![
            patch(&map, JSON_PATCH, "{}", 400, "BadRequest", ""),
            patch(
                &map,
                JSON_PATCH,
                r#"[{"op":"frob","path":"/data"}]"#,
                422,
                "Invalid",
                "",
            ),
            patch(
                &map,
                JSON_PATCH,
                r#"[{"op":"remove","path":"/data/nonesuch"}]"#,
                422,
                "Invalid",
                "",
            ),
            patch(
                &map,
                JSON_PATCH,
                r#"[{"op":"replace","path":"/nonesuch/deep","value":1}]"#,
                422,
                "Invalid",
                "",
            ),
            patch(
                &map,
                JSON_PATCH,
                r#"[{"op":"test","path":"/data/k","value":"other"}]"#,
                422,
                "Invalid",
                "",
            ),
            patch(
                &map,
                JSON_PATCH,
                r#"[{"op":"add","path":"/data/n","value":5}]"#,
                422,
                "Invalid",
                "cannot unmarshal number",
            ),
            patch(&map, MERGE_PATCH, "[1, 2]", 400, "BadRequest", ""),
            patch(&map, MERGE_PATCH, "{", 400, "BadRequest", ""),
            patch(
                &map,
                MERGE_PATCH,
                r#"{"data":{"n":5}}"#,
                422,
                "Invalid",
                "cannot unmarshal number",
            ),
            patch(
                &map,
                MERGE_PATCH,
                r#"{"kind":"Secret"}"#,
                422,
                "Invalid",
                "converting (v1.Secret) to (core.ConfigMap)",
            ),
            patch(
                &deployment,
                STRATEGIC_PATCH,
                r#"{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}"#,
                500,
                "",
                "",
            ),
            patch(
                &deployment,
                STRATEGIC_PATCH,
                r#"{"spec":{"template":{"spec":{"$patch":"frob"}}}}"#,
                500,
                "",
                "",
            ),
            patch(
                &deployment,
                MERGE_PATCH,
                r#"{"spec":{"replicas":-1}}"#,
                422,
                "Invalid",
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            patch(
                &deployment,
                MERGE_PATCH,
                r#"{"spec":{"selector":{"matchLabels":{"app":"other"}}}}"#,
                422,
                "Invalid",
                "field is immutable",
            ),
            patch(
                &format!("{map}?fieldManager=me"),
                APPLY_PATCH,
                "[",
                400,
                "BadRequest",
                "",
            ),
            patch(
                &map,
                APPLY_PATCH,
                &named("a"),
                422,
                "Invalid",
                "fieldManager: Required value: is required for apply patch",
            ),
            patch(
                &format!("{map}?fieldManager=me"),
                APPLY_PATCH,
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[{}]}}"#,
                400,
                "BadRequest",
                "metadata.managedFields must be nil",
            ),
            patch(
                &format!("{map}?fieldManager=me"),
                APPLY_PATCH,
                r#"{"data":{"k":"w"}}"#,
                400,
                "BadRequest",
                "",
            ),
            patch(
                &format!("{map}?fieldManager=me&force=true"),
                MERGE_PATCH,
                "{}",
                422,
                "Invalid",
                "force: Forbidden: may not be specified for non-apply patch",
            ),
            patch(&format!("{MAPS}/missing"), MERGE_PATCH, "{}", 404, "NotFound", ""),
        ]
        .into_iter()
        // Where Kubernetes itself says 500 we may say something kinder; see below.
        .filter(|c| c.code != 500)
        .collect(),
    )
    .await;
    let http = server.http().await;
    for body in [
        r#"{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"$patch":"frob"}}}}"#,
    ] {
        let answer = http
            .ask(Method::PATCH, &deployment, &[("content-type", STRATEGIC_PATCH)], body)
            .await
            .unwrap();
        assert!(
            answer.status.as_u16() >= 400 && answer.json()["kind"] == "Status",
            "{}",
            answer.text()
        );
    }
}
