//! The rules of the service proxy, in whatever mode it was.

use std::io;

use orlop_netlink::nft::{delete_table, is_bare};
use orlop_netlink::{Connection, Family};
use orlop_proxy::{Settings, engine};

use super::{Purge, Removal};

pub(super) const REMOVAL: Removal = Removal {
    what: "proxy rules",
    run: |purge| Box::pin(run(purge)),
};

/// Of iptables' nf_tables variant.
const TABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];

async fn run(purge: &mut Purge) {
    if !purge.machine.proxy {
        return;
    }
    let runtime = tokio::runtime::Handle::current();
    let cleaned = tokio::task::spawn_blocking(move || engine::clean_up(&Settings::default(), &runtime)).await;
    match cleaned {
        Ok(problems) if problems.is_empty() => purge.removed("proxy rules"),
        Ok(problems) => purge.failed("proxy rules", problems.join("; ")),
        Err(error) => purge.failed("proxy rules", error),
    }
    match remove_bare(&purge.machine.made_tables) {
        Ok(removed) if removed.is_empty() => {}
        Ok(removed) => purge.removed(format!("empty tables of iptables: {}", removed.join(", "))),
        Err(error) => purge.failed("empty tables of iptables", error),
    }
}

/// Those that iptables would make. None where there are no nf_tables.
pub(crate) fn missing_tables() -> Vec<String> {
    let Ok(mut connection) = Connection::netfilter() else {
        return vec![];
    };
    let missing = |(family, name): &(Family, &str)| matches!(is_bare(&mut connection, *family, name), Ok(None));
    all_tables()
        .filter(missing)
        .map(|(family, name)| shown(family, name))
        .collect()
}

/// Removes those of these in which nobody has put anything.
fn remove_bare(made: &[String]) -> io::Result<Vec<String>> {
    let mut connection = Connection::netfilter()?;
    let mut removed = vec![];
    for (family, name) in all_tables() {
        let table = shown(family, name);
        if made.contains(&table) && is_bare(&mut connection, family, name)? == Some(true) {
            delete_table(&mut connection, family, name)?;
            removed.push(table);
        }
    }
    Ok(removed)
}

fn all_tables() -> impl Iterator<Item = (Family, &'static str)> {
    let families = Family::supported().iter();
    families.flat_map(|family| TABLES.map(|name| (*family, name)))
}

fn shown(family: Family, name: &str) -> String {
    let family = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    format!("{family} {name}")
}
