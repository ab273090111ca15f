//! Addresses of pods: which are to be had, and who has them.
//!
//! A lease is a file named after the address, with the sandbox's id in it. It comes into being as a whole or not at all,
//! and only if there is none, so an address has one owner whatever happens to this process. The next address is looked for
//! behind the last one that was given out: clients that still know a pod that went do not meet another at once.
//!
//! Upstream: host-local (containernetworking/plugins).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::error::{PodNetworkError, Result, state};
use super::files;

/// The addresses of one family that a node's pods may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    net: IpNet,
}

impl Range {
    pub(super) fn new(net: IpNet) -> Result<Range> {
        let net = net.trunc();
        let host_bits = net.max_prefix_len() - net.prefix_len();
        if host_bits < 2 {
            let reason = "it has no room for a gateway and a pod";
            return Err(PodNetworkError::InvalidRange { range: net, reason });
        }
        Ok(Range { net })
    }

    pub(super) fn net(self) -> IpNet {
        self.net
    }

    /// The node's own address in it, the first.
    pub(super) fn gateway(self) -> IpAddr {
        from_number(number(self.net.network()) + 1, self.net)
    }

    fn last(self) -> IpAddr {
        match self.net {
            IpNet::V4(net) => from_number(number(net.broadcast().into()) - 1, self.net),
            IpNet::V6(net) => net.broadcast().into(),
        }
    }

    /// Pods' addresses from behind this one on, each once, around the end.
    fn after(self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let (first, end) = (number(self.gateway()) + 1, number(self.last()));
        let start = last.map_or(first, |last| number(last).saturating_add(1));
        let start = if (first..=end).contains(&start) { start } else { first };
        (start..=end).chain(first..start).map(move |n| from_number(n, self.net))
    }

    fn describe(self) -> String {
        format!("{}-{}", self.gateway(), self.last())
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// An address of the same family as the range.
fn from_number(number: u128, range: IpNet) -> IpAddr {
    match range {
        IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
        IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
    }
}

/// Who has which address.
pub(super) struct Leases {
    directory: PathBuf,
    owners: BTreeMap<IpAddr, String>,
    /// The address given out last, by family.
    last: BTreeMap<bool, IpAddr>,
}

impl Leases {
    pub(super) fn open(directory: PathBuf) -> Result<Leases> {
        files::make_directory(&directory)?;
        let mut owners = BTreeMap::new();
        for (name, content) in files::read_all(&directory)? {
            if let Ok(ip) = name.parse::<IpAddr>() {
                owners.insert(ip, content);
            }
        }
        let last = [false, true].into_iter().filter_map(|is_v6| {
            let text = std::fs::read_to_string(directory.join(last_file(is_v6))).ok()?;
            Some((is_v6, text.parse().ok()?))
        });
        let last = last.collect();
        Ok(Leases {
            directory,
            owners,
            last,
        })
    }

    /// The address of this range that the sandbox has, or a new one.
    pub(super) fn lease(&mut self, range: Range, sandbox: &str) -> Result<IpAddr> {
        let has = self.of(sandbox).find(|ip| range.net.contains(ip));
        if let Some(ip) = has {
            return Ok(ip);
        }
        let is_v6 = range.net.addr().is_ipv6();
        for ip in range.after(self.last.get(&is_v6).copied()) {
            if self.owners.contains_key(&ip) || !self.take(ip, sandbox)? {
                continue;
            }
            self.last.insert(is_v6, ip);
            let path = self.directory.join(last_file(is_v6));
            files::replace(&path, ip.to_string().as_bytes())?;
            return Ok(ip);
        }
        Err(PodNetworkError::Exhausted(range.describe()))
    }

    /// False if somebody else has it after all.
    fn take(&mut self, ip: IpAddr, sandbox: &str) -> Result<bool> {
        let path = self.path(ip);
        match files::create(&path, sandbox.as_bytes()) {
            Ok(()) => {
                self.owners.insert(ip, sandbox.to_string());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let owner = std::fs::read_to_string(&path).unwrap_or_default();
                self.owners.insert(ip, owner);
                Ok(false)
            }
            Err(error) => Err(state("create", &path)(error)),
        }
    }

    fn of<'a>(&'a self, sandbox: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let mine = self.owners.iter().filter(move |(_, owner)| *owner == sandbox);
        mine.map(|(ip, _)| *ip)
    }

    /// Frees what the sandbox has.
    pub(super) fn release(&mut self, sandbox: &str) -> Result<()> {
        let mine: Vec<IpAddr> = self.of(sandbox).collect();
        for ip in mine {
            files::remove(&self.path(ip))?;
            self.owners.remove(&ip);
        }
        Ok(())
    }

    /// Everybody who has an address.
    pub(super) fn owners(&self) -> impl Iterator<Item = &str> {
        self.owners.values().map(String::as_str)
    }

    fn path(&self, ip: IpAddr) -> PathBuf {
        self.directory.join(ip.to_string())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }
}

fn last_file(is_v6: bool) -> &'static Path {
    Path::new(if is_v6 { "last.v6" } else { "last.v4" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        Range::new(text.parse().unwrap()).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_go_round() {
        let folder = tempfile::tempdir().unwrap();
        let mut leases = Leases::open(folder.path().join("a")).unwrap();
        let small = range("10.0.0.0/29");
        assert_eq!(small.gateway(), ip("10.0.0.1"));
        let got: Vec<IpAddr> = (2..=6)
            .map(|n| leases.lease(small, &format!("s{n}")).unwrap())
            .collect();
        assert_eq!(
            got,
            ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"].map(ip)
        );
        assert_eq!(leases.lease(small, "s3").unwrap(), ip("10.0.0.3"), "it has one");
        let error = leases.lease(small, "s7").unwrap_err().to_string();
        assert_eq!(error, "no IP addresses available in range set: 10.0.0.1-10.0.0.6");
        leases.release("s6").unwrap();
        leases.release("s3").unwrap();
        leases.release("s3").unwrap();
        assert_eq!(
            leases.lease(small, "a").unwrap(),
            ip("10.0.0.3"),
            "behind the last, around the end"
        );
        assert_eq!(leases.lease(small, "b").unwrap(), ip("10.0.0.6"));
    }

    #[test]
    fn leases_and_the_place_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let wide = range("fd00::/64");
        let mut leases = Leases::open(path.clone()).unwrap();
        assert_eq!(leases.lease(wide, "one").unwrap(), ip("fd00::2"));
        assert_eq!(leases.lease(wide, "two").unwrap(), ip("fd00::3"));
        leases.release("two").unwrap();
        drop(leases);
        let mut leases = Leases::open(path.clone()).unwrap();
        assert_eq!(leases.owners().collect::<Vec<_>>(), ["one"]);
        assert_eq!(leases.lease(wide, "three").unwrap(), ip("fd00::4"), "not at once again");
        // Another process took one meanwhile.
        std::fs::write(path.join("fd00::5"), "theirs").unwrap();
        assert_eq!(leases.lease(wide, "four").unwrap(), ip("fd00::6"));
    }

    #[test]
    fn ranges_without_room_are_refused() {
        for small in ["10.0.0.0/31", "10.0.0.1/32", "fd00::/127"] {
            assert!(Range::new(small.parse().unwrap()).is_err(), "{small}");
        }
        assert_eq!(range("10.0.0.0/30").after(None).collect::<Vec<_>>(), [ip("10.0.0.2")]);
        assert_eq!(range("10.0.0.0/30").after(Some(ip("10.9.9.9"))).count(), 1);
    }

    proptest::proptest! {
        /// Whatever is leased, released and restarted: nobody shares an address, and it is one of the range.
        #[test]
        fn nobody_shares_an_address(steps in proptest::collection::vec((0u8..3, 0u8..12), 1..60)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a");
            let small = range("10.1.0.0/29");
            let mut leases = Leases::open(path.clone()).unwrap();
            let mut model: BTreeMap<String, IpAddr> = BTreeMap::new();
            for (action, who) in steps {
                let who = format!("s{who}");
                match action {
                    0 => match leases.lease(small, &who) {
                        Ok(ip) => {
                            proptest::prop_assert!(small.net().contains(&ip) && ip != small.gateway());
                            let others = model.iter().filter(|(owner, _)| **owner != who);
                            proptest::prop_assert!(others.into_iter().all(|(_, has)| *has != ip));
                            proptest::prop_assert!(model.insert(who, ip).is_none_or(|had| had == ip));
                        }
                        Err(_) => proptest::prop_assert_eq!(model.len(), 5),
                    },
                    1 => {
                        leases.release(&who).unwrap();
                        model.remove(&who);
                    }
                    _ => leases = Leases::open(path.clone()).unwrap(),
                }
                proptest::prop_assert_eq!(leases.len(), model.len());
            }
        }
    }
}
