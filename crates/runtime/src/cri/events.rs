//! The runtime's own word that something happened.
//!
//! There are three ways, best first: CRI's `GetContainerEvents`; containerd's own event service, which every containerd
//! has on the same socket, also those whose CRI part has no events; none, and the stream stays silent: the agent's
//! relist finds what changes. Which way a runtime has is learnt by asking, and asked anew when a stream ends, since
//! another version may have been started meanwhile.

use std::sync::atomic::Ordering;

use futures::StreamExt;
use futures::stream::BoxStream;

use super::messages::{ContainerEventResponse, GetEventsRequest};
use super::{CriRuntime, containerd};
use crate::{Code, Event, Result};

const CRI: u8 = 0;
const CONTAINERD: u8 = 1;
const NONE: u8 = 2;

impl CriRuntime {
    pub(super) async fn subscribe(&self) -> Result<BoxStream<'static, Event>> {
        let mut way = self.way.load(Ordering::Relaxed);
        loop {
            let opened = match way {
                CRI => self.cri_events().await,
                CONTAINERD => containerd::events(self).await,
                _ => {
                    self.way.store(CRI, Ordering::Relaxed);
                    return Ok(futures::stream::pending().boxed());
                }
            };
            match opened {
                Err(error) if error.code == Code::Unimplemented => way += 1,
                Err(error) => return Err(error),
                Ok(events) => return Ok(self.until_broken(events, way)),
            }
        }
    }

    async fn cri_events(&self) -> Result<BoxStream<'static, Result<Event>>> {
        let path = "/runtime.v1.RuntimeService/GetContainerEvents";
        let messages = self.connection.stream(path, GetEventsRequest {}).await?;
        Ok(messages.map(|message| message.map(event)).boxed())
    }

    /// Ends with the first failure. One that says "not implemented" came late: it leads to the next way the next time.
    fn until_broken(&self, events: BoxStream<'static, Result<Event>>, way: u8) -> BoxStream<'static, Event> {
        self.way.store(CRI, Ordering::Relaxed);
        let next_way = self.way.clone();
        let until_broken = events.scan((), move |(), event| {
            if let Err(error) = &event {
                if error.code == Code::Unimplemented && way < NONE {
                    next_way.store(way + 1, Ordering::Relaxed);
                }
                tracing::info!(%error, "the runtime's events ended");
            }
            std::future::ready(event.ok())
        });
        until_broken.boxed()
    }
}

fn event(message: ContainerEventResponse) -> Event {
    Event {
        sandbox: message.pod_sandbox_status.map(|s| s.id),
        container: message.container_id,
    }
}
