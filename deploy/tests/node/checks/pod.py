"""Pods of the checks. They run the node's own Python and files, which they see below /host, in a network of their own."""

import calendar
import contextlib
import json
import time
from pathlib import Path

import api
import machine

PODS = api.pods("default")
IMAGE = "localhost/pod:test"
INSIDE = Path(__file__).resolve().parent / "inside"
# Of files here, pods learn that they shall end.
STOPS = Path("/run/checks")
# There is no DNS.
NAMES = [{"ip": machine.SERVER, "hostnames": ["metadata.google.internal", "metadata"]}]


def container(*command, **fields):
    return {
        "name": "pod",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [str(word) for word in command],
        # Only root may change its root, to the node's files.
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "host", "mountPath": "/host", "readOnly": True}],
        **fields,
    }


def program(name, *arguments):
    """The command that runs one of the programs in `inside`."""
    return ["/bin/chroot", "/host", "/usr/bin/env", "python3", "-u", INSIDE / f"{name}.py", *arguments]


class Pod:
    """A pod, until the end of the `with` block."""

    def __init__(self, name, *command, restart="Never", fields=None):
        self.name = name
        [self.container] = [one["name"] for one in (fields or {}).get("containers", [])] or ["pod"]
        self.spec = {
            "restartPolicy": restart,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "hostAliases": NAMES,
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
            "containers": [container(*command)] if command else [],
            **(fields or {}),
        }

    def __enter__(self):
        STOPS.mkdir(exist_ok=True)
        self.stop_file.unlink(missing_ok=True)
        found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": self.spec}
        api.request("POST", PODS, found)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(LookupError):
            api.request("DELETE", f"{PODS}/{self.name}?gracePeriodSeconds=0")

    @property
    def stop_file(self):
        return STOPS / self.name

    def get(self):
        return api.get(f"{PODS}/{self.name}")

    def status(self):
        statuses = self.get()["status"].get("containerStatuses", [])
        return next(status for status in statuses if status["name"] == self.container)

    def scheduled(self):
        """When it was given to the node."""
        conditions = self.get()["status"]["conditions"]
        return next(clock(one["lastTransitionTime"]) for one in conditions if one["type"] == "PodScheduled" and one["status"] == "True")

    def log(self):
        return api.log("default", self.name, self.container)

    def lines(self):
        """What a program of `inside` has written so far, a JSON object on each line."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def has_begun(self, seconds=180):
        machine.eventually(f"pod {self.name} writes", self.lines, seconds)
        return self

    def stop(self):
        """Lets a program that goes on until it is stopped end, and returns what it wrote."""
        self.stop_file.touch()
        self.exit_code()
        return self.lines()

    def exit_code(self, seconds=600):
        """Waits for its end."""
        ended = machine.eventually(f"pod {self.name} ends", lambda: self.status()["state"].get("terminated"), seconds)
        return ended["exitCode"]


def outcome(name, *command, **kinds):
    """Runs a pod to its end: its exit code, and what it wrote."""
    with Pod(name, *command, **kinds) as pod:
        return pod.exit_code(), pod.log()


def asked(name, *targets):
    """What a pod gets that asks for these, in order."""
    code, text = outcome(name, *program("ask", *targets))
    if code != 0:
        raise AssertionError(f"pod {name} exited with {code}:\n{text}")
    return [json.loads(line) for line in text.splitlines()]


def check(name):
    """What the command `check` says in a pod: its exit code and its text."""
    return outcome(name, "/gce-metadata-proxy", "check")


def clock(text):
    """A time of Kubernetes', in seconds."""
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
