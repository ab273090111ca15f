//! Crowds at one level, and at a whole server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use orlop_api::Value;
use orlop_api::flowcontrol::standard;
use orlop_base::Clock;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use super::{Described, FLOW_SCHEMAS, FlowControl, PRIORITY_LEVELS, Ticket};
use crate::authn::{CertIdentity, UserInfo};
use crate::chain::Connection;
use crate::internal::Internal;
use crate::lookup::ObjectLookup;
use crate::request::RequestInfo;
use crate::respond::Body;
use crate::{Config, Running, kinds};

struct Line(RequestInfo);

impl Described for Line {
    fn info(&self) -> &RequestInfo {
        &self.0
    }
}

fn request(line: &str) -> Arc<Line> {
    let (method, target) = line.split_once(' ').unwrap();
    let method: Method = method.parse().unwrap();
    Arc::new(Line(RequestInfo::parse(&method, target, "")))
}

fn user(name: &str) -> Arc<UserInfo> {
    Arc::new(UserInfo::new(name, &["system:authenticated"]))
}

/// The standard objects, with so many seats.
fn control(seats: usize) -> Arc<FlowControl> {
    let control = FlowControl::new(seats, Duration::from_secs(60));
    let shared = |objects: Vec<Value>| objects.into_iter().map(Arc::new).collect::<Vec<_>>();
    control.configure(&shared(standard::flow_schemas()), &shared(standard::priority_levels()));
    Arc::new(control)
}

/// Lets everything happen that can happen now.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

async fn admit(control: &FlowControl, name: &str) -> Option<Ticket> {
    let (request, user) = (request("GET /api/v1/namespaces/d/pods/p"), user(name));
    let flow = control.classify(request.info(), &user);
    control.admit(&flow, request, &user, &|| 0).await.ok()
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_or_rejected_in_time() {
    let control = control(60);
    let taken = {
        let active = control.active.read().clone();
        active.levels["global-default"].core.lock().set.limit()
    };
    let mut executing = vec![];
    for _ in 0..taken {
        executing.push(admit(&control, "elephant").await.unwrap());
    }
    let waiting = |name: &'static str| {
        let control = control.clone();
        tokio::spawn(async move { admit(&control, name).await })
    };
    let herd: Vec<_> = (0..200).map(|_| waiting("elephant")).collect();
    settle().await;
    let mouse = waiting("mouse");
    settle().await;
    let counted = |name: &str| {
        let mut text = String::new();
        control.write_metrics(&mut text);
        let start = format!("apiserver_flowcontrol_{name}");
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(&start).map(str::to_string));
        found.unwrap_or_default()
    };
    let labels = "{flow_schema=\"global-default\",priority_level=\"global-default\"}";
    assert_eq!(counted(&format!("current_inqueue_requests{labels}")), " 201");
    assert_eq!(
        counted(&format!("current_executing_requests{labels}")),
        format!(" {taken}")
    );
    // One seat is free again: one of them gets it.
    executing.pop();
    settle().await;
    assert_eq!(counted(&format!("current_inqueue_requests{labels}")), " 200");
    assert_eq!(
        counted(&format!("current_executing_requests{labels}")),
        format!(" {taken}")
    );
    // Who waits for too long is rejected, and leaves no trace.
    let mut served = vec![];
    for one in herd.into_iter().chain([mouse]) {
        served.extend(one.await.unwrap());
    }
    assert_eq!(served.len(), 1);
    drop(served);
    drop(executing);
    let rejected = counted(
        "rejected_requests_total{flow_schema=\"global-default\",priority_level=\"global-default\",reason=\"time-out\"}",
    );
    assert_eq!(rejected, " 200");
    assert_eq!(counted(&format!("current_inqueue_requests{labels}")), " 0");
    assert_eq!(counted(&format!("current_executing_seats{labels}")), " 0");
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_while_waiting_takes_no_seat() {
    let control = control(60);
    let active = control.active.read().clone();
    let level = active.levels["global-default"].clone();
    let limit = level.core.lock().set.limit();
    let mut executing = vec![];
    for _ in 0..limit {
        executing.push(admit(&control, "ann").await.unwrap());
    }
    for _ in 0..10 {
        let gone = tokio::time::timeout(Duration::from_millis(5), admit(&control, "bob")).await;
        assert!(gone.is_err());
    }
    {
        let core = level.core.lock();
        assert_eq!((core.set.totals().waiting, core.set.totals().cancelled), (0, 10));
        assert_eq!(core.held.len(), limit as usize);
    }
    executing.clear();
    assert!(level.core.lock().set.is_idle());
}

#[tokio::test(start_paused = true)]
async fn nobody_else_feels_a_crowd() {
    let control = control(60);
    let mut crowd = vec![];
    loop {
        let one = tokio::time::timeout(Duration::from_millis(1), admit(&control, "crowd")).await;
        match one {
            Ok(Some(ticket)) => crowd.push(ticket),
            _ => break,
        }
    }
    let node = Arc::new(UserInfo::new(
        "system:node:n",
        &["system:nodes", "system:authenticated"],
    ));
    let scheduler = Arc::new(UserInfo::new("system:kube-scheduler", &["system:authenticated"]));
    let controller = Arc::new(UserInfo::service_account("kube-system", "job-controller", "u"));
    let root = Arc::new(UserInfo::new("root", &["system:masters", "system:authenticated"]));
    let lease = "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
    for (who, line) in [
        (&node, "PATCH /api/v1/nodes/n/status"),
        (&node, "PATCH /api/v1/namespaces/d/pods/p/status"),
        (&scheduler, lease),
        (&controller, lease),
        (&controller, "POST /api/v1/namespaces/d/pods"),
        (&root, "GET /api/v1/namespaces/d/pods/p"),
    ] {
        let request = request(line);
        let flow = control.classify(request.info(), who);
        let admission = control.admit(&flow, request, who, &|| 0);
        let ticket = tokio::time::timeout(Duration::from_millis(1), admission).await;
        assert!(matches!(ticket, Ok(Ok(_))), "{} {line}", who.name);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_levels_lend_their_seats() {
    let control = control(600);
    let limit = |name: &str| {
        let active = control.active.read().clone();
        let level = active.levels[name].clone();
        level.core.lock().set.limit()
    };
    let before = limit("global-default");
    let crowd: Vec<_> = (0..600)
        .map(|n| {
            let control = control.clone();
            tokio::spawn(async move {
                let names = [
                    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p",
                ];
                let ticket = admit(&control, names[n % names.len()]).await;
                tokio::time::sleep(Duration::from_secs(3600)).await;
                drop(ticket);
            })
        })
        .collect();
    settle().await;
    // Virtual time stands still, real time does not: what is observed is from the last moment.
    for _ in 0..3 {
        control.adjust();
    }
    let after = limit("global-default");
    assert!(after > 2 * before, "{before} {after}");
    // What a level does not lend it keeps.
    assert!(limit("leader-election") >= 25);
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A whole server with few seats.
async fn start(directory: &tempfile::TempDir, seats: usize) -> Running {
    let mut config = Config::new(directory.path().join("data"));
    config.port = 0;
    (config.max_mutating_in_flight, config.max_readonly_in_flight) = (seats / 2, seats - seats / 2);
    crate::start(config, Clock::System).await.unwrap()
}

/// As from the network, with a certificate: whoever is trusted needs no seats.
fn connection(running: &Running, name: &str, groups: &[&str]) -> Arc<Connection> {
    let (hour, now) = (Duration::from_secs(3600), Clock::System.now());
    let credential = running.pki.issue_client(name, groups, hour, now).unwrap();
    let chain = [CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap()];
    let clients = running.pki.client_authority().unwrap();
    Arc::new(Connection {
        certificate: Some(CertIdentity::new(&clients, &chain, now)),
        ..Connection::default()
    })
}

async fn send(running: &Running, who: &Arc<Connection>, line: &str) -> Response<Body> {
    let (method, target) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(target);
    let request = request.body(Full::<Bytes>::default()).unwrap();
    running.server.handle(request, who).await
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.map(|body| body.to_bytes());
    String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap()
}

#[tokio::test]
async fn a_server_says_how_it_classified_and_keeps_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, 600).await;
    let registry = &running.server.registry;
    let uid = |resource: &str, name: &str| {
        let object = ObjectLookup::get(&**registry, resource, "", name).unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_string()
    };
    let versions = || -> Vec<String> {
        let levels = registry.list(PRIORITY_LEVELS, None);
        levels
            .iter()
            .map(|level| level["metadata"]["resourceVersion"].to_string())
            .collect()
    };
    let before = versions();
    let ann = connection(&running, "ann", &[]);
    let response = send(&running, &ann, "GET /version").await;
    let headers = response.headers();
    assert_eq!(
        headers["x-kubernetes-pf-flowschema-uid"],
        uid(FLOW_SCHEMAS, "global-default").as_str()
    );
    assert_eq!(
        headers["x-kubernetes-pf-prioritylevel-uid"],
        uid(PRIORITY_LEVELS, "global-default").as_str()
    );
    let root = connection(&running, "root", &["system:masters"]);
    let dump = text(
        send(
            &running,
            &root,
            "GET /debug/api_priority_and_fairness/dump_priority_levels",
        )
        .await,
    )
    .await;
    assert!(dump.starts_with("PriorityLevelName,"), "{dump}");
    assert!(dump.lines().any(|line| line.starts_with("workload-low,")), "{dump}");
    let dump = text(
        send(
            &running,
            &root,
            "GET /debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1",
        )
        .await,
    )
    .await;
    let own = dump
        .lines()
        .find(|line| line.contains("dump_requests"))
        .expect("it is under way itself");
    assert!(own.starts_with("exempt,") && own.contains("root,"), "{dump}");
    let dump = text(send(&running, &root, "GET /debug/api_priority_and_fairness/dump_queues").await).await;
    assert_eq!(dump.lines().filter(|line| line.starts_with("system,")).count(), 64);

    // A schema to a level that is not there dangles and is not used.
    let internal = Internal::new(registry.clone());
    let schemas = kinds::of_stored(FLOW_SCHEMAS).unwrap();
    let schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": "lost"},
        "spec": {"matchingPrecedence": 50, "priorityLevelConfiguration": {"name": "nowhere"},
            "rules": [{"subjects": [{"kind": "User", "user": {"name": "*"}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    internal.create(schemas, schema).await.unwrap();
    until("it dangles", || {
        let object = ObjectLookup::get(&**registry, FLOW_SCHEMAS, "", "lost")?;
        let condition = object.pointer("/status/conditions/0")?;
        (condition["type"] == "Dangling" && condition["status"] == "True").then_some(())
    })
    .await;
    let response = send(&running, &ann, "GET /version").await;
    assert_eq!(
        response.headers()["x-kubernetes-pf-flowschema-uid"],
        uid(FLOW_SCHEMAS, "global-default").as_str()
    );
    // What is mandatory comes back, and what is suggested too.
    for name in ["catch-all", "service-accounts"] {
        let before = uid(FLOW_SCHEMAS, name);
        internal.delete(schemas, "", name).await.unwrap();
        until("it is back", || {
            let object = ObjectLookup::get(&**registry, FLOW_SCHEMAS, "", name)?;
            (object["metadata"]["uid"] != before.as_str()).then_some(())
        })
        .await;
    }
    // What is as it should be is not written again and again.
    assert_eq!(versions(), before);
    running.stop().await;
}

#[tokio::test]
async fn a_server_with_few_seats_serves_everybody_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory, 12).await;
    let users: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"]
        .map(|name| connection(&running, name, &[]))
        .into();
    let answers = (0..300).map(|n| {
        let (running, who) = (&running, &users[n % users.len()]);
        async move { send(running, who, "GET /version").await.status().as_u16() }
    });
    let codes = futures::future::join_all(answers).await;
    assert!(codes.iter().all(|code| *code == 200), "{codes:?}");
    running.stop().await;
}

async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), looking).await;
    found.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// What a request pays while there are seats enough. Run by hand: `cargo nextest run --release -p orlop-apiserver
/// --run-ignored all uncontended`.
#[tokio::test]
async fn uncontended_requests_pay_little() {
    let control = control(600);
    let (request, user) = (request("GET /api/v1/namespaces/d/pods/p"), user("ann"));
    let rounds = 20_000;
    let began = orlop_base::clock::monotonic();
    for _ in 0..rounds {
        let flow = control.classify(request.info(), &user);
        let ticket = control.admit(&flow, request.clone(), &user, &|| 0).await;
        assert!(ticket.is_ok());
    }
    let each = began.elapsed() / rounds;
    println!("{each:?} a request");
    // A bound that holds without optimisation too; the figure is printed.
    assert!(each < Duration::from_micros(200), "{each:?}");
}
