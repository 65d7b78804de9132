"""The part of the lock file that an image gets."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

from tests.cluster.kubernetes.places import REPOSITORY


def locked(*package: str) -> dict[str, str]:
    """Pins by name, as the Dockerfile gets them."""
    command = [sys.executable, str(REPOSITORY / "scripts/locked.py"), str(REPOSITORY / "requirements.lock"), *package]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    entries = re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)[1:]
    return {re.split(r"[=\[ ]", entry)[0]: entry for entry in entries}


def closure(package: str) -> set[str]:
    """What is installed for a package, as the installed distributions say themselves."""
    found: set[str] = set()
    wanted = [Requirement(package)]
    while wanted:
        one = wanted.pop()
        for line in requires(one.name) or ():
            needed = Requirement(line)
            extras = one.extras or {""}
            name = needed.name.lower().replace("_", "-").replace(".", "-")
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            if applies and name not in found:
                found.add(name)
                wanted.append(needed)
    return found


def test_an_image_gets_what_the_platform_needs_and_nothing_else() -> None:
    here = {name for name, entry in locked().items() if "sys_platform == " not in entry}
    assert here == closure("forerun")
    assert "pytest" not in here


def test_every_pin_has_its_hashes() -> None:
    entries = {**locked(), **locked("hatchling")}
    assert "hatchling" in entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries.values())


def test_an_unknown_package_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/locked.py", REPOSITORY / "requirements.lock", "leftpad"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "leftpad" in done.stderr
