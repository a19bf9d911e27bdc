"""What all subjects have in common: at the end of each, the figures of the DaemonSet's containers are printed and judged."""

import unittest

import cluster
from figures import figures
from machine import say


class Subject(unittest.TestCase):
    maxDiff = None

    @classmethod
    def tearDownClass(cls):
        faults = []
        for pod in cluster.pods():
            for one in figures(pod):
                say(f"{cls.__name__.lower()}: {one}")
                faults += one.faults()
        if faults:
            raise AssertionError("; ".join(faults))
