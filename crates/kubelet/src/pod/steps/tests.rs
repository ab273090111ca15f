//! Golden cases: pod, what the runtime shows, what is remembered, at second 100 unless said; and the steps in short.

use super::*;
use crate::pod::testing::{epoch, memory, observed, pod};

fn second(time: Timestamp) -> i64 {
    time.as_second() - epoch().as_second()
}

fn shown_ending(ending: &Ending) -> String {
    let failed = ending
        .failed
        .as_ref()
        .map_or(String::new(), |(reason, _)| format!(" {reason}"));
    let deleted = if ending.deleted { " deleted" } else { "" };
    format!("by {}{failed}{deleted}", second(ending.deadline))
}

fn shown(steps: &Steps) -> String {
    let mut words = Vec::new();
    match steps {
        Steps::Suspended => words.push("suspended".to_string()),
        Steps::Done(ending) => words.push(format!("done {}", shown_ending(ending))),
        Steps::Free(ending) => words.push(format!("free {}", shown_ending(ending))),
        Steps::Stop(stop) => {
            words.push(
                stop.ending
                    .as_ref()
                    .map_or(format!("stop {:?}", stop.why), |e| format!("stop {}", shown_ending(e))),
            );
            words.extend(stop.hooks.iter().map(|c| format!("hook {}", c.id)));
            words.extend(
                stop.containers
                    .iter()
                    .map(|c| format!("end {} {}s", c.id, c.grace.as_secs())),
            );
            words.extend(stop.sandboxes.iter().map(|id| format!("sandbox {id}")));
            words.extend(stop.wake.map(|t| format!("wake {}", second(t))));
        }
        Steps::Run(run) => {
            words.extend(
                run.kill
                    .iter()
                    .map(|k| format!("kill {} {}s {:?}", k.id, k.grace_seconds, k.message)),
            );
            words.extend(
                run.reset
                    .iter()
                    .map(|r| format!("reset {}{}", r.id, if r.running { "!" } else { "" })),
            );
            words.extend(run.remove.iter().map(|id| format!("remove {id}")));
            if let SandboxStep::Create { attempt } = &run.sandbox {
                words.push(format!("create {attempt}"));
            }
            words.extend(run.resize_pod.then(|| "resize pod".to_string()));
            words.extend(run.resize.iter().map(|r| format!("resize {}", r.id)));
            words.extend(run.start.iter().map(|s| {
                let count = s.restart_count.map_or(String::new(), |n| format!("#{n}"));
                let backoff = s
                    .backoff
                    .as_ref()
                    .map_or(String::new(), |b| format!(" then {}s", b.delay.as_secs()));
                format!("start {}{count}{backoff}", s.name)
            }));
            words.extend(
                run.held
                    .iter()
                    .map(|h| format!("held {} {}s", h.name, h.delay.as_secs())),
            );
            words.extend(run.wake.map(|t| format!("wake {}", second(t))));
        }
    }
    words.join("; ")
}

#[track_caller]
fn check(cases: &[(&str, &str, &str, &str)]) {
    let mut wrong = Vec::new();
    for (spec, seen, remembered, expected) in cases {
        let pod = pod(spec);
        let (memory, now) = memory(&pod, remembered);
        let got = shown(&next_steps(&pod, &observed(&pod, seen), &memory, now));
        if got != *expected {
            wrong.push(format!(
                "{spec} | {seen} | {remembered}\n   wanted {expected}\n   got    {got}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_node_that_stops() {
    check(&[
        (
            "containers=a",
            "sandbox=ready a=running",
            "suspend",
            "stop Suspended; end a0 30s",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "suspend=5",
            "stop Suspended; end a0 5s",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:143",
            "suspend",
            "stop Suspended; sandbox s0",
        ),
        (
            "containers=a",
            "sandbox=dead a=exited:143",
            "suspend stopped=s0",
            "suspended",
        ),
        // Nothing is started any more.
        ("containers=a", "", "suspend", "suspended"),
        // A pod that ends ends as ever.
        (
            "containers=a",
            "sandbox=ready a=running",
            "suspend evict",
            "stop by 130 Evicted; end a0 30s",
        ),
    ]);
}

#[test]
fn sandboxes() {
    check(&[
        ("containers=a,b", "", "", "create 0; start a; start b"),
        ("init=i containers=a", "", "", "create 0; start i"),
        ("containers=a", "sandbox=ready a=running", "", ""),
        ("containers=a", "sandbox=ready", "", "start a"),
        // The sandbox has died: what is left of it goes, then all starts over.
        (
            "containers=a",
            "sandbox=dead a=running",
            "",
            "stop SandboxChanged; end a0 30s",
        ),
        (
            "containers=a",
            "sandbox=dead a=exited:137",
            "",
            "stop SandboxChanged; sandbox s0",
        ),
        (
            "containers=a",
            "sandbox=dead a=exited:137",
            "stopped=s0",
            "create 1; start a#1 then 10s",
        ),
        ("containers=a", "sandbox=dead", "", "stop SandboxChanged; sandbox s0"),
        (
            "init=i containers=a",
            "sandbox=dead#2 a=exited i=exited",
            "stopped=s2",
            "remove i0; create 3; start i#1 then 10s",
        ),
        (
            "containers=a",
            "sandbox=ready#1 sandbox=ready a=running",
            "",
            "stop SandboxChanged; end a0 30s",
        ),
        ("hostNetwork containers=a", "sandbox=ready a=running", "", ""),
        // What has done its work needs no new sandbox.
        (
            "restartPolicy=Never containers=a",
            "sandbox=dead a=exited:0",
            "",
            "stop by 130; sandbox s0",
        ),
        (
            "restartPolicy=Never containers=a",
            "sandbox=dead",
            "stopped=s0",
            "create 1; start a",
        ),
        (
            "restartPolicy=OnFailure containers=a,b",
            "sandbox=dead a=exited:0 b=exited:1",
            "stopped=s0",
            "create 1; start b#1 then 10s",
        ),
        (
            "restartPolicy=OnFailure containers=a",
            "sandbox=dead a=exited:0",
            "stopped=s0",
            "free by 130",
        ),
        // It could not be made just now.
        ("containers=a", "", "hold=110", "wake 110"),
        ("containers=a", "", "hold=100", "create 0; start a"),
    ]);
}

#[test]
fn restarts_and_back_off() {
    check(&[
        (
            "containers=a",
            "sandbox=ready a=exited:1@1-90",
            "",
            "start a#1 then 10s",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:0@1-90#4",
            "",
            "start a#5 then 10s",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91",
            "held a 10s; wake 105",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91 now=105",
            "start a#2 then 20s",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=300@91 now=395",
            "start a#2 then 300s",
        ),
        // Ten minutes of running make it forget.
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-692#1",
            "backoff.a=80@91 now=693",
            "start a#2 then 10s",
        ),
        // Another image is another container.
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=80@91 now=99",
            "held a 80s; wake 175",
        ),
        // One in back-off does not hold up the other.
        (
            "containers=a,b",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91",
            "start b; held a 10s; wake 105",
        ),
        (
            "restartPolicy=Never containers=a,b",
            "sandbox=ready a=exited:1 b=running",
            "",
            "",
        ),
        (
            "restartPolicy=OnFailure containers=a,b",
            "sandbox=ready a=exited:0 b=running",
            "",
            "",
        ),
        (
            "restartPolicy=OnFailure containers=a,b",
            "sandbox=ready a=exited:3 b=running",
            "",
            "start a#1 then 10s",
        ),
        (
            "restartPolicy=Never containers=a,b a.restartPolicy=Never a.rule=In:3:Restart",
            "sandbox=ready a=exited:3 b=running",
            "",
            "start a#1 then 10s",
        ),
        (
            "containers=a,b a.restartPolicy=Never",
            "sandbox=ready a=exited:3 b=running",
            "",
            "",
        ),
        // A container that could not be started waits its turn.
        ("containers=a", "sandbox=ready", "failed.a=110", "wake 110"),
        ("containers=a", "sandbox=ready", "failed.a=100", "start a"),
        // One that was made and ended at once waits as others that end do.
        (
            "containers=a",
            "sandbox=ready a=exited:128@95-95#1",
            "unstarted.a=110",
            "start a#2 then 10s",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:128@95-95#1",
            "unstarted.a=110 backoff.a=20@91",
            "held a 20s; wake 115",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:128@95-95#1",
            "failed.a=110",
            "wake 110",
        ),
        ("containers=a", "sandbox=ready a=created", "", "start a#1"),
        (
            "containers=a",
            "sandbox=ready a=unknown",
            "",
            "kill a0 30s \"Container is in \\\"unknown\\\" state, try killing it before restart\"; start a#1",
        ),
    ]);
}

#[test]
fn init_containers_in_order() {
    check(&[
        ("init=i,j containers=a", "sandbox=ready i=running", "", ""),
        ("init=i,j containers=a", "sandbox=ready i=exited:0", "", "start j"),
        (
            "init=i,j containers=a",
            "sandbox=ready j=exited:0 i=exited:0",
            "",
            "start a",
        ),
        ("init=i,j containers=a", "sandbox=ready j=exited:0", "", "start a"),
        ("init=i,j containers=a", "sandbox=ready j=running", "", ""),
        (
            "init=i,j containers=a",
            "sandbox=ready i=exited:1@1-95",
            "",
            "start i#1 then 10s",
        ),
        (
            "init=i,j containers=a",
            "sandbox=ready i=exited:1@91-95#1",
            "backoff.i=10@91",
            "held i 10s; wake 105",
        ),
        (
            "init=i,j containers=a",
            "sandbox=ready i=exited:1@91-99#1 i=exited:1@1-2",
            "now=200",
            "remove i0; start i#2 then 10s",
        ),
        (
            "restartPolicy=Never init=i containers=a",
            "sandbox=ready i=exited:1",
            "",
            "stop by 130; sandbox s0",
        ),
        (
            "restartPolicy=Never init=i containers=a i.restartPolicy=OnFailure",
            "sandbox=ready i=exited:1",
            "",
            "start i#1 then 10s",
        ),
        (
            "restartPolicy=Never init=i containers=a",
            "sandbox=ready i=exited:1",
            "stopped=s0",
            "free by 130",
        ),
        (
            "restartPolicy=Never init=i containers=a",
            "sandbox=ready i=exited:1",
            "stopped=s0 freed",
            "done by 130",
        ),
        // Once a regular container is there, init containers are not looked for.
        ("init=i,j containers=a", "sandbox=ready a=running", "", ""),
        ("init=i containers=a,b", "sandbox=ready a=running", "", "start b"),
        ("init=i containers=a", "sandbox=ready", "failed.i=110", "wake 110"),
    ]);
}

#[test]
fn sidecars() {
    check(&[
        ("init=s*,j containers=a", "sandbox=ready s=running", "", "start j"),
        ("init=s*,j containers=a s.startup", "sandbox=ready s=running", "", ""),
        (
            "init=s*,j containers=a s.startup",
            "sandbox=ready s=running",
            "s.start=yes",
            "start j",
        ),
        (
            "init=s*,j containers=a s.startup=7",
            "sandbox=ready s=running",
            "s.start=no",
            "kill s0 7s \"Init container s failed startup probe\"; start s#1",
        ),
        ("init=s* containers=a", "sandbox=ready s=running", "", "start a"),
        (
            "init=s*,j containers=a",
            "sandbox=ready j=running s=exited:1@1-95",
            "",
            "start s#1 then 10s",
        ),
        (
            "init=s*,j containers=a",
            "sandbox=ready j=exited:0 s=exited:1@1-95",
            "",
            "start s#1 then 10s; start a",
        ),
        (
            "init=s* containers=a",
            "sandbox=ready a=running s=exited:0@1-95",
            "",
            "start s#1 then 10s",
        ),
        ("init=s* containers=a", "sandbox=ready a=running", "", "start s"),
        (
            "init=s* containers=a s.liveness",
            "sandbox=ready a=running s=running",
            "s.live=no",
            "kill s0 30s \"Init container s failed liveness probe\"; start s#1",
        ),
        (
            "init=s* containers=a",
            "sandbox=ready a=running s=running!",
            "",
            "kill s0 30s \"Init container s definition changed\"; start s#1",
        ),
        // A sidecar in back-off holds up nothing.
        (
            "init=s*,j containers=a",
            "sandbox=ready j=exited:0 s=exited:1@91-95#1",
            "backoff.s=10@91",
            "start a; held s 10s; wake 105",
        ),
        // Sidecars alone do not keep a pod alive.
        (
            "restartPolicy=Never init=s* containers=a",
            "sandbox=ready a=exited:0 s=running",
            "",
            "stop Finished; end s0 30s",
        ),
        (
            "restartPolicy=Never init=s* containers=a",
            "sandbox=ready a=exited:0 s=exited:0",
            "",
            "stop by 130; sandbox s0",
        ),
    ]);
}

#[test]
fn probes_changes_and_ephemeral_containers() {
    check(&[
        (
            "containers=a a.liveness",
            "sandbox=ready a=running",
            "a.live=no",
            "kill a0 30s \"Container a failed liveness probe, will be restarted\"; start a#1",
        ),
        (
            "containers=a a.liveness=5",
            "sandbox=ready a=running",
            "a.live=no",
            "kill a0 5s \"Container a failed liveness probe, will be restarted\"; start a#1",
        ),
        (
            "containers=a a.startup=9",
            "sandbox=ready a=running",
            "a.start=no",
            "kill a0 9s \"Container a failed startup probe, will be restarted\"; start a#1",
        ),
        (
            "restartPolicy=Never containers=a,b a.liveness",
            "sandbox=ready b=running a=running",
            "a.live=no",
            "kill a0 30s \"Container a failed liveness probe\"",
        ),
        ("containers=a a.liveness", "sandbox=ready a=running", "a.live=yes", ""),
        // The word is about another container of that name.
        ("containers=a a.liveness", "sandbox=ready a=running#1", "a.live=no", ""),
        (
            "restartPolicy=Never containers=a",
            "sandbox=ready a=running!",
            "",
            "kill a0 30s \"Container a definition changed, will be restarted\"; start a#1",
        ),
        ("containers=a ephemeral=e", "sandbox=ready a=running", "", "start e"),
        ("containers=a ephemeral=e", "sandbox=ready e=exited:1 a=running", "", ""),
        (
            "init=i containers=a ephemeral=e",
            "sandbox=ready i=running",
            "",
            "start e",
        ),
    ]);
}

#[test]
fn resizing() {
    check(&[
        (
            "containers=a a.requests=cpu:1",
            "sandbox=ready a=running",
            "applied.a=cpu:1",
            "",
        ),
        (
            "containers=a a.requests=cpu:2",
            "sandbox=ready a=running",
            "applied.a=cpu:1",
            "resize pod; resize a0",
        ),
        (
            "containers=a a.requests=cpu:2 a.resize=cpu",
            "sandbox=ready a=running",
            "applied.a=cpu:1",
            "kill a0 30s \"Container a resize requires restart\"; resize pod; start a#1",
        ),
        (
            "containers=a a.requests=cpu:2 a.resize=memory",
            "sandbox=ready a=running",
            "applied.a=cpu:1",
            "resize pod; resize a0",
        ),
        (
            "containers=a a.requests=memory:2Gi a.resize=memory",
            "sandbox=ready a=running",
            "applied.a=memory:1Gi",
            "kill a0 30s \"Container a resize requires restart\"; resize pod; start a#1",
        ),
        ("containers=a a.requests=cpu:2", "sandbox=ready a=running", "", ""),
        (
            "init=s* containers=a s.requests=cpu:2",
            "sandbox=ready a=running s=running",
            "applied.s=cpu:1",
            "resize pod; resize s0",
        ),
    ]);
}

#[test]
fn all_containers_start_over() {
    let rule = "restartPolicy=Never init=i containers=a,b a.restartPolicy=Never a.rule=In:42:RestartAllContainers";
    check(&[
        (
            rule,
            "sandbox=ready b=running a=exited:42 i=exited:0",
            "",
            "reset b0!; reset i0; reset a0",
        ),
        (rule, "sandbox=ready b=running a=exited:41 i=exited:0", "", ""),
        (rule, "sandbox=ready", "", "start i"),
    ]);
}

#[test]
fn endings() {
    check(&[
        (
            "deleted=30 containers=a",
            "sandbox=ready a=running",
            "",
            "stop by 130 deleted; end a0 30s",
        ),
        (
            "deleted=0 containers=a",
            "sandbox=ready a=running",
            "",
            "stop by 101 deleted; end a0 2s",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=ready a=running",
            "stop.a0=130 ending=30@130",
            "stop by 130 deleted",
        ),
        // The grace was made shorter.
        (
            "deleted=5 containers=a",
            "sandbox=ready a=running",
            "stop.a0=130 ending=30@130 now=110",
            "stop by 115 deleted; end a0 5s",
        ),
        (
            "deleted=60 containers=a",
            "sandbox=ready a=running",
            "stop.a0=130 ending=30@130 now=110",
            "stop by 130 deleted",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=ready a=exited",
            "ending=30@130",
            "stop by 130 deleted; sandbox s0",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=dead a=exited",
            "ending=30@130 stopped=s0",
            "free by 130 deleted",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=dead a=exited",
            "ending=30@130 stopped=s0 freed",
            "done by 130 deleted",
        ),
        ("deleted=30 containers=a", "", "", "free by 130 deleted"),
        (
            "containers=a",
            "sandbox=ready a=running",
            "removed",
            "stop by 130 deleted; end a0 30s",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "evict",
            "stop by 130 Evicted; end a0 30s",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "evict=0",
            "stop by 101 Evicted; end a0 2s",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "phase=Failed",
            "stop by 130; end a0 30s",
        ),
        (
            "deadline=60 containers=a",
            "sandbox=ready a=running",
            "started=50",
            "wake 110",
        ),
        (
            "deadline=60 containers=a",
            "sandbox=ready a=running",
            "started=40",
            "stop by 130 DeadlineExceeded; end a0 30s",
        ),
        (
            "deadline=60 containers=a",
            "",
            "started=40",
            "free by 130 DeadlineExceeded",
        ),
        (
            "restartPolicy=Never containers=a,b",
            "sandbox=ready a=exited:0 b=exited:1",
            "",
            "stop by 130; sandbox s0",
        ),
        // It could not be stopped just now.
        (
            "deleted=30 containers=a",
            "sandbox=ready a=running",
            "hold=110",
            "stop by 130 deleted; wake 110",
        ),
        // Nobody knows whether it runs: it is told to end, once.
        (
            "deleted=30 containers=a",
            "sandbox=ready a=unknown",
            "",
            "stop by 130 deleted; end a0 30s",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=ready a=unknown",
            "stop.a0=130 ending=30@130",
            "stop by 130 deleted; sandbox s0",
        ),
    ]);
}

#[test]
fn hooks_and_the_order_of_ending() {
    let hook = "deleted=30 containers=a a.preStop=5";
    let order = "deleted=30 init=s*,t* containers=a,b";
    check(&[
        (
            hook,
            "sandbox=ready a=running",
            "",
            "stop by 130 deleted; hook a0; wake 130",
        ),
        (
            hook,
            "sandbox=ready a=running",
            "hook.a0=running ending=30@130 now=110",
            "stop by 130 deleted; wake 130",
        ),
        (
            hook,
            "sandbox=ready a=running",
            "hook.a0=done ending=30@130 now=110",
            "stop by 130 deleted; end a0 20s",
        ),
        // The hook took all the grace there was.
        (
            hook,
            "sandbox=ready a=running",
            "hook.a0=running ending=30@130 now=130",
            "stop by 130 deleted; end a0 2s",
        ),
        (
            hook,
            "sandbox=ready a=running",
            "ending=30@130 now=140",
            "stop by 130 deleted; end a0 2s",
        ),
        (
            order,
            "sandbox=ready b=running a=running t=running s=running",
            "",
            "stop by 130 deleted; end b0 30s; end a0 30s; wake 130",
        ),
        (
            order,
            "sandbox=ready b=exited a=running t=running s=running",
            "stop.a0=130 ending=30@130 now=105",
            "stop by 130 deleted; wake 130",
        ),
        (
            order,
            "sandbox=ready b=exited a=exited t=running s=running",
            "ending=30@130 now=110",
            "stop by 130 deleted; end t0 20s; wake 130",
        ),
        (
            order,
            "sandbox=ready b=exited a=exited t=exited s=running",
            "ending=30@130 now=120",
            "stop by 130 deleted; end s0 10s",
        ),
        (
            order,
            "sandbox=ready b=running a=exited t=running s=running",
            "stop.b0=132 ending=30@130 now=130",
            "stop by 130 deleted; end t0 2s; end s0 2s",
        ),
    ]);
}

#[test]
fn another_image_forgets_the_back_off() {
    let before = pod("containers=a");
    let (memory, now) = memory(&before, "backoff.a=80@91");
    let after = pod("containers=a a.image=other");
    let steps = next_steps(
        &after,
        &observed(&before, "sandbox=ready a=exited:1@91-95#1"),
        &memory,
        now,
    );
    assert_eq!(shown(&steps), "start a#2 then 10s");
}
