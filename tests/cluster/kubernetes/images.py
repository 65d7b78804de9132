"""Images for the node: built by buildah from what is in the repository, never pulled."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.network import run
from tests.cluster.kubernetes.places import TOOLS
from tests.cluster.kubernetes.programs import Program

BASE_IMAGE: Final = "localhost/forerun-base:bookworm"

BUILDAH: Final = ("buildah", "--root", str(TOOLS / "images"), "--runroot", str(TOOLS / "images-run"),
                   "--storage-driver", "overlay")  # fmt: skip
_ARCHIVES: Final = TOOLS / "archives"
_SUITE: Final = "bookworm"
_PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
_BOOTSTRAP_SECONDS: Final = 900.0
_BUILD_SECONDS: Final = 1_200.0


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is built from a Dockerfile.

    Attributes:
        name: Its name and tag.
        dockerfile: The Dockerfile.
        context: Folder that it may copy from.
        arguments: Build arguments.
        volumes: Folders of this machine that the build sees, by their place in it.
    """

    name: str
    dockerfile: Path
    context: Path
    arguments: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[Path, str] = field(default_factory=dict)

    def build(self) -> Path:
        """Builds it and writes it as an archive, which a node can load; what has not changed is not built again.

        Raises:
            ClusterError: the build failed; holds the end of its output.
        """
        options = build_options(self.arguments, self.volumes)
        buildah("build", *options, f"--tag={self.name}", f"--file={self.dockerfile}", str(self.context))
        return archive(self.name)


def build_options(arguments: Mapping[str, str], volumes: Mapping[Path, str]) -> list[str]:
    """What buildah is told to build here: without privileges of its own, and with nothing pulled."""
    return [
        "--isolation=chroot", "--pull-never", "--layers", "--force-rm", "--format=oci",
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--volume={folder}:{place}:ro" for folder, place in volumes.items()),
    ]  # fmt: skip


def buildah(*arguments: str, seconds: float = _BUILD_SECONDS) -> str:
    """Runs buildah on the storage of the test cluster; what it prints.

    Raises:
        ClusterError: it failed.
    """
    return run(*BUILDAH, *arguments, seconds=seconds)


def archive(name: str) -> Path:
    """Writes an image as an archive, unless the last one was of the same image."""
    (identity,) = buildah("images", "--quiet", "--no-trunc", name).split()
    _ARCHIVES.mkdir(parents=True, exist_ok=True)
    path = _ARCHIVES / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.tar"
    stamp = path.with_suffix(".id")
    if not path.exists() or not stamp.exists() or stamp.read_text() != identity:
        path.unlink(missing_ok=True)  # buildah does not write over an archive
        buildah("push", name, f"docker-archive:{path}:{name}")
        stamp.write_text(identity)
    return path


def program_image(name: str, program: Program, entrypoint: Sequence[str]) -> Path:
    """An image that holds one statically linked program and nothing else, as an archive."""
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        shutil.copy(program.path, context / program.name)
        dockerfile = context / "Dockerfile"
        dockerfile.write_text(
            f"FROM scratch\nCOPY {program.name} /{program.name}\nENTRYPOINT {json.dumps([*entrypoint])}\n"
            "USER 65532:65532\n"
        )
        return Image(name, dockerfile, context).build()


def base_image() -> None:
    """Makes the local image that ours begin from: Debian with its Python, nothing that compiles. Kept between runs.

    Raises:
        ClusterError: debootstrap failed.
    """
    wanted = f"{_SUITE} {' '.join(_PACKAGES)}"
    stamp = TOOLS / "base.stamp"
    known = subprocess.run([*BUILDAH, "images", "--quiet", BASE_IMAGE], capture_output=True, text=True, check=False)
    if known.stdout.strip() and stamp.exists() and stamp.read_text() == wanted:
        return
    print("cluster: making the base image (a minute)", file=sys.stderr, flush=True)
    root = TOOLS / "base"
    shutil.rmtree(root, ignore_errors=True)
    run("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _SUITE, str(root),
        seconds=_BOOTSTRAP_SECONDS)  # fmt: skip
    for left in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        shutil.rmtree(root / left, ignore_errors=True)
        (root / left).mkdir(parents=True)
    container = buildah("from", "scratch").strip()
    try:
        buildah("copy", container, str(root), "/")
        buildah("commit", container, BASE_IMAGE)
    finally:
        buildah("rm", container)
    shutil.rmtree(root, ignore_errors=True)
    stamp.write_text(wanted)
