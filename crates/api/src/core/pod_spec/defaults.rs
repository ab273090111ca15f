//! What Kubernetes fills in, in a pod and in a template.
//!
//! Upstream: pkg/apis/core/v1/defaults.go, zz_generated.defaults.go (v1.36). A Go field that is no pointer cannot tell
//! "" or 0 from absent, so both get the default; of a pointer only absence counts.

use serde_json::{Map, Value};

use super::image;
use crate::core::persistent_volume_claim;
use crate::quantity::{Format, Quantity};
use crate::resources::{self, PodResourceOptions};

type Object = Map<String, Value>;

/// Fills in the defaults of a pod spec, in a pod or in a template.
pub fn default(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    drop_disabled(spec);
    mirror_service_account(spec);
    string(spec, "dnsPolicy", "ClusterFirst");
    string(spec, "restartPolicy", "Always");
    string(spec, "schedulerName", "default-scheduler");
    absent(spec, "terminationGracePeriodSeconds", || 30.into());
    absent(spec, "securityContext", || Value::Object(Object::new()));
    each(spec, "volumes", volume);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    if let Some(overhead) = object(spec, "overhead") {
        round_up(overhead);
    }
    requirements(spec);
}

/// Fills in what only a pod gets, not a template: requests from limits, host ports of the host network, service links.
/// Runs before `default`.
pub fn default_pod_only(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers"] {
        each(spec, list, |container| {
            if let Some(resources) = object(container, "resources") {
                requests_from_limits(resources);
            }
            if host_network {
                each(container, "ports", host_port);
            }
        });
    }
    absent(spec, "enableServiceLinks", || true.into());
    // Before there was a rule against it, pods were made with a negative period: it means as short as can be.
    let period = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    if period.is_some_and(|n| n < 0) {
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    let own = spec.get("resources").and_then(Value::as_object);
    if own.is_some_and(|r| is_filled(r, "limits") || is_filled(r, "requests")) {
        pod_level(pod);
    }
}

/// The old name of the service account is shown beside the new one; if only the old one is given, it counts.
pub fn mirror_service_account(spec: &mut Object) {
    let text = |field| spec.get(field).and_then(Value::as_str).filter(|s: &&str| !s.is_empty());
    let (new, old) = (text("serviceAccountName"), text("serviceAccount"));
    if new == old {
        return;
    }
    match new.or(old).map(str::to_string) {
        Some(name) => {
            spec.insert("serviceAccount".into(), name.clone().into());
            spec.insert("serviceAccountName".into(), name.into());
        }
        None => {
            spec.remove("serviceAccount");
        }
    }
}

/// Fields whose feature gate is off in 1.36 vanish, as they would in Kubernetes.
fn drop_disabled(spec: &mut Object) {
    spec.remove("schedulingGroup");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, |container| {
            if let Some(lifecycle) = object(container, "lifecycle") {
                lifecycle.remove("stopSignal");
            }
        });
    }
    each(spec, "volumes", |volume| {
        if let Some(projected) = object(volume, "projected") {
            each(projected, "sources", |source| {
                source.remove("clusterTrustBundle");
                source.remove("podCertificate");
            });
        }
    });
}

fn requests_from_limits(resources: &mut Object) {
    let Some(Value::Object(limits)) = resources.get("limits") else {
        return;
    };
    let given = resources.get("requests").and_then(Value::as_object);
    let missing: Vec<(String, Value)> = limits
        .iter()
        .filter(|(name, _)| given.is_none_or(|r| !r.contains_key(*name)))
        .map(|(name, q)| (name.clone(), q.clone()))
        .collect();
    if missing.is_empty() {
        return;
    }
    let requests = resources
        .entry("requests")
        .or_insert_with(|| Value::Object(Object::new()));
    if let Some(requests) = requests.as_object_mut() {
        requests.extend(missing);
    }
}

fn host_port(port: &mut Object) {
    if let Some(n) = port.get("containerPort").cloned() {
        number(port, "hostPort", || n);
    }
}

/// Pod-level resources that are given in part are completed from the containers'.
fn pod_level(pod: &mut Value) {
    let limits = resources::container_limits(pod, PodResourceOptions::default());
    let requests = resources::container_requests(pod, PodResourceOptions::default());
    let Some(own) = pod.pointer_mut("/spec/resources").and_then(Value::as_object_mut) else {
        return;
    };

    let has = |own: &Object, part: &str, name: &str| own.get(part).is_some_and(|list| list.get(name).is_some());
    for (name, q) in limits.iter().filter(|(name, _)| resources::is_hugepages(name)) {
        if !has(own, "requests", name) && !has(own, "limits", name) {
            put(own, "limits", name, q.canonical().into());
        }
    }
    if !is_filled(own, "limits") {
        return;
    }
    for (name, q) in &requests {
        let wanted = resources::is_pod_level(name) && resources::overcommit_allowed(name);
        if wanted && !has(own, "requests", name) {
            put(own, "requests", name, q.canonical().into());
        }
    }
    for (name, q) in own
        .get("limits")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
    {
        if resources::is_pod_level(&name) && !has(own, "requests", &name) {
            put(own, "requests", &name, q);
        }
    }
}

fn put(resources: &mut Object, part: &str, name: &str, q: Value) {
    let list = resources.entry(part).or_insert_with(|| Value::Object(Object::new()));
    if let Some(list) = list.as_object_mut() {
        list.insert(name.to_string(), q);
    }
}

fn container(c: &mut Object) {
    let image = c.get("image").and_then(Value::as_str).unwrap_or("");
    let policy = if image::is_latest(image) {
        "Always"
    } else {
        "IfNotPresent"
    };
    string(c, "imagePullPolicy", policy);
    string(c, "terminationMessagePath", "/dev/termination-log");
    string(c, "terminationMessagePolicy", "File");
    each(c, "ports", |port| string(port, "protocol", "TCP"));
    each(c, "env", |var| {
        if let Some(from) = object(var, "valueFrom") {
            field_ref(from);
            if let Some(file) = object(from, "fileKeyRef") {
                absent(file, "optional", || false.into());
            }
        }
    });
    requirements(c);
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object(c, name) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = object(c, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(handler) = object(lifecycle, hook) {
                http_get(handler);
            }
        }
    }
}

fn requirements(holder: &mut Object) {
    if let Some(resources) = object(holder, "resources") {
        for part in ["limits", "requests"] {
            if let Some(list) = object(resources, part) {
                round_up(list);
            }
        }
    }
}

/// Quantities are kept to thousandths.
pub(crate) fn round_up(list: &mut Object) {
    for q in list.values_mut() {
        let Some(text) = q.as_str() else { continue };
        // Only these can hold less than a thousandth: canonical text carries the smallest unit in its suffix.
        if !(text.ends_with(['n', 'u']) || text.contains(['.', 'e', 'E'])) {
            continue;
        }
        if let Ok(exact) = Quantity::parse(text)
            && exact.nanos() % 1_000_000 != 0
        {
            // Up means towards the greater number, also below zero.
            let milli = exact.nanos().div_euclid(1_000_000) + 1;
            let milli = milli.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
            let format = match exact.format() {
                Format::BinarySI => Format::DecimalSI,
                other => other,
            };
            *q = Quantity::from_milli(milli, format).canonical().into();
        }
    }
}

fn probe(probe: &mut Object) {
    for (name, n) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        number(probe, name, || n.into());
    }
    http_get(probe);
    if let Some(grpc) = object(probe, "grpc") {
        absent(grpc, "service", || "".into());
    }
}

fn http_get(handler: &mut Object) {
    if let Some(http) = object(handler, "httpGet") {
        string(http, "path", "/");
        string(http, "scheme", "HTTP");
    }
}

fn field_ref(holder: &mut Object) {
    if let Some(field) = object(holder, "fieldRef") {
        string(field, "apiVersion", "v1");
    }
}

fn volume(v: &mut Object) {
    if !v.iter().any(|(name, source)| name != "name" && !source.is_null()) {
        v.insert("emptyDir".into(), Value::Object(Object::new()));
        return;
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = object(v, name) {
            absent(source, "defaultMode", || 0o644.into());
            each(source, "items", field_ref);
            each(source, "sources", projection);
        }
    }
    if let Some(host) = object(v, "hostPath") {
        absent(host, "type", || "".into());
    }
    if let Some(image) = object(v, "image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or("");
        let policy = if image::is_latest(reference) {
            "Always"
        } else {
            "IfNotPresent"
        };
        string(image, "pullPolicy", policy);
    }
    if let Some(claim) = object(v, "ephemeral").and_then(|e| object(e, "volumeClaimTemplate")) {
        let spec = claim.entry("spec").or_insert_with(|| Value::Object(Object::new()));
        if spec.is_object() {
            persistent_volume_claim::default_spec(spec);
        }
    }
    legacy_volume(v);
}

fn projection(source: &mut Object) {
    if let Some(items) = object(source, "downwardAPI") {
        each(items, "items", field_ref);
    }
    if let Some(token) = object(source, "serviceAccountToken") {
        absent(token, "expirationSeconds", || 3600.into());
    }
}

/// In-tree volume plugins of the past, whose fields still have defaults.
fn legacy_volume(v: &mut Object) {
    if let Some(iscsi) = object(v, "iscsi") {
        string(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = object(v, "rbd") {
        string(rbd, "pool", "rbd");
        string(rbd, "user", "admin");
        string(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = object(v, "azureDisk") {
        absent(disk, "cachingMode", || "ReadWrite".into());
        absent(disk, "fsType", || "ext4".into());
        absent(disk, "readOnly", || false.into());
        absent(disk, "kind", || "Shared".into());
    }
    if let Some(sio) = object(v, "scaleIO") {
        string(sio, "storageMode", "ThinProvisioned");
        string(sio, "fsType", "xfs");
    }
}

fn object<'m>(map: &'m mut Object, name: &str) -> Option<&'m mut Object> {
    map.get_mut(name)?.as_object_mut()
}

fn is_filled(map: &Object, name: &str) -> bool {
    map.get(name).and_then(Value::as_object).is_some_and(|m| !m.is_empty())
}

fn each(map: &mut Object, list: &str, fill: impl Fn(&mut Object)) {
    let items = map.get_mut(list).and_then(Value::as_array_mut);
    items
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
        .for_each(fill);
}

fn absent(map: &mut Object, name: &str, value: impl FnOnce() -> Value) {
    if map.get(name).is_none_or(Value::is_null) {
        map.insert(name.to_string(), value());
    }
}

fn string(map: &mut Object, name: &str, value: &str) {
    if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
        map.insert(name.to_string(), value.into());
    }
}

fn number(map: &mut Object, name: &str, value: impl FnOnce() -> Value) {
    if map.get(name).and_then(Value::as_i64).is_none_or(|n| n == 0) {
        map.insert(name.to_string(), value());
    }
}
