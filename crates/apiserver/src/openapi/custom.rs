//! Definitions of custom kinds, as their CustomResourceDefinitions have them.

use std::collections::HashMap;
use std::sync::Arc;

use orlop_api::KindDef;
use orlop_apiextensions::openapi;
use serde_json::{Value, json};

use super::definitions::Dialect;
use super::names::GroupVersion;
use crate::custom::{self, Served, Snapshot};

/// Makes the definitions of custom kinds and their lists, by name.
#[derive(Default)]
pub(super) struct CustomDefinitions(HashMap<&'static str, (Arc<Served>, &'static KindDef, What)>);

#[derive(Clone, Copy)]
enum What {
    Object,
    List,
}

impl CustomDefinitions {
    pub(super) fn of(custom: &Snapshot) -> CustomDefinitions {
        let mut all = HashMap::new();
        for kind in custom.served() {
            let Some(served) = custom::of(kind) else { continue };
            all.insert(kind.schema, (served.clone(), kind, What::Object));
            all.insert(custom::list_definition(kind), (served, kind, What::List));
        }
        CustomDefinitions(all)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn definition(&self, name: &str, dialect: Dialect) -> Value {
        let Some((served, kind, what)) = self.0.get(name) else {
            return json!({});
        };
        let (definition, version) = (served.facts.definition(), kind.version);
        match (what, dialect) {
            (What::Object, Dialect::V2) => openapi::v2(&definition, version),
            (What::Object, Dialect::V3) => openapi::v3(&definition, version),
            (What::List, Dialect::V2) => openapi::v2_list(&definition, version),
            (What::List, Dialect::V3) => openapi::v3_list(&definition, version),
        }
    }
}

/// What changes with the definitions of a group version, or with all.
pub(super) fn sum(custom: &Snapshot, of: Option<GroupVersion>) -> Vec<u8> {
    let mut sum = vec![];
    for kind in custom
        .served()
        .filter(|k| of.is_none_or(|gv| gv == GroupVersion::of(k)))
    {
        if let Some(served) = custom::of(kind) {
            let facts = &served.facts;
            let words = [
                &*facts.name,
                kind.version,
                &facts.uid,
                &facts.generation.to_string(),
                &facts.list_kind,
            ];
            sum.extend(words.join(" ").into_bytes());
            sum.push(b';');
        }
    }
    sum
}
