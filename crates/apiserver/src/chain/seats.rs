//! Steps of the chain that need seats of priority and fairness, and the one that leads to extension API servers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::Response;
use orlop_api::Status;

use super::{Call, Content, Server};
use crate::aggregator::Remote;
use crate::authn::UserInfo;
use crate::connect::Relayed;
use crate::flowcontrol::{Described, Ticket};
use crate::kinds;
use crate::metrics::InFlight;
use crate::request::RequestInfo;
use crate::respond::Body;

impl Described for Call {
    fn info(&self) -> &RequestInfo {
        &self.info
    }
}

/// A request's part of what the server can do at a time, until it is dropped.
pub(super) struct Admitted {
    _ticket: Option<Ticket>,
    _in_flight: Option<InFlight>,
}

impl Server {
    /// A request for an extension API server.
    pub(super) async fn pass_on(
        self: &Arc<Self>,
        call: &Arc<Call>,
        content: &mut Content,
        user: &Arc<UserInfo>,
        remote: &Remote,
    ) -> Result<Response<Body>, Status> {
        let _admitted = self.take_seats(call, user).await?;
        self.record_begin(call, &[]);
        let asked = Relayed {
            info: &call.info,
            user,
            method: &call.method,
            headers: &call.headers,
            target: &call.target,
            peer: call.connection.peer,
            audit_id: call.trail.lock().id(),
            upgrade: content.upgrade.take(),
        };
        let body = content.body.take().unwrap_or_default();
        self.relay(remote, asked, body).await
    }

    /// Waits for the seats that a request takes. What stays open has none: it waits, it does not work; a watch has some until
    /// it has begun. Nor have the cluster's own components in this process: they have bounds of their own
    /// (`orlop_client::Api`) and wait there.
    pub(super) async fn take_seats(&self, call: &Arc<Call>, user: &Arc<UserInfo>) -> Result<Admitted, Status> {
        let info = &call.info;
        let is_free = call.connection.trusted_user.is_some() || (info.is_long_running() && info.verb != "watch");
        let ticket = match is_free {
            true => None,
            false => Some(self.ticket(call, user).await?),
        };
        Ok(Admitted {
            _ticket: ticket,
            _in_flight: (!info.is_long_running()).then(|| self.metrics.in_flight(info)),
        })
    }

    async fn ticket(&self, call: &Arc<Call>, user: &Arc<UserInfo>) -> Result<Ticket, Status> {
        let flow = self.flow_control.classify(&call.info, user);
        let objects = || {
            let stored = call.kind.filter(|kind| kind.is_stored());
            stored.map_or(0, |kind| self.registry.store.count(&kinds::key_prefix(kind, None)))
        };
        let admission = self.flow_control.admit(&flow, call.clone(), user, &objects).await;
        let _ = call.flow.set(flow);
        admission.map_err(|rejected| {
            self.metrics.rejected.fetch_add(1, Ordering::Relaxed);
            self.metrics.terminated(&call.info, 429);
            let text = "Too many requests, please try again later.";
            Status::too_many_requests(text, rejected.retry_after_seconds)
        })
    }
}
