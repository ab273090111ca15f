//! What a pod asks for, all told.

use crate::fixture::Fixture;

/// Exact cpu and memory (Mi), and with defaults for containers that ask for none.
fn figures(pod: &str) -> (i64, i64, i64, i64) {
    let fixture = Fixture::new(&format!("node a\npod p {pod}"));
    let pod = fixture.pod("p");
    let r = pod.requests();
    (
        r.exact.milli_cpu,
        r.exact.memory >> 20,
        r.nonzero_milli_cpu,
        r.nonzero_memory >> 20,
    )
}

#[test]
fn containers_init_containers_and_sidecars() {
    let c = |name: &str, requests: &str, more: &str| {
        format!(r#"{{"name": "{name}", "resources": {{"requests": {{{requests}}}}}{more}}}"#)
    };
    let always = r#", "restartPolicy": "Always""#;
    let cpu = |n: u32| format!(r#""cpu": "{n}m", "memory": "{n}Mi""#);
    let spec = |app: &[String], init: &[String]| {
        format!(
            r#"{{"containers": [{}], "initContainers": [{}]}}"#,
            app.join(","),
            init.join(",")
        )
    };
    let app = [c("a", &cpu(100), ""), c("b", &cpu(200), "")];
    let cases = [
        ("containers add up", spec(&app, &[]), 300),
        (
            "an init container runs alone",
            spec(&app, &[c("i", &cpu(250), "")]),
            300,
        ),
        ("a large one decides", spec(&app, &[c("i", &cpu(500), "")]), 500),
        (
            "init containers run one by one",
            spec(&app, &[c("i", &cpu(280), ""), c("j", &cpu(290), "")]),
            300,
        ),
        // 100 + 200 + 50.
        (
            "a sidecar runs beside the containers",
            spec(&app, &[c("s", &cpu(50), always)]),
            350,
        ),
        // The init container after it: 50 + 320 = 370 > 350.
        (
            "and beside later init containers",
            spec(&app, &[c("s", &cpu(50), always), c("i", &cpu(320), "")]),
            370,
        ),
        // Before it: 320 alone; running: 350.
        (
            "but not beside earlier ones",
            spec(&app, &[c("i", &cpu(320), ""), c("s", &cpu(50), always)]),
            350,
        ),
        // i beside s: 50 + 300; then t: running 300 + 50 + 70 = 420.
        (
            "two sidecars",
            spec(
                &app,
                &[
                    c("s", &cpu(50), always),
                    c("i", &cpu(300), ""),
                    c("t", &cpu(70), always),
                ],
            ),
            420,
        ),
    ];
    for (name, spec, expected) in cases {
        assert_eq!(figures(&spec), (expected, expected, expected, expected), "{name}");
    }
}

#[test]
fn defaults_and_pod_level() {
    for (name, pod, expected) in [
        ("none", "", (0, 0, 100, 200)),
        ("cpu only", "cpu=1", (1000, 0, 1000, 200)),
        ("zero is not none", "cpu=0 mem=0", (0, 0, 0, 0)),
        (
            "each container by itself",
            r#"{"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}"#,
            (1000, 0, 1100, 400),
        ),
        (
            "overhead",
            r#"cpu=1 {"overhead": {"cpu": "250m", "memory": "10Mi"}}"#,
            (1250, 10, 1250, 210),
        ),
        (
            "the pod's own figure takes the place of the sum",
            r#"cpu=1 mem=100Mi {"resources": {"requests": {"cpu": "2", "memory": "300Mi"}}}"#,
            (2000, 300, 2000, 300),
        ),
        (
            "of what it names; for the rest there is the default if nobody asks",
            r#"{"resources": {"requests": {"cpu": "2"}}}"#,
            (2000, 0, 2000, 200),
        ),
        (
            "overhead comes on top",
            r#"{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}, "overhead": {"cpu": "1"}}"#,
            (3000, 1024, 3000, 1024),
        ),
    ] {
        assert_eq!(figures(pod), expected, "{name}");
    }
}
