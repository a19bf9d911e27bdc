"""With the unit: the first boot after it was installed."""

import unittest
from pathlib import Path

import boot
import machine
from machine import say

TABLE = f"table inet {machine.TABLE}"


class Reboot(unittest.TestCase):
    def test_a_the_rules_are_there_before_the_first_pod(self):
        # By both of its ways.
        machine.eventually("the pod has asked", lambda: len(boot.outcomes()) > 1, 300)
        rules, first = boot.at(boot.UNIT, "Exit"), boot.began()
        others = {name: boot.at(name, "Start") for name in ("world", "containerd", "kubelet")}
        say(", ".join(f"{name} {at:.1f} s" for name, at in {"rules": rules, **others, "first pod": first}.items()))
        self.assertEqual(machine.run("systemctl", "is-active", boot.UNIT).strip(), "active")
        self.assertGreater(rules, 0)
        self.assertLess(rules, min(first, others["world"], others["kubelet"]))
        self.assert_closed()

    def test_b_nftables_service_opens_nothing(self):
        for file in ("nftables.conf", "systemd/system/nftables.service.d/gce-metadata-proxy.conf"):
            boot.install(Path("/etc") / file)
        machine.run("systemctl", "daemon-reload")
        for command in ("restart", "reload"):
            machine.run("systemctl", command, "nftables.service")
            self.assertIn(TABLE, machine.rules(), command)
        self.assert_closed()

    def assert_closed(self):
        self.assertEqual((boot.reached(), [one for one in boot.outcomes() if one == "open"]), (0, []))
