//! The kinds of the flowcontrol group.

use std::collections::BTreeSet;

use crate::field::{Cursor, Problems};
use crate::kind::KindDef;
use crate::rules;

pub mod flow_schema;
pub mod priority_level;
pub mod standard;

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";

pub const ALL: &[&KindDef] = &[&flow_schema::DEF, &priority_level::DEF];

/// The conditions of either kind: each has a type and no type comes twice.
fn validate_conditions(conditions: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for kind in conditions.items().map(|c| c.at("type")) {
        if !seen.insert(kind.str()) {
            p.duplicate(&rules::as_text(&kind));
        }
        if kind.is_empty() {
            p.required(&kind, "");
        }
    }
}
