"""Draws what a panel's query gave, as SVG: enough for documentation, without a browser or a Grafana."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 420
HEIGHT: Final = 220
_LEFT, _TOP, _BOTTOM = 16, 44, 54
_COLOURS: Final = ("#3b82c4", "#d98032", "#4f9d4f", "#b84a4a", "#8765b0", "#8a6d5a", "#c46fa7", "#777777")
_LONGEST: Final = 26


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its legend and its points as (seconds, value)."""

    legend: str
    points: tuple[tuple[float, float], ...]


def shown(value: float, unit: str) -> str:
    """A value with its unit."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    suffix = {"s": " s", "reqps": "/s", "currencyUSD": " USD"}.get(unit, "")
    return f"{value:.3g}{suffix}"


def picture(title: str, unit: str, kind: str, series: Sequence[Series], empty: str) -> str:
    """One panel."""
    if not series:
        body = [_text(_LEFT, HEIGHT / 2, empty, size=14, colour="#888")]
    elif kind == "stat":
        body = [_text(_LEFT, HEIGHT / 2 + 14, shown(series[0].points[-1][1], unit), size=36)]
    elif kind == "bars":
        body = _bars(series, unit)
    else:
        body = _lines(series, unit)
    head = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="4" fill="#fff" stroke="#ddd"/>'
    return "\n".join([head, _text(_LEFT, 24, title, size=14, bold=True), *body])


def page(panels: Sequence[str], columns: int = 2) -> str:
    """Panels side by side, as one file."""
    rows = -(-len(panels) // columns)
    parts = [
        f'<g transform="translate({(n % columns) * (WIDTH + 8)},{(n // columns) * (HEIGHT + 8)})">{panel}</g>'
        for n, panel in enumerate(panels)
    ]
    size = f'width="{columns * (WIDTH + 8)}" height="{rows * (HEIGHT + 8)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(series: Sequence[Series], unit: str) -> list[str]:
    ordered = sorted(series, key=lambda one: -one.points[-1][1])[:8]
    top = max((one.points[-1][1] for one in ordered), default=0.0) or 1.0
    body = []
    for row, one in enumerate(ordered):
        value, y = one.points[-1][1], _TOP + row * 20
        body.append(_text(_LEFT, y + 12, one.legend[:_LONGEST] or "all", size=11))
        length = max(1.0, 150 * value / top)
        body.append(f'<rect x="190" y="{y + 2}" width="{length:.1f}" height="13" fill="{_COLOURS[0]}"/>')
        body.append(_text(196 + length, y + 12, shown(value, unit), size=11))
    return body


def _lines(series: Sequence[Series], unit: str) -> list[str]:
    finite = [value for one in series for _, value in one.points]
    first = min(at for one in series for at, _ in one.points)
    last = max(at for one in series for at, _ in one.points)
    top = max(finite, default=0.0) or 1.0
    width, height = WIDTH - 2 * _LEFT, HEIGHT - _TOP - _BOTTOM

    def place(at: float, value: float) -> str:
        x = _LEFT + width * (at - first) / ((last - first) or 1.0)
        return f"{x:.1f},{_TOP + height * (1 - value / top):.1f}"

    body = [f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y}" y2="{y}" stroke="#eee"/>' for y in (_TOP, _TOP + height)]
    body.append(_text(_LEFT, _TOP - 3, shown(top, unit), size=10, colour="#888"))
    for number, one in enumerate(series[:8]):
        colour = _COLOURS[number]
        points = " ".join(place(at, value) for at, value in one.points)
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = _LEFT + (number % 4) * 98, HEIGHT - 32 + (number // 4) * 16
        body.append(_text(x, y, (one.legend or "all")[:15], size=11, colour=colour))
    return body


def _text(x: float, y: float, text: str, *, size: int, colour: str = "#222", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"{weight}>{escape(text)}</text>'
