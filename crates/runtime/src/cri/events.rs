//! The runtime's own word that something happened.
//!
//! There are three ways, best first: CRI's `GetContainerEvents`; containerd's own event service, which every containerd
//! has on the same socket, also those whose CRI part has no events; none, and the stream stays silent: the kubelet's
//! relist finds what changes. Which way a runtime has is learnt by asking, and asked anew when a stream ends, since
//! another version may have been started meanwhile. A silent stream ends now and then, for the same reason.
//!
//! CRI-O has the call but tells of events only when its configuration says so (`enable_pod_events`); else the stream
//! ends at once, without an error.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;

use super::messages::{ContainerEventResponse, GetEventsRequest};
use super::{CriRuntime, containerd};
use crate::{Code, Error, Event, Result};

const CRI: u8 = 0;
const CONTAINERD: u8 = 1;
const NONE: u8 = 2;

/// A runtime without events is asked again after this long.
const SILENCE: Duration = Duration::from_secs(60);

impl CriRuntime {
    pub(super) async fn subscribe(&self) -> Result<BoxStream<'static, Event>> {
        let mut way = self.way.load(Ordering::Relaxed);
        loop {
            let opened = match way {
                CRI => self.cri_events().await,
                CONTAINERD => containerd::events(self).await,
                _ => {
                    self.way.store(CRI, Ordering::Relaxed);
                    let silence = tokio::time::sleep(SILENCE);
                    return Ok(futures::stream::once(silence).filter_map(async |()| None).boxed());
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
    /// So does an end before any news.
    fn until_broken(&self, events: BoxStream<'static, Result<Event>>, way: u8) -> BoxStream<'static, Event> {
        self.way.store(CRI, Ordering::Relaxed);
        let next_way = self.way.clone();
        let ended = Err(Error::new(Code::Unimplemented, "the stream ended"));
        let with_end = events.chain(futures::stream::once(std::future::ready(ended)));
        let until_broken = with_end.scan(false, move |heard, event| {
            if let Err(error) = &event {
                if error.code == Code::Unimplemented && way < NONE && !*heard {
                    next_way.store(way + 1, Ordering::Relaxed);
                }
                tracing::debug!(err = %error, "the runtime's event stream ended");
            }
            *heard = true;
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
