"""An operator written with kopf: each Website gets a ConfigMap of its own, a status, an event and a finalizer.

Run as: kopf run --standalone --namespace default website_operator.py, with KUBECONFIG in the environment.
"""

import datetime

import kopf
import kubernetes

kubernetes.config.load_kube_config()


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_):
    settings.peering.standalone = True
    settings.posting.level = 20
    settings.persistence.finalizer = "websites.example.com/kopf"


def page(name, title):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-page"},
        "data": {"index.html": f"<h1>{title}</h1>"},
    }


@kopf.on.create("websites.example.com")
@kopf.on.resume("websites.example.com")
def created(name, namespace, spec, body, **_):
    wanted = page(name, spec["title"])
    kopf.adopt(wanted)
    api = kubernetes.client.CoreV1Api()
    try:
        api.create_namespaced_config_map(namespace, wanted)
    except kubernetes.client.ApiException as e:
        if e.status != 409:
            raise
    kopf.info(body, reason="Published", message=f"page of {name} is there")
    return {"title": spec["title"], "replicas": spec["replicas"]}


@kopf.on.field("websites.example.com", field="spec.title")
def renamed(name, namespace, old, new, patch, **_):
    if old is None:
        return
    api = kubernetes.client.CoreV1Api()
    api.patch_namespaced_config_map(f"{name}-page", namespace, page(name, new))
    patch.status["renamed"] = f"{old} -> {new}"


@kopf.timer("websites.example.com", interval=0.2)
def beat(status, patch, **_):
    patch.status["beats"] = status.get("beats", 0) + 1


@kopf.on.delete("websites.example.com")
def deleted(name, namespace, **_):
    kubernetes.client.CoreV1Api().create_namespaced_config_map(
        namespace,
        {"metadata": {"name": f"{name}-farewell"}, "data": {"at": datetime.datetime.now().isoformat()}},
    )
