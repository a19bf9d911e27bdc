"""Control groups, by version 2's names. In version 1 each controller has groups of its own, and other names."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
IS_OLD = not ROOT.joinpath("cgroup.controllers").exists()
OLD = {
    "cgroup.procs": ("pids", "cgroup.procs"),
    "cpu.stat": ("cpu", "cpu.stat"),
    "memory.current": ("memory", "memory.usage_in_bytes"),
    "memory.events": ("memory", "memory.oom_control"),
    "memory.max": ("memory", "memory.limit_in_bytes"),
    "memory.peak": ("memory", "memory.max_usage_in_bytes"),
}


class Group:
    def __init__(self, path):
        self.path = path

    @classmethod
    def named(cls, name):
        """The first one with this in its name, such as a container's id."""
        hierarchy = ROOT / "memory" if IS_OLD else ROOT
        return cls(next(hierarchy.rglob(f"*{name}*")).relative_to(hierarchy))

    def file(self, name):
        controller, name = OLD[name] if IS_OLD else ("", name)
        return ROOT / controller / self.path / name

    def number(self, name, key=None):
        """A file, or one of its lines."""
        return number(self.file(name), key)

    @property
    def cpu_seconds(self):
        if IS_OLD:
            return number(ROOT / "cpuacct" / self.path / "cpuacct.usage") / 1e9
        return self.number("cpu.stat", "usage_usec") / 1e6

    @property
    def killed(self):
        """Processes that the kernel has killed here for want of memory."""
        of_each = self.file("memory.events")
        # Only version 2 counts those below.
        files = of_each.parent.rglob(of_each.name) if IS_OLD else [of_each]
        return sum(number(file, "oom_kill") for file in files)

    @property
    def parent(self):
        return Group(self.path.parent)

    def processes(self):
        """Those of the groups below, too."""
        here = self.file("cgroup.procs")
        found = []
        for file in here.parent.rglob(here.name):
            try:
                found += map(int, file.read_text().split())
            except OSError:
                # It has just ended.
                continue
        return found


def number(file, key=None):
    text = file.read_text()
    return int(text if key is None else dict(line.split() for line in text.splitlines())[key])
