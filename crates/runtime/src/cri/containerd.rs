//! containerd's own events, for versions whose CRI part has none (before 1.7).
//!
//! These events are about tasks, and containerd's CRI part hears of them at the same moment as we do. Whoever looked
//! right away could still be told that the container is running, and would not look again before the next relist. So an
//! exit is passed on only when the CRI part knows of it too.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use prost::Message;

use super::CriRuntime;
use super::messages::{ContainerState, PodSandboxState};
use crate::{Event, Result, Runtime};

/// The namespace in which containerd's CRI part keeps everything.
const FILTERS: [&str; 2] = [
    r#"namespace=="k8s.io",topic~="^/tasks/(start|exit|oom)$""#,
    r#"namespace=="k8s.io",topic=="/containers/delete""#,
];

/// Exits that are waited for at a time; more wait in line.
const SETTLING_MAX: usize = 64;

/// The first look at what containerd's CRI part says of an exit; each next one after twice the time.
const FIRST_LOOK: Duration = Duration::from_millis(4);
/// About four seconds in all. Then the event is passed on as it is.
const LOOKS_MAX: u32 = 10;

#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<prost_types::Any>,
}

/// `TaskStart`, `TaskOOM`: the container is field 1. So it is in `ContainerDelete`.
#[derive(Clone, PartialEq, prost::Message)]
struct AnyTask {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TaskExit {
    #[prost(string, tag = "1")]
    container_id: String,
    /// The process: the container's id again for its first one, another for a command run in it.
    #[prost(string, tag = "2")]
    id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    /// Nothing to wait for: the CRI part did it itself.
    Changed(String),
    Exited(String),
    OutOfMemory(String),
}

pub(super) async fn events(runtime: &CriRuntime) -> Result<BoxStream<'static, Result<Event>>> {
    let request = SubscribeRequest {
        filters: FILTERS.map(String::from).to_vec(),
    };
    let path = "/containerd.services.events.v1.Events/Subscribe";
    let envelopes = runtime.connection.stream(path, request).await?;
    let runtime = runtime.clone();
    let events = envelopes
        .filter_map(|envelope| std::future::ready(envelope.map(|e| news(&e)).transpose()))
        .map(move |news| {
            let runtime = runtime.clone();
            async move { Ok(settle(&runtime, news?).await) }
        })
        .buffer_unordered(SETTLING_MAX);
    Ok(events.boxed())
}

/// What an envelope says; `None` for what is of no interest, such as the end of a probe's command.
fn news(envelope: &Envelope) -> Option<News> {
    let body = envelope.event.as_ref()?.value.as_slice();
    match envelope.topic.as_str() {
        "/tasks/exit" => {
            let exit = TaskExit::decode(body).ok()?;
            (exit.id == exit.container_id).then_some(News::Exited(exit.container_id))
        }
        "/tasks/oom" => Some(News::OutOfMemory(AnyTask::decode(body).ok()?.container_id)),
        "/tasks/start" | "/containers/delete" => Some(News::Changed(AnyTask::decode(body).ok()?.container_id)),
        _ => None,
    }
}

async fn settle(runtime: &CriRuntime, news: News) -> Event {
    let (container, is_known): (String, fn(&Known) -> bool) = match news {
        News::Changed(container) => {
            return Event {
                sandbox: None,
                container,
            };
        }
        News::Exited(container) => (container, |known| !known.running),
        News::OutOfMemory(container) => (container, |known| known.out_of_memory),
    };
    let mut pause = FIRST_LOOK;
    let mut sandbox = None;
    for _ in 0..LOOKS_MAX {
        let known = look(runtime, &container).await;
        sandbox = known.is_sandbox.then(|| container.clone());
        if is_known(&known) || known.gone {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2);
    }
    Event { sandbox, container }
}

/// What the CRI part knows of an id.
#[derive(Default)]
struct Known {
    running: bool,
    out_of_memory: bool,
    is_sandbox: bool,
    gone: bool,
}

async fn look(runtime: &CriRuntime, id: &str) -> Known {
    match runtime.container_status(id).await {
        Ok(status) => Known {
            running: matches!(status.state(), ContainerState::Running | ContainerState::Created),
            out_of_memory: status.reason == "OOMKilled",
            ..Known::default()
        },
        Err(error) if error.is_not_found() => match runtime.pod_sandbox_status(id).await {
            Ok(status) => Known {
                running: status.state() == PodSandboxState::Ready,
                is_sandbox: true,
                ..Known::default()
            },
            Err(_) => Known {
                gone: true,
                ..Known::default()
            },
        },
        // Whoever gets the event will have the same trouble, and deal with it.
        Err(_) => Known {
            gone: true,
            ..Known::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(topic: &str, event: impl Message) -> Envelope {
        let event = prost_types::Any {
            type_url: String::new(),
            value: event.encode_to_vec(),
        };
        Envelope {
            topic: topic.to_string(),
            event: Some(event),
        }
    }

    #[test]
    fn what_is_of_interest() {
        let exit = |id: &str| TaskExit {
            container_id: "c".to_string(),
            id: id.to_string(),
        };
        let task = || AnyTask {
            container_id: "c".to_string(),
        };
        assert_eq!(
            news(&envelope("/tasks/exit", exit("c"))),
            Some(News::Exited("c".to_string()))
        );
        assert_eq!(news(&envelope("/tasks/exit", exit("probe"))), None);
        assert_eq!(
            news(&envelope("/tasks/oom", task())),
            Some(News::OutOfMemory("c".to_string()))
        );
        assert_eq!(
            news(&envelope("/tasks/start", task())),
            Some(News::Changed("c".to_string()))
        );
        assert_eq!(news(&envelope("/tasks/paused", task())), None);
        let garbage = prost_types::Any {
            type_url: String::new(),
            value: vec![0xff],
        };
        assert_eq!(
            news(&Envelope {
                topic: "/tasks/exit".to_string(),
                event: Some(garbage)
            }),
            None
        );
    }
}
