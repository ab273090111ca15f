//! The thread that deletes links. The kernel takes tens of milliseconds until nobody uses a link any more, and as long for
//! many as for one: what is asked for meanwhile is deleted together, and nobody who attaches a pod waits for it.

use std::io;

use orlop_netlink::Namespace;
use orlop_netlink::route::Route;
use tokio::sync::{mpsc, oneshot};

use super::error::{PodNetworkError, Result, kernel};

/// Links that are deleted together at most.
const TOGETHER_MAX: usize = 256;

#[derive(Clone)]
pub(super) struct Reaper {
    requests: mpsc::Sender<Request>,
}

struct Request {
    link: String,
    answer: oneshot::Sender<Result<()>>,
}

impl Reaper {
    /// `group` is what links are put into that are to be deleted.
    pub(super) fn start(namespace: Namespace, group: u32) -> Result<Reaper> {
        let route = namespace.run(Route::open).and_then(|opened| opened);
        let mut route = route.map_err(kernel("open a route socket"))?;
        let (requests, mut waiting) = mpsc::channel::<Request>(TOGETHER_MAX);
        let body = move || {
            while let Some(first) = waiting.blocking_recv() {
                let mut together = vec![first];
                while together.len() < TOGETHER_MAX
                    && let Ok(next) = waiting.try_recv()
                {
                    together.push(next);
                }
                delete(&mut route, together, group);
            }
        };
        let spawned = std::thread::Builder::new().name("pod-links".to_string()).spawn(body);
        spawned.map_err(kernel("start the thread that deletes links"))?;
        Ok(Reaper { requests })
    }

    pub(super) async fn delete(&self, link: String) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let request = Request { link, answer };
        self.requests
            .send(request)
            .await
            .map_err(|_| PodNetworkError::Stopped)?;
        answered.await.map_err(|_| PodNetworkError::Stopped)?
    }
}

fn delete(route: &mut Route, together: Vec<Request>, group: u32) {
    let links: Vec<String> = together.iter().map(|request| request.link.clone()).collect();
    let outcome = route.delete_links(&links, group);
    for Request { answer, .. } in together {
        // Errors can't be copied.
        let outcome = match &outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let _ = answer.send(outcome.map_err(kernel("delete links")));
    }
}
