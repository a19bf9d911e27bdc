"""Switches a node off and on again, as far as its pods can tell: the same kernel, and nothing in it of what ran before."""

import contextlib
import json
import os
import signal
from pathlib import Path

import api
import cluster
import machine
from groups import Group

KUBELET_CONFIG = Path("/node/kubelet.yaml")
# It answers once the kubelet has found containerd.
KUBELET_HEALTH = "http://127.0.0.1:10248/healthz"


def switch_off():
    machine.stop("kubelet", "containerd")
    machine.eventually("no container runs", lambda: kill_all(Group.named("kubepods")), 60, every=0.1)
    for shim in machine.pids("containerd-shim"):
        with contextlib.suppress(ProcessLookupError):
            machine.end(shim, signal.SIGKILL)
    forget_the_network()


def kill_all(group):
    """Whether no process is left."""
    processes = group.processes()
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return not processes


def forget_the_network():
    """What the kernel knows of pods and rules is gone after a boot, and its settings are its own again."""
    machine.run("nft", "flush", "ruleset")
    machine.remove_addresses()
    for network in listed("netns", "list"):
        if network["name"].startswith("cni-"):
            machine.run("ip", "netns", "delete", network["name"])
    for bridge in listed("link", "show", "type", "bridge"):
        machine.run("ip", "link", "delete", bridge["ifname"])


def listed(*words):
    return json.loads(machine.run("ip", "-json", *words) or "[]")


def switch_on():
    """Starts what a boot starts."""
    machine.start("containerd")
    machine.eventually("the node is ready", is_ready, 300)


def is_ready():
    """As systemd does, starts the kubelet again while it ends because containerd is not there yet.

    What the API server says of the node may be from before."""
    if not machine.pids("kubelet"):
        machine.start("kubelet")
    if machine.run("curl", "--silent", "--fail", KUBELET_HEALTH, may_fail=True) != "ok":
        return False
    conditions = api.get(f"/api/v1/nodes/{cluster.NODE}")["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@contextlib.contextmanager
def registered_with(taint):
    """Has the kubelet register a new node with a taint."""
    config = KUBELET_CONFIG.read_text()
    KUBELET_CONFIG.write_text(config + f"registerWithTaints: [{{key: {taint}, value: 'true', effect: NoSchedule}}]\n")
    try:
        yield
    finally:
        KUBELET_CONFIG.write_text(config)


def lead_to_the_api_server():
    """Leads the node's own requests to the Service `kubernetes`, as kube-proxy would."""
    _, node = machine.uplink()
    rules = f"""add table ip checks
add chain ip checks out {{ type nat hook output priority -100; }}
add rule ip checks out ip daddr {cluster.API_SERVICE} tcp dport 443 dnat to {node}:6443
"""
    machine.run("nft", "-f", "-", stdin=rules)
