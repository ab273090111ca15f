//! What plugins answer. A verdict is not an error: errors are for what should not happen at all.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A reason as users read it: `Insufficient cpu`.
pub type Reason = Cow<'static, str>;

/// Why a node (or every node) will not do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rejection {
    pub reasons: Reasons,
    /// Evicting pods cannot change it ("UnschedulableAndUnresolvable" in Kubernetes).
    pub unresolvable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reasons {
    One(&'static str),
    Many(Arc<[Reason]>),
}

impl Rejection {
    /// Evicting some pods may help.
    pub const fn unschedulable(reason: &'static str) -> Rejection {
        Rejection {
            reasons: Reasons::One(reason),
            unresolvable: false,
        }
    }

    pub const fn unresolvable(reason: &'static str) -> Rejection {
        Rejection {
            reasons: Reasons::One(reason),
            unresolvable: true,
        }
    }

    pub fn because(reason: impl Into<Reason>, unresolvable: bool) -> Rejection {
        Rejection {
            reasons: Reasons::Many([reason.into()].into()),
            unresolvable,
        }
    }

    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match &self.reasons {
            Reasons::One(reason) => (Some(*reason), None),
            Reasons::Many(reasons) => (None, Some(reasons)),
        };
        one.into_iter()
            .chain(many.into_iter().flat_map(|r| r.iter().map(|r| &**r)))
    }

    pub fn message(&self) -> String {
        self.reasons().collect::<Vec<_>>().join(", ")
    }
}

/// May the pod go on this node?
pub type Verdict = Result<(), Rejection>;

/// What a plugin makes of a pod before it looks at nodes.
#[derive(Clone, Debug)]
pub enum PreFilter<S> {
    /// Nothing to check: `filter` is not called.
    Skip,
    Run(S),
    /// Only these nodes can do, by name.
    Only(S, BTreeSet<Arc<str>>),
    /// No node will do.
    Reject(Rejection),
}

#[derive(Clone, Debug)]
pub enum PreScore<S> {
    /// Every node gets the same from this plugin: `score` is not called.
    Skip,
    Run(S),
}
