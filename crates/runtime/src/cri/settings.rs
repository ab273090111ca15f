//! How the runtime is set up, as far as the agent has to follow. containerd tells its configuration when asked for its
//! status in detail; others may not, and then nothing is known.

use std::path::PathBuf;

use serde_json::Value;

use super::CriRuntime;
use super::messages::{CgroupDriver, StatusRequest, StatusResponse};
use crate::Result;

/// What is known of a runtime's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Where it looks for the pod network's configuration; `/etc/cni/net.d` is usual.
    pub cni_directory: Option<PathBuf>,
    /// Who makes cgroups, for runtimes that have no call to ask with.
    pub cgroup_driver: Option<CgroupDriver>,
}

impl CriRuntime {
    pub async fn settings(&self) -> Result<Settings> {
        let status: StatusResponse = self
            .ask("/runtime.v1.RuntimeService/Status", StatusRequest { verbose: true })
            .await?;
        let config = status.info.get("config").map_or("", String::as_str);
        Ok(parse(&serde_json::from_str(config).unwrap_or_default()))
    }
}

fn parse(config: &Value) -> Settings {
    let containerd = &config["containerd"];
    let default_runtime = containerd["defaultRuntimeName"].as_str().unwrap_or_default();
    let runtime = &containerd["runtimes"][default_runtime];
    // Without the option runc makes cgroups itself.
    let systemd = runtime["options"]["SystemdCgroup"].as_bool().unwrap_or(false);
    let driver = if systemd {
        CgroupDriver::Systemd
    } else {
        CgroupDriver::Cgroupfs
    };
    let directory = config["cni"]["confDir"].as_str().filter(|path| path.starts_with('/'));
    Settings {
        cni_directory: directory.map(PathBuf::from),
        cgroup_driver: runtime.is_object().then_some(driver),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_containerd_and_of_others() {
        let with = |options: Value| {
            parse(&json!({
                "containerd": { "defaultRuntimeName": "runc", "runtimes": { "runc": { "options": options } } },
                "cni": { "confDir": "/etc/cni/net.d" },
            }))
        };
        let driver = |options| with(options).cgroup_driver;
        assert_eq!(driver(json!({ "SystemdCgroup": true })), Some(CgroupDriver::Systemd));
        assert_eq!(driver(json!({ "SystemdCgroup": false })), Some(CgroupDriver::Cgroupfs));
        assert_eq!(driver(Value::Null), Some(CgroupDriver::Cgroupfs));
        assert_eq!(with(Value::Null).cni_directory, Some(PathBuf::from("/etc/cni/net.d")));
        for unknown in [
            Value::Null,
            json!({}),
            json!([]),
            json!({ "containerd": 1, "cni": { "confDir": "" } }),
        ] {
            assert_eq!(parse(&unknown), Settings::default());
        }
    }
}
