"""The canary is ready as long as pods of its node are protected, and says what is open when they are not."""

import time

import api
import cluster
import machine
import pod
from figures import figures
from machine import say
from subject import Subject

DAEMONSET = f"/apis/apps/v1/namespaces/kube-system/daemonsets/{cluster.CANARY}"


def canary():
    [found] = api.get(f"{api.pods('kube-system')}?labelSelector=app.kubernetes.io/name={cluster.CANARY}")["items"]
    return found


def readiness():
    """Whether it is ready, and since when."""
    [found] = [one for one in canary()["status"]["conditions"] if one["type"] == "Ready"]
    return found["status"] == "True", found["lastTransitionTime"]


def nodes_ready():
    """What `kubectl get daemonset` shows as READY."""
    return api.get(DAEMONSET)["status"]["numberReady"]


class Canary(Subject):
    @classmethod
    def setUpClass(cls):
        cluster.start_over()
        cluster.install("overlay")
        machine.eventually("the canary is ready", lambda: readiness()[0])

    @classmethod
    def tearDownClass(cls):
        for one in figures(canary()):
            say(f"canary: {one}")
            if faults := list(one.faults()):
                raise AssertionError("; ".join(faults))
        super().tearDownClass()

    def test_a_rolling_update_of_the_proxy_does_not_concern_it(self):
        before = readiness()
        self.assertTrue(before[0], before)
        cluster.kubectl("rollout", "restart", *cluster.DAEMONSET)
        cluster.rolled_out()
        self.assertEqual(readiness(), before)

    def test_without_the_rules_it_is_not_ready_and_its_events_say_why(self):
        self.assertEqual(nodes_ready(), 1)
        # The container `redirect` goes, and then what it installed.
        cluster.install("base")
        self.assertTrue(readiness()[0], "the rules stay when nobody keeps them any more")
        removed = time.time()
        machine.remove_rules()
        machine.eventually("it is not ready", lambda: not readiness()[0])
        machine.eventually("the DaemonSet shows it", lambda: nodes_ready() == 0)
        event = machine.eventually("its probe is an event", lambda: self.probe_event(removed))
        say(f"its event says: {event}")
        self.assertIn("Readiness probe failed: UNPROTECTED: pods of node-1 ", event)
        for named in ("HEAD http://169.254.169.254/: answered by ", "attributes/kube-env: ", "Fix: run 'gce-metadata-proxy redirect check'"):
            self.assertIn(named, event)
        self.assertIn("UNPROTECTED: pods of node-1 ", api.log("kube-system", canary()["metadata"]["name"], "canary"))

        cluster.install("overlay")
        machine.eventually("it is ready again", lambda: readiness()[0])
        [status] = canary()["status"]["containerStatuses"]
        self.assertEqual(status["restartCount"], 0)

    @staticmethod
    def probe_event(since):
        """There are others of the canary's first seconds, in which there were no rules either."""
        selector = f"fieldSelector=reason=Unhealthy,involvedObject.name={canary()['metadata']['name']}"
        events = api.get(f"/api/v1/namespaces/kube-system/events?{selector}")["items"]
        return next(event["message"] for event in events if pod.clock(event["lastTimestamp"]) > since)
