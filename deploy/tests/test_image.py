"""The images with real binaries: that a commit gives the same binary anywhere, that it runs for both architectures, and that the
proxy serves from its image, within the bounds and with the privileges that the manifests give it. What else is in images:
test_release.py."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from functools import cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import containers
import rendered
from containers import Container, as_in_a_pod

sys.path.insert(0, str(rendered.DEPLOY / "image"))

import images  # noqa: E402
import oci  # noqa: E402

VERSION = images.VERSION
# Of the image for amd64, as a registry stores it.
MOST_BYTES = 9_000_000
# Of the program's code, resident at rest: 2.7 to 3.7 MiB where what runs lies side by side, 7.2 where it does not.
MOST_CODE_KIB = 4096
ARM64 = "qemu-aarch64-static"


def setUpModule():
    global FOLDER, PROXY, REDIRECT  # noqa: PLW0603
    containers.prepare()
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    FOLDER = Path(folder.name)
    images.build(FOLDER / "images", "a-commit", ["amd64", "arm64"])
    PROXY, REDIRECT = (containers.load(FOLDER / "images" / name, VERSION) for name in images.IMAGES)
    for architecture in ("amd64", "arm64"):
        unpack("gce-metadata-proxy-redirect", architecture)


@cache
def elsewhere():
    """The binary of the same commit, built in another folder."""
    source = containers.source(FOLDER / "source")
    rendered.run(source / "deploy" / "image" / "build-binary", "amd64", FOLDER / "elsewhere")
    return (FOLDER / "elsewhere").read_bytes()


def unpack(image, architecture):
    """Puts the files of an image into a folder named after the architecture. They include those of the proxy's image."""
    layout = oci.Layout(FOLDER / "images" / image)
    for found, manifest, _ in layout.images():
        for layer in manifest["layers"] if found == architecture else []:
            with tarfile.open(fileobj=io.BytesIO(oci.extracted(layout.read(layer)))) as archive:
                archive.extractall(FOLDER / architecture, filter="tar")


def binary(architecture):
    return FOLDER / architecture / "gce-metadata-proxy"


class Binary(unittest.TestCase):
    def test_the_image_is_small(self):
        layout = oci.Layout(FOLDER / "images" / "gce-metadata-proxy")
        for architecture, manifest, _ in layout.images():
            size = sum(layer["size"] for layer in manifest["layers"])
            print(f"{architecture}: {size} bytes, the binary {binary(architecture).stat().st_size}", end=" ", flush=True)
            self.assertLessEqual(size, MOST_BYTES)

    def test_the_binary_is_the_same_wherever_it_is_built(self):
        inside = binary("amd64").read_bytes()
        self.assertEqual(*(hashlib.sha256(found).hexdigest() for found in (inside, elsewhere())))

    def test_the_binary_names_no_path_of_the_machine_that_built_it(self):
        found = [path for path in (b"/root/", b"/home/", b"/tmp/", b"/usr/local/cargo/", str(rendered.DEPLOY.parent).encode()) if path in binary("amd64").read_bytes()]
        self.assertEqual(found, [])
        # Panics do name files; so the paths were replaced, not searched for in vain.
        self.assertTrue(b"/cargo/registry/" in binary("amd64").read_bytes())

    def test_nft_finds_all_that_it_loads(self):
        for emulation, architecture in ([], "amd64"), ([ARM64, "-L", FOLDER / "arm64"], "arm64"):
            root = FOLDER / architecture
            loader = next(root.glob("lib/*/ld-linux-*"))
            paths = f"{loader.parent}:{root / 'usr/lib' / loader.parent.name}"
            printed = rendered.run(*emulation, loader, "--library-path", paths, "--list", root / "usr/sbin/nft")
            libraries = re.findall(r"(\S+) => (\S+)", printed)
            self.assertGreater(len(libraries), 8)
            self.assertEqual([name for name, path in libraries if not path.startswith(str(root))], [], architecture)


def started(test, *command):
    """A program that runs until the test ends."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for clean in (process.stdout.close, process.wait, process.kill):
        test.addCleanup(clean)
    return process


def mock(test):
    """The URL of a mock metadata server on this machine's loopback."""
    return started(test, containers.MOCK, "mock", "--addr=127.0.0.1:0").stdout.readline().split()[-1]


class Emulated(unittest.TestCase):
    """The binary for arm64, on this machine."""

    def test_it_explains_a_policy(self):
        path = "/computeMetadata/v1/instance/attributes/kube-env"
        printed = [rendered.run(*command, "explain", path) for command in ([binary("amd64")], [ARM64, binary("arm64")])]
        self.assertIn("kube-env", printed[0])
        self.assertEqual(*printed)

    def test_it_answers_a_token_and_conceals_secrets(self):
        ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]
        proxy = started(self, ARM64, binary("arm64"), *ports, f"--upstream={mock(self)}")
        line = next((line for line in proxy.stdout if "serving pods" in line), "addr=none")
        v1 = address(line) + "/computeMetadata/v1/instance/"
        status, token = ask(v1 + "service-accounts/default/token")
        self.assertEqual((status, json.loads(token)["token_type"]), (200, "Bearer"))
        self.assertEqual(ask(v1 + "attributes/kube-env")[0], 403)


class Resident(unittest.TestCase):
    def test_code_that_does_not_run_stays_out_of_memory(self):
        ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]
        program = binary("amd64")
        # A file that was just written is in memory in larger pieces than one that is read, as on a node.
        with open(program, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        proxy = started(self, program, *ports, f"--upstream={mock(self)}")
        v1 = address(next(line for line in proxy.stdout if "serving pods" in line)) + "/computeMetadata/v1/instance/"
        next(line for line in proxy.stdout if "cache warmed up" in line)
        answers = [ask(v1 + path)[0] for path in ("service-accounts/default/token", "zone", "attributes/kube-env")]
        self.assertEqual(answers, [200, 200, 403])
        maps = Path(f"/proc/{proxy.pid}/smaps").read_text()
        [code] = re.findall(r"^\S+ r-xp \S+ \S+ \d+ +/.*\n(?:\w+:.*\n)*?Rss: +(\d+) kB$", maps, re.MULTILINE)
        print(f"{code} KiB of code", end=" ", flush=True)
        self.assertLessEqual(int(code), MOST_CODE_KIB, "deploy/image/record-running writes the list of what runs")


class Serving(unittest.TestCase):
    """Bounded, on a read-only root, as the image's own user, before a mock metadata server on this machine's loopback."""

    def setUp(self):
        self.upstream = mock(self)
        self.options = as_in_a_pod(rendered.container("sidecar/environment", "metadata-proxy"), network="host")

    def proxy(self):
        ports = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]
        return Container(PROXY, [*ports, f"--upstream={self.upstream}"], *self.options)

    def test_it_tells_its_version(self):
        # `podman run` gives the output of what it ran.
        printed = containers.podman("run", "--rm", *self.options, PROXY, "--version")
        self.assertEqual(printed, f"gce-metadata-proxy {VERSION}\n")

    def test_commands_that_it_prints_run_in_each_image(self):
        for image in (PROXY, REDIRECT):
            printed = containers.podman("run", "--rm", "--entrypoint=gce-metadata-proxy", *self.options, image, "--version")
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
            self.assertIn("169.254.169.252:988", proxy.line("serving pods"))

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
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest)) as redirect:
            redirect.line("redirect installed")
            redirect.execute(*ready)
            self.assertIn("169.254.169.252:988", redirect.execute("nft", "list", "ruleset"))
            print(f"{redirect.peak_memory() >> 10} KiB at most", end=" ", flush=True)
            code, _ = redirect.stop()
            self.assertEqual(code, 0)

    def test_without_that_capability_it_says_that_pods_are_open(self):
        manifest = rendered.container("overlays/self-managed", "redirect")
        del manifest["securityContext"]["capabilities"]["add"]
        with Container(REDIRECT, manifest["args"], *as_in_a_pod(manifest)) as redirect:
            self.assertIn("CAP_NET_ADMIN", redirect.line("Pods are OPEN"))

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
