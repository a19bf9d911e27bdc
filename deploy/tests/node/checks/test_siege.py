"""One pod besieges the proxy at the limits of its manifest, and another is served meanwhile.

The burdens are those of `cargo test --test siege`, sent from inside a pod; `tests/siege/table.rs` says what each is. Memory is
what cgroup v2 counts, so with the buffers of sockets."""

import os
import re
import subprocess
from collections import Counter

import cluster
import machine
import pod
from figures import MIB, figures
from inside.asking import TOKEN, V1
from machine import say
from subject import Subject

SIEGE = "/node/bin/siege"
AT = f"{machine.SERVER}:80"
# Idle connections, answers that nobody reads, small and large, requests that no cache knows, and everything at once.
SIEGES = [
    "silent",
    "pipelining_200",
    "pipelining_1000",
    "pipelining_1000_narrow",
    "large_answers_unread",
    "trees_unread",
    "invented_scopes",
    "everything_mixed",
]
# Deadlines of the proxy are real time, and an emulated upstream misses them: so the honest pod sends again what failed.
# Tokens are known, this is asked of the server each time.
LEAF = V1 + "instance/cpu-platform"
SECONDS = 300
# What the project promises, and the manifests ask for.
MOST_MEMORY = 25 * MIB


class Siege(Subject):
    @classmethod
    def setUpClass(cls):
        cls.replace_the_server()
        cluster.start_over()
        cluster.install("overlay")

    @classmethod
    def replace_the_server(cls):
        """The burdens expect large values and accounts that fail."""
        machine.stop("mock")
        cls.addClassCleanup(machine.start, "mock")
        server = subprocess.Popen(
            [*machine.WITHIN_WORLD, SIEGE],
            env={**os.environ, "SIEGE_UPSTREAM": AT, "SIEGE_EMULATED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for end in (server.stdout.close, server.wait, server.kill):
            cls.addClassCleanup(end)
        line = server.stdout.readline()
        if "upstream" not in line:
            raise AssertionError(f"there is no upstream for the siege: {line}")

    def besiege(self, siege):
        before = {one.name: one for one in figures(cluster.pod())}
        flood = ["/bin/chroot", "/host", "/usr/bin/env", f"SIEGE_AT={AT}", "SIEGE_EMULATED=1", "timeout", SECONDS]
        honest = pod.Pod("honest", *pod.program("poll", "--again", pod.STOPS / "honest", 1, TOKEN, LEAF))
        peaks = machine.Peaks(one.group for one in before.values())
        with honest, peaks:
            honest.has_begun()
            code, text = pod.outcome("hostile", *flood, SIEGE, "--exact", siege)
            *changes, summary = honest.stop()
        self.assertEqual(code, 0, text)
        after = {one.name: one for one in figures(cluster.pod())}
        self.assertEqual(after["proxy"].limit, MOST_MEMORY)
        asked, served = sum(summary["counts"].values()), summary["counts"].get("served", 0)
        [connections] = re.findall(rf"{siege}: (\d+) connections", text)
        proxy = peaks.of(before["proxy"].group)
        say(f"{siege}: {connections} connections; peak {proxy / MIB:.1f} MiB of {after['proxy'].limit / MIB:.0f}; "
            f"honest {served} of {asked}, {summary['repeated']} sent again")
        self.assertEqual({name: (one.restarts, one.killed) for name, one in after.items()},
                         {name: (one.restarts, one.killed) for name, one in before.items()}, "restarts, and killed for memory")
        self.assertEqual(Counter(summary["counts"]), Counter(served=asked), changes)
        self.assertEqual([fault for one in after.values() for fault in one.faults()], [])


for name in SIEGES:
    setattr(Siege, f"test_{name}", lambda self, name=name: self.besiege(name))
