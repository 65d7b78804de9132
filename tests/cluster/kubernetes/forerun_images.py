"""Forerun's own images, built from this working tree as a release is."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.images import BASE_IMAGE, Image
from tests.cluster.kubernetes.network import run
from tests.cluster.kubernetes.places import REPOSITORY, TOOLS

VERSION: Final = "0.1.0"
SERVICES_IMAGE: Final = f"localhost/forerun:{VERSION}"
SANDBOX_IMAGE: Final = f"localhost/forerun-sandbox:{VERSION}"

_WHEELS: Final = TOOLS / "wheels"
_IN_BUILD: Final = "/wheels"
_DOWNLOAD_SECONDS: Final = 900.0


def wheels() -> Path:
    """The wheels that the lock file pins for an image, fetched by this machine's pip; kept until they change.

    A build of an image sees neither this machine's index nor its certificates.

    Raises:
        ClusterError: they cannot be fetched.
    """
    wanted = run_locked() + run_locked("hatchling")
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    stamp = _WHEELS / ".stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return _WHEELS
    shutil.rmtree(_WHEELS, ignore_errors=True)
    _WHEELS.mkdir(parents=True)
    requirements = _WHEELS / "requirements.txt"
    requirements.write_text(wanted)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download")
    done = subprocess.run(
        [*pip, "--require-hashes", "--only-binary=:all:", "--dest", str(_WHEELS), "--requirement", str(requirements)],
        capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise ClusterError(f"the wheels of the images cannot be fetched: {done.stderr[-2000:]}")
    stamp.write_text(digest)
    return _WHEELS


def run_locked(*package: str) -> str:
    """The part of the lock file that an image needs, as its Dockerfile takes it."""
    return run(sys.executable, str(REPOSITORY / "scripts/locked.py"), str(REPOSITORY / "requirements.lock"), *package)


def offline() -> tuple[dict[str, str], dict[Path, str]]:
    """Build arguments and volumes with which the services' image is built from what this machine has."""
    return {"PYTHON_IMAGE": BASE_IMAGE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": _IN_BUILD}, {wheels(): _IN_BUILD}


def build_images(*, version: str = VERSION) -> list[Path]:
    """Builds both images and returns their archives.

    Args:
        version: What they call themselves; a second version of the same tree is what an upgrade is tested with.

    Raises:
        ClusterError: a build failed.
    """
    folder = REPOSITORY / "images"
    arguments, volumes = offline()
    services = Image(
        SERVICES_IMAGE.replace(VERSION, version), folder / "services.Dockerfile", REPOSITORY,
        arguments={**arguments, "VERSION": version}, volumes=volumes,
    )  # fmt: skip
    sandbox = Image(
        SANDBOX_IMAGE.replace(VERSION, version), folder / "sandbox.Dockerfile", REPOSITORY,
        arguments={"SERVICES_IMAGE": services.name, "VERSION": version},
    )  # fmt: skip
    return [services.build(), sandbox.build()]
