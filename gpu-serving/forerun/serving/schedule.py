"""The depth for each batch size, for engines that speculate themselves and want it beforehand."""

from __future__ import annotations

from typing import Final

from forerun.core.tokens.depth import StepTable

ACCEPTANCE: Final = 0.6
"""Of a drafted token whose predecessors were accepted, before the engine's own counters say more."""


def schedule(table: StepTable, pair: str, most: int, *, acceptance: float = ACCEPTANCE) -> list[tuple[int, int]]:
    """Depth up to each measured batch size, by expected tokens a second: ((4, 7), (16, 3)), none above.

    A depth never grows with the batch: where the table says so, noise does.

    Args:
        table: Measured step times; of several contexts the slowest counts.
        pair: In the table.
        most: Deepest draft.
        acceptance: Share of accepted tokens that is expected.

    Returns:
        Batch sizes in rising order; neighbours of one depth are one entry; empty where the pair was not measured.
    """
    found: list[tuple[int, int]] = []
    cells = table.cells.get(pair, {})
    bound = most
    for batch in sorted({size for size, _ in cells}):
        own = [costs for (size, _), costs in cells.items() if size == batch]
        depth = min(max(costs.depths(bound), key=lambda one: _goodput(one, costs.seconds[one], acceptance))
                    for costs in own)  # fmt: skip
        bound = depth
        if found and found[-1][1] == depth:
            found.pop()
        found.append((batch, depth))
    return found


def _goodput(depth: int, seconds: float, acceptance: float) -> float:
    return sum(acceptance**step for step in range(depth + 1)) / seconds
