"""A node that systemd has booted, with a kubelet that knows no API server: its pod, and what came when."""

import json
import time
from pathlib import Path

import machine
import pod
from inside.asking import SECRET

PAGE = Path("/node/redirect.md")
UNIT = "gce-metadata-redirect.service"
NAME = "early"
MANIFEST = Path(f"/etc/kubernetes/manifests/{NAME}.json")
LOGS = Path("/var/log/pods")


def install(path):
    """Writes a file as docs/redirect.md shows it, after what is there."""
    blocks = PAGE.read_text().split("```text\n")[1:]
    shown = next(block for block in blocks if block.startswith(f"# {path}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(shown.partition("```")[0])


def place_the_pod():
    """A pod that asks for a secret from its first moment, whenever the node starts, and soon again where nobody answers."""
    command = pod.program("poll", pod.STOPS / NAME, 0.1, SECRET)
    container = pod.container(*command, env=[{"name": "PATIENCE", "value": "1"}])
    spec = pod.Pod(NAME, restart="Always", fields={"containers": [container]}).spec
    MANIFEST.parent.mkdir(parents=True, exist_ok=True)
    MANIFEST.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}))


def lines():
    """What the pod has written since the machine began."""
    logs = [log.read_text().splitlines() for log in LOGS.glob(f"default_{NAME}-*/pod/*.log")]
    written = [json.loads("{" + line.partition("{")[2]) for log in logs for line in log]
    return sorted((line for line in written if written_at(line) > booted()), key=written_at)


def written_at(line):
    return next(line[key] for key in ("began", "at", "ended") if key in line)


def booted():
    """When the clock of systemd's figures was 0."""
    return time.time() - time.monotonic()


def outcomes():
    return [line["outcome"] for line in lines() if "outcome" in line]


def began():
    """When the pod of this boot first ran, by that clock."""
    return next(line["began"] for line in lines() if "began" in line) - booted()


def reached():
    """How many connections pods have opened to the server since the machine began."""
    listed = json.loads(machine.run(*machine.WITHIN_WORLD, "nft", "--json", "list", "counter", "ip", "seen", "pods"))
    return next(one["counter"]["packets"] for one in listed["nftables"] if "counter" in one)


def at(unit, what):
    """When the process of a unit began (`Start`) or ended (`Exit`), by systemd's clock; 0 if it did not."""
    return int(machine.run("systemctl", "show", f"--property=ExecMain{what}TimestampMonotonic", "--value", unit)) / 1e6
