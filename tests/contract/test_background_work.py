"""No background task ends for good in silence: work without an end goes on, or ends the process; others are awaited."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("services/forerun", "operators/forerun", "gpu-serving/forerun")
_MAKES_TASKS: Final = ("create_task", "ensure_future")
_TELLING: Final = (*_MAKES_TASKS, ".spawn(", "while ")  # files without any of these have nothing to do with tasks

SEEN_BY: Final = {
    (
        "cli/models/serving.py",
        "_until_the_end",
    ): "its result is taken where it has ended, and it is waited for elsewhere",
    ("cli/up/platform.py", "_start"): "`until_failed` waits for the watchers and raises what they raise",
    ("gateway/app.py", "start"): "its end before `stop` ends the process",
    ("gateway/service.py", "_or_left"): "waited for beside what the caller does, and cancelled with it",
    ("orchestrator/answers/search.py", "_spawn"): "the search waits for whichever candidate ends next",
    ("orchestrator/service.py", "Connect"): "tells the outlet of its end in `finally`; the stream ends with it",
    ("orchestrator/service.py", "RunPlan"): "a fault in it fails the plan; the plan's stream ends then",
    ("orchestrator/workers.py", "tools"): "whoever asks for the list waits for it",
    ("runtime/app.py", "_live"): "measures the loop's lag; nothing in it can fail but the loop",
    ("runtime/bus_delivery.py", "_start"): "its callback logs, and the broker delivers the message again",
    ("runtime/bus_nats_pull.py", "start"): "goes on after every exception",
    ("runtime/bus_pump.py", "_work"): "every handler's exception is logged and counted, and the next item follows",
    ("runtime/memory_client.py", "consume"): "the exchange ends with it",
    ("runtime/memory_server.py", "accept"): "the exchange ends with it, with its status",
    ("runtime/models/calling.py", "_start"): "the race waits for whichever attempt ends next",
    ("runtime/network_grpc.py", "stop"): "awaited through a shield",
    ("sandbox/connectors/mcp.py", "__init__"): "whoever waits for the connection gets its error; it is dead then",
    ("sandbox/runners/remote.py", "__init__"): "the runner counts as lost, however it ends",
    ("sandbox/worker/engine.py", "execute"): "always ends by one `Finished`",
    ("sandbox/workspaces/store.py", "_remove"): "waited for to its end; who comes after it waits for it, too",
    ("sandbox/workspaces/store.py", "of"): "whoever asks for the workspace waits for it",
    ("serving/service.py", "_follow"): "what it says is said once; the next change of the profile is tried again",
}
"""Tasks that the function which makes them does not wait for, and who learns how they end."""


@dataclass(frozen=True)
class Place:
    """A function of the sources."""

    file: str
    function: str
    node: ast.AsyncFunctionDef | ast.FunctionDef


def functions() -> Iterator[Place]:
    for folder in FOLDERS:
        root = REPOSITORY / folder
        for file in sorted(root.rglob("*.py")):
            text = file.read_text()
            if not any(word in text for word in _TELLING):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                    yield Place(str(file.relative_to(root)), node.name, node)


PLACES: Final = tuple(place for place in functions() if place.file != "runtime/tasks.py")  # the rule itself


def name_of(call: ast.expr) -> str:
    """The last part of what is called."""
    if isinstance(call, ast.Attribute):
        return call.attr
    return call.id if isinstance(call, ast.Name) else ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def endless(node: ast.AST) -> bool:
    """It has a loop that it does not leave by itself: without a condition, or until somebody else sets a flag."""
    loops = [one for one in ast.walk(node) if isinstance(one, ast.While)]
    return any(_a_flag(one.test) or (isinstance(one.test, ast.Constant) and not _left(one)) for one in loops)


def _a_flag(test: ast.expr) -> bool:
    return isinstance(test.operand if isinstance(test, ast.UnaryOp) else test, ast.Attribute)


def _left(loop: ast.While) -> bool:
    return any(isinstance(one, ast.Return | ast.Break) for one in ast.walk(loop))


ENDLESS: Final = frozenset(
    (place.file, place.function)
    for place in PLACES
    if isinstance(place.node, ast.AsyncFunctionDef) and endless(place.node)
)


def _is_endless(work: ast.Call, file: str) -> bool:
    """Its own methods are known by their file; those of others by their name, wherever they may be."""
    own = isinstance(work.func, ast.Attribute) and ast.unparse(work.func.value) == "self"
    return any(name_of(work.func) == name and (file == where or not own) for where, name in ENDLESS)


def left_to_itself(function: ast.AST, file: str) -> list[str]:
    """Endless work that is spawned and ends for good with its first exception, while the process goes on."""
    return [
        name_of(call.args[0].func)
        for call in calls(function)
        if name_of(call.func) == "spawn"
        and call.args
        and isinstance(call.args[0], ast.Call)
        and _is_endless(call.args[0], file)
        and not any(word.arg == "critical" and ast.unparse(word.value) == "True" for word in call.keywords)
    ]


def unwatched(function: ast.AST) -> bool:
    """It makes a task, and does not wait for it itself."""
    made = [call for call in calls(function) if name_of(call.func) in _MAKES_TASKS and not _of_a_group(call)]
    if not made:
        return False
    waited = {ast.unparse(name) for node in ast.walk(function) if isinstance(node, ast.Await) for name in ast.walk(node)
              if isinstance(name, ast.Name)}  # fmt: skip
    kept = {
        ast.unparse(target)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and any(call in made for call in calls(node.value))
        for target in node.targets
    }
    return not (kept and kept <= waited)


def _of_a_group(call: ast.Call) -> bool:
    """A TaskGroup waits for its tasks and raises what they raise."""
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in {"group", "tasks"}


def test_endless_work_goes_on_or_ends_the_process() -> None:
    found = [(one.file, one.function, name) for one in PLACES for name in left_to_itself(one.node, one.file)]
    assert not found, "use `keep` or `every`, or `critical=True` where the process is of no use without it"


def test_somebody_learns_how_a_task_ends() -> None:
    found = {(place.file, place.function) for place in PLACES if unwatched(place.node)}
    assert found == set(SEEN_BY), "await it, own it by a TaskScope, or say here who learns how it ends"


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        ("self._tasks.spawn(self.run(), name='a')", True),
        ("self._tasks.spawn(self.run(), name='a', critical=False)", True),
        ("self._tasks.spawn(self.run(), name='a', critical=True)", False),
        ("self._tasks.keep(self.run, name='a')", False),
        ("self._tasks.spawn(self.once(), name='a')", False),
        ("self._tasks.spawn(other.run(), name='a')", True),
    ],
)
def test_what_is_left_to_itself_is_found(source: str, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ENDLESS", frozenset({("a.py", "run")}))
    assert bool(left_to_itself(ast.parse(source), "a.py")) is lost


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        ("task = asyncio.create_task(work())", True),
        ("self._task = asyncio.ensure_future(work())", True),
        ("asyncio.create_task(work())", True),
        ("task = asyncio.create_task(work())\nawait asyncio.wait([task])", False),
        ("task = asyncio.create_task(work())\nawait other", True),
        ("group.create_task(work())", False),
    ],
)
def test_a_task_that_nobody_waits_for_is_found(source: str, lost: bool) -> None:
    assert unwatched(ast.parse(source)) is lost


@pytest.mark.parametrize(
    ("source", "has_no_end"),
    [
        ("while True:\n  await once()", True),
        ("while True:\n  if done: return\n  await once()", False),
        ("while not self.closed:\n  await once()", True),
        ("while not task.done():\n  await once()", False),
        ("await once()", False),
    ],
)
def test_endless_work_is_recognised(source: str, has_no_end: bool) -> None:
    assert endless(ast.parse(source)) is has_no_end
