"""Measured step times: what a pass of the target costs at each depth, by model pair, batch and context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forerun.core.errors import CoreError

_VERSION: Final = 1
_MAX_DEPTH: Final = 64
_KNEE_TOKENS: Final = 256.0  # tokens of a pass at which reading the weights and computing take equally long (nominal)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What one step takes at each depth that was measured.

    Attributes:
        seconds: By depth (tokens drafted for each text): drafting and the verifying pass together, for the whole batch.
            Depth 0 is there: decoding without speculation.
    """

    seconds: Mapping[int, float]

    def __post_init__(self) -> None:
        """Refuses what no choice can be made from.

        Raises:
            CoreError: `invalid_step_table`.
        """
        if 0 not in self.seconds:
            raise CoreError("invalid_step_table", "step times need depth 0: what decoding without drafts takes")
        for depth, taken in self.seconds.items():
            if not 0 <= depth <= _MAX_DEPTH or not (math.isfinite(taken) and taken > 0.0):
                raise CoreError(
                    "invalid_step_table", f"depth {depth} with {taken} s: depths are 0 to {_MAX_DEPTH}, times above 0"
                )

    def depths(self, cap: int) -> list[int]:
        """Measured depths up to a cap, from 0 on."""
        return [depth for depth in sorted(self.seconds) if depth <= max(0, cap)]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The step times of one machine.

    Attributes:
        cells: By pair ("target", or "target+draft"), largest batch and largest context (tokens) of the bucket.
    """

    cells: Mapping[str, Mapping[tuple[int, int], StepCosts]]

    def bucket(self, pair: str, batch: int, context: int) -> tuple[int, int] | None:
        """The measured bucket that a load falls into: the next larger one, else the largest; None: never measured."""
        cells = self.cells.get(pair)
        if not cells:
            return None
        batches = sorted({one for one, _ in cells})
        of_batch = next((one for one in batches if batch <= one), batches[-1])
        contexts = sorted(one for own, one in cells if own == of_batch)
        return of_batch, next((one for one in contexts if context <= one), contexts[-1])

    def as_json(self) -> dict[str, Any]:
        """As the calibration job writes it."""
        rows = [
            {"pair": pair, "batch": batch, "context": context, "seconds": {str(k): v for k, v in costs.seconds.items()}}
            for pair, cells in self.cells.items()
            for (batch, context), costs in cells.items()
        ]
        return {"version": _VERSION, "rows": rows}

    @classmethod
    def from_json(cls, stored: Any) -> StepTable:
        """What `as_json` gave, or a person wrote.

        Raises:
            CoreError: `invalid_step_table`, with the row.
        """
        if not isinstance(stored, Mapping) or stored.get("version") != _VERSION:
            version = stored.get("version") if isinstance(stored, Mapping) else None
            raise CoreError("invalid_step_table", f"step table of version {version}, known is {_VERSION}")
        rows = stored.get("rows", [])
        if not isinstance(rows, list):
            raise CoreError("invalid_step_table", "the rows of the step table are no list")
        cells: dict[str, dict[tuple[int, int], StepCosts]] = {}
        for number, row in enumerate(rows):
            try:
                costs = StepCosts({int(depth): float(taken) for depth, taken in row["seconds"].items()})
                cells.setdefault(str(row["pair"]), {})[int(row["batch"]), int(row["context"])] = costs
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise CoreError("invalid_step_table", f"row {number} of the step table: {error}") from error
        return cls(cells)


def nominal(batch: int, depths: Sequence[int]) -> StepCosts:
    """Step times relative to a small pass, for drafts that cost no model on a machine that was never measured.

    A pass takes as long as reading the weights until so many tokens are in it that computing takes over.
    """
    return StepCosts({depth: 1.0 + max(1, batch) * (depth + 1) / _KNEE_TOKENS for depth in {0, *depths}})
