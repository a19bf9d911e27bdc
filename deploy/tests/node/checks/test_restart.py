"""The first seconds of a node: what a pod reaches that is there before the redirect is."""

import json
import time

import api
import cluster
import machine
import pod
import restart
from inside.asking import SECRET
from machine import say
from subject import Subject

TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gce-metadata-proxy"
# Several rounds of the pod that asks.
SETTLED = 5


def early(name, restart="Never"):
    """A pod that asks for a secret from its first moment."""
    return pod.Pod(name, *pod.program("poll", pod.STOPS / name, 0.1, SECRET), restart=restart)


def seconds_open(lines):
    """For how long the pod could read the secret on any of its connections, by the lines that it wrote."""
    seconds, since, ways = 0, None, set()
    for line in lines:
        at = line.get("at", line.get("ended"))
        if line.get("outcome") == "open":
            ways.add(line["how"])
            since = since or at
        else:
            ways -= {line["how"]} if "how" in line else ways
            if since and not ways:
                seconds, since = seconds + at - since, None
    return seconds


def first(container, words):
    """When a container of the proxy's pod first wrote these words."""
    lines = cluster.log(container, timestamps=True).splitlines()
    stamp = next(line.split()[0] for line in lines if words in line)
    return pod.clock(stamp[:19] + "Z") + float("0." + stamp[20:].rstrip("Z"))


def report(name, lines):
    """Prints what came when, in seconds from the first of them."""
    events = {
        "redirect installed": first("redirect", "redirect installed"),
        "proxy serves": first("proxy", "serving pods"),
        "first pod runs": lines[0]["began"],
    }
    zero = min(events.values())
    order = ", ".join(f"{event} {at - zero:.1f} s" for event, at in sorted(events.items(), key=lambda pair: pair[1]))
    say(f"{name}: {order}; the pod is open for {seconds_open(lines):.1f} s")


class Restart(Subject):
    def is_settled(self, polling):
        """Whether the pod was protected for a while by now."""
        last = {line["how"]: line for line in polling.lines() if "outcome" in line}
        return last and all(line["outcome"] == "concealed" and time.time() > line["at"] + SETTLED for line in last.values())

    def test_a_pod_that_is_there_before_the_redirect_is_cut_off_by_it(self):
        cluster.start_over()
        cluster.install("overlay")
        with early("early", restart="Always") as polling:
            polling.has_begun()
            before = polling.status()["restartCount"]
            restart.switch_off()
            restart.switch_on()
            machine.eventually("the pod runs again", lambda: polling.status()["restartCount"] > before and polling.lines(), 300)
            cluster.rolled_out()
            machine.eventually("the pod is protected", lambda: self.is_settled(polling), 120)
            polling.stop_file.touch()
            lines = polling.lines()
        report("restart", lines)
        outcomes = [line["outcome"] for line in lines if "outcome" in line]
        self.assertEqual(outcomes[-1], "concealed")

    def test_with_the_startup_taint_no_pod_is_ever_open_on_a_new_node(self):
        cluster.start_over()
        restart.lead_to_the_api_server()
        self.addCleanup(machine.run, "nft", "delete", "table", "ip", "checks")
        self.addCleanup(cluster.delete, "startup-taint")
        cluster.install("startup-taint")
        restart.switch_off()
        cluster.kubectl("delete", "node", cluster.NODE)
        with early("early-tainted") as polling, restart.registered_with(TAINT):
            restart.lead_to_the_api_server()
            restart.switch_on()
            polling.has_begun(600)
            machine.eventually("the pod is protected", lambda: self.is_settled(polling), 120)
            scheduled = polling.scheduled()
            lines = polling.stop()
        cluster.rolled_out()
        report("new node with the startup taint", lines)
        self.assertEqual(seconds_open(lines), 0, json.dumps(lines))
        # A pod may come late for another reason. Kubernetes tells whole seconds.
        self.assertGreaterEqual(scheduled + 1, first("redirect", "redirect installed"), "scheduled before the redirect")
        taints = api.get(f"/api/v1/nodes/{cluster.NODE}")["spec"].get("taints", [])
        self.assertNotIn(TAINT, [taint["key"] for taint in taints])
