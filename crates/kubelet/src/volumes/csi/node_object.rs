//! What the API objects say about a node's CSI drivers: CSINode, and the Node's annotation and labels. No I/O.

use std::collections::BTreeMap;

use orlop_api::types::core::Node;
use orlop_api::types::storage::{CSINode, CSINodeDriver, VolumeNodeResources};
use serde_json::{Value, json};

use super::messages::NodeInfo;
use super::registration::RegistrationError;

pub(super) const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// A CSINode without drivers, owned by the node.
pub(super) fn empty(node: &Node) -> Value {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid});
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {"drivers": []},
    })
}

/// Whether it belongs to this node, and not to one of the same name before it.
pub(super) fn is_owned(csi_node: &CSINode, node: &Node) -> bool {
    let owners = csi_node.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref())
}

/// With the driver; `None` if it is there already.
pub(super) fn with_driver(csi_node: &CSINode, driver: &str, info: &NodeInfo) -> Option<CSINode> {
    let segments = info
        .accessible_topology
        .as_ref()
        .map(|t| t.segments.keys().cloned().collect());
    let count = Some(info.max_volumes_per_node).filter(|count| *count > 0);
    let entry = CSINodeDriver {
        allocatable: count.map(|count| VolumeNodeResources {
            count: Some(count.try_into().unwrap_or(i32::MAX)),
        }),
        name: driver.to_string(),
        node_id: info.node_id.clone(),
        topology_keys: segments.filter(|keys: &Vec<String>| !keys.is_empty()),
    };
    let mut known = csi_node.spec.drivers.iter().filter(|d| d.name == driver);
    if known.next() == Some(&entry) && known.next().is_none() {
        return None;
    }
    let mut changed = csi_node.clone();
    changed.spec.drivers.retain(|d| d.name != driver);
    changed.spec.drivers.push(entry);
    Some(changed)
}

/// Without the driver; `None` if it is not there.
pub(super) fn without_driver(csi_node: &CSINode, driver: &str) -> Option<CSINode> {
    let mut changed = csi_node.clone();
    changed.spec.drivers.retain(|d| d.name != driver);
    (changed.spec.drivers.len() < csi_node.spec.drivers.len()).then_some(changed)
}

/// The patch of the Node for a driver that comes (with its node id and topology) or goes; `None` if nothing changes.
pub(super) fn node_patch(
    node: &Node,
    driver: &str,
    info: Option<&NodeInfo>,
) -> Result<Option<Value>, RegistrationError> {
    let annotation = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID));
    let mut ids: BTreeMap<String, String> = match annotation.filter(|text| !text.is_empty()) {
        Some(text) => serde_json::from_str(text).map_err(|source| RegistrationError::Annotation {
            text: text.clone(),
            source,
        })?,
        None => BTreeMap::new(),
    };
    let before = ids.clone();
    match info {
        Some(info) => ids.insert(driver.to_string(), info.node_id.clone()),
        None => ids.remove(driver),
    };
    let mut metadata = serde_json::Map::new();
    if ids != before {
        let text = json!(ids).to_string();
        let value = if ids.is_empty() {
            Value::Null
        } else {
            Value::String(text)
        };
        metadata.insert("annotations".into(), json!({ NODE_ID: value }));
    }
    let topology = info.and_then(|info| info.accessible_topology.as_ref());
    let mut labels = serde_json::Map::new();
    for (key, value) in topology.iter().flat_map(|t| &t.segments) {
        match node.metadata.labels.as_ref().and_then(|labels| labels.get(key)) {
            Some(known) if known != value => {
                return Err(RegistrationError::Topology {
                    key: key.clone(),
                    reported: value.clone(),
                    existing: known.clone(),
                });
            }
            Some(_) => {}
            None => {
                labels.insert(key.clone(), json!(value));
            }
        }
    }
    if !labels.is_empty() {
        metadata.insert("labels".into(), labels.into());
    }
    Ok((!metadata.is_empty()).then(|| json!({ "metadata": metadata })))
}

#[cfg(test)]
mod tests {
    use super::super::messages::Topology;
    use super::*;

    fn info(id: &str, zone: &str) -> NodeInfo {
        NodeInfo {
            node_id: id.into(),
            max_volumes_per_node: 5,
            accessible_topology: Some(Topology {
                segments: [("zone".to_string(), zone.to_string())].into(),
            }),
        }
    }

    #[test]
    fn drivers_come_and_go() {
        let node: Node = orlop_api::types::from_value(json!({"metadata": {"name": "n", "uid": "1"}})).unwrap();
        let csi_node: CSINode = orlop_api::types::from_value(empty(&node)).unwrap();
        assert!(is_owned(&csi_node, &node));
        let other: Node = orlop_api::types::from_value(json!({"metadata": {"name": "n", "uid": "2"}})).unwrap();
        assert!(!is_owned(&csi_node, &other));
        let with = with_driver(&csi_node, "d", &info("a", "z")).unwrap();
        assert_eq!(
            serde_json::to_value(&with.spec).unwrap(),
            json!({"drivers": [{"name": "d", "nodeID": "a", "topologyKeys": ["zone"], "allocatable": {"count": 5}}]})
        );
        assert_eq!(with_driver(&with, "d", &info("a", "z")), None);
        let two = with_driver(&with, "e", &info("a", "z")).unwrap();
        let changed = with_driver(&two, "d", &info("b", "z")).unwrap();
        assert_eq!(changed.spec.drivers.len(), 2);
        assert_eq!(without_driver(&changed, "x"), None);
        assert_eq!(without_driver(&changed, "d").unwrap().spec.drivers[0].name, "e");
    }

    #[test]
    fn the_node_is_patched_with_what_changed() {
        let node = |annotation: &str, zone: &str| -> Node {
            orlop_api::types::from_value(json!({"metadata": {
                "annotations": {NODE_ID: annotation}, "labels": {"zone": zone}}}))
            .unwrap()
        };
        let bare = Node::default();
        let patch = node_patch(&bare, "d", Some(&info("a", "z"))).unwrap().unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {NODE_ID: "{\"d\":\"a\"}"}, "labels": {"zone": "z"}}})
        );
        let patch = node_patch(&node("{\"d\":\"a\"}", "z"), "d", Some(&info("a", "z")));
        assert_eq!(patch.unwrap(), None);
        let patch = node_patch(&node("{\"d\":\"a\",\"e\":\"b\"}", "z"), "d", None)
            .unwrap()
            .unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {NODE_ID: "{\"e\":\"b\"}"}}}));
        let patch = node_patch(&node("{\"d\":\"a\"}", "z"), "d", None).unwrap().unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {NODE_ID: null}}}));
        assert!(
            node_patch(&node("", "other"), "d", Some(&info("a", "z")))
                .unwrap_err()
                .to_string()
                .contains("collision")
        );
        assert!(
            node_patch(&node("rubbish", "z"), "d", None)
                .unwrap_err()
                .to_string()
                .contains("failed to parse")
        );
    }
}
