//! How the runtime is set up, as far as the kubelet has to follow. containerd tells its configuration when asked for its
//! status in detail; others may not, and then nothing is known.

use std::path::PathBuf;

use serde_json::Value;

use super::CriRuntime;
use super::messages::{CgroupDriver, StatusRequest, StatusResponse};
use crate::Result;
use crate::cni::Folders;

/// What is known of a runtime's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub network: Folders,
    /// Who makes cgroups, for runtimes that have no call to ask with.
    pub cgroup_driver: Option<CgroupDriver>,
}

impl CriRuntime {
    pub async fn settings(&self) -> Result<Settings> {
        let status: StatusResponse = self
            .ask("/runtime.v1.RuntimeService/Status", StatusRequest { verbose: true })
            .await?;
        let info = |name: &str| -> Value {
            let text = status.info.get(name).map_or("", String::as_str);
            serde_json::from_str(text).unwrap_or_default()
        };
        Ok(parse(&info("config"), &info("cniconfig")))
    }
}

/// containerd reports its configuration, and where its CNI library looks.
fn parse(config: &Value, library: &Value) -> Settings {
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
    let cni = &config["cni"];
    let path = |value: &Value| value.as_str().filter(|path| path.starts_with('/')).map(PathBuf::from);
    let paths = |value: &Value| -> Vec<PathBuf> { value.as_array().into_iter().flatten().filter_map(path).collect() };
    // Older versions know one directory of plugins, newer ones several.
    let plugins = [
        paths(&library["PluginDirs"]),
        paths(&cni["binDirs"]),
        path(&cni["binDir"]).into_iter().collect(),
    ];
    Settings {
        network: Folders {
            configuration: path(&library["PluginConfDir"]).or_else(|| path(&cni["confDir"])),
            plugins: plugins
                .into_iter()
                .find(|folders| !folders.is_empty())
                .unwrap_or_default(),
        },
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
            parse(
                &json!({
                    "containerd": { "defaultRuntimeName": "runc", "runtimes": { "runc": { "options": options } } },
                    "cni": { "confDir": "/etc/cni/net.d", "binDir": "/opt/cni/bin" },
                }),
                &Value::Null,
            )
        };
        let driver = |options| with(options).cgroup_driver;
        assert_eq!(driver(json!({ "SystemdCgroup": true })), Some(CgroupDriver::Systemd));
        assert_eq!(driver(json!({ "SystemdCgroup": false })), Some(CgroupDriver::Cgroupfs));
        assert_eq!(driver(Value::Null), Some(CgroupDriver::Cgroupfs));
        let folders = |configuration: &str, plugins: &[&str]| Folders {
            configuration: Some(configuration.into()),
            plugins: plugins.iter().map(PathBuf::from).collect(),
        };
        assert_eq!(with(Value::Null).network, folders("/etc/cni/net.d", &["/opt/cni/bin"]));
        let config = json!({ "cni": { "confDir": "/x", "binDirs": ["/y", "/z"] } });
        assert_eq!(parse(&config, &Value::Null).network, folders("/x", &["/y", "/z"]));
        let library = json!({ "PluginDirs": ["/usr/lib/cni"], "PluginConfDir": "/used" });
        assert_eq!(parse(&config, &library).network, folders("/used", &["/usr/lib/cni"]));
        for unknown in [
            Value::Null,
            json!({}),
            json!([]),
            json!({ "containerd": 1, "cni": { "confDir": "" } }),
        ] {
            assert_eq!(parse(&unknown, &unknown), Settings::default());
        }
    }
}
