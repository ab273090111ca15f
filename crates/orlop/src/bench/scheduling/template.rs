//! Manifests made into request bodies: rendered once, then only names are put in.

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// Stands for the object's name while a template is rendered. Not something a manifest would hold by chance.
const NAME: &str = "\u{1}name\u{1}";

/// A manifest of one object with `{run}` replaced.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    value: Value,
}

impl Manifest {
    pub(super) fn new(template: &Value, run: &str) -> anyhow::Result<Manifest> {
        let text = template.to_string().replace("{run}", run);
        let mut value: Value = serde_json::from_str(&text).context("the run's name can't break a manifest")?;
        let Some(object) = value.as_object_mut() else {
            bail!("a template must be an object with apiVersion and kind");
        };
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if !metadata.is_object() {
            bail!("a template's metadata must be an object");
        }
        let manifest = Manifest { value };
        if manifest.api_version().is_empty() || manifest.kind().is_empty() {
            bail!("a template must have apiVersion and kind");
        }
        Ok(manifest)
    }

    pub(super) fn api_version(&self) -> &str {
        self.value["apiVersion"].as_str().unwrap_or("")
    }

    pub(super) fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or("")
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.value["metadata"]["name"].as_str()
    }

    fn labels(&mut self) -> &mut Map<String, Value> {
        let metadata = self.value["metadata"].as_object_mut().expect("made an object in new()");
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if !labels.is_object() {
            *labels = json!({});
        }
        labels.as_object_mut().expect("made an object above")
    }

    pub(super) fn label(&mut self, key: &str, value: &str) {
        self.labels().insert(key.into(), value.into());
    }

    /// Nodes carry their name in a label too.
    pub(super) fn label_with_name(&mut self, key: &str) {
        let value = self.name().unwrap_or(NAME).to_string();
        self.label(key, &value);
    }

    pub(super) fn status(&self) -> &Value {
        &self.value["status"]
    }

    pub(super) fn taints(&self) -> &Value {
        &self.value["spec"]["taints"]
    }

    /// Allocatable is what the capacity says, as a kubelet without reservations reports it.
    pub(super) fn fill_allocatable(&mut self) {
        let capacity = self.value["status"]["capacity"].clone();
        if self.value["status"]["allocatable"].is_null() && capacity.is_object() {
            self.value["status"]["allocatable"] = capacity;
        }
    }

    /// Ready for names. A name given in the manifest stays.
    pub(super) fn body(&self) -> Body {
        let mut value = self.value.clone();
        if self.name().is_none() {
            value["metadata"]["name"] = NAME.into();
        }
        let marker = json!(NAME).to_string();
        let text = value.to_string();
        let marker = marker.trim_matches('"');
        Body {
            parts: text.split(marker).map(str::to_string).collect(),
            fixed_name: self.name().map(str::to_string),
        }
    }
}

/// The text of an object around the places of its name.
#[derive(Debug)]
pub(super) struct Body {
    parts: Vec<String>,
    pub fixed_name: Option<String>,
}

impl Body {
    pub(super) fn named(&self, name: &str) -> Bytes {
        let size = self.parts.iter().map(String::len).sum::<usize>() + name.len() * self.parts.len();
        let mut text = String::with_capacity(size);
        for (i, part) in self.parts.iter().enumerate() {
            if i > 0 {
                text.push_str(name);
            }
            text.push_str(part);
        }
        Bytes::from(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spliced_into_text_rendered_once() {
        let template =
            json!({"apiVersion": "v1", "kind": "Node", "status": {"capacity": {"cpu": "4"}}, "spec": {"x": "{run}-a"}});
        let mut manifest = Manifest::new(&template, "ob1").unwrap();
        manifest.label_with_name("kubernetes.io/hostname");
        manifest.label("zone", "z1");
        manifest.fill_allocatable();
        let body: Value = serde_json::from_slice(&manifest.body().named("n-7")).unwrap();
        let wanted = json!({
            "apiVersion": "v1", "kind": "Node", "spec": {"x": "ob1-a"},
            "metadata": {"name": "n-7", "labels": {"kubernetes.io/hostname": "n-7", "zone": "z1"}},
            "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}},
        });
        assert_eq!(body, wanted);
    }

    #[test]
    fn a_name_in_the_manifest_stays() {
        let template = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "{run}-target"}});
        let body = Manifest::new(&template, "ob1").unwrap().body();
        assert_eq!(body.fixed_name.as_deref(), Some("ob1-target"));
        let body: Value = serde_json::from_slice(&body.named("other")).unwrap();
        assert_eq!(body["metadata"]["name"], "ob1-target");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for template in [
            json!(1),
            json!([]),
            json!({"kind": "Pod"}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": 3}),
        ] {
            assert!(Manifest::new(&template, "r").is_err(), "{template}");
        }
    }
}
