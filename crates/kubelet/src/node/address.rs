//! The default name and IP address of this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;

/// Why a name or an address cannot be this node's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("failed to get the hostname: {0}")]
    Hostname(nix::errno::Errno),
    #[error("empty hostname is invalid")]
    EmptyName,
    #[error("{name:?} is not a valid node name: {reason}")]
    InvalidName { name: String, reason: String },
    #[error("nodeIP can't be {0} address")]
    Unusable(&'static str),
    #[error("node IP: {:?} not found in the host's network interfaces", .0.to_string())]
    NotFound(IpAddr),
    #[error("could not parse {0:?} as an IP address")]
    Parse(String),
    #[error("must contain either a single IP or a dual-stack pair of IPs")]
    NotDualStack,
}

/// The host's name as Kubernetes takes it: trimmed, in lower case.
pub fn node_name(given: Option<&str>) -> Result<String, AddressError> {
    let name = match given {
        Some(name) => name.to_string(),
        None => nix::unistd::gethostname()
            .map_err(AddressError::Hostname)?
            .to_string_lossy()
            .into_owned(),
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        return Err(AddressError::EmptyName);
    }
    match orlop_api::names::dns_subdomain(&name).into_iter().next() {
        None => Ok(name),
        Some(reason) => Err(AddressError::InvalidName { name, reason }),
    }
}

/// The address that packets to the rest of the world would carry; else that of some interface; else the loopback
/// address, good enough for a cluster of this machine alone.
pub fn default_address() -> IpAddr {
    let mut usable = usable_addresses().into_iter();
    usable.next().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// One of the other family than this, for a dual-stack node, chosen in the same way; none of these ranges, which are the
/// pods'.
pub fn further_address(than: IpAddr, except: &[IpNet]) -> Option<IpAddr> {
    let is_other = |ip: &IpAddr| ip.is_ipv4() != than.is_ipv4() && !except.iter().any(|range| range.contains(ip));
    usable_addresses().into_iter().find(is_other)
}

/// Addresses that the node may go by, the best one first.
fn usable_addresses() -> Vec<IpAddr> {
    let outside: [(SocketAddr, SocketAddr); 2] = [
        (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (Ipv4Addr::new(192, 0, 2, 1), 9).into(),
        ),
        (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            ("2001:db8::1".parse::<Ipv6Addr>().expect("an address"), 9).into(),
        ),
    ];
    let interfaces = interface_addresses();
    // Connecting a datagram socket sends nothing: it only asks which way packets would go.
    let by_route = outside.into_iter().filter_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    let chosen = by_route.chain(interfaces.iter().copied().filter(IpAddr::is_ipv4));
    let chosen = chosen.chain(interfaces.iter().copied().filter(IpAddr::is_ipv6));
    chosen.filter(|ip| check(*ip, &interfaces).is_ok()).collect()
}

/// All addresses of this machine's interfaces.
pub fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    addresses.collect()
}

/// Whether a node may go by this address.
pub fn check(ip: IpAddr, interfaces: &[IpAddr]) -> Result<(), AddressError> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let wrong = match ip {
        ip if ip.is_loopback() => "loopback",
        ip if ip.is_multicast() => "a multicast",
        _ if link_local => "a link-local unicast",
        ip if ip.is_unspecified() => "an all zeros",
        ip if !interfaces.contains(&ip) => {
            return Err(AddressError::NotFound(ip));
        }
        _ => return Ok(()),
    };
    Err(AddressError::Unusable(wrong))
}

/// `--node-ip`: one address, or two of different families; unspecified ones are looked up.
pub fn parse_node_ips(text: &str) -> Result<Vec<IpAddr>, AddressError> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let ip: IpAddr = part.parse().map_err(|_| AddressError::Parse(part.to_string()))?;
        all.push(if ip.is_unspecified() { default_address() } else { ip });
    }
    match all.as_slice() {
        [] | [_] => Ok(all),
        [a, b] if a.is_ipv4() != b.is_ipv4() => Ok(all),
        _ => Err(AddressError::NotDualStack),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes() {
        assert_eq!(node_name(Some(" Node-1.Example ")), Ok("node-1.example".to_string()));
        assert!(node_name(Some(" ")).is_err());
        assert!(
            node_name(Some("a_b"))
                .unwrap_err()
                .to_string()
                .starts_with("\"a_b\" is not a valid node name")
        );
    }

    #[test]
    fn addresses_a_node_may_have() {
        let own: IpAddr = "10.1.2.3".parse().unwrap();
        let cases = [
            ("10.1.2.3", None),
            ("127.0.0.1", Some("nodeIP can't be loopback address")),
            ("224.0.0.1", Some("nodeIP can't be a multicast address")),
            ("169.254.1.1", Some("nodeIP can't be a link-local unicast address")),
            ("fe80::1", Some("nodeIP can't be a link-local unicast address")),
            ("::", Some("nodeIP can't be an all zeros address")),
            (
                "10.9.9.9",
                Some("node IP: \"10.9.9.9\" not found in the host's network interfaces"),
            ),
        ];
        for (ip, expected) in cases {
            let problem = check(ip.parse().unwrap(), &[own]).err().map(|error| error.to_string());
            assert_eq!(problem.as_deref(), expected, "{ip}");
        }
        // Whatever this machine's network is, there is an address to go by; and there is none of everybody's.
        let own = default_address();
        let everybody = ["0.0.0.0/0", "::/0"].map(|range| range.parse().unwrap());
        assert_eq!(further_address(own, &everybody), None);
    }

    #[test]
    fn node_ips() {
        assert_eq!(parse_node_ips("10.0.0.1, fd00::1").unwrap().len(), 2);
        assert_eq!(parse_node_ips("").unwrap().len(), 0);
        for wrong in ["10.0.0.1,10.0.0.2", "x", "10.0.0.1,fd00::1,10.0.0.3"] {
            assert!(parse_node_ips(wrong).is_err(), "{wrong}");
        }
    }
}
