"""The official Python client: create, list in pages, watch with bookmarks, 410 after compaction.

Run as: python client.py KUBECONFIG. Needs a server that keeps a short history (--store-history-events=50).
Prints one line for each thing that held; any other outcome is a traceback and a failure.
"""

import json
import sys

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"set": "python"}), data=data)


def crud(api):
    made = api.create_namespaced_config_map("default", config_map("one", a="1"))
    assert made.metadata.uid and made.metadata.resource_version
    try:
        api.create_namespaced_config_map("default", config_map("one"))
        raise AssertionError("created twice")
    except ApiException as e:
        assert e.status == 409 and json.loads(e.body)["reason"] == "AlreadyExists", e
    made.data["a"] = "2"
    replaced = api.replace_namespaced_config_map("one", "default", made)
    assert replaced.data == {"a": "2"}
    try:
        api.replace_namespaced_config_map("one", "default", made)
        raise AssertionError("replaced with an old revision")
    except ApiException as e:
        assert e.status == 409 and json.loads(e.body)["reason"] == "Conflict", e
    patched = api.patch_namespaced_config_map("one", "default", {"data": {"b": "3"}})
    assert patched.data == {"a": "2", "b": "3"}
    gone = api.delete_namespaced_config_map("one", "default")
    # Some versions of the client leave the answer as it came.
    gone = gone if isinstance(gone, dict) else gone.to_dict()
    assert gone["status"] == "Success", gone
    print("created, changed, deleted")


def pages(api):
    for i in range(25):
        api.create_namespaced_config_map("default", config_map(f"page-{i:02}"))
    names, token, sizes = [], None, []
    while True:
        page = api.list_namespaced_config_map("default", label_selector="set=python", limit=10, _continue=token)
        names += [item.metadata.name for item in page.items]
        sizes.append(len(page.items))
        token = page.metadata._continue
        if not token:
            break
        # Written while the pages are read: not part of a list that began before.
        api.create_namespaced_config_map("default", config_map(f"page-{len(sizes):02}-later"))
    assert names == [f"page-{i:02}" for i in range(25)], names
    assert sizes == [10, 10, 5], sizes
    print("listed in pages")


def watches(api):
    revision = api.list_namespaced_config_map("default").metadata.resource_version
    api.create_namespaced_config_map("default", config_map("watched", a="1"))
    api.patch_namespaced_config_map("watched", "default", {"data": {"a": "2"}})
    api.delete_namespaced_config_map("watched", "default")
    seen = []
    # The watch ends by itself after a second, with a bookmark to go on from.
    stream = watch.Watch().stream(
        api.list_namespaced_config_map,
        "default",
        resource_version=revision,
        allow_watch_bookmarks=True,
        timeout_seconds=1,
    )
    for event in stream:
        if event["type"] == "BOOKMARK":
            last = event["raw_object"]["metadata"]["resourceVersion"]
            assert int(last) >= int(revision)
        seen.append(event["type"])
    assert seen[:3] == ["ADDED", "MODIFIED", "DELETED"], seen
    assert seen[-1] == "BOOKMARK", seen
    print("watched with bookmarks")


def compaction(api):
    first = api.list_namespaced_config_map("default", limit=2)
    old, token = first.metadata.resource_version, first.metadata._continue
    for i in range(120):
        api.patch_namespaced_config_map("page-00", "default", {"data": {"n": str(i)}})
    try:
        for event in watch.Watch().stream(api.list_namespaced_config_map, "default", resource_version=old):
            raise AssertionError(f"an event from before the compaction: {event}")
        raise AssertionError("the watch ended without a word")
    except ApiException as e:
        assert e.status == 410, e
    try:
        api.list_namespaced_config_map("default", limit=2, _continue=token)
        raise AssertionError("a page from before the compaction")
    except ApiException as e:
        status = json.loads(e.body)
        assert e.status == 410 and status["reason"] == "Expired", e
        # The token in the refusal goes on from the same place, with what is there now.
        rest = api.list_namespaced_config_map("default", limit=2, _continue=status["metadata"]["continue"])
        assert rest.items, rest
    print("told to start over after compaction")


def main():
    config.load_kube_config(sys.argv[1])
    api = client.CoreV1Api()
    crud(api)
    pages(api)
    watches(api)
    compaction(api)


main()
