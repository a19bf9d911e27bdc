"""Containers of the images, as a kubelet would start them; with podman and runc, in a store of their own."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import rendered

REPOSITORY = rendered.DEPLOY.parent
WORK = REPOSITORY / "target" / "deploy-tests"
STORE = ["--root", str(WORK / "store"), "--runroot", str(WORK / "run")]
MOCK = REPOSITORY / "target" / "debug" / "gce-metadata-proxy"

# podman's defaults are more than a container's process is allowed here; nothing is sent to a journal.
SETTINGS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


def prepare():
    """Whatever the tests need that stays the same between their runs."""
    if os.geteuid() != 0:
        raise RuntimeError("containers are run as root; run this as root")
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "containers.conf").write_text(SETTINGS)
    os.environ["CONTAINERS_CONF"] = str(WORK / "containers.conf")


def load(folder, tag):
    """Takes an image out of a folder in the OCI layout, for this machine, and returns its id."""
    return podman("pull", "--quiet", f"oci:{folder}:{tag}").strip()


def source(folder):
    """A copy of what is, or could be, committed: without anything that was built here."""
    names = rendered.run("git", "-C", REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


def podman(*arguments):
    return rendered.run("podman", *STORE, *arguments)


class Container:
    """A running container. It is removed with the `with` block."""

    def __init__(self, image, args, *options):
        self.id = podman("run", "--detach", *options, image, *args).strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        podman("rm", "--force", "--time", "1", self.id)

    def line(self, wanted, seconds=20):
        """The first line of its log that contains this."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.log().splitlines():
                if wanted in line:
                    return line
            time.sleep(0.1)
        raise AssertionError(f"no line with {wanted!r} in time; it wrote:\n{self.log()}")

    def log(self):
        done = subprocess.run(["podman", *STORE, "logs", self.id], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def execute(self, *command):
        return podman("exec", self.id, *command)

    def stop(self):
        """What it ends with when it is told to end, and after how many seconds."""
        begun = time.monotonic()
        podman("kill", "--signal", "TERM", self.id)
        return self.ended(), time.monotonic() - begun

    def ended(self):
        return int(podman("wait", self.id))

    def peak_memory(self):
        """Most bytes that its control group had at once."""
        process = podman("inspect", "--format", "{{.State.Pid}}", self.id).strip()
        for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                return int(Path(f"/sys/fs/cgroup/memory{path}/memory.max_usage_in_bytes").read_text())
            if controllers == "":
                return int(Path(f"/sys/fs/cgroup{path}/memory.peak").read_text())
        raise AssertionError("its memory is not bounded")


def as_in_a_pod(container, network="none"):
    """What podman is told so that a container has what its manifest gives it, and no more."""
    security = container["securityContext"]
    options = ["--network", network, "--pull", "never"]
    options += ["--memory", container["resources"]["limits"]["memory"].replace("Mi", "m")]
    options += ["--memory-swap", container["resources"]["limits"]["memory"].replace("Mi", "m")]
    options += ["--cpus", str(int(container["resources"]["limits"]["cpu"].removesuffix("m")) / 1000)]
    options += ["--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
    # podman puts writable folders of its own into a read-only root.
    options += ["--read-only", "--read-only-tmpfs=false"] if security["readOnlyRootFilesystem"] else []
    if security.get("privileged"):
        return [*options, "--privileged"]
    options += [] if security["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges"]
    options += [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
    options += [f"--cap-add={name}" for name in security["capabilities"].get("add", [])]
    return options
