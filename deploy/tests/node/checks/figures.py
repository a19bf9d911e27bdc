"""What the containers cost, compared with what the manifests give them."""

from groups import Group

MIB = 1 << 20


class Figures:
    """Of one container of the DaemonSet's pod, from its start."""

    def __init__(self, name, status, limit):
        self.name = name
        self.restarts = status["restartCount"]
        self.limit = limit
        self.group = Group.named(status["containerID"].partition("//")[2])

    @property
    def peak(self):
        return self.group.number("memory.peak")

    @property
    def killed(self):
        """Processes that the kernel has killed for want of memory, in all containers of the pod and before restarts, too."""
        return self.group.parent.killed

    def faults(self):
        if self.killed:
            yield f"{self.name}: {self.killed} processes were killed for want of memory"
        if self.limit is None:
            yield f"{self.name}: its memory has no limit"
        elif self.group.number("memory.max") != self.limit or self.peak >= self.limit:
            yield f"{self.name}: {self.peak} bytes at most, and {self.limit} are its limit"

    def __str__(self):
        number = self.group.number
        return (
            f"{self.name}: at most {self.peak / MIB:.1f} MiB of {(self.limit or 0) / MIB:.0f}, now "
            f"{number('memory.current') / MIB:.1f}; {self.group.cpu_seconds:.1f} s of CPU, throttled in "
            f"{number('cpu.stat', 'nr_throttled')} of {number('cpu.stat', 'nr_periods')} periods; {self.restarts} restarts"
        )


def figures(pod):
    """Those of all containers that run."""
    limits = {one["name"]: one["resources"].get("limits", {}).get("memory") for one in every(pod["spec"])}
    statuses = pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", [])
    running = [status for status in statuses if "running" in status["state"] and status["name"] in limits]
    return [Figures(status["name"], status, in_bytes(limits[status["name"]])) for status in running]


def every(spec):
    """The containers that are of the project's images."""
    return [one for one in spec.get("initContainers", []) + spec["containers"] if one["name"] != "application"]


def in_bytes(quantity):
    return int(quantity.removesuffix("Mi")) * MIB if quantity else None
