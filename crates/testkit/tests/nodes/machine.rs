//! Control groups of version 2, with systemd's driver and with the kernel's files alone: in an emulated machine whose first
//! process is systemd, with the real binary in it, on the embedded runtime and with a containerd. Its kernel has AppArmor, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use http::Method;
use orlop_runtime::cri::messages::CgroupDriver;
use orlop_testkit::machine::{self, Machine, stripped};
use orlop_testkit::{Containerd, Http, Launch, Leftovers, Server, build_images, eventually, orlop};
use serde_json::{Value, json};

const CGROUPS: &str = "/sys/fs/cgroup";
const IMAGES: &str = "/images.tar";
/// What the pod network's rules need.
const FILTER_MODULES: &[&str] = &[
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_masq",
    "nft_nat",
    "nft_redir",
    "nft_fib",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_fib_inet",
    "nft_reject",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_limit",
    "nft_numgen",
    "nft_hash",
];
const PODS: &str = "/api/v1/namespaces/default/pods";

#[test]
fn control_groups_in_a_machine() {
    machine::run("machine::control_groups_in_a_machine", with_containerd, || {
        address();
        let containerd = Containerd::start_empty(CgroupDriver::Systemd);
        containerd.import(Path::new(IMAGES));
        step("containerd runs");
        with_systemd(&Cluster::start(Some(containerd)));
        with_files_alone();
    });
}

#[test]
fn control_groups_of_our_own_containers_in_a_machine() {
    let name = "machine::control_groups_of_our_own_containers_in_a_machine";
    machine::run(name, with_orlop_alone, || {
        address();
        let mut cluster = Cluster::start(None);
        with_systemd(&cluster);
        default_profile(&mut cluster);
    });
}

/// Containers are confined by AppArmor unless they are privileged, and a purge takes the profile away.
fn default_profile(cluster: &mut Cluster) {
    let loaded = || fs::read_to_string("/sys/kernel/security/apparmor/profiles").unwrap();
    let name = loaded().split(' ').next().unwrap_or_default().to_string();
    assert!(name.starts_with("orl") && name.ends_with("-default"), "{}", loaded());
    let script = "cat /proc/self/attr/current; mkdir /tmp/m; mount -t tmpfs none /tmp/m && echo mounted; true";
    for (pod_name, privileged) in [("confined", false), ("privileged", true)] {
        let mut pod = pod(pod_name, script, json!({}));
        // With the capability to mount nothing else forbids it.
        pod["spec"]["containers"][0]["securityContext"] = match privileged {
            true => json!({"privileged": true}),
            false => json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
        };
        cluster.create(&pod);
        cluster.until(pod_name, "done", |pod| pod["status"]["phase"] == "Succeeded");
        let path = format!("{PODS}/{pod_name}/log");
        let log = cluster.threads.block_on(cluster.http.get(&path)).body;
        let log = String::from_utf8_lossy(&log).into_owned();
        assert_eq!(log.contains("mounted\n"), privileged, "{log}");
        let confined = log.contains(&format!("{name} (enforce)"));
        assert_eq!(confined, !privileged, "{log}");
    }
    step("containers are confined");
    let data_dir = cluster.server.data_dir().to_path_buf();
    let purge = Command::new(orlop())
        .args(["down", "--purge", "--grace-period=1", "--data-dir"])
        .arg(&data_dir)
        .status();
    assert!(purge.unwrap().success());
    cluster.server.wait_stopped();
    assert!(!loaded().contains(&name), "{}", loaded());
}

/// Nodes on loopback addresses are not talked to: another one, on the only device there is.
fn address() {
    for line in ["link set lo up", "address add 10.77.0.1/32 dev lo"] {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success());
    }
}

fn with_containerd(place: &Path) -> Machine {
    let programs = ["containerd", "containerd-shim-runc-v2", "ctr", "runc"];
    let machine = with_orlop_alone(place);
    programs
        .iter()
        .fold(machine, |machine, name| machine.program(name, &[]))
}

fn with_orlop_alone(place: &Path) -> Machine {
    let programs = ["ip", "bash", "timeout", "mount", "umount", "apparmor_parser"];
    let machine = Machine::new()
        .systemd()
        .modules(&["overlay", "veth"])
        .modules(FILTER_MODULES);
    let machine = programs
        .iter()
        .fold(machine, |machine, name| machine.program(name, &[]));
    machine
        .same(Path::new("/etc/apparmor/parser.conf"))
        .same(Path::new("/usr/share/apparmor-features/features"))
        .file(machine::ORLOP, &stripped(&orlop(), place))
        .file(IMAGES, &build_images(place))
}

/// On the console, with the machine's age: what takes long, and where it stopped if it did.
fn step(what: &str) {
    let age = fs::read_to_string("/proc/uptime").unwrap_or_default();
    println!("{what} ({} s)", age.split(' ').next().unwrap_or_default());
}

/// A pod on the machine's own network: there is no other.
fn pod(name: &str, script: &str, resources: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": {
        "hostNetwork": true, "nodeName": "machine", "terminationGracePeriodSeconds": 0, "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "containers": [{"name": "main", "image": "busybox", "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script], "resources": resources}],
    }})
}

fn both(cpu: &str, memory: &str) -> Value {
    json!({"cpu": cpu, "memory": memory})
}

/// Settings of the agent in both parts.
fn settings(directory: &Path, more: Value) -> PathBuf {
    let mut config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "podLogsDir": directory.join("logs"), "healthzPort": 0, "podPidsLimit": 77,
        "evictionHard": {"memory.available": "1Mi"}});
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let file = directory.join("kubelet.yaml");
    fs::write(&file, config.to_string()).unwrap();
    file
}

/// The files of a group, as far as they are there.
fn read(group: &str, file: &str) -> String {
    let text = fs::read_to_string(Path::new(CGROUPS).join(group).join(file));
    text.map_or_else(|e| format!("{e}"), |text| text.trim().to_string())
}

#[track_caller]
fn check(group: &str, expected: &[(&str, &str)]) {
    for (file, value) in expected {
        assert_eq!(read(group, file), *value, "{group}/{file}");
    }
}

/// The group of a container in its pod's.
fn container_group(pod: &str) -> String {
    eventually(&format!("the container's group in {pod}"), || {
        let entries = fs::read_dir(Path::new(CGROUPS).join(pod)).ok()?.flatten();
        let names: Vec<String> = entries
            .filter(|e| e.path().is_dir())
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        // The sandbox has one as well, without a limit.
        let limited = |name: &&String| read(&format!("{pod}/{name}"), "memory.max").parse::<u64>().is_ok();
        names.iter().find(limited).map(|name| format!("{pod}/{name}"))
    })
}

/// A number of a file of lines `name number`.
fn count(group: &str, file: &str, name: &str) -> u64 {
    let text = read(group, file);
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(key, _)| *key == name);
    found.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

struct Cluster {
    server: Server,
    /// None on the embedded runtime.
    containerd: Option<Containerd>,
    http: Http,
    threads: tokio::runtime::Runtime,
}

impl Cluster {
    fn start(containerd: Option<Containerd>) -> Cluster {
        let directory = tempfile::tempdir().unwrap().keep();
        let launch = Launch::up().arg("--nodes=1").arg("--node-name=machine");
        let server = match &containerd {
            Some(containerd) => {
                let config = settings(&directory, json!({}));
                launch
                    .arg(format!("--runtime=cri:{}", containerd.endpoint()))
                    .arg(format!("--cni-conf-dir={}", containerd.cni_directory().display()))
                    .arg(format!("--kubelet-config={}", config.display()))
                    .start()
            }
            None => {
                // Without a root it would have one with a name of its own. Its groups are files: systemd knows none of them.
                let config = settings(&directory, json!({"cgroupRoot": "/mine"}));
                let data_dir = directory.join("data");
                fs::create_dir_all(data_dir.join("images")).unwrap();
                fs::copy(IMAGES, data_dir.join("images/images.tar")).unwrap();
                launch
                    .arg("--runtime=embedded")
                    .arg(format!("--kubelet-config={}", config.display()))
                    .data_dir(&data_dir)
                    .start()
            }
        };
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let threads = threads.unwrap();
        let http = threads.block_on(server.http());
        Cluster {
            server,
            containerd,
            http,
            threads,
        }
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let answer = self.threads.block_on(async {
            match (body, method == Method::GET) {
                (Some(body), _) if method == Method::PATCH => {
                    let headers = [("content-type", "application/strategic-merge-patch+json")];
                    self.http
                        .ask(method, path, &headers, body.to_string())
                        .await
                        .expect("an answer")
                }
                (Some(body), _) => self.http.json(method, path, body).await,
                (None, true) => self.http.get(path).await,
                (None, false) => self.http.delete(path).await,
            }
        });
        (
            answer.status.as_u16(),
            serde_json::from_slice(&answer.body).unwrap_or_default(),
        )
    }

    fn has_slices(&self) -> bool {
        self.containerd.is_some()
    }

    /// The path of a group of pods. With systemd's driver each part is a slice that has its parents' names in its own.
    fn group(&self, parts: &[&str]) -> String {
        if !self.has_slices() {
            return format!("mine/{}", parts.join("/"));
        }
        let names = (1..=parts.len()).map(|count| format!("{}.slice", parts[..count].join("-")));
        names.collect::<Vec<_>>().join("/")
    }

    /// The group of a pod with this uid.
    fn pod_group(&self, quality: &[&str], uid: &str) -> String {
        let uid = match self.has_slices() {
            true => uid.replace('-', "_"),
            false => uid.to_string(),
        };
        self.group(&[&["kubepods"], quality, &[&format!("pod{uid}")]].concat())
    }

    /// Makes a pod, as soon as its namespace takes some, and returns its uid.
    fn create(&self, pod: &Value) -> String {
        eventually("the namespace takes pods", || {
            let (code, made) = self.ask(Method::POST, PODS, Some(pod));
            assert!(matches!(code, 201 | 403), "{made}");
            (code == 201).then(|| made["metadata"]["uid"].as_str().unwrap().to_string())
        })
    }

    fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("pod {name}: {what}"), || {
            let (_, pod) = self.ask(Method::GET, &format!("{PODS}/{name}"), None);
            holds(&pod).then_some(pod)
        })
    }

    fn until_running(&self, name: &str) -> Value {
        self.until(name, "runs", |pod| pod["status"]["phase"] == "Running")
    }
}

fn with_systemd(cluster: &Cluster) {
    step("the cluster runs");
    let equal = both("200m", "64Mi");
    let sure = cluster.create(&pod("sure", "sleep 1000", json!({"requests": equal, "limits": equal})));
    let burst = cluster.create(&pod(
        "burst",
        "while :; do :; done",
        json!({"requests": both("100m", "16Mi"), "limits": both("125m", "48Mi")}),
    ));
    let effort = cluster.create(&pod("effort", "sleep 1000", json!({})));
    cluster.create(&pod(
        "greedy",
        "sleep 1; tail /dev/zero",
        json!({"limits": {"memory": "24Mi"}}),
    ));
    for name in ["sure", "burst", "effort"] {
        cluster.until_running(name);
    }
    step("pods run");
    let sure_group = cluster.pod_group(&[], &sure);
    let burst_group = cluster.pod_group(&["burstable"], &burst);
    let effort_group = cluster.pod_group(&["besteffort"], &effort);
    // systemd counts whole percents.
    let burst_cpu = if cluster.has_slices() {
        "13000 100000"
    } else {
        "12500 100000"
    };
    let limits = || {
        check(
            &sure_group,
            &[
                ("cpu.weight", "8"),
                ("cpu.max", "20000 100000"),
                ("memory.max", "67108864"),
                ("pids.max", "77"),
            ],
        );
        check(
            &burst_group,
            &[
                ("cpu.weight", "4"),
                ("cpu.max", burst_cpu),
                ("memory.max", "50331648"),
                ("pids.max", "77"),
            ],
        );
        check(
            &effort_group,
            &[
                ("cpu.weight", "1"),
                ("cpu.max", "max 100000"),
                ("memory.max", "max"),
                ("pids.max", "77"),
            ],
        );
        check(&cluster.group(&["kubepods", "besteffort"]), &[("cpu.weight", "1")]);
    };
    limits();
    // What systemd was not told of would be gone now.
    Command::new("systemctl").arg("daemon-reload").status().unwrap();
    limits();
    whole_node(cluster);
    step("limits are set");
    let inner = container_group(&sure_group);
    assert_eq!(inner.ends_with(".scope"), cluster.has_slices(), "{inner}");
    check(&inner, &[("cpu.max", "20000 100000"), ("memory.max", "67108864")]);
    let killed = cluster.until("greedy", "out of memory", |pod| pod["status"]["phase"] == "Failed");
    let ended = &killed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (ended["reason"].as_str(), ended["exitCode"].as_i64()),
        (Some("OOMKilled"), Some(137)),
        "{ended}"
    );
    step("one was out of memory");
    eventually("the busy one is held back", || {
        (count(&burst_group, "cpu.stat", "nr_throttled") > 0).then_some(())
    });
    resize(cluster, &burst_group);
    step("resized");
    summary(cluster);
    step("summed up");
    all_gone(cluster, &[&sure_group, &burst_group, &effort_group]);
}

/// All pods together have what the node has to give.
fn whole_node(cluster: &Cluster) {
    let (_, node) = cluster.ask(Method::GET, "/api/v1/nodes/machine", None);
    let capacity = node["status"]["capacity"]["memory"].as_str().unwrap();
    let kilobytes: u64 = capacity.strip_suffix("Ki").unwrap().parse().unwrap();
    check(
        &cluster.group(&["kubepods"]),
        &[("memory.max", &(kilobytes * 1024).to_string())],
    );
}

/// In place: the same container, with other limits.
fn resize(cluster: &Cluster, group: &str) {
    let before = cluster.until_running("burst");
    let inner = container_group(group);
    let resources = json!({"requests": both("150m", "24Mi"), "limits": both("250m", "96Mi")});
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let (code, answer) = cluster.ask(Method::PATCH, &format!("{PODS}/burst/resize"), Some(&patch));
    assert_eq!(code, 200, "{answer}");
    let status = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let after = cluster.until("burst", "resized", |pod| {
        status(pod)["resources"]["limits"]["memory"] == "96Mi" && status(pod)["resources"]["limits"]["cpu"] == "250m"
    });
    assert_eq!(status(&before)["containerID"], status(&after)["containerID"]);
    for group in [group, inner.as_str()] {
        check(group, &[("cpu.max", "25000 100000"), ("memory.max", "100663296")]);
    }
    check(group, &[("cpu.weight", "6")]);
}

fn summary(cluster: &Cluster) {
    let path = "/api/v1/nodes/machine/proxy/stats/summary";
    let busy = eventually("the summary tells of the busy pod", || {
        let (_, summary) = cluster.ask(Method::GET, path, None);
        let pods = summary["pods"].as_array()?.clone();
        let found = pods.into_iter().find(|pod| pod["podRef"]["name"] == "burst")?;
        (found["cpu"]["usageNanoCores"].as_u64()? > 0).then_some(found)
    });
    for number in ["usageCoreNanoSeconds", "usageNanoCores"] {
        assert!(busy["cpu"][number].as_u64() > Some(0), "{busy}");
        assert!(busy["containers"][0]["cpu"][number].as_u64() > Some(0), "{busy}");
    }
    for number in ["usageBytes", "workingSetBytes"] {
        assert!(busy["memory"][number].as_u64() > Some(0), "{busy}");
    }
    assert_eq!(busy["containers"][0]["name"], "main");
}

fn all_gone(cluster: &Cluster, groups: &[&str]) {
    for name in ["sure", "burst", "effort", "greedy"] {
        cluster.ask(Method::DELETE, &format!("{PODS}/{name}"), None);
    }
    eventually("pods, their groups and their slices are gone", || {
        let (_, pods) = cluster.ask(Method::GET, PODS, None);
        let none = pods["items"].as_array().is_some_and(Vec::is_empty);
        (none && groups.iter().all(|group| !Path::new(CGROUPS).join(group).exists())).then_some(())
    });
    if let Some(containerd) = &cluster.containerd {
        assert_eq!(containerd.leftovers(), Leftovers::default());
    }
    let units = Command::new("systemctl")
        .args(["list-units", "--all", "--plain", "--no-legend"])
        .output();
    let units = String::from_utf8_lossy(&units.unwrap().stdout).into_owned();
    let of_pods: Vec<&str> = units
        .lines()
        .filter(|line| line.contains("-pod") || line.contains("cri-"))
        .collect();
    assert!(of_pods.is_empty(), "{of_pods:?}");
    assert_eq!(
        units.contains("kubepods-burstable.slice"),
        cluster.has_slices(),
        "{units}"
    );
    assert!(
        !cluster.server.log().contains("failed to update QoS cgroups"),
        "{}",
        cluster.server.log()
    );
}

/// The agent alone, with a static pod.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_files_alone() {
    step("without systemd");
    let containerd = Containerd::start_empty(CgroupDriver::Cgroupfs);
    containerd.import(Path::new(IMAGES));
    let directory = tempfile::tempdir().unwrap().keep();
    let manifests = directory.join("manifests");
    fs::create_dir(&manifests).unwrap();
    let equal = both("300m", "32Mi");
    let mut wanted = pod("still", "sleep 1000", json!({"requests": equal, "limits": equal}));
    wanted["metadata"]["uid"] = json!("u1");
    fs::write(manifests.join("still.json"), wanted.to_string()).unwrap();
    let config = settings(
        &directory,
        json!({"cgroupRoot": "/alone", "staticPodPath": manifests, "containerRuntimeEndpoint": containerd.endpoint(),
            "port": 0, "authentication": {"webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"}}),
    );
    let log = fs::File::create(directory.join("log")).unwrap();
    let _agent = Agent(
        Command::new(orlop())
            .args(["kubelet", "--hostname-override=machine", "--node-ip=127.0.0.1"])
            .arg(format!("--config={}", config.display()))
            .arg(format!("--root-dir={}", directory.join("root").display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap(),
    );
    let find = || {
        let entries = fs::read_dir(Path::new(CGROUPS).join("alone/kubepods")).ok()?.flatten();
        let mut names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        names
            .find(|name| name.starts_with("pod"))
            .map(|name| format!("alone/kubepods/{name}"))
    };
    let group = eventually("the static pod's group", find);
    let inner = container_group(&group);
    let limits = [("cpu.max", "30000 100000"), ("memory.max", "33554432")];
    check(&group, &limits);
    check(&group, &[("cpu.weight", "12"), ("pids.max", "77")]);
    eventually("the container's limits", || {
        let set = |(file, value): &(&str, &str)| read(&inner, file) == *value;
        limits.iter().all(set).then_some(())
    });
    // With systemd's driver this runc forgets it.
    eventually("all of a container ends when it is out of memory", || {
        (read(&inner, "memory.oom.group") == "1").then_some(())
    });
    fs::remove_file(manifests.join("still.json")).unwrap();
    eventually("the static pod's group is gone", || find().is_none().then_some(()));
    eventually("nothing is left", || {
        (containerd.leftovers() == Leftovers::default()).then_some(())
    });
}
