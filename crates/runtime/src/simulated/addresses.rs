//! Addresses of simulated pods, from the node's range.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One range; addresses are handed out in turn, so that one that was given back rests for a while.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    v6: bool,
    /// The range's first address.
    base: u128,
    /// How many addresses it has.
    size: u128,
    cursor: u128,
    used: BTreeSet<u128>,
}

impl Pool {
    /// From `10.1.2.0/24` or `fd00::/64`; `None` if it is no such thing.
    pub(super) fn parse(range: &str) -> Option<Pool> {
        let (address, bits) = range.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let bits: u32 = bits.parse().ok()?;
        let (v6, base, width) = match address {
            IpAddr::V4(a) => (false, u128::from(u32::from(a)), 32),
            IpAddr::V6(a) => (true, u128::from(a), 128),
        };
        // No node has more than 2^64 pods; the bound keeps sizes within the type.
        let host_bits = width.max(bits).checked_sub(bits).filter(|_| bits <= width)?.min(64);
        let size = 1u128 << host_bits;
        Some(Pool {
            v6,
            base: base & !(size - 1),
            size,
            cursor: 1,
            used: BTreeSet::new(),
        })
    }

    /// The next free address. The first two (the network's, the gateway's) and the last are never given; `None`: all
    /// are taken.
    pub(super) fn take(&mut self) -> Option<IpAddr> {
        let usable = self.size.checked_sub(3).filter(|n| *n > 0)?;
        if self.used.len() as u128 >= usable {
            return None;
        }
        loop {
            self.cursor = if self.cursor + 2 < self.size {
                self.cursor + 1
            } else {
                2
            };
            if self.used.insert(self.cursor) {
                return Some(self.address(self.cursor));
            }
        }
    }

    pub(super) fn give_back(&mut self, address: IpAddr) {
        let number = match address {
            IpAddr::V4(a) if !self.v6 => u128::from(u32::from(a)),
            IpAddr::V6(a) if self.v6 => u128::from(a),
            _ => return,
        };
        if let Some(offset) = number.checked_sub(self.base) {
            self.used.remove(&offset);
        }
    }

    fn address(&self, offset: u128) -> IpAddr {
        let number = self.base + offset;
        if self.v6 {
            IpAddr::V6(Ipv6Addr::from(number))
        } else {
            IpAddr::V4(Ipv4Addr::from(
                u32::try_from(number).expect("a v4 range stays within 32 bits"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_every_address_once() {
        let mut pool = Pool::parse("10.0.0.9/29").unwrap();
        let taken: Vec<String> = std::iter::from_fn(|| pool.take()).map(|a| a.to_string()).collect();
        assert_eq!(taken, ["10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.14"]);
        pool.give_back("10.0.0.12".parse().unwrap());
        assert_eq!(pool.take(), Some("10.0.0.12".parse().unwrap()));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn both_families_and_odd_sizes() {
        assert_eq!(
            Pool::parse("fd00::/64").unwrap().take(),
            Some("fd00::2".parse().unwrap())
        );
        assert_eq!(
            Pool::parse("0.0.0.0/0").unwrap().take(),
            Some("0.0.0.2".parse().unwrap())
        );
        assert_eq!(Pool::parse("10.0.0.0/31").unwrap().take(), None);
        assert_eq!(Pool::parse("10.0.0.0/32").unwrap().take(), None);
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129", "10.0.0.0/-1"] {
            assert!(Pool::parse(wrong).is_none(), "{wrong}");
        }
    }
}
