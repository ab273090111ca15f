use super::*;
use tokio::net::TcpListener;

fn container(text: &str) -> Container {
    serde_json::from_str(text).unwrap()
}

#[test]
fn ports_by_number_name_and_text() {
    let container = container(r#"{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}"#);
    let text = |s: &str| IntOrString::String(s.to_string());
    for (port, want) in [
        (IntOrString::Int(80), Ok(80)),
        (text("web"), Ok(8080)),
        (text("81"), Ok(81)),
        (text("x"), Err(r#"strconv.Atoi: parsing "x": invalid syntax"#)),
        (IntOrString::Int(0), Err("invalid port number: 0")),
        (IntOrString::Int(65536), Err("invalid port number: 65536")),
    ] {
        assert_eq!(
            resolve_port(&port, &container).map_err(|error| error.to_string()),
            want.map_err(str::to_string),
            "{port:?}"
        );
    }
    assert_eq!(join_host_port("::1", 80), "[::1]:80");
}

#[test]
fn what_is_said_of_outcomes() {
    for (kind, outcome, want) in [
        (Kind::Liveness, ProbeResult::Success, None),
        (
            Kind::Readiness,
            ProbeResult::Failure("HTTP probe failed with statuscode: 500".into()),
            Some((
                "Unhealthy",
                "Readiness probe failed: HTTP probe failed with statuscode: 500",
            )),
        ),
        (
            Kind::Liveness,
            ProbeResult::Warning("Probe terminated redirects, Response body: x".into()),
            Some((
                "ProbeWarning",
                "Liveness probe warning: Probe terminated redirects, Response body: x",
            )),
        ),
        (
            Kind::Startup,
            ProbeResult::unknown("no"),
            Some(("Unhealthy", "Startup probe errored and resulted in unknown state: no")),
        ),
    ] {
        assert_eq!(
            outcome.event(kind),
            want.map(|(reason, note)| (reason, note.to_string()))
        );
    }
}

#[tokio::test]
async fn a_port_that_listens_is_well() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let action = |host: Option<&str>| TCPSocketAction {
        host: host.map(str::to_string),
        port: IntOrString::Int(i32::from(port)),
    };
    let (container, second) = (container(r#"{"name": "c"}"#), Duration::from_secs(5));
    assert_eq!(
        tcp(&action(None), &container, "127.0.0.1", second).await,
        ProbeResult::Success
    );
    assert_eq!(
        tcp(&action(Some("127.0.0.1")), &container, "", second).await,
        ProbeResult::Success
    );
    drop(listener);
    let want = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(
        tcp(&action(None), &container, "127.0.0.1", second).await,
        ProbeResult::Failure(want)
    );
}
