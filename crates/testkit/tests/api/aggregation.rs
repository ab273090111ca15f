//! An extension API server behind the real binary, as kubectl sees it.

use std::process::{Child, Command, Stdio};

use orlop_testkit::{Server, eventually};
use serde_json::{Value, json};

/// A server in Python's standard library: it lets in whoever has a certificate of the front-proxy authority, and answers a
/// few paths.
const EXTENSION: &str = r#"
import http.server, json, ssl, sys
GROUP = "things.example.com"
LIST = "/apis/%s/v1/namespaces/default/things" % GROUP
THING = {"apiVersion": GROUP + "/v1", "kind": "Thing", "metadata": {"name": "one", "namespace": "default", "uid": "u",
    "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7"}}
RESOURCES = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP + "/v1", "resources": [
    {"name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing", "shortNames": ["th"],
     "verbs": ["get", "list", "watch"]}]}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == LIST and "watch=" in query:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for kind in ["MODIFIED", "DELETED"]:
                line = json.dumps({"type": kind, "object": THING}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
            return
        answers = {
            "/apis/%s/v1" % GROUP: RESOURCES,
            LIST: {"apiVersion": GROUP + "/v1", "kind": "ThingList", "metadata": {"resourceVersion": "7"}, "items": [THING]},
            LIST + "/one": THING,
            "/apis/%s/v1/whoami" % GROUP: {"user": self.headers["x-remote-user"],
                "groups": self.headers.get_all("x-remote-group"), "authorization": self.headers["authorization"],
                "peer": dict(part[0] for part in self.connection.getpeercert()["subject"])["commonName"]},
        }
        found = path in answers
        body = json.dumps(answers.get(path, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
            "reason": "NotFound", "message": "not here"})).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/ext.crt", sys.argv[1] + "/ext.key")
context.load_verify_locations(sys.argv[2])
context.verify_mode = ssl.CERT_REQUIRED
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// Ends with the test.
struct Extension {
    child: Child,
    port: u16,
}

impl Extension {
    fn start(server: &Server) -> Extension {
        use std::io::{BufRead, BufReader};
        server.run(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ext.key -out ext.crt -days 1 \
             -subj /CN=ext -addext subjectAltName=DNS:ext.default.svc -addext basicConstraints=critical,CA:FALSE 2> /dev/null",
        );
        let mut child = Command::new("python3")
            .args(["-c", EXTENSION])
            .arg(server.home())
            .arg(server.data_dir().join("pki/front-proxy-ca.crt"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("it says its port");
        let port = line.trim().parse().expect("a port");
        Extension { child, port }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn kubectl_works_with_what_others_serve() {
    let server = Server::with_accounts();
    let mut extension = Extension::start(&server);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ext"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    let bundle = server.run("base64 -w0 ext.crt");
    let api = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.things.example.com"},
        "spec": {"group": "things.example.com", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
            "caBundle": bundle.trim(), "service": {"namespace": "default", "name": "ext", "port": extension.port}}});
    server.run_with("kubectl apply -f -", &service.to_string());
    server.run_with("kubectl apply -f -", &api.to_string());
    server.run("kubectl wait --for=condition=Available --timeout=60s apiservice/v1.things.example.com");
    let row = server.run("kubectl get apiservice v1.things.example.com --no-headers");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[..3], ["v1.things.example.com", "default/ext", "True"]);

    let things = eventually("kubectl knows things", || {
        let ran = server.sh("kubectl get things -o name");
        ran.succeeded().then(|| ran.stdout.clone())
    });
    assert_eq!(things.trim(), "thing.things.example.com/one");
    assert!(server.run("kubectl get th one").starts_with("NAME"));
    assert!(
        server
            .run("kubectl api-resources --api-group=things.example.com")
            .contains("things")
    );
    assert!(server.run("kubectl api-versions").contains("things.example.com/v1"));
    let who: Value = serde_json::from_str(&server.run("kubectl get --raw /apis/things.example.com/v1/whoami")).unwrap();
    assert_eq!(
        who,
        json!({"user": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"], "authorization": null,
            "peer": "front-proxy-client"})
    );
    let other: Value = serde_json::from_str(
        &server.run("kubectl get --raw /apis/things.example.com/v1/whoami --as=jane --as-group=system:masters"),
    )
    .unwrap();
    assert_eq!(other["user"], "jane");
    // Who may do nothing may do nothing there.
    let refused = server.fails("kubectl get things --as=joe");
    assert!(refused.contains("things.things.example.com is forbidden"), "{refused}");
    let events = server.run("kubectl get --raw '/apis/things.example.com/v1/namespaces/default/things?watch=1'");
    assert_eq!(events.lines().count(), 2, "{events}");

    // It goes away, is said to be away, and everything else goes on.
    extension.child.kill().expect("it runs until now");
    server.run("kubectl delete service ext");
    server.run("kubectl wait --for=condition=Available=false --timeout=60s apiservice/v1.things.example.com");
    let row = server.run("kubectl get apiservice v1.things.example.com --no-headers");
    assert!(row.contains("False (ServiceNotFound)"), "{row}");
    let refused = server.fails("kubectl get --raw /apis/things.example.com/v1/namespaces/default/things");
    assert!(
        refused.contains("ServiceUnavailable") || refused.contains("unavailable"),
        "{refused}"
    );
    server.run("kubectl get pods");
    server.run("kubectl delete apiservice v1.things.example.com");
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}
