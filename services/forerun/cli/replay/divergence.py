"""Whether an arm observed what a sequential run observes, and did to the world what a sequential run does.

Two judges. The observations are compared in value and order, byte for byte. And the tool server's own log is asked:
every observation must be an answer that it really gave to that session, and the calls that wrote something must be the
same as in the sequential run, each at the same position (which its answer holds): none lost, none repeated, none early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from forerun.cli.replay.agent import Observed, SessionRun
from forerun.cli.replay.toolserver import Execution, digest


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from the sequential run.

    Attributes:
        session: The session.
        what: `observation`, `not_in_log`, `write_missing` or `write_added`.
        tool: The tool.
        place: The number of the observation; None for writes.
    """

    session: str
    what: str
    tool: str
    place: int | None = None


def differences(
    run: SessionRun, sequential: SessionRun, log: Sequence[Execution], sequential_log: Sequence[Execution]
) -> list[Difference]:
    """Compares one session of an arm with its sequential run.

    Args:
        run: The session in the arm.
        sequential: The same session, sequential.
        log: What the tool server executed for the arm's session.
        sequential_log: The same for the sequential run.
    """
    name = run.session.name
    tools = [call.tool for step in run.session.steps for call in step.calls]
    answered = {execution.digest for execution in log if execution.ended_at is not None}
    found: list[Difference] = []
    pairs = zip_longest(run.flat, sequential.flat)
    for place, (mine, right) in enumerate(pairs):
        tool = tools[place] if place < len(tools) else ""
        if mine is None or right is None or _value(mine) != _value(right):
            found.append(Difference(name, "observation", tool, place))
        elif digest(mine.content) not in answered:
            found.append(Difference(name, "not_in_log", tool, place))
    written, wanted = _writes(log), _writes(sequential_log)
    for what, counts in (("write_missing", wanted - written), ("write_added", written - wanted)):
        found.extend(Difference(name, what, tool) for tool, _, _ in counts.elements())
    return found


def _value(observed: Observed) -> tuple[bytes, bool, str]:
    return observed.content, observed.tool_error, observed.status


def _writes(log: Sequence[Execution]) -> Counter[tuple[str, bytes, str]]:
    """The executions that wrote, in no order: those of different resources may come in any, answers hold positions."""
    return Counter((line.tool, line.arguments, line.digest) for line in log if line.wrote)
