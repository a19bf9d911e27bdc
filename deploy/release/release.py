#!/usr/bin/env python3
"""Builds all that a release is: images, SBOMs, notices, the chart and checksums. The same binaries give the same files.

    deploy/release/release.py [--registry REGISTRY] [--out DIR] [--revision COMMIT] [--binaries DIR]

DIR is target/dist by default. REGISTRY is where images will be; the chart then names them there. `images.txt` lists the
digests of images, and SHA256SUMS all files but those in images, so one signature of SHA256SUMS is one of everything."""

import argparse
import gzip
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "deploy" / "image"))

import images  # noqa: E402
import oci  # noqa: E402
import sbom  # noqa: E402

CHART = REPOSITORY / "deploy" / "helm" / images.NAME
SUMS, IMAGES = "SHA256SUMS", "images.txt"


def chart(registry):
    """The chart as `helm package` packs it, but without times. Its images are in the registry."""
    ignored = [line for line in (CHART / ".helmignore").read_text().split() if "*" not in line]
    files = [path for path in CHART.rglob("*") if path.is_file() and not path.name.startswith(".")]
    found = {str(path.relative_to(CHART.parent)): path.read_bytes() for path in files if str(path.relative_to(CHART)) not in ignored}
    values = f"{CHART.name}/values.yaml"
    if registry:
        found[values] = re.sub(rb"(?m)^( *repository: )(?=gce-)", rb"\1" + f"{registry}/".encode(), found[values])
    return gzip.compress(oci.tar({path: oci.File(content) for path, content in found.items()}), 9, mtime=0)


def write(out, registry, digests, created):
    """Writes what goes with the images."""
    version, name = images.VERSION, images.NAME
    prefix = f"{registry}/" if registry else ""
    (out / IMAGES).write_text("".join(f"{digest} {prefix}{image}:{version}\n" for image, digest in digests.items()))
    for image in digests:
        for architecture, manifest, _ in oci.Layout(out / image).images():
            found = sbom.sbom(image, version, architecture, manifest["config"]["digest"], created)
            (out / f"{image}-{architecture}.cdx.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / f"{name}-{version}.tgz").write_bytes(chart(registry))
    shutil.copyfile(REPOSITORY / "THIRD-PARTY-NOTICES", out / "THIRD-PARTY-NOTICES")
    (out / SUMS).write_text("".join(f"{found}  {file}\n" for file, found in sums(out).items()))


def listed(out):
    """Files that SHA256SUMS lists, in their order."""
    return sorted(path for path in out.iterdir() if path.is_file() and not path.name.startswith(SUMS))


def sums(out):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in listed(out)}


def named(out):
    """Digests of images by their full names."""
    lines = (out / IMAGES).read_text().splitlines()
    return {name: digest for digest, name in map(str.split, lines)}


def folder(name):
    """Where in a release the image with this full name is."""
    return name.rsplit("/", 1)[-1].rsplit(":", 1)[0]


def build(out, registry, commit, architectures, binaries):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    digests = images.build(out, commit, architectures, binaries)
    write(out, registry, digests, images.created(commit))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry", default="")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "target" / "dist")
    parser.add_argument("--revision", default=images.revision())
    parser.add_argument("--binaries", type=Path)
    given = parser.parse_args()
    build(given.out, given.registry, given.revision, ["amd64", "arm64"], given.binaries)
    print((given.out / SUMS).read_text(), end="")


if __name__ == "__main__":
    main()
