use std::collections::BTreeSet;
use std::io::Read;

use flate2::read::GzDecoder;
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION};
use orlop_api::kinds;
use serde_json::Value;

use super::document::{Document, Format};
use super::gnostic::tests::{all, named_value};
use super::*;

fn json(document: Document) -> Value {
    let mut out = vec![];
    document.write(&Snapshot::default(), Format::Json, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn get(path: &str, headers: &[(http::header::HeaderName, &str)]) -> Option<Response<Body>> {
    let (path, raw) = path.split_once('?').unwrap_or((path, ""));
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(name, value.parse().unwrap());
    }
    respond(&Arc::default(), path, &Query::parse(raw), &map)
}

fn content(response: Response<Body>) -> Vec<u8> {
    match response.into_body() {
        Body::Whole(bytes) => bytes.unwrap_or_default().to_vec(),
        Body::Chunks(chunks) => chunks.flatten().collect(),
        Body::Watch(_) | Body::Stream(..) | Body::Followed(..) => panic!("no stream"),
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get("$ref") {
                found.insert(target.clone());
            }
            members.values().for_each(|v| references(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn the_index_lists_every_group_version() {
    let index: Value = serde_json::from_slice(&content(get("/openapi/v3", &[]).unwrap())).unwrap();
    let paths = index["paths"].as_object().unwrap();
    for kind in kinds::all() {
        let name = names::GroupVersion::of(kind).path();
        let url = paths[&name]["serverRelativeURL"].as_str().unwrap();
        assert!(url.starts_with(&format!("/openapi/v3/{name}?hash=")), "{url}");
    }
    for name in ["api", "apis", "apis/apps", "version", "openid/v1/jwks"] {
        assert!(paths.contains_key(name), "{name}");
    }
}

#[test]
fn every_reference_resolves() {
    let mut documents = Document::parts(&Snapshot::default());
    documents.push(Document::Swagger);
    for document in documents {
        let value = json(document);
        let mut targets = BTreeSet::new();
        references(&value, &mut targets);
        for target in targets {
            // Names have dots, but no slashes.
            let pointer = target.strip_prefix('#').unwrap();
            assert!(value.pointer(pointer).is_some(), "{document:?}: {target}");
        }
    }
}

#[test]
fn every_kind_has_its_schema_and_can_be_patched() {
    let swagger = json(Document::Swagger);
    for gv in names::GroupVersion::built_in() {
        let document = json(Document::Group(gv));
        for kind in gv.kinds(&Snapshot::default()) {
            let gvk = gv.gvk(kind.kind);
            let name = names::of_type(kind.schema);
            for definition in [
                &document["components"]["schemas"][&name],
                &swagger["definitions"][&name],
            ] {
                let kinds = definition["x-kubernetes-group-version-kind"].as_array();
                assert!(kinds.is_some_and(|k| k.contains(&gvk)), "{name}");
            }
            if !kind.verbs.names().contains(&"patch") {
                continue;
            }
            let patches = document["paths"].as_object().unwrap().values();
            let patches: Vec<&Value> = patches
                .filter_map(|item| item.get("patch"))
                .filter(|patch| patch["x-kubernetes-group-version-kind"] == gvk)
                .collect();
            assert!(!patches.is_empty(), "{name}");
            for patch in patches {
                let names: Vec<_> = patch["parameters"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|p| &p["name"])
                    .collect();
                assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
            }
        }
    }
}

#[test]
fn operation_ids_are_unique() {
    let swagger = json(Document::Swagger);
    let mut seen = BTreeSet::new();
    for (path, item) in swagger["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(k, _)| *k != "parameters") {
            let id = operation["operationId"].as_str().unwrap();
            assert!(seen.insert(id.to_string()), "{method} {path}: {id}");
        }
    }
    for id in [
        "listAppsV1DeploymentForAllNamespaces",
        "patchAppsV1NamespacedDeploymentScale",
        "deleteAppsV1CollectionNamespacedDeployment",
        "createCoreV1NamespacedServiceAccountToken",
        "replaceCoreV1NamespaceFinalize",
        "getRbacAuthorizationV1APIResources",
    ] {
        assert!(seen.contains(id), "{id}");
    }
}

#[test]
fn definitions_say_how_fields_merge() {
    let document = json(
        Document::parts(&Snapshot::default())
            .into_iter()
            .find(|d| d.name() == "apis/apps/v1")
            .unwrap(),
    );
    let schemas = &document["components"]["schemas"];
    let without_description = |pointer: &str| {
        let mut value = schemas.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")).clone();
        value.as_object_mut().unwrap().remove("description");
        value
    };
    assert_eq!(
        without_description("/io.k8s.api.core.v1.Container/properties/ports"),
        serde_json::json!({
            "type": "array",
            "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"}], "default": {}},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "containerPort",
        })
    );
    assert_eq!(
        without_description("/io.k8s.api.core.v1.ContainerPort/properties/protocol"),
        serde_json::json!({"type": "string", "default": "TCP", "enum": ["SCTP", "TCP", "UDP"]})
    );
    assert_eq!(
        without_description("/io.k8s.api.core.v1.PodSpec/properties/nodeSelector"),
        serde_json::json!({
            "type": "object", "additionalProperties": {"type": "string", "default": ""}, "x-kubernetes-map-type": "atomic",
        })
    );
    assert_eq!(
        without_description("/io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
        serde_json::json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
    );
    let selector = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"];
    assert_eq!(selector["x-kubernetes-map-type"], "atomic");
    let required = &schemas["io.k8s.api.apps.v1.DeploymentSpec"]["required"];
    assert_eq!(required, &serde_json::json!(["selector", "template"]));
}

#[test]
fn protobuf_reads_back() {
    let mut swagger = vec![];
    Document::Swagger
        .write(&Snapshot::default(), Format::Protobuf, &mut swagger)
        .unwrap();
    assert_eq!(all(&swagger, 1), [b"2.0"]);
    let paths = all(&swagger, gnostic_v2::PATHS).pop().unwrap();
    let item = named_value(
        &paths,
        gnostic_v2::PATH,
        "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
    )
    .unwrap();
    let patch = all(&item, 8).pop().unwrap();
    let gvk = named_value(&patch, 13, "x-kubernetes-group-version-kind").unwrap();
    let gvk: Value = serde_json::from_slice(&all(&gvk, 2)[0]).unwrap();
    assert_eq!(gvk["kind"], "Deployment");
    // ParametersItem → Parameter → NonBodyParameter → QueryParameterSubSchema → name
    let query_names: Vec<_> = [1, 2, 3, 4].iter().fold(all(&patch, 8), |level, tag| {
        level.iter().flat_map(|m| all(m, *tag)).collect()
    });
    assert_eq!(query_names, [b"dryRun".to_vec(), b"fieldValidation".to_vec()]);
    let definitions = all(&swagger, gnostic_v2::DEFINITIONS).pop().unwrap();
    let spec = named_value(&definitions, 1, "io.k8s.api.core.v1.PodSpec").unwrap();
    assert_eq!(all(&all(&spec, 22)[0], 1), [b"object"]);
    let containers = named_value(&all(&spec, 25)[0], 1, "containers").unwrap();
    let key = named_value(&containers, 31, "x-kubernetes-patch-merge-key").unwrap();
    assert_eq!(all(&key, 2), [b"\"name\"\n"]);

    let mut core = vec![];
    let document = Document::parts(&Snapshot::default())
        .into_iter()
        .find(|d| d.name() == "api/v1")
        .unwrap();
    document
        .write(&Snapshot::default(), Format::Protobuf, &mut core)
        .unwrap();
    assert_eq!(all(&core, 1), [b"3.0.0"]);
    let schemas = all(&all(&core, gnostic_v3::COMPONENTS)[0], gnostic_v3::SCHEMAS)
        .pop()
        .unwrap();
    let config_map = named_value(&schemas, 1, "io.k8s.api.core.v1.ConfigMap").unwrap();
    let properties = all(&all(&config_map, 1)[0], 31).pop().unwrap();
    let metadata = named_value(&properties, 1, "metadata").unwrap();
    // SchemaOrReference → Schema → allOf → Reference
    let target = [1, 26, 2, 1].iter().fold(vec![metadata], |level, tag| {
        level.iter().flat_map(|m| all(m, *tag)).collect()
    });
    assert_eq!(
        target,
        [b"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta".to_vec()]
    );
}

#[test]
fn the_client_chooses_the_format() {
    let v2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let v3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    for (path, accept, answer) in [
        ("/openapi/v2", "*/*", Some("application/json")),
        (
            "/openapi/v2",
            v2,
            Some("application/com.github.proto-openapi.spec.v2.v1.0+protobuf"),
        ),
        ("/openapi/v2", v3, None),
        ("/openapi/v3/version", v3, Some(v3)),
        (
            "/openapi/v3/version",
            &format!("{v3};q=0.5, application/json"),
            Some("application/json"),
        ),
        ("/openapi/v3/version", "text/html", None),
    ] {
        let response = get(path, &[(ACCEPT, accept)]).unwrap();
        let found = response.headers().get(CONTENT_TYPE).map(|v| v.to_str().unwrap());
        assert_eq!(found, answer, "{path} {accept}");
        let code = if answer.is_some() { 200 } else { 406 };
        assert_eq!(response.status(), code, "{path} {accept}");
    }
    assert!(get("/openapi/v3/apis/none/v1", &[]).is_none());
    assert!(get("/openapi/v4", &[]).is_none());
}

#[test]
fn answers_can_be_kept() {
    let plain = get("/openapi/v3/apis/apps", &[]).unwrap();
    assert!(plain.headers().get(CACHE_CONTROL).is_none());
    let etag = plain.headers()[ETAG].to_str().unwrap().to_string();
    let hash = etag.trim_matches('"');
    let hashed = get(&format!("/openapi/v3/apis/apps?hash={hash}"), &[]).unwrap();
    assert!(hashed.headers()[CACHE_CONTROL].to_str().unwrap().contains("immutable"));
    let moved = get("/openapi/v3/apis/apps?hash=OLD", &[]).unwrap();
    assert_eq!(moved.status(), 301);
    assert_eq!(moved.headers()[LOCATION], format!("/openapi/v3/apis/apps?hash={hash}"));
    for path in ["/openapi/v3", "/openapi/v2", "/openapi/v3/apis/apps"] {
        let etag = get(path, &[]).unwrap().headers()[ETAG].to_str().unwrap().to_string();
        let known = get(path, &[(IF_NONE_MATCH, &format!("\"other\", {etag}"))]).unwrap();
        assert_eq!(known.status(), 304, "{path}");
        assert!(content(known).is_empty());
    }
}

#[test]
fn plain_and_packed_answers_are_the_same() {
    let encoding = http::header::ACCEPT_ENCODING;
    let packed = content(get("/openapi/v3/apis/apps/v1", &[(encoding, "gzip")]).unwrap());
    let mut unpacked = vec![];
    GzDecoder::new(&*packed).read_to_end(&mut unpacked).unwrap();
    let plain = content(get("/openapi/v3/apis/apps/v1", &[]).unwrap());
    assert!(packed.len() * 4 < plain.len());
    assert_eq!(plain, unpacked);
}
