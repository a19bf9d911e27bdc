"""Checks the proxy on a real node, from its pods: python3 checks [SUBJECT...], as root on that node.

A subject is the name of a file without `test_`; without any, all are checked. It needs kubectl with an admin's KUBECONFIG, the
images, the manifests in /node/manifests, and a mock metadata server at 169.254.169.254:80 beyond the node."""

import sys
import time
import unittest

SUBJECTS = ["view", "update", "siege", "operator", "canary", "sidecar", "identity", "uninstall", "restart"]
# On a machine that systemd has booted, without an API server, and after its reboot.
OF_SYSTEMD = ["boot", "reboot"]


class Result(unittest.TextTestResult):
    """A line for each check, with the seconds it took."""

    def startTest(self, test):
        self.begun = time.monotonic()
        super().startTest(test)

    def getDescription(self, test):
        if not hasattr(test, "_testMethodName"):
            return str(test)
        return f"{type(test).__name__.lower()}: {test._testMethodName.removeprefix('test_').replace('_', ' ')}"

    def line(self, verdict, test, why=""):
        took = time.monotonic() - self.begun
        self.stream.writeln(f"{verdict:<6} {self.getDescription(test)} ({took:.0f} s){why and chr(10)}{why}")
        self.stream.flush()

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.line("ok", test)

    def addFailure(self, test, err):
        unittest.TestResult.addFailure(self, test, err)
        self.line("FAILED", test, err[1])

    def addError(self, test, err):
        unittest.TestResult.addError(self, test, err)
        self.line("FAILED", test, err[1])


def main(names):
    unknown = set(names) - {*SUBJECTS, *OF_SYSTEMD}
    if unknown:
        sys.exit(f"no such subject: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames([f"test_{name}" for name in names or SUBJECTS])
    begun = time.monotonic()
    result = unittest.TextTestRunner(sys.stdout, verbosity=0, resultclass=Result).run(suite)
    print(f"checked in {time.monotonic() - begun:.0f} s", flush=True)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
