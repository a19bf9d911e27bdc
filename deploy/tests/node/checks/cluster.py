"""The cluster as an operator has it: kubectl, the manifests, and the DaemonSet with its pod on this node."""

import json
from pathlib import Path

import api
import machine

NODE = "node-1"
API_SERVICE = "10.96.0.1"
MANIFESTS = Path("/node/manifests")
PROXY = "gce-metadata-proxy"
OF_PROXY = ["--namespace", "kube-system", "--selector", f"app.kubernetes.io/name={PROXY}"]
DAEMONSET = ["--namespace", "kube-system", f"daemonset/{PROXY}"]
CANARY = f"{PROXY}-canary"
OF_CANARY = ["--namespace", "kube-system", "--selector", f"app.kubernetes.io/name={CANARY}"]


def kubectl(*arguments, stdin=None, seconds=120, may_fail=False):
    return machine.run("kubectl", *arguments, stdin=stdin, seconds=seconds, may_fail=may_fail)


def objects(manifest):
    """The objects of a manifest."""
    text = kubectl("create", "--dry-run=client", "--output=json", "--filename", MANIFESTS / f"{manifest}.yaml")
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        found += one["items"] if one["kind"] == "List" else [one]
        text = text[end:]
    return found


def apply(manifest):
    kubectl("apply", "--filename", MANIFESTS / f"{manifest}.yaml")


def install(manifest):
    """Applies a manifest and waits until its DaemonSet is on the node."""
    apply(manifest)
    rolled_out()


def rolled_out():
    kubectl("rollout", "status", *DAEMONSET, "--timeout=10m", seconds=630)
    # The old pod is told to end, and may still be there.
    machine.eventually("one pod is left", lambda: len(pods()) == 1, 120)


def delete(manifest):
    kubectl("delete", "--ignore-not-found", "--filename", MANIFESTS / f"{manifest}.yaml", seconds=300)
    gone()


def gone():
    machine.eventually("its pods are gone", lambda: not pods(), 120)


def start_over():
    """A node on which nothing of the proxy ever was."""
    kubectl("delete", "--ignore-not-found", *DAEMONSET, f"daemonset/{CANARY}", seconds=300)
    gone()
    machine.remove_rules()
    machine.remove_addresses()


def pods():
    return api.get(f"{api.pods('kube-system')}?labelSelector=app.kubernetes.io/name={PROXY}")["items"]


def pod():
    """The proxy's pod, where there is one."""
    [found] = pods()
    return found


def container(name):
    """The state of a container of the proxy's pod."""
    statuses = pod()["status"].get("containerStatuses", [])
    return next(status for status in statuses if status["name"] == name)


def log(name, **options):
    """What a container of the proxy's pod wrote."""
    return api.log("kube-system", pod()["metadata"]["name"], name, **options)


def described():
    """What `kubectl describe` says of the proxy's pod, events included."""
    return kubectl("describe", "pod", "--namespace", "kube-system", pod()["metadata"]["name"])
