"""Without the unit of docs/redirect.md: a pod that starts with the node reaches the server. Installs it for the next boot."""

import unittest
from pathlib import Path

import boot
import machine

RULES = Path("/etc/gce-metadata-proxy.nft")
UNITS = Path("/etc/systemd/system")


class Boot(unittest.TestCase):
    def test_without_the_unit_the_first_pod_is_open(self):
        machine.eventually("containerd serves", lambda: machine.run("ctr", "version"), 120)
        machine.run("up", "images", seconds=300)
        boot.place_the_pod()
        machine.eventually("the pod is open", lambda: "open" in boot.outcomes(), 300)
        self.assertGreater(boot.reached(), 0)

    def test_the_unit_can_be_installed(self):
        RULES.write_text(machine.run("/node/bin/gce-metadata-proxy", "redirect", "install", "--dry-run", "--tool", "nft"))
        boot.install(UNITS / boot.UNIT)
        machine.run("systemd-analyze", "verify", UNITS / boot.UNIT)
        machine.run("systemctl", "enable", boot.UNIT)
