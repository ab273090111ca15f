//! Manifests: files to objects, templates to pods.

use orlop_api::objects::LabelSelector;
use orlop_api::schema::yaml_to_value;
use orlop_scheduler::cluster::pod::PodKey;
use orlop_scheduler::model::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::Simulation;
use crate::snapshot::ObjectError;

/// A file that can't be read as objects.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("document {document}, which begins on line {line}: {source}")]
    Yaml {
        document: usize,
        line: usize,
        source: orlop_api::schema::DecodeError,
    },
    #[error("document {document}, which begins on line {line}: {problem}")]
    Object {
        document: usize,
        line: usize,
        problem: String,
    },
}

/// The objects of a YAML or JSON file, lists unpacked, as the API server would default them. Every mistake, with its line.
pub fn objects(text: &str) -> Result<Vec<Value>, Vec<ManifestError>> {
    let (mut found, mut wrong) = (vec![], vec![]);
    for (at, (line, part)) in documents(text).into_iter().enumerate() {
        let document = at + 1;
        if part
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        {
            continue;
        }
        let value = match yaml_to_value(part.as_bytes()) {
            Ok((value, problems)) => {
                wrong.extend(problems.into_iter().map(|problem| ManifestError::Object {
                    document,
                    line,
                    problem,
                }));
                value
            }
            Err(source) => {
                wrong.push(ManifestError::Yaml { document, line, source });
                continue;
            }
        };
        let items = match value["items"].as_array() {
            Some(items) if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
            _ => vec![value],
        };
        for item in items {
            let is_named = item["metadata"]["name"].is_string() || item["metadata"]["generateName"].is_string();
            let problem = match (item["apiVersion"].is_string(), item["kind"].is_string(), is_named) {
                (false, ..) => Some("apiVersion is missing"),
                (_, false, _) => Some("kind is missing"),
                (.., false) => Some("metadata.name is missing"),
                _ => None,
            };
            match problem {
                Some(problem) => wrong.push(ManifestError::Object {
                    document,
                    line,
                    problem: problem.to_string(),
                }),
                None => found.push(defaulted(item)),
            }
        }
    }
    if wrong.is_empty() { Ok(found) } else { Err(wrong) }
}

/// The documents of a stream with the lines that they begin on.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut all = vec![(1, String::new())];
    for (at, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            all.push((at + 2, String::new()));
            continue;
        }
        let last = &mut all.last_mut().expect("there is a first one").1;
        last.push_str(line);
        last.push('\n');
    }
    all
}

/// With the defaults of its kind, and a namespace if it needs one.
pub fn defaulted(mut object: Value) -> Value {
    let (version, kind) = (
        object["apiVersion"].as_str().unwrap_or_default(),
        object["kind"].as_str().unwrap_or_default(),
    );
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let mut kinds = orlop_api::kinds::all();
    let Some(definition) = kinds.find(|k| k.kind == kind && k.group == group && k.version == version) else {
        return object;
    };
    if definition.namespaced && object["metadata"]["namespace"].is_null() {
        object["metadata"]["namespace"] = "default".into();
    }
    (definition.default)(&mut object);
    object
}

fn text<'a>(object: &'a Value, at: &str) -> &'a str {
    object.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

impl Simulation<'_> {
    /// Makes `count` pods from the template of a workload, and lets them wait. `set` is the controller that owns them.
    pub(super) fn make_pods(
        &mut self,
        workload: &Value,
        set: (&str, &str),
        first: usize,
        count: usize,
        because: &str,
    ) -> Result<(), ObjectError> {
        let (kind, owner) = set;
        let namespace = text(workload, "/metadata/namespace").to_string();
        for n in 0..count {
            let name = match kind {
                "StatefulSet" => format!("{owner}-{}", first + n),
                _ => format!("{owner}-new-{}", self.next_name()),
            };
            let template = &workload["spec"]["template"];
            let mut pod =
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
            if !pod["metadata"].is_object() {
                pod["metadata"] = json!({});
            }
            pod["metadata"]["namespace"] = namespace.as_str().into();
            pod["metadata"]["name"] = name.as_str().into();
            let api_version = if kind == "ReplicationController" {
                "v1"
            } else {
                "apps/v1"
            };
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": api_version, "kind": kind, "name": owner, "uid": format!("{kind}-{owner}"), "controller": true}]);
            if kind == "StatefulSet" {
                self.make_claims(workload, &mut pod, &namespace, &name)?;
            }
            self.make_pod(pod, because)?;
        }
        Ok(())
    }

    /// A pod from a manifest waits for a node.
    pub(super) fn make_pod(&mut self, pod: Value, because: &str) -> Result<(), ObjectError> {
        let mut pod = defaulted(pod);
        if pod["metadata"]["uid"].is_null() {
            let key = (text(&pod, "/metadata/namespace"), text(&pod, "/metadata/name"));
            pod["metadata"]["uid"] = format!("simulated-{}-{}", key.0, key.1).into();
        }
        if pod["spec"]["priority"].is_null() {
            let class = pod["spec"]["priorityClassName"].as_str();
            pod["spec"]["priority"] = self.workloads.priority(class).into();
        }
        let failed = |source| ObjectError {
            kind: "Pod".into(),
            name: text(&pod, "/metadata/name").to_string(),
            source,
        };
        let model: Pod = serde::Deserialize::deserialize(&pod).map_err(failed)?;
        let info = self.world.cluster.decode(model);
        self.wait(info, None, because);
        Ok(())
    }

    /// A StatefulSet's claims for one of its pods, unless they are there.
    fn make_claims(
        &mut self,
        workload: &Value,
        pod: &mut Value,
        namespace: &str,
        name: &str,
    ) -> Result<(), ObjectError> {
        let templates = workload.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        for template in templates.into_iter().flatten() {
            let volume = text(template, "/metadata/name");
            let claim = format!("{volume}-{name}");
            let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
            let mut volumes: Vec<Value> = volumes.into_iter().filter(|v| v["name"] != volume).collect();
            volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
            pod["spec"]["volumes"] = volumes.into();
            if self.world.cluster.storage.claim(namespace, &claim).is_some() {
                continue;
            }
            let mut made = template.clone();
            made["metadata"] = json!({"namespace": namespace, "name": claim});
            let failed = |source| ObjectError {
                kind: "PersistentVolumeClaim".into(),
                name: claim.clone(),
                source,
            };
            let made: PersistentVolumeClaim = serde::Deserialize::deserialize(&made).map_err(failed)?;
            self.world.cluster.storage.observe_claim(namespace, &claim, Some(made));
        }
        Ok(())
    }

    /// What a workload selects counts for default spreading.
    pub(super) fn observe_selector(&mut self, workload: &Value, kind: &str, owner: &str) {
        let selector = &workload["spec"]["selector"];
        let selector: LabelSelector = match kind {
            "ReplicationController" => LabelSelector {
                match_labels: serde::Deserialize::deserialize(selector).unwrap_or_default(),
                match_expressions: vec![],
            },
            _ => serde::Deserialize::deserialize(selector).unwrap_or_default(),
        };
        let key = PodKey::new(text(workload, "/metadata/namespace"), owner);
        self.world.cluster.owners.observe_workload(kind, key, Some(selector));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_objects_and_mistakes_have_lines() {
        let text = "# two of them\napiVersion: v1\nkind: Pod\nmetadata: {name: pod}\nspec: {containers: [{name: c, image: a}]}\n---\n\
                    ---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n";
        let found = objects(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["metadata"]["namespace"], "default");
        assert_eq!(found[0]["spec"]["schedulerName"], "default-scheduler");
        let wrong = objects("kind: Pod\n---\na: [\n---\napiVersion: v1\nkind: Pod\n").unwrap_err();
        let told: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(told[0], "document 1, which begins on line 1: apiVersion is missing");
        assert!(told[1].starts_with("document 2, which begins on line 3: "), "{told:?}");
        assert_eq!(told[2], "document 3, which begins on line 5: metadata.name is missing");
    }
}
