"""A release: the same files from the same commit, what is in its images, and that `verify` tells it from any other.

Binaries are stand-ins; test_image.py has real ones."""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import containers
import rendered

sys.path.insert(0, str(rendered.DEPLOY / "release"))

import release  # noqa: E402
from release import images, oci  # noqa: E402

REGISTRY = "registry.example/team"
ARCHITECTURES = ["amd64", "arm64"]
GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]


def setUpModule():
    global FOLDER, SOURCE, COMMITS, DIST  # noqa: PLW0603
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    FOLDER = Path(folder.name)
    # A repository of its own, so that what is not committed yet is tested too.
    SOURCE = containers.source(FOLDER / "source")
    (FOLDER / "binaries").mkdir()
    for architecture in ARCHITECTURES:
        (FOLDER / "binaries" / f"gce-metadata-proxy-{architecture}").write_text(f"for {architecture}")
    git("init", "--quiet")
    COMMITS = [commit("one"), commit("two")]
    os.environ["DEBIAN_CACHE"] = str(images.debian.CACHE)
    DIST = build("dist")
    for name in ("ours", "another"):
        rendered.run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", FOLDER / f"{name}.pem")
        rendered.run("openssl", "ec", "-in", FOLDER / f"{name}.pem", "-pubout", "-out", FOLDER / f"{name}.pub")
    rendered.run(SOURCE / "deploy/release/sign", DIST, FOLDER / "ours.pem")


def git(*arguments):
    return rendered.run(*GIT, "-C", SOURCE, *arguments).strip()


def commit(message):
    git("add", "--all")
    git("commit", "--quiet", "--allow-empty", "--message", message)
    return git("rev-parse", "HEAD")


def build(name, revision=None):
    out = FOLDER / name
    asked = [f"--out={out}", f"--registry={REGISTRY}", f"--revision={revision or COMMITS[0]}", f"--binaries={FOLDER / 'binaries'}"]
    rendered.run(SOURCE / "deploy/release/release.py", *asked)
    return out


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def layout(image):
    return oci.Layout(DIST / image)


def entries(image):
    """Entries of all layers, by architecture."""
    for architecture, manifest, _ in layout(image).images():
        archives = [oci.extracted(layout(image).read(layer)) for layer in manifest["layers"]]
        yield architecture, [entry for archive in archives for entry in tarfile.open(fileobj=io.BytesIO(archive))]


class Reproducible(unittest.TestCase):
    def test_two_builds_of_a_commit_are_the_same(self):
        again = files(build("again"))
        signed = {name: content for name, content in files(DIST).items() if name != "SHA256SUMS.sig"}
        self.assertEqual(signed.keys(), again.keys())
        self.assertEqual([name for name in again if again[name] != signed[name]], [])

    def test_nothing_in_a_layer_has_a_time_an_owner_or_more_rights(self):
        for image in images.IMAGES:
            for architecture, found in entries(image):
                for entry in found:
                    with self.subTest(image, architecture=architecture, path=entry.name):
                        self.assertEqual((entry.mtime, entry.uid, entry.gid, entry.mode & 0o7022), (0, 0, 0, 0o022 if entry.issym() else 0))


class Contents(unittest.TestCase):
    def test_the_proxys_image_is_the_binary_and_licences(self):
        for architecture, found in entries("gce-metadata-proxy"):
            names = ["gce-metadata-proxy", "licenses", "licenses/LICENSE", "licenses/THIRD-PARTY-NOTICES"]
            self.assertEqual([entry.name for entry in found], names, architecture)

    def test_the_redirects_image_can_run_nft_and_nothing_else(self):
        for architecture, found in entries("gce-metadata-proxy-redirect"):
            programs = {entry.name.rsplit("/", 1)[-1] for entry in found if entry.isfile() and entry.mode & 0o111}
            libraries = {name for name in programs if re.search(r"\.so\.\d+$", name)}
            self.assertEqual(programs - libraries, {"gce-metadata-proxy", "nft"}, architecture)

    def test_each_package_has_its_copyright_and_is_known_to_scanners(self):
        for architecture, found in entries("gce-metadata-proxy-redirect"):
            names = {entry.name for entry in found}
            for package in images.debian.packages(architecture):
                self.assertIn(f"usr/share/doc/{package.name}/copyright", names)
                self.assertIn(f"var/lib/dpkg/status.d/{package.name}", names)
            self.assertIn("usr/lib/os-release", names)

    def test_an_image_says_who_it_is(self):
        for image, user in {"gce-metadata-proxy": "61988:61988", "gce-metadata-proxy-redirect": None}.items():
            for architecture, _, configuration in layout(image).images():
                with self.subTest(image, architecture=architecture):
                    self.assertEqual(configuration["architecture"], architecture)
                    self.assertEqual(configuration["config"].get("User"), user)
                    self.assertEqual(configuration["config"]["Entrypoint"], ["/gce-metadata-proxy"])
                    labels = configuration["config"]["Labels"]
                    self.assertEqual(labels["org.opencontainers.image.version"], images.VERSION)
                    self.assertEqual(labels["org.opencontainers.image.revision"], COMMITS[0])

    def test_an_sbom_has_every_crate_and_package(self):
        for image in images.IMAGES:
            for architecture in ARCHITECTURES:
                text = (DIST / f"{image}-{architecture}.cdx.json").read_text()
                self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_5).validate_str(text))
                found = json.loads(text)
                purls = [one["purl"] for one in found["components"]]
                self.assertEqual(len(purls), len(set(purls)))
                crates = release.sbom.parts.crates(architecture)
                self.assertGreater(len(crates), 50)
                packages = images.debian.packages(architecture) if image.endswith("-redirect") else []
                self.assertEqual(len(purls), len(crates) + 2 + len(packages))
                # Every crate of others can be checked by its checksum.
                without = [one["name"] for one in found["components"] if "hashes" not in one]
                self.assertEqual([name for name in without if not name.startswith("gce-metadata-")], ["rust-std", "musl"])

    def test_the_chart_names_the_registry(self):
        with tarfile.open(DIST / f"gce-metadata-proxy-{images.VERSION}.tgz") as archive:
            values = yaml.safe_load(archive.extractfile("gce-metadata-proxy/values.yaml"))
        self.assertEqual(values["image"]["repository"], f"{REGISTRY}/gce-metadata-proxy")
        self.assertEqual(values["redirect"]["image"]["repository"], f"{REGISTRY}/gce-metadata-proxy-redirect")

    def test_helm_reads_the_chart(self):
        chart = DIST / f"gce-metadata-proxy-{images.VERSION}.tgz"
        made = rendered.run(os.environ.get("HELM", "helm"), "template", "x", chart, "--kube-version", "1.25.0")
        self.assertEqual(set(re.findall(r"image: \"?([^\s\"]+)", made)), {f"{REGISTRY}/{image}:{images.VERSION}" for image in images.IMAGES})


class Verify(unittest.TestCase):
    def setUp(self):
        self.dist = FOLDER / "given"
        shutil.copytree(DIST, self.dist)
        self.addCleanup(shutil.rmtree, self.dist)

    def verify(self, commit=0, key="ours"):
        """Whether all is well, and the failed checks."""
        asked = [SOURCE / "deploy/release/verify", self.dist, COMMITS[commit], f"--key={FOLDER / key}.pub"]
        done = subprocess.run([*asked, f"--binaries={FOLDER / 'binaries'}"], capture_output=True, text=True, check=False)
        failed = [line for line in done.stdout.splitlines() if line.startswith("NO ")]
        self.assertEqual(done.returncode, 1 if failed else 0, done.stdout + done.stderr)
        return failed

    def image(self):
        return oci.Layout(self.dist / "gce-metadata-proxy")

    def sign(self):
        rendered.run(SOURCE / "deploy/release/sign", self.dist, FOLDER / "ours.pem")

    def again(self):
        """Sums and signature for what was changed, as an attacker with the key would write them."""
        text = "".join(f"{digest}  {name}\n" for name, digest in release.sums(self.dist).items())
        (self.dist / "SHA256SUMS").write_text(text)
        self.sign()

    def only(self, failed, what):
        self.assertEqual(len(failed), 1, failed)
        self.assertIn(what, failed[0])

    def test_it_accepts_what_the_commit_makes(self):
        self.assertEqual(self.verify(), [])

    def test_another_key(self):
        self.only(self.verify(key="another"), "SHA256SUMS is signed")

    def test_another_commit(self):
        failed = self.verify(commit=1)
        self.assertEqual(len([line for line in failed if " for " in line and "it differs" in line]), 4, failed)

    def test_a_changed_byte_in_any_blob(self):
        for blob in sorted(self.image().blobs.iterdir()):
            content = blob.read_bytes()
            blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with self.subTest(blob.name):
                self.only(self.verify(), f"{REGISTRY}/gce-metadata-proxy:")
            blob.write_bytes(content)

    def test_a_changed_file(self):
        sbom = self.dist / "gce-metadata-proxy-amd64.cdx.json"
        sbom.write_text(sbom.read_text().replace("tokio", "tokyo"))
        self.only(self.verify(), sbom.name)
        self.again()
        self.only(self.verify(), sbom.name)

    def test_another_binary_that_was_signed(self):
        binaries = FOLDER / "binaries"
        honest = (binaries / "gce-metadata-proxy-arm64").read_bytes()
        (binaries / "gce-metadata-proxy-arm64").write_text("another")
        shutil.rmtree(self.dist)
        build("given")
        (binaries / "gce-metadata-proxy-arm64").write_bytes(honest)
        self.sign()
        failed = self.verify()
        self.assertEqual({line.split()[1] for line in failed if " for arm64 " in line}, {f"{REGISTRY}/{name}:{images.VERSION}" for name in images.IMAGES})
        self.assertEqual([line for line in failed if " for amd64 " in line], [])

    def test_a_second_image_for_an_architecture(self):
        folder = self.image()
        folder.manifests = [*json.loads(folder.read(folder.top()))["manifests"]] * 2
        digest = folder.write(images.VERSION)
        text = (self.dist / "images.txt").read_text()
        (self.dist / "images.txt").write_text(re.sub(r"^\S+(?= \S+/gce-metadata-proxy:)", digest, text, flags=re.MULTILINE))
        self.again()
        self.assertEqual(len(self.verify()), 2)

    def test_layers_may_be_compressed_otherwise(self):
        for name in images.IMAGES:
            folder = oci.Layout(self.dist / name)
            for descriptor in json.loads(folder.read(folder.top()))["manifests"]:
                manifest = json.loads(folder.read(descriptor))
                layers = [gzip.compress(oci.extracted(folder.read(layer)), 1, mtime=0) for layer in manifest["layers"]]
                manifest["layers"] = [folder.blob(oci.LAYER, layer) for layer in layers]
                folder.manifests.append(descriptor | folder.blob(oci.MANIFEST, oci.canonical(manifest)))
            digest = folder.write(images.VERSION)
            text = (self.dist / "images.txt").read_text()
            (self.dist / "images.txt").write_text(re.sub(rf"\S+(?= \S+/{name}:)", digest, text))
        self.again()
        self.assertEqual(self.verify(), [])


class Publishing(unittest.TestCase):
    def test_a_dry_run_names_every_image_by_its_digest(self):
        printed = rendered.run(SOURCE / "deploy/release/publish", DIST, "--dry-run").splitlines()
        self.assertEqual({line.split()[0] for line in printed}, {"skopeo", "cosign", "helm"})
        for name, digest in release.named(DIST).items():
            image = name.rsplit(":", 1)[0]
            self.assertTrue(any(line.startswith("skopeo") and line.endswith(f"docker://{name}") for line in printed))
            self.assertIn(f"cosign sign --yes --recursive {image}@{digest}", printed)
        self.assertEqual(len([line for line in printed if "--type=cyclonedx" in line]), 4)
        for file in re.findall(r"--predicate=(\S+cdx.json)", "\n".join(printed)):
            self.assertTrue(Path(file).is_file(), file)

    def test_without_a_registry_nothing_is_pushed(self):
        out = FOLDER / "nowhere"
        rendered.run(SOURCE / "deploy/release/release.py", f"--out={out}", f"--binaries={FOLDER / 'binaries'}")
        done = subprocess.run([SOURCE / "deploy/release/publish", out], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no registry", done.stderr)

    def test_notes_are_the_changelogs_for_the_tag_of_this_version(self):
        place = FOLDER / "of-notes"
        notes, changelog = place / "deploy/release/notes", place / "CHANGELOG.md"
        notes.parent.mkdir(parents=True)
        shutil.copy(SOURCE / "deploy/release/notes", notes)
        shutil.copy(SOURCE / "Cargo.toml", place)
        others = "# Changelog\n\n## Unreleased\n- Later.\n\n## 0.0.9\n- Before.\n"
        changelog.write_text(others.replace("## 0.0.9", "## 0.1.0\n- Now.\n\n## 0.0.9"))
        self.assertEqual(rendered.run(notes, "v0.1.0").strip(), "- Now.")
        for tag in ["v9.9.9", "0.1.0"]:
            self.assertEqual(subprocess.run([notes, tag], capture_output=True, check=False).returncode, 1, tag)
        changelog.write_text(others)
        self.assertEqual(subprocess.run([notes, "v0.1.0"], capture_output=True, check=False).returncode, 1)


class Workflows(unittest.TestCase):
    """What the forge runs is pinned, and may do no more than it must."""

    def setUp(self):
        folder = rendered.DEPLOY.parent / ".github" / "workflows"
        self.workflows = {path.name: yaml.safe_load(path.read_text()) for path in folder.glob("*.yml")}
        self.assertEqual(self.workflows.keys(), {"ci.yml", "release.yml"})

    def steps(self):
        for name, workflow in self.workflows.items():
            for job, found in workflow["jobs"].items():
                for step in found.get("steps", []):
                    yield f"{name}, {job}", step

    def test_actions_are_pinned_by_commit(self):
        used = 0
        for where, step in self.steps():
            if "uses" in step:
                used += 1
                self.assertRegex(step["uses"], r"^[\w./-]+@[0-9a-f]{40}$", where)
        self.assertGreater(used, 5)

    def test_rights_are_given_to_the_job_that_needs_them(self):
        for name, workflow in self.workflows.items():
            self.assertEqual(workflow["permissions"], {"contents": "read"}, name)
        jobs = self.workflows["release.yml"]["jobs"]
        self.assertEqual([job for job, found in jobs.items() if "permissions" in found], ["publish"])
        # It runs nothing that dependencies bring.
        self.assertNotRegex(json.dumps(jobs["publish"]), r"cargo|release\.py|pip")

    def test_scripts_that_steps_run_exist(self):
        ran = set()
        for where, step in self.steps():
            for script in re.findall(r"(?<![\w/.])((?:deploy|tests|\.ci)/[\w./-]+)", step.get("run", "")):
                ran.add(script)
                self.assertTrue(os.access(rendered.DEPLOY.parent / script, os.X_OK), f"{where}: {script}")
        self.assertLessEqual({f"deploy/release/{name}" for name in ("notes", "release.py", "sign", "publish")}, ran)


if __name__ == "__main__":
    unittest.main()
