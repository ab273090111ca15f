//! What each controller may do. A controller runs as the service account of its name in kube-system and is granted the
//! cluster role `system:controller:<name>`.

use super::EVENTS;

/// Name and rules. What `super::rule` makes of a rule is told there.
pub(super) const CONTROLLERS: &[(&str, &[&str])] = &[
    (
        "attachdetach-controller",
        &[
            "list,watch core: persistentvolumeclaims persistentvolumes",
            "read core: nodes",
            "update,patch core: nodes/status",
            "list,watch core: pods",
            EVENTS,
            "read,create,delete storage.k8s.io: volumeattachments",
            "read storage.k8s.io: csidrivers",
            "read storage.k8s.io: csinodes",
        ],
    ),
    (
        "certificate-controller",
        &[
            "read,delete certificates.k8s.io: certificatesigningrequests",
            "update certificates.k8s.io: certificatesigningrequests/approval certificatesigningrequests/status",
            "approve certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client-kubelet",
            "sign certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client \
                kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving \
                kubernetes.io/legacy-unknown",
            "create authorization.k8s.io: subjectaccessreviews",
            EVENTS,
        ],
    ),
    (
        "clusterrole-aggregation-controller",
        &["read,escalate,update,patch rbac.authorization.k8s.io: clusterroles"],
    ),
    (
        "cronjob-controller",
        &[
            "read,update batch: cronjobs",
            "read,create,update,patch,delete batch: jobs",
            "update batch: cronjobs/status",
            "update batch: cronjobs/finalizers",
            "list,watch,delete core: pods",
            EVENTS,
        ],
    ),
    (
        "daemon-set-controller",
        &[
            "read apps,extensions: daemonsets",
            "update apps,extensions: daemonsets/status",
            "update apps,extensions: daemonsets/finalizers",
            "list,watch core: nodes",
            "list,watch,create,patch,delete core: pods",
            "create core: pods/binding",
            "read,create,update,patch,delete apps: controllerrevisions",
            EVENTS,
        ],
    ),
    (
        "deployment-controller",
        &[
            "read,update apps,extensions: deployments",
            "update apps,extensions: deployments/status",
            "update apps,extensions: deployments/finalizers",
            "read,create,update,patch,delete apps,extensions: replicasets",
            "read,update core: pods",
            EVENTS,
        ],
    ),
    (
        "device-taint-eviction-controller",
        &[
            "read,delete core: pods",
            "update,patch core: pods/status",
            "read resource.k8s.io: resourceclaims",
            "read resource.k8s.io: resourceslices",
            "read resource.k8s.io: deviceclasses",
            EVENTS,
        ],
    ),
    (
        "disruption-controller",
        &[
            "read apps,extensions: deployments",
            "read apps,extensions: replicasets",
            "read core: replicationcontrollers",
            "read policy: poddisruptionbudgets",
            "read apps: statefulsets",
            "update policy: poddisruptionbudgets/status",
            "update,patch core: pods/status",
            "get *: */scale",
            EVENTS,
        ],
    ),
    (
        "endpoint-controller",
        &[
            "read core: pods services",
            "read,create,update,delete core: endpoints",
            "create core: endpoints/restricted",
            EVENTS,
        ],
    ),
    (
        "endpointslice-controller",
        &[
            "read core: nodes pods services",
            "update core: services/finalizers",
            "read,create,update,delete discovery.k8s.io: endpointslices",
            EVENTS,
        ],
    ),
    (
        "endpointslicemirroring-controller",
        &[
            "read core: endpoints services",
            "update core: services/finalizers",
            "update core: endpoints/finalizers",
            "read,create,update,delete discovery.k8s.io: endpointslices",
            EVENTS,
        ],
    ),
    (
        "ephemeral-volume-controller",
        &[
            "read core: pods",
            "update core: pods/finalizers",
            "read,create core: persistentvolumeclaims",
            EVENTS,
        ],
    ),
    (
        "expand-controller",
        &[
            "read,update,patch core: persistentvolumes",
            "update,patch core: persistentvolumeclaims/status",
            "read core: persistentvolumeclaims",
            EVENTS,
        ],
    ),
    ("generic-garbage-collector", &["read,update,patch,delete *: *", EVENTS]),
    (
        "horizontal-pod-autoscaler",
        &[
            "read autoscaling: horizontalpodautoscalers",
            "update autoscaling: horizontalpodautoscalers/status",
            "get,update *: */scale",
            "list,watch core: pods",
            "list,watch metrics.k8s.io: pods",
            "read custom.metrics.k8s.io: *",
            "read external.metrics.k8s.io: *",
            EVENTS,
        ],
    ),
    (
        "job-controller",
        &[
            "read,update,patch batch: jobs",
            "update batch: jobs/status",
            "update batch: jobs/finalizers",
            "list,watch,create,patch,delete core: pods",
            EVENTS,
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            "get core: configmaps = kube-apiserver-legacy-service-account-token-tracking",
            "patch,delete core: secrets",
        ],
    ),
    // Differs from upstream, which has no provisioner of its own.
    (
        "local-path-provisioner",
        &[
            "read,create,update,patch,delete core: persistentvolumes",
            "read,update,patch core: persistentvolumeclaims",
            "read,create storage.k8s.io: storageclasses",
            "read core: nodes",
            EVENTS,
        ],
    ),
    (
        "namespace-controller",
        &[
            "read,delete core: namespaces",
            "update core: namespaces/finalize namespaces/status",
            "read,delete,deletecollection *: *",
        ],
    ),
    // Ours alone: docs/required-during-execution.md.
    (
        "node-affinity-eviction-controller",
        &[
            "list,watch core: nodes",
            "list,watch core: pods",
            "create core: pods/eviction",
            EVENTS,
        ],
    ),
    (
        "node-controller",
        &[
            "read,update,patch,delete core: nodes",
            "update,patch core: nodes/status",
            "update,patch core: pods/status",
            "read,delete core: pods",
            EVENTS,
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            "read,create,update,delete core: persistentvolumes",
            "update core: persistentvolumes/status",
            "read,update core: persistentvolumeclaims",
            "update core: persistentvolumeclaims/status",
            "read,create,delete core: pods",
            "read storage.k8s.io: storageclasses",
            "list,watch core: nodes",
            EVENTS,
            "watch core: events",
        ],
    ),
    (
        "pod-garbage-collector",
        &[
            "list,watch,delete core: pods",
            "read core: nodes",
            "patch core: pods/status",
        ],
    ),
    (
        "pv-protection-controller",
        &["read,update core: persistentvolumes", EVENTS],
    ),
    (
        "pvc-protection-controller",
        &[
            "read,update core: persistentvolumeclaims",
            "update core: persistentvolumeclaims/status",
            "read core: pods",
            EVENTS,
        ],
    ),
    (
        "replicaset-controller",
        &[
            "read,update apps,extensions: replicasets",
            "update apps,extensions: replicasets/status",
            "update apps,extensions: replicasets/finalizers",
            "list,watch,create,patch,delete core: pods",
            EVENTS,
        ],
    ),
    (
        "replication-controller",
        &[
            "read,update core: replicationcontrollers",
            "update core: replicationcontrollers/status",
            "update core: replicationcontrollers/finalizers",
            "list,watch,create,patch,delete core: pods",
            EVENTS,
        ],
    ),
    (
        "resource-claim-controller",
        &[
            "read core: pods",
            "update core: pods/finalizers",
            "read,create,delete resource.k8s.io: resourceclaims",
            "update,patch resource.k8s.io: resourceclaims resourceclaims/status",
            "update,patch core: pods/status",
            EVENTS,
            "update,patch resource.k8s.io: resourceclaims/binding",
        ],
    ),
    (
        "resourcequota-controller",
        &["list,watch *: *", "update core: resourcequotas/status", EVENTS],
    ),
    ("root-ca-cert-publisher", &["create,update core: configmaps", EVENTS]),
    (
        "route-controller",
        &["list,watch core: nodes", "patch core: nodes/status", EVENTS],
    ),
    (
        "selinux-warning-controller",
        &[
            EVENTS,
            "read core: persistentvolumes",
            "read core: persistentvolumeclaims",
            "read core: pods",
            "read storage.k8s.io: csidrivers",
        ],
    ),
    ("service-account-controller", &["create core: serviceaccounts", EVENTS]),
    (
        "service-cidrs-controller",
        &[
            "read,update,patch networking.k8s.io: servicecidrs",
            "update,patch networking.k8s.io: servicecidrs/finalizers",
            "update,patch networking.k8s.io: servicecidrs/status",
            "read networking.k8s.io: ipaddresses",
            EVENTS,
        ],
    ),
    (
        "service-controller",
        &[
            "read core: services",
            "update,patch core: services/status",
            "list,watch core: nodes",
            EVENTS,
        ],
    ),
    (
        "statefulset-controller",
        &[
            "list,watch core: pods",
            "read apps: statefulsets",
            "update apps: statefulsets/status",
            "update apps: statefulsets/finalizers",
            "get,create,update,patch,delete core: pods",
            "read,create,update,patch,delete apps: controllerrevisions",
            "read,create core: persistentvolumeclaims",
            "update,delete core: persistentvolumeclaims",
            "update core: pods/finalizers",
            EVENTS,
        ],
    ),
    ("ttl-after-finished-controller", &["read,delete batch: jobs", EVENTS]),
    ("ttl-controller", &["list,watch,update,patch core: nodes", EVENTS]),
    (
        "validatingadmissionpolicy-status-controller",
        &[
            "read admissionregistration.k8s.io: validatingadmissionpolicies",
            "get,update,patch admissionregistration.k8s.io: validatingadmissionpolicies/status",
            EVENTS,
        ],
    ),
    (
        "volumeattributesclass-protection-controller",
        &[
            "read core: persistentvolumeclaims",
            "read core: persistentvolumes",
            "read,update storage.k8s.io: volumeattributesclasses",
            EVENTS,
        ],
    ),
];
