"""What a benchmark found: `build/bench/NAME.json` in one format for all of them, and a table for people."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "build" / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        name: The case, with the data set where there is one.
        value: The figure; None where it could not be measured.
        unit: Its unit.
        baseline: The same figure of what it is compared with, measured in the same run.
        n: Measurements behind it.
        spread: Smallest and largest value among the repetitions.
        more: Further named figures.
    """

    name: str
    value: float | None
    unit: str
    baseline: float | None = None
    n: int = 0
    spread: tuple[float, float] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The row of the file."""
        row = asdict(self)
        more = row.pop("more")
        known = self.value is not None and self.baseline is not None and self.baseline > 0
        row["ratio"] = self.value / self.baseline if known else None  # type: ignore[operator]
        return _rounded({**row, **more})  # type: ignore[no-any-return]


def write(name: str, rows: Sequence[Row], directory: Path = RESULTS) -> Path:
    """Writes the results of a benchmark; the file."""
    directory.mkdir(parents=True, exist_ok=True)
    result = {
        "bench": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu(),
        "rows": [row.as_json() for row in rows],
    }
    file = directory / f"{name}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    return file


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=REPOSITORY, capture_output=True, check=False
    )
    return done.stdout.decode().strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
