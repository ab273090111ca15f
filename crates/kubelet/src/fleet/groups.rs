//! Shapes of simulated nodes: groups of equal nodes, from flags (`big=4:cpu=16,label=size=Large`) or a file.
//!
//! Both are read into the same struct (`GroupConfig`), which is validated in one place. Nodes have numbers, counted through all
//! groups; a node's name, labels and size follow from its number. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use orlop_api::names;
use orlop_api::quantity::Quantity;
use orlop_api::resources;
use orlop_api::types::core::Taint;
use orlop_runtime::image_name::with_tag;
use serde::Deserialize;

/// There are pod CIDRs for so many nodes.
pub const MAX_NODES: usize = 16_384;
pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
/// Defaults.
const DEFAULT_REGION: &str = "sim";
const DEFAULT_ZONES: [&str; 3] = ["sim-zone-0", "sim-zone-1", "sim-zone-2"];
const DEFAULT_SIZE: [(&str, &str); 4] = [
    ("cpu", "32"),
    ("memory", "256Gi"),
    ("pods", "110"),
    ("ephemeral-storage", "1Ti"),
];
const DEFAULT_IMAGE_SIZE: i64 = 100 << 20;
const ROLE: &str = "node-role.kubernetes.io/";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Which part of a shape is invalid, and why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {why}")]
pub struct GroupError {
    part: String,
    why: String,
}

fn invalid<T>(part: impl Into<String>, why: impl Into<String>) -> Result<T, GroupError> {
    Err(GroupError {
        part: part.into(),
        why: why.into(),
    })
}

impl GroupError {
    /// Of a part of that.
    fn within(self, whole: &str) -> GroupError {
        GroupError {
            part: format!("{whole}: {}", self.part),
            ..self
        }
    }
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    names: Vec<Arc<str>>,
    /// Capacity, and what pods can have of it: the same.
    pub resources: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Empty: none.
    region: String,
    /// The nodes are spread over them one after the other. `None`: over the usual ones, together with other groups.
    zones: Option<Vec<String>>,
    /// Names and sizes.
    pub images: Vec<(String, i64)>,
}

/// A group as people write it; what is left out is as usual.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct GroupConfig {
    /// Names are NAME-0, NAME-1 …
    name: Option<String>,
    count: Option<usize>,
    /// Exactly these names.
    names: Vec<String>,
    cpu: Option<Scalar>,
    memory: Option<Scalar>,
    pods: Option<Scalar>,
    ephemeral_storage: Option<Scalar>,
    resources: BTreeMap<String, Scalar>,
    labels: BTreeMap<String, Scalar>,
    taints: Vec<String>,
    roles: Vec<String>,
    region: Option<String>,
    zones: Option<Vec<Scalar>>,
    images: Vec<String>,
}

/// A word or a number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Word(String),
    Whole(i64),
    Number(f64),
    Truth(bool),
}

impl From<&Scalar> for String {
    fn from(text: &Scalar) -> String {
        match text {
            Scalar::Word(word) => word.clone(),
            Scalar::Whole(n) => n.to_string(),
            Scalar::Number(n) => n.to_string(),
            Scalar::Truth(yes) => yes.to_string(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Vec<GroupConfig>,
}

impl Group {
    /// So many nodes of the default kind.
    pub fn default_nodes(count: usize) -> Group {
        let config = GroupConfig {
            name: Some("sim".into()),
            count: Some(count),
            ..GroupConfig::default()
        };
        config.validate().expect("the default group is valid")
    }

    /// `NAME=COUNT[:PART,PART…]`, or `NAME[:PART,PART…]` for one node of that very name.
    pub fn parse(text: &str) -> Result<Group, GroupError> {
        Group::read(text).map_err(|error| error.within(text))
    }

    fn read(text: &str) -> Result<Group, GroupError> {
        let (head, parts) = text.split_once(':').unwrap_or((text, ""));
        let mut config = GroupConfig::default();
        match head.split_once('=') {
            None => config.names = vec![head.to_string()],
            Some((name, count)) => {
                config.name = Some(name.to_string());
                config.count = match count.parse() {
                    Ok(count) => Some(count),
                    Err(_) => return invalid("count", format!("invalid count {count:?}: must be a number")),
                };
            }
        }
        for part in parts.split(',').filter(|part| !part.is_empty()) {
            config.set(part)?;
        }
        config.validate()
    }

    /// All groups of a file.
    pub fn parse_file(yaml: &str) -> Result<Vec<Group>, GroupError> {
        let file: File = match serde_saphyr::from_str(yaml) {
            Ok(file) => file,
            Err(error) => return invalid("nodes", error.to_string()),
        };
        let read = |(place, config): (usize, GroupConfig)| {
            let name = config.name.clone().or_else(|| config.names.first().cloned());
            let whole = match name {
                Some(name) => format!("nodes[{place}] ({name})"),
                None => format!("nodes[{place}]"),
            };
            config.validate().map_err(|error| error.within(&whole))
        };
        file.nodes.into_iter().enumerate().map(read).collect()
    }

    fn zone(&self, number: usize, place: usize) -> Option<&str> {
        match &self.zones {
            None => Some(DEFAULT_ZONES[number % DEFAULT_ZONES.len()]),
            Some(zones) if zones.is_empty() => None,
            Some(zones) => Some(&zones[place % zones.len()]),
        }
    }
}

impl GroupConfig {
    /// One part of a flag, such as `label=size=Large`.
    fn set(&mut self, part: &str) -> Result<(), GroupError> {
        let Some((key, value)) = part.split_once('=') else {
            return invalid(part, "must be KEY=VALUE");
        };
        let text = || Scalar::Word(value.to_string());
        match key {
            "name" => {
                self.name = Some(value.to_string());
                // One node of a very name: this one.
                if !self.names.is_empty() {
                    self.names = vec![value.to_string()];
                    self.name = None;
                }
            }
            "cpu" => self.cpu = Some(text()),
            "memory" => self.memory = Some(text()),
            "pods" => self.pods = Some(text()),
            "ephemeral-storage" => self.ephemeral_storage = Some(text()),
            "label" => {
                let (key, value) = value.split_once('=').unwrap_or((value, ""));
                self.labels.insert(key.to_string(), Scalar::Word(value.to_string()));
            }
            "taint" => self.taints.push(value.to_string()),
            "role" => self.roles.push(value.to_string()),
            "region" => self.region = Some(value.to_string()),
            // Without a name there are none.
            "zone" => self
                .zones
                .get_or_insert_default()
                .extend((!value.is_empty()).then(text)),
            "image" => self.images.push(value.to_string()),
            resource if resource.contains('/') || resources::is_hugepages(resource) => {
                self.resources.insert(resource.to_string(), text());
            }
            _ => {
                let known = "one of name, cpu, memory, pods, ephemeral-storage, label, taint, role, region, zone, \
                             image, or a resource name such as example.com/gpu";
                return invalid(key, format!("unknown key: must be {known}"));
            }
        }
        Ok(())
    }

    fn validate(self) -> Result<Group, GroupError> {
        let names = self.node_names()?;
        let own = [
            ("cpu", &self.cpu),
            ("memory", &self.memory),
            ("pods", &self.pods),
            ("ephemeral-storage", &self.ephemeral_storage),
        ];
        let mut resources: BTreeMap<String, String> = DEFAULT_SIZE.map(|(k, v)| (k.to_string(), v.to_string())).into();
        let own = own
            .into_iter()
            .filter_map(|(name, text)| Some((name.to_string(), text.as_ref()?)));
        let others = self.resources.iter().map(|(name, text)| (name.clone(), text));
        for (name, text) in own.chain(others) {
            let amount = amount(&name, &String::from(text))?;
            resources.insert(name, amount);
        }
        let mut labels = BTreeMap::new();
        for (key, value) in &self.labels {
            labels.insert(key.clone(), label(key, &String::from(value))?);
        }
        for role in &self.roles {
            let key = format!("{ROLE}{role}");
            check("role", role, names::qualified_name(&key))?;
            labels.insert(key, String::new());
        }
        let zones = self.zones.as_ref();
        let zones: Option<Vec<String>> = zones.map(|zones| zones.iter().map(String::from).collect());
        let region = self.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_string());
        for zone in zones.iter().flatten() {
            check("zone", zone, names::label_value(zone))?;
        }
        check("region", &region, names::label_value(&region))?;
        Ok(Group {
            names,
            resources,
            labels,
            taints: self.taints.iter().map(|text| taint(text)).collect::<Result<_, _>>()?,
            region,
            zones,
            images: self.images.iter().map(|text| image(text)).collect::<Result<_, _>>()?,
        })
    }

    fn node_names(&self) -> Result<Vec<Arc<str>>, GroupError> {
        let names: Vec<Arc<str>> = match (&self.name, self.names.is_empty()) {
            (None, true) => return invalid("name", "name or names is required"),
            (Some(_), false) => return invalid("names", "must not be set together with name"),
            (None, false) => {
                let given = self.names.len();
                if self.count.is_some_and(|count| count != given) {
                    return invalid("count", format!("must be {given}, the number of names"));
                }
                self.names.iter().map(|name| name.as_str().into()).collect()
            }
            (Some(name), true) => {
                let count = self.count.unwrap_or(1);
                if count > MAX_NODES {
                    return invalid("count", format!("at most {MAX_NODES} simulated nodes are supported"));
                }
                (0..count).map(|n| format!("{name}-{n}").into()).collect()
            }
        };
        for name in &names {
            check("name", name, names::dns_subdomain(name))?;
        }
        Ok(names)
    }
}

fn check(part: &str, text: &str, complaints: Vec<String>) -> Result<(), GroupError> {
    match complaints.first() {
        None => Ok(()),
        Some(why) => invalid(part, format!("invalid value {text:?}: {why}")),
    }
}

fn amount(name: &str, text: &str) -> Result<String, GroupError> {
    check("resource", name, names::qualified_name(name))?;
    let Ok(quantity) = Quantity::parse(text) else {
        return invalid(
            name,
            format!("invalid quantity {text:?}: must be a number such as \"16\" or \"64Gi\""),
        );
    };
    if quantity.is_negative() {
        return invalid(name, format!("invalid quantity {text:?}: must be >= 0"));
    }
    if (name == "pods" || resources::is_extended(name)) && !quantity.is_whole() {
        return invalid(name, format!("invalid quantity {text:?}: must be an integer"));
    }
    Ok(quantity.canonical())
}

fn label(key: &str, value: &str) -> Result<String, GroupError> {
    check("label", key, names::qualified_name(key))?;
    check("label", value, names::label_value(value))?;
    Ok(value.to_string())
}

/// `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
fn taint(text: &str) -> Result<Taint, GroupError> {
    let Some((rest, effect)) = text.rsplit_once(':').filter(|(_, effect)| EFFECTS.contains(effect)) else {
        let effects = EFFECTS.join(", ");
        return invalid(
            "taint",
            format!("invalid taint {text:?}: must be KEY=VALUE:EFFECT with an effect of {effects}"),
        );
    };
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    check("taint", key, names::qualified_name(key))?;
    check("taint", value, names::label_value(value))?;
    Ok(Taint {
        key: key.to_string(),
        value: Some(value.to_string()).filter(|value| !value.is_empty()),
        effect: effect.to_string(),
        ..Taint::default()
    })
}

/// `NAME` or `NAME=SIZE`.
fn image(text: &str) -> Result<(String, i64), GroupError> {
    let (name, size) = match text.split_once('=') {
        None => (text, DEFAULT_IMAGE_SIZE),
        Some((name, size)) => match Quantity::parse(size) {
            Ok(bytes) if !bytes.is_negative() => (name, bytes.value()),
            _ => {
                return invalid(
                    "image",
                    format!("invalid size {size:?}: must be a quantity such as \"180Mi\""),
                );
            }
        },
    };
    match with_tag(name) {
        Ok(name) => Ok((name, size)),
        Err(why) => invalid("image", format!("invalid value {name:?}: {why}")),
    }
}

/// All nodes, by number and by name.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<Group>,
    /// Group and place in it.
    places: Vec<(u32, u32)>,
    numbers: HashMap<Arc<str>, usize>,
}

impl Groups {
    pub fn new(groups: Vec<Group>) -> Result<Groups, GroupError> {
        let mut made = Groups::default();
        for (index, group) in groups.iter().enumerate() {
            for (place, name) in group.names.iter().enumerate() {
                if made.numbers.insert(name.clone(), made.places.len()).is_some() {
                    return invalid("name", format!("duplicate node name {name:?}"));
                }
                made.places.push((index as u32, place as u32));
            }
            if made.places.len() > MAX_NODES {
                return invalid("count", format!("at most {MAX_NODES} simulated nodes are supported"));
            }
        }
        Ok(Groups { groups, ..made })
    }

    pub fn count(&self) -> usize {
        self.places.len()
    }

    pub fn group(&self, node: usize) -> &Group {
        &self.groups[self.places[node].0 as usize]
    }

    pub fn name(&self, node: usize) -> &str {
        &self.group(node).names[self.places[node].1 as usize]
    }

    /// The number of one of these nodes by its name.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    fn zone(&self, node: usize) -> Option<&str> {
        self.group(node).zone(node, self.places[node].1 as usize)
    }

    /// With what every node says of itself. What was asked for goes before that.
    pub fn labels(&self, node: usize) -> BTreeMap<String, String> {
        let (name, group) = (self.name(node), self.group(node));
        let own = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", "amd64"),
            ("orlop.io/simulated", "true"),
        ];
        let mut labels: BTreeMap<String, String> = own.map(|(k, v)| (k.to_string(), v.to_string())).into();
        if let Some(zone) = self.zone(node) {
            labels.insert(ZONE.into(), zone.into());
            if !group.region.is_empty() {
                labels.insert(REGION.into(), group.region.clone());
            }
        }
        labels.extend(group.labels.clone());
        // By this one they are found.
        labels.insert("orlop.io/simulated".into(), "true".into());
        labels
    }

    /// Topology labels for a real node beside these, without which it would be left out of spreading over zones: the
    /// zone with the fewest nodes. None if no simulated node has a zone.
    pub fn labels_for_real_node(&self) -> BTreeMap<String, String> {
        // Zones with their region, in the order of their nodes, and how many those are.
        let mut zones: Vec<(&str, &str, usize)> = vec![];
        for group in self.groups.iter().filter(|group| group.zones.is_none()) {
            for zone in DEFAULT_ZONES {
                if !zones.iter().any(|(known, ..)| *known == zone) {
                    zones.push((zone, &group.region, 0));
                }
            }
        }
        for node in 0..self.count() {
            let Some(zone) = self.zone(node) else { continue };
            match zones.iter_mut().find(|(known, ..)| *known == zone) {
                Some((.., nodes)) => *nodes += 1,
                None => zones.push((zone, &self.group(node).region, 1)),
            }
        }
        let emptiest = zones.iter().min_by_key(|(.., nodes)| *nodes);
        let labels = emptiest.map(|(zone, region, _)| [(ZONE, *zone), (REGION, *region)]);
        let labels = labels.into_iter().flatten().filter(|(_, value)| !value.is_empty());
        labels.map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }
}

#[cfg(test)]
mod tests;
