//! What the fuzzer starts from.

use orlop_api::patch::merge;
use orlop_api::schema::{self, TypeRef};
use orlop_api::{KindDef, Value, kinds};
use orlop_base::Random;
use serde_json::json;

/// Good objects, requests and texts to start from.
pub(crate) struct Corpus {
    pub objects: Vec<(&'static KindDef, TypeRef, Value)>,
    pub requests: Vec<Vec<u8>>,
}

impl Corpus {
    pub(crate) fn new() -> Corpus {
        let container = json!({"name": "c", "image": "i:1", "ports": [{"containerPort": 80, "name": "http"}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
            "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
            "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5, "timeoutSeconds": 3},
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        let pod = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 60,
            "containers": [container], "initContainers": [{"name": "i", "image": "i"}],
            "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["3"]}]}]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm": {"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}}}]}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}]});
        let template = json!({"metadata": {"labels": {"app": "d"}}, "spec": pod});
        let selector = json!({"matchLabels": {"app": "d"}, "matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["y"]}]});
        let once = json!({"metadata": {"labels": {"app": "d"}}, "spec": {"restartPolicy": "Never", "containers": [container]}});
        let specs = [
            (
                "Pod",
                json!({"spec": pod, "status": {"phase": "Running", "startTime": "2026-01-02T03:04:05Z", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}),
            ),
            (
                "Deployment",
                json!({"spec": {"replicas": 3, "selector": selector, "template": template, "minReadySeconds": 5, "progressDeadlineSeconds": 600, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}}),
            ),
            (
                "StatefulSet",
                json!({"spec": {"serviceName": "s", "selector": selector, "template": template, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}}),
            ),
            (
                "Job",
                json!({"spec": {"completions": 3, "parallelism": 2, "backoffLimit": 6, "ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 600, "template": once}}),
            ),
            (
                "CronJob",
                json!({"spec": {"schedule": "*/5 0-4,7 * JAN MON", "timeZone": "Europe/Berlin", "startingDeadlineSeconds": 60, "jobTemplate": {"spec": {"template": once}}}}),
            ),
            (
                "ConfigMap",
                json!({"data": {"k": "v", "l": "w"}, "binaryData": {"b": "aGVsbG8="}, "immutable": false}),
            ),
            ("Secret", json!({"type": "Opaque", "data": {"k": "dg=="}})),
            (
                "Service",
                json!({"spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"name": "p", "port": 80, "targetPort": "http", "nodePort": 30123, "protocol": "TCP"}], "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}}}}),
            ),
            (
                "Node",
                json!({"spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]}, "status": {"capacity": {"cpu": "4", "memory": "8Gi"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
            ),
            (
                "Lease",
                json!({"spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": 3}}),
            ),
            (
                "ResourceQuota",
                json!({"spec": {"hard": {"pods": "100k", "requests.cpu": "10", "count/configmaps": "1e3"}, "scopes": ["NotTerminating"]}}),
            ),
            (
                "HorizontalPodAutoscaler",
                json!({"spec": {"minReplicas": 1, "maxReplicas": 9, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}}),
            ),
            (
                "ClusterRole",
                json!({"rules": [{"apiGroups": ["*"], "resources": ["pods/status"], "verbs": ["get"]}], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
            ),
            (
                "NetworkPolicy",
                json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 80, "endPort": 90}]}]}}),
            ),
            (
                "CertificateSigningRequest",
                json!({"spec": {"request": "aGVsbG8=", "signerName": "kubernetes.io/kubelet-serving", "usages": ["server auth"], "expirationSeconds": 3600}}),
            ),
            (
                "CustomResourceDefinition",
                json!({"spec": {"group": "g.io", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"}, "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}}}]}}),
            ),
        ];
        let of = |(name, body): (&str, Value)| {
            let kind = kinds::all()
                .find(|k| k.kind == name && k.stored_as.is_empty())
                .unwrap_or_else(|| panic!("{name} is a kind"));
            let ty = schema::schema().get(kind.schema).expect("a type");
            let mut object = json!({"apiVersion": kind.api_version(), "kind": name, "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x.io/f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "1"}],
                "managedFields": [{"manager": "m", "operation": "Apply", "apiVersion": kind.api_version(), "time": "2026-01-02T03:04:05Z",
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:replicas": {}}}}]}});
            if kind.namespaced {
                object["metadata"]["namespace"] = "d".into();
            }
            merge::apply(&mut object, body);
            let mut object = schema::from_value(object, ty).expect("the corpus is good").value;
            (kind.default)(&mut object);
            (kind, ty, object)
        };
        Corpus {
            objects: specs.into_iter().map(of).collect(),
            requests: vec![
                certificate(&["system:nodes"]),
                certificate(&["a", "b"]),
                certificate(&[]),
            ],
        }
    }

    pub(crate) fn object(&self, random: &mut Random) -> &(&'static KindDef, TypeRef, Value) {
        &self.objects[random.below(self.objects.len() as u64) as usize]
    }
}

/// A good request, as DER.
fn certificate(organizations: &[&str]) -> Vec<u8> {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    let mut params = CertificateParams::new(vec!["node-a".to_string()]).expect("a name");
    for organization in organizations {
        params.distinguished_name.push(DnType::OrganizationName, *organization);
    }
    params.distinguished_name.push(DnType::CommonName, "system:node:a");
    let address = SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    params.subject_alt_names.push(address);
    let key = KeyPair::generate().expect("a key");
    params.serialize_request(&key).expect("a request").der().to_vec()
}
