"""What an operator is told by `kubectl logs`, `kubectl describe` and probes when something is not as it should be."""

import socket
import subprocess

import cluster
import machine
import pod
from inside.asking import SECRET, TOKEN
from machine import say
from subject import Subject
from tap import Tap

# The redirect looks at its rules this often, and its probe asks as often.
LOOKS_EVERY = 30

# What it says where somebody else has the proxy's address, as Google's own server has it.
TAKEN = "has the address 169.254.169.252 already"


class Operator(Subject):
    def setUp(self):
        cluster.start_over()

    def test_a_redirect_that_cannot_be_installed_closes_the_way_and_says_what_to_do(self):
        polling = pod.Pod("closed", *pod.program("poll", pod.STOPS / "closed", 0.5, SECRET))
        with polling:
            polling.has_begun()
            machine.run("ip", "address", "add", machine.ADDRESSES[0], "dev", "lo")
            cluster.apply("overlay")
            machine.eventually("redirect has tried", lambda: TAKEN in cluster.log("redirect"), 300)
            # Whoever was connected before must be cut off, too.
            machine.eventually("the pod is cut off", lambda: not {"open"} & self.latest(polling), 60)
            with Tap() as tap:
                answers = pod.asked("closed-new", SECRET, TOKEN, "8081:/", "443:/")
                self.assert_it_explains_itself()
                self.assertEqual([answer["status"] for answer in answers], [0, 0, 0, 0], answers)
                self.assertEqual(tap.round, [], "requests of pods that reached the server while it was not ready")
            names = subprocess.Popen([*machine.WITHIN_WORLD, "python3", "-m", "http.server", "--bind", machine.SERVER, "53"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(names.wait)
            self.addCleanup(names.kill)
            machine.eventually("names are served", lambda: pod.asked("names", "53:/")[0]["status"] == 200, 60)
            self.assert_it_recovers(polling)

    def latest(self, polling):
        last = {line["how"]: line["outcome"] for line in polling.lines() if "outcome" in line}
        return set(last.values())

    def assert_it_explains_itself(self):
        status = cluster.container("redirect")
        self.assertEqual((status["restartCount"], status["ready"]), (0, False), status)
        self.assertIn("running", status["state"])
        log = cluster.log("redirect")
        say(f"redirect says: {log.strip().splitlines()[-1]}")
        self.assertIn(TAKEN, log)
        self.assertIn("redirect.addresses", log)
        described = machine.eventually("the probe is an event", lambda: self.probe_event(), 2 * LOOKS_EVERY + 60)
        say(f"describe says: {described}")
        self.assertIn(TAKEN, described)

    @staticmethod
    def probe_event():
        lines = cluster.described().splitlines()
        return next(" ".join(line.split()) for line in lines if "Readiness probe failed" in line and TAKEN in line)

    def assert_it_recovers(self, polling):
        """When somebody else has given the address back, nobody needs to restart anything."""
        machine.remove_addresses()
        cluster.rolled_out()
        machine.eventually("the pod is served", lambda: self.latest(polling) == {"concealed"}, 60)
        self.assertEqual(cluster.container("redirect")["restartCount"], 0)

    def test_a_server_that_is_away_is_named_and_does_not_restart_anything(self):
        cluster.install("overlay")
        machine.stop("mock")
        self.addCleanup(lambda: machine.pids("gce-metadata-proxy", "mock") or machine.start("mock"))
        # Not cached, so it is asked of the server.
        leaf = "/computeMetadata/v1/instance/cpu-platform"
        answer, token = pod.asked("server-away", leaf, TOKEN)
        self.assertEqual((answer["status"], answer["server"]), (503, "gce-metadata-proxy"), answer)
        self.assertEqual(token["status"], 200, "tokens that are known")
        line = machine.eventually("it is logged", self.complaint, 60)
        say(f"proxy says: {line}")
        ready = machine.run("curl", "--silent", "http://127.0.0.1:989/readyz?verbose")
        say(f"readyz says: {' '.join(ready.split())}")
        machine.start("mock")
        machine.eventually("it is served again", lambda: pod.asked("server-back", leaf)[0]["status"] == 200, 120)
        status = cluster.container("proxy")
        self.assertEqual((status["restartCount"], status["ready"]), (0, True), status)

    @staticmethod
    def complaint():
        return next(line for line in cluster.log("proxy").splitlines() if "metadata server" in line and "unavailable" in line)

    def test_a_port_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 988)):
            cluster.apply("overlay")
            machine.eventually("proxy has tried", lambda: "terminated" in str(cluster.container("proxy")), 180)
            log = machine.eventually("it says so", lambda: cluster.log("proxy") or cluster.log("proxy", previous=True), 60)
        say(f"proxy says: {log.strip().splitlines()[-1]}")
        self.assertIn("127.0.0.1:988", log)
        self.assertIn("cannot listen", log)
        cluster.rolled_out()
