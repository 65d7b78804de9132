"""Invariants 1 and 5: agents get what they would have got without the platform, and nothing of what was discarded."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from forerun.v1 import ledger_pb2
from tests.simulation.agents import BESIDE_INDEX, EXTRA_INDEX
from tests.simulation.diary import Asked
from tests.simulation.evidence import HITS, Evidence, end_of, key_of, line_key, name_of, outcome_of, split_key
from tests.simulation.files import FILE_TOOLS
from tests.simulation.nemesis import REPLICAS
from tests.simulation.world import NOT_REPEATABLE, SPECULABLE, Execution

_RESTART_SECONDS: Final = 16.0
_STALENESS_SECONDS: Final = 10.0
_SWITCH_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 1.0


def observations(evidence: Evidence) -> Iterator[str]:
    for one in evidence.diary.asked:
        if one.status != "ok" or one.tool_error:
            continue
        if one.call.tool == "nowhere":
            yield f"1: {name_of(one)}: a tool that does not exist answered"
            continue
        if one.call.tool in FILE_TOOLS:
            continue
        execution = evidence.source(one)
        if execution is None:
            yield f"1: {name_of(one)} served {one.served}: no execution that it may come from gave these bytes"
            continue
        for resource, epoch in execution.reads.items():
            yield from _read_in_order(evidence, one, resource, epoch)
        for resource, epoch in execution.effects.items():
            yield from _written_in_order(evidence, one, resource, epoch, execution)
        if one.call.tool == "calc" and json.loads(one.content)["sum"] != sum(map(int, one.call.arguments.values())):
            yield f"1: {name_of(one)}: wrong sum"
        if one.call.tool == "clock" and json.loads(one.content)["at"] < one.asked_at:
            yield f"1: {name_of(one)}: the time is from before the ask"


def _read_in_order(evidence: Evidence, one: Asked, resource: str, epoch: int) -> Iterator[str]:
    """A read sees every write that was complete before it in the sequential order, and none that comes after it."""
    if resource.startswith("news/"):
        return  # written elsewhere: its age is what is bounded
    for written, execution in evidence.effects[resource]:
        if execution.key == key_of(one):
            continue
        if written > epoch and _before(evidence, execution, one):
            yield (
                f"1: {name_of(one)} served {one.served} saw epoch {epoch} of {resource}, but {execution.tool} "
                f"{execution.key} had made it {written} before (asked at {one.asked_at:.3f}, it ended at "
                f"{execution.ended_at})"
            )
        if written <= epoch and _after(evidence, execution, one):
            yield f"1: {name_of(one)} saw epoch {epoch} of {resource}, made by the later call {execution.key}"


def _written_in_order(evidence: Evidence, one: Asked, resource: str, epoch: int, own: Execution) -> Iterator[str]:
    for written, execution in evidence.effects[resource]:
        if execution is own or execution.key == own.key:
            continue
        if written > epoch and _before(evidence, execution, one) and own.key == key_of(one):
            yield f"1: {name_of(one)} wrote epoch {epoch} of {resource} before the earlier call {execution.key}"
        if written < epoch and _after(evidence, execution, one) and own.key == key_of(one):
            yield f"1: {name_of(one)} wrote epoch {epoch} of {resource} after the later call {execution.key}"


def barriers(evidence: Evidence) -> Iterator[str]:
    """A call of which nothing is known runs alone among the calls of its message."""
    own = [one for one in evidence.world.log if "/" in one.key and split_key(one.key)[2] < EXTRA_INDEX]
    for alone in own:
        if alone.tool != "sync_view" or alone.lingered:
            continue
        for other in own:
            same = (
                other is not alone
                and not other.lingered
                and other.key.rpartition("/")[0] == alone.key.rpartition("/")[0]
            )
            if same and other.started_at < end_of(alone) and alone.started_at < end_of(other):
                yield f"1: {other.tool} {other.key} ran beside {alone.tool} {alone.key}, of which nothing is known"


def _before(evidence: Evidence, execution: Execution, one: Asked) -> bool:
    """The execution's call comes before this one in the order that the agents can know."""
    session, turn, index = split_key(execution.key)
    if session == one.session:
        if turn == one.turn and one.index < EXTRA_INDEX and index < one.index:
            return execution.end == "ok" and execution.key in evidence.answered_at and _meanwhile(execution, one)
        return (turn, index) < (one.turn, one.index) and _over(execution, one.asked_at)
    done = evidence.answered_at.get(execution.key)
    return done is not None and done < one.asked_at and _over(execution, done)


def _after(evidence: Evidence, execution: Execution, one: Asked) -> bool:
    session, turn, index = split_key(execution.key)
    later = session == one.session and (turn, index) > (one.turn, one.index)
    # What is asked for beside a message is in no order with its calls. Where an owner forgot, turns come again, and a
    # call beside a message can have the turn of an earlier one, which is higher.
    beside = BESIDE_INDEX in (one.index, index if turn == one.turn or evidence.forgetful else 0)
    return later and not beside and _meanwhile(execution, one)


def _meanwhile(execution: Execution, one: Asked) -> bool:
    """It ran for the same message; where owners forget, a key can come again, for another one or after this one."""
    return one.asked_at <= execution.started_at < one.answered_at  # no tool answers in no time


def _over(execution: Execution, now: float) -> bool:
    return execution.ended_at is not None and execution.ended_at < now


def staleness(evidence: Evidence) -> Iterator[str]:
    """What is also written elsewhere is served for a bounded time only, and what depends on the time not at all."""
    epoch = evidence.epoch_seconds
    given = {
        (line.call.session, line.call.turn, line.call.index): line.at_seconds - epoch
        for line in evidence.lines
        if line.kind == ledger_pb2.LEDGER_KIND_CALL
    }
    for one in evidence.diary.asked:
        if one.status != "ok" or one.tool_error or one.served in ("direct", "shared", "unknown"):
            continue
        if one.call.tool == "clock":
            yield f"1: {name_of(one)}: served {one.served} although it depends on the time"
        if one.call.tool in NOT_REPEATABLE or one.call.tool not in SPECULABLE:
            yield f"5: {name_of(one)}: served {one.served}, which the policy does not allow"
        if one.call.tool != "news" or (one.session, one.turn, one.index) not in given:
            continue
        execution = evidence.source(one)
        if execution is None:
            continue
        # Where clocks jump, only the time of the ask is sure; then it is no older than this.
        served_at = one.asked_at if "clock" in evidence.kinds else given[one.session, one.turn, one.index]
        age = served_at - execution.started_at
        if age > _STALENESS_SECONDS + 0.5:
            yield f"1: {name_of(one)}: served {one.served} at the age of {age:.3f} s"


def discarded(evidence: Evidence) -> Iterator[str]:
    hits: dict[str, list[ledger_pb2.LedgerLine]] = defaultdict(list)
    for line in (line for lines in evidence.ahead.values() for line in lines if line.HasField("call")):
        hits[line_key(line)].append(line)
    for one in evidence.diary.asked:
        if one.status != "ok" or one.served not in HITS | {"early"}:
            continue
        digest = f"sha256:{hashlib.sha256(one.content).hexdigest()}"
        lines = hits[key_of(one)]
        if not lines:
            if not evidence.nemesis.killed and not evidence.lines_lost:
                yield f"5: {name_of(one)} served {one.served}, and no line of the ledger says from what"
        elif (one.served, digest) not in {(_served_from(line), line.digest) for line in lines}:
            yield f"5: {name_of(one)} served {one.served}, and no line of the ledger for it says that with this answer"
    for execution in evidence.world.log:
        if execution.speculative and execution.effects:
            yield f"5: {execution.tool} {execution.key} changed something ahead of its call"
        plan = evidence.diary.sessions.get(execution.session)
        if execution.speculative and plan is not None and plan.mode is not None:
            yield f"5: {execution.tool} ran ahead in {execution.session}, which asked for mode {plan.mode}"


def _served_from(line: ledger_pb2.LedgerLine) -> str:
    early = line.kind == ledger_pb2.LEDGER_KIND_EARLY and outcome_of(line) in HITS
    return "early" if early else outcome_of(line)


def endings(evidence: Evidence) -> Iterator[str]:
    """What nobody waits for any more is stopped down to the tool, and what a call joined is made authoritative."""
    quiet = not evidence.kinds & {"network", "broker", "crash", "restart"}
    for key, lines in evidence.ahead.items():
        execution = next((one for one in evidence.world.log if one.key == key), None)
        if execution is None or execution.ended_at is None:
            continue
        late = execution.ended_at - (lines[0].at_seconds - evidence.epoch_seconds)
        if late > _CANCEL_SECONDS and "clock" not in evidence.kinds:
            yield f"5: {execution.tool} {key} went on for {late:.2f} s after it had ended {outcome_of(lines[0])}"
        if (
            quiet
            and key in evidence.speculations
            and outcome_of(lines[0]) == "joined"
            and key not in evidence.wiretap.promoted
        ):
            yield f"5: {execution.tool} {key} was joined by a call and never promoted"


def switch(evidence: Evidence) -> Iterator[str]:
    away = [outage for outage in evidence.nemesis.outages if outage.what in ("broker", *REPLICAS)]
    for begin, end in evidence.nemesis.switched:
        for one in evidence.world.log:
            late = begin + _SWITCH_SECONDS < one.started_at < end
            excused = any(o.begin < one.started_at < o.end + _RESTART_SECONDS for o in away)
            if one.speculative and late and not excused and not _joined_before(evidence, one):
                yield f"5: {one.tool} {one.key} ran ahead {one.started_at - begin:.2f} s after it was switched off"


def _joined_before(evidence: Evidence, one: Execution) -> bool:
    """Its call was there when it began: it had waited for a place until then, and was the call's own."""
    calls = (line.call for line in evidence.ahead.get(one.key, ()) if line.HasField("call"))
    asked = (evidence.tap.asked_at.get((call.session, call.turn, call.index)) for call in calls)
    return any(at is not None and at <= one.started_at for at in asked)


def audits(evidence: Evidence) -> Iterator[str]:
    """No audit finds another result where nothing was written in between.

    The verifier knows of writes from the journal, which may lag behind a broker that takes nothing; the server knows.
    """
    for line in evidence.lines:
        if line.kind != ledger_pb2.LEDGER_KIND_AUDIT or line.audit_result != "different":
            continue
        first = next((one for one in evidence.world.log if one.key == line.speculation), None)
        seconds = [one for one in evidence.world.log if one.audit and f"sha256:{one.digest}" == line.digest]
        if first is None or not seconds or first.lied or seconds[-1].lied:
            continue
        if first.garbled is not seconds[-1].garbled:
            continue
        written = any(
            first.read_at < execution.read_at < seconds[-1].read_at
            for resource in first.reads
            for _, execution in evidence.effects[resource]
        )
        if not written:
            yield f"1: an audit of {line.tool} {line.speculation} found another result"
