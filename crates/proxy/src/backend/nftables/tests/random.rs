//! Whatever comes in whatever order, the table ends as if made at once.

use proptest::prelude::*;

use super::live::wrote;
use super::*;
use crate::backend::Backend;
use crate::backend::nftables::new;
use crate::plan::Change;
use crate::testing::in_namespace;

/// One of a few service ports, some of which want the same elements.
fn any_port() -> impl Strategy<Value = ServicePort> {
    let flags = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let endpoints = prop::collection::btree_set((0u8..9, any::<bool>()), 0..7);
    let protocol = prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    (0u8..5, flags, endpoints, protocol, prop::option::of(1u32..4)).prop_map(
        |(n, (internal, external, node_port, balancer, ranges), endpoints, protocol, affinity)| {
            let mut service = port(&format!("ns/svc{}:p{n}", n / 2), &format!("172.30.0.{}", n / 2));
            service.port = 80 + u16::from(n);
            service.protocol = protocol;
            service.affinity = affinity;
            service.internal_local = internal;
            service.node_port = node_port.then_some(30000 + u16::from(n));
            if balancer {
                // Shared on purpose: the planner would not do it.
                service.load_balancer_ips = addresses(&["5.6.7.8", "5.6.7.9"]);
                service.external_ips = addresses(&["5.6.7.8"]);
                service.port = 80;
            }
            if ranges {
                service.source_ranges = vec!["10.0.0.0/8".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
            }
            service.external_local = external && service.is_external();
            service.cluster = endpoints
                .iter()
                .map(|(n, is_local)| Endpoint {
                    address: numbered(*n),
                    is_local: *is_local,
                })
                .collect();
            service.cluster.dedup_by_key(|endpoint| endpoint.address);
            service.local = service
                .cluster
                .iter()
                .copied()
                .filter(|endpoint| endpoint.is_local)
                .collect();
            service.has_endpoints = !service.cluster.is_empty();
            service
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Set(Vec<ServicePort>),
    Remove(usize),
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(any_port(), 1..4).prop_map(Step::Set),
        2 => (0usize..5).prop_map(Step::Remove),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After each change, one who looks at everything anew finds nothing to do.
    #[test]
    fn changes_one_by_one_end_as_all_at_once(steps in prop::collection::vec(any_step(), 1..12), cut in any::<bool>()) {
        in_namespace(move || {
            let mut plan = plan([]);
            let start = || {
                let mut backend = new(settings()).unwrap();
                if cut {
                    backend.kernel.transaction_length = 1;
                }
                backend
            };
            let mut backend = start();
            backend.sync(&plan, &Change::All).unwrap();
            for step in steps {
                let mut keys: Vec<Key> = match step {
                    Step::Set(ports) => ports
                        .into_iter()
                        .map(|port| {
                            let key = port.key.clone();
                            plan.ports.insert(key.clone(), Arc::new(port));
                            key
                        })
                        .collect(),
                    Step::Remove(at) => {
                        let key = plan.ports.keys().nth(at).cloned();
                        key.into_iter().inspect(|key| drop(plan.ports.remove(key))).collect()
                    }
                    Step::Restart => {
                        backend = start();
                        vec![]
                    }
                };
                keys.sort();
                keys.dedup();
                let report = backend.sync(&plan, &Change::Keys(keys)).unwrap();
                let fresh = new(settings()).unwrap().sync(&plan, &Change::All).unwrap();
                assert_eq!(wrote(&fresh), 0, "{fresh:?}");
                assert_eq!(fresh.rules, report.rules);
            }
        });
    }
}
