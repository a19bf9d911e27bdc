"""A pod with a proxy of its own, on a node that has none."""

import json

import cluster
import machine
import pod
from figures import figures
from inside.asking import SECRET, TOKEN
from machine import say
from subject import Subject
from tap import Tap

NAME = "with-metadata-proxy"
# Of CPU quota, in which the proxy had something to do: a tenth of a second each.
PERIODS = 50


def sidecar(manifest, *command, user=0):
    """The pod of the manifest, with this in the place of its application. It lasts as long as the `with` block."""
    [found] = cluster.objects(manifest)
    [application] = found["spec"]["containers"]
    # Root has to see the node's files, for which the manifest leaves no capability.
    context = {**application.get("securityContext", {}), "runAsUser": user} if user else {"runAsUser": 0}
    mine = pod.container(*command, name="application", env=application.get("env", []), securityContext=context)
    return pod.Pod(NAME, fields={**found["spec"], "containers": [mine]})


class Sidecar(Subject):
    @classmethod
    def setUpClass(cls):
        cluster.start_over()

    def run_application(self, manifest, *command, user=0):
        with Tap() as tap, sidecar(manifest, *command, user=user) as one:
            code = one.exit_code()
            return code, one.log(), tap

    def test_the_environment_leads_to_the_proxy(self):
        targets = [f"127.0.0.1:8988:{path}" for path in (TOKEN, SECRET)] + [SECRET]
        code, text, tap = self.run_application("sidecar-environment", *pod.program("ask", *targets))
        self.assertEqual(code, 0, text)
        token, secret, direct = map(json.loads, text.splitlines())
        # It asked in its first moment: the proxy was ready before it.
        self.assertEqual((token["status"], secret["status"]), (200, 403), text)
        self.assertIn("MOCK-SECRET", direct["body"], "the environment keeps nobody from the server itself, as documented")

    def test_the_environment_is_what_googles_libraries_read(self):
        [found] = cluster.objects("sidecar-environment")
        [application] = found["spec"]["containers"]
        env = {one["name"]: one["value"] for one in application["env"]}
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"):
            self.assertEqual(env[name], "127.0.0.1:8988", name)

    def test_the_redirect_leaves_the_application_no_choice(self):
        targets = [TOKEN, SECRET, "8081:/", "443:/"]
        code, text, tap = self.run_application("sidecar-redirect", *pod.program("ask", *targets))
        self.assertEqual(code, 0, text)
        answers = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([answer["status"] for answer in answers], [200, 403, 0, 0], text)
        self.assertEqual(answers[1]["server"], "gce-metadata-proxy")
        # The proxy has the pod's address.
        wrong = [line for line in tap.round if "kube-env" in line or line.startswith("a connection to port") and line[-2:] != "80"]
        self.assertEqual(wrong, [])

    def test_check_says_protected_beside_it(self):
        code, text, _ = self.run_application("sidecar-redirect", "/gce-metadata-proxy", "check", user=1000)
        self.assertEqual(code, 0, text)

    def test_only_the_proxys_own_user_goes_past(self):
        """What the manifest warns of: an application that runs as the proxy's user."""
        code, text, _ = self.run_application("sidecar-redirect", "/gce-metadata-proxy", "check", user=61988)
        self.assertEqual(code, 1, text)

    def test_it_stays_within_its_memory(self):
        poll = pod.program("poll", pod.STOPS / NAME, 0.05, TOKEN)
        with sidecar("sidecar-redirect", *poll) as one:
            one.has_begun()
            [cost] = figures(one.get())
            machine.eventually("it has asked for a while", lambda: cost.group.number("cpu.stat", "nr_periods") > PERIODS)
            say(f"sidecar: {cost}")
            self.assertEqual(list(cost.faults()), [])
            *changes, summary = one.stop()
        self.assertEqual(set(summary["counts"]), {"served"}, changes)
