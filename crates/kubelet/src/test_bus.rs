//! A D-Bus of its own for tests of those who speak to systemd and logind.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use zbus::Connection;
use zbus::connection::Builder;

/// Anybody may do anything on it.
const CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>custom</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/>
<allow send_type="signal"/><allow receive_sender="*"/></policy></busconfig>"#;

/// It ends with the value.
pub(crate) struct TestBus {
    pub address: String,
    daemon: Child,
}

impl Drop for TestBus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl TestBus {
    /// With its socket in the directory, and a first connection to it.
    pub(crate) async fn start(directory: &Path) -> (TestBus, Connection) {
        let (socket, config) = (directory.join("bus"), directory.join("bus.conf"));
        std::fs::write(&config, CONFIG.replace("SOCKET", socket.to_str().unwrap())).unwrap();
        let daemon = Command::new("dbus-daemon")
            .arg("--nofork")
            .arg(format!("--config-file={}", config.display()))
            .spawn()
            .expect("dbus-daemon is needed (tools/install-test-tools)");
        let address = format!("unix:path={}", socket.display());
        let connected = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                match Builder::address(address.as_str()).build().await {
                    Ok(bus) => return bus,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        let connection = connected.await.expect("dbus-daemon does not come up");
        (TestBus { address, daemon }, connection)
    }
}
