"""The images: what is in them, that a commit gives the same binary anywhere, and that the proxy serves from one, within the
bounds and with the privileges that the manifests give it."""

import hashlib
import json
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import containers
import rendered
from containers import Container, as_in_a_pod

VERSION = tomllib.loads((containers.REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]
MOST_BYTES = 12_000_000
# The redirect's rules end on loopback, which kube-proxy has the kernel route.
AS_KUBE_PROXY = ["--sysctl", "net.ipv4.conf.all.route_localnet=1"]


def setUpModule():
    global PROXY, REDIRECT, ELSEWHERE  # noqa: PLW0603
    containers.prepare()
    with tempfile.TemporaryDirectory() as folder:
        folder = containers.source(Path(folder))
        PROXY, REDIRECT = (containers.build(target, folder, REVISION="a-commit") for target in ("proxy", "redirect"))
        # The same commit in another folder, by another user's Rust, outside of the image.
        ELSEWHERE = folder / "elsewhere"
        rendered.run(folder / "deploy" / "image" / "build-binary", "", ELSEWHERE)
        ELSEWHERE = ELSEWHERE.read_bytes()


class Contents(unittest.TestCase):
    def setUp(self):
        self.container = containers.buildah("from", PROXY).strip()
        self.addCleanup(containers.buildah, "rm", self.container)
        self.root = Path(containers.buildah("mount", self.container).strip())

    def test_it_holds_the_binary_and_nothing_else(self):
        self.assertEqual([str(path.relative_to(self.root)) for path in self.root.rglob("*")], ["gce-metadata-proxy"])

    def test_the_binary_is_small(self):
        size = (self.root / "gce-metadata-proxy").stat().st_size
        print(f"{size} bytes", end=" ", flush=True)
        self.assertLessEqual(size, MOST_BYTES)

    def test_the_binary_is_the_same_wherever_it_is_built(self):
        inside = (self.root / "gce-metadata-proxy").read_bytes()
        self.assertEqual(*(hashlib.sha256(binary).hexdigest() for binary in (inside, ELSEWHERE)))

    def test_the_binary_names_no_path_of_the_machine_that_built_it(self):
        found = [path for path in (b"/root/", b"/home/", b"/tmp/", b"/build/", b"/usr/local/cargo/") if path in ELSEWHERE]
        self.assertEqual(found, [])
        # Panics do name files; so the paths were replaced, not searched for in vain.
        self.assertTrue(b"/cargo/registry/" in ELSEWHERE)

    def test_it_says_who_it_is_and_is_nobody(self):
        configuration = containers.configuration(PROXY)["config"]
        self.assertEqual(configuration["User"], "61988:61988")
        self.assertEqual(configuration["Entrypoint"], ["/gce-metadata-proxy"])
        self.assertNotIn("Cmd", configuration)
        self.assertEqual(configuration["Labels"]["org.opencontainers.image.version"], VERSION)
        self.assertEqual(configuration["Labels"]["org.opencontainers.image.revision"], "a-commit")


class Serving(unittest.TestCase):
    """Bounded, on a read-only root, as the image's own user, before a mock metadata server on this machine's loopback."""

    def setUp(self):
        mock = subprocess.Popen([containers.MOCK, "mock", "--addr=127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(mock.stdout.close)
        self.addCleanup(mock.wait)
        self.addCleanup(mock.kill)
        self.upstream = mock.stdout.readline().split()[-1]
        self.options = as_in_a_pod(rendered.container("sidecar/environment", "metadata-proxy"), network="host")

    def proxy(self):
        ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]
        return Container(PROXY, [*ports, f"--upstream={self.upstream}"], *self.options)

    def test_it_tells_its_version(self):
        # `podman run` gives the output of what it ran.
        printed = containers.podman("run", "--rm", *self.options, PROXY, "--version")
        self.assertEqual(printed, f"gce-metadata-proxy {VERSION}\n")

    def test_it_can_tell_pods_apart(self):
        printed = containers.podman("run", "--rm", *self.options, PROXY, "--help")
        self.assertRegex(printed, r"(?m)^ +--workload-identity\[")

    def test_the_requests_of_the_demo_work(self):
        with self.proxy() as proxy:
            metrics = address(proxy.line("serving operators"))
            v1 = address(proxy.line("serving pods")) + "/computeMetadata/v1/instance/"
            proxy.line("cache warmed up")
            status, token = ask(v1 + "service-accounts/default/token")
            self.assertEqual((status, json.loads(token)["token_type"]), (200, "Bearer"))
            self.assertGreater(json.loads(token)["expires_in"], 0)
            self.assertEqual(ask(v1 + "zone")[0], 200)
            self.assertEqual(ask(v1 + "attributes/kube-env")[0], 403)
            self.assertEqual(ask(metrics + "/readyz")[0], 200)
            self.assertIn("metadata_proxy_build_info", ask(metrics + "/metrics")[1])
            print(f"{proxy.peak_memory() >> 10} KiB at most", end=" ", flush=True)

    def test_it_ends_on_sigterm_as_the_first_process(self):
        with self.proxy() as proxy:
            proxy.line("serving pods")
            code, seconds = proxy.stop()
            self.assertEqual(code, 0, proxy.log())
            self.assertLess(seconds, 10)


class Privileges(unittest.TestCase):
    """Each container of the manifests does its work with what they give it, in a network of its own."""

    def test_the_proxy_takes_its_port_with_one_capability(self):
        manifest = rendered.container("base", "proxy")
        args = [*manifest["args"], "--upstream=http://127.0.0.1:9"]
        with Container(PROXY, args, *as_in_a_pod(manifest)) as proxy:
            self.assertIn("127.0.0.1:988", proxy.line("serving pods"))

    def test_without_that_capability_it_does_not(self):
        manifest = rendered.container("base", "proxy")
        del manifest["securityContext"]["capabilities"]["add"]
        args = [*manifest["args"], "--upstream=http://127.0.0.1:9"]
        with Container(PROXY, args, *as_in_a_pod(manifest)) as proxy:
            self.assertEqual(proxy.ended(), 1)
            self.assertIn("NET_BIND_SERVICE", proxy.log())

    def test_the_redirect_is_kept_with_one_capability(self):
        manifest = rendered.container("overlays/self-managed", "redirect")
        ready = manifest["readinessProbe"]["exec"]["command"]
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest), *AS_KUBE_PROXY) as redirect:
            redirect.line("redirect installed")
            redirect.execute(*ready)
            self.assertIn("127.0.0.1:988", redirect.execute("nft", "list", "ruleset"))
            print(f"{redirect.peak_memory() >> 10} KiB at most", end=" ", flush=True)
            code, _ = redirect.stop()
            self.assertEqual(code, 0)

    def test_what_cannot_route_loopback_closes_pods_and_says_so(self):
        manifest = rendered.container("overlays/self-managed", "redirect")
        ready = manifest["readinessProbe"]["exec"]["command"]
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest)) as redirect:
            self.assertIn("route_localnet", redirect.line("pods are closed"))
            with self.assertRaises(AssertionError):
                redirect.execute(*ready)
            rules = redirect.execute("nft", "list", "ruleset")
            self.assertIn("no_bypass", rules)
            self.assertNotIn("to_proxy", rules)

    def test_the_redirect_is_removed_where_there_is_none(self):
        manifest = rendered.container("tests/removal", "redirect-remove")
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest)) as redirect:
            self.assertEqual(redirect.ended(), 0, redirect.log())

    def test_a_sidecars_redirect_is_installed_with_one_capability(self):
        manifest = rendered.container("sidecar/redirect", "metadata-redirect")
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest)) as redirect:
            self.assertEqual(redirect.ended(), 0, redirect.log())


def address(line):
    """The address at the end of a log line, as a URL."""
    return "http://" + line.rsplit("addr=", 1)[1].strip()


def ask(url):
    """The status and the body of an answer."""
    try:
        with urlopen(Request(url, headers={"Metadata-Flavor": "Google"}), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


if __name__ == "__main__":
    unittest.main()
