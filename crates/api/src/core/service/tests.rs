use super::*;
use crate::field::{Problem, Problems};
use crate::kind_check::{create_problems, defaulted, merged, refuses, refuses_update, row, status_problems};

fn base() -> Value {
    json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "selector": {"a": "b"}, "ports": [{"port": 80}]}})
}

fn spec(patch: Value) -> Value {
    json!({"spec": patch})
}

#[test]
fn defaults() {
    let service = defaulted(
        &DEF,
        json!({"spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http", "protocol": "UDP"}]}}),
    );
    assert_eq!(
        service["spec"],
        json!({
        "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
        "ports": [
            {"port": 80, "targetPort": 80, "protocol": "TCP"},
            {"port": 81, "targetPort": "http", "protocol": "UDP"},
        ]})
    );
    let balanced = json!({
        "spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"},
        "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}, {"hostname": "a.b"}]}}});
    assert_eq!(
        defaulted(&DEF, balanced),
        json!({
            "spec": {
                "type": "LoadBalancer", "sessionAffinity": "ClientIP", "internalTrafficPolicy": "Cluster",
                "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true,
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1", "ipMode": "VIP"}, {"hostname": "a.b"}]}}})
    );
    let named = defaulted(
        &DEF,
        json!({"spec": {"type": "ExternalName", "externalName": "a.b", "sessionAffinityConfig": {}}}),
    );
    assert_eq!(
        named["spec"],
        json!({"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"})
    );
}

#[test]
fn rules_of_the_spec() {
    let two_ports = |second: Value| {
        let mut first = json!({"name": "a", "port": 80});
        if second.get("nodePort").is_some() {
            first["nodePort"] = json!(30000);
        }
        json!([first, second])
    };
    let duplicate = "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}";
    refuses(
        &DEF,
        &base(),
        &[
            (
                json!({"metadata": {"annotations": {TOPOLOGY_HINTS: "Auto", TOPOLOGY_MODE: "Off"}}}),
                "metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: \"Off\": must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified",
            ),
            (spec(json!({"ports": []})), "spec.ports: Required value"),
            (
                spec(json!({"ports": [{"port": 70000, "targetPort": 1}]})),
                "spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                spec(json!({"ports": [{"port": 80, "targetPort": 70000}]})),
                "spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                spec(json!({"ports": [{"port": 80, "targetPort": "a--b"}]})),
                "spec.ports[0].targetPort: Invalid value: \"a--b\": must not contain consecutive hyphens",
            ),
            (
                spec(json!({"ports": two_ports(json!({"port": 81}))})),
                "spec.ports[1].name: Required value",
            ),
            (
                spec(json!({"ports": two_ports(json!({"name": "a", "port": 81}))})),
                "spec.ports[1].name: Duplicate value: \"a\"",
            ),
            (
                spec(json!({"ports": two_ports(json!({"name": "b", "port": 80}))})),
                duplicate,
            ),
            (
                spec(json!({"ports": [{"port": 80, "protocol": "ICMP"}]})),
                "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ),
            (
                spec(json!({"ports": [{"port": 80, "nodePort": 30000}]})),
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            ),
            (
                spec(
                    json!({"type": "NodePort", "ports": two_ports(json!({"name": "b", "port": 81, "nodePort": 30000}))}),
                ),
                "spec.ports[1].nodePort: Duplicate value: 30000",
            ),
            (
                spec(json!({"sessionAffinity": "Cookie"})),
                "spec.sessionAffinity: Unsupported value: \"Cookie\": supported values: \"ClientIP\", \"None\"",
            ),
            (
                spec(
                    json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}}),
                ),
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400",
            ),
            (
                spec(json!({"externalIPs": ["169.254.1.1"]})),
                "spec.externalIPs[0]: Invalid value: \"169.254.1.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
            ),
            (
                spec(json!({"loadBalancerClass": "x.io/y"})),
                "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                spec(json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]})),
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                spec(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [" 10.0.0.0/8 ", "10.0.0.1/8"]})),
                "spec.LoadBalancerSourceRanges[1]: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length",
            ),
            (
                merged(
                    &spec(json!({"type": "LoadBalancer"})),
                    &json!({"metadata": {"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8, x"}}}),
                ),
                "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ),
            (
                spec(json!({"allocateLoadBalancerNodePorts": true})),
                "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                spec(json!({"externalTrafficPolicy": "Local"})),
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            ),
            (
                spec(json!({"type": "NodePort", "externalTrafficPolicy": "Near"})),
                "spec.externalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"",
            ),
            (
                spec(json!({"healthCheckNodePort": 30000})),
                "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
            ),
            (
                spec(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 70000})),
                "spec.healthCheckNodePort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                spec(json!({"internalTrafficPolicy": "Near"})),
                "spec.internalTrafficPolicy: Unsupported value: \"Near\": supported values: \"Cluster\", \"Local\"",
            ),
            (
                spec(json!({"trafficDistribution": "Far"})),
                "spec.trafficDistribution: Unsupported value: \"Far\": supported values: \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\"",
            ),
        ],
    );
}

#[test]
fn types_and_addresses() {
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
    for (patch, wanted) in [
        (merged(&headless, &json!({"ports": null})), ""),
        (
            merged(&headless, &json!({"type": "NodePort"})),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            json!({"type": "ExternalName", "externalName": "a.b.", "clusterIP": null, "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}),
            "",
        ),
        (
            json!({"type": "ExternalName"}),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services; spec.ipFamilies: Forbidden: may not be set for ExternalName services; spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services; spec.externalName: Required value",
        ),
        (json!({"clusterIPs": null}), "spec.clusterIPs: Required value"),
        (
            json!({"clusterIPs": ["10.0.0.2"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`",
        ),
        (
            json!({"clusterIP": null}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\"]: must be empty when `clusterIP` is not specified",
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None", "::1"]}),
            "spec.clusterIPs: Invalid value: [\"None\",\"::1\"]: 'None' must be the first and only value",
        ),
        (
            json!({"clusterIPs": ["10.0.0.1", "10.0.0.2"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family",
        ),
        (
            json!({"clusterIPs": ["10.0.0.1", "::1", "::2"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"::1\",\"::2\"]: may only hold up to 2 values",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv4"]}),
            "spec.ipFamilies[1]: Duplicate value: \"IPv4\"",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPX"]}),
            "spec.ipFamilies[1]: Unsupported value: \"IPX\": supported values: \"IPv4\", \"IPv6\"",
        ),
        (
            json!({"ipFamilyPolicy": "Many"}),
            "spec.ipFamilyPolicy: Unsupported value: \"Many\": supported values: \"PreferDualStack\", \"RequireDualStack\", \"SingleStack\"",
        ),
        (
            json!({"type": "Magic"}),
            "spec.type: Unsupported value: \"Magic\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
    ] {
        let mut service = merged(&base(), &spec(patch.clone()));
        service["spec"]["internalTrafficPolicy"] = json!("Cluster");
        assert_eq!(create_problems(&DEF, service).join("; "), wanted, "{patch}");
    }
}

#[test]
fn updates() {
    let two = merged(
        &base(),
        &spec(
            json!({"clusterIPs": ["10.0.0.1", "::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
        ),
    );
    refuses_update(
        &DEF,
        &two,
        &[
            (
                spec(json!({"clusterIPs": ["10.0.0.1", "::2"]})),
                "spec.clusterIPs[1]: Invalid value: [\"10.0.0.1\",\"::2\"]: may not change once set",
            ),
            (
                spec(json!({"clusterIPs": ["10.0.0.1"]})),
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary clusterIP",
            ),
            (
                spec(json!({"ipFamilies": ["IPv4"]})),
                "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be set to 'SingleStack' when releasing the secondary ipFamily",
            ),
        ],
    );
    refuses_update(
        &DEF,
        &base(),
        &[(
            spec(json!({"clusterIP": "10.0.0.2"})),
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set",
        )],
    );
    let balanced = merged(
        &base(),
        &spec(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000})),
    );
    refuses_update(
        &DEF,
        &balanced,
        &[
            (
                spec(json!({"healthCheckNodePort": 30001})),
                "spec.healthCheckNodePort: Forbidden: field is immutable",
            ),
            (
                spec(json!({"loadBalancerClass": "a"})),
                "spec.loadBalancerClass: Invalid value: \"a\": may not change once set",
            ),
        ],
    );
}

#[test]
fn what_was_allocated_is_kept_and_what_is_useless_dropped() {
    let node_port = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30001}]});
    let old = defaulted(&DEF, merged(&base(), &spec(node_port)));
    let mut new = defaulted(
        &DEF,
        json!({"spec": {"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30001}, {"name": "b", "port": 82}, {"name": "c", "port": 83}]}}),
    );
    (DEF.prepare_update)(&mut new, &old);
    assert_eq!(new["spec"]["clusterIP"], "10.0.0.1");
    assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.1"]));
    let ports: Vec<i64> = list(&new["spec"], "ports")
        .iter()
        .map(|p| printing::int(p, "/nodePort"))
        .collect();
    assert_eq!(ports, [30001, 0, 0], "30001 is taken by the first port now");

    let mut new = old.clone();
    new["spec"]["type"] = "ClusterIP".into();
    (DEF.prepare_update)(&mut new, &old);
    assert!(node_ports(&new["spec"]).is_empty() && new["spec"].get("externalTrafficPolicy").is_none());

    let mut new = old.clone();
    new["spec"]["type"] = "ExternalName".into();
    (DEF.prepare_update)(&mut new, &old);
    for field in [
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "internalTrafficPolicy",
    ] {
        assert!(new["spec"].get(field).is_none(), "{field}");
    }
}

#[test]
fn the_plural_follows_the_singular() {
    let old = json!({"spec": {"clusterIP": "1.1.1.1", "clusterIPs": ["1.1.1.1"]}});
    for (old, new, wanted) in [
        (None, json!({"clusterIP": "1.1.1.1"}), json!(["1.1.1.1"])),
        (None, json!({}), Value::Null),
        (Some(&old), json!({"clusterIP": "1.1.1.1"}), json!(["1.1.1.1"])),
        (
            Some(&old),
            json!({"clusterIP": "2.2.2.2", "clusterIPs": ["1.1.1.1"]}),
            json!(["2.2.2.2"]),
        ),
        (Some(&old), json!({"clusterIPs": ["1.1.1.1"]}), Value::Null),
        (Some(&old), json!({"clusterIP": "2.2.2.2"}), Value::Null),
    ] {
        let mut service = spec(new.clone());
        cluster_ips::normalize(&mut service, old);
        assert_eq!(
            service["spec"].get("clusterIPs").unwrap_or(&Value::Null),
            &wanted,
            "{new}"
        );
    }
}

#[test]
fn families() {
    let (single, both) = (&["IPv4"][..], &["IPv4", "IPv6"][..]);
    let selector = json!({"a": "b"});
    for (new, cluster, wanted) in [
        (json!({"selector": selector}), single, "SingleStack [\"IPv4\"]"),
        (json!({"selector": selector}), both, "SingleStack [\"IPv4\"]"),
        (
            json!({"selector": selector, "ipFamilyPolicy": "PreferDualStack"}),
            single,
            "PreferDualStack [\"IPv4\"]",
        ),
        (
            json!({"selector": selector, "ipFamilyPolicy": "PreferDualStack"}),
            both,
            "PreferDualStack [\"IPv4\",\"IPv6\"]",
        ),
        (
            json!({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "RequireDualStack"}),
            both,
            "RequireDualStack [\"IPv6\",\"IPv4\"]",
        ),
        (
            json!({"clusterIP": "::1", "clusterIPs": ["::1"]}),
            both,
            "SingleStack [\"IPv6\"]",
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            single,
            "RequireDualStack [\"IPv4\",\"IPv6\"]",
        ),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": selector}),
            single,
            "SingleStack [\"IPv4\"]",
        ),
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            single,
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            single,
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"clusterIP": "::1", "clusterIPs": ["::1"]}),
            single,
            "spec.clusterIPs[0]: Invalid value: [\"::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            both,
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        ),
    ] {
        let mut service = spec(new.clone());
        let mut p = Problems::default();
        cluster_ips::init_families(&mut service, None, cluster, &mut p);
        let found = match p.0.first() {
            Some(problem) => problem.to_string(),
            None => format!(
                "{} {}",
                text(&service["spec"], "ipFamilyPolicy"),
                service["spec"]["ipFamilies"]
            ),
        };
        assert_eq!(found, wanted, "{new}");
    }
}

#[test]
fn releasing_a_family() {
    let two = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    let old = spec(two.clone());
    let run = |patch: Value| {
        let mut new = spec(merged(&two, &patch));
        let mut p = Problems::default();
        cluster_ips::init_families(&mut new, Some(&old), &["IPv4", "IPv6"], &mut p);
        (new, p.0.iter().map(Problem::to_string).collect::<Vec<_>>())
    };
    let (new, problems) = run(json!({"ipFamilyPolicy": "SingleStack"}));
    assert_eq!(problems, [""; 0]);
    assert_eq!(
        (&new["spec"]["clusterIPs"], &new["spec"]["ipFamilies"]),
        (&json!(["10.0.0.1"]), &json!(["IPv4"]))
    );
    let (_, problems) = run(json!({"clusterIPs": ["10.0.0.1"]}));
    assert_eq!(
        problems,
        [
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP"
        ]
    );
}

#[test]
fn status_updates() {
    let balanced = merged(&base(), &spec(json!({"type": "LoadBalancer"})));
    let with = |ingress: Value| json!({"status": {"loadBalancer": {"ingress": [ingress]}}});
    for (service, ingress, wanted) in [
        (&balanced, json!({"ip": "1.1.1.1"}), ""),
        (
            &base(),
            json!({"ip": "1.1.1.1"}),
            "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'",
        ),
        (
            &balanced,
            json!({"ip": "1.1.1.1", "ipMode": "X"}),
            "status.loadBalancer.ingress[0].ipMode: Unsupported value: \"X\": supported values: \"Proxy\", \"VIP\"",
        ),
        (
            &balanced,
            json!({"hostname": "a.b", "ipMode": "VIP"}),
            "status.loadBalancer.ingress[0].ipMode: Forbidden: may not be specified when `ip` is not set",
        ),
        (
            &balanced,
            json!({"hostname": "1.2.3.4"}),
            "status.loadBalancer.ingress[0].hostname: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
        ),
        (
            &balanced,
            json!({"ip": "x"}),
            "status.loadBalancer.ingress[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
    ] {
        let new = merged(service, &with(ingress.clone()));
        assert_eq!(
            status_problems(&DEF, new, service.clone()).join("; "),
            wanted,
            "{ingress}"
        );
    }
}

#[test]
fn rows_and_warnings() {
    let service = defaulted(&DEF, base());
    assert_eq!(row(&DEF, &service), "ClusterIP|10.0.0.1|<none>|80/TCP|<unknown>|a=b");
    let balanced =
        json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30000, "protocol": "TCP"}]}});
    assert_eq!(
        row(&DEF, &balanced),
        "LoadBalancer|<none>|<pending>|80:30000/TCP|<unknown>|<none>"
    );
    let ready = merged(
        &balanced,
        &json!({"status": {"loadBalancer": {"ingress": [{"ip": "2.2.2.2"}, {"hostname": "h"}]}}, "spec": {"externalIPs": ["3.3.3.3"], "ports": null}}),
    );
    assert_eq!(
        row(&DEF, &ready),
        "LoadBalancer|<none>|2.2.2.2,h,3.3.3.3|<none>|<unknown>|<none>"
    );
    let named = json!({"spec": {"type": "ExternalName", "externalName": "a.b"}});
    assert_eq!(row(&DEF, &named), "ExternalName|<none>|a.b|<none>|<unknown>|<none>");

    let odd = json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "loadBalancerIP": "1.1.1.1", "sessionAffinity": "ClientIP", "externalName": "x", "trafficDistribution": "PreferClose"}});
    assert_eq!(
        warnings(&Cursor::root(&odd), None),
        [
            "spec.loadBalancerIP is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services",
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ]
    );
}
