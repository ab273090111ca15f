//! The roles that every cluster has, but for those of the controllers.

use super::EVENTS;

/// Part of view, edit and admin alike.
pub(super) const METRICS_READER: &str = "system:aggregated-metrics-reader";

/// Name and rules. What `super::rule` makes of a rule is told there.
pub(super) const CLUSTER_ROLES: &[(&str, &[&str])] = &[
    ("cluster-admin", &["* *: *", "* *"]),
    // metrics-server's, whose API this server serves itself.
    (METRICS_READER, &["read metrics.k8s.io: nodes pods"]),
    (
        "system:aggregate-to-admin",
        &[
            "create authorization.k8s.io: localsubjectaccessreviews",
            "read,write rbac.authorization.k8s.io: rolebindings roles",
        ],
    ),
    (
        "system:aggregate-to-edit",
        &[
            "read core: pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy",
            "impersonate core: serviceaccounts",
            "write core: pods pods/attach pods/exec pods/portforward pods/proxy",
            "create core: pods/eviction",
            "write core: configmaps persistentvolumeclaims replicationcontrollers \
                replicationcontrollers/scale secrets serviceaccounts services services/proxy",
            "create core: serviceaccounts/token",
            "write core,events.k8s.io: events",
            "write apps: daemonsets deployments deployments/rollback deployments/scale replicasets \
                replicasets/scale statefulsets statefulsets/scale",
            "write autoscaling: horizontalpodautoscalers",
            "write batch: cronjobs jobs",
            "write extensions: daemonsets deployments deployments/rollback deployments/scale ingresses \
                networkpolicies replicasets replicasets/scale replicationcontrollers/scale",
            "write policy: poddisruptionbudgets",
            "write networking.k8s.io: ingresses networkpolicies",
            "read,write coordination.k8s.io: leases",
            "write resource.k8s.io: resourceclaims resourceclaimtemplates",
        ],
    ),
    (
        "system:aggregate-to-view",
        &[
            "read core: configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods \
                replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status",
            "read core: bindings limitranges namespaces/status pods/log pods/status \
                replicationcontrollers/status resourcequotas resourcequotas/status",
            "read core: namespaces",
            "read core,events.k8s.io: events",
            "read discovery.k8s.io: endpointslices",
            "read apps: controllerrevisions daemonsets daemonsets/status deployments deployments/scale \
                deployments/status replicasets replicasets/scale replicasets/status statefulsets \
                statefulsets/scale statefulsets/status",
            "read autoscaling: horizontalpodautoscalers horizontalpodautoscalers/status",
            "read batch: cronjobs cronjobs/status jobs jobs/status",
            "read extensions: daemonsets daemonsets/status deployments deployments/scale \
                deployments/status ingresses ingresses/status networkpolicies replicasets replicasets/scale \
                replicasets/status replicationcontrollers/scale",
            "read policy: poddisruptionbudgets poddisruptionbudgets/status",
            "read networking.k8s.io: ingresses ingresses/status networkpolicies",
            "read resource.k8s.io: resourceclaims resourceclaims/status resourceclaimtemplates",
        ],
    ),
    (
        "system:auth-delegator",
        &[
            "create authentication.k8s.io: tokenreviews",
            "create authorization.k8s.io: subjectaccessreviews",
        ],
    ),
    (
        "system:basic-user",
        &[
            "create authorization.k8s.io: selfsubjectaccessreviews selfsubjectrulesreviews",
            "create authentication.k8s.io: selfsubjectreviews",
        ],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        &["create certificates.k8s.io: certificatesigningrequests/nodeclient"],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        &["create certificates.k8s.io: certificatesigningrequests/selfnodeclient"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        &["approve certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client"],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        &["approve certificates.k8s.io: signers = kubernetes.io/kube-apiserver-client-kubelet"],
    ),
    (
        "system:certificates.k8s.io:kubelet-serving-approver",
        &["approve certificates.k8s.io: signers = kubernetes.io/kubelet-serving"],
    ),
    (
        "system:certificates.k8s.io:legacy-unknown-approver",
        &["approve certificates.k8s.io: signers = kubernetes.io/legacy-unknown"],
    ),
    (
        "system:discovery",
        &["get /api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/"],
    ),
    (
        "system:heapster",
        &[
            "read core: events namespaces nodes pods",
            "read extensions: deployments",
        ],
    ),
    ("system:kube-aggregator", &["read core: endpoints services"]),
    (
        "system:kube-controller-manager",
        &[
            EVENTS,
            "create coordination.k8s.io: leases",
            "get,update coordination.k8s.io: leases = kube-controller-manager",
            "create core: secrets serviceaccounts",
            "delete core: secrets",
            "get core: configmaps namespaces secrets serviceaccounts",
            "update core: secrets serviceaccounts",
            "create authentication.k8s.io: tokenreviews",
            "create authorization.k8s.io: subjectaccessreviews",
            "list,watch *: *",
            "create core: serviceaccounts/token",
        ],
    ),
    ("system:kube-dns", &["list,watch core: endpoints services"]),
    (
        "system:kube-scheduler",
        &[
            EVENTS,
            "create coordination.k8s.io: leases",
            "read,update coordination.k8s.io: leases = kube-scheduler",
            "read,write coordination.k8s.io: leasecandidates",
            "read core: nodes",
            "read,delete core: pods",
            "create core: bindings pods/binding",
            "update,patch core: pods/status",
            "read core: replicationcontrollers services",
            "read apps,extensions: replicasets",
            "read apps: statefulsets",
            "read policy: poddisruptionbudgets",
            "read core: persistentvolumeclaims persistentvolumes",
            "create authentication.k8s.io: tokenreviews",
            "create authorization.k8s.io: subjectaccessreviews",
            "read storage.k8s.io: csinodes",
            "read storage.k8s.io: volumeattachments",
            "read core: namespaces",
            "read storage.k8s.io: csidrivers",
            "read storage.k8s.io: csistoragecapacities",
            "read resource.k8s.io: deviceclasses",
            "read,update,patch resource.k8s.io: resourceclaims",
            "read,update,patch resource.k8s.io: resourceclaims/status",
            "update core: pods/finalizers",
            "read resource.k8s.io: resourceslices",
            "create,delete resource.k8s.io: resourceclaims",
            "update,patch resource.k8s.io: resourceclaims/binding",
        ],
    ),
    (
        "system:kubelet-api-admin",
        &[
            "read core: nodes",
            "proxy core: nodes",
            "* core: nodes/log nodes/metrics nodes/proxy nodes/stats",
            "* core: nodes/configz nodes/healthz nodes/pods",
        ],
    ),
    (
        "system:monitoring",
        &[
            "get /flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* /statusz",
            "get core: nodes/metrics",
        ],
    ),
    (
        "system:node",
        &[
            "create authentication.k8s.io: tokenreviews",
            "create authorization.k8s.io: localsubjectaccessreviews subjectaccessreviews",
            "read core: services",
            "read,create core: nodes",
            "update,patch core: nodes/status",
            "update,patch core: nodes",
            EVENTS,
            "read core: pods",
            "create,delete core: pods",
            "update,patch core: pods/status",
            "create core: pods/eviction",
            "read core: configmaps secrets",
            "get core: persistentvolumeclaims persistentvolumes",
            "get core: endpoints",
            "read,create certificates.k8s.io: certificatesigningrequests",
            "get,create,update,patch,delete coordination.k8s.io: leases",
            "get storage.k8s.io: volumeattachments",
            "create core: serviceaccounts/token",
            "get,update,patch core: persistentvolumeclaims/status",
            "read storage.k8s.io: csidrivers",
            "get,create,update,patch,delete storage.k8s.io: csinodes",
            "read node.k8s.io: runtimeclasses",
            "get resource.k8s.io: resourceclaims",
            "deletecollection resource.k8s.io: resourceslices",
            "get core: serviceaccounts",
        ],
    ),
    (
        "system:node-bootstrapper",
        &["read,create certificates.k8s.io: certificatesigningrequests"],
    ),
    (
        "system:node-problem-detector",
        &["get core: nodes", "patch core: nodes/status", EVENTS],
    ),
    (
        "system:node-proxier",
        &[
            "list,watch core: endpoints services",
            "read core: nodes",
            EVENTS,
            "list,watch networking.k8s.io: servicecidrs",
            "list,watch discovery.k8s.io: endpointslices",
        ],
    ),
    (
        "system:persistent-volume-provisioner",
        &[
            "read,create,delete core: persistentvolumes",
            "read,update core: persistentvolumeclaims",
            "read storage.k8s.io: storageclasses",
            "watch core: events",
            EVENTS,
        ],
    ),
    (
        "system:public-info-viewer",
        &["get /healthz /livez /readyz /version /version/"],
    ),
    (
        "system:service-account-issuer-discovery",
        &[
            "get /.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks \
                /openid/v1/jwks/",
        ],
    ),
    (
        "system:volume-scheduler",
        &[
            "read,update,patch core: persistentvolumes",
            "read storage.k8s.io: storageclasses",
            "read,update,patch core: persistentvolumeclaims",
        ],
    ),
];

/// Roles that are made of others: name, and the role that this one is a part of in turn.
pub(super) const AGGREGATED: &[(&str, Option<&str>)] =
    &[("admin", None), ("edit", Some("admin")), ("view", Some("edit"))];

/// Role and whom it is granted to, in every namespace.
pub(super) const CLUSTER_ROLE_BINDINGS: &[(&str, &[&str])] = &[
    ("cluster-admin", &["group system:masters"]),
    ("system:basic-user", &["group system:authenticated"]),
    ("system:discovery", &["group system:authenticated"]),
    (
        "system:kube-controller-manager",
        &["user system:kube-controller-manager"],
    ),
    ("system:kube-dns", &["account kube-system/kube-dns"]),
    ("system:kube-scheduler", &["user system:kube-scheduler"]),
    // Differs from upstream, which leaves this to installers: the API server as kubelets see it.
    ("system:kubelet-api-admin", &["user kube-apiserver-kubelet-client"]),
    ("system:monitoring", &["group system:monitoring"]),
    ("system:node", &[]),
    ("system:node-proxier", &["user system:kube-proxy"]),
    (
        "system:public-info-viewer",
        &["group system:authenticated", "group system:unauthenticated"],
    ),
    (
        "system:service-account-issuer-discovery",
        &["group system:serviceaccounts"],
    ),
    ("system:volume-scheduler", &["user system:kube-scheduler"]),
];

/// Namespace, name and rules.
pub(super) const ROLES: &[(&str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        &[
            "read core: configmaps",
            "update core: configmaps = cluster-info",
            EVENTS,
        ],
    ),
    (
        "kube-system",
        "extension-apiserver-authentication-reader",
        &["read core: configmaps = extension-apiserver-authentication"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        &[
            "read,create,update coordination.k8s.io: leases",
            "read,create,update coordination.k8s.io: leasecandidates",
        ],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        &[
            "read,create,update coordination.k8s.io: leases",
            "read,create,update coordination.k8s.io: leasecandidates",
        ],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        &["read core: secrets"],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        &["read,create core: configmaps"],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        &["read,delete core: secrets", EVENTS],
    ),
];

/// Namespace, name, role and whom it is granted to there.
pub(super) const ROLE_BINDINGS: &[(&str, &str, &str, &[&str])] = &[
    (
        "kube-public",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &["account kube-system/bootstrap-signer"],
    ),
    (
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        "extension-apiserver-authentication-reader",
        &["user system:kube-controller-manager", "user system:kube-scheduler"],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        &[
            "user system:kube-controller-manager",
            "account kube-system/kube-controller-manager",
            "account kube-system/leader-election-controller",
        ],
    ),
    (
        "kube-system",
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        &["user system:kube-scheduler", "account kube-system/kube-scheduler"],
    ),
    (
        "kube-system",
        "system:controller:bootstrap-signer",
        "system:controller:bootstrap-signer",
        &["account kube-system/bootstrap-signer"],
    ),
    (
        "kube-system",
        "system:controller:cloud-provider",
        "system:controller:cloud-provider",
        &["account kube-system/cloud-provider"],
    ),
    (
        "kube-system",
        "system:controller:token-cleaner",
        "system:controller:token-cleaner",
        &["account kube-system/token-cleaner"],
    ),
];
