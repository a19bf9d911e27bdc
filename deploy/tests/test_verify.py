"""`verify` with a real release, whose binaries it builds itself: for a release of this commit, and for others that only claim to be.

RELEASE is a release that release.py made of the commit that is checked out; without it, it is made here. Two or four binaries are built."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import rendered

sys.path.insert(0, str(rendered.DEPLOY / "release"))

import release  # noqa: E402
from release import images, oci  # noqa: E402

SCRIPTS = rendered.DEPLOY / "release"


def setUpModule():
    global FOLDER, COMMIT, DIST  # noqa: PLW0603
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    FOLDER = Path(folder.name)
    COMMIT = images.revision()
    if COMMIT.endswith("-dirty"):
        raise RuntimeError("there are changes that are not committed; `verify` builds a commit")
    DIST = FOLDER / "dist"
    if given := os.environ.get("RELEASE"):
        shutil.copytree(given, DIST)
    else:
        rendered.run(SCRIPTS / "release.py", f"--out={DIST}", "--registry=registry.example/team")
    for name in ("ours", "another"):
        rendered.run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", FOLDER / f"{name}.pem")
        rendered.run("openssl", "ec", "-in", FOLDER / f"{name}.pem", "-pubout", "-out", FOLDER / f"{name}.pub")


def verify(dist, *arguments, commit=None, key="ours"):
    """All lines, and those of failed checks."""
    rendered.run(SCRIPTS / "sign", dist, FOLDER / "ours.pem")
    asked = [SCRIPTS / "verify", dist, commit or COMMIT, f"--key={FOLDER / key}.pub", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith("NO ")]
    if done.returncode != (1 if failed else 0):
        raise AssertionError(done.stdout + done.stderr)
    return lines, failed


class Verify(unittest.TestCase):
    def test_it_builds_the_same_from_the_commit(self):
        lines, failed = verify(DIST)
        print("", *lines, sep="\n", flush=True)
        self.assertEqual(failed, [])
        built = [line for line in lines if line.endswith("is what the commit makes")]
        for architecture in ("amd64", "arm64"):
            self.assertEqual(len([line for line in built if f" for {architecture} " in line]), len(images.IMAGES))
        self.assertNotIn("--   ", "".join(lines))

    def test_one_byte_of_an_image_is_changed(self):
        dist = FOLDER / "changed"
        shutil.copytree(DIST, dist)
        layout = oci.Layout(dist / images.NAME)
        _, manifest, _ = next(layout.images())
        blob = layout.blobs / manifest["layers"][-1]["digest"].removeprefix("sha256:")
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(content)
        _, failed = verify(dist)
        self.assertEqual(len(failed), 1, failed)
        self.assertIn(f"{images.NAME}:{images.VERSION} is sha256:", failed[0])

    def test_another_key(self):
        _, failed = verify(DIST, key="another")
        self.assertEqual(len(failed), 1, failed)
        self.assertIn("SHA256SUMS is signed", failed[0])

    def test_another_commit(self):
        # Its binaries may even be the same. The images name the commit.
        parent = rendered.run("git", "-C", rendered.DEPLOY.parent, "rev-parse", f"{COMMIT}^").strip()
        _, failed = verify(DIST, f"--binaries={binaries()}", commit=parent)
        self.assertGreaterEqual(len([line for line in failed if " for " in line and "it differs" in line]), 4, failed)


def binaries():
    """Those in the release."""
    found = FOLDER / "binaries"
    found.mkdir(exist_ok=True)
    layout = oci.Layout(DIST / images.NAME)
    for architecture, manifest, _ in layout.images():
        with tarfile.open(fileobj=io.BytesIO(oci.extracted(layout.read(manifest["layers"][-1])))) as archive:
            (found / f"{images.NAME}-{architecture}").write_bytes(archive.extractfile(images.NAME).read())
    return found


if __name__ == "__main__":
    unittest.main()
