"""What the redirect's image has of Debian: nft, the libraries that it loads, and their licences. No shell, no package manager.

`debian.lock` pins each package. What scanners of images ask for is there as in other images without a package manager:
os-release, and the packages' descriptions in /var/lib/dpkg/status.d."""

import hashlib
import io
import lzma
import os
import tarfile
import urllib.request
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from oci import File, Link

HERE = Path(__file__).resolve().parent
LOCK = HERE / "debian.lock"
# Shared by checkouts with DEBIAN_CACHE.
CACHE = Path(os.environ.get("DEBIAN_CACHE") or HERE.parents[1] / "target" / "tools" / "debian")
# The archive has only the newest versions; the second keeps all. The lock's checksum says whether they gave the right file.
ARCHIVES = ["http://deb.debian.org/{archive}/{path}", "https://snapshot.debian.org/archive/{archive}/{snapshot}/{path}"]

# Which files of a package, by patterns. `*` also stands for folders.
FILES = {
    "nftables": ["usr/sbin/nft"],
    "libc6": ["lib64/ld-linux-*", "lib/ld-linux-*", "lib/*/ld-linux-*", "lib/*/libc.so.6"],
    "libtinfo6": ["*/libtinfo.so.*"],
    # Copyright files refer to these texts.
    "base-files": ["usr/lib/os-release", "etc/os-release", "usr/share/common-licenses/*"],
}
LIBRARY = ["*/lib*.so.*"]


@dataclass(frozen=True)
class Package:
    architecture: str
    name: str
    version: str
    source: str
    archive: str
    path: str
    sha256: str


def locked():
    """The snapshot's time, and all packages."""
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    return lines[0].removeprefix("snapshot "), [Package(*line.split()) for line in lines[1:]]


def packages(architecture):
    return [package for package in locked()[1] if package.architecture == architecture]


def fetch(package):
    """The package's file, from the cache or from an archive of Debian."""
    kept = CACHE / f"{package.sha256}.deb"
    if kept.exists() and is_right(package, kept.read_bytes()):
        return kept.read_bytes()
    mirrors = [os.environ["DEBIAN_MIRROR"] + "/{archive}/{path}"] if os.environ.get("DEBIAN_MIRROR") else ARCHIVES
    mistakes = []
    for mirror in mirrors:
        url = mirror.format(archive=package.archive, path=package.path, snapshot=locked()[0])
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            mistakes.append(f"{url}: {error}")
            continue
        if is_right(package, content):
            CACHE.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(content)
            return content
        mistakes.append(f"{url}: its SHA-256 is not the one in debian.lock")
    raise SystemExit("\n".join(mistakes))


def is_right(package, content):
    return hashlib.sha256(content).hexdigest() == package.sha256


def members(package):
    """The archives in a package by their names: `control` and `data`."""
    found, at = {}, 8
    if not package.startswith(b"!<arch>\n"):
        raise ValueError("not a Debian package")
    while at < len(package):
        name, size = package[at : at + 16].decode().strip(" /"), int(package[at + 48 : at + 58])
        at += 60
        if name.endswith(".tar.xz"):
            found[name.removesuffix(".tar.xz")] = tarfile.open(fileobj=io.BytesIO(lzma.decompress(package[at : at + size])))
        at += size + size % 2
    return found["control"], found["data"]


def files(architecture):
    """What goes into the image for an architecture."""
    found = {}
    for package in packages(architecture):
        control, data = members(fetch(package))
        wanted = [*FILES.get(package.name, LIBRARY), f"usr/share/doc/{package.name}/copyright"]
        kept = {entry.name.removeprefix("./"): entry for entry in data.getmembers()}
        kept = {path: entry for path, entry in kept.items() if any(fnmatch(path, pattern) for pattern in wanted)}
        found |= {path: file(data, entry) for path, entry in kept.items() if not entry.isdir()}
        found[f"var/lib/dpkg/status.d/{package.name}"] = File(control.extractfile("./control").read())
    return found


def file(archive, entry):
    if entry.issym():
        return Link(entry.linkname)
    return File(archive.extractfile(entry).read(), 0o755 if entry.mode & 0o111 else 0o644)
