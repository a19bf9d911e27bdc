"""Puts the node's images into one archive for `ctr images import`: images.py BINARY NFT BUSYBOX ARCHIVE

BINARY is that of deploy/image/build-binary, NFT a directory with nft and its libraries, BUSYBOX a static busybox. Building
the images of a release takes minutes: `deploy/tests/run image` tests those. These have the same
binary, user and entry point."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

ENTRYPOINT = {"Entrypoint": ["/gce-metadata-proxy"]}


class Archive:
    """Images that share layers, in Docker's format."""

    def __init__(self, file):
        self.tar = tarfile.open(file, "w")
        self.manifest = []

    def add(self, content):
        """Stores a file under its digest, which it returns."""
        digest = hashlib.sha256(content).hexdigest()
        entry = tarfile.TarInfo(digest)
        entry.size = len(content)
        if digest not in self.tar.getnames():
            self.tar.addfile(entry, io.BytesIO(content))
        return digest

    def image(self, name, layers, **configuration):
        digests = [self.add(layer) for layer in layers]
        image = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], **configuration},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
        self.manifest.append({"Config": self.add(json.dumps(image).encode()), "RepoTags": [name], "Layers": digests})

    def close(self):
        content = json.dumps(self.manifest).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(content)
        self.tar.addfile(entry, io.BytesIO(content))
        self.tar.close()


def layer(*files, links=()):
    """A layer with these files, each with its name in the image, and with links, each with its target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file, name in files:
            tar.add(file, name, filter=as_root)
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


def as_root(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def main(binary, nft, busybox, file):
    proxy = layer((binary, "gce-metadata-proxy"))
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    shell = layer((busybox, "bin/busybox"), links=[(f"bin/{name}", "busybox") for name in applets if name != "busybox"])
    archive = Archive(file)
    archive.image("localhost/gce-metadata-proxy:test", [proxy], User="61988:61988", **ENTRYPOINT)
    archive.image("localhost/gce-metadata-proxy-redirect:test", [layer((nft, ".")), proxy], **ENTRYPOINT)
    # For pods of the checks, and for pods' sandboxes: without a command it sleeps.
    archive.image("localhost/pod:1", [shell, proxy], Cmd=["sleep", "infinity"])
    archive.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
