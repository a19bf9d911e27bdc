#!/usr/bin/env python3
"""Builds the images, for amd64 and arm64, out of pinned parts, and without a container daemon or another image to start from.

    deploy/image/images.py [--out DIR] [--revision COMMIT] [--architecture ARCH]... [--binaries DIR] [--demo]

DIR, by default target/images, gets a folder in the OCI layout for each image, which `skopeo copy`, `podman pull oci:` and
`ctr images import` read. The proxy's image is the binary and licences; that of the redirect has nft as well, and what nft loads.
The demo's (--demo) is the proxy's with the mock inside, and is never released.

The same commit gives the same images: files of Debian are pinned by debian.lock, Rust and the C compiler by build-binary.
Needs Python 3.11, Rust by rustup, and Python's pip."""

import argparse
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

import debian
from oci import File, Layout, tar

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "gce-metadata-proxy"
# A number, so that Kubernetes can tell that it is not root. In a redirected pod this user's packets go round the redirect, so
# it is one that no application has: not 65532, which is nonroot in distroless images.
USER = "61988:61988"
VERSION = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]
ENTRYPOINT = {"Entrypoint": [f"/{NAME}"]}
# With the binary's place, so that the commands that it prints run in its containers as printed.
PATH = {"Env": ["PATH=/"]}
IMAGES = {
    NAME: ENTRYPOINT | PATH | {"User": USER},
    f"{NAME}-redirect": ENTRYPOINT | {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin:/"]},
}
DEMO = {f"{NAME}-demo": ENTRYPOINT | PATH | {"User": USER}}
DESCRIPTIONS = {
    NAME: "A proxy in front of the Google Compute Engine metadata server for every Kubernetes node",
    f"{NAME}-redirect": f"Redirects pods to {NAME}",
    f"{NAME}-demo": f"{NAME} with a mock metadata server, for trying it out",
}
LICENCES = ["LICENSE", "THIRD-PARTY-NOTICES"]


def git(*arguments):
    return subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True, check=False).stdout.strip()


def revision():
    return git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*") or "unknown"


def created(commit):
    """When the commit was made."""
    seconds = git("show", "--no-patch", "--format=%ct", commit.removesuffix("-dirty"))
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(seconds or 0)))


def labels(image, commit):
    return {
        "org.opencontainers.image.title": image,
        "org.opencontainers.image.description": DESCRIPTIONS[image],
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.revision": commit,
        "org.opencontainers.image.licenses": "Apache-2.0" if image != f"{NAME}-redirect" else "Apache-2.0 AND GPL-2.0-only",
    }


def binary(architecture, given, demo):
    """The binary for an architecture: one that was given, or one that is built now."""
    if not given:
        given = REPOSITORY / "target" / "images" / ("demo-binaries" if demo else "binaries")
        features = ["mock"] if demo else []
        file = given / f"{NAME}-{architecture}"
        subprocess.run([REPOSITORY / "deploy/image/build-binary", architecture, file, *features], check=True)
    return (given / f"{NAME}-{architecture}").read_bytes()


def build(out, commit, architectures, binaries=None, demo=False):
    """Builds the images. Returns the digests of their indexes."""
    images = DEMO if demo else IMAGES
    layouts = {image: Layout(out / image) for image in images}
    for layout in layouts.values():
        shutil.rmtree(layout.folder, ignore_errors=True)
    for architecture in architectures:
        proxy = {NAME: File(binary(architecture, binaries, demo), 0o755)}
        proxy = tar(proxy | {f"licenses/{name}": File((REPOSITORY / name).read_bytes()) for name in LICENCES})
        for image, layout in layouts.items():
            below = [tar(debian.files(architecture))] if image.endswith("-redirect") else []
            configuration = images[image] | {"Labels": labels(image, commit)}
            layout.add(architecture, [*below, proxy], configuration, created(commit))
    return {image: layout.write(VERSION) for image, layout in layouts.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "target" / "images")
    parser.add_argument("--revision", default=revision())
    parser.add_argument("--architecture", action="append", choices=["amd64", "arm64"])
    parser.add_argument("--binaries", type=Path, help=f"a folder with {NAME}-ARCH, instead of building them")
    parser.add_argument("--demo", action="store_true", help="the demo's image only")
    given = parser.parse_args()
    architectures = given.architecture or ["amd64", "arm64"]
    for image, digest in build(given.out, given.revision, architectures, given.binaries, given.demo).items():
        print(f"{digest} {given.out / image}")


if __name__ == "__main__":
    main()
