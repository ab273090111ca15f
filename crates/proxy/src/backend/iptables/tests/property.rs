//! Whatever comes in whatever order ends in the same tables, and never in an input that is refused.

use proptest::prelude::*;
use proptest::sample::select;

use super::model::Model;
use super::*;

fn any_port() -> impl Strategy<Value = ServicePort> {
    let addresses = (0..4u8, 0..6usize, 0..3usize, prop::bool::ANY, prop::bool::ANY);
    let outside = (0..3u16, 0..3usize, 0..3usize, 0..3usize, prop::bool::ANY);
    let kind = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    (addresses, outside, kind, prop::option::of(1..3u32)).prop_map(|(inside, outside, protocol, affinity)| {
        let (number, endpoints, local, internal_local, has_endpoints) = inside;
        let (node_port, external, balancers, ranges, external_local) = outside;
        let texts: Vec<String> = (0..endpoints).map(|n| format!("10.1.{number}.{n}:80")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let base = port(&format!("svc{number}"), &format!("172.30.0.{number}"), &texts);
        // Two services may share addresses: the planner sees to it that they don't, but nothing here relies on that.
        let ips = |from: u8, count: usize| {
            (0..count as u8)
                .map(|n| IpAddr::from([203, 0, 113, from + n]))
                .collect()
        };
        ServicePort {
            protocol,
            affinity,
            node_port: (node_port > 0).then_some(30000 + node_port),
            external_ips: ips(0, external),
            load_balancer_ips: ips(1, balancers),
            source_ranges: (0..ranges as u8)
                .map(|n| ipnet::IpNet::from(IpAddr::from([10, 0, 0, n])))
                .collect(),
            internal_local,
            external_local,
            health_check_node_port: external_local.then_some(31000),
            local: base.cluster.iter().take(local).copied().collect(),
            has_endpoints: !base.cluster.is_empty() || has_endpoints,
            ..base
        }
    })
}

/// One sync: ports that come or change, and names of ports that go.
fn any_step() -> impl Strategy<Value = (Vec<ServicePort>, Vec<u8>, bool)> {
    (
        prop::collection::vec(any_port(), 0..3),
        prop::collection::vec(0..4u8, 0..2),
        prop::bool::weighted(0.2),
    )
}

fn full(model: &mut Model, context: &Context, plan: &Plan, most: usize) -> Synced {
    let ports = plan.ports.values().map(|port| &**port);
    let (script, counts) = compare::compare(&model.saved(), context, ports);
    model.apply(script, most);
    Synced {
        context: context.clone(),
        ports: plan.ports.clone(),
        endpoints: plan.ports.values().map(|port| port.endpoints().len()).sum(),
        counts,
    }
}

fn rules(model: &Model, table: Table) -> usize {
    let ours = model
        .chains
        .iter()
        .filter(|((of, name), _)| *of == table && saved::is_ours(table, name));
    ours.map(|(_, rules)| rules.len()).sum()
}

proptest! {
    #[test]
    fn changes_end_where_a_full_sync_does(steps in prop::collection::vec(any_step(), 1..12), most in 1..40usize) {
        let context = context(Family::V4);
        let mut plan = plan([]);
        let mut model = Model::new();
        let mut synced = full(&mut model, &context, &plan, most);
        for (come, go, is_full) in steps {
            let mut keys: Vec<Key> = come.iter().map(|port| port.key.clone()).collect();
            for port in come {
                plan.ports.insert(port.key.clone(), Arc::new(port));
            }
            for number in go {
                let key = port(&format!("svc{number}"), "172.30.0.1", &[]).key;
                plan.ports.remove(&key);
                keys.push(key);
            }
            keys.sort();
            keys.dedup();
            if is_full {
                synced = full(&mut model, &context, &plan, most);
            } else {
                let script = synced.change(Family::V4, &plan, &keys);
                model.apply(script, most);
            }
            let mut fresh = Model::new();
            let wanted = full(&mut fresh, &context, &plan, usize::MAX);
            prop_assert_eq!(model.clone().in_order(&context), fresh.in_order(&context));
            prop_assert_eq!(&synced.ports, &wanted.ports);
            prop_assert_eq!(synced.counts, wanted.counts);
            prop_assert_eq!(synced.endpoints, wanted.endpoints);
            let found = Counts { nat: rules(&model, Table::Nat), filter: rules(&model, Table::Filter) };
            prop_assert_eq!(synced.counts, found);
        }
    }

    /// Rules that somebody took, put in, or moved: a full sync repairs them, and a second finds nothing to do.
    #[test]
    fn a_full_sync_repairs(ports in prop::collection::vec(any_port(), 1..4), harm in prop::collection::vec((0..6usize, any::<prop::sample::Index>()), 1..6)) {
        let context = context(Family::V4);
        let plan = plan(ports);
        let mut whole = Model::new();
        full(&mut whole, &context, &plan, usize::MAX);
        let mut model = whole.clone();
        for (kind, place) in harm {
            let places: Vec<_> = model.chains.keys().cloned().collect();
            let at = place.get(&places).clone();
            let is_ours = saved::is_ours(at.0, &at.1);
            let rules = model.chains.get_mut(&at).unwrap();
            match kind {
                0 => rules.clear(),
                1 if !rules.is_empty() => { rules.remove(0); }
                2 if is_ours => rules.push("-s 1.2.3.4/32 -j ACCEPT".to_string()),
                3 if is_ours => rules.reverse(),
                4 if is_ours => rules.extend(rules.clone()),
                5 if is_ours => {
                    model.chains.remove(&at);
                    let table = at.0;
                    for (_, rules) in model.chains.iter_mut().filter(|((of, _), _)| *of == table) {
                        rules.retain(|rule| saved::target(rule) != Some(&at.1));
                    }
                }
                _ => {}
            }
        }
        full(&mut model, &context, &plan, 20);
        prop_assert_eq!(model.clone().in_order(&context).chains.len(), whole.chains.len());
        let ports = || plan.ports.values().map(|port| &**port);
        let (again, _) = compare::compare(&model.saved(), &context, ports());
        prop_assert!(again.is_empty(), "{:?}", again);
        let clean = compare::clean(&model.saved(), &context);
        model.apply(clean, 20);
        prop_assert_eq!(model, Model::new());
    }
}

#[test]
fn rules_of_others_stay() {
    let context = context(Family::V4);
    let mut model = Model::new();
    let theirs = "*nat\n:MINE - [0:0]\n-A MINE -s 10.9.9.9/32 -j ACCEPT\n-A PREROUTING -j MINE\nCOMMIT\n";
    model.restore(theirs).unwrap();
    let before = model.clone();
    let plan = plan([port("svc1", "172.30.0.41", &["10.180.0.1:80"])]);
    full(&mut model, &context, &plan, usize::MAX);
    assert_eq!(model.chains[&(Table::Nat, "PREROUTING".to_string())].len(), 2);
    let clean = compare::clean(&model.saved(), &context);
    model.apply(clean, usize::MAX);
    assert_eq!(model, before);

    // A chain of ours to which they lead is emptied and stays.
    full(&mut model, &context, &plan, usize::MAX);
    model.restore("*nat\n-A MINE -j KUBE-MARK-MASQ\nCOMMIT\n").unwrap();
    let clean = compare::clean(&model.saved(), &context);
    model.apply(clean, usize::MAX);
    assert_eq!(model.chains[&(Table::Nat, names::MARK_MASQ.to_string())].len(), 0);
    assert_eq!(model.chains[&(Table::Nat, "MINE".to_string())].len(), 2);
}
