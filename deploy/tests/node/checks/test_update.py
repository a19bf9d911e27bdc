"""A rolling update and a crash while a pod asks without a pause."""

import os
import signal
import time
from collections import Counter

import cluster
import machine
import pod
from groups import Group
from inside.asking import SECRET, TOKEN
from machine import say
from subject import Subject
from tap import Tap

EVERY = 0.2


def load(name):
    """A pod that asks for a token and for a secret."""
    return pod.Pod(name, *pod.program("poll", pod.STOPS / name, EVERY, TOKEN, SECRET))


class Update(Subject):
    @classmethod
    def setUpClass(cls):
        cluster.install("overlay")

    def test_a_rolling_update_fails_no_request(self):
        before = cluster.pod()["metadata"]["uid"]
        with load("update") as asking:
            asking.has_begun()
            cluster.kubectl("rollout", "restart", *cluster.DAEMONSET)
            cluster.rolled_out()
            self.assertNotEqual(cluster.pod()["metadata"]["uid"], before)
            *changes, summary = asking.stop()
        say(f"rolling update: {dict(Counter(summary['counts']))}")
        self.assertEqual(set(summary["counts"]), {"served", "concealed"}, changes)
        self.assertGreater(summary["counts"]["served"], 20)

    def test_what_is_killed_comes_back_and_nothing_gets_past(self):
        before = cluster.container("proxy")
        with Tap() as tap, load("kill") as asking:
            asking.has_begun()
            killed = time.time()
            for process in Group.named(before["containerID"].partition("//")[2]).processes():
                os.kill(process, signal.SIGKILL)
            machine.eventually("the container runs again", lambda: self.is_back(before))
            back = time.time()
            # Several rounds of the pod that asks.
            machine.eventually("it is served", lambda: self.is_served(asking, back))
            *changes, summary = asking.stop()
        self.report(killed, back, changes, summary)
        self.assertLessEqual({"served", "concealed"}, set(summary["counts"]), changes)
        self.assertNotIn("open", summary["counts"])
        self.assertEqual(tap.round, [])
        late = [at - killed for at, _ in summary["failures"] if at > back]
        self.assertEqual(late, [], "failed when the container was ready again")

    @staticmethod
    def is_back(before):
        now = cluster.container("proxy")
        return now["ready"] and now["restartCount"] == before["restartCount"] + 1

    @staticmethod
    def is_served(asking, since):
        last = {(line["path"], line["how"]): line["outcome"] for line in asking.lines() if "outcome" in line}
        return time.time() > since + 20 * EVERY and set(last.values()) == {"served", "concealed"}

    @staticmethod
    def report(killed, back, changes, summary):
        failed = sum(count for outcome, count in summary["counts"].items() if outcome.startswith("failed"))
        kinds = sorted({line["outcome"] for line in changes if line.get("outcome", "").startswith("failed")})
        say(f"kill -9: {failed} of {sum(summary['counts'].values())} requests failed ({'; '.join(kinds) or 'none'})")
        if summary["failures"]:
            first, last = summary["failures"][0][0] - killed, summary["failures"][-1][1] - killed
            say(f"kill -9: the first failed {first:.1f} s after it, the last {last:.1f} s")
        say(f"kill -9: ready again after {back - killed:.1f} s")
