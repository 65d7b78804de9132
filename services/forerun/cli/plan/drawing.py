"""Plans in the terminal: a row for each task, a column for each wave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from forerun.core.canonical import canonical
from forerun.core.plan.analysis import Analysis, Step

_STYLES: Final = {"pure": "cyan", "read": "green", "write": "yellow"}
_TEXT_CHARS: Final = 48
_LEGEND: Final = "█ on the longest chain  ▒ beside it  · shares an outcome; ! runs alone; (1) waits for what 1 touches"


def effect_of(step: Step) -> str:
    """A word for what a task does."""
    return step.effect.value if step.known else "unknown"


def named(analysis: Analysis, indexes: Iterable[int]) -> list[str]:
    """The ids of tasks."""
    return [analysis.steps[index].task.id for index in indexes]


def call_text(step: Step, chars: int = _TEXT_CHARS) -> str:
    """A task as a call, cut to a width."""
    values = (f"{name}={canonical(value).decode()}" for name, value in step.task.arguments.items())
    text = f"{step.task.tool}({', '.join(values)})"
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def draw(analysis: Analysis, console: Console) -> None:
    """Draws a plan."""
    unit = _unit(console.width, len(analysis.waves))
    table = Table(
        *(Column(name, no_wrap=True) for name in ("task", "call", "does")),
        Column("time →", no_wrap=True),
        "needs",
        box=None,
        pad_edge=False,
    )
    critical = set(analysis.critical_path)
    for index, step in enumerate(analysis.steps):
        style = _STYLES[step.effect.value] if step.known else "red"
        mark = "·" if step.same_as is not None else "█" if index in critical else "▒"
        table.add_row(
            Text(step.task.id),
            Text(call_text(step)),
            Text(effect_of(step) + (" !" if step.alone else ""), style=style),
            Text(" " * (step.wave * unit) + mark * unit, style=style),
            Text(" ".join(_needs(analysis, step))),
        )
    console.print(table)
    console.print(_LEGEND, style="dim", markup=False)


def _needs(analysis: Analysis, step: Step) -> list[str]:
    if step.same_as is not None:
        return [f"= {analysis.steps[step.same_as].task.id}"]
    wanted = {*named(analysis, step.refers), *step.task.after}
    others = [one for one in named(analysis, step.waits) if one not in wanted]
    shown = [f"({one})" for one in others[:8]] + (["…"] if len(others) > 8 else [])
    return [*dict.fromkeys((*named(analysis, step.refers), *step.task.after)), *shown]


def _unit(width: int, waves: int) -> int:
    """Characters of one wave, so that all of them fit where that is possible."""
    return max(1, min(4, (width - _TEXT_CHARS - 40) // max(1, waves)))
