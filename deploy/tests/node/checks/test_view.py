"""What a pod sees, before the redirect and after it."""

import json

import cluster
import pod
from inside.asking import SECRET, TOKEN, V1
from machine import say
from subject import Subject
from tap import Tap

ZONE = V1 + "instance/zone"
LISTING = V1 + "instance/attributes/?recursive=true"


class View(Subject):
    """With the objects of the overlay."""

    manifest = "overlay"

    @classmethod
    def setUpClass(cls):
        cluster.start_over()
        with Tap() as cls.before:
            cls.open = dict(zip(("zone", "secret"), pod.asked("unprotected", ZONE, SECRET), strict=True))
            cls.unprotected = pod.check("check-unprotected")
        cluster.install(cls.manifest)
        with Tap() as cls.after:
            targets = (ZONE, TOKEN, SECRET, LISTING, "8081:/", "443:/")
            got = pod.asked("protected", *targets)
            cls.protected = pod.check("check-protected")
        cls.zone, cls.token, cls.secret, cls.listing, *cls.round = got

    def test_without_the_redirect_a_pod_reads_the_nodes_secrets(self):
        """The negative control: what is checked below can fail."""
        self.assertIn("MOCK-SECRET", self.open["secret"]["body"])
        self.assertIn(f"GET {SECRET} HTTP/1.1", self.before.round)

    def test_without_the_redirect_check_says_unprotected(self):
        code, text = self.unprotected
        self.assertEqual(code, 1, text)
        self.assertIn("OPEN    GET http://169.254.169.254/computeMetadata/v1/instance/attributes/kube-env", text)
        self.assertTrue(text.endswith("Unprotected: everything marked OPEN can be reached from here.\n"), text)

    def test_a_pod_gets_the_zone(self):
        self.assertEqual((self.zone["status"], self.zone["body"]), (200, self.open["zone"]["body"]), self.zone)

    def test_a_pod_gets_a_token(self):
        self.assertEqual(self.token["status"], 200, self.token)
        self.assertGreater(json.loads(self.token["body"])["expires_in"], 0)

    def test_kube_env_is_refused_with_the_reason(self):
        self.assertEqual((self.secret["status"], self.secret["server"]), (403, "gce-metadata-proxy"), self.secret)
        self.assertIn("kube-env is concealed from pods by the policy compat", self.secret["body"])

    def test_a_listing_comes_without_the_concealed_values(self):
        self.assertEqual(self.listing["status"], 200, self.listing)
        listed = json.loads(self.listing["body"])
        self.assertIn("cluster-name", listed)
        self.assertNotIn("kube-env", listed)
        self.assertNotIn("KUBELET_KEY", self.listing["body"])

    def test_other_ports_of_the_server_are_closed(self):
        self.assertEqual([answer["status"] for answer in self.round], [0, 0], self.round)

    def test_check_says_protected(self):
        code, text = self.protected
        self.assertEqual(code, 0, text)
        self.assertTrue(text.endswith("Protected: requests reach the metadata server only through the proxy.\n"), text)

    def test_the_server_hears_the_proxy_and_no_pod(self):
        self.assertEqual(self.after.round, [])
        say(f"requests that reached the server: {len([line for line in self.after.proxied if line.startswith('GET ')])} of the "
            f"proxy, {len(self.after.round)} of pods; without the redirect {len(self.before.round)} of pods")


class ViewOfTheChart(View):
    """The same with what Helm renders."""

    manifest = "chart"
