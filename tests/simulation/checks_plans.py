"""Invariants 1, 4 and 5 for plans of calls: what depends on what, what never ran, and how a plan ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from forerun.client import OnFailure
from tests.simulation.agents import EXTRA_INDEX
from tests.simulation.evidence import Evidence, end_of, split_key
from tests.simulation.graphs import GraphRun, next_of
from tests.simulation.world import WRITES, Execution, next_document

_FAILS = frozenset({"rejected", "timeout", "unavailable", "outcome_unknown"})
_ENDS = frozenset({"cancelled", "refused"})

_NEVER: Final = float("inf")

_Executions = dict[int, list[Execution]]


def plans(evidence: Evidence) -> Iterator[str]:
    """Tasks wait for what they need and get its values; what was skipped or cut off never ran; the end is right.

    A key whose owner forgot it can run again, with what is true by then: only plans of owners that forget nothing are
    judged, and, but for what was told twice, only those of which the end was heard.
    """
    if evidence.forgetful:
        return
    executions: dict[tuple[str, int], _Executions] = defaultdict(lambda: defaultdict(list))
    for one in evidence.world.log:
        session, turn, index = split_key(one.key)
        if session and index < EXTRA_INDEX:
            executions[session, turn][index].append(one)
    for run in evidence.diary.graphs:
        name = f"plan {run.session}/{run.turn}"
        yield from _told_again(name, run)
        if run.status:
            own = _own(run, executions[run.session, run.turn], evidence)
            yield from _complete(name, run)
            yield from _inputs(name, run, own, evidence.world.log)
            yield from _never_ran(name, run, own)


def _own(run: GraphRun, executions: _Executions, evidence: Evidence) -> _Executions:
    """The executions of a plan's tasks.

    A message of which nothing was begun is not in the journal, so the agent's next client may use its turn again.
    """
    vanished = evidence.tap.vanished.get(run.session, ())
    until = min((at for at in vanished if at >= run.over_at), default=_NEVER)
    own: _Executions = defaultdict(list)
    for index, ran in executions.items():
        own[index] += [one for one in ran if one.started_at < until]
    return own


def _told_again(name: str, run: GraphRun) -> Iterator[str]:
    """A plan whose stream broke decides the same again: each task ends as it did when it was told first."""
    for index, (first, *others) in run.told.items():
        for one in others:
            if (one.status, one.content) != (first.status, first.content):
                yield (
                    f"4: task {index} of {name} was told as {first.status} {first.content[:80]!r} and again as "
                    f"{one.status} {one.content[:80]!r}"
                )


def _complete(name: str, run: GraphRun) -> Iterator[str]:
    """Every task has one end, and the plan's own follows from them."""
    graph = run.graph
    told = range(graph.again) if graph.again is not None and not run.first else range(len(run.calls))
    missing = sorted(set(told) - set(run.results))
    if run.status == "failed" and graph.on_failure is OnFailure.FAIL_FAST:
        # It can be over before its last tasks are told: what has failed takes no more.
        missing = [index for index in missing if index < max(run.results, default=0)]
    if missing and run.status not in _ENDS:
        yield f"4: {name} ended {run.status} without an end of its tasks {missing}"
    failed = [index for index, one in run.results.items() if index >= run.first and one.status.value in _FAILS]
    if run.status == "failed" and (not failed or graph.on_failure is OnFailure.ISOLATE):
        yield f"4: {name} failed, its tasks {failed} failed and its policy is {graph.on_failure}"
    if run.status == "ok" and failed and graph.on_failure is not OnFailure.ISOLATE:
        yield f"4: {name} is fine, although its tasks {failed} failed and its policy is {graph.on_failure}"
    if run.status == "ok" and graph.cut_off:
        yield f"4: {name} is fine, although it was cut off"
    for index, one in run.results.items():
        source = graph.refers.get(index)
        ended = None if source is None else run.results.get(source)
        if one.status.value == "ok" and ended is not None and ended.status.value != "ok":
            yield f"1: task {index} of {name} ran, although it needs task {source}, which ended {ended.status.value}"


def _inputs(name: str, run: GraphRun, executions: _Executions, log: Sequence[Execution]) -> Iterator[str]:
    """What a task takes from another one's answer is what that answer says; what it comes after has ended before."""
    for index, source in run.graph.refers.items():
        for one in executions[index]:
            said = _said(run, source, one, log)
            if said is None:
                yield f"1: task {index} of {name} ran with {one.arguments} although task {source} gave no value"
            elif one.arguments["id"] not in said:
                yield f"1: task {index} of {name} ran with {one.arguments}, task {source} says {sorted(said)}"
    for index, before in run.graph.after.items():
        for one in executions[index]:
            for earlier in executions[before]:
                ended = earlier.ended_at
                if not earlier.lingered and (ended is None or ended > one.started_at):
                    yield f"1: task {index} of {name} began at {one.started_at:.3f}, before the end of task {before}"


def _said(run: GraphRun, source: int, reader: Execution, log: Sequence[Execution]) -> set[int] | None:
    """The documents that a task's answer may name; None where it had none.

    A message that is cut off gives nothing, also not the reads that ran ahead for it. What their answers said only the
    server's log tells then: those of the same call of this session, by whichever execution it was answered.
    """
    result = run.results.get(source)
    if result is not None and result.status.value == "ok":
        return {next_of(result.content)}
    if not (run.graph.reads_first and run.status in _ENDS):
        return None
    call = run.calls[source]
    answers = [
        one
        for one in log
        if (one.session, one.tool, one.end) == (run.session, call.tool, "ok")
        and (call.refers or one.arguments == call.arguments)
        and end_of(one) <= reader.started_at
    ]
    return {next_document(one) for one in answers} or None


def _never_ran(name: str, run: GraphRun, executions: _Executions) -> Iterator[str]:
    for index, result in run.results.items():
        if result.status.value == "skipped" and executions[index]:
            yield f"5: task {index} of {name} was skipped and ran"
    for index, ran in executions.items():
        late = [one for one in ran if one.started_at > run.over_at]
        if late:
            yield f"5: task {index} of {name} began at {late[0].started_at:.3f}, the plan ended at {run.over_at:.3f}"
        early = [one for one in ran if one.tool in WRITES and one.started_at < run.complete_at.get(index, _NEVER)]
        if run.graph.reads_first and early:
            yield f"5: task {index} of {name} wrote at {early[0].started_at:.3f}, before its message was complete"
        cut_off = run.status == "refused" and run.graph.reads_first and index >= run.first
        if cut_off and ran and ran[0].tool in WRITES:
            yield f"5: task {index} of {name} wrote something, although its message was cut off"
