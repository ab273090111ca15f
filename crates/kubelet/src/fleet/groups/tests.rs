use super::*;

fn groups(flags: &[&str]) -> Groups {
    Groups::new(flags.iter().map(|flag| Group::parse(flag).unwrap()).collect()).unwrap()
}

#[test]
fn flags_say_what_nodes_are_like() {
    let all = groups(&[
        "big=2:cpu=16,memory=64Gi,label=size=Large,taint=dedicated=db:NoSchedule,taint=slow:NoExecute,role=worker,\
         example.com/gpu=4,pods=20,image=nginx:1.27=180Mi,image=busybox",
        "controlplane:role=control-plane,zone=a,region=eu",
        "x=1:name=other,zone=",
    ]);
    let names: Vec<&str> = (0..all.count()).map(|n| all.name(n)).collect();
    assert_eq!(names, ["big-0", "big-1", "controlplane", "other-0"]);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(all.number(name), Some(n));
    }
    for none in ["big-2", "big-01", "big", "big-", "controlplane-0", ""] {
        assert_eq!(all.number(none), None, "{none}");
    }
    let big = all.group(1);
    let of = |name: &str| big.resources[name].as_str();
    assert_eq!(
        [
            of("cpu"),
            of("memory"),
            of("pods"),
            of("ephemeral-storage"),
            of("example.com/gpu")
        ],
        ["16", "64Gi", "20", "1Ti", "4"]
    );
    let taints: Vec<String> = big
        .taints
        .iter()
        .map(|t| format!("{}={}:{}", t.key, t.value.as_deref().unwrap_or("-"), t.effect))
        .collect();
    assert_eq!(taints, ["dedicated=db:NoSchedule", "slow=-:NoExecute"]);
    assert_eq!(
        big.images,
        [
            ("nginx:1.27".to_string(), 180 << 20),
            ("busybox:latest".to_string(), 100 << 20)
        ]
    );
    let labels = all.labels(1);
    assert_eq!(labels["size"], "Large");
    assert_eq!(labels["node-role.kubernetes.io/worker"], "");
    assert_eq!((labels[ZONE].as_str(), labels[REGION].as_str()), ("sim-zone-1", "sim"));
    assert_eq!(labels["kubernetes.io/hostname"], "big-1");
    let control_plane = all.labels(2);
    assert_eq!(
        (control_plane[ZONE].as_str(), control_plane[REGION].as_str()),
        ("a", "eu")
    );
    assert!(!all.labels(3).contains_key(ZONE) && !all.labels(3).contains_key(REGION));
}

#[test]
fn a_file_says_the_same() {
    let yaml = "
nodes:
- name: big
  count: 2
  cpu: 16
  memory: 64Gi
  pods: 20
  resources: {example.com/gpu: 4}
  labels: {size: Large}
  taints: ['dedicated=db:NoSchedule', 'slow:NoExecute']
  roles: [worker]
  images: ['nginx:1.27=180Mi', busybox]
- names: [controlplane]
  roles: [control-plane]
  zones: [a]
  region: eu
- name: other
  zones: []
";
    let flags = [
        "big=2:cpu=16,memory=64Gi,label=size=Large,taint=dedicated=db:NoSchedule,taint=slow:NoExecute,role=worker,\
         example.com/gpu=4,pods=20,image=nginx:1.27=180Mi,image=busybox",
        "controlplane:role=control-plane,zone=a,region=eu",
        "x=1:name=other,zone=",
    ];
    let expected: Vec<Group> = flags.iter().map(|flag| Group::parse(flag).unwrap()).collect();
    assert_eq!(Group::parse_file(yaml).unwrap(), expected);
}

#[test]
fn invalid_parts_are_named() {
    for (flag, why) in [
        ("big=four", "count: invalid count \"four\": must be a number"),
        (
            "big=2:cpu=much",
            "cpu: invalid quantity \"much\": must be a number such as \"16\" or \"64Gi\"",
        ),
        ("big=2:memory=-1Gi", "memory: invalid quantity \"-1Gi\": must be >= 0"),
        ("big=2:pods=1.5", "pods: invalid quantity \"1.5\": must be an integer"),
        ("big=2:cpu", "cpu: must be KEY=VALUE"),
        ("big=2:gpu=1", "gpu: unknown key"),
        ("big=2:label=a b=c", "label: invalid value \"a b\": "),
        ("big=2:label=a=b c", "label: invalid value \"b c\": "),
        (
            "big=2:taint=a=b",
            "taint: invalid taint \"a=b\": must be KEY=VALUE:EFFECT",
        ),
        (
            "big=2:taint=a=b:Never",
            "taint: invalid taint \"a=b:Never\": must be KEY=VALUE:EFFECT",
        ),
        ("big=2:role=a b", "role: invalid value \"a b\": "),
        ("big=2:zone=a b", "zone: invalid value \"a b\": "),
        ("big=2:image=A", "image: invalid value \"A\": "),
        (
            "big=2:image=a=big",
            "image: invalid size \"big\": must be a quantity such as \"180Mi\"",
        ),
        ("Big=2", "name: invalid value \"Big-0\": "),
        ("=2", "name: invalid value \"-0\": "),
        ("big=99999", "count: at most 16384 simulated nodes are supported"),
    ] {
        let error = Group::parse(flag).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{flag}: {why}")), "{error}");
    }
    for (yaml, why) in [
        ("nodes:\n- cpu: 1\n", "nodes[0]: name: name or names is required"),
        ("nodes:\n- name: a\n- name: b\n  cpu: x\n", "nodes[1] (b): cpu: "),
        (
            "nodes:\n- names: [a, b]\n  count: 3\n",
            "nodes[0] (a): count: must be 2, the number of names",
        ),
        ("nodes:\n- name: c\n  names: [a]\n", "nodes[0] (c): names: "),
        ("nodes:\n- name: c\n  colour: red\n", "nodes: "),
        ("pods: []\n", "nodes: "),
    ] {
        let error = Group::parse_file(yaml).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
    let twice = Groups::new(vec![Group::default_nodes(2), Group::parse("sim-1").unwrap()]).unwrap_err();
    assert_eq!(twice.to_string(), "name: duplicate node name \"sim-1\"");
    let many = Groups::new(vec![Group::default_nodes(MAX_NODES), Group::parse("one").unwrap()]).unwrap_err();
    assert_eq!(many.to_string(), "count: at most 16384 simulated nodes are supported");
}

#[test]
fn a_real_node_joins_the_zone_with_the_fewest_nodes() {
    for (flags, place) in [
        (&["sim=3"] as &[_], "sim sim-zone-0"),
        (&["sim=4"], "sim sim-zone-1"),
        (&["sim=2"], "sim sim-zone-2"),
        (&["a=2", "b=3"], "sim sim-zone-2"),
        (&["a=3:zone=x,zone=y,region=eu"], "eu y"),
        (&["a=3:zone=x,zone=y,region="], " y"),
        (&["a=3:zone="], " "),
        (&[], " "),
    ] {
        let labels = groups(flags).labels_for_real_node();
        let of = |key: &str| labels.get(key).cloned().unwrap_or_default();
        assert_eq!(format!("{} {}", of(REGION), of(ZONE)), place, "{flags:?}");
    }
}
