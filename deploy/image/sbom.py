"""What an image is made of, as CycloneDX: crates, what Rust brings, and packages of Debian. A release has one for each image.

    python3 deploy/image/sbom.py DIR     writes them to DIR without building the images, for scanners"""

import json
import re
import sys
import uuid
from pathlib import Path
from urllib.parse import quote

import debian
import images
import parts

# Of the release that build-binary names.
MUSL = "1.2.5"


def rust():
    return re.search(r"^rust=(\S+)$", (parts.REPOSITORY / "deploy/image/build-binary").read_text(), re.MULTILINE)[1]


def component(name, version, purl, licence="", sha256=""):
    found = {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
    if licence:
        found["licenses"] = [{"expression": re.sub(" */ *", " OR ", licence)}]
    if sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return found


def crate(one):
    return component(one.name, one.version, f"pkg:cargo/{one.name}@{quote(one.version)}", one.licence, one.checksum)


def package(one):
    asked = f"arch={one.architecture}&distro=debian-12&upstream={one.source}"
    purl = f"pkg:deb/debian/{quote(one.name)}@{quote(one.version, safe='')}?{asked}"
    return component(one.name, one.version, purl, sha256=one.sha256)


def sbom(image, version, architecture, identity, created):
    """Of an image for one architecture; `identity` is the digest of its configuration. The same image has the same one."""
    found = [crate(one) for one in parts.crates(architecture)]
    found.append(component("rust-std", rust(), f"pkg:generic/rust-std@{rust()}", "MIT OR Apache-2.0"))
    found.append(component("musl", MUSL, f"pkg:generic/musl@{MUSL}", "MIT"))
    if image.endswith("-redirect"):
        found += [package(one) for one in debian.packages(architecture)]
    itself = component(image, version, f"pkg:oci/{image}?arch={architecture}&tag={version}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}",
        "version": 1,
        "metadata": {"timestamp": created, "component": itself | {"type": "container"}},
        "components": found,
        "dependencies": [{"ref": itself["bom-ref"], "dependsOn": [one["bom-ref"] for one in found]}],
    }


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    created = images.created(images.revision())
    for image in images.IMAGES:
        for architecture in parts.TARGETS:
            found = sbom(image, images.VERSION, architecture, "", created)
            (folder / f"{image}-{architecture}.cdx.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
