"""The demo's report for people: a table of the three runs and a timeline of one session."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forerun.cli.demo.draws import Kind
from forerun.cli.demo.figures import OUTCOMES, Figures
from forerun.cli.demo.runs import Answer, Served, SessionRecord, Step

_WIDTH = 60
_MODEL, _HIDDEN, _WAITING = "─", "▓", "█"
_HOW = {
    Served.READY: "ready before it was asked for",
    Served.JOINED: "already running when asked for",
    Served.MEMO: "remembered from an earlier read",
    Served.SHARED: "shared with the same call of the message",
    Served.DIRECT: "executed when asked for",
    Served.REFUSED: "refused",
}


def print_times(console: Console, scale: float) -> None:
    """Says which times are drawn, and that no language model is involved."""
    table = Table(title="Drawn times in seconds (log-normal, cut at p90)", title_justify="left")
    for column in ("what", "p50", "p90"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for kind in Kind:
        table.add_row(kind.title, f"{kind.p50_seconds * scale:.4g}", f"{kind.p90_seconds * scale:.4g}")
    console.print(table)
    console.print(
        "The agents' model is a seeded script, not a language model: it branches on what it observes and takes its "
        "arguments from it. Tools are real; each takes the larger of its real and its drawn time."
    )


def print_table(console: Console, figures: Figures) -> None:
    """Prints the comparison."""
    base = figures.parallel_seconds
    table = Table(title=f"{figures.sessions} sessions, {figures.counts.calls} tool calls", title_justify="left")
    table.add_column("run")
    for column in ("seconds", "against parallel", "differing results"):
        table.add_column(column, justify="right")
    rows = (
        ("sequential (mode off)", figures.sequential_seconds, "the reference"),
        ("ordered parallel (mode off)", base, str(figures.parallel_diverged)),
        ("Forerun (mode exact)", figures.forerun_seconds, str(figures.forerun_diverged)),
    )
    for name, seconds, differing in rows:
        table.add_row(name, f"{seconds:.1f}", f"{100 * (seconds - base) / base:+.1f} %", differing)
    console.print(table)
    outcomes = ", ".join(f"{count} {name}" for name in OUTCOMES if (count := figures.counts.outcomes.get(name)))
    console.print(f"Speculations: {figures.counts.launched} launched ({outcomes or 'none'}).")
    console.print(
        f"Hit rate {_share(figures.hit_rate)}, coverage {_share(figures.coverage)}, amplification "
        f"{figures.amplification:.2f} executions a call, {figures.counts.wasted_seconds:.1f} s of execution wasted, "
        f"{figures.counts.memo_hits} reads remembered, {figures.hidden_seconds:.1f} s of tool time hidden."
    )
    surroundings = figures.surroundings
    console.print(
        f"Commands ran isolated by: {surroundings.isolation or 'unknown'}. Unknown outcomes: {figures.unknown}."
    )


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.0f} %"


def most_telling(records: Sequence[SessionRecord]) -> SessionRecord:
    """The session with the most hidden seconds for its length: the one worth looking at."""
    return max(records, key=lambda record: sum(map(_hidden, record.steps)) / record.seconds)


def print_timeline(console: Console, record: SessionRecord, parallel: SessionRecord) -> None:
    """Prints one session of the Forerun run on a time axis, and what hid which seconds."""
    console.print()
    console.print(
        Text(f"One session: {record.task.session}, {record.task.agent} agent. ", style="bold").append(
            f"{record.seconds:.2f} s with Forerun, {parallel.seconds:.2f} s in ordered parallel.", style="not bold"
        )
    )
    console.print(f"User: {record.task.user_text}", markup=False, highlight=False)
    legend = ((_HIDDEN, "green", "model, tools run ahead"), (_MODEL, "cyan", "model"), (_WAITING, "red", "waiting"))
    console.print(Text("  ").join(Text.assemble((sign, style), " ", what) for sign, style, what in legend))
    scale = _WIDTH / record.seconds
    offset = 0.0
    for number, step in enumerate(record.steps, start=1):
        console.print(_bar(step, offset, scale), highlight=False, soft_wrap=True)
        for call, answer in zip(step.calls, step.answers, strict=True):
            console.print(_line(number, call.tool, answer), markup=False, highlight=False, soft_wrap=True)
        offset += step.model_seconds + step.tool_seconds


def _bar(step: Step, offset: float, scale: float) -> Text:
    start = round(offset * scale)
    model = max(1, round(step.model_seconds * scale))
    hidden = min(model, round(_hidden(step) * scale))
    waiting = round(step.tool_seconds * scale)
    bar = Text(" " * start)
    # What runs ahead starts when the model does.
    bar.append(_HIDDEN * hidden, "green").append(_MODEL * (model - hidden), "cyan").append(_WAITING * waiting, "red")
    return bar.append(f"  model {step.model_seconds:.2f} s, then waited {step.tool_seconds:.2f} s")


def _hidden(step: Step) -> float:
    """Tool time of the step that passed while the model was at work: calls of one message hide together."""
    return max((answer.hidden_seconds for answer in step.answers), default=0.0)


def _line(number: int, tool: str, answer: Answer) -> str:
    return (
        f"    {number}. {tool}: took {answer.execution_seconds:.2f} s, waited {answer.waited_seconds:.2f} s, "
        f"hidden {answer.hidden_seconds:.2f} s ({_HOW[answer.served]})"
    )


class Progress:
    """Tells how far a phase of the demo is: a line for each eighth of its sessions.

    Args:
        console: Where to.
        phase: The phase's name.
    """

    def __init__(self, console: Console, phase: str) -> None:
        self._console = console
        self._phase = phase
        self._told = 0

    def __call__(self, ended: int, total: int) -> None:
        """A session has ended."""
        eighth = 8 * ended // total
        if eighth > self._told:
            self._told = eighth
            self._console.print(f"{self._phase}: {ended} of {total} sessions", highlight=False)
