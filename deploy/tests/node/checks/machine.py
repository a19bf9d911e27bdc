"""The node from below: its commands, kernel settings, processes and control groups."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

SERVER = "169.254.169.254"
# What is beyond the node, with the server.
WITHIN_WORLD = ["ip", "netns", "exec", "world"]
ADDRESSES = ("169.254.169.252/32", "fd20:ce::252/128")
TABLE = "gce_metadata_proxy"


def say(text):
    """A figure or an event, for whoever reads the run."""
    print(f"       {text}", flush=True)


def run(*command, stdin=None, seconds=120, may_fail=False):
    """What a command prints. Its complaint is the failure's."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0 and not may_fail:
        raise AssertionError(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stderr}{done.stdout}")
    return done.stdout


def eventually(what, holds, seconds=180, every=1):
    """Waits until something holds, and returns it. The last thing that was seen is the failure's."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found, seen = holds(), "it is not so"
        except (AssertionError, LookupError, OSError, StopIteration, ValueError) as error:
            found, seen = None, repr(error)
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}; {seen}")
        time.sleep(every)


def uplink():
    """The interface by which the node reaches the metadata server, and its address there."""
    [route] = json.loads(run("ip", "-json", "route", "get", SERVER))
    return route["dev"], route["prefsrc"]


def rules():
    """All firewall rules of the node."""
    return run("nft", "--stateless", "list", "ruleset")


def addresses():
    """Those of the interface lo that are the proxy's."""
    [link] = json.loads(run("ip", "-json", "address", "show", "dev", "lo"))
    found = [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"]]
    return [one for one in found if one in ADDRESSES]


def remove_addresses():
    for one in addresses():
        run("ip", "address", "delete", one, "dev", "lo")


def remove_rules():
    """As in an emergency: without the redirect's own command."""
    run("nft", "-f", "-", stdin=f"add table inet {TABLE}\ndelete table inet {TABLE}\n")


def pids(name, *words):
    """Processes of a program with all of these words in their command line."""
    of_name = [comm.parent for comm in Path("/proc").glob("[0-9]*/comm") if read(comm).strip() == name[:15]]
    return [int(one.name) for one in of_name if set(words) <= set(read(one / "cmdline").split("\0"))]


def read(path):
    """A file of a process or group that may just have ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def end(pid, how=signal.SIGTERM, seconds=30):
    """Ends a process and waits until it is gone."""
    os.kill(pid, how)
    eventually(f"process {pid} is gone", lambda: state(pid) in ("", "Z"), seconds, every=0.05)


def state(pid):
    return read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].strip()[:1]


def start(*programs):
    """Starts what the node consists of, or `mock`, the metadata server beyond it."""
    run("start", *programs)


def stop(*programs):
    for program in programs:
        for pid in pids("gce-metadata-proxy", "mock") if program == "mock" else pids(program):
            end(pid)


class Peaks:
    """The most memory that each of these groups has in the `with` block. Linux 6.12 can measure that anew; before, it is the most
    since the group was made."""

    def __init__(self, groups):
        self.groups = list(groups)

    def __enter__(self):
        self.files = {group: group.file("memory.peak").open("r+") for group in self.groups}
        for file in self.files.values():
            with contextlib.suppress(OSError):
                file.write("reset")
                file.flush()
        return self

    def __exit__(self, *_):
        self.peaks = {}
        for group, file in self.files.items():
            file.seek(0)
            self.peaks[group] = int(file.read())
            file.close()

    def of(self, group):
        return self.peaks[group]
