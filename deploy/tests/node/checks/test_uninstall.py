"""The documented way to remove it."""

import cluster
import machine
import pod
from inside.asking import SECRET
from machine import say
from subject import Subject


def tables():
    return set(machine.run("nft", "list", "tables").splitlines())


class Uninstall(Subject):
    @classmethod
    def setUpClass(cls):
        cluster.start_over()
        cls.tables = tables()

    def secret(self, name):
        [answer] = pod.asked(name, SECRET)
        return answer["status"]

    def test_it_leaves_the_node_as_it_was(self):
        cluster.install("overlay")
        self.assertIn(machine.TABLE, machine.rules())
        self.assertIn(machine.ADDRESSES[0], machine.addresses())
        self.assertEqual(self.secret("installed"), 403)

        cluster.kubectl("delete", "--namespace", "kube-system", f"daemonset/{cluster.CANARY}")
        cluster.install("base")
        self.assertIn(machine.TABLE, machine.rules(), "the rules stay when nobody keeps them any more")
        self.assertEqual(self.secret("kept-by-nobody"), 403)
        say("without components/redirect: the rules are there, pods are protected")

        cluster.install("removal")
        self.assertNotIn(machine.TABLE, machine.rules())
        self.assertEqual(machine.addresses(), [])
        self.assertEqual(self.secret("removed"), 200, "pods reach the server itself")
        say("with components/redirect-remove: no rule, no address")

        cluster.delete("removal")
        self.assertEqual(tables(), self.tables)
        self.assertNotIn(machine.TABLE, machine.rules())
        self.assertEqual(machine.addresses(), [])
        for selected in (cluster.OF_PROXY, cluster.OF_CANARY):
            left = cluster.kubectl("get", "daemonset,serviceaccount,pod", *selected, "--output", "name")
            self.assertEqual(left, "", "objects that are left")

    def test_deleting_it_alone_leaves_pods_without_metadata(self):
        cluster.install("overlay")
        cluster.delete("overlay")
        self.assertIn(machine.TABLE, machine.rules())
        self.assertEqual(self.secret("deleted"), 0)
        cluster.start_over()
