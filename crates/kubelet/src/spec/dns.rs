//! The resolver configuration of a pod: by dnsPolicy from the cluster or the host, with the pod's dnsConfig merged, cut to the
//! limits of resolvers.

use std::net::IpAddr;

use orlop_api::types::core::{Pod, PodDNSConfig};
use orlop_runtime::cri::messages::DNSConfig;

use super::{NodeFacts, Notice, SpecError, describe, is_host_network, namespace};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// Longer ones make some resolvers abort.
const MAX_DOMAIN: usize = 253;

enum Policy {
    Cluster,
    Host,
    Nothing,
}

fn policy(pod: &Pod) -> Policy {
    match pod.spec.as_ref().and_then(|s| s.dns_policy.as_deref()) {
        Some("None") => Policy::Nothing,
        Some("Default") => Policy::Host,
        Some("ClusterFirstWithHostNet") => Policy::Cluster,
        _ if is_host_network(pod) => Policy::Host,
        _ => Policy::Cluster,
    }
}

/// A pod's settings, and what the user should know about them.
pub(crate) fn pod_dns(pod: &Pod, facts: &NodeFacts) -> Result<(DNSConfig, Vec<Notice>), SpecError> {
    let mut notices = vec![];
    let host = || parse_resolv_conf(facts.resolv_conf.as_deref().unwrap_or_default());
    let mut dns = match policy(pod) {
        Policy::Nothing => DNSConfig::default(),
        Policy::Cluster if !facts.cluster_dns.is_empty() => DNSConfig {
            servers: facts.cluster_dns.iter().map(IpAddr::to_string).collect(),
            searches: cluster_searches(pod, facts, host()?.searches),
            options: vec!["ndots:5".to_string()],
        },
        Policy::Cluster => {
            notices.push(missing_cluster_dns(pod));
            host_dns(facts, host()?)
        }
        Policy::Host => host_dns(facts, host()?),
    };
    if let Some(own) = pod.spec.as_ref().and_then(|s| s.dns_config.as_ref()) {
        merge(&mut dns, own);
    }
    fit(&mut dns, &mut notices);
    Ok((dns, notices))
}

fn missing_cluster_dns(pod: &Pod) -> Notice {
    Notice {
        reason: "MissingClusterDNS",
        message: format!(
            "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
             Falling back to \"Default\" policy.",
            describe(pod)
        ),
    }
}

fn cluster_searches(pod: &Pod, facts: &NodeFacts, host: Vec<String>) -> Vec<String> {
    let domain = &facts.cluster_domain;
    if domain.is_empty() {
        return host;
    }
    let mut searches = vec![
        format!("{}.svc.{domain}", namespace(pod)),
        format!("svc.{domain}"),
        domain.clone(),
    ];
    searches.extend(host);
    without_repeats(searches)
}

/// Where the host's settings are not to be used at all, the resolver is pointed at the pod itself: no answers, rather than
/// the runtime's guess.
fn host_dns(facts: &NodeFacts, host: DNSConfig) -> DNSConfig {
    if facts.resolv_conf.is_some() {
        return host;
    }
    let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = facts.addresses.iter().map(|ip| loopback(ip).to_string()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_string());
    }
    DNSConfig {
        servers,
        searches: vec![".".to_string()],
        options: vec![],
    }
}

/// `nameserver` lines add up, the last `search` line counts, options replace those of the same name.
fn parse_resolv_conf(text: &str) -> Result<DNSConfig, SpecError> {
    let mut dns = DNSConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => match words.next() {
                Some(server) => dns.servers.push(server.to_string()),
                None => {
                    return Err(SpecError::new(
                        "Encountered error while parsing resolv conf file. Error: nameserver list is empty ",
                    ));
                }
            },
            Some("search") => {
                let domains = words
                    .filter(|d| *d != ".")
                    .map(|d| d.strip_suffix('.').unwrap_or(d).to_string());
                dns.searches = domains.collect();
            }
            Some("options") => words.for_each(|option| set_option(&mut dns.options, option.to_string())),
            _ => {}
        }
    }
    Ok(dns)
}

fn set_option(options: &mut Vec<String>, option: String) {
    let key = |o: &str| o.split(':').next().unwrap_or_default().to_string();
    match options.iter_mut().find(|o| key(o) == key(&option)) {
        Some(old) => *old = option,
        None => options.push(option),
    }
}

fn merge(dns: &mut DNSConfig, own: &PodDNSConfig) {
    dns.servers.extend(own.nameservers.iter().flatten().cloned());
    dns.servers = without_repeats(std::mem::take(&mut dns.servers));
    dns.searches.extend(own.searches.iter().flatten().cloned());
    dns.searches = without_repeats(std::mem::take(&mut dns.searches));
    for option in own.options.iter().flatten() {
        let name = option.name.clone().unwrap_or_default();
        let text = match option.value.as_deref() {
            None | Some("") => name,
            Some(value) => format!("{name}:{value}"),
        };
        set_option(&mut dns.options, text);
    }
}

fn without_repeats(list: Vec<String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::with_capacity(list.len());
    for item in list {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}

fn fit(dns: &mut DNSConfig, notices: &mut Vec<Notice>) {
    if dns.servers.len() > MAX_NAMESERVERS {
        dns.servers.truncate(MAX_NAMESERVERS);
        notices.push(Notice {
            reason: "DNSConfigForming",
            message: format!(
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
                dns.servers.join(" ")
            ),
        });
    }
    let before = dns.searches.len();
    dns.searches.truncate(MAX_SEARCH_PATHS);
    dns.searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    while dns.searches.join(" ").len() > MAX_SEARCH_CHARS {
        dns.searches.pop();
    }
    if dns.searches.len() < before {
        notices.push(Notice {
            reason: "DNSConfigForming",
            message: format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                dns.searches.join(" ")
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::{Value, json};

    fn facts(resolv_conf: Option<&str>) -> NodeFacts {
        NodeFacts {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: resolv_conf.map(str::to_string),
            ..NodeFacts::default()
        }
    }

    const HOST: &str = "# comment\nnameserver 8.8.8.8\nnameserver 1.1.1.1\nsearch old\nsearch example.com. corp . \n\
                        options timeout:1 ndots:2\noptions ndots:3 rotate\n";

    /// `servers | searches | options`
    fn shown(dns: &DNSConfig) -> String {
        [&dns.servers, &dns.searches, &dns.options]
            .map(|l| l.join(" "))
            .join(" | ")
    }

    const CLUSTER: &str =
        "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local example.com corp | ndots:5";
    const FROM_HOST: &str = "8.8.8.8 1.1.1.1 | example.com corp | timeout:1 ndots:3 rotate";

    #[test]
    fn policies() {
        let dns_config = json!({"nameservers": ["9.9.9.9", "8.8.8.8"], "searches": ["mine", "corp"],
            "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]});
        for (spec, expected) in [
            (json!({}), CLUSTER),
            (json!({"dnsPolicy": "ClusterFirst"}), CLUSTER),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), FROM_HOST),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                CLUSTER,
            ),
            (json!({"dnsPolicy": "Default"}), FROM_HOST),
            (json!({"dnsPolicy": "None"}), " |  | "),
            (
                json!({"dnsPolicy": "None", "dnsConfig": dns_config}),
                "9.9.9.9 8.8.8.8 | mine corp | ndots:1 edns0",
            ),
            (
                json!({"dnsPolicy": "Default", "dnsConfig": dns_config}),
                "8.8.8.8 1.1.1.1 9.9.9.9 | example.com corp mine | timeout:1 ndots:1 rotate edns0",
            ),
            (
                json!({"dnsPolicy": "ClusterFirst", "dnsConfig": {"searches": ["mine"], "options": [{"name": "ndots", "value": "2"}]}}),
                "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local example.com corp mine | ndots:2",
            ),
        ] {
            let (dns, notices) = pod_dns(&testing::pod(spec.clone()), &facts(Some(HOST))).unwrap();
            assert_eq!(shown(&dns), expected, "{spec}");
            assert_eq!(notices, [], "{spec}");
        }
    }

    #[test]
    fn without_host_settings_the_resolver_points_at_the_pod() {
        let default = testing::pod(json!({"dnsPolicy": "Default"}));
        let mut facts = facts(None);
        assert_eq!(shown(&pod_dns(&default, &facts).unwrap().0), "127.0.0.1 | . | ");
        facts.addresses = vec!["fd00::1".parse().unwrap(), "10.0.0.1".parse().unwrap()];
        assert_eq!(shown(&pod_dns(&default, &facts).unwrap().0), "::1 127.0.0.1 | . | ");
        let cluster = testing::pod(json!({}));
        assert_eq!(
            shown(&pod_dns(&cluster, &facts).unwrap().0),
            "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local | ndots:5"
        );
    }

    #[test]
    fn without_cluster_dns_the_hosts_is_taken_and_said() {
        let facts = NodeFacts {
            cluster_dns: vec![],
            ..facts(Some(HOST))
        };
        let (dns, notices) = pod_dns(&testing::pod(json!({})), &facts).unwrap();
        assert_eq!(shown(&dns), FROM_HOST);
        assert_eq!(
            notices[0].message,
            "pod: \"web_default(u-1)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \
             \"ClusterFirst\" policy. Falling back to \"Default\" policy."
        );
    }

    #[test]
    fn limits_are_kept_and_said() {
        let names = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        let own = |config: Value| testing::pod(json!({"dnsPolicy": "None", "dnsConfig": config}));
        let run = |config| pod_dns(&own(config), &facts(Some(HOST))).unwrap();

        let (dns, notices) = run(json!({"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}));
        assert_eq!(dns.servers.len(), 3);
        assert_eq!(
            notices[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: \
             1.1.1.1 2.2.2.2 3.3.3.3"
        );
        let (dns, notices) = run(json!({"searches": names("d", 40)}));
        assert_eq!(dns.searches, names("d", 32));
        assert!(notices[0].message.ends_with(" d30 d31"), "{}", notices[0].message);
        let long = "x".repeat(254);
        assert_eq!(run(json!({"searches": ["a", long, "b"]})).0.searches, ["a", "b"]);
        let (dns, notices) = run(json!({"searches": names(&"y".repeat(150), 20)}));
        assert_eq!(dns.searches.len(), 13);
        assert_eq!(notices.len(), 1);
        assert_eq!(run(json!({"searches": names("d", 32)})).1, []);
    }

    #[test]
    fn a_broken_host_file_is_an_error() {
        let error = pod_dns(&testing::pod(json!({})), &facts(Some("nameserver\n"))).unwrap_err();
        assert_eq!(
            error.0,
            "Encountered error while parsing resolv conf file. Error: nameserver list is empty "
        );
        assert_eq!(
            parse_resolv_conf("nonsense\n;x\nsearch\n").unwrap(),
            DNSConfig::default()
        );
    }
}
