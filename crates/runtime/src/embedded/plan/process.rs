//! What a container runs: command, environment, working directory.

use crate::cri::messages::ContainerConfig;
use crate::embedded::interfaces::ImageDefaults;

use super::{PlanError, Result};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The pod's command replaces the image's entry point and arguments, its arguments only the arguments.
pub(crate) fn args(config: &ContainerConfig, image: &ImageDefaults) -> Result<Vec<String>> {
    let (mut command, mut args) = (config.command.clone(), config.args.clone());
    if command.is_empty() {
        if args.is_empty() {
            args = image.cmd.clone();
        }
        if image.entrypoint.len() != 1 || !image.entrypoint[0].is_empty() {
            command = image.entrypoint.clone();
        }
    }
    command.append(&mut args);
    match command.is_empty() {
        true => Err(PlanError("no command specified".to_string())),
        false => Ok(command),
    }
}

/// The pod's variables replace the image's; `HOME` is the user's unless somebody says otherwise.
pub(crate) fn env(config: &ContainerConfig, image: &ImageDefaults, hostname: &str, home: &str) -> Vec<String> {
    let mut env = vec![DEFAULT_PATH.to_string(), format!("HOSTNAME={hostname}")];
    if config.tty {
        env.push("TERM=xterm".to_string());
    }
    for variable in &image.env {
        set(&mut env, variable.clone());
    }
    for variable in &config.envs {
        set(
            &mut env,
            format!("{}={}", variable.key, String::from_utf8_lossy(&variable.value)),
        );
    }
    if !env.iter().any(|variable| variable.starts_with("HOME=")) {
        env.push(format!("HOME={home}"));
    }
    env
}

fn set(env: &mut Vec<String>, variable: String) {
    let name = variable.split('=').next().unwrap_or_default();
    match env.iter_mut().find(|old| old.split('=').next() == Some(name)) {
        Some(old) => *old = variable,
        None => env.push(variable),
    }
}

pub(crate) fn cwd(config: &ContainerConfig, image: &ImageDefaults) -> String {
    let dirs = [&config.working_dir, &image.working_dir];
    let dir = dirs.into_iter().find(|dir| !dir.is_empty()).map_or("/", String::as_str);
    match dir.starts_with('/') {
        true => dir.to_string(),
        false => format!("/{dir}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::KeyValue;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|t| t.to_string()).collect()
    }

    #[test]
    fn commands_replace_the_images() {
        let image = ImageDefaults {
            entrypoint: texts(&["entry"]),
            cmd: texts(&["cmd"]),
            ..ImageDefaults::default()
        };
        let run = |command: &[&str], list: &[&str], image: &ImageDefaults| {
            let config = ContainerConfig {
                command: texts(command),
                args: texts(list),
                ..ContainerConfig::default()
            };
            args(&config, image)
        };
        assert_eq!(run(&[], &[], &image).unwrap(), ["entry", "cmd"]);
        assert_eq!(run(&[], &["a"], &image).unwrap(), ["entry", "a"]);
        assert_eq!(run(&["c"], &[], &image).unwrap(), ["c"]);
        assert_eq!(run(&["c"], &["a"], &image).unwrap(), ["c", "a"]);
        assert!(run(&[], &[], &ImageDefaults::default()).is_err());
    }

    #[test]
    fn the_pods_variables_win() {
        let image = ImageDefaults {
            env: texts(&["PATH=/bin", "A=image", "EMPTY="]),
            ..ImageDefaults::default()
        };
        let mut config = ContainerConfig {
            tty: true,
            envs: vec![KeyValue {
                key: "A".to_string(),
                value: b"pod=x".to_vec(),
            }],
            ..ContainerConfig::default()
        };
        assert_eq!(
            env(&config, &image, "h", "/root"),
            [
                "PATH=/bin",
                "HOSTNAME=h",
                "TERM=xterm",
                "A=pod=x",
                "EMPTY=",
                "HOME=/root"
            ]
        );
        config.envs[0].key = "HOME".to_string();
        let with_home = env(&config, &image, "h", "/root");
        assert_eq!(
            with_home.iter().filter(|v| v.starts_with("HOME=")).collect::<Vec<_>>(),
            ["HOME=pod=x"]
        );
    }

    #[test]
    fn working_directories() {
        let image = |dir: &str| ImageDefaults {
            working_dir: dir.to_string(),
            ..ImageDefaults::default()
        };
        let config = |dir: &str| ContainerConfig {
            working_dir: dir.to_string(),
            ..ContainerConfig::default()
        };
        assert_eq!(cwd(&config(""), &image("")), "/");
        assert_eq!(cwd(&config(""), &image("srv")), "/srv");
        assert_eq!(cwd(&config("/a"), &image("/b")), "/a");
    }
}
