"""The coding agent: mends one seeded fault of the shipped project, ticket by ticket.

It runs the failing test, reads the file that the failure names, edits, and tests again until it passes. What varies:
what it looks at besides, a plausible wrong fix first, and a wider test at once. It knows the faults from the shipped
catalogue, as a script does; which line to change it still looks up in the file that it read.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml

from forerun.cli.demo.agents.script import Call, Message, Observation, Script, Task, Whim, list_at, text_at
from forerun.cli.demo.draws import Kind, fraction

AGENT = "coding"
TOOLS = ("run_tests", "search_code", "history", "read_file", "edit_file")

_REQUESTS = (
    "Ticket {ticket}: `{target}` fails. Please mend it.",
    "Ticket {ticket}: since the last release `{target}` is red; find out why and repair it.",
    "Please take ticket {ticket}: `{target}` does not pass.",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One seeded fault.

    Attributes:
        path: File that holds it.
        symbol: Function that is wrong.
        target: Test class that fails by it.
        fault: The wrong line.
        fix: The right line.
        first_try: A plausible wrong fix that the script tries first, or None.
    """

    path: str
    symbol: str
    target: str
    fault: str
    fix: str
    first_try: str | None = None


def load_faults() -> dict[str, Fault]:
    """The shipped catalogue, by symbol.

    Raises:
        TypeError: An entry lacks a field or has one too many.
    """
    text = (files("forerun.cli.demo") / "assets" / "faults.yaml").read_text(encoding="utf-8")
    faults = [Fault(**entry) for entry in yaml.safe_load(text)]
    return {fault.symbol: fault for fault in faults}


def tasks(faults: dict[str, Fault], seed: int, count: int) -> list[Task]:
    """The first `count` tasks of a seed: each fault is the subject of at most one.

    Raises:
        ValueError: There are fewer faults than that.
    """
    shuffled = sorted(faults.values(), key=lambda fault: fraction(seed, "subject", fault.symbol))
    if count > len(shuffled):
        raise ValueError(f"the project has {len(shuffled)} faults, {count} were asked for")
    return [
        Task(
            session=(ticket := f"K{number:02d}"),
            agent=AGENT,
            user_text=Whim(seed, ticket).pick("request", _REQUESTS).format(ticket=ticket, target=fault.target),
            subject=fault.symbol,
            model=Kind.CODING_MODEL,
        )
        for number, fault in enumerate(shuffled[:count], start=1)
    ]


def script(task: Task, seed: int, fault: Fault) -> Script:
    """The model's part in one session."""
    whim = Whim(seed, task.session)
    (report,) = yield Message("I run the test first.", [Call("run_tests", {"target": fault.target})])
    failure = next(iter(list_at(report.value(), "failed")), None)
    path, symbol = text_at(failure, "path"), text_at(failure, "symbol")
    module = text_at(report.value(), "module")
    calls = [Call("read_file", {"path": path}), Call("search_code", {"symbol": symbol})]
    if whim.happens("history first", 0.15):
        calls.append(Call("history", {"path": path}))
    source, *_ = yield Message("I look at the file and at who uses the function.", calls)
    wrong = _line(source, fault.fault)
    if fault.first_try is not None:
        verdict = yield from _attempt(whim, path, (wrong, fault.first_try), fault.target, "first")
        if verdict == "failed":
            calls = [Call("read_file", {"path": path}), Call("search_code", {"symbol": symbol})]
            source, *_ = yield Message("Not that. I look again.", calls)
            wrong = _line(source, fault.first_try)
    verdict = yield from _attempt(whim, path, (wrong, fault.fix), fault.target, "last")
    wider = [Call("run_tests", {"target": module}), Call("search_code", {"symbol": symbol})]
    if verdict == "failed":
        wider = [Call("history", {"path": path})]
    yield Message("Last, the whole module for the record.", wider)


def _attempt(
    whim: Whim, path: str, change: tuple[str, str], target: str, name: str
) -> Generator[Message, Sequence[Observation], str]:
    """Edits and tests again. The verdict of the test."""
    old, new = change
    calls = [Call("edit_file", {"path": path, "old": old, "new": new})]
    yield Message("I change the line.", calls)
    calls = [Call("run_tests", {"target": target})]
    if whim.happens(f"read back {name}", 0.15):
        calls.insert(0, Call("read_file", {"path": path}))
    *_, report = yield Message("Does it pass now?", calls)
    return text_at(report.value(), "verdict")


def _line(source: Observation, known: str) -> str:
    """The line of the file that the script will change, as the file spells it."""
    lines = text_at(source.value(), "text").splitlines()
    return next((line.strip() for line in lines if line.strip() == known), known)
