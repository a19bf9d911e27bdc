"""Many pods, each asked for from within its own network by the node's Python: a program in each of them would be too much for an
emulated processor."""

import contextlib
import ctypes
import http.client
import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import api
import machine
import pod
from inside import asking

NETWORKS = Path("/run/netns")
LIBC = ctypes.CDLL(None, use_errno=True)
# As <sched.h> has it.
CLONE_NEWNET = 0x40000000


class Crowd:
    """`count` pods, the service accounts in turn, until the end of the `with` block."""

    def __init__(self, count, accounts):
        self.accounts = {f"crowd-{number}": accounts[number % len(accounts)] for number in range(count)}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for name, account in self.accounts.items():
                stack.enter_context(pod.Pod(name, "/bin/sleep", "infinity", fields={"serviceAccountName": account}))
            addresses = machine.eventually("all pods run", self.running, 1800, every=5)
            self.members = [Member(*one) for one in self.found(addresses)]
            self.pods = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.pods.close()

    def running(self):
        """The addresses of all pods by name, or nothing while one does not run."""
        items = [one for one in api.get(pod.PODS)["items"] if one["metadata"]["name"] in self.accounts]
        found = {one["metadata"]["name"]: one["status"]["podIP"] for one in items if one["status"]["phase"] == "Running"}
        return found if len(found) == len(self.accounts) else None

    def found(self, addresses):
        """The network and the account of each pod."""
        names = {address: name for name, address in addresses.items()}
        for network in NETWORKS.glob("cni-*"):
            for link in json.loads(machine.run("ip", "-netns", network.name, "-json", "-4", "address")):
                for one in link.get("addr_info", []):
                    if name := names.pop(one["local"], None):
                        yield network, self.accounts[name]
        if names:
            raise AssertionError(f"no network has the addresses of {sorted(names.values())}")


class Member:
    """A pod that asks for tokens on a new connection and on one that is kept."""

    def __init__(self, network, account):
        self.network, self.account = network, account
        self.kept = None

    def ask(self, is_new):
        """The status and the body of an answer. Like client libraries, replaces a kept connection that the server has closed."""
        if not is_new and self.kept and self.kept.sock:
            try:
                return ask_on(self.kept)
            except (ConnectionError, http.client.RemoteDisconnected):
                self.kept.close()
        through = asking.connection()
        # An HTTPConnection without a socket would connect from the network that the thread is in.
        through.sock = self.connected()
        if is_new:
            with contextlib.closing(through):
                return ask_on(through)
        self.kept = through
        return ask_on(through)

    def connected(self):
        """A socket of the pod's network, where this thread goes for good."""
        with self.network.open() as network:
            if LIBC.setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {self.network}")
        return socket.create_connection((asking.SERVER, 80), timeout=asking.PATIENCE)


def ask_on(connection):
    status, _, body = asking.ask(asking.TOKEN, connection)
    return status, body


def first_token(member, seconds=120):
    """Asks until there is one, as client libraries do."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            status, body = member.ask(is_new=True)
        except (OSError, http.client.HTTPException) as error:
            status, body = 0, repr(error)
        if status == http.client.OK:
            return json.loads(body)
        if time.monotonic() > deadline:
            raise AssertionError(f"{member.network.name}, {member.account}: {status} {body}")
        time.sleep(1)


def in_thread(work):
    """What `work` returns, from a thread of its own: it changes the thread's network."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except BaseException as error:  # noqa: BLE001
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    [(result, error)] = found
    if error:
        raise error
    return result


class Asking:
    """All members ask in turn without a pause, until the end of the `with` block. `judge` says what an answer is, in a word, and is told
    when it was asked for."""

    def __init__(self, members, judge):
        self.members, self.judge = members, judge
        self.counts, self.rounds = Counter(), 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()

    def run(self):
        while not self.is_over.is_set():
            for member in self.members:
                for is_new in (True, False):
                    self.counts[self.outcome(member, is_new)] += 1
            self.rounds += 1

    def outcome(self, member, is_new):
        began = time.time()
        try:
            status, body = member.ask(is_new)
            if status != http.client.OK:
                return f"failed: {status} {body.strip()[:200]}"
            return self.judge(member, json.loads(body), began)
        except (OSError, http.client.HTTPException, LookupError, ValueError) as error:
            return f"failed: {type(error).__name__} {error}"
