//! The store on real members of etcd.

mod faults;
mod members;
mod shared;

pub(crate) use members::Members;

use std::time::Duration;

use orlop_base::clock::Shift;

use super::Etcd;
use super::messages::{AlarmAction, AlarmRequest, AlarmResponse, HeaderResponse, LeaseIdRequest, RangeRequest};
use crate::{Record, Revision};

fn far() -> tokio::time::Instant {
    tokio::time::Instant::now().later(Duration::from_secs(60))
}

/// What somebody else does to etcd.
impl<R: Record> Etcd<R> {
    pub(crate) async fn lease_of(&self, key: &str) -> i64 {
        let request = RangeRequest {
            key: self.codec.etcd_key(key),
            ..RangeRequest::default()
        };
        self.client.range(request, far()).await.unwrap().kvs[0].lease
    }

    pub(crate) async fn revoke(&self, lease: i64) {
        let request = LeaseIdRequest { id: lease };
        let _: HeaderResponse = self
            .client
            .ask("/etcdserverpb.Lease/LeaseRevoke", request, far())
            .await
            .unwrap();
    }

    pub(crate) async fn client_compact(&self, revision: Revision) {
        self.client.compact(revision as i64, far()).await.unwrap();
    }

    pub(crate) async fn disarm(&self) {
        for raised in self.client.alarms(far()).await.unwrap() {
            let request = AlarmRequest {
                action: AlarmAction::Deactivate as i32,
                alarm: raised.alarm,
                member_id: raised.member_id,
            };
            let _: AlarmResponse = self
                .client
                .ask("/etcdserverpb.Maintenance/Alarm", request, far())
                .await
                .unwrap();
        }
    }
}
