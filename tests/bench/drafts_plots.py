"""Draws the plots of docs/tokens.md from build/bench/drafts.json.

python -m tests.bench.drafts_plots [FILE]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from tests.bench.results import REPOSITORY, RESULTS

_OUT: Final = REPOSITORY / "docs" / "tokens"
_WIDTH, _HEIGHT = 860, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 70, 50
_COLOURS: Final = ("#9aa5b1", "#c9b458", "#d98e4a", "#5b8def", "#1f4fa8", "#2a9d63", "#b3446c")
_DRAFTERS: Final = (
    "prompt look-up",
    "SuffixDecoding, alpha 1",
    "SuffixDecoding, alpha 4, tree",
    "Forerun",
    "Forerun, tree",
)
_SHOWN_DEPTHS: Final = ("0", "1", "3", "7")


class Drawing:
    """An SVG file with axes. Coordinates of data: x in slots from 0, y from 0 up.

    Args:
        title: Above it.
        slots: Width of the x axis.
        most: Top of the y axis.
        unit: Of the y axis.
    """

    def __init__(self, title: str, slots: float, most: float, unit: str) -> None:
        self._slots, self._most = slots, most
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
            'font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
            f'<text x="{_LEFT - 50}" y="{_TOP - 12}" fill="#555">{escape(unit)}</text>',
        ]
        step = _step(most)
        mark = 0.0
        while mark <= most:
            y = self.y(mark)
            self._parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
            self._parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{mark:g}</text>')
            mark += step

    def x(self, slot: float) -> float:
        """Pixels."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * slot / self._slots

    def y(self, value: float) -> float:
        """Pixels."""
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self._most

    def label(self, slot: float, text: str) -> None:
        """Below the x axis."""
        y = _HEIGHT - _BOTTOM + 18
        self._parts.append(f'<text x="{self.x(slot):.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>')

    def legend(self, names: Sequence[str]) -> None:
        """Above the plot."""
        x = float(_LEFT)
        for number, name in enumerate(names):
            self._parts.append(f'<rect x="{x:.0f}" y="32" width="12" height="12" fill="{_COLOURS[number]}"/>')
            self._parts.append(f'<text x="{x + 16:.0f}" y="42">{escape(name)}</text>')
            x += 30 + 6.6 * len(name)

    def bar(self, start: float, end: float, value: float, colour: int) -> None:
        """A bar with its value on top."""
        left, right, top = self.x(start), self.x(end), self.y(value)
        self._parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{self.y(0.0) - top:.1f}" '
            f'fill="{_COLOURS[colour]}"/>'
        )
        middle = (left + right) / 2
        self._parts.append(
            f'<text x="{middle:.1f}" y="{top - 3:.1f}" text-anchor="middle" font-size="8">{value:.2f}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], colour: int, *, dashed: bool = False) -> None:
        """Connected points."""
        path = "L".join(f"{self.x(slot):.1f} {self.y(value):.1f}" for slot, value in points)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        width = 2 if dashed else 3
        self._parts.append(f'<path d="M{path}" fill="none" stroke="{_COLOURS[colour]}" stroke-width="{width}"{dash}/>')

    def write(self, file: Path) -> None:
        """The file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([*self._parts, "</svg>"]) + "\n")


def _step(most: float) -> float:
    scale = 1.0
    while most / scale > 8:
        scale *= 2.5 if str(scale)[0] == "2" else 2.0
    while most / scale < 4:
        scale /= 2.0
    return scale


def passes(rows: Sequence[Mapping[str, Any]], depth: int, file: Path) -> None:
    """Tokens per pass by set."""
    found = {(row["set"], row["drafter"]): row["value"] for row in rows if row.get("drafted") == depth and row["value"]}
    sets = list(dict.fromkeys(name for name, _ in found if name != "random"))
    drawing = Drawing(
        f"Tokens per verification pass, at most {depth} drafted", len(sets), 1.1 * max(found.values()), "tokens/pass"
    )
    drawing.legend(_DRAFTERS)
    width = 0.85 / len(_DRAFTERS)
    for at, name in enumerate(sets):
        drawing.label(at + 0.5, name)
        for number, drafter in enumerate(_DRAFTERS):
            if value := found.get((name, drafter)):
                start = at + 0.075 + number * width
                drawing.bar(start, start + width * 0.92, value, number)
    drawing.write(file)


def goodput(rows: Sequence[Mapping[str, Any]], machine: str, acceptance: float, file: Path) -> None:
    """Goodput against batch, on the way up and down the ramp."""
    levels = [row for row in rows if row.get("machine") == machine and row["acceptance"] == acceptance]
    most = max(max(row["fixed"].values()) for row in levels)
    drawing = Drawing(
        f"Goodput on the ramp, {machine}, acceptance {acceptance:g}", len(levels) - 1, 1.1 * most, "tokens/s"
    )
    names = ["off" if depth == "0" else f"depth {depth}" for depth in _SHOWN_DEPTHS]
    drawing.legend([*names, "controller"])
    for at, row in enumerate(levels):
        drawing.label(at, str(row["batch"]))
    for number, depth in enumerate(_SHOWN_DEPTHS):
        drawing.line([(at, row["fixed"][depth]) for at, row in enumerate(levels)], number, dashed=True)
    drawing.line([(at, row["value"]) for at, row in enumerate(levels)], len(_SHOWN_DEPTHS))
    drawing.write(file)


def main() -> int:
    """Draws all plots; 2 where nothing was measured."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "drafts.json"
    if not source.exists():
        print(f"drafts_plots: {source} is missing: run make bench-drafts", file=sys.stderr)
        return 2
    rows = json.loads(source.read_text())["rows"]
    for depth in sorted({row["drafted"] for row in rows if "drafted" in row}):
        passes(rows, depth, _OUT / f"passes-{depth}.svg")
    for machine in dict.fromkeys(row["machine"] for row in rows if "machine" in row):
        goodput(rows, machine, 0.6, _OUT / f"goodput-{machine.replace(' ', '-')}.svg")
    print(f"plots in {_OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
