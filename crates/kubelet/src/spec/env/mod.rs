//! A container's environment: `env`, `envFrom`, and variables of services.
//!
//! First everything the container refers to is fetched ([`gather`]), then a pure function puts the variables together
//! ([`environment`]). Variables come in the order they are written (those of `envFrom` first, sorted within one source), a
//! later one replaces an earlier one of the same name, and services' variables fill in what is left.

mod env_file;
mod fields;
mod services;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use orlop_api::types::core::{ConfigMap, Container, EnvVarSource, FileKeySelector, Pod, Secret, Service};
use orlop_runtime::cri::messages::KeyValue;

use super::{NodeFacts, SpecError, expand, namespace, uid};
use crate::objects::{ObjectError, Objects};
pub use fields::{field_value, format_map, resource_value};
pub use services::service_variables;

/// What a container's variables refer to, as it was found.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    config_maps: HashMap<String, Result<Arc<ConfigMap>, ObjectError>>,
    secrets: HashMap<String, Result<Arc<Secret>, ObjectError>>,
    /// Values by volume, path and key.
    files: HashMap<(String, String, String), Result<Option<String>, SpecError>>,
}

/// A container's variables, with everything they refer to fetched.
pub async fn resolve(
    pod: &Pod,
    container: &Container,
    objects: &Objects,
    services: &[Arc<Service>],
    pod_ips: &[String],
    facts: &NodeFacts,
) -> Result<Vec<KeyValue>, SpecError> {
    let gathered = gather(pod, container, objects, facts).await;
    environment(pod, container, &gathered, services, pod_ips, facts)
}

/// Fetches the config maps, secrets and files that a container's variables refer to.
pub async fn gather(pod: &Pod, container: &Container, objects: &Objects, facts: &NodeFacts) -> Gathered {
    let mut found = Gathered::default();
    let namespace = namespace(pod);
    for name in config_map_names(container) {
        if !found.config_maps.contains_key(name) {
            let object = objects.config_map(namespace, name).await;
            found.config_maps.insert(name.to_string(), object);
        }
    }
    for name in secret_names(container) {
        if !found.secrets.contains_key(name) {
            let object = objects.secret(namespace, name).await;
            found.secrets.insert(name.to_string(), object);
        }
    }
    for file in value_sources(container).filter_map(|v| v.file_key_ref.as_ref()) {
        found.files.insert(file_key(file), read_file(pod, file, facts));
    }
    found
}

fn value_sources(container: &Container) -> impl Iterator<Item = &EnvVarSource> {
    container.env.iter().flatten().filter_map(|e| e.value_from.as_ref())
}

fn config_map_names(container: &Container) -> impl Iterator<Item = &str> {
    let whole = container
        .env_from
        .iter()
        .flatten()
        .filter_map(|e| e.config_map_ref.as_ref());
    let keys = value_sources(container).filter_map(|v| v.config_map_key_ref.as_ref());
    whole.map(|r| r.name.as_str()).chain(keys.map(|r| r.name.as_str()))
}

fn secret_names(container: &Container) -> impl Iterator<Item = &str> {
    let whole = container
        .env_from
        .iter()
        .flatten()
        .filter_map(|e| e.secret_ref.as_ref());
    let keys = value_sources(container).filter_map(|v| v.secret_key_ref.as_ref());
    whole.map(|r| r.name.as_str()).chain(keys.map(|r| r.name.as_str()))
}

fn file_key(file: &FileKeySelector) -> (String, String, String) {
    (file.volume_name.clone(), file.path.clone(), file.key.clone())
}

/// Files of variables lie in emptyDir volumes only, where an init container has written them.
fn read_file(pod: &Pod, file: &FileKeySelector, facts: &NodeFacts) -> Result<Option<String>, SpecError> {
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    if !volumes.any(|v| v.name == file.volume_name && v.empty_dir.is_some()) {
        return Err(SpecError(format!(
            "cannot find the volume {:?} referenced by FileKeyRef",
            file.volume_name
        )));
    }
    let volumes = facts.pod_dir(uid(pod)).join("volumes/kubernetes.io~empty-dir");
    env_file::read(&volumes.join(&file.volume_name), Path::new(&file.path), &file.key).map_err(|error| {
        tracing::warn!(pod = %super::describe(pod), err = %error, "failed to read env file");
        // The message could reveal files of the host: it is only logged.
        SpecError::new("couldn't parse env file")
    })
}

/// Variables by name, in the order they were first set.
#[derive(Default)]
struct Variables<'a> {
    list: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
    places: HashMap<Cow<'a, str>, usize>,
}

impl<'a> Variables<'a> {
    fn set(&mut self, name: Cow<'a, str>, value: Cow<'a, [u8]>) {
        match self.places.get(&name) {
            Some(&place) => self.list[place].1 = value,
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.places.get(name).map(|&place| &*self.list[place].1)
    }
}

/// Puts a container's variables together.
pub fn environment(
    pod: &Pod,
    container: &Container,
    gathered: &Gathered,
    services: &[Arc<Service>],
    pod_ips: &[String],
    facts: &NodeFacts,
) -> Result<Vec<KeyValue>, SpecError> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let of_services = service_variables(services.iter().map(Arc::as_ref), namespace(pod), links);
    let mut vars = Variables::default();
    add_env_from(&mut vars, container, gathered)?;
    let context = Context {
        pod,
        container,
        gathered,
        pod_ips,
        facts,
    };
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            Some(source) if literal.is_empty() => match context.value(source)? {
                Some(value) => value,
                None => continue,
            },
            _ => Cow::Owned(expand_literal(literal, &vars, &of_services).into_bytes()),
        };
        vars.set(Cow::Borrowed(&variable.name), value);
    }
    for (name, value) in of_services {
        if vars.get(&name).is_none() {
            vars.set(Cow::Owned(name), Cow::Owned(value.into_bytes()));
        }
    }
    let pairs = vars.list.into_iter().map(|(name, value)| KeyValue {
        key: name.into_owned(),
        value: value.into_owned(),
    });
    Ok(pairs.collect())
}

fn expand_literal(text: &str, vars: &Variables<'_>, of_services: &BTreeMap<String, String>) -> String {
    expand(text, |name| match vars.get(name) {
        Some(value) => Some(String::from_utf8_lossy(value)),
        None => of_services.get(name).map(|v| Cow::Borrowed(v.as_str())),
    })
}

/// All keys of whole config maps and secrets.
fn add_env_from<'a>(
    vars: &mut Variables<'a>,
    container: &'a Container,
    gathered: &'a Gathered,
) -> Result<(), SpecError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let name = |key: &'a str| match prefix {
            "" => Cow::Borrowed(key),
            _ => Cow::Owned(format!("{prefix}{key}")),
        };
        if let Some(reference) = &from.config_map_ref {
            if let Some(map) = found(&gathered.config_maps, &reference.name, reference.optional)? {
                for (key, value) in map.data.iter().flatten() {
                    vars.set(name(key), Cow::Borrowed(value.as_bytes()));
                }
            }
        } else if let Some(reference) = &from.secret_ref
            && let Some(secret) = found(&gathered.secrets, &reference.name, reference.optional)?
        {
            for (key, value) in secret.data.iter().flatten() {
                vars.set(name(key), Cow::Borrowed(&value.0));
            }
        }
    }
    Ok(())
}

/// An object that was fetched; `None` if it is not there and need not be.
fn found<'a, T>(
    fetched: &'a HashMap<String, Result<Arc<T>, ObjectError>>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a T>, SpecError> {
    match fetched.get(name) {
        Some(Ok(object)) => Ok(Some(object)),
        Some(Err(ObjectError::NotFound(_))) if optional == Some(true) => Ok(None),
        Some(Err(error)) => Err(SpecError(error.to_string())),
        None => Err(SpecError(format!("{name:?} was not fetched"))),
    }
}

struct Context<'a> {
    pod: &'a Pod,
    container: &'a Container,
    gathered: &'a Gathered,
    pod_ips: &'a [String],
    facts: &'a NodeFacts,
}

impl<'a> Context<'a> {
    /// The value a reference stands for; `None` if it is missing and may be.
    fn value(&self, source: &'a EnvVarSource) -> Result<Option<Cow<'a, [u8]>>, SpecError> {
        let owned = |text: String| Some(Cow::Owned(text.into_bytes()));
        if let Some(field) = &source.field_ref {
            let version = field.api_version.as_deref().unwrap_or("v1");
            return field_value(self.pod, version, &field.field_path, self.pod_ips, self.facts).map(owned);
        }
        if let Some(resource) = &source.resource_field_ref {
            return resource_value(resource, self.pod, Some(self.container), self.facts).map(owned);
        }
        if let Some(r) = &source.config_map_key_ref {
            let map = found(&self.gathered.config_maps, &r.name, r.optional)?;
            let value = map.and_then(|m| m.data.as_ref()?.get(&r.key));
            return self.key(
                value.map(|v| v.as_bytes()),
                map.is_some(),
                "ConfigMap",
                &r.name,
                &r.key,
                r.optional,
            );
        }
        if let Some(r) = &source.secret_key_ref {
            let secret = found(&self.gathered.secrets, &r.name, r.optional)?;
            let value = secret.and_then(|s| s.data.as_ref()?.get(&r.key));
            return self.key(
                value.map(|v| &v.0[..]),
                secret.is_some(),
                "Secret",
                &r.name,
                &r.key,
                r.optional,
            );
        }
        if let Some(file) = &source.file_key_ref {
            return self.file(file).map(|value| value.and_then(owned));
        }
        Ok(owned(String::new()))
    }

    fn key(
        &self,
        value: Option<&'a [u8]>,
        object_is_there: bool,
        kind: &str,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<Cow<'a, [u8]>>, SpecError> {
        match value {
            Some(value) => Ok(Some(Cow::Borrowed(value))),
            None if optional == Some(true) || !object_is_there => Ok(None),
            None => Err(SpecError(format!(
                "couldn't find key {key} in {kind} {}/{name}",
                namespace(self.pod)
            ))),
        }
    }

    fn file(&self, file: &FileKeySelector) -> Result<Option<String>, SpecError> {
        let value = match self.gathered.files.get(&file_key(file)) {
            Some(Ok(value)) => value.clone(),
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(SpecError(format!("{:?} was not read", file.path))),
        };
        match value {
            Some(value) => Ok(Some(value)),
            None if file.optional == Some(true) => Ok(None),
            None => Err(SpecError(format!(
                "environment variable key {:?} not found in file {:?}",
                file.key, file.path
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
