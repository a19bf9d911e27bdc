"""Which crates are in the binary of an image: what `cargo tree` says, without what only runs while it is built."""

import json
import re
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "gce-metadata-proxy"
TARGETS = {"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}


@dataclass(frozen=True, order=True)
class Crate:
    name: str
    version: str
    licence: str
    folder: Path
    checksum: str

    @property
    def is_ours(self):
        return not self.checksum


def cargo(*arguments):
    asked = ["cargo", *arguments, "--locked", "--manifest-path", REPOSITORY / "Cargo.toml"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


@cache
def known():
    """All crates of the lock file by name and version."""
    lock = tomllib.loads((REPOSITORY / "Cargo.lock").read_text())["package"]
    sums = {(crate["name"], crate["version"]): crate.get("checksum", "") for crate in lock}
    found = json.loads(cargo("metadata", "--format-version", "1", "--all-features"))["packages"]
    crates = [
        Crate(one["name"], one["version"], one["license"] or "", Path(one["manifest_path"]).parent, sums[one["name"], one["version"]])
        for one in found
    ]
    return {(crate.name, crate.version): crate for crate in crates}


@cache
def crates(architecture):
    tree = ["tree", "--package", PACKAGE, "--edges", "normal,no-proc-macro", "--target", TARGETS[architecture]]
    lines = cargo(*tree, "--prefix", "none", "--format", "{p}").splitlines()
    named = {re.match(r"(\S+) v(\S+)", line).groups() for line in lines if line}
    return sorted(known()[one] for one in named)
