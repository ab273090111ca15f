//! The pod network of a node whose runtime calls CNI plugins (containerd, CRI-O): the configuration they read.
//!
//! One bridge per node holds all its pods; addresses come from the node's range (host-local), host ports are mapped
//! (portmap). The loopback plugin is called by runtimes on their own and needs no configuration. Runtimes notice a new
//! file within a moment, and their condition NetworkReady turns true.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The network's name, which also marks our own file.
pub const NAME: &str = "orlop";

/// Runtimes take the first file in the order of names.
pub const FILE: &str = "10-orlop.conflist";

/// Where a runtime looks for pod networks, as far as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// Of the network's configuration; `/etc/cni/net.d` is usual.
    pub configuration: Option<PathBuf>,
    /// Of the plugins' programs; `/opt/cni/bin` is usual.
    pub plugins: Vec<PathBuf>,
}

/// What a node's pod network is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The node's pod ranges, such as `10.244.1.0/24`; one of each address family at most.
    pub ranges: Vec<String>,
    pub bridge: String,
    /// `None`: what the kernel gives a new interface. See [`host_mtu`].
    pub mtu: Option<u32>,
    /// Where taken addresses are noted; `None` for the plugin's own choice, `/var/lib/cni/networks`.
    pub data_directory: Option<PathBuf>,
}

impl Network {
    /// With a bridge of its own: one with an address of another range would not be taken by the plugin.
    pub fn new(ranges: impl IntoIterator<Item = impl Into<String>>) -> Network {
        let ranges: Vec<String> = ranges.into_iter().map(Into::into).collect();
        Network {
            bridge: bridge_of(ranges.first().map_or("", String::as_str)),
            ranges,
            mtu: None,
            data_directory: None,
        }
    }
}

/// Such as `orlop-0af40100` for 10.244.1.0/24: interfaces have 15 characters at most.
fn bridge_of(range: &str) -> String {
    let address = range.split('/').next().and_then(|address| address.parse().ok());
    let number = match address {
        None => 0,
        Some(IpAddr::V4(address)) => address.to_bits(),
        Some(IpAddr::V6(address)) => {
            let bits = address.to_bits();
            [0, 32, 64, 96]
                .iter()
                .fold(0, |all, shift| all ^ (bits >> shift) as u32)
        }
    };
    format!("orlop-{number:08x}")
}

/// The outcome of writing the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    New,
    Unchanged,
    /// Somebody else's network is configured in this file: it stays, and ours is not written.
    SomebodyElses(PathBuf),
}

/// What is wrong with a pod network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    #[error("{0:?} is not a valid CIDR (example: 10.244.1.0/24)")]
    InvalidCidr(String),
    #[error("a pod network requires at least one CIDR")]
    NoCidr,
}

/// The configuration as a file for CNI.
pub fn render(network: &Network) -> Result<String, NetworkError> {
    let mut ranges = vec![];
    let mut routes = vec![];
    for range in &network.ranges {
        let v6 = family(range).ok_or_else(|| NetworkError::InvalidCidr(range.clone()))?;
        ranges.push(json!([{ "subnet": range }]));
        routes.push(json!({ "dst": if v6 { "::/0" } else { "0.0.0.0/0" } }));
    }
    if ranges.is_empty() {
        return Err(NetworkError::NoCidr);
    }
    let mut addresses = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
    if let Some(directory) = &network.data_directory {
        addresses["dataDir"] = json!(directory);
    }
    let mut bridge = json!({
        "type": "bridge",
        "bridge": network.bridge,
        "isGateway": true,
        "ipMasq": true,
        // A pod may reach itself through its service's address.
        "hairpinMode": true,
        "ipam": addresses,
    });
    if let Some(mtu) = network.mtu {
        bridge["mtu"] = json!(mtu);
    }
    let plugins = json!([bridge, { "type": "portmap", "capabilities": { "portMappings": true } }]);
    let list = json!({ "cniVersion": "0.4.0", "name": NAME, "plugins": plugins });
    Ok(format!("{list:#}\n"))
}

/// Whether a range is of IPv6; `None` if it is no range.
fn family(range: &str) -> Option<bool> {
    let (address, bits) = range.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    (bits <= most).then_some(address.is_ipv6())
}

/// Puts the configuration into the directory where the runtime looks for it, which is made if need be. The file is
/// there as a whole or not at all, and a network that somebody else configured stays.
pub fn write(directory: &Path, network: &Network) -> io::Result<Written> {
    let text = render(network).map_err(io::Error::other)?;
    std::fs::create_dir_all(directory)?;
    if let Some(path) = somebody_elses(directory)? {
        return Ok(Written::SomebodyElses(path));
    }
    let path = directory.join(FILE);
    if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
        return Ok(Written::Unchanged);
    }
    // Runtimes look at .conf, .conflist and .json only.
    let unfinished = directory.join(format!(".{FILE}.new"));
    std::fs::write(&unfinished, text)?;
    std::fs::rename(&unfinished, &path)?;
    Ok(Written::New)
}

/// Takes our own configuration out of a directory. The file and the bridge that it named, if it was there.
pub fn remove(directory: &Path) -> io::Result<Option<(PathBuf, Option<String>)>> {
    let path = directory.join(FILE);
    if !is_ours(&path) {
        return Ok(None);
    }
    let config: Value = serde_json::from_slice(&std::fs::read(&path)?).map_err(io::Error::other)?;
    std::fs::remove_file(&path)?;
    let bridge = config["plugins"][0]["bridge"].as_str().map(String::from);
    Ok(Some((path, bridge)))
}

/// The first configuration that is not ours.
fn somebody_elses(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let read = path
            .extension()
            .is_some_and(|e| e == "conf" || e == "conflist" || e == "json");
        if read && !is_ours(&path) {
            found.push(path);
        }
    }
    Ok(found.into_iter().min())
}

/// By its name in the directory and its name inside.
fn is_ours(path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| name == FILE);
    let text = std::fs::read(path).unwrap_or_default();
    named && serde_json::from_slice::<Value>(&text).is_ok_and(|config| config["name"] == NAME)
}

/// The largest packet of the interface that leads out of this machine: more would not get through from a pod.
pub fn host_mtu() -> Option<u32> {
    let routes = std::fs::read_to_string("/proc/net/route").ok()?;
    let interface = default_interface(&routes)?;
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?;
    mtu.trim().parse().ok()
}

/// Of the kernel's table: the interface of the default route with the lowest metric.
fn default_interface(routes: &str) -> Option<&str> {
    let rows = routes
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let defaults = rows.filter(|row| row.len() > 7 && row[1] == "00000000" && row[7] == "00000000");
    let best = defaults.min_by_key(|row| row[6].parse::<u32>().unwrap_or(u32::MAX));
    best.map(|row| row[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(network: &Network) -> Value {
        serde_json::from_str(&render(network).unwrap()).unwrap()
    }

    #[test]
    fn one_range() {
        let list = rendered(&Network::new(["10.244.1.0/24"]));
        assert_eq!(
            list,
            json!({
                "cniVersion": "0.4.0",
                "name": "orlop",
                "plugins": [
                    {
                        "type": "bridge",
                        "bridge": "orlop-0af40100",
                        "isGateway": true,
                        "ipMasq": true,
                        "hairpinMode": true,
                        "ipam": {
                            "type": "host-local",
                            "ranges": [[{ "subnet": "10.244.1.0/24" }]],
                            "routes": [{ "dst": "0.0.0.0/0" }],
                        },
                    },
                    { "type": "portmap", "capabilities": { "portMappings": true } },
                ],
            })
        );
    }

    #[test]
    fn two_families_and_settings() {
        let network = Network {
            mtu: Some(1450),
            bridge: "br7".to_string(),
            data_directory: Some(PathBuf::from("/x")),
            ..Network::new(["10.244.1.0/24", "fd00:1::/64"])
        };
        let bridge = &rendered(&network)["plugins"][0];
        assert_eq!(bridge["mtu"], 1450);
        assert_eq!(bridge["bridge"], "br7");
        assert_eq!(bridge["ipam"]["dataDir"], "/x");
        assert_eq!(
            bridge["ipam"]["ranges"],
            json!([[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:1::/64" }]])
        );
        assert_eq!(
            bridge["ipam"]["routes"],
            json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])
        );
    }

    #[test]
    fn bad_ranges_are_named() {
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/200", "ten/8"] {
            assert!(
                render(&Network::new([wrong]))
                    .unwrap_err()
                    .to_string()
                    .contains(&format!("{wrong:?}"))
            );
        }
        assert!(render(&Network::new([""; 0])).is_err());
    }

    #[test]
    fn writes_once_and_follows_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.d");
        let network = Network::new(["10.244.1.0/24"]);
        assert_eq!(write(&path, &network).unwrap(), Written::New);
        assert_eq!(write(&path, &network).unwrap(), Written::Unchanged);
        assert_eq!(write(&path, &Network::new(["10.244.2.0/24"])).unwrap(), Written::New);
        assert!(
            std::fs::read_to_string(path.join(FILE))
                .unwrap()
                .contains("10.244.2.0/24")
        );
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
    }

    #[test]
    fn leaves_somebody_elses_network_alone() {
        for (name, text) in [
            ("05-calico.conflist", r#"{"name":"calico"}"#),
            ("99-x.conf", "not even JSON"),
            // Somebody took our name for another network.
            (FILE, r#"{"name":"flannel"}"#),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let theirs = directory.path().join(name);
            std::fs::write(&theirs, text).unwrap();
            std::fs::write(directory.path().join("readme.txt"), "").unwrap();
            let written = write(directory.path(), &Network::new(["10.244.1.0/24"])).unwrap();
            assert_eq!(written, Written::SomebodyElses(theirs.clone()));
            assert_eq!(std::fs::read_to_string(theirs).unwrap(), text);
        }
    }

    #[test]
    fn the_interface_that_leads_out() {
        let header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let row = |name: &str, to: &str, metric: u32, mask: &str| {
            format!("{name}\t{to}\t0102A8C0\t0003\t0\t0\t{metric}\t{mask}\t0\t0\t0\n")
        };
        let routes = [
            row("wlan0", "00000000", 600, "00000000"),
            row("eth0", "00000000", 100, "00000000"),
            row("eth1", "0002A8C0", 0, "00FFFFFF"),
        ];
        assert_eq!(default_interface(&format!("{header}{}", routes.concat())), Some("eth0"));
        assert_eq!(default_interface(header), None);
    }
}
