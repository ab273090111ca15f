//! Lifecycle hooks: what a container asks for right after its start and right before its end.

use orlop_api::types::core::{Container, LifecycleHandler, Pod};
use orlop_base::clock::seconds;
use orlop_runtime::Runtime;

use crate::pod::policy;
use crate::pod::tools::Tools;

/// Runs a hook to its end; the caller sets the time limit. The error is what the container's status says.
pub(super) async fn run(
    runtime: &dyn Runtime,
    tools: &dyn Tools,
    pod: &Pod,
    container: &Container,
    id: &str,
    ip: Option<&str>,
    handler: &LifecycleHandler,
) -> Result<(), String> {
    let (name, place) = (&container.name, policy::described(pod));
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let (error, output) = match runtime.exec_sync(id, command, None).await {
            Ok(done) if done.exit_code == 0 => return Ok(()),
            Ok(done) => {
                let code = done.exit_code;
                let output = [done.stdout, done.stderr].concat();
                let output = String::from_utf8_lossy(&output).into_owned();
                (format!("command '{shown}' exited with {code}: {output}"), output)
            }
            Err(error) => (error.to_string(), String::new()),
        };
        return Err(format!(
            "Exec lifecycle hook ([{shown}]) for Container {name:?} in Pod {place:?} failed - error: {error}, message: {output:?}"
        ));
    }
    if let Some(action) = &handler.http_get {
        let host = action.host.as_deref().filter(|host| !host.is_empty()).or(ip);
        let answer = match host {
            Some(host) => tools.http_get(container, action, host).await,
            None => Err("failed to find networking container".to_string()),
        };
        let path = action.path.as_deref().unwrap_or_default();
        return answer.map_err(|error| {
            format!("HTTP lifecycle hook ({path}) for Container {name:?} in Pod {place:?} failed - error: {error}")
        });
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(seconds(sleep.seconds)).await;
        return Ok(());
    }
    // Upstream: a TCP socket is no hook that could be run.
    Err("Cannot run handler: invalid handler".to_string())
}

/// A hook did not end within the grace: the container is ended all the same. A sleep that is cut short has not failed.
pub(super) fn late(is_sleep: bool) -> Result<(), String> {
    match is_sleep {
        true => Ok(()),
        false => Err("the hook did not end within the grace period".to_string()),
    }
}

pub(super) fn post_start(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.post_start.as_ref()
}

pub(super) fn pre_stop(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.pre_stop.as_ref()
}
