"""Workload Identity on a real kubelet and containerd, with the proxy acting as its own node: each pod gets the token of its own
account, also while the proxy is replaced."""

import contextlib
import os
import time

import api
import cluster
import crowd
import machine
import pod
import restart
from machine import say
from sts import LIFE, Sts, token_of
from subject import Subject

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
NAMES = ("alice", "bob")
# A full node's. An emulated kubelet with more than 60 is so slow that the node counts as not ready, and then its old proxy is ended first.
CROWD = 60 if os.environ["ACCELERATOR"].startswith("tcg") else 110
CROWDS_ACCOUNTS = [f"crowd-{number}" for number in range(30)]


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
        for name in (*NAMES, *CROWDS_ACCOUNTS):
            api.request("POST", ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
            cls.addClassCleanup(api.request, "DELETE", f"{ACCOUNTS}/{name}")
        cluster.install("identity")
        cls.addClassCleanup(cluster.delete, "identity")

    def test_each_pod_gets_its_own_token_also_during_a_rolling_update(self):
        self.sts.exchanges.clear()
        self.sts.bound_to.clear()
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

    def test_pods_of_thirty_accounts_cost_a_rolling_update_no_exchange(self):
        before = cluster.pod()["metadata"]["uid"]
        with crowd.Crowd(CROWD, CROWDS_ACCOUNTS) as pods:
            crowd.in_thread(lambda: [crowd.first_token(member) for member in pods.members])
            exchanges = self.of_the_crowd()
            with crowd.Asking(pods.members, self.judged) as asked:
                machine.eventually("each pod has asked", lambda: asked.rounds, 600)
                begun = asked.rounds
                cluster.kubectl("rollout", "restart", *cluster.DAEMONSET)
                cluster.rolled_out()
                machine.eventually("each pod has asked the new proxy", lambda: asked.rounds > begun + 1, 600)
        self.assertNotEqual(cluster.pod()["metadata"]["uid"], before)
        say(f"{CROWD} pods, {len(CROWDS_ACCOUNTS)} accounts: {dict(asked.counts)}, {sum(exchanges.values())} exchanges before")
        self.assertEqual(set(asked.counts), {"own"})
        oldest = min(self.sts.given[subject(account)] for account in CROWDS_ACCOUNTS)
        self.assertLess(time.time() - oldest, 0.4 * LIFE, "it took so long that tokens are renewed anyway")
        self.assertEqual(self.of_the_crowd(), exchanges, "exchanges that the update caused")

    def of_the_crowd(self):
        return {account: self.sts.exchanges[subject(account)] for account in CROWDS_ACCOUNTS}

    def judged(self, member, token, began):
        """Whether a token is the pod's own, and as old as it says."""
        of = subject(member.account)
        if token["access_token"] != token_of(of):
            return f"ANOTHER'S: {token['access_token']}"
        ends = self.sts.given[of] + LIFE
        # The proxy counts from when it sent the request for the token, and rounds down.
        is_true = ends - time.time() - 30 < token["expires_in"] <= ends - began + 1
        return "own" if is_true else f"ends in {token['expires_in']} s, not {ends - began:.0f}"
