//! A network of a test's own, for what changes rules, routes or addresses: nobody else's are touched, and all goes with
//! the test.

use std::path::Path;

use nix::sched::{CloneFlags, unshare};

use crate::shell;

/// The machine's address in it.
pub const HOST_ADDRESS: &str = "172.31.77.2";

/// Moves the calling thread into a new network namespace with loopback and one address. Whatever it starts from then on,
/// threads and processes, is there too; threads that run already are not.
pub fn enter_private_network() {
    for tool in ["ip", "iptables", "nft"] {
        shell::require(tool);
    }
    unshare(CloneFlags::CLONE_NEWNET).expect("network namespaces need root");
    let line = format!(
        "ip link set lo up && ip link add node0 type veth peer name node1 && ip link set node1 up && ip address add {HOST_ADDRESS}/24 dev node0 \
         && ip link set node0 up && ip route add default dev node0 && echo 1 > /proc/sys/net/ipv4/ip_forward"
    );
    let directory = std::env::temp_dir();
    shell::run(shell::command(&line, &directory, Path::new("/nonexistent")), &line, "").ok();
}

/// Runs an asynchronous test with threads that are all in the calling thread's network.
pub fn block_on(test: impl Future<Output = ()>) {
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    threads.expect("a runtime").block_on(test);
}
