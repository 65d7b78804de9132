"""What an image holds, as CycloneDX JSON on standard output: the Python distributions and the Debian packages.

Run by the Python of the image's own environment. The image's label `dev.forerun.sbom` says where the result lies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

DPKG_STATUS = Path("/var/lib/dpkg/status")


def python_components(found: Iterable[Distribution]) -> list[dict[str, str]]:
    """Distributions as components, by name."""
    pairs = sorted({(one.metadata["Name"].lower(), one.version) for one in found})
    return [_component(name, version, f"pkg:pypi/{name}@{version}") for name, version in pairs]


def debian_components(status: str) -> list[dict[str, str]]:
    """Installed packages of dpkg's status file as components, by name."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            found.append(_component(name, version, f"pkg:deb/debian/{name}@{version}"))
    return sorted(found, key=lambda component: component["name"])


def _component(name: str, version: str, purl: str) -> dict[str, str]:
    return {"type": "library", "name": name, "version": version, "purl": purl}


def main() -> int:
    """Prints it."""
    components = python_components(distributions())
    if DPKG_STATUS.exists():
        components += debian_components(DPKG_STATUS.read_text())
    # Neither time nor serial number: the same image has the same bill of materials.
    print(
        json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}, indent=1)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
