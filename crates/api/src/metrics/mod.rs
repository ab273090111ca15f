//! The kinds of the metrics.k8s.io group: what nodes and pods use right now. Made when they are asked for, never stored.
//!
//! Upstream: staging/src/k8s.io/metrics/pkg/apis/metrics (v1.36); the tables are metrics-server's.

use serde_json::{Value, json};

use crate::kind::{Column, KindDef, Verbs};
use crate::printing::text;
use crate::quantity::{Format, Quantity};

pub const GROUP: &str = "metrics.k8s.io";

pub const ALL: &[&KindDef] = &[&NODE_METRICS, &POD_METRICS];

// Neither has a singular name, or `kubectl get pod` would mean these, too.
pub const NODE_METRICS: KindDef = KindDef {
    group: GROUP,
    version: "v1beta1",
    kind: "NodeMetrics",
    plural: "nodes",
    namespaced: false,
    schema: "metrics/v1beta1.NodeMetrics",
    verbs: Verbs::ReadOnly,
    columns: COLUMNS,
    cells: |node, _| row(std::slice::from_ref(node), node),
    ..KindDef::BASE
};

pub const POD_METRICS: KindDef = KindDef {
    kind: "PodMetrics",
    plural: "pods",
    namespaced: true,
    schema: "metrics/v1beta1.PodMetrics",
    cells: |pod, _| row(pod["containers"].as_array().map_or(&[], Vec::as_slice), pod),
    ..NODE_METRICS
};

const COLUMNS: &[Column] = &[
    Column::string("cpu"),
    Column::string("memory"),
    Column::string("Window"),
];

/// What is used, as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Billionths of a core.
    pub cpu_nano_cores: u64,
    /// The working set.
    pub memory_bytes: u64,
}

impl Usage {
    /// `{"cpu": "182888319n", "memory": "1166388Ki"}`
    pub fn to_value(self) -> Value {
        let cpu = Quantity::from_nanos(self.cpu_nano_cores.into(), Format::DecimalSI);
        let memory = i64::try_from(self.memory_bytes).unwrap_or(i64::MAX);
        let memory = Quantity::from_i64(memory, Format::BinarySI);
        json!({"cpu": cpu.canonical(), "memory": memory.canonical()})
    }
}

/// The sum of what the parts use, and the time over which it was measured.
fn row(parts: &[Value], whole: &Value) -> Vec<Value> {
    let sum = |resource: &str| {
        let mut values = parts
            .iter()
            .filter_map(|part| Quantity::parse(part["usage"][resource].as_str()?).ok());
        let mut sum = values.next().unwrap_or_default();
        values.for_each(|more| sum.add(&more));
        Value::from(sum.canonical())
    };
    vec![sum("cpu"), sum("memory"), text(whole, "/window").into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_check;

    #[test]
    fn amounts_in_kubernetes_words() {
        let of = |cpu_nano_cores, memory_bytes| {
            let usage = Usage {
                cpu_nano_cores,
                memory_bytes,
            };
            usage.to_value()
        };
        assert_eq!(
            of(182_888_319, 1_166_388 << 10),
            json!({"cpu": "182888319n", "memory": "1166388Ki"})
        );
        assert_eq!(of(2_000_000_000, 1 << 30), json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(of(0, 0), json!({"cpu": "0", "memory": "0"}));
    }

    #[test]
    fn rows() {
        let usage = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        let node = json!({"window": "10s", "usage": usage("5m", "3Mi")});
        assert_eq!(kind_check::row(&NODE_METRICS, &node), "5m|3Mi|10s");
        let pod = json!({"window": "10s", "containers": [
            {"name": "a", "usage": usage("1500n", "512Ki")}, {"name": "b", "usage": usage("1m", "512Ki")}]});
        assert_eq!(kind_check::row(&POD_METRICS, &pod), "1001500n|1Mi|10s");
        assert_eq!(kind_check::row(&POD_METRICS, &json!({"containers": []})), "0|0|");
    }
}
