//! Leases.

use crate::types::json::{kind, object};
use crate::types::meta::{MicroTime, ObjectMeta};

kind! {
    "coordination.k8s.io/v1";
    pub struct Lease {
        metadata: ObjectMeta = "metadata",
        spec: Option<LeaseSpec> = "spec",
    }
}

object! {
    pub struct LeaseSpec {
        acquire_time: Option<MicroTime> = "acquireTime",
        holder_identity: Option<String> = "holderIdentity",
        lease_duration_seconds: Option<i32> = "leaseDurationSeconds",
        lease_transitions: Option<i32> = "leaseTransitions",
        preferred_holder: Option<String> = "preferredHolder",
        renew_time: Option<MicroTime> = "renewTime",
        strategy: Option<String> = "strategy",
    }
}
