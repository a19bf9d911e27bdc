"""What a cluster is given: the objects that Kustomize and Helm make out of this folder."""

import os
import subprocess
from copy import deepcopy
from functools import cache
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm" / "gce-metadata-proxy"
TESTS = DEPLOY / "tests"

# What a user may apply, and folders with the components that those leave out.
FOLDERS = [
    "base",
    "overlays/self-managed",
    "overlays/gke-standard",
    "overlays/identity",
    "overlays/identity-doctor",
    "overlays/cilium",
    "overlays/demo",
    "observability",
    "tests/everything",
    "tests/own-policy",
    "tests/removal",
    "tests/identity-own-node",
    "tests/identity-kubelet",
    "tests/identity-fenced",
    "tests/identity-doctor-own-node",
    "tests/identity-doctor-kubelet",
    "tests/identity-doctor-fenced",
    "tests/startup-taint",
    "sidecar/environment",
    "sidecar/redirect",
]
# The same by Helm: the folder whose objects these values must give.
CHARTS = {
    "overlays/self-managed": [],
    # For commands that name the file.
    "overlays/gke-standard": ["--values", CHART / "values-gke-standard.yaml"],
    "tests/everything": ["--values", TESTS / "everything" / "values.yaml"],
    "tests/own-policy": ["--values", TESTS / "own-policy" / "values.yaml"],
    "tests/removal": ["--set", "redirect.enabled=false,redirect.remove=true,canary.enabled=false"],
    "tests/identity-own-node": ["--values", TESTS / "identity-own-node" / "values.yaml", "--kube-version", "1.36.0"],
    "tests/identity-kubelet": ["--values", TESTS / "identity-kubelet" / "values.yaml"],
    "tests/identity-fenced": ["--values", TESTS / "identity-fenced" / "values.yaml", "--kube-version", "1.30.0"],
    "tests/startup-taint": ["--values", TESTS / "startup-taint" / "values.yaml", "--kube-version", "1.30.0"],
    "base": ["--set", "redirect.enabled=false,canary.enabled=false"],
}
# The Job of `identity doctor`, and whose settings it has. The chart renders it by itself.
DOCTORS = {
    "overlays/identity-doctor": "overlays/identity",
    "tests/identity-doctor-own-node": "tests/identity-own-node",
    "tests/identity-doctor-kubelet": "tests/identity-kubelet",
    "tests/identity-doctor-fenced": "tests/identity-fenced",
}
CHARTS |= {
    doctor: [*CHARTS[of], "--set", "identity.doctor.node=node-to-examine", "--show-only", "templates/identity-doctor.yaml"]
    for doctor, of in DOCTORS.items()
    # Its DaemonSet has the file of a policy, which the overlay copies and the chart does not.
    if of in CHARTS and of != "tests/identity-kubelet"
}
# Those in which pods are told apart, by the way to the API server. The overlay is not edited yet: what it names is
# in capitals, and no cluster's.
IDENTITY = {
    "overlays/identity": "own-node",
    "tests/identity-own-node": "own-node",
    "tests/identity-kubelet": "kubelet",
    "tests/identity-fenced": "fenced",
}
UNEDITED = {"overlays/identity", "overlays/identity-doctor"}


@cache
def kustomize(folder):
    """The objects of a folder with a kustomization.yaml."""
    return objects(run("kubectl", "kustomize", DEPLOY / folder))


@cache
def helm(*arguments):
    """The objects of the chart with these arguments."""
    # The oldest version that the chart takes, unless the arguments say another; what it renders does not depend on it.
    where = ["gce-metadata-proxy", CHART, "--namespace", "kube-system", "--kube-version", "1.25.0"]
    return objects(run(os.environ.get("HELM", "helm"), "template", *where, *arguments))


def everything():
    """All that can be rendered: pairs of where it comes from, and an object."""
    for folder in FOLDERS:
        yield from ((folder, found) for found in kustomize(folder))
    for folder, arguments in CHARTS.items():
        yield from ((f"chart as {folder}", found) for found in helm(*arguments))


def containers():
    """All containers of the images: where it comes from, the pod that it is in, and the container."""
    for where, found in everything():
        yield from ((where, *inside) for inside in containers_of(found))


def container(folder, name):
    """One of them, by the folder that Kustomize renders; a copy."""
    [wanted] = [one for found in kustomize(folder) for _, one in containers_of(found) if one["name"] == name]
    return deepcopy(wanted)


def containers_of(found):
    """The containers of the images in an object, each with its pod."""
    in_template = lambda: found["spec"]["template"]["spec"]
    pod = {"Pod": lambda: found["spec"], "DaemonSet": in_template, "Job": in_template}.get(found["kind"], dict)()
    for one in pod.get("initContainers", []) + pod.get("containers", []):
        if one["image"].startswith("gce-metadata-proxy"):
            yield pod, one


def daemonset(found, name="gce-metadata-proxy"):
    """The DaemonSet of this name among these objects."""
    [wanted] = [one for one in found if one["kind"] == "DaemonSet" and one["metadata"]["name"] == name]
    return wanted


def name_of(found):
    metadata = found["metadata"]
    return f"{found['kind']} {metadata.get('namespace', '-')}/{metadata['name']}"


def run(*command):
    """What a command prints; its complaint is the failure's."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def objects(text):
    return [found for found in yaml.safe_load_all(text) if found]
