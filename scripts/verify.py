"""Proves that what is committed equals what its sources give: `make verify`. Writes nothing into the repository."""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

import contract_image
import generate
import lock


def listing(root: Path, owned: str) -> set[str]:
    """The files of one generator below `root`, without what Python adds by importing them."""
    target = root / owned
    paths = [target] if target.is_file() else target.rglob("*")
    return {str(path.relative_to(root)) for path in paths if path.is_file() and "__pycache__" not in path.parts}


def stale() -> list[str]:
    """Generated files that a fresh generation would change, add or remove."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate.generate(fresh)
        found = []
        for owned in (owned for generator in generate.GENERATORS for owned in generator.owns):
            committed, wanted = listing(generate.REPOSITORY, owned), listing(fresh, owned)
            found += [f"{name}: missing; run make generate" for name in sorted(wanted - committed)]
            found += [f"{name}: no source gives it; run make generate" for name in sorted(committed - wanted)]
            found += [
                f"{name}: differs from its source; run make generate"
                for name in sorted(committed & wanted)
                if not filecmp.cmp(generate.REPOSITORY / name, fresh / name, shallow=False)
            ]
        return found


def main() -> int:
    """Print what is not current; 1 when there is anything."""
    found = [*stale(), *lock.problems(), *contract_image.problems()]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    if not found:
        print("Everything generated is current.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
