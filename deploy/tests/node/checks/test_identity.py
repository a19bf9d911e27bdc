"""Workload Identity on a real kubelet and containerd, with the proxy acting as its own node: each pod gets the token of its own
account, also while the proxy is replaced."""

import contextlib

import api
import cluster
import machine
import pod
import restart
from machine import say
from sts import Sts, token_of
from subject import Subject

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
NAMES = ("alice", "bob")


def subject(account):
    return f"system:serviceaccount:default:{account}"


def asking(account):
    """A pod of this account that compares each token that it gets with its own."""
    name = f"asks-as-{account}"
    command = pod.program("own", pod.STOPS / name, 0.2, token_of(subject(account)))
    return pod.Pod(name, *command, fields={"serviceAccountName": account})


class Identity(Subject):
    @classmethod
    def setUpClass(cls):
        cluster.start_over()
        restart.lead_to_the_api_server()
        cls.addClassCleanup(machine.run, "nft", "delete", "table", "ip", "checks")
        cls.sts = cls.enterClassContext(Sts())
        for name in NAMES:
            api.request("POST", ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
            cls.addClassCleanup(api.request, "DELETE", f"{ACCOUNTS}/{name}")
        cluster.install("identity")
        cls.addClassCleanup(cluster.delete, "identity")

    def test_each_pod_gets_its_own_token_also_during_a_rolling_update(self):
        before = cluster.pod()["metadata"]["uid"]
        with contextlib.ExitStack() as stack:
            asked = {name: stack.enter_context(asking(name)) for name in NAMES}
            for one in asked.values():
                one.has_begun()
            cluster.kubectl("rollout", "restart", *cluster.DAEMONSET)
            cluster.rolled_out()
            self.assertNotEqual(cluster.pod()["metadata"]["uid"], before)
            for name, one in asked.items():
                first, summary = one.stop()
                say(f"{name}: first token after {first['after']:.1f} s, then {summary['counts']}")
                self.assertEqual(first["first"], "own")
                self.assertEqual(set(summary["counts"]), {"own"})
                self.assertGreater(summary["counts"]["own"], 20)
        say(f"exchanges: {dict(self.sts.exchanges)}")
        self.assertEqual(set(self.sts.exchanges), {subject(name) for name in NAMES})
        self.assertEqual(self.sts.bound_to, {one.name for one in asked.values()}, "pods that the tokens were bound to")
