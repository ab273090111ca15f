//! A pod's hostname, domain and `/etc/hosts`.

use std::fmt::Write;

use orlop_api::names;
use orlop_api::types::core::Pod;

use super::{NodeFacts, SpecError, is_host_network, name, namespace};

/// What the kernel takes, without the end of the string.
const HOSTNAME_MAX: usize = 63;
/// With a domain it may be one more.
const FQDN_MAX: usize = 64;

/// A pod's host name, and its domain if it has one (it is in a headless service's subdomain).
pub fn host_and_domain(pod: &Pod, facts: &NodeFacts) -> Result<(String, Option<String>), SpecError> {
    let spec = pod.spec.as_ref();
    let given = |field: Option<&String>| field.cloned().filter(|v| !v.is_empty());
    if let Some(hostname) = spec.and_then(|s| s.hostname_override.clone()) {
        check(
            "HostnameOverride",
            &hostname,
            "DNS subdomain",
            names::dns_subdomain(&hostname),
        )?;
        return Ok((cut(pod, &hostname)?, None));
    }
    let hostname = match given(spec.and_then(|s| s.hostname.as_ref())) {
        Some(hostname) => {
            check("Hostname", &hostname, "DNS label", names::dns_label(&hostname))?;
            hostname
        }
        None => name(pod).to_string(),
    };
    let hostname = cut(pod, &hostname)?;
    let Some(subdomain) = given(spec.and_then(|s| s.subdomain.as_ref())) else {
        return Ok((hostname, None));
    };
    check("Subdomain", &subdomain, "DNS label", names::dns_label(&subdomain))?;
    let domain = format!("{subdomain}.{}.svc.{}", namespace(pod), facts.cluster_domain);
    Ok((hostname, Some(domain)))
}

fn check(field: &str, value: &str, what: &str, problems: Vec<String>) -> Result<(), SpecError> {
    if problems.is_empty() {
        return Ok(());
    }
    let problems = problems.join(";");
    Err(SpecError(format!(
        "pod {field} {value:?} is not a valid {what}: {problems}"
    )))
}

fn cut(pod: &Pod, hostname: &str) -> Result<String, SpecError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_string());
    }
    let end = (0..=HOSTNAME_MAX)
        .rev()
        .find(|&i| hostname.is_char_boundary(i))
        .unwrap_or(0);
    match hostname[..end].trim_end_matches(['-', '.']) {
        "" => Err(SpecError(format!(
            "hostname for pod {:?} was invalid: {hostname:?}",
            name(pod)
        ))),
        short => Ok(short.to_string()),
    }
}

/// The hostname that is set in the kernel: a FQDN where the pod asks for it (setHostnameAsFQDN).
pub(crate) fn kernel_hostname(pod: &Pod, facts: &NodeFacts) -> Result<String, SpecError> {
    let (hostname, domain) = host_and_domain(pod, facts)?;
    let wants_fqdn = super::spec_flag(pod, |s| s.set_hostname_as_fqdn);
    let Some(domain) = domain.filter(|_| wants_fqdn) else {
        return Ok(hostname);
    };
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > FQDN_MAX {
        return Err(SpecError(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({FQDN_MAX} characters is \
             the max, {} characters requested)",
            fqdn.len()
        )));
    }
    Ok(fqdn)
}

const FIXED_HOSTS: &str = "127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// The text of `/etc/hosts` in a pod's containers. `host_file` is the node's own, for pods on its network.
pub fn hosts_file(pod: &Pod, facts: &NodeFacts, pod_ips: &[String], host_file: &str) -> Result<String, SpecError> {
    let mut text = String::new();
    if is_host_network(pod) {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(host_file);
    } else {
        let (hostname, domain) = host_and_domain(pod, facts)?;
        text.push_str("# Kubernetes-managed hosts file.\n");
        text.push_str(FIXED_HOSTS);
        let names = match domain {
            Some(domain) => format!("{hostname}.{domain}\t{hostname}"),
            None => hostname,
        };
        for ip in pod_ips {
            writeln!(text, "{ip}\t{names}").expect("writing to a string");
        }
    }
    let aliases = pod
        .spec
        .as_ref()
        .and_then(|s| s.host_aliases.as_deref())
        .unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        writeln!(text, "{}\t{names}", alias.ip).expect("writing to a string");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::json;

    fn facts() -> NodeFacts {
        NodeFacts {
            cluster_domain: "cluster.local".into(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn host_names_and_domains() {
        let long = "a".repeat(70);
        let ends_badly = format!("{}-.{}", "b".repeat(61), "c".repeat(20));
        for (spec, name, expected) in [
            (json!({}), "web", Ok(("web", None))),
            (json!({"hostname": "h"}), "web", Ok(("h", None))),
            (json!({"hostname": ""}), "web", Ok(("web", None))),
            (
                json!({"subdomain": "sub"}),
                "web",
                Ok(("web", Some("sub.default.svc.cluster.local"))),
            ),
            (
                json!({"hostnameOverride": "a.b", "subdomain": "s"}),
                "web",
                Ok(("a.b", None)),
            ),
            (json!({}), long.as_str(), Ok((&long[..63], None))),
            (json!({}), ends_badly.as_str(), Ok((&ends_badly[..61], None))),
            (
                json!({"hostname": "a.b"}),
                "web",
                Err("pod Hostname \"a.b\" is not a valid DNS label: "),
            ),
            (
                json!({"subdomain": "a_b"}),
                "web",
                Err("pod Subdomain \"a_b\" is not a valid DNS label: "),
            ),
            (
                json!({"hostnameOverride": "A"}),
                "web",
                Err("pod HostnameOverride \"A\" is not a valid DNS subdomain: "),
            ),
        ] {
            let mut pod = testing::pod(spec.clone());
            pod.metadata.name = Some(name.to_string());
            match (host_and_domain(&pod, &facts()), expected) {
                (Ok((host, domain)), Ok(expected)) => {
                    assert_eq!((host.as_str(), domain.as_deref()), expected, "{spec}")
                }
                (Err(e), Err(start)) => assert!(e.0.starts_with(start), "{spec}: {e}"),
                (got, _) => panic!("{spec}: {got:?}"),
            }
        }
    }

    #[test]
    fn the_kernel_gets_the_domain_when_asked_and_if_it_fits() {
        let fqdn = json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true});
        let kernel = |spec| kernel_hostname(&testing::pod(spec), &facts());
        assert_eq!(kernel(fqdn), Ok("h.s.default.svc.cluster.local".into()));
        assert_eq!(kernel(json!({"setHostnameAsFQDN": true})), Ok("web".into()));
        assert_eq!(kernel(json!({"subdomain": "s"})), Ok("web".into()));
        let long = json!({"hostname": "h".repeat(40), "subdomain": "s", "setHostnameAsFQDN": true});
        let h = "h".repeat(40);
        assert_eq!(
            kernel(long).unwrap_err().0,
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {h}.s.default.svc.cluster.local is too long \
                 (64 characters is the max, 68 characters requested)"
            )
        );
    }

    #[test]
    fn hosts_files() {
        let ips = ["10.1.0.2".to_string(), "fd00::2".to_string()];
        let plain = hosts_file(&testing::pod(json!({})), &facts(), &ips, "unused").unwrap();
        assert_eq!(
            plain,
            format!("# Kubernetes-managed hosts file.\n{FIXED_HOSTS}10.1.0.2\tweb\nfd00::2\tweb\n")
        );
        let aliased = testing::pod(json!({
            "subdomain": "s", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b.c"]}, {"ip": "::5", "hostnames": ["d"]}],
        }));
        assert_eq!(
            hosts_file(&aliased, &facts(), &ips[..1], "").unwrap(),
            format!(
                "# Kubernetes-managed hosts file.\n{FIXED_HOSTS}10.1.0.2\tweb.s.default.svc.cluster.local\tweb\n\n\
                 # Entries added by HostAliases.\n1.2.3.4\ta\tb.c\n::5\td\n"
            )
        );
        let host = testing::pod(json!({"hostNetwork": true, "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]}));
        assert_eq!(
            hosts_file(&host, &facts(), &ips, "127.0.0.1 localhost\n").unwrap(),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n\
             # Entries added by HostAliases.\n1.2.3.4\ta\n"
        );
    }
}
