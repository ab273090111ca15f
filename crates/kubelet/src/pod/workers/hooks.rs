//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use orlop_api::types::core::{Container, LifecycleHandler, Pod};
use orlop_base::clock::seconds;
use orlop_runtime::Runtime;

use crate::pod::policy;
use crate::probes::http::{self, HttpError};

/// Upstream sets no limit for a hook's request; the hook's own time is limited by the caller.
const HTTP_HOOK_MAX: Duration = Duration::from_secs(600);

/// Why a hook failed: what the container's status says.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error(
        "Exec lifecycle hook ([{command}]) for Container {container:?} in Pod {pod:?} failed - error: {source}, message: {output:?}"
    )]
    Exec {
        command: String,
        container: String,
        pod: String,
        source: Box<ExecError>,
        output: String,
    },
    #[error("HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} failed - error: {source}")]
    Http {
        path: String,
        container: String,
        pod: String,
        source: Box<HttpHookError>,
    },
    #[error("Cannot run handler: invalid handler")]
    InvalidHandler,
    #[error("the hook did not end within the grace period")]
    GracePeriodExceeded,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("command '{command}' exited with {code}: {output}")]
    Exited { command: String, code: i32, output: String },
    #[error(transparent)]
    Runtime(#[from] orlop_runtime::Error),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HttpHookError {
    #[error("failed to find networking container")]
    NoPodIp,
    #[error(transparent)]
    Request(#[from] HttpError),
}

/// Runs a hook to its end; the caller sets the time limit.
pub(super) async fn run(
    runtime: &dyn Runtime,
    pod: &Pod,
    container: &Container,
    id: &str,
    ip: Option<&str>,
    handler: &LifecycleHandler,
) -> Result<(), HookError> {
    let described = || (container.name.clone(), policy::described(pod));
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        let (source, output) = match runtime.exec_sync(id, command, None).await {
            Ok(done) if done.exit_code == 0 => return Ok(()),
            Ok(done) => {
                let output = [done.stdout, done.stderr].concat();
                let output = String::from_utf8_lossy(&output).into_owned();
                let exited = ExecError::Exited {
                    command: shown.clone(),
                    code: done.exit_code,
                    output: output.clone(),
                };
                (exited, output)
            }
            Err(error) => (error.into(), String::new()),
        };
        let (container, pod) = described();
        return Err(HookError::Exec {
            command: shown,
            container,
            pod,
            source: Box::new(source),
            output,
        });
    }
    if let Some(action) = &handler.http_get {
        let host = action.host.as_deref().filter(|host| !host.is_empty()).or(ip);
        let answer = match host {
            Some(host) => http::hook(action, container, host, HTTP_HOOK_MAX)
                .await
                .map_err(HttpHookError::from),
            None => Err(HttpHookError::NoPodIp),
        };
        return answer.map_err(|source| {
            let (container, pod) = described();
            HookError::Http {
                path: action.path.clone().unwrap_or_default(),
                container,
                pod,
                source: Box::new(source),
            }
        });
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(seconds(sleep.seconds)).await;
        return Ok(());
    }
    // Upstream: a TCP socket is no hook that could be run.
    Err(HookError::InvalidHandler)
}

/// The outcome of a hook that outlived the grace period: the container is stopped all the same. A sleep that is cut
/// short has not failed.
pub(super) fn timed_out(handler: Option<&LifecycleHandler>) -> Result<(), HookError> {
    match handler.is_some_and(|handler| handler.sleep.is_some()) {
        true => Ok(()),
        false => Err(HookError::GracePeriodExceeded),
    }
}

pub(super) fn post_start(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.post_start.as_ref()
}

pub(super) fn pre_stop(container: &Container) -> Option<&LifecycleHandler> {
    container.lifecycle.as_ref()?.pre_stop.as_ref()
}
