"""Images as folders in the OCI layout, the same to the bit from the same files: entries are sorted, belong to root, and have no
time; gzip has none either."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIGURATION = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
TAG = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class File:
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Link:
    target: str


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(files):
    """An archive of files and links by their paths, with the folders above them."""
    folders = {str(above) for path in files for above in Path(path).parents if str(above) != "."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folders | set(files)):
            archive.addfile(*entry(path, files.get(path)))
    return buffer.getvalue()


def entry(path, file):
    found = tarfile.TarInfo(path)
    found.uname = found.gname = "root"
    match file:
        case None:
            found.type, found.mode = tarfile.DIRTYPE, 0o755
        case Link(target):
            found.type, found.mode, found.linkname = tarfile.SYMTYPE, 0o777, target
        case File(content, mode):
            found.size, found.mode = len(content), mode
            return found, io.BytesIO(content)
    return found, None


class Layout:
    """A folder in the OCI layout with one image, which may be for several architectures."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.blobs = self.folder / "blobs" / "sha256"
        self.manifests = []

    def blob(self, media_type, content):
        name = digest(content)
        self.blobs.mkdir(parents=True, exist_ok=True)
        (self.blobs / name.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": media_type, "digest": name, "size": len(content)}

    def read(self, descriptor):
        """What a descriptor stands for. Its digest is checked."""
        content = (self.blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes()
        if digest(content) != descriptor["digest"]:
            raise ValueError(f"{descriptor['digest']} is not what its name says")
        return content

    def add(self, architecture, layers, configuration, created):
        """Adds the image for an architecture. Layers are archives."""
        found = {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": configuration,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
            "history": [{"created": created} for _ in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(CONFIGURATION, canonical(found)),
            "layers": [self.blob(LAYER, gzip.compress(layer, 9, mtime=0)) for layer in layers],
        }
        platform = {"architecture": architecture, "os": "linux"}
        self.manifests.append(self.blob(MANIFEST, canonical(manifest)) | {"platform": platform})

    def write(self, tag):
        """Writes the index, and returns its digest."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests}
        top = self.blob(INDEX, canonical(index))
        whole = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [top | {"annotations": {TAG: tag}}]}
        (self.folder / "index.json").write_bytes(canonical(whole))
        (self.folder / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
        return top["digest"]

    def top(self):
        """The descriptor of the index, as a registry would have it."""
        [top] = json.loads((self.folder / "index.json").read_bytes())["manifests"]
        return top

    def images(self):
        """Manifest and configuration by architecture."""
        for descriptor in json.loads(self.read(self.top()))["manifests"]:
            manifest = json.loads(self.read(descriptor))
            yield descriptor["platform"]["architecture"], manifest, json.loads(self.read(manifest["config"]))


def extracted(layer):
    """The archive in a compressed layer."""
    return gzip.decompress(layer)
