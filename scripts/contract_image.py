"""Records the wire contract: protos/image.binpb is the compiled contract that later changes are compared with.

Every change of the contract is written down for users. The rule: CHANGELOG.md quotes the first 12 hex digits of the
image's sha256 on a line of "## Unreleased" / "### Contract" that says what changes for them, and a change that breaks
clients or stored data says "breaking" there. `make contract-image NOTE="..."` writes line and image; `--check`
(in `make verify` and `make test`) proves that image, protos and changelog agree.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTOS = REPOSITORY / "protos"
IMAGE = PROTOS / "image.binpb"
CHANGELOG = REPOSITORY / "CHANGELOG.md"
HEADING = "### Contract"


def buf(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run buf on the protos; the caller judges the exit code."""
    command = [str(Path(sys.executable).with_name("buf")), *map(str, arguments)]
    return subprocess.run(command, cwd=PROTOS, capture_output=True, text=True, check=False)


def build() -> bytes:
    """The image of the protos as they are. Comments are left out: they do not change the contract."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "image.binpb"
        built = buf("build", "--exclude-source-info", "-o", target)
        if built.returncode:
            sys.exit(built.stdout + built.stderr)
        return target.read_bytes()


def fingerprint(image: bytes) -> str:
    """How the changelog names an image."""
    return hashlib.sha256(image).hexdigest()[:12]


def unreleased_lines() -> list[str]:
    """The lines of the changelog's section for contract changes that are not released."""
    section = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", CHANGELOG.read_text(), re.MULTILINE | re.DOTALL)
    part = re.search(rf"^{HEADING}\n(.*?)(?=^### |\Z)", section[1], re.MULTILINE | re.DOTALL) if section else None
    return part[1].splitlines() if part else []


def add_line(line: str) -> None:
    """Put a line on top of the section; the section must exist."""
    text = CHANGELOG.read_text()
    start = text.index("## Unreleased\n")
    at = text.find(f"{HEADING}\n\n", start)
    if at < 0:
        sys.exit(f'CHANGELOG.md has no "{HEADING}" below "## Unreleased"; add it, followed by an empty line')
    at += len(f"{HEADING}\n\n")
    CHANGELOG.write_text(text[:at] + line + "\n" + text[at:])


def record(note: str) -> int:
    """Replace the image when the changelog explains the change, or explain it with `note`."""
    image = build()
    name = fingerprint(image)
    if IMAGE.exists() and IMAGE.read_bytes() == image:
        print(f"The contract is recorded already: {name}")
        return 0
    broken = buf("breaking", "--against", IMAGE).stdout.strip() if IMAGE.exists() else ""
    lines = [line for line in unreleased_lines() if name in line]
    line = lines[0] if lines else f"- `{name}` {note}"
    if broken and "breaking" not in line.lower():
        print(broken, file=sys.stderr)
        print(f'These changes break clients or stored data: the line for {name} must say "breaking".', file=sys.stderr)
        return 1
    if not lines:
        if not note:
            print(
                f'The contract changed: run make contract-image NOTE="what changes for users", or quote {name} on a '
                f'line below "## Unreleased" / "{HEADING}" in CHANGELOG.md and run it again.',
                file=sys.stderr,
            )
            return 1
        add_line(line)
    IMAGE.write_bytes(image)
    print(f"Recorded {name}")
    return 0


def problems() -> list[str]:
    """Where protos, image and changelog disagree, in words; empty when they agree."""
    if not IMAGE.exists():
        return ["protos/image.binpb is missing: run make contract-image"]
    recorded = IMAGE.read_bytes()
    found = []
    if build() != recorded:
        found.append('The contract changed without a record: run make contract-image NOTE="what changes for users"')
    if fingerprint(recorded) not in CHANGELOG.read_text():
        found.append(f"CHANGELOG.md does not name the recorded contract {fingerprint(recorded)}")
    return found


def main() -> int:
    """Parse the command line; 1 when the record is refused or the check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the record is not current")
    parser.add_argument("--note", default="", help="what changes for users, as a line for the changelog")
    options = parser.parse_args()
    if not options.check:
        return record(options.note.strip())
    found = problems()
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
