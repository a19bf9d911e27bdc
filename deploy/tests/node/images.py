"""Puts the node's images into a folder, each as an archive of its OCI layout: images.py BINARIES BUSYBOX FOLDER

BINARIES is a folder with gce-metadata-proxy-amd64, and BUSYBOX a static busybox. The proxy's image and the redirect's are those of a
release, by the digests that are printed. `pod` is for pods of the checks, and for pods' sandboxes: without a command it sleeps."""

import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "image"))

import images  # noqa: E402
from oci import File, Layout, Link, tar  # noqa: E402

ARCHITECTURE = "amd64"


def pod(folder, binaries, busybox, commit):
    """A shell, with the proxy's program for its `check`."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    shell = {f"bin/{name}": Link("busybox") for name in applets} | {"bin/busybox": File(busybox.read_bytes(), 0o755)}
    proxy = {images.NAME: File((binaries / f"{images.NAME}-{ARCHITECTURE}").read_bytes(), 0o755)}
    layout = Layout(folder / "pod")
    configuration = {"Cmd": ["sleep", "infinity"], "Env": images.IMAGES[f"{images.NAME}-redirect"]["Env"]}
    layout.add(ARCHITECTURE, [tar(shell | proxy)], configuration, images.created(commit))
    return {"pod": layout.write(images.VERSION)}


def main(binaries, busybox, folder):
    commit = images.revision()
    built = images.build(folder, commit, [ARCHITECTURE], binaries) | pod(folder, binaries, busybox, commit)
    for name, digest in built.items():
        print(f"{digest} {name}")
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            archive.add(folder / name, ".")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
