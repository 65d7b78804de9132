"""Plans as a picture: a column for each wave, solid lines for values, dashed ones for what has to wait."""

from __future__ import annotations

from html import escape
from typing import Final

from forerun.cli.plan.drawing import call_text, effect_of
from forerun.core.plan.analysis import Analysis, Step

_WIDTH: Final = 210
_HEIGHT: Final = 44
_ACROSS: Final = 280
_DOWN: Final = 60
_MARGIN: Final = 24
_STYLE: Final = """
svg { background: #ffffff; font: 12px ui-monospace, monospace }
rect { fill: #f6f8fa; stroke-width: 1.5 }
.pure { stroke: #1b7c83 } .read { stroke: #1a7f37 } .write { stroke: #9a6700 } .unknown { stroke: #cf222e }
.shared { stroke-dasharray: 2 3 }
.critical rect { stroke-width: 3.5 }
text { fill: #1f2328 } .small { fill: #59636e; font-size: 10px }
path { fill: none; stroke: #818b98; stroke-width: 1.2 } .order { stroke-dasharray: 5 4 }
path.critical { stroke: #1f2328; stroke-width: 2.4 }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } rect { fill: #151b23 } text { fill: #f0f6fc } .small { fill: #9198a1 }
  path.critical { stroke: #f0f6fc }
}
"""


def svg(analysis: Analysis, title: str) -> str:
    """The picture of a plan as an SVG document that needs nothing else."""
    places = {
        index: (_MARGIN + wave * _ACROSS, 2 * _MARGIN + row * _DOWN)
        for wave, indexes in enumerate(analysis.waves)
        for row, index in enumerate(indexes)
    }
    width = 2 * _MARGIN + max(0, len(analysis.waves) - 1) * _ACROSS + _WIDTH
    height = 3 * _MARGIN + max((len(wave) for wave in analysis.waves), default=0) * _DOWN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<text x="{_MARGIN}" y="{_MARGIN}">{escape(title)}</text>',
    ]
    on_path = set(zip(analysis.critical_path, analysis.critical_path[1:], strict=False))
    for index, step in enumerate(analysis.steps):
        for first in step.waits:
            kind = "value" if first in step.refers else "order"
            critical = " critical" if (first, index) in on_path else ""
            parts.append(_line(places[first], places[index], kind + critical))
    chain = set(analysis.critical_path)
    parts += [_box(places[index], step, critical=index in chain) for index, step in enumerate(analysis.steps)]
    return "\n".join((*parts, "</svg>", ""))


def _box(place: tuple[int, int], step: Step, *, critical: bool) -> str:
    x, y = place
    what = effect_of(step) + (", alone" if step.alone else "") + (", shared" if step.same_as is not None else "")
    shape = effect_of(step) + (" shared" if step.same_as is not None else "")
    return (
        f"<g{' class=' + chr(34) + 'critical' + chr(34) if critical else ''}>"
        f"<title>{escape(call_text(step, 1_000))}</title>"
        f'<rect class="{shape}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x + 10}" y="{y + 18}">{escape(_cut(f"{step.task.id}  {step.task.tool}", 26))}</text>'
        f'<text class="small" x="{x + 10}" y="{y + 34}">{escape(_cut(f"{what}  {call_text(step)}", 31))}</text></g>'
    )


def _line(first: tuple[int, int], second: tuple[int, int], kind: str) -> str:
    x, y = first[0] + _WIDTH, first[1] + _HEIGHT // 2
    to_x, to_y = second[0], second[1] + _HEIGHT // 2
    bend = max(30, (to_x - x) // 2)
    return f'<path class="{kind}" d="M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"/>'


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
