//! Everything that reaches the engine, in one bounded queue.

use std::sync::Arc;

use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Inbox, Selection, informer};
use tokio::sync::mpsc;

use super::bind::BindingError;
use super::failure::EvictionError;
use crate::model::{
    CsiDriver, CsiNode, CsiStorageCapacity, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodDisruptionBudget, ReplicationController, Service, StorageClass, VolumeAttachment, Workload,
};

/// Batches that may wait; a full inbox slows the watches down, nothing is lost.
const INBOX: usize = 256;

pub(super) enum Input {
    Changes(Changes),
    /// The outcome of a binding.
    Bound {
        uid: Arc<str>,
        result: Result<(), orlop_client::Error>,
    },
    /// What must come before the binding was written (or not).
    PreBound {
        uid: Arc<str>,
        result: Result<(), BindingError>,
    },
    /// Evictions for this pod were asked for; an error names the victim that would not go.
    Preempted {
        uid: Arc<str>,
        result: Result<(), EvictionError>,
    },
}

macro_rules! kinds {
    ($($name:ident: $type:ty = $path:literal $(where $fields:literal)?;)*) => {
        /// Changes of one kind, in order.
        pub(crate) enum Changes {
            $($name(Vec<Delta<$type>>),)*
        }

        /// Which kinds have been listed once.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Kinds(u32);

        #[derive(Clone, Copy)]
        enum Bit { $($name,)* Count }

        impl Kinds {
            pub(crate) fn all(self) -> bool {
                self.0 == (1 << Bit::Count as u32) - 1
            }
        }

        impl Changes {
            /// Notes what has been listed.
            pub(crate) fn mark(&self, kinds: &mut Kinds) {
                match self {
                    $(Changes::$name(changes) => if changes.iter().any(|c| matches!(c, Delta::Reset(_))) {
                        kinds.0 |= 1 << Bit::$name as u32;
                    })*
                }
            }
        }

        /// Watches everything the scheduler looks at.
        pub(crate) fn watch_all(api: &Api, shutdown: &Shutdown) -> (mpsc::Sender<Input>, mpsc::Receiver<Input>) {
            let (sender, receiver) = mpsc::channel(INBOX);
            $(
                let selection = Selection::all($path)$(.with_fields($fields))?;
                let inbox = Inbox::new(&sender, |changes| Input::Changes(Changes::$name(changes)));
                informer::start::<$type>(api, selection, inbox, shutdown);
            )*
            (sender, receiver)
        }
    };
}

kinds! {
    Pods: Pod = "/api/v1/pods" where "status.phase!=Succeeded,status.phase!=Failed";
    Nodes: Node = "/api/v1/nodes";
    Namespaces: Namespace = "/api/v1/namespaces";
    Services: Service = "/api/v1/services";
    ReplicationControllers: ReplicationController = "/api/v1/replicationcontrollers";
    ReplicaSets: Workload = "/apis/apps/v1/replicasets";
    StatefulSets: Workload = "/apis/apps/v1/statefulsets";
    Budgets: PodDisruptionBudget = "/apis/policy/v1/poddisruptionbudgets";
    Volumes: PersistentVolume = "/api/v1/persistentvolumes";
    Claims: PersistentVolumeClaim = "/api/v1/persistentvolumeclaims";
    StorageClasses: StorageClass = "/apis/storage.k8s.io/v1/storageclasses";
    CsiNodes: CsiNode = "/apis/storage.k8s.io/v1/csinodes";
    CsiDrivers: CsiDriver = "/apis/storage.k8s.io/v1/csidrivers";
    Capacities: CsiStorageCapacity = "/apis/storage.k8s.io/v1/csistoragecapacities";
    Attachments: VolumeAttachment = "/apis/storage.k8s.io/v1/volumeattachments";
}
