//! Flow schemas and priority levels. The table of them is in the API crate, where validation needs the mandatory ones.

use orlop_api::flowcontrol::standard;
use serde_json::Value;

/// Priority levels, then the flow schemas that name them.
pub fn objects() -> Vec<Value> {
    [standard::priority_levels(), standard::flow_schemas()].concat()
}
